"""The bootstrap of AP against the evaluators, and against pycocotools on sets that really hold an image twice."""

import copy
import itertools

import numpy as np
import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.scores import coco, lvis, voc
from momentum_transfer.verdicts import average_precision
from momentum_transfer.verdicts.average_precision import replicates
from momentum_transfer.verdicts.outcomes import item_weights
from momentum_transfer.verdicts.ranked import Ranked
from tests.transfer.scores.random_sets import coco_set, federated
from tests.transfer.scores.references import lvis_eval, pycocotools_eval

COCO_NAMES = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl")


def numbered_from_one(truth):
    """The annotation id 0 has a meaning of its own to the references, which no copy of it could keep."""
    return {**truth, "annotations": [{**entry, "id": n} for n, entry in enumerate(truth["annotations"], start=1)]}


def unique_scores(results, seed):
    """Other scores, no two of them alike."""
    order = np.random.default_rng(seed).permutation(len(results)) + 1
    return [{**entry, "score": float(place) / (len(results) + 1)} for entry, place in zip(results, order, strict=True)]


def resampled(truth, results, weights):
    """The set in which image i stands weights[i] times, the copies under ids of their own, in the images' order."""
    images = sorted(truth["images"], key=lambda image: image["id"])
    new_ids, annotation_ids = itertools.count(1), itertools.count(1)
    drawn = {**truth, "images": [], "annotations": []}
    found = []
    for image, weight in zip(images, weights, strict=True):
        for _ in range(int(weight)):
            new = next(new_ids)
            drawn["images"].append({**image, "id": new})
            drawn["annotations"] += [
                {**entry, "image_id": new, "id": next(annotation_ids)}
                for entry in truth["annotations"]
                if entry["image_id"] == image["id"]
            ]
            found += [{**entry, "image_id": new} for entry in results if entry["image_id"] == image["id"]]
    return drawn, found


def agree(ours, expected, tolerance):
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        assert ours[name] == pytest.approx(value, abs=tolerance, nan_ok=True), name


def one(items: Ranked, weights) -> dict[str, float]:
    return {name: values[0] for name, values in replicates(items, np.asarray(weights)[None]).items()}


@pytest.mark.parametrize("segm", [False, True])
def test_unit_weights_give_every_evaluators_numbers_bit_for_bit(segm):
    kind = "segm" if segm else "bbox"
    for seed in range(12):
        truth, results = coco_set(seed, segm)
        scores = [coco.evaluate(truth, results, kind), lvis.evaluate(federated(truth, seed), results, kind)]
        if not segm:
            scores += [voc.evaluate(truth, results, "11-point"), voc.evaluate(truth, results, "area", rounded=False)]
        for found in scores:
            agree(one(found.items, np.ones(found.items.images, np.int32)), found.metrics, 0.0)


def test_weights_are_images_that_stand_several_times_in_pycocotools():
    for seed in range(50):
        truth, results = coco_set(seed, images=8)
        truth, results = numbered_from_one(truth), unique_scores(results, seed)
        items = coco.evaluate(truth, results).items
        weights = item_weights(len(truth["images"]), 1, seed)[0]
        drawn = resampled(truth, results, weights)
        assert drawn[1], "pycocotools cannot read an empty list of results"
        expected = {
            name: 100 * value if value > -1 else float("nan")
            for name, value in zip(COCO_NAMES, pycocotools_eval(*drawn, "bbox").stats, strict=True)
        }
        agree(one(items, weights), expected, 1e-10)  # in percent: 1e-12 as a fraction


def test_weights_are_images_that_stand_several_times_in_lvis_and_voc(tmp_path):
    for seed in range(12):
        truth, results = coco_set(seed, images=8)
        truth, results = numbered_from_one(federated(truth, seed)), unique_scores(results, seed)
        weights = item_weights(len(truth["images"]), 1, seed)[0]
        drawn = resampled(truth, results, weights)
        if not drawn[1]:
            continue
        items = lvis.evaluate(truth, results).items
        expected = lvis_eval(tmp_path, *copy.deepcopy(drawn), "bbox").get_results()
        ours = one(items, weights)
        for name in ("AP", "AP50", "AP75", "APs", "APm", "APl", "APr", "APc", "APf"):
            value = 100 * expected[name] if expected[name] > -1 else float("nan")
            assert ours[name] == pytest.approx(value, abs=1e-10, nan_ok=True), (seed, name)
        for rule in ("11-point", "area"):
            items = voc.evaluate(truth, results, rule, rounded=False).items
            agree(one(items, weights), voc.evaluate(*drawn, rule, rounded=False).metrics, 1e-10)


@pytest.mark.parametrize("sizes", [("_CHUNK", "_TABLE_BYTES"), ("_LARGEST",)])
@pytest.mark.parametrize("score", [coco, voc])
def test_blocks_and_parts_change_no_number(monkeypatch, score, sizes: tuple[str, ...]):
    items = score.evaluate(*coco_set(5, images=30)).items
    weights = item_weights(items.images, 9, seed=1)
    whole = replicates(items, weights)
    for size in sizes:
        monkeypatch.setattr(average_precision, size, 1)
    agree(
        {name: values.tolist() for name, values in replicates(items, weights).items()},
        {name: values.tolist() for name, values in whole.items()},
        0.0,
    )


def test_outcomes_survive_a_file(tmp_path):
    truth, results = coco_set(4)
    items = lvis.evaluate(federated(truth, 1), results).items
    np.savez_compressed(tmp_path / "items.npz", **items.arrays())
    with np.load(tmp_path / "items.npz") as archive:
        again = Ranked.from_arrays(dict(archive))
    weights = item_weights(items.images, 3)
    for name, values in replicates(items, weights).items():
        np.testing.assert_array_equal(replicates(again, weights)[name], values)


def test_damaged_outcomes_are_refused():
    items = coco.evaluate(*coco_set(4)).items
    arrays = items.arrays()
    damaged = {"image": arrays["image"] + 999, "match": arrays["match"][:-1], "rule": np.array("other")}
    for name, values in damaged.items():
        with pytest.raises(InputError, match="expected outcomes of detections"):
            Ranked.from_arrays({**arrays, name: values})
    with pytest.raises(InputError, match="without"):
        Ranked.from_arrays({name: values for name, values in arrays.items() if name != "false_candidates"})


@pytest.mark.parametrize("shift", [20, 24, 28, 30])
def test_weights_count_by_their_ratios_however_large_they_are(shift):
    """Sums beyond 32 bits, as of hundreds of millions of detections."""
    truth, results = coco_set(3, images=8)
    weights = item_weights(8, 5)
    for items in (coco.evaluate(truth, results, "bbox").items, voc.evaluate(truth, results, "area").items):
        agree(replicates(items, weights.astype(np.int64) << shift), replicates(items, weights), 1e-9)
