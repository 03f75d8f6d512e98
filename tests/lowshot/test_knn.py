import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.neighbours import normalized, ranked_classes, search
from momentum_transfer.lowshot import knn
from tests.lowshot.toy_data import clusters

TRAIN, TEST = clusters(1, 300), clusters(2, 120)


def naive_ranking(similarities, labels, k, temperature):
    """Votes counted one by one; ties by the sum of similarities, then by number."""
    order = np.argsort(-similarities, kind="stable")[:k]
    votes, sums = {}, {}
    for row in order:
        weight = 1.0 if temperature is None else np.exp(similarities[row] / temperature)
        votes[labels[row]] = votes.get(labels[row], 0.0) + weight
        sums[labels[row]] = sums.get(labels[row], 0.0) + similarities[row]
    return sorted(votes, key=lambda label: (-votes[label], -sums[label], label))


@pytest.mark.parametrize(("k", "temperature"), [(1, None), (20, None), (50, 0.07), (300, 0.5)])
def test_ranking_equals_counting_votes_one_by_one(k, temperature):
    found = search(TRAIN.features, TEST.features, k)
    ranked = ranked_classes(found, TRAIN.labels, k, temperature)
    similarities = normalized(TEST.features).astype(float) @ normalized(TRAIN.features).astype(float).T
    for row in range(len(TEST)):
        expected = naive_ranking(similarities[row], TRAIN.labels, k, temperature)[:5]
        assert ranked[row].tolist() == expected + [-1] * (5 - len(expected))


@pytest.mark.parametrize("name", ["majority-1", "weighted-1"])
def test_one_neighbour_gives_one_guess(name):
    """A class without a vote is no guess, so the five best are the best."""
    (unit,) = knn.knn_scores(search(TRAIN.features, TEST.features, 1), TRAIN, TEST, [name])
    top1, top5, _ = unit
    assert top5.value == top1.value < 100


def test_top1_equals_scikit_learns_cosine_vote():
    found = search(TRAIN.features, TEST.features, 1)
    machine = KNeighborsClassifier(1, metric="cosine").fit(TRAIN.features, TRAIN.labels)
    assert np.array_equal(ranked_classes(found, TRAIN.labels, 1, None)[:, 0], machine.predict(TEST.features))


def test_a_tied_vote_goes_to_the_more_similar_class():
    train = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.1, 0.9]], np.float32)
    found = search(train, np.array([[0.6, 0.5]], np.float32), 4)
    assert ranked_classes(found, np.array([1, 1, 0, 0]), 4, None)[0].tolist() == [1, 0]


def test_scores_are_percentages_with_each_class_in_the_details():
    train, test = clusters(1, 300, classes=12, spread=3.0), clusters(2, 120, classes=12, spread=3.0)
    found = search(train.features, test.features, 200)
    units = list(knn.knn_scores(found, train, test, ["eman", "dino"]))
    assert [[score.metric for score in unit] for unit in units] == [["top1", "top5", "mean_per_class"]] * 2
    top1, top5, per_class = units[0]
    hits = ranked_classes(found, train.labels, 20, None) == test.labels[:, None]
    assert top1.value == pytest.approx(100 * np.mean(hits[:, 0]))
    assert top5.value == pytest.approx(100 * np.mean(hits.any(axis=1)))
    assert top1.value < 100 * np.mean(hits[:, :4].any(axis=1)) < top5.value < 100
    right = {label: 100 * np.mean(hits[test.labels == label, 0]) for label in range(12)}
    assert per_class.details["per_class"] == pytest.approx(right)
    assert per_class.value == pytest.approx(np.mean(list(right.values())))
    assert abs(per_class.value - top1.value) > 0.01, "classes of unequal size, so the two differ"
    assert (top1.task, top1.protocol) == ("knn/k=20", "eman")


def test_any_k_comes_from_one_search():
    assert knn.preset("majority-20") == knn.preset("eman")
    assert knn.preset("weighted-200") == knn.preset("dino")
    found = search(TRAIN.features, TEST.features, 200)
    one, other = knn.knn_scores(found, TRAIN, TEST, ["majority-7", "weighted-150"])
    assert (one[0].task, other[0].task) == ("knn/k=7", "knn/k=150")
    alone = ranked_classes(search(TRAIN.features, TEST.features, 7), TRAIN.labels, 7, None)
    assert one[0].value == pytest.approx(100 * np.mean(alone[:, 0] == TEST.labels))


def test_unknown_preset_is_refused():
    with pytest.raises(InputError, match=r"expected KNN\.PRESETS of eman, dino, majority-K, weighted-K, found 'best'"):
        knn.preset("best")
    with pytest.raises(InputError, match="found 'majority-0'"):
        knn.preset("majority-0")
