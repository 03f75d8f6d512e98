"""Shapes alone name the network that timm builds under that name: timm's own catalogue is the oracle."""

import re
from unittest import mock

import pytest
import torch

from momentum_transfer.backbones.timm_inference import Clues, infer_timm
from momentum_transfer.core.errors import InputError

timm = pytest.importorskip("timm")
ConvNeXt = pytest.importorskip("timm.models.convnext").ConvNeXt

CONVNEXTS = [
    *(f"convnext_{size}" for size in ("atto", "femto", "pico", "nano", "tiny", "small", "base", "large", "xlarge")),
    *(f"convnextv2_{size}" for size in ("atto", "femto", "pico", "nano", "tiny", "small", "base", "large", "huge")),
]
SWINS = [f"swin_{size}_patch4_window7_224" for size in ("tiny", "small", "base", "large")]
SWINS += [f"swin_{size}_patch4_window12_384" for size in ("base", "large")]
SWINS_V2 = ["tiny_window8_256", "tiny_window16_256", "small_window8_256", "base_window8_256", "base_window16_256",
            "base_window12_192", "large_window12_192"]  # fmt: skip
VITS = ["vit_tiny_patch16_224", "vit_small_patch32_224", "vit_base_patch8_224", "vit_base_patch16_384",
        "deit_base_distilled_patch16_224", "deit3_small_patch16_224", "vit_small_patch14_dinov2",
        "vit_base_patch14_reg4_dinov2", "vit_base_patch16_siglip_384", "vit_small_patch16_dinov3",
        "vit_small_plus_patch16_dinov3", "vit_base_patch16_dinov3_qkvb",
        "vit_small_plus_patch16_dinov3_qkvb"]  # fmt: skip


def built(name: str, **options: object) -> torch.nn.Module:
    """The network without memory for its weights; clamping them, there are none, would take most of the time."""
    with torch.device("meta"), mock.patch.object(torch.Tensor, "clamp_", lambda self, *_, **__: self):
        return timm.create_model(name, **options)


def shapes_of(network: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in network.state_dict().items()}


def heads_of(network: torch.nn.Module) -> list[int]:
    return [part.num_heads for part in network.modules() if hasattr(part, "num_heads")]


def windows_of(network: torch.nn.Module) -> list[tuple[int, ...]]:
    return [tuple(part.window_size) for part in network.modules() if hasattr(part, "window_size")]


def timm_clues(name: str) -> Clues:
    window = re.search(r"swinv2.*_window(\d+)_(\d+)", name)
    sides = {"window": int(window[1]), "side": int(window[2])} if window else {}
    return Clues("timm", "timm", classifier=True, **sides)


def assert_equal_networks(first: torch.nn.Module, second: torch.nn.Module) -> None:
    """Tensors, heads, windows, and what a module prints: activations, epsilons, strides."""
    assert shapes_of(first) == shapes_of(second)
    assert heads_of(first) == heads_of(second)
    assert windows_of(first) == windows_of(second)
    assert repr(first) == repr(second)


@pytest.mark.parametrize("name", [*CONVNEXTS, *SWINS, *(f"swinv2_{name}" for name in SWINS_V2), *VITS])
def test_a_network_of_timms_catalogue_is_named_by_its_shapes(name):
    network = built(name)
    found = infer_timm(shapes_of(network), timm_clues(name))
    assert found.name == name
    assert not found.options
    assert_equal_networks(built(found.name, **dict(found.options)), network)


#: A network of timm with options -> the same, as tensors show it.
CUSTOM = {
    "convnext_tiny": {"depths": (2, 2, 3, 2), "dims": (24, 48, 96, 192)},
    "convnext_small": {"patch_size": 2},
    "convnextv2_tiny": {"conv_mlp": True},
    "convnext_base": {"head_hidden_size": 64},
    "convnextv2_large": {"use_grn": False},
    "swin_tiny_patch4_window7_224": {"embed_dim": 48, "depths": (2, 2), "num_heads": (2, 4), "img_size": 56},
    "swin_small_patch4_window7_224": {"patch_size": 2, "img_size": 112},
    "vit_tiny_patch16_224": {"depth": 3, "mlp_ratio": 2.0, "patch_size": 8, "img_size": 64},
    "vit_small_patch16_224": {"qkv_bias": False, "init_values": 1e-5, "qk_norm": True},
    "vit_base_patch16_224": {"reg_tokens": 2, "depth": 1},
    "vit_base_patch32_224": {"no_embed_class": True, "depth": 1, "global_pool": "avg"},
}


@pytest.mark.parametrize("name", CUSTOM)
def test_what_differs_from_the_catalogue_is_spelled_out(name):
    network = built(name, **CUSTOM[name])
    found = infer_timm(shapes_of(network), timm_clues(name))
    assert_equal_networks(built(found.name, **dict(found.options)), network)


def test_a_swin_v2_needs_a_clue_of_its_window():
    shapes = shapes_of(built("swinv2_tiny_window8_256"))
    with pytest.raises(InputError, match="expected to know the window of a Swin V2"):
        infer_timm(shapes, Clues("timm", "timm"))
    with pytest.raises(InputError, match="fine-tuned with a larger one"):
        infer_timm(shapes, Clues("timm", "timm", window=16, scaled_window=True))
    found = infer_timm(shapes, Clues("timm", "timm", window=4))
    assert dict(found.options)["window_size"] == 4
    assert dict(found.options)["img_size"] == 128  # the last of four stages is one window


@pytest.mark.parametrize(
    ("clues", "options"),
    [
        (Clues("timm", "timm", classifier=True, eps=1e-6), {}),
        (Clues("timm", "timm", classifier=True, eps=1e-12), {"norm_eps": 1e-12}),
        (Clues("timm", "timm", classifier=True, final_eps=1e-6), {}),
        (Clues("timm", "timm", classifier=True, final_eps=1e-5), {"final_norm_eps": 1e-5}),
        (Clues("timm", "timm", classifier=True, activation="gelu"), {}),
        (Clues("timm", "timm", classifier=True, activation="relu"), {"act_layer": "relu"}),
        (Clues("timm", "timm", classifier=True, heads=4), {"num_heads": 4}),
        (Clues("mocov3", "mocov3"), {"num_heads": 12}),
    ],
)
def test_what_no_tensor_shows_comes_from_the_clues(clues, options):
    found = infer_timm(shapes_of(built("vit_small_patch16_224")), clues)
    assert dict(found.options) == options


def test_heads_of_a_width_that_no_project_uses_are_asked_for():
    shapes = shapes_of(built("vit_small_patch16_224", embed_dim=320, num_heads=5))
    with pytest.raises(InputError, match=r"heads of a ViT of width 320.*num_heads=N"):
        infer_timm(shapes, timm_clues("vit"))
    found = infer_timm(shapes, Clues("timm", "timm", classifier=True, heads=5))
    assert dict(found.options) == {"embed_dim": 320, "num_heads": 5}


@pytest.mark.parametrize(("width", "heads"), [(192, 3), (384, 6), (768, 12), (1024, 16)])
def test_a_usual_width_has_heads_of_64_channels_where_the_project_has_no_network_of_it(width, heads):
    """I-JEPA, of no class token, is published in ViT-H and ViT-g alone."""
    ijepa = built("vit_huge_patch14_gap_224", depth=1, embed_dim=width, num_heads=heads)
    found = infer_timm(shapes_of(ijepa), Clues("timm", "ijepa"))
    assert heads == width // 64
    assert_equal_networks(built(found.name, **dict(found.options)), ijepa)


@pytest.mark.parametrize(
    ("clues", "own"),
    [
        (Clues("timm", "timm", classifier=True), True),
        (Clues("timm", "named", classifier=True), True),
        (Clues("timm", "timm"), False),
        (Clues("timm", "mae", classifier=True), False),
        (Clues("transformers-vit", "transformers"), True),
        (Clues("transformers-vit", "transformers", classifier=True), True),
    ],
)
def test_a_plain_vit_is_timms_own_name_of_it_with_a_classifier_and_a_self_supervised_one_without(clues, own):
    found = infer_timm(shapes_of(built("vit_base_patch16_224", depth=1)), clues)
    assert found.name.split(".")[0] == "vit_base_patch16_224"
    assert ("." in found.name) != own


@pytest.mark.parametrize(("depths", "dims"), [((3, 3, 9, 3), (96, 192, 384, 768)), ((1, 2, 1, 1), (8, 16, 32, 64))])
def test_a_convnext_without_layer_scale_is_a_network_without_it(depths, dims):
    with torch.device("meta"):
        network = ConvNeXt(depths=depths, dims=dims, ls_init_value=None)
    found = infer_timm(shapes_of(network), Clues("timm", "timm"))
    assert_equal_networks(built(found.name, **dict(found.options)), network)


@pytest.mark.parametrize(
    ("name", "clues", "options"),
    [
        ("small", Clues("timm", activation="gelu"), {}),
        ("small", Clues("dinov3", activation="silu"), {"global_pool": "token", "act_layer": "silu"}),
        ("small_plus", Clues("transformers-dinov3", activation="silu"), {"global_pool": "token"}),
        ("small_plus", Clues("timm", rope_temperature=100.0), {}),
        ("small", Clues("timm", rope_temperature=50.0), {"rope_temperature": 50.0}),
    ],
)
def test_what_no_tensor_of_dinov3_shows_comes_from_the_clues(name, clues, options):
    found = infer_timm(shapes_of(built(f"vit_{name}_patch16_dinov3", depth=12)), clues)
    assert found.name == f"vit_{name}_patch16_dinov3"
    assert dict(found.options) == options


def test_registers_of_dinov3_are_counted_and_other_evas_and_gates_are_refused():
    shapes = shapes_of(built("vit_small_patch16_dinov3", num_reg_tokens=2))
    assert dict(infer_timm(shapes, Clues("timm")).options) == {"num_reg_tokens": 2}
    for other in ({**shapes, "pos_embed": (1, 197, 384)}, {k: v for k, v in shapes.items() if k != "reg_token"}):
        with pytest.raises(InputError, match="expected DINOv3's names, found those of another EVA"):
            infer_timm(other, Clues("timm"))
    gated = shapes_of(built("vit_small_plus_patch16_dinov3"))
    with pytest.raises(InputError, match=r"expected SwiGLU \(silu\), found gelu in the model config"):
        infer_timm(gated, Clues("transformers-dinov3", activation="gelu"))
