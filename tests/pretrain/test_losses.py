import math

import pytest
import torch
import torch.nn.functional as F

from momentum_transfer.pretrain.heads import cosine_regression, embedding_std, info_nce, negative_cosine


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
