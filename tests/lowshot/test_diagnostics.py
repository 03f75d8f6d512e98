"""Diagnostics of features against naive loops and closed forms."""

import itertools

import numpy as np
import pytest
import torch

from momentum_transfer.core.errors import InputError
from momentum_transfer.images.datasets import build_dataset
from momentum_transfer.lowshot import diagnostics
from momentum_transfer.lowshot.augment import SeededView, weak_view
from momentum_transfer.lowshot.features.feature_set import FeatureSet

RANDOM = np.random.default_rng(0)


def feature_set(features) -> FeatureSet:
    return FeatureSet(np.asarray(features, dtype=np.float32), np.zeros(len(features), dtype=np.int64), "test", "ab")


def test_rank_is_the_exponential_of_the_entropy_of_singular_values():
    features = RANDOM.normal(size=(50, 8)) @ np.diag([5, 3, 1, 1, 0.5, 0.1, 0, 0])
    values = np.linalg.svd(features, compute_uv=False)
    part = values / values.sum() + 1e-7
    assert diagnostics.effective_rank(features) == pytest.approx(np.exp(-(part * np.log(part)).sum()), rel=1e-5)
    orthonormal = np.linalg.qr(RANDOM.normal(size=(50, 8)))[0]
    assert diagnostics.effective_rank(orthonormal) == pytest.approx(8, rel=1e-4)
    assert diagnostics.effective_rank(np.ones((9, 4)), np.ones(4)) == 1.0


def test_uniformity_and_alignment_are_their_definitions():
    x, y = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in RANDOM.normal(size=(2, 30, 5)))
    pairs = [np.exp(-2 * np.sum((a - b) ** 2)) for a, b in itertools.combinations(x, 2)]
    assert diagnostics._uniformity(x) == pytest.approx(np.log(np.mean(pairs)))
    found = {score.metric: score.value for score in diagnostics.scores(feature_set(x), (x, 3 * y))}
    assert found["alignment"] == pytest.approx(np.mean([np.sum((a - b) ** 2) for a, b in zip(x, y, strict=True)]))
    assert diagnostics._uniformity(np.tile(x[:1], (9, 1))) == pytest.approx(0.0, abs=1e-9)  # collapse


def test_dead_features_and_norms_are_counted():
    features = np.abs(RANDOM.normal(size=(40, 10)))
    features[:, :3] = 0
    features[:, 3] = 2.5  # alive in every image, but the same in all
    found = {score.metric: score.value for score in diagnostics.scores(feature_set(features), (features, features))}
    assert tuple(found) == diagnostics.METRICS
    assert found["dead_features"] == 40.0
    norms = np.linalg.norm(features, axis=1)
    assert (found["norm_mean"], found["norm_std"]) == pytest.approx((norms.mean(), norms.std()), rel=1e-5)
    assert found["alignment"] == 0.0
    assert found["rankme"] == pytest.approx(diagnostics.effective_rank(features), rel=1e-4)
    assert "alignment" not in {score.metric for score in diagnostics.scores(feature_set(features))}


def test_features_of_nothing_are_refused():
    with pytest.raises(InputError, match="at least two images"):
        diagnostics.scores(feature_set(np.ones((1, 3))))
    with pytest.raises(InputError, match="not all 0"):
        diagnostics.scores(feature_set(np.zeros((4, 3))))


def test_a_seeded_view_is_the_same_every_time_and_another_for_another_seed():
    image = build_dataset("digits", None, "val")[0][0]
    first, second = (SeededView(weak_view("digits", 32), seed) for seed in (0, 1))
    before = torch.random.get_rng_state()
    assert torch.equal(first(image), first(image))
    assert any(
        not torch.equal(first(each), second(each)) for each in (image, build_dataset("digits", None, "val")[1][0])
    )
    assert torch.equal(before, torch.random.get_rng_state())


def testeffective_ranks_are_those_of_singular_values_with_and_without_the_mean():
    features = RANDOM.normal(size=(50, 6)) * [3, 2, 1, 0.5, 0.1, 0.1] + 2
    found = {score.metric: score.value for score in diagnostics.scores(feature_set(features))}
    for name, centred in (("rankme", features), ("effective_rank", features - features.mean(axis=0))):
        values = np.linalg.svd(centred, compute_uv=False)
        parts = values / values.sum() + 1e-7
        assert found[name] == pytest.approx(np.exp(-(parts * np.log(parts)).sum()), rel=1e-4)
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    assert found["uniformity"] == pytest.approx(diagnostics._uniformity(unit.astype(np.float32)), rel=1e-4)
