import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.neighbors import KNeighborsClassifier
from torch import nn

from pretrain.monitor import knn_top1, non_finite_tensors


def test_knn_equals_scikit_learns():
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(4, 6))
    labels, targets = rng.integers(4, size=300), rng.integers(4, size=1500)
    bank = F.normalize(torch.tensor(centres[labels] + rng.normal(size=(300, 6))), dim=1)
    queries = F.normalize(torch.tensor(centres[targets] + rng.normal(size=(1500, 6))), dim=1)
    # on unit vectors the order by cosine is the order by Euclidean distance
    oracle = KNeighborsClassifier(5).fit(bank, labels).score(queries, targets)
    score = knn_top1(bank, torch.tensor(labels), queries, torch.tensor(targets), k=5)
    assert score == pytest.approx(100 * oracle, abs=1e-9)
    assert 40 < score < 100


def test_more_neighbours_than_images_take_them_all():
    bank = F.normalize(torch.randn(3, 4), dim=1)
    assert knn_top1(bank, torch.tensor([1, 1, 0]), bank, torch.tensor([1, 1, 1]), k=20) == 100


def test_causes_are_named_before_what_they_led_to():
    layer = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    layer[0].weight.data[0, 0] = float("inf")
    layer[1].running_var[0] = float("nan")
    layer[0].bias.grad = torch.tensor([0.0, float("nan")])
    names = non_finite_tensors(layer, {"loss": torch.tensor(float("nan")), "view 1": torch.zeros(2)})
    assert names == ["loss", "0.weight", "1.running_var", "0.bias (gradient)"]


def test_long_lists_are_cut():
    layers = nn.Sequential(*(nn.Linear(1, 1) for _ in range(9)))
    for parameter in layers.parameters():
        parameter.data.fill_(float("nan"))
    assert len(non_finite_tensors(layers, {}, limit=4)) == 5
