import numpy as np
import pytest

from momentum_transfer.transfer.scores import coco, greedy_matching, lvis, precision
from momentum_transfer.verdicts.average_precision import replicates
from tests.transfer.scores.random_sets import coco_set, federated
from tests.transfer.scores.references import pycocotools_eval


@pytest.mark.parametrize("chunk", [1, 50, 200])
@pytest.mark.parametrize("segm", [False, True])
def test_the_size_of_the_chunks_changes_nothing(chunk: int, segm: bool, monkeypatch: pytest.MonkeyPatch):
    truth, results = coco_set(5, segm)
    iou_type = "segm" if segm else "bbox"
    whole = coco.evaluate(truth, results, iou_type), lvis.evaluate(federated(truth, 5), results, iou_type)
    monkeypatch.setattr(precision, "CHUNK", chunk)
    parts = coco.evaluate(truth, results, iou_type), lvis.evaluate(federated(truth, 5), results, iou_type)
    for before, after in zip(whole, parts, strict=True):
        np.testing.assert_array_equal(after.precision, before.precision)
        np.testing.assert_array_equal(after.recall, before.recall)


def test_no_chunk_is_larger_than_asked_unless_one_category_alone_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(precision, "CHUNK", 10)
    random = np.random.default_rng(0)
    detections, objects = random.choice(8, 60, p=[0.4, 0, 0.2, 0.1, 0.1, 0.1, 0.05, 0.05]), random.integers(0, 8, 30)
    chunks = list(precision._chunks(detections, objects, categories=8))
    assert [low for low, *_ in chunks] == [0, *(high for _, high, *_ in chunks)][:-1]
    assert chunks[-1][1] == 8
    for low, high, of_detections, of_objects in chunks:
        assert len(of_detections) <= 10 or high == low + 1
        np.testing.assert_array_equal(np.sort(of_detections), np.flatnonzero((detections >= low) & (detections < high)))
        np.testing.assert_array_equal(np.sort(of_objects), np.flatnonzero((objects >= low) & (objects < high)))


def test_recall_levels_are_reached_by_the_smallest_sufficient_number_of_objects():
    for positives in (1, 2, 3, 7, 101, 997):
        for level, needed in zip(greedy_matching.RECALL_THRESHOLDS, precision._needed(positives), strict=True):
            reached = [count for count in range(1, positives + 1) if count / positives >= level]
            assert needed + 1 == reached[0]


def test_words_unpack_to_a_bit_for_every_run():
    words = np.array([1, 1 << 9, 1 << 10, 1 << 39])
    places = [tuple(place) for place in np.argwhere(precision._unpack(words))]
    assert sorted(places, key=lambda place: place[2]) == [(0, 0, 0), (0, 9, 1), (1, 0, 2), (3, 9, 3)]


@pytest.mark.parametrize("seed", range(10))
def test_the_curve_at_matches_equals_the_curve_over_all_detections(seed: int):
    random = np.random.default_rng(seed)
    count, positives = 40, np.array([9, 5, 1, 0])
    # One run per area is enough: 1 true positive, 2 ignored, 0 unmatched; some unmatched ones are no false positives.
    kind = random.choice([0, 0, 0, 1, 2], count)
    kind[np.flatnonzero(kind == 1)[1:]] = 0 if seed == 0 else 1
    fp_candidate = random.random((4, count)) < 0.7
    matched = np.flatnonzero(kind)
    runs = np.broadcast_to(kind[matched], (4, greedy_matching.THRESHOLDS, len(matched)))
    before = np.cumsum(fp_candidate, axis=1)[:, matched]
    found, recall = precision._curve(runs == 1, runs == 2, fp_candidate[:, matched], before, positives)
    for area in range(3):
        true, false, points = 0, 0, []
        for detection in range(count):
            true += kind[detection] == 1
            false += kind[detection] == 0 and fp_candidate[area, detection]
            points.append((true / positives[area], true / (false + true + np.spacing(1))))
        levels = [max((p for r, p in points if r >= level), default=0.0) for level in greedy_matching.RECALL_THRESHOLDS]
        np.testing.assert_array_equal(found[area], np.tile(levels, (greedy_matching.THRESHOLDS, 1)))
        np.testing.assert_array_equal(recall[area], true / positives[area])


@pytest.mark.parametrize("segm", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_tables_of_every_limit_are_pycocotools_and_outcomes_hold_all_of_them(seed: int, segm: bool):
    truth, results = coco_set(seed, segm)
    iou_type = "segm" if segm else "bbox"
    expected = pycocotools_eval(truth, results, iou_type).eval
    found = coco.evaluate(truth, results, iou_type)
    np.testing.assert_array_equal(found.precision, expected["precision"])
    np.testing.assert_array_equal(found.recall, expected["recall"])
    again = replicates(found.items, np.ones((1, found.items.images), np.int32))
    np.testing.assert_array_equal([again[name][0] for name in found.metrics], list(found.metrics.values()))
