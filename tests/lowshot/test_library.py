"""The evaluations as functions of arrays: naive votes, scikit-learn, and refusals."""

import numpy as np
import pytest
import torch
from torch import nn

from momentum_transfer.core.errors import InputError
from momentum_transfer.lowshot.library import extract_features, knn, linear, svm
from tests.lowshot.toy_data import clusters

TRAIN, TEST = clusters(0, 90), clusters(1, 40)
ARRAYS = TRAIN.features, TRAIN.labels, TEST.features, TEST.labels


@pytest.mark.parametrize("temperature", [None, 0.2])
def test_knn_is_the_vote_of_the_nearest(temperature):
    first, second = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (TRAIN.features, TEST.features))
    hits = []
    for row, label in zip(second @ first.T, TEST.labels, strict=True):
        votes = np.zeros(6)
        for place in np.argsort(-row, kind="stable")[:7]:
            votes[TRAIN.labels[place]] += 1 if temperature is None else np.exp(row[place] / temperature)
        hits.append((label, votes.argmax() == label, label in np.argsort(-votes, kind="stable")[:5]))
    found = knn(*ARRAYS, k=7, temperature=temperature)
    assert found["top1"] == pytest.approx(100 * np.mean([hit for _, hit, _ in hits]), abs=2.6)  # ties are another's
    if temperature is not None:  # no ties
        assert found["top1"] == pytest.approx(100 * np.mean([hit for _, hit, _ in hits]))
        assert found["top5"] == pytest.approx(100 * np.mean([hit for *_, hit in hits]))
        by_class = [np.mean([hit for one, hit, _ in hits if one == k]) for k in range(6)]
        assert found["mean_per_class"] == pytest.approx(100 * np.mean(by_class))
    assert knn(*ARRAYS) == knn(*ARRAYS, k=20, temperature=None)


def test_svm_gives_every_trial_of_every_shot():
    found = svm(*ARRAYS, shots=(2, 5), trials=3, seed=1)
    assert {k: len(values) for k, values in found.items()} == {2: 3, 5: 3}
    assert np.mean(found[5]) > np.mean(found[2]) > 100 / 6
    assert found == svm(*ARRAYS, shots=(2, 5), trials=3, seed=1)
    assert [len(values) for values in svm(*ARRAYS, shots=(1,)).values()] == [5]
    several = [np.eye(6, dtype=int)[labels] for labels in (TRAIN.labels, TEST.labels)]
    (scores,) = svm(TRAIN.features, several[0], TEST.features, several[1], shots=(4,), trials=2).values()
    assert len(scores) == 2


def test_linear_searches_rates_and_learns():
    found = linear(*ARRAYS, epochs=20, learning_rates=[1e-6, 0.5], batch_size=16)
    assert found["learning_rate"] == 0.5
    assert found["top1"] > 60
    assert found["top1"] <= found["top5"] <= 100
    assert linear(*ARRAYS, epochs=2, learning_rates=[0.3], seed=1)["learning_rate"] == 0.3


def several(function):
    one_hot = [np.eye(6, dtype=int)[labels] for labels in (TRAIN.labels, TEST.labels)]
    return lambda: function(TRAIN.features, one_hot[0], TEST.features, one_hot[1])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (several(knn), "one class an image for knn"),
        (several(linear), "one class an image for linear"),
        (
            lambda: knn(ARRAYS[0], ARRAYS[1].astype(float), *ARRAYS[2:]),
            "labels of train as whole numbers",
        ),
        (lambda: svm(*ARRAYS, trials=0), "trials"),
        (lambda: linear(*ARRAYS, preset="m3"), "preset"),
        (lambda: linear(*ARRAYS, epochs=0), "epochs"),
        (lambda: linear(*ARRAYS, learning_rates=[]), "found an empty list"),
        (lambda: linear(*ARRAYS, learning_rates=[0.1, 0]), "learning_rates"),
        (lambda: linear(*ARRAYS, batch_size=0), "batch_size"),
        (lambda: extract_features(3, np.zeros((1, 3, 2, 2))), "network to call with images, found 3"),
        (lambda: extract_features(nn.Flatten(), 3), "expected images"),
        (lambda: extract_features(nn.Flatten(), [np.zeros((3, 2, 2))]), r"tensor of shape \(3, 2, 2\)"),
        (lambda: extract_features(nn.Identity(), np.zeros((2, 3, 2, 2))), r"features \[n, D\] .*found \(2, 3, 2, 2\)"),
        (lambda: extract_features(nn.Flatten(), []), r"at least one image, found \(\)"),
        (lambda: extract_features(nn.Flatten(), np.zeros((0, 3, 2, 2))), "at least one image"),
        (lambda: extract_features(nn.Flatten(), np.zeros((1, 3, 2, 2)), batch_size=0), "batch_size"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(call, said):
    with pytest.raises(InputError, match=said):
        call()


def test_features_come_in_order_from_a_module_that_gets_its_mode_back():
    images = torch.arange(7 * 12.0).view(7, 3, 2, 2)
    module = nn.Sequential(nn.Flatten(), nn.Dropout(0.5)).train()
    found = extract_features(module, images, batch_size=3, device="cpu")
    assert np.array_equal(found, images.flatten(1).numpy())  # no dropout
    assert module.training
    assert found.dtype == np.float32
    loader = [(batch, torch.zeros(len(batch))) for batch in images.split(2)]
    assert np.array_equal(extract_features(lambda x: x.flatten(1), loader), found)
