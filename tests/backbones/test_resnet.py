import pytest
import torch
import torchvision
from torch import nn

from momentum_transfer.backbones.resnet import Architecture, build_backbone
from momentum_transfer.core.errors import InputError


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50", "resnet101"])
def test_state_dict_is_torchvisions_without_the_classifier(name):
    with torch.device("meta"):
        ours = build_backbone(Architecture(name)).state_dict()
        reference = getattr(torchvision.models, name)().state_dict()
    expected = {key: value.shape for key, value in reference.items() if not key.startswith("fc.")}
    assert {key: value.shape for key, value in ours.items()} == expected


def test_features_equal_torchvisions_with_the_same_weights():
    ours = build_backbone(Architecture("resnet18")).eval()
    reference = torchvision.models.resnet18()
    reference.load_state_dict(ours.state_dict(), strict=False)
    reference.fc = nn.Identity()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), reference.eval()(images), rtol=0, atol=0)


def test_double_width_has_twice_the_channels_in_every_layer():
    with torch.device("meta"):
        single, double = build_backbone(Architecture("resnet50")), build_backbone(Architecture("resnet50", width=128))
    assert double.num_features == 2 * single.num_features == 4096
    shapes = zip(single.state_dict().values(), double.state_dict().values(), strict=True)
    assert all(b.shape[0] == 2 * a.shape[0] for a, b in shapes if a.dim())


@pytest.mark.parametrize(("stem", "strides"), [("imagenet", (4, 8, 16, 32)), ("small", (1, 2, 4, 8))])
def test_stages_have_the_strides_of_the_stem(stem, strides):
    net = build_backbone(Architecture("resnet10", width=8, stem=stem))
    maps = net.stages(torch.randn(2, 3, 64, 64))
    assert [64 // maps[f"res{i}"].shape[-1] for i in (2, 3, 4, 5)] == list(strides)
    assert [maps[f"res{i}"].shape[1] for i in (2, 3, 4, 5)] == [8, 16, 32, 64]
    torch.testing.assert_close(maps["pooled"], maps["res5"].mean((2, 3)))


def test_resnet10_has_one_basic_block_a_stage():
    net = build_backbone(Architecture("resnet10", width=32))
    assert [len(getattr(net, f"layer{i}")) for i in (1, 2, 3, 4)] == [1, 1, 1, 1]
    assert net.num_features == 256


def test_norm_layer_is_injected_everywhere():
    net = build_backbone(Architecture("resnet10", width=8), lambda channels: nn.GroupNorm(4, channels))
    assert not any(isinstance(module, nn.BatchNorm2d) for module in net.modules())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("resnet51",), "expected an architecture"), (("resnet18", 0), "width"), (("resnet18", 64, "vgg"), "stem")],
)
def test_wrong_architecture_names_what_is_known(arguments, message):
    with pytest.raises(InputError, match=message):
        Architecture(*arguments)


def test_wrong_input_shape_is_named():
    with pytest.raises(ValueError, match=r"\(2, 1, 8, 8\)"):
        build_backbone(Architecture("resnet10", width=8))(torch.zeros(2, 1, 8, 8))
