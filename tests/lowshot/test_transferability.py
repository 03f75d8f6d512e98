"""Every measure against a naive version in float64, written from its paper's equations."""

import itertools
import math

import numpy as np
import pytest
from scipy.linalg import fractional_matrix_power
from scipy.optimize import minimize
from sklearn.covariance import ledoit_wolf

from momentum_transfer.lowshot import transferability as measures

SHAPES = [(40, 7), (30, 45)]  # more images than features, and fewer


def drawn(count: int, width: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Positive features of three classes of unlike sizes that overlap, and their labels."""
    random = np.random.default_rng(seed)
    labels = np.sort(random.choice(3, size=count, p=[0.5, 0.3, 0.2]))
    scales = np.linspace(2, 0.2, width)
    features = np.abs(random.normal(size=(3, width))[labels] * 0.7 + random.normal(size=(count, width)) * scales)
    return features, labels


def evidence(features: np.ndarray, target: np.ndarray, alpha: float, beta: float) -> float:
    """LogME's equation 2 with D × D matrices."""
    count, width = features.shape
    matrix = alpha * np.eye(width) + beta * features.T @ features
    mean = beta * np.linalg.solve(matrix, features.T @ target)
    return (
        count / 2 * math.log(beta) + width / 2 * math.log(alpha) - count / 2 * math.log(2 * math.pi)
        - beta / 2 * np.sum((features @ mean - target) ** 2) - alpha / 2 * mean @ mean
        - np.linalg.slogdet(matrix)[1] / 2
    )  # fmt: skip


def most_evidence(features: np.ndarray, target: np.ndarray) -> float:
    options = {"xatol": 1e-9, "fatol": 1e-11, "maxiter": 4000}
    found = (
        minimize(lambda x: -evidence(features, target, *np.exp(x)), start, method="Nelder-Mead", options=options)
        for start in ([0, 0], [2, 3])
    )
    return -min(one.fun for one in found)


@pytest.mark.parametrize("shape", SHAPES)
def test_logme_is_the_largest_evidence_that_an_optimiser_finds(shape):
    features, labels = drawn(*shape)
    found = []
    for label in range(3):
        target = (labels == label).astype(float)
        found.append(most_evidence(features, target) / len(features))
    assert measures.LABELLED["logme"](features, labels) == pytest.approx(np.mean(found), rel=1e-6)


def test_logme_takes_real_targets_and_features_that_say_nothing_have_less():
    features, _ = drawn(60, 8)
    target = (features @ np.arange(8))[:, None]
    noise = np.random.default_rng(1).normal(size=features.shape)
    assert measures.logme(features, target) > measures.logme(noise, target)
    assert np.isfinite(measures.logme(np.zeros((60, 4)), target))


@pytest.mark.parametrize("shape", SHAPES)
def test_h_scores_are_traces_of_inverse_and_class_means_covariance(shape):
    features, labels = drawn(*shape)
    means = np.array([features[labels == label].mean(axis=0) for label in labels])
    between = np.cov(means.T, bias=True)
    plain = np.trace(np.linalg.pinv(np.cov(features.T, bias=True), rcond=1e-12) @ between)
    assert measures.h_score(features, labels, shrunk=False) == pytest.approx(plain, rel=1e-6)
    covariance, delta = ledoit_wolf(features)
    shrunk = np.trace(np.linalg.inv(covariance) @ between) * (1 - delta)
    assert 0 < delta < 1
    assert measures.h_score(features, labels) == pytest.approx(shrunk, rel=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_transrate_is_the_difference_of_coding_rates(shape):
    features, labels = drawn(*shape)
    scaled = features - features.mean(axis=0)
    scaled /= np.sqrt(np.trace(scaled.T @ scaled) / len(scaled))

    def rate(rows: np.ndarray) -> float:
        return 0.5 * math.log(np.linalg.det(np.eye(shape[1]) + rows.T @ rows / (len(rows) * 1e-4)))

    within = sum(np.mean(labels == label) * rate(scaled[labels == label]) for label in range(3))
    assert measures.transrate(features, labels) == pytest.approx(rate(scaled) - within, rel=1e-6)
    assert measures.transrate(features * 50, labels) == pytest.approx(measures.transrate(features, labels), rel=1e-9)


def test_knn_leaves_the_image_out():
    features, labels = drawn(40, 7)
    rows, expected = features / np.linalg.norm(features, axis=1, keepdims=True), []
    for row in range(40):
        others = [other for other in range(40) if other != row]
        near = sorted(others, key=lambda other: -float(rows[row] @ rows[other]))[:5]
        voters = {label: [n for n in near if labels[n] == label] for label in range(3)}
        votes = {label: (len(of), sum(rows[row] @ rows[n] for n in of)) for label, of in voters.items()}
        expected.append(max(votes, key=lambda label: votes[label]) == labels[row])
    assert measures.knn_hits(features, labels).tolist() == expected
    assert measures.knn_hits(np.eye(4), np.array([0, 1, 2, 3])).sum() == 0  # an image is no neighbour of its own


@pytest.mark.parametrize("shape", SHAPES)
def test_the_linear_probe_equals_refitting_without_each_image(shape):
    features, labels = drawn(*shape)
    targets = measures.indicators(labels)
    spread = np.sum((features - features.mean(axis=0)) ** 2) / len(features)
    best: tuple[float, list[bool]] = (math.inf, [])
    for penalty in 10.0 ** np.arange(-5, 2) * spread:
        predicted = []
        for row in range(len(features)):
            rest = np.arange(len(features)) != row
            x, y = features[rest], targets[rest]
            centred = x - x.mean(axis=0)
            weights = np.linalg.solve(
                centred.T @ centred + penalty * np.eye(shape[1]), centred.T @ (y - y.mean(axis=0))
            )
            predicted.append(y.mean(axis=0) + (features[row] - x.mean(axis=0)) @ weights)
        error = float(np.sum((targets - predicted) ** 2))
        best = min(best, (error, (np.argmax(predicted, axis=1) == targets.argmax(axis=1)).tolist()))
    hits = measures.linear_hits(features, labels)
    assert hits.tolist() == best[1]
    assert 0.4 < hits.mean() < 1


def test_alpha_req_is_the_exponent_of_a_power_law():
    random = np.random.default_rng(0)
    left, right = (np.linalg.qr(random.normal(size=(count, 60)))[0] for count in (200, 80))
    left = np.linalg.qr(left - left.mean(axis=0))[0]  # orthogonal to the mean's direction
    for exponent in (1.0, 0.6, 1.7):
        features = left @ np.diag(np.arange(1, 61) ** (-exponent / 2)) @ right.T
        assert measures.alpha_req(features) == pytest.approx(-abs(exponent - 1), abs=1e-6)
    features, _ = drawn(40, 7)
    values = np.sort(np.linalg.eigvalsh(np.cov(features.T)))[::-1][2:]
    x, y = np.log(np.arange(3, 8)), np.log(values)
    slope = np.sum((x - x.mean()) * (y - y.mean())) / np.sum((x - x.mean()) ** 2)
    assert measures.alpha_req(features) == pytest.approx(-abs(-slope - 1), rel=1e-6)


def test_clusters_of_separate_groups_are_learnable_and_those_of_noise_less():
    random = np.random.default_rng(0)
    groups = np.repeat(np.eye(10), 10, axis=0)
    assert measures.cluster_hits(groups + random.normal(size=groups.shape) * 0.01).mean() > 0.9
    assert measures.cluster_hits(random.normal(size=(100, 10))).mean() < 0.8


@pytest.mark.parametrize("shape", [(12, 3, 5), (8, 2, 30)])
def test_lidar_is_the_effective_rank_of_the_discriminant_matrix(shape):
    random = np.random.default_rng(0)
    views = random.normal(size=(shape[0], 1, shape[2])) + 0.5 * random.normal(size=shape)
    width = shape[2]
    between, within, mean = np.zeros((width, width)), 1e-4 * np.eye(width), views.reshape(-1, width).mean(axis=0)
    for image in views:
        middle = image.mean(axis=0)
        between += np.outer(middle - mean, middle - mean) / shape[0]
        for view in image:
            within += np.outer(view - middle, view - middle) / (shape[0] * shape[1])
    root = fractional_matrix_power(within, -0.5)
    values = np.maximum(np.linalg.eigvalsh(root @ between @ root), 0)
    parts = values / values.sum() + 1e-7
    assert measures.lidar(views) == pytest.approx(np.exp(-np.sum(parts * np.log(parts))), rel=1e-6)


def test_labels_need_not_count_from_0_and_one_class_alone_scores_nothing():
    features, labels = drawn(40, 7)
    for measure in (*measures.LABELLED.values(), *measures.HITS.values()):
        assert np.array_equal(measure(features, labels), measure(features, labels * 5 + 2))
    one = np.zeros(40, dtype=int)
    assert measures.transrate(features, one) == pytest.approx(0)
    assert measures.h_score(features, one) == pytest.approx(0)


def test_order_of_images_does_not_matter():
    features, labels = drawn(40, 7)
    order = np.random.default_rng(3).permutation(40)
    for measure in measures.LABELLED.values():
        assert measure(features[order], labels[order]) == pytest.approx(measure(features, labels), rel=1e-9)
    for name, measure in itertools.islice(measures.HITS.items(), 2):
        assert np.array_equal(measure(features[order], labels[order]), measure(features, labels)[order]), name
