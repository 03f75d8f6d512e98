"""Records to numbers: means, spreads, differences, ranks, duplicates; against statistics worked out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.records import make_record
from momentum_transfer.report.aggregate import Cell, Measure, aggregate
from momentum_transfer.report.page import build, render_html
from momentum_transfer.report.summary import mean_ranks


def record(name: str, value: float, *, task: str = "svm/k=4", metric: str = "top1", trial: int = 0, **more) -> dict:
    details = {"protocol": "imagenet/heldout", "dataset": "digits", "engine": "scikit-learn", **more}
    checkpoint = {"name": name, "sha256": details.pop("sha256", name * 4)}
    return make_record(task, metric, value, checkpoint=checkpoint, trial=trial, **details)


SVM4 = Measure("svm/k=4", "top1", "digits", "imagenet/heldout", "scikit-learn")


def test_mean_and_sample_std_over_trials():
    results = aggregate([record("a", value, trial=trial) for trial, value in enumerate([60.0, 70.0, 80.0])])
    cell = results.cells[SVM4]["a"]
    assert (cell.mean, cell.std, cell.trials) == (70.0, 10.0, 3)


def test_a_single_trial_has_no_std():
    assert aggregate([record("a", 60.0)]).cells[SVM4]["a"].std is None


@given(st.lists(st.floats(0, 100), min_size=2, max_size=9))
def test_std_is_numpys_with_one_degree_of_freedom_taken(values: list[float]):
    cell = Cell(dict(enumerate(values)))
    assert cell.mean == pytest.approx(np.mean(values))
    assert cell.std == pytest.approx(np.std(values, ddof=1), abs=1e-9)


@given(st.permutations(range(6)))
def test_the_order_of_the_records_does_not_matter(order: list[int]):
    records = [record(name, 10.0 * i, trial=i) for name in ("a", "random") for i in range(3)]
    straight, mixed = aggregate(records), aggregate([records[i] for i in order])
    assert straight.checkpoints == mixed.checkpoints
    assert straight.cells == mixed.cells


def test_other_protocols_data_and_engines_are_never_averaged_together():
    records = [
        record("a", 10.0),
        record("a", 20.0, protocol="imagenet/test"),
        record("a", 30.0, dataset="stl10"),
        record("a", 40.0, engine="torch"),
    ]
    results = aggregate(records)
    assert len(results.cells) == 4
    assert all(cell.trials == 1 for cells in results.cells.values() for cell in cells.values())


def test_equal_duplicates_count_once_and_are_notices():
    results = aggregate([record("a", 60.0), record("a", 60.0), record("a", 70.0, trial=1)])
    assert results.cells[SVM4]["a"].mean == 65.0
    assert results.notices == ["svm/k=4 of a: 1 record repeated with the same value; each counts once"]


def test_of_differing_duplicates_the_newest_counts_and_both_are_notices():
    old, new = record("a", 60.0), record("a", 50.0)
    old["time"], new["time"] = "2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00"
    for order in ([old, new], [new, old]):
        results = aggregate(order)
        assert results.cells[SVM4]["a"].mean == 50.0
        assert any("newest counts" in n and "60" in n and "50" in n for n in results.notices)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_are_no_numbers_are_told_and_not_averaged(value: float):
    broken = record("a", 1.0, trial=1)
    broken["value"] = value
    results = aggregate([record("a", 60.0), broken])
    assert results.cells[SVM4]["a"].values == {0: 60.0}
    assert results.notices == [
        "svm/k=4, imagenet/heldout: undefined on digits, so without a value: top1 of a (trial 1)"
    ]


def test_what_is_undefined_for_all_is_told_in_one_line_a_task():
    records = [
        record(name, math.nan, task="coco/bbox", metric=metric, protocol="fcos_1x", dataset="coco")
        for metric in ("APl", "ARl")
        for name in ("a", "b")
    ]
    assert aggregate(records).notices == [
        "coco/bbox, fcos_1x: undefined on coco, so without a value: APl, ARl of a (trial 0), b (trial 0)"
    ]


def test_records_of_several_versions_of_a_package_are_notices():
    records = [record("a", 1.0), record("b", 2.0), record("c", 3.0)]
    for one, version in zip(records, ("2.11.0", "2.14.1", "2.14.1"), strict=True):
        one["versions"] = {"torch": version, "python": "3.11"}
    (notice,) = aggregate(records).notices
    assert notice == "the records were made with 2 versions of torch: 2.11.0 (1), 2.14.1 (2)"


def test_training_images_that_test_are_told_once_a_task_and_data_set_and_stand_on_the_page():
    records = [record(name, 50.0, trial=trial, overlap=12) for name in ("a", "b") for trial in (0, 1)]
    records += [record("a", 50.0, task="knn/k=20", overlap=0), record("a", 50.0, task="linear", overlap=True)]
    (notice,) = aggregate(records).notices
    assert notice.startswith("svm on digits: test images that are also training images, by their bytes")
    assert notice in render_html(build(records))


def test_baselines_stand_last_and_are_found_by_name():
    results = aggregate([record(name, 1.0) for name in ("random_digits", "pixels", "supervised_r50", "momentum2")])
    assert results.checkpoints == ["momentum2", "supervised_r50", "random_digits", "pixels"]
    assert results.baseline("random") == "random_digits"
    assert results.baseline("unknown") is None


def test_a_baseline_is_known_by_its_method_whatever_its_name():
    records = [record("rnd", 1.0), record("mine", 2.0), record("random_forest", 3.0)]
    records[0]["checkpoint"]["method"] = "random"
    records[2]["checkpoint"]["method"] = "byol"
    results = aggregate(records)
    assert results.baseline("random") == "rnd"
    assert [results.kinds[name] for name in ("mine", "random_forest")] == ["", ""]
    assert results.checkpoints[-1] == "rnd"


def test_any_checkpoint_may_be_named_as_the_baseline():
    results = aggregate([record("a", 1.0), record("b", 2.0)], "a")
    assert results.baseline("baseline") == "a"
    assert results.checkpoints == ["b", "a"]
    with pytest.raises(InputError, match="expected a checkpoint of a, b as --baseline, found c"):
        aggregate([record("a", 1.0), record("b", 2.0)], "c")


def test_where_only_baselines_are_left_they_are_compared_with_the_named_one():
    results = aggregate([record("mine", 2.0), record("random_start", 1.0)], "mine")
    assert [results.kinds[name] for name in ("mine", "random_start")] == ["baseline", ""]


def test_two_networks_of_one_checkpoint_are_two_columns():
    results = aggregate([record("a", 1.0, network="teacher"), record("a", 2.0, network="student")])
    assert results.checkpoints == ["a (student)", "a (teacher)"]


def test_networks_that_a_training_made_are_rows_of_the_checkpoint_it_began_with():
    began = {"task": "fixmatch/10%", "start_network": "teacher"}
    records = [
        record("a", 60.0, network="teacher"),
        record("a", 70.0, network="student", **began),
        record("a", 72.0, network="teacher", **began),
    ]
    results = aggregate(records)
    assert results.checkpoints == ["a"]
    found = {(measure.task, measure.metric): row["a"].mean for measure, row in results.cells.items()}
    rows = {("svm/k=4", "top1"): 60.0, ("fixmatch/10%", "top1"): 70.0, ("fixmatch/10%", "top1 (teacher)"): 72.0}
    assert found == rows
    assert [measure.metric for measure in results.headlines()] == ["top1", "top1"], "the student is the result"


def test_a_run_and_its_converted_weights_share_a_column():
    names = ("outputs/q/momentum2/checkpoints/step_0000999.pt", "outputs/q/momentum2/backbone.pkl", "momentum2")
    records = [record(name, float(i), task=f"knn/k={i}") for i, name in enumerate(names)]
    assert aggregate(records).checkpoints == ["momentum2"]


def test_a_network_that_some_records_leave_out_is_no_second_column():
    results = aggregate([record("a", 1.0, network="teacher"), record("a", 2.0, task="knn/k=20", network="")])
    assert results.checkpoints == ["a"]


def test_different_files_of_one_name_within_a_task_are_notices():
    results = aggregate([record("a", 1.0, sha256="1" * 64), record("a", 2.0, trial=1, sha256="2" * 64)])
    assert any("2 different files" in notice for notice in results.notices)
    converted = aggregate([record("a", 1.0, sha256="1" * 64), record("a", 2.0, task="coco/bbox", sha256="2" * 64)])
    assert not converted.notices  # the detector reads converted weights: another file, the same backbone


def test_trials_of_different_settings_in_one_mean_are_notices():
    same = aggregate(
        [record("a", 1.0, config="c1"), record("a", 2.0, trial=1, config="c1"), record("b", 2.0, config="c1")]
    )
    assert not same.notices
    mixed = aggregate([record("a", 1.0, config="c1"), record("a", 2.0, trial=1, config="c2")])
    (notice,) = mixed.notices
    assert (
        "svm/k=4 top1 of a, imagenet/heldout: the trials come from 2 different settings (config hash c1 and c2)"
        in notice
    )


def test_a_checkpoint_measured_with_other_settings_than_its_row_is_a_notice():
    records = [record(name, 1.0, config=config) for name, config in (("a", "c2"), ("b", "c1"), ("random", "c1"))]
    results = aggregate(records)
    assert results.unlike == {SVM4: {"a"}}
    (notice,) = results.notices
    assert notice.startswith("svm/k=4, imagenet/heldout: a measured with other settings than the columns beside")
    assert aggregate([record("a", 1.0, config="c2"), record("random", 1.0, config="c1")]).unlike == {SVM4: {"a"}}
    assert not aggregate([record("a", 1.0, config="c1"), record("random", 1.0)]).unlike  # not told is not other


def test_settings_that_differ_are_named_with_both_values():
    settings = {"c1": {"SOLVER": {"MAX_ITER": 34, "STEPS": [1]}}, "c2": {"SOLVER": {"MAX_ITER": 300, "STEPS": [1]}}}
    records = [record(name, 1.0, config=config) | {"settings": settings[config]}
               for name, config in (("a", "c2"), ("b", "c1"), ("random", "c1"))]  # fmt: skip
    (notice,) = aggregate(records).notices
    assert "a measured with other settings than the columns beside (SOLVER.MAX_ITER 300 and 34)" in notice
    strange = {"c1": {1: "a\nb", "k\ney": None}, "c2": {"k\ney": "\x1b[2J"}}
    (notice,) = aggregate([one | {"settings": strange[one["config"]]} for one in records]).notices
    assert notice.isprintable()
    trials = [record("a", 1.0, trial=n, config=config) | {"settings": settings[config]}
              for n, config in enumerate(settings)]  # fmt: skip
    (notice,) = aggregate(trials).notices
    assert "2 different settings (SOLVER.MAX_ITER 34 and 300)" in notice


def test_headline_is_the_main_metric_of_each_task():
    records = [record("a", 1.0, task="coco/bbox", metric=metric) for metric in ("AR100", "AP75", "AP", "AP50")]
    records += [record("a", 1.0, metric=metric) for metric in ("cost", "top5", "top1")]
    headlines = aggregate(records).headlines()
    assert {(m.task, m.metric) for m in headlines} == {("coco/bbox", "AP"), ("svm/k=4", "top1")}


def test_mean_ranks_share_ties_and_skip_measures_of_one():
    records = [record(n, v) for n, v in (("a", 3.0), ("b", 3.0), ("c", 1.0))]
    records += [record(n, v, task="knn/k=20") for n, v in (("a", 1.0), ("b", 2.0))]
    records += [record("c", 9.0, task="retrieval", metric="mAP")]
    assert mean_ranks(aggregate(records)) == {"a": (1.75, 2), "b": (1.25, 2), "c": (3.0, 1)}


def test_of_duplicates_without_a_time_the_later_counts():
    lines = [record("a", 60.0), record("a", 50.0)]
    for line in lines:
        line.pop("time")
    assert aggregate(lines).cells[SVM4]["a"].mean == 50.0
