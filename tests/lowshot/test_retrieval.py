import numpy as np
import pytest

from momentum_transfer.core.neighbours import normalized, search
from momentum_transfer.lowshot import knn
from momentum_transfer.lowshot.features.feature_set import FeatureSet

GENERATOR = np.random.default_rng(0)
TRAIN = FeatureSet(GENERATOR.standard_normal((200, 8)).astype(np.float32), GENERATOR.integers(0, 5, 200), "train", "0")
TEST = FeatureSet(GENERATOR.standard_normal((40, 8)).astype(np.float32), GENERATOR.integers(0, 5, 40), "test", "0")


def naive(top):
    """Every query by itself, ranked by sorting all similarities."""
    precisions, recalls = [], []
    for query, label in zip(normalized(TEST.features).astype(float), TEST.labels, strict=True):
        order = np.argsort(-(normalized(TRAIN.features).astype(float) @ query))[:top]
        hits, total = 0, 0.0
        for rank, row in enumerate(order, start=1):
            if TRAIN.labels[row] == label:
                hits += 1
                total += hits / rank
        precisions.append(total / hits if hits else 0.0)
        recalls.append(hits / np.sum(TRAIN.labels == label))
    return 100 * np.mean(precisions), 100 * np.mean(recalls)


@pytest.mark.parametrize("top", [1, 3, 50, 200])
def test_map_and_recall_equal_a_naive_loop(top):
    precision, recall = knn.retrieval_scores(search(TRAIN.features, TEST.features, top), TRAIN, TEST, top)
    assert (precision.metric, recall.metric) == ("mAP", "recall")
    assert precision.value == pytest.approx(naive(top)[0], abs=1e-10)
    assert recall.value == pytest.approx(naive(top)[1], abs=1e-10)


def test_average_precision_of_known_lists():
    hits = np.array([[1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 1]], dtype=bool)
    expected = [(1 + 2 / 3) / 2, 0, 1, 1 / 4]
    assert np.allclose(knn._average_precisions(hits), expected, rtol=0, atol=1e-12)


def test_whole_database_has_full_recall():
    _, recall = knn.retrieval_scores(search(TRAIN.features, TEST.features, 200), TRAIN, TEST, 200)
    assert recall.value == pytest.approx(100)


def test_images_with_several_labels_are_relevant_with_one_in_common():
    database, queries = np.array([[1, 0, 0], [0, 1, 1], [0, 0, 1]]), np.array([[1, 1, 0]])
    assert knn._relevant(database, np.array([[2, 1, 0]]), queries).tolist() == [[False, True, True]]
    assert knn._relevant_counts(database, queries).tolist() == [2]
