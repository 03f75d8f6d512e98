"""Networks of timm by name: the table of its plain networks against timm itself, names that are near, and options."""

import inspect
from unittest import mock

import pytest
import torch

from momentum_transfer.backbones import timm_models
from momentum_transfer.backbones.timm_models import TimmArchitecture, check_name, create
from momentum_transfer.core.errors import InputError

timm = pytest.importorskip("timm")

NAMES = {row.name: row for kind in timm_models._NAMES for row in timm_models.named(kind)}


def asked_for(name: str) -> dict[str, object]:
    """What timm's entry point of a network gives its constructor, with the constructor's defaults; nothing is built."""
    from timm.models import deit, eva, vision_transformer

    seen: dict[str, object] = {}

    def build(kind, variant, pretrained, **options):
        for each in reversed([one for one in kind.__mro__ if issubclass(one, torch.nn.Module)]):
            seen.update({key: value.default for key, value in inspect.signature(each.__init__).parameters.items()})
        seen.update(options)
        return torch.nn.Identity()

    patches = [mock.patch.object(module, "build_model_with_cfg", build) for module in (deit, eva, vision_transformer)]
    try:
        for patch in patches:
            patch.start()
        timm.create_model(name, num_classes=0)
    finally:
        for patch in patches:
            patch.stop()
    return seen


@pytest.mark.parametrize("name", NAMES)
def test_the_table_of_names_says_what_timms_entry_points_say(name: str):
    row, asked = NAMES[name], asked_for(name)
    assert (row.width, row.depth, row.heads, row.patch) == tuple(
        asked[key] for key in ("embed_dim", "depth", "num_heads", "patch_size")
    )
    assert int(row.width * row.ratio) == int(row.width * asked["mlp_ratio"])
    config = timm.get_pretrained_cfg(name)
    if "dinov3" not in name:  # positions of any size
        assert row.side == (config.input_size[-1] if config.fixed_input_size else asked["img_size"])


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("resnet50.", []),  # the name itself: its tag is empty
        ("resnet5", ["resnet50", "resnet51q", "resnet50s"]),
        ("ResNet-50d", ["resnet50d"]),
        ("vit_tiny_patch16_22", ["vit_tiny_patch16_224"]),
        ("tiny_patch16_224", ["vit_tiny_patch16_224"]),
        ("???", []),
    ],
)
def test_the_nearest_names_of_an_unknown_one_are_told(word: str, names: list[str]):
    with pytest.raises(InputError) as error:
        check_name(word)
    if not names:
        assert "the nearest are" not in str(error.value)
        return
    listed = str(error.value).partition("the nearest are ")[2].split(", ")
    assert 1 <= len(listed) <= 3
    assert listed[0] == names[0]
    assert all(timm.is_model(name) for name in listed)


def test_a_name_is_known_with_its_own_tags_alone():
    check_name("resnet50")
    check_name("resnet50.a1_in1k")
    with pytest.raises(InputError, match=r"a tag of .*a1_in1k.* of timm's resnet50, found 'none'"):
        check_name("resnet50.none")
    with pytest.raises(InputError, match=r"one of timm's .* networks, found 'resnetfifty'"):
        check_name("resnetfifty")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"img_size": 1}, ""),
        ({"img_size": 10_000}, ""),
        ({"img_size": 10_001}, "img_size in pixels, 1 to 10000, found 10001"),
        ({"img_size": 0}, "img_size in pixels"),
        ({"img_size": True}, "img_size in pixels"),
        ({"img_size": 1.5}, "img_size in pixels"),
        ({"pretrained_cfg": "x"}, "options of the network itself, found pretrained_cfg"),
        ({"num_classes": 3}, "options of the network itself, found num_classes"),
        ({"depth": None}, "numbers or words as options, found depth=None"),
        ({"depth": (1, 2), "act_layer": "gelu", "mlp_ratio": 2.0}, ""),
    ],
)
def test_options_are_sizes_and_words_of_the_network(options: dict, message: str):
    if not message:
        TimmArchitecture("resnet50", tuple(options.items()))
        return
    with pytest.raises(InputError, match=message):
        TimmArchitecture("resnet50", tuple(options.items()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drop_rate": 0}, ""),
        ({"drop_rate": 0.99}, ""),
        ({"drop_rate": 1}, "drop_rate from 0 to below 1, found 1"),
        ({"drop_path_rate": -0.1}, "drop_path_rate from 0 to below 1"),
        ({"proj_drop_rate": True}, "proj_drop_rate from 0 to below 1, found True"),
        ({"depth": 1000}, ""),
        ({"depth": 1001}, "options up to 1000, found depth 1001"),
        ({"depths": (500, 500)}, ""),
        ({"depths": (500, 501)}, r"options up to 1000, found depths \(500, 501\)"),
        ({"embed_dim": 16_384}, ""),
        ({"embed_dim": 16_385}, "options up to 16384, found embed_dim 16385"),
        ({"embed_dim": -16_385}, "options up to 16384"),
        ({"dims": (16_384, 16_384)}, ""),
        ({"mlp_ratio": 1e9}, ""),  # no size
    ],
)
def test_options_beyond_any_network_are_refused_before_it_is_built(options: dict, message: str):
    architecture = TimmArchitecture("vit_tiny_patch16_224", tuple(options.items()))
    if not message:
        timm_models._check_sizes(options, architecture)
        return
    with pytest.raises(InputError, match=message):
        create(architecture)


@pytest.mark.parametrize("name", ["test_vit", "test_convnext"])
def test_epsilons_are_those_of_all_norms_and_of_the_last(name: str):
    options = (("norm_eps", 1e-3), ("final_norm_eps", 1e-2))
    network = create(TimmArchitecture(name, options))
    norms = {key: part.eps for key, part in network.named_modules() if isinstance(part, torch.nn.LayerNorm)}
    last = [key for key in norms if key in ("norm", "fc_norm", "head.norm")]
    assert len(last) == 1
    assert norms.pop(last[0]) == 1e-2
    assert set(norms.values()) == {1e-3}
    for key, value in (("norm_eps", 0), ("norm_eps", 1), ("final_norm_eps", float("nan")), ("norm_eps", "x")):
        with pytest.raises(InputError, match=f"expected {key} between 0 and 1"):
            create(TimmArchitecture(name, ((key, value),)))


@pytest.mark.parametrize(("side", "sides"), [(40, "32 or 48"), (17, "16 or 32"), (8, "16"), (47, "32 or 48")])
def test_a_side_that_patches_do_not_divide_is_refused_with_the_next_ones(side: int, sides: str):
    with pytest.raises(InputError, match=rf"divisible by the patch of 16 px, found {side} in .*; use {sides}$"):
        create(TimmArchitecture("test_vit", (("img_size", side), ("dynamic_img_pad", 1))))
    assert create(TimmArchitecture("test_vit", (("img_size", 48),))).patch_embed.img_size == (48, 48)
