"""NormRescale (RCF equation 3) tensor by tensor, its scopes, its errors, and the LARS warning."""

import numpy as np
import pytest
import torch
from torch import nn

from momentum_transfer.backbones import norm_rescale
from momentum_transfer.backbones.norm_rescale import SCOPES, in_scope, rescale_by_constant, rescale_to_anchor
from momentum_transfer.backbones.read import load_backbone
from momentum_transfer.backbones.resnet import Architecture, build_resnet
from momentum_transfer.core.errors import InputError

TINY = Architecture("resnet10", 8)


def backbone(seed: int, scale: float = 1.0, architecture: Architecture = TINY) -> dict[str, torch.Tensor]:
    """A state whose every float tensor is random and non-zero."""
    torch.manual_seed(seed)
    net = build_resnet(architecture)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight, module.bias, module.running_mean, module.running_var):
                nn.init.uniform_(tensor, 0.1, 1.0)
            module.num_batches_tracked.fill_(17)
    return {name: t * scale if t.is_floating_point() else t for name, t in net.state_dict().items()}


def kind(name: str) -> str:
    if "num_batches" in name:
        return "count"
    if "running" in name:
        return "statistics"
    return "conv" if "conv" in name or "downsample.0" in name else "bn"


CHANGED = {"conv": {"conv"}, "bn": {"bn"}, "conv+bn": {"conv", "bn"}, "all": {"conv", "bn", "statistics"}}


@pytest.mark.parametrize("scope", SCOPES)
def test_each_tensor_in_scope_gets_the_anchors_norm_and_keeps_its_direction(scope):
    ours, anchor = backbone(0, 10.0), backbone(1)
    rescaled = rescale_to_anchor(ours, anchor, scope)
    for name, tensor in ours.items():
        if kind(name) not in CHANGED[scope]:
            assert rescaled[name] is tensor
            continue
        was, now, wanted = (t.double().numpy().ravel() for t in (tensor, rescaled[name], anchor[name]))
        expected = np.sqrt((wanted**2).sum()) * was / np.sqrt((was**2).sum())
        np.testing.assert_allclose(now, expected, rtol=1e-6)


@pytest.mark.parametrize("scope", SCOPES)
def test_constant_multiplies_each_tensor_in_scope(scope):
    ours = backbone(0)
    rescaled = rescale_by_constant(ours, 0.1, scope)
    for name, tensor in ours.items():
        factor = 0.1 if kind(name) in CHANGED[scope] else 1.0
        torch.testing.assert_close(rescaled[name], tensor * factor if factor != 1.0 else tensor)


def test_default_scope_is_every_learned_tensor():
    assert norm_rescale.DEFAULT_SCOPE == "conv+bn"
    learned = {name for name, _ in build_resnet(TINY).named_parameters()}
    assert {name for name, t in backbone(0).items() if in_scope(name, t, "conv+bn")} == learned


def test_integers_are_kept():
    rescaled = rescale_by_constant(backbone(0), 0.1, "all")
    assert rescaled["bn1.num_batches_tracked"].dtype == torch.int64
    assert rescaled["bn1.num_batches_tracked"] == 17


def test_rescaling_to_itself_changes_nothing_and_twice_is_once():
    ours, anchor = backbone(0, 10.0), backbone(1)
    same, once = rescale_to_anchor(ours, ours), rescale_to_anchor(ours, anchor)
    twice = rescale_to_anchor(once, anchor)
    for name in ours:
        torch.testing.assert_close(same[name], ours[name], rtol=1e-6, atol=0)
        torch.testing.assert_close(twice[name], once[name], rtol=1e-6, atol=0)


def test_scale_of_the_source_does_not_matter():
    anchor = backbone(1)
    first, second = rescale_to_anchor(backbone(0), anchor), rescale_to_anchor(backbone(0, 50.0), anchor)
    for name, tensor in first.items():
        if in_scope(name, tensor, norm_rescale.DEFAULT_SCOPE):
            torch.testing.assert_close(tensor, second[name], rtol=1e-5, atol=1e-9)


def test_training_mode_features_do_not_see_the_norm_of_convolutions():
    # BatchNorm on batch statistics divides the norm out: why the rescaled network is as good a start.
    state, images = backbone(0), torch.randn(8, 3, 64, 64)
    outputs = []
    for weights in (state, rescale_by_constant(state, 0.1, "conv")):
        net = build_resnet(TINY).double()
        net.load_state_dict(weights)
        outputs.append(net.train()(images.double()))
    torch.testing.assert_close(*outputs, rtol=0.05, atol=0.05)  # eps 1e-5 is felt more at a tenth of the scale


@pytest.mark.parametrize("side", ["checkpoint", "anchor"])
def test_zero_norm_is_an_error_that_names_the_tensor(side):
    states = {"checkpoint": backbone(0), "anchor": backbone(1)}
    states[side]["layer2.0.bn1.bias"] = torch.zeros(16)
    with pytest.raises(InputError, match=rf"found zero for layer2\.0\.bn1\.bias of the {side}"):
        rescale_to_anchor(states["checkpoint"], states["anchor"])
    assert rescale_to_anchor(states["checkpoint"], states["anchor"], "conv")


def test_zero_norm_is_an_error_for_the_constant_too():
    state = backbone(0)
    state["conv1.weight"] = torch.zeros_like(state["conv1.weight"])
    with pytest.raises(InputError, match=r"found zero for conv1\.weight of the checkpoint"):
        rescale_by_constant(state, 0.1)


@pytest.mark.parametrize(
    ("anchor", "found"),
    [
        (Architecture("resnet10", 16), r"shape \[16, 3, 7, 7\] for conv1\.weight where .* shape \[8, 3, 7, 7\]"),
        (Architecture("resnet50", 8), r"found shape .* for layer1\.0\.conv1\.weight"),
    ],
)
def test_anchor_of_another_architecture_is_an_error_that_names_the_tensor(anchor, found):
    with pytest.raises(InputError, match=found):
        rescale_to_anchor(backbone(0), backbone(1, architecture=anchor))


def test_deeper_checkpoint_than_anchor_is_an_error():
    with pytest.raises(InputError, match=r"no such tensor for layer1\.1\.conv1\.weight"):
        rescale_to_anchor(backbone(0, architecture=Architecture("resnet18", 8)), backbone(1))


@pytest.mark.parametrize("scope", SCOPES)
def test_deeper_anchor_than_checkpoint_is_an_error_although_it_has_every_name(scope):
    shallow, deep = (backbone(0, architecture=Architecture(name, 8)) for name in ("resnet18", "resnet34"))
    with pytest.raises(InputError, match=r"layer1\.2\.(conv1|bn1)\.weight where the checkpoint has no such tensor"):
        rescale_to_anchor(shallow, deep, scope)
    with pytest.raises(InputError, match=r"no such tensor for layer1\.2\.(conv1|bn1)\.weight"):
        rescale_to_anchor(deep, shallow, scope)


def test_anchor_file_of_another_depth_is_refused_and_the_source_unchanged(tmp_path):
    for name in ("resnet18", "resnet34"):
        torch.save(backbone(0, architecture=Architecture(name, 8)), tmp_path / f"{name}.pth")
    source = load_backbone(tmp_path / "resnet18.pth")
    before = source.state["conv1.weight"].clone()
    with pytest.raises(InputError, match="expected an anchor of the same architecture"):
        norm_rescale.apply(source, str(tmp_path / "resnet34.pth"), None)
    assert torch.equal(source.state["conv1.weight"], before)


@pytest.mark.parametrize("factor", [0.0, -0.1, float("nan"), float("inf")])
def test_senseless_constants_are_refused(factor):
    with pytest.raises(InputError, match="expected a positive factor"):
        rescale_by_constant(backbone(0), factor)


def test_unknown_scope_is_refused():
    with pytest.raises(InputError, match=r"expected a scope of conv, bn, conv\+bn, all, found 'bias'"):
        rescale_by_constant(backbone(0), 0.1, "bias")


def test_overflow_of_half_precision_is_an_error():
    state = {name: t.half() if t.is_floating_point() else t for name, t in backbone(0).items()}
    with pytest.raises(InputError, match=r"overflowing torch\.float16"):
        rescale_by_constant(state, 1e8)


def test_underflow_of_half_precision_is_an_error():
    state = {name: t.half() if t.is_floating_point() else t for name, t in backbone(0).items()}
    with pytest.raises(InputError, match=r"found conv1\.weight vanishing in torch\.float16 at factor 1e-09"):
        rescale_by_constant(state, 1e-9)
    tiny_anchor = {name: t * 1e-9 if t.is_floating_point() else t for name, t in backbone(1).items()}
    with pytest.raises(InputError, match=r"found conv1\.weight vanishing"):
        rescale_to_anchor(state, tiny_anchor)


def test_anchor_file_of_any_source_is_applied_and_recorded(tmp_path):
    torch.save(backbone(0, 10.0), tmp_path / "lars.pth")
    torch.save({"state_dict": {f"module.encoder_q.{k}": v for k, v in backbone(1).items()}}, tmp_path / "moco.pth")
    source = load_backbone(tmp_path / "lars.pth")
    said = norm_rescale.apply(source, str(tmp_path / "moco.pth"), None)
    assert said.startswith("anchor moco sha256 ")
    assert said.endswith("network student scope conv+bn")
    assert norm_rescale.norms(source.state, "conv+bn") == pytest.approx(norm_rescale.norms(backbone(1), "conv+bn"))
    untouched = load_backbone(tmp_path / "lars.pth")
    assert norm_rescale.apply(untouched, None, None) == ""
    assert torch.equal(untouched.state["conv1.weight"], backbone(0, 10.0)["conv1.weight"])


def test_fresh_weights_have_ratio_one_and_only_large_norms_are_warned_of():
    state = build_resnet(Architecture("resnet18", 16)).state_dict()
    assert norm_rescale.he_ratio(state) == pytest.approx(1.0, rel=0.05)
    assert norm_rescale.lars_warning(state) == ""
    large = rescale_by_constant(state, 5.0, "conv")
    assert "5.0 times the norm of a fresh network" in norm_rescale.lars_warning(large)
    assert "--norm-rescale" in norm_rescale.lars_warning(large)
