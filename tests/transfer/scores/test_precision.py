import numpy as np
import pytest

from momentum_transfer.transfer.scores import coco, lvis, precision
from tests.transfer.scores.random_sets import coco_set, federated


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


@pytest.mark.parametrize("largest", [3, 1 << 16, 1 << 20])
def test_sorting_by_key_is_stable_whatever_the_range_of_keys(largest: int):
    random = np.random.default_rng(0)
    key = random.integers(0, largest, 500).astype(np.int32)
    key[0] = largest - 1
    which = random.permutation(500)[:300]
    expected = sorted(which.tolist(), key=lambda index: key[index])
    assert precision._stably(which, key).tolist() == expected
    assert precision._stably(np.array(expected), key).tolist() == expected
    assert precision._stably(which[:0], key).tolist() == []
