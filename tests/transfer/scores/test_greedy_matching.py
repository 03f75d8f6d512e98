import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from momentum_transfer.transfer.scores import greedy_matching
from momentum_transfer.transfer.scores.greedy_matching import Pairs


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
