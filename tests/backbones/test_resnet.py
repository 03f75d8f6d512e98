import pytest
import torch
import torchvision
from torch import nn

from momentum_transfer.backbones.resnet import (
    DEPTHS,
    Architecture,
    build_resnet,
    from_detectron2,
    infer_architecture,
    to_detectron2,
)
from momentum_transfer.core.errors import InputError


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50", "resnet101"])
def test_state_dict_is_torchvisions_without_the_classifier(name):
    with torch.device("meta"):
        ours = build_resnet(Architecture(name)).state_dict()
        reference = getattr(torchvision.models, name)().state_dict()
    expected = {key: value.shape for key, value in reference.items() if not key.startswith("fc.")}
    assert {key: value.shape for key, value in ours.items()} == expected


def test_features_equal_torchvisions_with_the_same_weights():
    ours = build_resnet(Architecture("resnet18")).eval()
    reference = torchvision.models.resnet18()
    reference.load_state_dict(ours.state_dict(), strict=False)
    reference.fc = nn.Identity()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), reference.eval()(images), rtol=0, atol=0)


def test_double_width_has_twice_the_channels_in_every_layer():
    with torch.device("meta"):
        single, double = build_resnet(Architecture("resnet50")), build_resnet(Architecture("resnet50", width=128))
    assert double.num_features == 2 * single.num_features == 4096
    shapes = zip(single.state_dict().values(), double.state_dict().values(), strict=True)
    assert all(b.shape[0] == 2 * a.shape[0] for a, b in shapes if a.dim())


@pytest.mark.parametrize(("stem", "strides"), [("imagenet", (4, 8, 16, 32)), ("small", (1, 2, 4, 8))])
def test_stages_have_the_strides_of_the_stem(stem, strides):
    net = build_resnet(Architecture("resnet10", width=8, stem=stem))
    maps = net.stages(torch.randn(2, 3, 64, 64))
    assert [64 // maps[f"res{i}"].shape[-1] for i in (2, 3, 4, 5)] == list(strides)
    assert [maps[f"res{i}"].shape[1] for i in (2, 3, 4, 5)] == [8, 16, 32, 64]
    assert net.strides == dict(zip(("res2", "res3", "res4", "res5"), strides, strict=True))
    assert net.channels == {name: feature.shape[1] for name, feature in maps.items() if name != "pooled"}
    torch.testing.assert_close(maps["pooled"], maps["res5"].mean((2, 3)))


def test_a_bottlenecks_maps_have_four_times_the_channels_of_its_3x3_convolutions():
    with torch.device("meta"):
        net = build_resnet(Architecture("resnet50"))
    assert net.channels == {"res2": 256, "res3": 512, "res4": 1024, "res5": 2048}  # He et al., table 1


def test_weights_begin_as_he_et_al_propose_and_residual_branches_not_at_zero():
    torch.manual_seed(0)
    net = build_resnet(Architecture("resnet18"))
    for name, weight in net.state_dict().items():
        if weight.dim() == 4:
            fan_out = weight.shape[0] * weight.shape[2] * weight.shape[3]
            assert float(weight.std()) == pytest.approx((2 / fan_out) ** 0.5, rel=0.05), name
            assert abs(float(weight.mean())) < 0.1 * float(weight.std()), name
    assert all((norm.weight == 1).all() for norm in net.modules() if isinstance(norm, nn.BatchNorm2d))


@pytest.mark.parametrize("name", DEPTHS)
@pytest.mark.parametrize(("width", "stem"), [(64, "imagenet"), (128, "imagenet"), (48, "small")])
def test_the_shapes_of_a_network_say_which_it_is(name: str, width: int, stem: str):
    architecture = Architecture(name, width, stem)
    with torch.device("meta"):
        state = build_resnet(architecture).state_dict()
    assert infer_architecture({key: tuple(value.shape) for key, value in state.items()}) == architecture
    detectron2 = [to_detectron2(key) for key in state]
    assert [from_detectron2(key) for key in detectron2] == list(state)
    assert not set(detectron2) & set(state)
    assert {key.split(".")[0] for key in detectron2} == {"stem", "res2", "res3", "res4", "res5"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"conv1.weight": None}, r"expected a stem conv1.weight of shape .*, found none"),
        ({"conv1.weight": (64, 3, 7)}, r"found \[64, 3, 7\]"),
        ({"conv1.weight": (64, 1, 7, 7)}, r"found \[64, 1, 7, 7\]"),
        ({"conv1.weight": (64, 3, 7, 3)}, r"found \[64, 3, 7, 3\]"),
        ({"conv1.weight": (64, 3, 5, 5)}, r"found \[64, 3, 5, 5\]"),
        ({"layer2.2.conv1.weight": (128, 128, 3, 3)}, r"found \(2, 3, 2, 2\) blocks \(BasicBlock\) in layer1"),
        ({"layer1.0.conv3.weight": (64, 64, 1, 1)}, r"found \(2, 2, 2, 2\) blocks \(Bottleneck\)"),
    ],
)
def test_shapes_of_no_known_resnet_are_told(changes: dict, message: str):
    with torch.device("meta"):
        state = build_resnet(Architecture("resnet18")).state_dict()
    shapes = {key: tuple(value.shape) for key, value in state.items()} | changes
    with pytest.raises(InputError, match=message):
        infer_architecture({key: shape for key, shape in shapes.items() if shape is not None})


@pytest.mark.parametrize(
    ("architecture", "text"),
    [
        (Architecture(), "resnet50"),
        (Architecture("resnet18", 32), "resnet18?width=32"),
        (Architecture("resnet18", stem="small"), "resnet18?stem=small"),
        (Architecture("resnet10", 1, "small"), "resnet10?width=1&stem=small"),
        (Architecture("resnet50", style="caffe"), "resnet50?style=caffe"),
    ],
)
def test_an_architectures_text_names_what_differs_from_the_paper(architecture: Architecture, text: str):
    assert str(architecture) == text


def test_resnet10_has_one_basic_block_a_stage():
    net = build_resnet(Architecture("resnet10", width=32))
    assert [len(getattr(net, f"layer{i}")) for i in (1, 2, 3, 4)] == [1, 1, 1, 1]
    assert net.num_features == 256


def test_norm_layer_is_injected_everywhere():
    net = build_resnet(Architecture("resnet10", width=8), lambda channels: nn.GroupNorm(4, channels))
    assert not any(isinstance(module, nn.BatchNorm2d) for module in net.modules())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("resnet51",), "expected an architecture"),
        (("resnet18", 0), "width"),
        (("resnet18", True), "width"),
        (("resnet18", 8.0), "width"),
        (("resnet18", 64, "vgg"), "stem"),
        (("resnet18", 64, "small", "tensorflow"), "style of pytorch or caffe"),
    ],
)
def test_wrong_architecture_names_what_is_known(arguments, message):
    with pytest.raises(InputError, match=message):
        Architecture(*arguments)


def test_wrong_input_shape_is_named():
    with pytest.raises(ValueError, match=r"\(2, 1, 8, 8\)"):
        build_resnet(Architecture("resnet10", width=8))(torch.zeros(2, 1, 8, 8))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_max_pooling_equals_torchs_to_the_bit_with_its_gradient_among_equals_and_with_nan(layout: torch.memory_format):
    torch.manual_seed(0)
    maps = torch.randn(2, 8, 15, 17).mul(4).round().relu()  # whole numbers: many windows hold their largest twice
    maps[0, 3, 5, 6] = torch.nan
    ours, reference = (maps.clone(memory_format=layout).requires_grad_() for _ in range(2))
    found = build_resnet(Architecture("resnet10")).maxpool(ours)
    expected = torch.nn.functional.max_pool2d(reference, 3, 2, 1)
    assert torch.equal(found.nan_to_num(-1), expected.nan_to_num(-1))
    assert found.stride() == expected.stride()
    gradient = torch.randn_like(expected)
    found.backward(gradient)
    expected.backward(gradient)
    assert torch.equal(ours.grad, reference.grad)
