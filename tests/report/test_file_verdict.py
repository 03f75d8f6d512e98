"""Verdicts on files of any make, against scipy and pycocotools; planted gates; everything that is refused."""

import contextlib
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from scipy import stats

import momentum_transfer as mt
from momentum_transfer.core import records as records_file
from momentum_transfer.core.errors import InputError
from momentum_transfer.report.file_verdict import kind_of
from momentum_transfer.transfer.scores import lvis, voc
from momentum_transfer.verdicts.corrections import ONE_TRIAL
from momentum_transfer.verdicts.outcomes import PerItem
from momentum_transfer.verdicts.power import trials_needed
from tests.report.report_records import record
from tests.transfer.scores.random_sets import coco_set, federated


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def csv_of(path: Path, columns: dict, ids=None) -> Path:
    n = len(next(iter(columns.values())))
    rows = zip(ids or [f"image {i}" for i in range(n)], *columns.values(), strict=True)
    return write(path, "\n".join([",".join(["image id", *columns]), *(",".join(map(str, row)) for row in rows), ""]))


def hits(seed: int, chance: float, n: int = 300) -> np.ndarray:
    return np.random.default_rng(seed).random(n) < chance


def detections(folder: Path, seed: int = 3, images: int = 40) -> tuple[Path, Path, Path]:
    """A ground truth and two result files: of all detections, and without every fifth."""
    truth, found = coco_set(seed, images=images)
    contents = {"gt": truth, "a": found, "b": [each for n, each in enumerate(found) if n % 5]}
    return tuple(write(folder / f"{name}.json", json.dumps(content)) for name, content in contents.items())


def test_hits_are_mcnemars_exact_test(tmp_path: Path):
    a, b = hits(0, 0.7), hits(1, 0.8)
    found = mt.verdict(csv_of(tmp_path / "a.csv", {"correct": a * 1}), csv_of(tmp_path / "b.csv", {"correct": b * 1}))
    (row,) = found.rows
    only = int((b & ~a).sum()), int((a & ~b).sum())
    assert row.change.p == row.p == pytest.approx(stats.binomtest(only[0], sum(only)).pvalue)
    assert (row.first, row.second) == pytest.approx((100 * a.mean(), 100 * b.mean()))
    assert row.change.discordant == sum(only)
    assert (found.against, row.name, row.measure, found.what) == ("a", "b", "correct", "300 items")


def test_values_agree_with_the_paired_t_test(tmp_path: Path):
    random = np.random.default_rng(0)
    a = random.normal(50, 10, 2000)
    b = a + random.normal(0.3, 4, 2000)
    (row,) = mt.verdict(a, b).rows
    expected = stats.ttest_rel(b, a)
    assert row.change.value == pytest.approx((b - a).mean())
    assert row.change.p == pytest.approx(expected.pvalue, rel=0.6)
    interval = expected.confidence_interval()
    assert (row.change.low, row.change.high) == pytest.approx((interval.low, interval.high), abs=0.03)


def test_fractions_are_shown_in_percent_and_other_values_as_they_are():
    random = np.random.default_rng(0)
    iou, error = random.random((2, 50)), random.random((2, 50)) * 30
    found = mt.verdict({"iou": iou[0], "pixels": error[0]}, {"iou": iou[1], "pixels": error[1]})
    rows = {row.measure: row for row in found.rows}
    assert rows["iou"].first == pytest.approx(100 * iou[0].mean())
    assert rows["pixels"].second == pytest.approx(error[1].mean())


def test_the_table_has_pycocotools_ap(tmp_path: Path):
    truth, *files = detections(tmp_path)
    found = mt.verdict(*files, ground_truth=truth)
    rows = {row.measure: row for row in found.rows}
    for file, side in zip(files, ("first", "second"), strict=True):
        with contextlib.redirect_stdout(io.StringIO()):
            index = COCO(str(truth))
            reference = COCOeval(index, index.loadRes(str(file)), "bbox")
            reference.evaluate()
            reference.accumulate()
            reference.summarize()
        for metric, place in (("AP", 0), ("AP50", 1), ("APs", 3), ("AR100", 8)):
            assert getattr(rows[metric], side) == pytest.approx(100 * reference.stats[place])
    assert found.what == "40 coco images of gt.json"


def few_small_objects(folder: Path, holding: int, images: int = 40) -> tuple[Path, Path, Path]:
    """A ground truth with small objects in ``holding`` images; all found by the first file, none by the second."""
    large, small = [10, 10, 200, 200], [250, 250, 20, 20]
    boxes = [(image, large) for image in range(1, images + 1)] + [(image, small) for image in range(1, holding + 1)]
    truth = {
        "images": [{"id": n, "width": 400, "height": 400} for n in range(1, images + 1)],
        "annotations": [{"id": n, "image_id": image, "category_id": 1, "bbox": box, "area": box[2] * box[3],
                         "iscrowd": 0} for n, (image, box) in enumerate(boxes, 1)],
        "categories": [{"id": 1, "name": "thing"}],
    }  # fmt: skip
    found = [{"image_id": image, "category_id": 1, "bbox": [box[0] + image % 7, *box[1:]], "score": image / images}
             for image, box in boxes]  # fmt: skip
    contents = {"gt": truth, "a": found, "b": found[:images]}
    return tuple(write(folder / f"{name}.json", json.dumps(content)) for name, content in contents.items())


def test_a_measure_that_few_images_are_about_has_no_verdict_and_passes_no_gate(tmp_path: Path):
    truth, *files = few_small_objects(tmp_path, holding=2)
    found = mt.verdict(*files, ground_truth=truth, resamples=200)
    rows = {row.measure: row for row in found.rows}
    assert (rows["APs"].first > 10, rows["APs"].second, rows["APs"].p, rows["APs"].word) == (True, 0.0, None, ONE_TRIAL)
    assert rows["APl"].p is not None
    few = "APs: too few test images hold such an object to show how it spreads; only trials count there"
    assert few in found.notices
    with pytest.raises(InputError, match=f"expected an interval of APs for b, found {ONE_TRIAL}; .*; {few}"):
        mt.verdict(*files, ground_truth=truth, resamples=200, require="APs > -100")
    truth, *files = few_small_objects(tmp_path, holding=20)
    assert mt.verdict(*files, ground_truth=truth, resamples=200, measure="APs").rows[0].word == "worse"


def test_the_kind_is_found_from_the_ground_truth(tmp_path: Path):
    truth, found = coco_set(5, images=30)
    files = [write(tmp_path / f"{n}.json", json.dumps(found[n:])) for n in range(2)]
    lvis_truth = write(tmp_path / "lvis.json", json.dumps(federated(truth, 5)))
    voc_truth = write(tmp_path / "voc.json", json.dumps({**truth, "annotations": [{**each, "difficult": 0}
                                                         for each in truth["annotations"]]}))  # fmt: skip
    assert [kind_of(each) for each in (lvis_truth, voc_truth, tmp_path)] == ["lvis", "voc", "semantic"]
    for path, module in ((lvis_truth, lvis), (voc_truth, voc)):
        (row,) = [row for row in mt.verdict(*files, ground_truth=path).rows if row.measure == "AP"]
        assert row.first == module.evaluate(path, files[0]).metrics["AP"]
    assert "AR1" in {row.measure for row in mt.verdict(*files, ground_truth=lvis_truth, kind="coco").rows}


def label_folders(folder: Path, n: int = 12) -> list[Path]:
    """Ground truth of labels 0 … 2 and two predictions, of which the second has a label 4."""
    random = np.random.default_rng(0)
    for number in range(n):
        truth = random.integers(0, 3, (9, 8), dtype=np.uint8)
        other = [random.integers(0, most, truth.shape, dtype=np.uint8) for most in (3, 5)]
        noisy = [np.where(random.random(truth.shape) < 0.7, truth, wrong) for wrong in other]
        for name, labels in zip(("gt", "a", "b"), (truth, *noisy), strict=True):
            (folder / name / "city").mkdir(parents=True, exist_ok=True)
            Image.fromarray(labels).save(folder / name / "city" / f"{number}.png")
    return [folder / name for name in ("gt", "a", "b")]


def test_label_images_are_compared_though_one_side_has_more_classes(tmp_path: Path):
    truth, *files = label_folders(tmp_path)
    groups = write(tmp_path / "g.csv", "\n".join(["image,film", *(f"city/{n},{n // 3}" for n in range(12))]))
    rows = {row.measure: row for row in mt.verdict(*files, ground_truth=truth, groups=groups).rows}
    expected = [mt.score_semantic(truth, file).metrics for file in files]
    for name in ("mIoU", "mIoU_union", "pACC"):
        assert (rows[name].first, rows[name].second) == pytest.approx(tuple(each[name] for each in expected))
    assert rows["mIoU"].change.clusters == 4


def test_every_file_is_compared_with_the_first_and_corrected_over_all():
    a, b, c = hits(0, 0.6), hits(1, 0.7), hits(2, 0.72)
    found = mt.verdict(a, b, c)
    assert [(row.name, row.first) for row in found.rows] == [("B", 100 * a.mean()), ("C", 100 * a.mean())]
    alone = [mt.verdict(a, each).rows[0] for each in (b, c)]
    assert all(row.p >= each.p for row, each in zip(found.rows, alone, strict=True))
    assert len(found.sentences) == 3
    assert [row.label for row in found.table().rows] == ["B: value", "C: value"]


def test_groups_are_resampled_whole(tmp_path: Path):
    """Items of a group agree, so that 40 groups of ten tell as much as 40 items."""
    random = np.random.default_rng(0)
    sides = [np.repeat(random.random(40), 10) for _ in range(2)]
    groups = np.repeat(np.arange(40), 10)
    alone, grouped, small = (
        mt.verdict(*sides).rows[0].change,
        mt.verdict(*sides, groups=groups).rows[0].change,
        mt.verdict(*(side[::10] for side in sides)).rows[0].change,
    )
    assert grouped.value == pytest.approx(alone.value)
    assert grouped.se / alone.se == pytest.approx(math.sqrt(10), rel=0.1)
    assert grouped.se == pytest.approx(small.se, rel=1e-6)
    assert grouped.df == 39
    table = write(tmp_path / "g.csv", "".join(f"{n},film {group:02d}\n" for n, group in enumerate(groups)))
    files = [csv_of(tmp_path / f"{n}.csv", {"value": side}, ids=[str(n) for n in range(400)])
             for n, side in enumerate(sides)]  # fmt: skip
    assert mt.verdict(*files, groups=table).rows[0].change == grouped
    few = mt.verdict(*sides, groups=groups // 10)
    assert few.notices == ("4 groups of test images are few; intervals are wide, and rough",)
    assert few.what == "400 items in 4 groups"


def test_wrong_groups_and_too_few_images_are_refused_before_anything_is_scored(tmp_path: Path):
    """The second result file is none, which scoring would find."""
    truth, good, bad = detections(tmp_path)
    bad.write_text("no JSON")
    groups = write(tmp_path / "groups.csv", "0,a\n")
    with pytest.raises(InputError, match=r"expected every image in .*groups\.csv"):
        mt.verdict(good, bad, ground_truth=truth, groups=groups)
    content = json.loads(truth.read_text())
    kept = {image["id"] for image in content["images"][:9]}
    content["images"] = content["images"][:9]
    content["annotations"] = [each for each in content["annotations"] if each["image_id"] in kept]
    truth.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"at least 10 coco images of gt\.json, found 9"):
        mt.verdict(good, bad, ground_truth=truth)


def test_groups_may_name_images_by_id_or_by_file(tmp_path: Path):
    truth, *files = detections(tmp_path)
    content = json.loads(truth.read_text())
    for image in content["images"]:
        image["file_name"] = f"film{image['id'] % 4}/frame_{image['id']}.jpg"
    truth.write_text(json.dumps(content))
    found = []
    for name in (lambda image: image["id"], lambda image: image["file_name"], lambda image: f"frame_{image['id']}"):
        rows = [f"{name(image)},{image['id'] % 4}" for image in content["images"]]
        groups = write(tmp_path / "groups.csv", "\n".join(["image,film", *rows]))
        found.append(mt.verdict(*files, ground_truth=truth, groups=groups).rows[0].change)
    assert found[0] == found[1] == found[2]
    assert found[0].clusters == 4


WRITTEN = {
    "plain": "image_id,acc\n{0},{1}\n",
    "pandas' own index": ",image_id,acc\n{n},{0},{1}\n",
    "read again by pandas": "Unnamed: 0,image_id,acc\n{n},{0},{1}\n",
    "images as pandas' index": ",acc\n{0},{1}\n",
    "quoted, CRLF, a byte order mark": '\ufeff"image id","acc"\r\n"{0}","{1}"\r\n',
    "floats": "image_id,acc\n{0},{1}.0\n",
    "numbers with an exponent": "image_id,acc\n{0},{1}.000000000000000000e+00\n",
    "booleans": "image_id,acc\n{0},{bool}\n",
    "torchmetrics' tensors": "image_id,acc\n{0},tensor({1}.)\n",
    "tensors on a GPU": "image_id,acc\n{0},\"tensor({1}., device='cuda:0')\"\n",
    "semicolons": "file_name;acc\n{0};{1}\n",
    "labels beside": "label,image_id,acc\ncat,{0},{1}\n",
    "labels as numbers": "image_id,y_true,y_pred,acc\n{0},{n},3,{1}\n",
    "blanks and an empty line": "image_id, acc\n{0}, {1}\n\n",
}


@pytest.mark.parametrize("form", WRITTEN)
def test_tables_that_other_tools_write_are_read_as_they_are(tmp_path: Path, form: str):
    a, b = hits(0, 0.7, 40), hits(1, 0.8, 40)
    header, _, row = WRITTEN[form].partition("\n")
    files = []
    for name, side in (("a", a), ("b", b)):
        order = range(40) if name == "a" else reversed(range(40))
        rows = [row.format(f"{n}.png", int(side[n]), n=n, bool=bool(side[n])) for n in order]
        files.append(write(tmp_path / f"{name}.csv", header + "\n" + "".join(rows)))
    (found,) = mt.verdict(*files).rows
    assert found.measure == "acc"
    assert found.change == mt.verdict(a, b).rows[0].change
    assert found.change.discordant == int((a ^ b).sum())


def test_pandas_frames_are_taken_with_ids_in_a_column_or_as_the_index():
    pandas = pytest.importorskip("pandas")
    a, b = hits(0, 0.7, 40), hits(1, 0.8, 40)
    ids = [f"{n}.png" for n in range(40)]
    first = pandas.DataFrame({"image_id": ids, "acc": a, "iou": np.linspace(0, 1, 40)})
    second = pandas.DataFrame({"acc": b, "iou": np.linspace(0, 0.9, 40)}, index=ids).sample(frac=1, random_state=0)
    found = mt.verdict(first, second)
    assert found.rows[0].change.p == mt.verdict(a, b).rows[0].change.p
    assert [row.measure for row in found.rows] == ["acc", "iou"]
    assert mt.verdict(first, second, groups=pandas.Series(np.arange(40) // 8, index=ids)).rows[0].change.clusters == 5


def results_file(folder: Path, name: str, values: dict, test_set: str = "set") -> Path:
    """A results file of one checkpoint with its outcomes per image."""
    rows = []
    for task, outcomes in values.items():
        kept = records_file.write_items(folder / name, f"{name}-{task}", PerItem(test_set, {"top1": outcomes}))
        rows.append(record(name, task, "top1", 100 * outcomes.mean(), items=kept))
    records_file.append(folder / name / "results.jsonl", rows)
    return folder / name / "results.jsonl"


def test_results_files_are_compared_in_the_measures_that_both_have(tmp_path: Path):
    a, b = hits(0, 0.7), hits(1, 0.8)
    files = (results_file(tmp_path, "a", {"knn": a, "svm/k=4": a}), results_file(tmp_path, "b", {"knn": b}))
    found = mt.verdict(*files)
    (row,) = found.rows
    assert (row.measure, found.against, row.name) == ("knn top1", "a/results", "b/results")
    assert row.change.p == mt.verdict(a, b).rows[0].change.p
    other = results_file(tmp_path, "c", {"knn": b}, test_set="other")
    with pytest.raises(InputError, match="expected the same test items in the same order"):
        mt.verdict(files[0], other)
    with pytest.raises(InputError, match="groups with outcomes or predictions"):
        mt.verdict(*files, groups=np.arange(300))
    with pytest.raises(InputError, match="a measure that every results file has"):
        mt.verdict(files[1], results_file(tmp_path, "d", {"svm/k=1": b}))
    records_file.append(files[1], [record("e", "knn", "top1", 50.0)])
    with pytest.raises(InputError, match=r"records of one checkpoint in .*b/results.jsonl, found b, e"):
        mt.verdict(*files)


def planted(difference: float, spread: float, n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Values whose paired differences have exactly this mean and standard deviation."""
    noise = np.random.default_rng(1).normal(size=n)
    noise = (noise - noise.mean()) / noise.std(ddof=1)
    first = np.random.default_rng(2).normal(50, 5, n)
    return first, first + difference + spread * noise


#: True difference, spread (the standard error is a twentieth of it), requirement, met. The interval's lower end is near
#: difference − .098 · spread.
GATES = [
    (1.0, 4.0, "m > 0", True), (1.0, 4.0, "m >= 0", True), (1.0, 4.0, "m >= 0.5", True), (1.0, 4.0, "m >= 0.7", False),
    (1.0, 16.0, "m > 0", False), (1.0, 16.0, "m >= -0.5", False), (1.0, 16.0, "m >= -1", True),
    (-0.2, 2.0, "m >= -0.5", True), (-0.2, 2.0, "m >= -0.3", False), (-0.2, 2.0, "m > 0", False),
    (-0.2, 8.0, "m >= -0.5", False), (-0.2, 8.0, "m >= -1.2", True), (-3.0, 1.0, "m >= -2", False),
    (-3.0, 1.0, "m >= -4", True), (0.0, 0.0, "m >= 0", True), (0.0, 0.0, "m > 0", False), (0.0, 0.0, "m >= -0.5", True),
    (0.0, 5.0, "m >= -0.6", True), (0.0, 5.0, "m >= -0.4", False), (5.0, 20.0, "m > +2.5", True),
]  # fmt: skip


@pytest.mark.parametrize(("difference", "spread", "rule", "met"), GATES)
def test_planted_gates_are_decided_rightly(difference: float, spread: float, rule: str, met: bool):
    first, second = planted(difference, spread)
    found = mt.verdict({"m": first}, {"m": second}, require=[rule])
    assert found.met is met
    (gate,) = found.gate
    assert gate.line.startswith("gate met" if met else "gate NOT MET")
    assert f"{difference:+.2f}"[1:] in gate.line


def test_all_requirements_of_all_files_must_be_met():
    first, second = planted(1.0, 4.0)
    worse = planted(-1.0, 4.0)[1]
    assert mt.verdict({"m": first}, {"m": second}, require=["m > 0", "m >= -1"]).met
    found = mt.verdict({"m": first}, {"m": second}, {"m": worse}, require=["m > 0", "m >= -3"])
    assert [each.met for each in found.gate] == [True, False, True, True]
    assert not found.met


def test_within_a_margin_it_says_equal():
    words = {spread: mt.verdict(*planted(0.1, spread), margin=0.5).rows[0].word for spread in (1.0, 20.0)}
    assert words == {1.0: "equal within 0.5", 20.0: "not significant"}


def test_the_plan_is_the_power_of_the_t_test():
    assert mt.verdict.plan(detect=0.3, sigma=0.2) == trials_needed(0.3, 0.2, paired=True)
    assert mt.verdict.plan(detect=0.3, sigma=0.2, paired=False) > mt.verdict.plan(detect=0.3, sigma=0.2)


def test_numbers_are_in_the_json_and_names_are_escaped_in_the_page():
    found = mt.verdict({"<b>": hits(0, 0.5)}, {"<b>": hits(1, 0.6)}, require=["<b> > 50"])
    content = json.loads(found.as_json())
    assert content["rows"][0]["change"]["low"] == found.rows[0].change.low
    assert (content["met"], content["against"]) == (False, "A")
    page = found.as_html()
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert found.sentences[0].split(":")[0].replace("<b>", "&lt;b&gt;") in page


def test_the_same_seed_gives_the_same_and_another_seed_another_interval():
    sides = planted(0.5, 4.0)
    one, again, other = (mt.verdict(*sides, seed=seed).rows[0].change.low for seed in (0, 0, 1))
    assert one == again != other


VALUES = {"acc": [0, 1] * 10}


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("image id,acc\n", "a header and a line for each item in .*b.csv, found 1 line"),
        ("", "a header and a line for each item in .*b.csv, found 0 lines"),
        ("image id,acc\n" + "".join(f"image {n},1\n" for n in range(19)), "'image 19' in .*a.csv alone"),
        ("image id,acc\n" + "".join(f"image {n},1\n" for n in range(21)), "'image 20' in .*b.csv alone"),
        ("image id,acc\n" + "".join(f"image {n},{'' if n == 3 else 1}\n" for n in range(20)), "found '' in line 5"),
        ("image id,acc\n" + "".join(f"image {n},{'nan' if n == 3 else 1}\n" for n in range(20)), "'nan' in line 5"),
        ("image id,acc\n" + "".join(f"image {n},{'cat' if n == 3 else 1}\n" for n in range(20)), "'cat' in line 5"),
        ("image id,acc\n" + "".join(f"image {min(n, 18)},1\n" for n in range(20)), "in the lines 20 and 21"),
        ("image id,acc\n" + "".join(f"image {n}\n" for n in range(20)), "found 1 in line 2"),
        ("image id,acc\n" + "".join(f"image {n},cat\n" for n in range(20)), "a column of numbers"),
        ("image id,iou\n" + "".join(f"image {n},1\n" for n in range(20)), "found acc in .*a.csv; iou in .*b.csv"),
        ("image id,acc\n" + "".join(f"image {n},{'1_0' if n == 3 else 1}\n" for n in range(20)), "'1_0' in line 5"),
        ("image id;acc\n" + "".join(f"image {n};0,{n}\n" for n in range(20)), "'0,0' in line 2 .*write decimal points"),
        ("image id,acc,acc\n" + "".join(f"image {n},1,1\n" for n in range(20)), "'acc' more often"),
    ],
)
def test_a_wrong_table_is_refused_by_its_line(tmp_path: Path, second: str, message: str):
    with pytest.raises(InputError, match=message):
        mt.verdict(csv_of(tmp_path / "a.csv", VALUES), write(tmp_path / "b.csv", second))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"given": [hits(0, 0.5)]}, "two or more different"),
        ({"given": [hits(0, 0.5, 9), hits(1, 0.5, 9)]}, "at least 10 items, found 9"),
        ({"given": [hits(0, 0.5), hits(1, 0.5, 200)]}, "'200' in A alone"),
        ({"given": [hits(0, 0.5), np.full(300, np.nan)]}, "expected a number in value of B, found 'nan'"),
        ({"given": [np.zeros((3, 3)), np.zeros((3, 3))]}, r"arrays \[items\] of one length in A"),
        ({"require": ["AP >= 0"]}, "a measure of value, found AP"),
        ({"require": ["value <= 0"]}, "a requirement such as"),
        ({"require": ["value >= much"]}, "a requirement such as"),
        ({"groups": np.arange(300) % 2}, "3 groups or more, found 2"),
        ({"groups": np.arange(200)}, "the group of each of 300 test items, found 200"),
        ({"iou_type": "bbox"}, "iou_type with predictions and their ground truth"),
        ({"kind": "coco"}, "kind with predictions and their ground truth"),
        ({"margin": -1.0}, "a margin above 0"),
        ({"resamples": 2}, "100 resamples or more and a seed from 0, found 2 and 0"),
        ({"seed": -1}, "100 resamples or more and a seed from 0, found 1000 and -1"),
        ({"groups": [None] * 25 + list(range(275))}, "a group of every item, found none of some"),
        ({"groups": {"image 1": 0}}, "every image in groups, found 300 of 300 absent, first '0'"),
        ({"groups": {n: None if n == 7 else n // 8 for n in range(300)}}, "a group of every item, found none of some"),
        ({"measure": "acc"}, "expected a column acc in A, found item, value"),
        ({"methods": {"m": ["a", "b"]}}, "expected methods with results files, found"),
        ({"given": [1e150 * hits(0, 0.5), hits(1, 0.5)]}, "expected a number in value of A, found '1e"),
        ({"given": [np.linspace(0, 1, 300), np.linspace(0, 100, 300)]}, "value in one unit, found fractions in A and"),
        ({"given": [hits(0, 0.5), 100 * hits(1, 0.5)]}, "value in one unit, found fractions in A and values beyond 1"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(arguments: dict, message: str):
    given = arguments.pop("given", [hits(0, 0.5), hits(1, 0.5)])
    with pytest.raises(InputError, match=message) as refused:
        mt.verdict(*given, **arguments)
    assert "\n" not in str(refused.value)


def test_wrong_predictions_are_refused(tmp_path: Path):
    truth, *files = detections(tmp_path)
    content, found = json.loads(truth.read_text()), json.loads(files[0].read_text())
    images = sorted({each["image_id"] for each in found})
    halves = [write(tmp_path / f"half{n}.json", json.dumps([each for each in found if each["image_id"] in half]))
              for n, half in enumerate((images[:15], images[15:]))]  # fmt: skip
    with pytest.raises(InputError, match=r"the same images, found .*half0.json and .*half1.json to share none"):
        mt.verdict(*halves, ground_truth=truth)
    with pytest.raises(InputError, match="different files"):
        mt.verdict(files[0], files[0], ground_truth=truth)
    (tmp_path / "link.json").symlink_to(files[0])
    with pytest.raises(InputError, match="different files"):
        mt.verdict(files[0], tmp_path / "link.json", ground_truth=truth)
    with pytest.raises(InputError, match=r"a kind and its settings of coco .*, found coco interpolation"):
        mt.verdict(*files, ground_truth=truth, interpolation="area")
    with pytest.raises(InputError, match="found plates"):
        mt.verdict(*files, ground_truth=truth, kind="plates")
    foreign = write(tmp_path / "foreign.json", json.dumps([{**found[0], "image_id": 10**6}]))
    with pytest.raises(InputError, match=r"foreign\.json"):
        mt.verdict(files[0], foreign, ground_truth=truth)
    with pytest.raises(InputError, match=r"every image in .*g\.csv, found 39 of "):
        mt.verdict(*files, ground_truth=truth, groups=write(tmp_path / "g.csv", f"image,film\n{images[0]},1\n"))
    few = {**content, "images": content["images"][:9], "annotations": []}
    small = [write(tmp_path / f"small{n}.json", json.dumps([{**found[0], "image_id": few["images"][0]["id"]}] * n))
             for n in (1, 2)]  # fmt: skip
    with pytest.raises(InputError, match=r"at least 10 coco images of few\.json, found 9"):
        mt.verdict(*small, ground_truth=write(tmp_path / "few.json", json.dumps(few)))


def test_files_of_one_content_are_no_mistake_and_differ_by_nothing(tmp_path: Path):
    truth, first, _ = detections(tmp_path)
    copy = write(tmp_path / "copy.json", first.read_text())
    found = mt.verdict(first, copy, ground_truth=truth, require=["AP >= -0.5"])
    assert (found.rows[0].change.low, found.rows[0].change.high, found.met) == (0.0, 0.0, True)


def test_an_index_without_a_name_gives_way_to_the_column_that_names_the_items(tmp_path: Path):
    order = np.random.default_rng(0).permutation(40)
    values = np.linspace(0.1, 0.9, 40) + np.random.default_rng(1).normal(0, 0.01, 40)
    a = "\n".join([",frame,iou", *(f"{i},f{i},{i / 80}" for i in range(40))])
    b = "\n".join([",frame,iou", *(f"{row},f{i},{values[i] / 2}" for row, i in enumerate(order))])
    (row,) = mt.verdict(write(tmp_path / "a.csv", a), write(tmp_path / "b.csv", b)).rows
    expected = 100 * (values / 2 - np.arange(40) / 80)
    assert row.change.value == pytest.approx(expected.mean())
    assert row.change.se == pytest.approx(expected.std(ddof=1) / math.sqrt(40), rel=0.1)
    two = "\n".join([",frame,other,iou", *(f"{i},f{i},g{i},{i / 80}" for i in range(40))])
    with pytest.raises(InputError, match=r"one column of item names in .*two\.csv, found frame, other"):
        mt.verdict(write(tmp_path / "two.csv", two), tmp_path / "b.csv")


@pytest.mark.parametrize("name", ["loss", "seconds", "lr"])
def test_a_measure_may_be_called_as_a_descriptive_one_of_this_suite(name: str):
    a = np.random.default_rng(0).normal(size=50)
    (row,) = mt.verdict({name: a}, {name: a + 0.5}).rows
    assert row.word == "better"


def test_a_word_in_a_name_makes_no_other_kind(tmp_path: Path):
    truth, _ = coco_set(3)
    truth["categories"][0]["name"] = "difficult"
    truth["annotations"][0]["attributes"] = {"difficult": False}
    assert kind_of(write(tmp_path / "gt.json", json.dumps(truth))) == "coco"
    truth["annotations"][0]["difficult"] = 0
    assert kind_of(write(tmp_path / "gt.json", json.dumps(truth))) == "voc"


def test_a_requirement_is_read_as_people_write_it():
    a = np.random.default_rng(0).normal(size=50)
    for rule in ("value >= -0.5", "value \u2265 \u22120.5", "value>=-.5 %"):
        assert mt.verdict(a, a + 1.0, require=rule).met


def test_a_measure_of_one_file_alone_is_named(tmp_path: Path):
    a, b = hits(0, 0.7), hits(1, 0.8)
    files = csv_of(tmp_path / "a.csv", {"top1": a * 1, "top5": a * 1}), csv_of(tmp_path / "b.csv", {"top1": b * 1})
    (notice,) = mt.verdict(*files).notices
    assert notice.startswith("not in every file, and left out: 'top5' of ")


def test_chosen_columns_alone_are_measures_and_the_family(tmp_path: Path):
    a, b = hits(0, 0.7, 40) * 1, hits(1, 0.8, 40) * 1
    files = [csv_of(tmp_path / f"{name}.csv", {"acc": side, "class_id": [*range(1, 40), ""], "loss": side / 3})
             for name, side in (("a", a), ("b", b))]  # fmt: skip
    with pytest.raises(InputError, match="a number in class_id"):
        mt.verdict(*files)
    (row,) = mt.verdict(*files, measure="acc").rows
    assert (row.measure, row.p) == ("acc", mt.verdict(a, b).rows[0].change.p)
    assert [row.measure for row in mt.verdict(*files, measure=["acc", "loss"]).rows] == ["acc", "loss"]
    for asked, message in (({"measure": ["acc", "iou"]}, "a column iou in .*a.csv, found image id, acc"),
                           ({"measure": "acc", "require": "loss > 0"}, "a measure of acc, found loss")):  # fmt: skip
        with pytest.raises(InputError, match=message):
            mt.verdict(*files, **asked)
    truth, *predictions = detections(tmp_path)
    assert [row.measure for row in mt.verdict(*predictions, ground_truth=truth, measure="AP50").rows] == ["AP50"]


def test_groups_of_a_mapping_or_a_series_are_by_item_and_of_an_array_by_place(tmp_path: Path):
    a, b = hits(0, 0.7, 40) * 1, hits(1, 0.8, 40) * 1
    ids = [str(n) for n in np.random.default_rng(0).permutation(40)]
    files = [csv_of(tmp_path / f"{name}.csv", {"acc": side}, ids) for name, side in (("a", a), ("b", b))]
    expected = mt.verdict(a, b, groups=[int(name) // 8 for name in ids]).rows[0].change

    for groups in ({n: n // 8 for n in range(40)}, {float(n): f"film {n // 8}" for n in range(40)}):
        assert mt.verdict(*files, groups=groups).rows[0].change == expected


def test_numbers_of_the_design_and_of_the_gate_are_in_the_json():
    first, second = planted(1.0, 4.0)
    found = mt.verdict({"m": first}, {"m": second}, require=["m > 0", "m >= 0.7"], resamples=200, seed=3)
    content = json.loads(found.as_json())
    assert (content["resamples"], content["seed"], content["rows"][0]["change"]["df"]) == (200, 3, 399)
    low = content["rows"][0]["change"]["low"]
    numbers = [(gate["measure"], gate["sign"], gate["bound"], gate["low"], gate["met"]) for gate in content["gate"]]
    assert numbers == [("m", ">", 0, low, True), ("m", ">=", 0.7, low, False)]


def test_a_difference_that_is_the_same_on_every_item_is_said_to_be_no_evidence():
    a = np.random.default_rng(0).normal(size=50)
    found = mt.verdict({"m": a, "n": a}, {"m": a + 0.5, "n": a + np.random.default_rng(1).normal(size=50)})
    assert found.notices == (
        "m, B against A: the same difference on every item; p = 0 says only that these do not spread",
    )


def pretrainings(folder: Path, name: str, values: dict[str, float], tasks=("knn",)) -> Path:
    rows = [record(each, task, "top1", value) for each, value in values.items() for task in tasks]
    records_file.append(folder / name / "results.jsonl", rows)
    return folder / name / "results.jsonl"


def test_several_pretrainings_a_side_are_a_method_by_welch_and_one_is_a_checkpoint(tmp_path: Path):
    sides = {"a0": 61.0, "a1": 60.0, "a2": 62.5}, {"b0": 65.0, "b1": 64.2, "b2": 66.1}
    files = [pretrainings(tmp_path, name, side) for name, side in zip("ab", sides, strict=True)]
    methods = {name: list(side) for name, side in zip(("one", "two"), sides, strict=True)}
    found = mt.verdict(*files, methods=methods)
    (row,) = found.rows
    expected = stats.ttest_ind(list(sides[1].values()), list(sides[0].values()), equal_var=False)
    assert row.change.p == pytest.approx(expected.pvalue)
    assert "about methods, 3 pretrainings" in found.sentences[0]
    with pytest.raises(InputError, match=r"one checkpoint in .*, found b0, b1, b2"):
        mt.verdict(*files, methods={"one": methods["one"]})
    with pytest.raises(InputError, match="records of the methods, found none of three"):
        mt.verdict(*files, methods={**methods, "three": ["c0", "c1"]})
    one = mt.verdict(
        results_file(tmp_path, "c", {"knn": hits(0, 0.7)}), results_file(tmp_path, "d", {"knn": hits(1, 0.8)})
    )
    assert "method" not in one.sentences[0]


def test_a_sentence_is_on_a_measure_that_has_a_verdict(tmp_path: Path):
    a, b = hits(0, 0.7), hits(1, 0.8)
    files = results_file(tmp_path, "a", {"svm/k=4": a}), results_file(tmp_path, "b", {"svm/k=4": b})
    for name, file in zip("ab", files, strict=True):
        records_file.append(file, [record(name, "coco/bbox", "AP", 50.0)])
    found = mt.verdict(*files)
    assert [(row.measure.split()[0], row.p is None) for row in found.rows] == [("coco/bbox", True), ("svm/k=4", False)]
    assert "in svm/k=4 top1: +" in found.sentences[0]
    assert "one trial: no verdict on 1" in found.sentences[0]


def test_trials_of_which_some_kept_outcomes_are_compared_by_trials(tmp_path: Path):
    files = []
    for name, chance in (("a", 0.7), ("b", 0.8)):
        rows = []
        for trial in range(3):
            found = hits(trial, chance)
            kept = records_file.write_items(tmp_path / name, f"{name}{trial}", PerItem("set", {"top1": found}))
            more = {"items": kept} if trial else {}
            rows.append(record(name, "knn", "top1", 100 * found.mean(), trial=trial, **more))
        files.append(tmp_path / name / "results.jsonl")
        records_file.append(files[-1], rows)
    (row,) = mt.verdict(*files).rows
    assert (row.change.n, row.change.items) == ((3, 3), 0)
