import pytest
import torch
import torch.nn.functional as F
from torch import nn

from momentum_transfer.backbones.norms.momentum_batch_norm import (
    MomentumBatchNorm,
    TeacherProxyBatchNorm,
    commit_pair,
    set_alpha,
)

EPS = 1e-5


def naive_normalise(x, mean, var, weight, bias):
    out = torch.empty_like(x)
    for channel in range(x.shape[1]):
        out[:, channel] = (x[:, channel] - mean[channel]) / (var[channel] + EPS) ** 0.5
        out[:, channel] = out[:, channel] * weight[channel] + bias[channel]
    return out


def channel_statistics(x, unbiased):
    values = x.transpose(0, 1).reshape(x.shape[1], -1)
    mean = values.sum(1) / values.shape[1]
    squares = ((values - mean[:, None]) ** 2).sum(1)
    return mean, squares / (values.shape[1] - (1 if unbiased else 0))


@pytest.mark.parametrize("shape", [(6, 3, 4, 4), (8, 3)])
def test_momentum_bn_follows_the_papers_equations_over_many_steps(shape):
    layer = MomentumBatchNorm(3)
    with torch.no_grad():
        layer.weight.uniform_(0.5, 2)
        layer.bias.uniform_(-1, 1)
    history_mean, history_var = torch.zeros(3), torch.ones(3)
    for alpha in (1.0, 0.9, 0.5, 0.064, 0.3, 0.0):
        set_alpha([layer], alpha)
        pair = [torch.randn(shape) * 2 + 1, torch.randn(shape) - 3]
        for view in pair:  # eq. 5: both with the previous iteration's history
            mean, var = channel_statistics(view, unbiased=False)
            expected = naive_normalise(
                view,
                alpha * mean + (1 - alpha) * history_mean,
                alpha * var + (1 - alpha) * history_var,
                layer.weight,
                layer.bias,
            )
            with torch.no_grad():
                torch.testing.assert_close(layer(view), expected.detach(), rtol=1e-4, atol=1e-5)
        commit_pair([layer])
        means, variances = zip(*(channel_statistics(view, unbiased=True) for view in pair), strict=True)
        history_mean = alpha * sum(means) / 2 + (1 - alpha) * history_mean  # eq. 6
        history_var = alpha * sum(variances) / 2 + (1 - alpha) * history_var
        torch.testing.assert_close(layer.running_mean, history_mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(layer.running_var, history_var, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("learns", [False, True])
def test_an_eager_history_gives_the_second_view_the_first_ones_statistics(learns):
    layer, lazy = MomentumBatchNorm(3, alpha=0.25, eager=True), MomentumBatchNorm(3, alpha=0.25)
    first, second = (torch.randn(6, 3, 4, 4) + shift for shift in (1, -3))
    with torch.set_grad_enabled(learns):
        outputs = [layer(view) for view in (first, second)]
        expected = [lazy(first)]
    mean, var = channel_statistics(first, unbiased=True)
    lazy.running_mean.copy_(0.25 * mean)
    lazy.running_var.copy_(0.25 * var + 0.75)
    with torch.set_grad_enabled(learns):
        expected.append(lazy(second))
    for found, wanted in zip(outputs, expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    if learns:
        sum(output.square().sum() for output in outputs).backward()  # the moved history is no part of the graph
    mean, var = channel_statistics(second, unbiased=True)
    history = 0.75 * lazy.running_mean + 0.25 * mean, 0.75 * lazy.running_var + 0.25 * var
    commit_pair([layer])
    torch.testing.assert_close(layer.running_mean, history[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(layer.running_var, history[1], rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("layer_type", [MomentumBatchNorm, TeacherProxyBatchNorm])
def test_second_view_never_sees_the_first(layer_type):
    second = torch.randn(4, 3, 5, 5)
    outputs = []
    for first in (torch.zeros(4, 3, 5, 5), 100 * torch.randn(4, 3, 5, 5)):
        layer = layer_type(3, alpha=0.5)
        layer(first)
        outputs.append(layer(second))
    assert torch.equal(*outputs)


@torch.no_grad()
def test_alpha_one_equals_plain_batch_norm():
    x = torch.randn(8, 3, 4, 4) * 3 + 2
    layer, plain = MomentumBatchNorm(3), nn.BatchNorm2d(3, momentum=1.0)
    torch.testing.assert_close(layer(x), plain(x), rtol=1e-5, atol=1e-6)
    commit_pair([layer])
    torch.testing.assert_close(layer.running_var, plain.running_var)  # corrected by n/(n-1) once


@torch.no_grad()
def test_alpha_zero_equals_a_frozen_layer():
    layer = MomentumBatchNorm(3, alpha=0.0)
    layer.running_mean.uniform_()
    layer.running_var.uniform_(1, 2)
    before = layer.running_mean.clone()
    x = torch.randn(8, 3, 4, 4)
    expected = F.batch_norm(x, layer.running_mean, layer.running_var, layer.weight, layer.bias)
    assert torch.equal(layer(x), expected)
    commit_pair([layer])
    assert torch.equal(layer.running_mean, before)


@torch.no_grad()
def test_evaluation_normalises_with_the_history_alone_and_leaves_no_trace():
    layer = MomentumBatchNorm(3, alpha=1.0).eval()
    x = torch.randn(8, 3, 4, 4)
    torch.testing.assert_close(layer(x), x / (1 + EPS) ** 0.5)
    assert layer.pending_count == 0


@torch.no_grad()
def test_pending_statistics_survive_a_state_dict_between_the_views():
    views = torch.randn(2, 8, 3, 4, 4)
    whole, resumed = MomentumBatchNorm(3, alpha=0.7), MomentumBatchNorm(3)
    whole(views[0])
    resumed.load_state_dict(whole.state_dict())
    for layer in (whole, resumed):
        layer(views[1])
        commit_pair([layer])
    assert torch.equal(whole.running_mean, resumed.running_mean)
    assert torch.equal(whole.running_var, resumed.running_var)


@torch.no_grad()
def test_commit_without_a_forward_keeps_the_history():
    layer = MomentumBatchNorm(3, alpha=1.0)
    commit_pair([layer])
    assert torch.equal(layer.running_var, torch.ones(3))


def test_momentum_bn_of_a_student_has_the_gradient_of_the_blend():
    layer = MomentumBatchNorm(2, alpha=0.6).double()
    layer.running_mean.fill_(0.3)

    def function(x):
        return layer(x) ** 2

    assert torch.autograd.gradcheck(function, torch.randn(5, 2, dtype=torch.double, requires_grad=True))


@torch.no_grad()
def test_teacher_proxy_norm_uses_statistics_up_to_the_previous_step():
    layer, x = TeacherProxyBatchNorm(3, alpha=0.1), torch.randn(8, 3, 4, 4) + 5
    first = layer(x)
    torch.testing.assert_close(first, x / (1 + EPS) ** 0.5)
    commit_pair([layer])
    torch.testing.assert_close(layer.running_mean, 0.1 * x.mean((0, 2, 3)))
    set_alpha([layer], 0.9)
    assert layer.alpha == pytest.approx(0.1)  # its momentum is fixed


def test_bfloat16_input_keeps_float_statistics():
    layer = MomentumBatchNorm(3)
    x = torch.randn(8, 3, 4, 4, dtype=torch.bfloat16)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    torch.testing.assert_close(layer.pending_mean, x.float().mean((0, 2, 3)), rtol=1e-4, atol=1e-4)


def test_a_single_value_per_channel_is_refused_in_training():
    with pytest.raises(ValueError, match="more than 1 value"), torch.no_grad():
        MomentumBatchNorm(3)(torch.zeros(1, 3))


@torch.no_grad()
@pytest.mark.parametrize("shape", [(2, 3), (1, 3, 2, 1)])
def test_two_values_per_channel_are_enough_and_count_half_their_squared_difference(shape):
    x, layer = torch.randn(shape), MomentumBatchNorm(3, alpha=1.0)
    layer(x)
    commit_pair([layer])
    first, second = x.transpose(0, 1).reshape(3, 2).unbind(1)
    torch.testing.assert_close(layer.running_mean, (first + second) / 2)
    torch.testing.assert_close(layer.running_var, (first - second) ** 2 / 2)


@torch.no_grad()
@pytest.mark.parametrize("policy", ["local", "broadcast", "reduce"])
def test_virtual_processes_keep_their_histories_take_the_firsts_or_share_the_mean(policy):
    layer, alone = MomentumBatchNorm(3, alpha=0.25, groups=2), [MomentumBatchNorm(3, alpha=0.25) for _ in range(2)]
    x = torch.randn(8, 3, 2, 2)
    layer(x)
    commit_pair([layer], policy)
    for group, own in enumerate(alone):
        own(x[group::2])
        commit_pair([own], policy)  # one process: nothing to exchange
    for name in ("mean", "var"):
        histories = [getattr(own, f"running_{name}") for own in alone]
        shared = {"local": histories, "broadcast": histories[:1] * 2, "reduce": [sum(histories) / 2] * 2}[policy]
        torch.testing.assert_close(getattr(layer, f"group_{name}"), torch.cat(shared))
        torch.testing.assert_close(getattr(layer, f"running_{name}"), shared[0])
