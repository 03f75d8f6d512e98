import importlib
import importlib.util
import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pycocotools import mask as coco_mask

from momentum_transfer.transfer.scores import greedy_matching, rle
from momentum_transfer.transfer.scores.greedy_matching import Pairs
from tests.transfer.scores.random_sets import HEIGHT, WIDTH, rectangle


@st.composite
def cases(draw: st.DrawFn):
    """Up to three groups with up to five detections and four objects each, and coarse overlaps between them."""
    detection_group, object_group, overlap = [], [], {}
    for group in range(draw(st.integers(1, 3))):
        detections = range(len(detection_group), len(detection_group) + draw(st.integers(0, 5)))
        objects = range(len(object_group), len(object_group) + draw(st.integers(0, 4)))
        detection_group += [group] * len(detections)
        object_group += [group] * len(objects)
        for d in detections:
            for g in objects:
                overlap[d, g] = draw(st.sampled_from([0.0, 0.49, 0.5, 0.7, 0.7, 0.9, 1.0]))
    count = len(object_group)
    flags = {name: draw(st.lists(st.booleans(), min_size=count, max_size=count)) for name in ("crowd", "zero")}
    ignored = draw(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=count, max_size=count))
    return detection_group, overlap, flags["crowd"], flags["zero"], ignored


def naive_match(detection_group, overlap, crowd, zero, ignored, threshold: float, area: int):
    """The rule in words: for every detection what it took: "counted", "ignored" or nothing."""
    taken, outcome = set(), []
    for d in range(len(detection_group)):
        options = [
            (not ignored[g][area], iou, g)
            for (of, g), iou in overlap.items()
            if of == d and iou >= threshold and (g not in taken or crowd[g])
        ]
        if not options:
            outcome.append(None)
            continue
        counts, _, g = max(options)
        taken.add(g)
        outcome.append(("counted" if not zero[g] else None) if counts else "ignored")
    return outcome


@settings(max_examples=150, deadline=None)
@given(cases())
def test_all_runs_at_once_equal_one_run_after_another(case):
    detection_group, overlap, crowd, zero, ignored = case
    ignored = [[True] * 4 if is_crowd else flags for is_crowd, flags in zip(crowd, ignored, strict=True)]
    kept = [(d, g, iou) for (d, g), iou in sorted(overlap.items()) if iou >= 0.5]
    columns = [np.array(column) for column in zip(*kept, strict=True)] or [
        np.zeros(0, int),
        np.zeros(0, int),
        np.zeros(0),
    ]
    words = greedy_matching.area_words(np.array(ignored, dtype=bool).reshape(-1, 4).T)
    flags = [np.array(flag, dtype=bool) for flag in (crowd, zero)]
    found = greedy_matching.match(Pairs(*columns), np.array(detection_group, dtype=int), words, *flags)
    for area in range(4):
        for t, threshold in enumerate(greedy_matching.IOU_THRESHOLDS):
            run = 1 << (area * greedy_matching.THRESHOLDS + t)
            expected = naive_match(detection_group, overlap, crowd, zero, ignored, threshold, area)
            ours = [None] * len(expected)
            for d, counted, spared in zip(found.detection, found.counted, found.ignored, strict=True):
                ours[d] = "counted" if counted & run else "ignored" if spared & run else None
            assert ours == expected


def test_both_ends_of_an_area_range_belong_to_it():
    flags = greedy_matching.in_area(np.array([0, 1023, 1024, 1025, 9216, 9217, 1e10, 1.1e10]))
    assert flags.astype(int).tolist() == [
        [1, 1, 1, 1, 1, 1, 1, 0],
        [1, 1, 1, 0, 0, 0, 0, 0],
        [0, 0, 1, 1, 1, 0, 0, 0],
        [0, 0, 0, 0, 1, 1, 1, 0],
    ]


def test_thresholds_are_those_of_the_references():
    from pycocotools.cocoeval import Params

    params = Params(iouType="bbox")
    np.testing.assert_array_equal(greedy_matching.IOU_THRESHOLDS, params.iouThrs)
    np.testing.assert_array_equal(greedy_matching.RECALL_THRESHOLDS, params.recThrs)
    np.testing.assert_array_equal(greedy_matching.AREA_RANGES, params.areaRng)
    assert list(greedy_matching.AREA_NAMES) == params.areaRngLbl


side = st.one_of(st.floats(0, 300), st.integers(0, 5).map(float), st.just(1e-200))
box = st.tuples(st.floats(-50, 300), st.floats(-50, 300), side, side)


@settings(max_examples=300, deadline=None)
@given(box, box, st.booleans())
def test_box_iou_equals_pycocotools_to_the_last_bit(detection, target, crowd: bool):
    expected = coco_mask.iou([list(detection)], [list(target)], [int(crowd)])[0, 0]
    one, smallest = np.zeros(1, dtype=int), np.nextafter(0, 1)
    pairs = greedy_matching.box_pairs(one, one, np.array([detection]), np.array([target]), np.array([crowd]), smallest)
    ours = pairs.iou[0] if len(pairs.iou) else 0
    # Sides of 1e-200 make areas of 0 and pycocotools divides 0 by 0: that is no overlap.
    assert ours == (0 if np.isnan(expected) else expected)


@pytest.mark.parametrize("largest", [3, 1 << 16, 1 << 53, 1 << 54, (1 << 63) - 1])
def test_whole_numbers_are_ordered_stably_whatever_their_range(largest: int):
    keys = np.random.default_rng(0).integers(0, largest, 500)
    keys[7] = largest - 1
    expected = sorted(range(500), key=lambda index: keys[index])
    assert greedy_matching.in_order(keys).tolist() == expected
    assert greedy_matching.in_order(keys[expected]).tolist() == list(range(500))
    assert greedy_matching.in_order(keys[:0]).tolist() == []


def grouped(seed: int):
    """Sorted groups of detections and objects, some on one side only; whole-pixel boxes."""
    random = np.random.default_rng(seed)
    groups = [np.sort(random.integers(0, 9, count)) for count in (60, 25)]
    boxes = [random.integers((0, 0, 0, 0), (40, 40, 60, 60), (len(group), 4)).astype(float) for group in groups]
    return groups, boxes, random.random(25) < 0.2


def naive_pairs(groups, shapes, crowd, lowest):
    return [
        (d, g, iou)
        for d in range(len(groups[0]))
        for g in range(len(groups[1]))
        if groups[0][d] == groups[1][g]
        and (iou := coco_mask.iou([shapes[0][d]], [shapes[1][g]], [int(crowd[g])])[0, 0]) >= lowest
    ]


@pytest.mark.parametrize("block", [1, 7, 10**6])
@pytest.mark.parametrize("seed", range(3))
def test_box_pairs_are_those_of_a_double_loop_whatever_the_block(seed: int, block: int, monkeypatch):
    monkeypatch.setattr(greedy_matching, "_BLOCK_PAIRS", block)
    groups, boxes, crowd = grouped(seed)
    pairs = greedy_matching.box_pairs(*groups, *boxes, crowd, 0.2)
    expected = naive_pairs(groups, [b.tolist() for b in boxes], crowd, 0.2)
    assert list(zip(pairs.detection, pairs.object, pairs.iou, strict=True)) == expected
    assert expected


@pytest.mark.parametrize(("together", "block"), [(1, 1000), (3, 7), (100, 1000)])
@pytest.mark.parametrize("seed", range(3))
def test_mask_pairs_are_those_of_a_double_loop_however_many_a_call_takes(seed, together, block, monkeypatch):
    monkeypatch.setattr(greedy_matching, "_TOGETHER", together)
    monkeypatch.setattr(greedy_matching, "_BLOCK_MASKS", block)
    monkeypatch.setattr(greedy_matching, "kernels", lambda: None)
    groups, boxes, crowd = grouped(seed)
    codes = [[rectangle(*map(int, values)) for values in side] for side in boxes]
    rles = [rle.read(side, [[HEIGHT, WIDTH]] * len(side), lambda *_: None) for side in codes]
    pairs = greedy_matching.mask_pairs(*groups, *rles, crowd, 0.2)
    assert list(zip(pairs.detection, pairs.object, pairs.iou, strict=True)) == naive_pairs(groups, codes, crowd, 0.2)


def test_masks_of_images_whose_widths_differ_by_less_than_a_call_takes_are_kept_apart(monkeypatch):
    monkeypatch.setattr(greedy_matching, "kernels", lambda *_: None)
    sizes = [[5, width] for width in (12, 11, 10, 9, 8, 7, 3, 1)] + [[4, 2]]
    codes = [coco_mask.encode(np.asfortranarray(np.indices(size).sum(axis=0) % 3 > 0, np.uint8)) for size in sizes]
    rles, image = rle.read(codes, sizes, lambda *_: None), np.arange(len(codes))
    pairs = greedy_matching.mask_pairs(image, image, rles, rles, np.zeros(len(codes), dtype=bool), 0.5)
    np.testing.assert_array_equal(pairs.iou, np.ones(len(codes)))


def runs_of(pixels: int, numbers: list[int]) -> list[int]:
    """The numbers cut off where they reach ``pixels``, or filled up to it."""
    before = [min(sum(numbers[:end]), pixels) for end in range(len(numbers) + 1)] + [pixels]
    return [stop - start for start, stop in itertools.pairwise(before)]


without_numba = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is an extra")


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=without_numba)])
@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(st.sampled_from([0, 0, 1, 2, 5]), max_size=12), min_size=6, max_size=6), st.booleans())
@example([[0, 2, 0, 0, 1]] * 3 + [[0, 2, 0, 0, 0, 12]] * 3, False)  # pycocotools stops behind the first two pixels
def test_masks_with_empty_runs_overlap_as_pycocotools_says(compiled: bool, numbers: list[list[int]], crowd: bool):
    size, flags = [4, 6], np.full(3, crowd)
    codes = [coco_mask.frPyObjects({"size": size, "counts": runs_of(24, some)}, *size) for some in numbers]
    kernels = importlib.import_module("momentum_transfer.transfer.scores.kernels") if compiled else None
    with pytest.MonkeyPatch.context() as patch:
        for module in (rle, greedy_matching):
            patch.setattr(module, "kernels", lambda *_: kernels)
        detections, objects = (rle.read(side, [size] * 3, lambda *_: None) for side in (codes[:3], codes[3:]))
        group = np.zeros(3, dtype=np.int64)
        pairs = greedy_matching.mask_pairs(group, group, detections, objects, flags, 0.5)
    found = np.zeros((3, 3))
    found[pairs.detection, pairs.object] = pairs.iou
    expected = coco_mask.iou(codes[:3], codes[3:], flags.tolist())
    np.testing.assert_array_equal(found, np.where(expected >= 0.5, expected, 0))


def test_without_a_common_group_there_are_no_pairs():
    pairs = greedy_matching.box_pairs(
        np.array([1]), np.array([2]), np.ones((1, 4)), np.ones((1, 4)), np.array([False]), 0.5
    )
    assert len(pairs.detection) == len(pairs.object) == len(pairs.iou) == 0


@pytest.mark.parametrize("seed", range(3))
def test_no_pair_of_masks_overlaps_more_than_its_bound(seed: int):
    _, boxes, crowd = grouped(seed)
    codes = [[rectangle(*map(int, values), striped=n % 3 == 0) for n, values in enumerate(side)] for side in boxes]
    detections, objects = (rle.read(side, [[HEIGHT, WIDTH]] * len(side), lambda *_: None) for side in codes)
    d, g = (index.ravel() for index in np.meshgrid(np.arange(60), np.arange(25), indexing="ij"))
    exact = coco_mask.iou(*codes, crowd.tolist())
    bound = greedy_matching._iou_bound(detections, objects, d, g, crowd[g]).reshape(60, 25)
    assert (bound >= exact).all()
    assert (bound[exact == 0] == 0).any(), "it tells some that do not touch"
    assert (bound < 0.5).mean() > 0.3, "it spares work"
