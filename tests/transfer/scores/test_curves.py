import numpy as np
import pytest

from momentum_transfer.transfer.scores import greedy_matching
from momentum_transfer.transfer.scores import precision as curves


def test_recall_levels_are_reached_by_the_smallest_sufficient_number_of_objects():
    for positives in (1, 2, 3, 7, 101, 997):
        for level, needed in zip(greedy_matching.RECALL_THRESHOLDS, curves._needed(positives), strict=True):
            reached = [count for count in range(1, positives + 1) if count / positives >= level]
            assert needed + 1 == reached[0]


def test_words_unpack_to_a_bit_for_every_run():
    words = np.array([1, 1 << 9, 1 << 10, 1 << 39])
    places = [tuple(place) for place in np.argwhere(curves._unpack(words))]
    assert sorted(places, key=lambda place: place[2]) == [(0, 0, 0), (0, 9, 1), (1, 0, 2), (3, 9, 3)]


@pytest.mark.parametrize("seed", range(10))
def test_the_curve_at_matches_equals_the_curve_over_all_detections(seed: int):
    random = np.random.default_rng(seed)
    count, positives = 40, np.array([9, 5, 1, 0])
    # One run per area is enough: 1 true positive, 2 ignored, 0 unmatched; some unmatched ones are no false positives.
    kind = random.choice([0, 0, 0, 1, 2], count)
    kind[np.flatnonzero(kind == 1)[1:]] = 0 if seed == 0 else 1
    false_candidates = random.random((4, count)) < 0.7
    matched = np.flatnonzero(kind)
    runs = np.broadcast_to(kind[matched], (4, greedy_matching.THRESHOLDS, len(matched)))
    before = np.cumsum(false_candidates, axis=1)[:, matched]
    precision, recall = curves._curve(
        (runs == 1).astype(np.int32), (runs == 2).astype(np.int32), false_candidates[:, matched], before, positives
    )
    for area in range(3):
        true, false, points = 0, 0, []
        for detection in range(count):
            true += kind[detection] == 1
            false += kind[detection] == 0 and false_candidates[area, detection]
            points.append((true / positives[area], true / (false + true + np.spacing(1))))
        levels = [max((p for r, p in points if r >= level), default=0.0) for level in greedy_matching.RECALL_THRESHOLDS]
        np.testing.assert_array_equal(precision[area], np.tile(levels, (greedy_matching.THRESHOLDS, 1)))
        np.testing.assert_array_equal(recall[area], true / positives[area])
