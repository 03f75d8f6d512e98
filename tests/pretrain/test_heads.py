import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from momentum_transfer.backbones.norms import Norm, use_fused_sync
from momentum_transfer.pretrain.heads import (
    cosine_regression,
    embedding_std,
    info_nce,
    mlp,
    negative_cosine,
    simsiam_projector,
)


def test_projector_ends_in_a_linear_without_norm():
    layers = mlp(2048, 4096, 256, nn.BatchNorm1d)
    assert [type(m).__name__ for m in layers] == ["Linear", "BatchNorm1d", "ReLU", "Linear"]
    assert (layers[0].weight.shape, layers[3].weight.shape) == ((4096, 2048), (256, 4096))
    assert layers[0].bias is None  # the norm's shift takes its place
    assert layers[3].bias is not None


def test_without_norm_the_hidden_layer_keeps_its_bias():
    layers = mlp(8, 4, 2, None)
    assert [type(m).__name__ for m in layers] == ["Linear", "ReLU", "Linear"]
    assert layers[0].bias is not None


def test_simsiam_projector_normalises_its_output():
    output = simsiam_projector(8, 16, 4, nn.BatchNorm1d)(torch.randn(64, 8))
    torch.testing.assert_close(output.mean(0), torch.zeros(4), rtol=0, atol=1e-5)
    torch.testing.assert_close(output.std(0, correction=0), torch.ones(4), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("norm", ["BN", "SyncBN", "GN", "IN", "MomentumBN"])
def test_simsiam_projector_learns_no_scale_and_shift_of_its_output(norm):
    projector = simsiam_projector(8, 64, 64, Norm(norm).for_vectors)
    names = ["0.weight", "1.weight", "1.bias", "3.weight", "4.weight", "4.bias", "6.weight"]
    assert [name for name, _ in projector.named_parameters()] == names
    assert not {"7.weight", "7.bias"} & set(projector.state_dict())
    with torch.no_grad():
        inputs = torch.randn(64, 8)
        hidden = projector[:7](inputs)
        reference = Norm(norm).for_vectors(64)  # fresh, so with scale 1 and shift 0
        torch.testing.assert_close(projector[7](hidden), reference(hidden))


def test_fused_sync_bn_keeps_an_output_without_scale_and_shift():
    projector = simsiam_projector(8, 16, 4, Norm("SyncBN").for_vectors)
    use_fused_sync(projector)
    assert [layer.affine for layer in projector if isinstance(layer, nn.SyncBatchNorm)] == [True, True, False]


def test_cosine_regression_equals_the_squared_distance_of_unit_vectors():
    p, z = torch.randn(5, 7), torch.randn(5, 7)
    naive = sum(
        sum((a / p_i.norm() - b / z_i.norm()) ** 2 for a, b in zip(p_i, z_i, strict=True))
        for p_i, z_i in zip(p, z, strict=True)
    )
    torch.testing.assert_close(cosine_regression(p, z), naive / 5)


def test_cosine_losses_ignore_lengths_and_stop_the_targets_gradient():
    p, z = torch.randn(4, 6, requires_grad=True), torch.randn(4, 6, requires_grad=True)
    torch.testing.assert_close(cosine_regression(3 * p, 0.1 * z), cosine_regression(p, z))
    torch.testing.assert_close(cosine_regression(p, z), 2 + 2 * negative_cosine(p, z))
    cosine_regression(p, z).backward()
    assert p.grad is not None
    assert z.grad is None


@pytest.mark.parametrize("temperature", [0.2, 0.07, 1.0])
def test_info_nce_equals_a_naive_softmax(temperature):
    query, key, queue = (F.normalize(torch.randn(n, 8), dim=1) for n in (3, 3, 11))
    total = 0.0
    for q, k in zip(query, key, strict=True):
        positive = math.exp(float(q @ k) / temperature)
        total -= math.log(positive / (positive + sum(math.exp(float(q @ n) / temperature) for n in queue)))
    assert info_nce(query, key, queue, temperature).item() == pytest.approx(total / 3, rel=1e-5)


def test_info_nce_does_not_depend_on_the_order_of_the_queue():
    query, key, queue = (F.normalize(torch.randn(n, 8), dim=1) for n in (3, 3, 11))
    torch.testing.assert_close(info_nce(query, key, queue, 0.2), info_nce(query, key, queue.flip(0), 0.2))


def test_embedding_std_is_one_when_spread_and_zero_when_collapsed():
    torch.manual_seed(0)
    assert embedding_std(torch.randn(20_000, 32)).item() == pytest.approx(1, abs=0.02)
    assert embedding_std(torch.randn(1, 32).repeat(100, 1)).item() == pytest.approx(0, abs=1e-5)
