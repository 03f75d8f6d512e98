"""Weak views labelled under running or batch statistics, against a loop over batches by hand."""

import copy

import numpy as np
import torch

from momentum_transfer.backbones.resnet import Architecture, build_resnet
from momentum_transfer.images.views import eval_transform
from momentum_transfer.lowshot.augment import SeededView, weak_view
from momentum_transfer.lowshot.classifier import Classifier
from momentum_transfer.lowshot.fixmatch import weak_label_hits
from momentum_transfer.lowshot.labelled_data import LabelledData
from tests.lowshot.toy_data import bright_or_dark

DATA = LabelledData(bright_or_dark(8, 0), bright_or_dark(10, 1), weak_view("digits", 16), eval_transform("digits", 16))


def student():
    torch.manual_seed(1)
    network = Classifier(build_resnet(Architecture("resnet10", 4, "small")), 2, 0)
    network.train()(torch.randn(32, 3, 16, 16) + 1)
    return network


def test_hits_are_those_of_a_loop_over_batches():
    network, view = student(), SeededView(DATA.augment, 5)
    before = copy.deepcopy(network.state_dict())
    found = weak_label_hits(network, DATA, (4,), 5, torch.device("cpu"))
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    views = torch.stack([view(DATA.test[row][0]) for row in range(10)])
    labels = torch.tensor(DATA.test.labels)
    with torch.no_grad():
        running = copy.deepcopy(network).eval()(views).argmax(1)
        order = torch.randperm(10, generator=torch.Generator().manual_seed(5)).tolist()
        own = torch.zeros(10, dtype=torch.long)
        for rows in (order[:4], order[4:8], order[8:] + order[:2]):  # the last batch is filled up
            given = copy.deepcopy(network).train()(views[rows]).argmax(1)
            for place, row in enumerate(rows):
                if row not in order[:2] or rows == order[:4]:
                    own[row] = given[place]
    assert found["running"].tolist() == (running == labels).tolist()
    assert found["n=4"].tolist() == (own == labels).tolist()
    assert all(hits.dtype == np.bool_ for hits in found.values())
