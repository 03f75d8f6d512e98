"""What a file's tensors say of a network beside their names: clues of buffers, and the layouts of ResNets."""

import pytest
import torch

from momentum_transfer.backbones.build import parse_architecture
from momentum_transfer.backbones.containers import Entry
from momentum_transfer.backbones.families import BY_NAME
from momentum_transfer.backbones.resnet import Architecture, build_resnet, to_detectron2
from momentum_transfer.backbones.timm_inference import Clues
from momentum_transfer.backbones.timm_models import TimmArchitecture
from momentum_transfer.backbones.understanding import Hints, Understood, _assumed, _fixed_by_buffers, understand

timm = pytest.importorskip("timm")

SMALL = {"embed_dim": 16, "depths": (2, 1), "num_heads": (1, 2)}


def buffers(name: str, **options) -> dict[str, torch.Tensor]:
    network = timm.create_model(name, num_classes=0, **SMALL, **options)
    return {**network.state_dict(), **dict(network.named_buffers())}


def test_swin_v2s_tables_say_its_window_and_its_side():
    held = buffers("swinv2_tiny_window8_256", window_size=4, img_size=32)
    found = _fixed_by_buffers(held)
    assert {key: found[key] for key in ("window", "side", "scaled_window")} == {
        "window": 4, "side": 32, "scaled_window": False
    }  # fmt: skip
    wide = buffers("swinv2_tiny_window8_256", window_size=8, pretrained_window_sizes=(4, 4), img_size=64)
    assert _fixed_by_buffers(wide)["scaled_window"] is True
    assert _fixed_by_buffers(wide)["window"] == 8


def test_other_tensors_of_four_dimensions_and_damaged_tables_are_no_tables():
    held = {
        "patch_embed.proj.weight": 9 * torch.ones(8, 3, 4, 4),
        "layers.0.cpb_mlp.weight": 9 * torch.ones(1, 9, 9, 2),
    }
    assert _fixed_by_buffers(held) == {}
    assert _fixed_by_buffers({**held, "layers.0.relative_coords_table": torch.ones(3)}) == {}
    table = {"layers.0.relative_coords_table": torch.ones(1, 7, 7, 2)}
    assert _fixed_by_buffers({**held, **table}) == {"window": 4, "side": 16, "scaled_window": False}
    assert _fixed_by_buffers(table) == {}


def test_swins_mask_says_its_side():
    held = buffers("swin_tiny_patch4_window7_224", window_size=4, img_size=32)
    assert _fixed_by_buffers(held)["side"] == 32
    mask = "layers.0.blocks.1.attn_mask"
    assert "side" not in _fixed_by_buffers({**held, mask: held[mask][0]})
    assert "side" not in _fixed_by_buffers({mask: held[mask]})


def understood(state: dict[str, torch.Tensor], family: str = "torchvision", hints: Hints | None = None) -> Understood:
    entries = {name: Entry(name, name, tensor) for name, tensor in state.items()}
    found = understand(BY_NAME[family], entries, hints or Hints())
    assert found is not None
    return found


RESNET = Architecture("resnet10", 8, "small")
STATE = build_resnet(RESNET).state_dict()


def test_a_resnet_is_itself_under_torchvisions_and_detectron2s_names():
    for family, rename in (("torchvision", str), ("detectron2", to_detectron2)):
        found = understood({rename(name): tensor for name, tensor in STATE.items()}, family)
        assert found.architecture == RESNET
        assert not found.problem
        assert found.sources == {name: (rename(name),) for name in STATE}
        assert all(torch.equal(found.tensors[name], tensor) for name, tensor in STATE.items())


def test_another_resnet_than_asked_is_a_problem():
    assert understood(STATE, hints=Hints(asked=RESNET)).architecture == RESNET
    other = understood(STATE, hints=Hints(asked=Architecture("resnet10", 8)))
    assert other.architecture is None
    assert other.problem == "expected a resnet10?width=8 as --arch says, found a resnet10?width=8&stem=small"
    half = understood({name: tensor for name, tensor in STATE.items() if not name.startswith("conv1")})
    assert (half.architecture, "found none" in half.problem) == (None, True)


def test_timms_own_resnet_counts_where_a_config_names_it_and_torchvisions_does_not_fit():
    deep = timm.create_model("resnet18d", num_classes=0).state_dict()
    known = TimmArchitecture("resnet18d")
    assert understood(deep, "timm", Hints(known=known)).architecture == known
    assert understood(STATE, hints=Hints(known=known)).architecture == RESNET
    plain = build_resnet(Architecture("resnet18")).state_dict()
    assert understood(plain, hints=Hints(known=TimmArchitecture("resnet18"))).architecture == Architecture("resnet18")


@pytest.mark.parametrize("name", ["resnetblur18", "resnet18?act_layer=silu"])
def test_a_resnet_that_computes_something_else_with_the_same_shapes_is_what_its_config_names(name):
    known = parse_architecture(f"timm:{name}")
    state = timm.create_model(known.name, num_classes=0, **dict(known.options)).state_dict()
    assert understood(state, hints=Hints(known=known)).architecture == known
    plain = TimmArchitecture("resnet18", (("drop_path_rate", 0.1), ("global_pool", "avg")))
    assert understood(state, hints=Hints(known=plain)).architecture == Architecture("resnet18")


def test_a_vit_with_a_convolution_of_torchvisions_name_is_no_resnet():
    clip = {"class_embedding": torch.zeros(8), "conv1.weight": torch.zeros(8, 3, 4, 4)}
    found = understood({**clip, "transformer.resblocks.0.ln_1.weight": torch.zeros(8)}, "timm")
    assert set(found.tensors) == {"cls_token", "patch_embed.proj.weight", "blocks.0.norm1.weight"}
    vit = {"blocks.0.norm1.weight": torch.zeros(8), "patch_embed.proj.weight": torch.zeros(8, 3, 4, 4)}
    assert set(understood(vit, "timm").tensors) == set(vit)


def test_an_architecture_of_another_kind_is_told():
    vit = timm.create_model("vit_tiny_patch16_224", depth=1, num_classes=0).state_dict()
    asked = understood(vit, "timm", Hints(asked=RESNET))
    assert asked.problem == "expected a resnet10?width=8&stem=small as --arch says, found names of timm"
    named = understood(vit, "timm", Hints(asked=TimmArchitecture("vit_small_patch16_224")))
    assert named.architecture == TimmArchitecture("vit_small_patch16_224")
    assert "_tiny_patch16_224?depth=1" in named.looks_like  # what the tensors are by themselves


@pytest.mark.parametrize(
    ("clues", "told"),
    [
        (Clues("clip"), "GELU, as open_clip's own networks"),
        (Clues("clip", activation="gelu"), "GELU, as open_clip's own networks"),
        (Clues("clip", activation="quick_gelu"), ""),
        (Clues("transformers-clip", activation="quick_gelu"), "quick_gelu, transformers' default, as no config.json"),
        (Clues("transformers-clip", activation="quick_gelu", heads=12), ""),
        (Clues("dinov3"), "pooled by the class token"),
        (Clues("transformers-dinov3", heads=6), "pooled by the class token"),
        (Clues("dinov2"), ""),
        (Clues("timm"), ""),
    ],
)
def test_only_what_was_chosen_by_rule_is_told(clues, told):
    note = _assumed(clues.layout, clues)
    assert note.startswith(f"; {told}") if told else note == ""
