import numpy as np
import torch
from torch import nn

from momentum_transfer.core.neighbours import search
from momentum_transfer.images.datasets import ArrayImages
from momentum_transfer.lowshot import knn
from momentum_transfer.pretrain.pipeline import EvaluationImages
from momentum_transfer.pretrain.run import KnnMonitor, features
from momentum_transfer.pretrain.train import non_finite_tensors


class Pooled(nn.Module):
    def forward(self, images):
        return images.mean(dim=(2, 3))


def test_the_monitor_and_the_evaluator_agree_to_the_last_tie():
    """Images of few colours, so that most similarities are equal, and labels that have nothing to do with them."""
    rng = np.random.default_rng(0)
    colours = rng.integers(0, 256, (4, 3))

    def images(count):
        flat = colours[rng.integers(4, size=count)][:, None, None].repeat(2, 1).repeat(2, 2).astype(np.uint8)
        dataset = ArrayImages(flat, rng.integers(3, size=count).tolist(), ["a", "b", "c"])
        return EvaluationImages(dataset, lambda image: torch.from_numpy(np.array(image)).permute(2, 0, 1).float())

    monitor = KnnMonitor(images(120), images(80), torch.device("cpu"), batch=32, workers=0)
    bank, held_out = (features(Pooled(), part, torch.device("cpu"), 50, 0) for part in (monitor.bank, monitor.held_out))
    neighbours = search(bank[0], held_out[0], 20)
    values, _, _ = knn.accuracies(neighbours, bank[1], held_out[1], knn.PRESETS["eman"])
    assert monitor.top1(Pooled()) == values["top1"]
    tied = [np.unique(np.bincount(bank[1][rows], minlength=3)).size < 3 for rows in neighbours.indices]
    assert np.mean(tied) > 0.1, "votes are tied, so the rule is put to the test"


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
