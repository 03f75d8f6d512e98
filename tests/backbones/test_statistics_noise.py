"""Noise of batch statistics against a naive loop over views with the norms' own layers, and closed forms."""

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.nn.functional import cosine_similarity

from momentum_transfer.backbones.batch_statistics import (
    _blended_statistics,
    distances,
    replace_batch_norm,
    statistics_noise,
)
from momentum_transfer.backbones.norms import Norm, set_alpha
from momentum_transfer.backbones.norms.momentum_batch_norm import pair_norms
from momentum_transfer.backbones.resnet import Architecture, build_resnet
from momentum_transfer.core.errors import InputError


def networks(alpha):
    """The same network with plain BN, its running statistics moved, and with Momentum BN of that history."""
    torch.manual_seed(0)
    plain = build_resnet(Architecture("resnet10", 4, "small"), Norm("BN"))
    plain.train()
    plain(torch.randn(12, 3, 8, 8) + 1)
    momentum = build_resnet(Architecture("resnet10", 4, "small"), Norm("MomentumBN"))
    momentum.load_state_dict(plain.state_dict(), strict=False)
    set_alpha(pair_norms(momentum), alpha)
    return plain, momentum.train()


@pytest.mark.parametrize("alpha", [1.0, 0.3])
def test_noise_equals_a_naive_loop_over_batches_and_pairs(alpha):
    plain, momentum = networks(alpha)
    views = torch.randn(8, 3, 8, 8)
    generator = torch.Generator().manual_seed(7)
    outputs = torch.zeros(3, 8, plain.num_features)
    with torch.no_grad():
        for r in range(3):
            order = torch.randperm(8, generator=generator).tolist()
            for start in (0, 4):
                rows = order[start : start + 4]
                outputs[r, rows] = momentum(views[rows])
    pairs = list(itertools.combinations(range(3), 2))
    same = [1 - cosine_similarity(outputs[a, i], outputs[b, i], dim=0) for i in range(8) for a, b in pairs]
    others = list(itertools.combinations(range(8), 2))
    different = [1 - cosine_similarity(outputs[r, i], outputs[r, j], dim=0) for r in range(3) for i, j in others]
    found = statistics_noise(plain, views, 4, alpha, sets=3, seed=7)
    assert found.same == pytest.approx(float(torch.stack(same).mean()), rel=1e-4)
    assert found.different == pytest.approx(float(torch.stack(different).mean()), rel=1e-4)
    assert found.relative == pytest.approx(found.same / found.different)


def test_companions_do_not_matter_to_running_statistics_nor_to_one_batch_of_all():
    plain, _ = networks(1.0)
    views = torch.randn(8, 3, 8, 8)
    assert statistics_noise(plain, views, 4, 0.0).relative < 1e-5
    assert statistics_noise(plain, views, 8, 1.0).relative < 1e-5
    assert statistics_noise(plain, views, 4, 1.0).relative > 0.01


def test_distances_of_known_vectors():
    """Two sets: the first view's outputs are at right angles, the second's are the same."""
    outputs = torch.tensor([[[1.0, 0.0], [0.0, 2.0]], [[0.0, 3.0], [0.0, 1.0]]])
    assert distances(outputs).same == pytest.approx(0.5)  # (1 + 0) / 2
    assert distances(outputs).different == pytest.approx(0.5)  # sets: 1 and 0


def test_the_network_is_left_as_it_was():
    plain, _ = networks(1.0)
    before, views = copy.deepcopy(plain.state_dict()), torch.randn(4, 3, 8, 8)
    statistics_noise(plain, views, 2, 0.5)
    assert plain.training
    assert all(torch.equal(before[name], tensor) for name, tensor in plain.state_dict().items())
    expected = build_resnet(Architecture("resnet10", 4, "small"), Norm("BN"))
    expected.load_state_dict(before)
    assert torch.equal(plain.eval()(views), expected.eval()(views))


def test_what_has_no_such_noise_is_refused():
    with pytest.raises(InputError, match="network with batch normalisation"):
        statistics_noise(nn.Conv2d(3, 2, 1), torch.zeros(4, 3, 2, 2), 2, 1.0)
    with pytest.raises(InputError, match="divide the 4 views, found 3"):
        statistics_noise(nn.BatchNorm2d(3), torch.zeros(4, 3, 2, 2), 3, 1.0)
    with pytest.raises(InputError, match="at least 2 sets"):
        statistics_noise(nn.BatchNorm2d(3), torch.zeros(4, 3, 2, 2), 2, 1.0, sets=1)
    with pytest.raises(InputError, match="with running statistics"):
        statistics_noise(nn.BatchNorm2d(3, track_running_stats=False), torch.zeros(4, 3, 2, 2), 2, 1.0)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("new", [nn.BatchNorm2d, nn.InstanceNorm2d, lambda channels: nn.GroupNorm(2, channels)])
def test_a_replaced_norm_has_the_scale_shift_and_epsilon_of_the_old_one_where_both_have_them(affine, new):
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Sequential(nn.BatchNorm2d(4, eps=0.25, affine=affine), nn.ReLU()))
    old = network[1][0]
    if affine:
        nn.init.uniform_(old.weight)
        nn.init.uniform_(old.bias)
    replace_batch_norm(network, new)
    made = network[1][0]
    assert type(made) is type(new(4))
    assert made.eps == 0.25
    for name, start in (("weight", 1.0), ("bias", 0.0)):
        value = getattr(made, name)
        if value is not None:
            assert torch.equal(value, getattr(old, name) if affine else torch.full((4,), start))


def test_a_replaced_norm_of_timms_keeps_its_activation_and_one_without_parameters_needs_none():
    layers = pytest.importorskip("timm.layers")
    network, x = nn.Sequential(layers.BatchNormAct2d(4)), torch.randn(2, 4, 3, 3)
    replace_batch_norm(network, lambda channels: nn.Identity())
    assert torch.equal(network(x), x.relu())


def test_timms_batch_norm_keeps_its_activation():
    layers = pytest.importorskip("timm.layers")
    torch.manual_seed(0)
    network, x = nn.Sequential(layers.BatchNormAct2d(4)).eval(), torch.randn(4, 4, 3, 3)
    expected = network(x)
    with _blended_statistics(network, 2, 0.0):
        torch.testing.assert_close(network(x), expected)
