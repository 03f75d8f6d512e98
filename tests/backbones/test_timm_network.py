"""timm's networks as backbones: equal bits, timm's own names, maps and tokens as timm describes them, refusals."""

import copy
import sys
from pathlib import Path

import pytest
import timm
import torch
from torch import nn

from momentum_transfer.backbones.batch_statistics import has_batch_norm
from momentum_transfer.backbones.build import (
    architecture_in,
    build_backbone,
    expected_shapes,
    metadata_of,
    own_input,
    parse_architecture,
)
from momentum_transfer.backbones.convert import convert_file, export_backbone
from momentum_transfer.backbones.read import load_backbone
from momentum_transfer.backbones.resnet import Architecture
from momentum_transfer.backbones.source import CoverageError
from momentum_transfer.backbones.timm_models import TimmArchitecture
from momentum_transfer.backbones.timm_network import TimmBackbone
from momentum_transfer.core.errors import InputError

HIERARCHICAL = ("timm:test_convnext?img_size=64", "timm:test_efficientnet?img_size=64",
                "timm:maxvit_rmlp_pico_rw_256?img_size=64",
                "timm:swin_s3_tiny_224?img_size=64&embed_dim=12&depths=(1,1,1,1)&window_size=4")  # fmt: skip
PLAIN = {  # text -> prefix tokens, whether the first is CLS, patch
    "timm:test_vit?img_size=64": (1, True, 16),
    "timm:vit_small_patch14_reg4_dinov2?img_size=56&depth=2&embed_dim=48&num_heads=3": (5, True, 14),
    "timm:vit_small_patch16_dinov3?img_size=64&depth=2&embed_dim=48&num_heads=3": (5, True, 16),
    "timm:mixer_s16_224?img_size=64": (0, False, 16),
    "timm:vit_base_patch16_siglip_224?img_size=64&depth=2&embed_dim=48&num_heads=3": (0, False, 16),
}


def made(text: str) -> tuple[TimmBackbone, torch.Tensor]:
    torch.manual_seed(0)
    backbone = build_backbone(parse_architecture(text)).eval()
    return backbone, torch.randn(2, 3, backbone.input.size, backbone.input.size)


@pytest.mark.parametrize("text", [*HIERARCHICAL, *PLAIN])
@torch.no_grad()
def test_features_have_the_bits_of_timms_own_network_with_its_classifier(text: str):
    backbone, images = made(text)
    options = dict(backbone.architecture.options)
    if "test_convnext" in text or "efficientnet" in text:
        del options["img_size"]  # convolutions know no size
    reference = timm.create_model(backbone.architecture.name, num_classes=7, **options).eval()
    missing, unexpected = reference.load_state_dict(backbone.state_dict(), strict=False)
    assert not unexpected
    assert all(name.startswith(("head.", "classifier.")) for name in missing)
    wanted = reference.forward_head(reference.forward_features(images), pre_logits=True)
    assert wanted.shape == (2, backbone.num_features)
    assert torch.equal(backbone(images), wanted)


@pytest.mark.parametrize("text", HIERARCHICAL)
@torch.no_grad()
def test_maps_have_the_strides_and_channels_that_are_said_and_the_bits_of_features_only(text: str):
    backbone, images = made(text)
    assert not backbone.plain
    assert backbone.strides == {"res2": 4, "res3": 8, "res4": 16, "res5": 32}
    stages = backbone.stages(images)
    assert torch.equal(stages.pop("pooled"), backbone(images))
    for name, stride in backbone.strides.items():
        assert stages[name].shape == (2, backbone.channels[name], 64 // stride, 64 // stride)
    assert all(torch.equal(one, stages[name]) for name, one in backbone.maps(images).items())
    options = dict(backbone.architecture.options)
    if "test_convnext" in text or "efficientnet" in text:
        del options["img_size"]
    count = len(timm.create_model(backbone.architecture.name, features_only=True, **options).feature_info)
    last = tuple(range(count - 4, count))
    reference = timm.create_model(backbone.architecture.name, features_only=True, out_indices=last, **options).eval()
    source = {name.replace(".", "_"): tensor for name, tensor in backbone.state_dict().items()}
    reference.load_state_dict(
        {name: source[name.replace(".", "_").removeprefix("model_")] for name in reference.state_dict()}
    )
    for name, wanted in zip(backbone.strides, reference(images), strict=True):
        nhwc = wanted.shape[1] != backbone.channels[name]
        assert torch.equal(stages[name], wanted.permute(0, 3, 1, 2) if nhwc else wanted)


@pytest.mark.parametrize("text", PLAIN)
@torch.no_grad()
def test_tokens_are_timms_normed_ones_with_the_prefix_found(text: str):
    backbone, images = made(text)
    prefix, class_token, patch = PLAIN[text]
    assert backbone.plain
    assert not backbone.strides
    assert (backbone.num_prefix_tokens, backbone.class_token, backbone.patch_size) == (prefix, class_token, patch)
    first, last = backbone.tokens(images, 2)
    sequence = torch.cat([last[0], last[1].flatten(2).transpose(1, 2)], dim=1)
    assert torch.equal(sequence, backbone.network.forward_features(images))
    assert last[0].shape[1] == prefix
    assert not torch.equal(first[1], last[1])
    with pytest.raises(InputError, match=r"stride 4, 8, 16 or 32, found the tokens of one map"):
        backbone.stages(images)


def test_the_wrapper_is_one_module_with_the_network_inside():
    backbone, _ = made("timm:test_efficientnet?img_size=64")
    assert {name for name, _ in backbone.named_parameters()} == {n for n, _ in backbone.network.named_parameters()}
    backbone.train()
    assert all(module.training for module in backbone.network.modules())
    other = copy.deepcopy(backbone).eval()
    assert not any(module.training for module in other.network.modules())
    assert backbone.network.training
    with torch.no_grad():
        other.get_parameter("conv_stem.weight").zero_()
    assert backbone.network.conv_stem.weight.abs().sum() > 0
    assert not other.network.conv_stem.weight.any()
    assert other.double().network.conv_stem.weight.dtype == torch.float64


@pytest.mark.parametrize("text", ["timm:test_vit?img_size=64", "resnet50?width=8&stem=small", "resnet18",
                                  "timm:vit_small_patch16_224.dino?depth=2&qkv_bias=False"])  # fmt: skip
def test_the_text_is_read_back(text: str):
    architecture = parse_architecture(text)
    assert str(architecture) == text
    assert parse_architecture(str(architecture)) == architecture
    assert len({architecture, parse_architecture(text)}) == 1
    assert architecture_in(metadata_of(architecture)) == architecture


def test_shapes_are_those_of_the_state_dict_and_inputs_are_timms():
    backbone, _ = made("timm:test_vit?img_size=64")
    shapes = {name: tuple(tensor.shape) for name, tensor in backbone.state_dict().items()}
    assert expected_shapes(backbone.architecture) == shapes
    config = timm.get_pretrained_cfg("vit_small_patch16_224")
    spec = build_backbone(parse_architecture("timm:vit_small_patch16_224?depth=1")).input
    assert spec == (224, config.mean, config.std, config.interpolation, config.crop_pct)
    assert build_backbone(Architecture("resnet10", 8)).input.mean == (0.485, 0.456, 0.406)


class Doubling(nn.Module):
    """A normalisation that differs from BatchNorm."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


def test_another_normalisation_takes_the_place_of_every_batch_norm_and_keeps_names_and_activations():
    text = "timm:test_efficientnet?img_size=64"
    before, images = made(text)
    after = build_backbone(parse_architecture(text), Doubling).eval()
    assert has_batch_norm(before)
    assert not has_batch_norm(after)
    assert {n for n, _ in after.named_parameters()} == {n for n, _ in before.named_parameters()}
    stem = after.network.conv_stem(images)
    assert torch.equal(after.network.bn1(stem), before.network.bn1.act(2 * stem))
    plain, _ = made("timm:test_vit?img_size=64")
    assert not has_batch_norm(plain)
    assert build_backbone(plain.architecture, Doubling).state_dict().keys() == plain.state_dict().keys()


@pytest.mark.parametrize(("text", "message"), [
    ("timm:vit_smal_patch16_224", "found 'vit_smal_patch16_224'; the nearest are vit_small_patch16_224, "),
    ("timm:vit_small_patch16_224.nope", "expected a tag of augreg_in1k, .*, found 'nope'"),
    ("timm:convnext_atto?num_classes=3", "options of the network itself, found num_classes"),
    ("timm:convnext_atto?pretrained=True", "options of the network itself, found pretrained"),
    ("timm:convnext_atto?checkpoint_path=x.pth", "options of the network itself, found checkpoint_path"),
    ("timm:convnext_atto?img_size=0", "img_size in pixels, 1 to 10000, found 0"),
    ("timm:test_vit?img_size=1000000", "img_size in pixels, 1 to 10000, found 1000000"),
    ("timm:ConvNeXt", "found 'ConvNeXt'; the nearest are convnext_"),
    ("timm:dinov2", "found 'dinov2'; the nearest are vit_base_patch14_dinov2, "),
    ("timm:qqq", "found 'qqq'; timm.list_models.. gives them all"),
    ("timm:resnet50.", "expected a tag of a1_in1k, .*, found ''"),
    ("timm:convnext_atto?img_size", "expected NAME.key=value&key=value"),
    ("timm:convnext_atto?depth=1&depth=2", "each key once"),
    ("resnet51", "expected an architecture of resnet10, .* found 'resnet51'"),
    ("resnet18?depth=3", "options width, stem and style of a ResNet, found depth"),
])  # fmt: skip
def test_a_text_that_names_nothing_is_refused(text: str, message: str):
    with pytest.raises(InputError, match=message):
        parse_architecture(text)


@pytest.mark.parametrize(("text", "message"), [
    ("timm:test_convnext?foo=1", "options that timm leaves open, found foo in timm:test_convnext.foo=1"),
    ("timm:mixer_s16_224?num_blocks=1", "options that timm leaves open, found num_blocks in"),
    ("timm:test_vit?img_size=65", "divisible by the patch of 16 px, found 65 .*; use 64 or 80"),
    ("timm:test_vit?img_size=7", "divisible by the patch of 16 px, found 7 .*; use 16$"),
    ("timm:test_vit?norm_eps=x", "expected norm_eps between 0 and 1, found 'x'"),
    ("timm:test_vit?depth=1000000", "expected options up to 1000, found depth 1000000"),
    ("timm:test_convnext?depths=(900,900,1,1)", "expected options up to 1000, found depths"),
    ("timm:test_vit?embed_dim=10000000000", "expected options up to 16384, found embed_dim"),
    ("timm:test_vit?drop_path_rate=2", "expected drop_path_rate from 0 to below 1, found 2 in timm:test_vit"),
    ("timm:test_convnext?drop_path_rate=-0.1", "expected drop_path_rate from 0 to below 1, found -0.1"),
    ("timm:test_vit?patch_drop_rate=True", "expected patch_drop_rate from 0 to below 1, found True"),
    ("timm:test_vit?patch_size=0", "options that fit together, .* timm says ZeroDivisionError"),
    ("timm:test_vit?depth=-1", "options that fit together, .* timm says RuntimeError"),
    ("timm:test_vit?act_layer=nope", "options that fit together, .* timm says KeyError: 'nope'"),
    ("timm:test_convnext?dims=(8,8)", "options that fit together, .* timm says IndexError"),
])  # fmt: skip
def test_a_network_that_cannot_be_built_is_refused(text: str, message: str):
    with pytest.raises(InputError, match=message):
        build_backbone(parse_architecture(text))


@pytest.mark.parametrize(("text", "message"), [
    ("timm:test_convnext?img_size=16", "that the network can take, found timm:test_convnext.* its own is 160"),
    ("timm:hiera_tiny_224?img_size=100&embed_dim=24", "that the network can take, found timm:hiera_.* its own is 224"),
])  # fmt: skip
def test_a_size_that_a_network_is_built_for_and_cannot_take_is_refused_before_any_compute(text: str, message: str):
    with pytest.raises(InputError, match=message):
        own_input(parse_architecture(text))


def test_an_image_size_is_no_option_of_a_convolutional_network_whatever_timm_says_about_it():
    for text in ("timm:test_convnext?img_size=64", "timm:poolformer_s12?img_size=64"):
        assert own_input(parse_architecture(text)).size == 64


def test_images_of_another_size_and_maps_of_no_such_stride_are_refused():
    backbone, _ = made("timm:vit_tiny_patch16_224?img_size=64&depth=6&embed_dim=48")
    for side in (65, 96):
        with pytest.raises(InputError, match=rf"64 x 64 px .* patch of 16 px, found {side} x {side}; .*img_size=N"):
            backbone(torch.zeros(1, 3, side, side))
    with pytest.raises(ValueError, match="images"):
        backbone(torch.zeros(1, 1, 64, 64))
    with pytest.raises(InputError, match=r"1 to 6 last blocks .*, found 7"):
        backbone.tokens(torch.zeros(1, 3, 64, 64), 7)
    convolutions, images = made("timm:test_convnext?img_size=64")
    with pytest.raises(InputError, match="plain network with tokens"):
        convolutions.tokens(images)


def test_without_timm_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    for attempt in (lambda: parse_architecture("timm:test_vit"), lambda: build_backbone(TimmArchitecture("test_vit"))):
        with pytest.raises(InputError, match=r'pip install "momentum-transfer\[timm\]"'):
            attempt()


@pytest.mark.parametrize("text", ["timm:test_convnext?img_size=64", "timm:test_vit"])
@torch.no_grad()
def test_an_exported_backbone_tells_its_architecture_and_is_converted_under_timms_names(text: str, tmp_path: Path):
    backbone, _ = made(text)
    export_backbone(tmp_path / "backbone.safetensors", backbone, {"network": "teacher"})
    source = load_backbone(tmp_path / "backbone.safetensors")
    assert (str(source.architecture), source.family, source.network) == (text, "named", "teacher")
    images = torch.randn(1, 3, 64, 64)
    assert torch.equal(source.build()(images), backbone(images))
    convert_file(tmp_path / "backbone.safetensors", tmp_path / "other.pth")
    again = load_backbone(tmp_path / "other.pth")
    assert again.state.keys() == backbone.network.state_dict().keys()
    assert all(torch.equal(tensor, backbone.state_dict()[name]) for name, tensor in again.state.items())
    with pytest.raises(InputError, match=r"expected a ViT .* Detectron2's .*, found .* timm:"):
        convert_file(tmp_path / "backbone.safetensors", tmp_path / "other.pkl")
    assert not (tmp_path / "other.pkl").exists()


def test_a_file_of_timm_is_read_as_the_architecture_that_is_given(tmp_path: Path):
    reference = timm.create_model("test_convnext")
    torch.save({"state_dict": reference.state_dict(), "epoch": 3}, tmp_path / "reference.pth")
    source = load_backbone(tmp_path / "reference.pth", architecture="timm:test_convnext")
    assert set(source.report.dropped) == {"state_dict.head.fc.weight", "state_dict.head.fc.bias", "epoch"}
    assert "head.norm.weight" in source.state
    with pytest.raises(CoverageError, match=r"every tensor of a timm:test_convnext2, found .* of another shape"):
        load_backbone(tmp_path / "reference.pth", architecture="timm:test_convnext2")


@pytest.mark.parametrize(
    ("name", "drawn"),
    [
        ("test_convnext", ["stem.0.bias"]),
        ("test_vit", []),
        ("test_efficientnet", []),
        ("pvt_v2_b0", ["patch_embed.proj.bias"]),
    ],
)
def test_zero_biases_of_the_first_convolution_are_drawn_as_pytorch_does_and_nothing_else_differs_from_timm(name, drawn):
    torch.manual_seed(0)
    reference, following = timm.create_model(name, num_classes=0).state_dict(), torch.rand(4)
    torch.manual_seed(0)
    ours = build_backbone(f"timm:{name}").state_dict()
    assert torch.equal(torch.rand(4), following)
    assert [key for key, value in reference.items() if not torch.equal(value, ours[key])] == drawn
    for key in drawn:
        bound = reference[key.replace("bias", "weight")][0].numel() ** -0.5
        assert not reference[key].any()
        assert bound / 2 < ours[key].abs().max() <= bound
        assert ours[key].unique().numel() == ours[key].numel()
