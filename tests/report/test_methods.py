"""Pretrainings of a method as its trials."""

import pytest
from scipy import stats

from momentum_transfer.core import records as records_file
from momentum_transfer.core.errors import InputError
from momentum_transfer.report.aggregate import aggregate
from momentum_transfer.report.differences import Comparisons
from momentum_transfer.report.page import make_report
from momentum_transfer.report.read_inputs import merge_methods, read_methods
from tests.report.report_records import record

VALUES = {"a0": (60.0, 62.0), "a1": (64.0, 66.0), "a2": (70.0, 71.0), "random0": (20.0, 22.0), "random1": (30.0, 31.0)}


@pytest.fixture
def results(tmp_path):
    path = tmp_path / "results.jsonl"
    made = [record(n, "svm/k=4", "top1", v, trial=t) for n, values in VALUES.items() for t, v in enumerate(values)]
    records_file.append(path, made)
    return path


def test_each_pretraining_is_a_trial_and_welch_judges_the_methods(results):
    report = make_report([results], methods=read_methods(["a=a0,a1,a2", "random=random0,random1"]))
    (row,) = report.results.cells.values()
    assert row["a"].values == {0: 61.0, 1: 65.0, 2: 70.5}
    assert row["random"].values == {0: 21.0, 1: 30.5}
    interval = stats.ttest_ind([61.0, 65.0, 70.5], [21.0, 30.5], equal_var=False).confidence_interval()
    (cell,) = [row.cells[-1] for row in report.summary.rows if row.label == "svm/k=4 top1"]
    assert cell.spread == f"[{interval.low:.1f}, {interval.high:.1f}]"
    assert "a (3 pretrainings), random (2 pretrainings)" in report.rule
    assert "another seed of the training" in make_report([results]).rule


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a=a0"], "two or more pretrainings, found 'a=a0'"),
        (["a=a0,a1", "b=a1,a2"], "found a1 more often"),
        (["a=a0,a9"], "expected records of a9, which --method names"),
        (["a=a0,a1", "a=a2,random0"], "each --method once, found a twice"),
        (["a2=a0,a1"], "another name than checkpoints have, found a2"),
    ],
)
def test_methods_that_cannot_be_are_refused(results, words, message):
    with pytest.raises(InputError, match=message):
        make_report([results], methods=read_methods(words))


def again(name, trial, value, time="2027", sha256="ab" * 32, **more):
    """A record of the year ``time``; those of ``record`` are of the present."""
    made = record(name, "svm/k=4", "top1", value, trial=trial, seed=trial, **more)
    return {**made, "checkpoint": {"name": name, "sha256": sha256}, "time": f"{time}-01-01T00:00:00+00:00"}


@pytest.mark.parametrize("new", [{"sha256": "cd" * 32, "config": "c"}, {"config": "other"}])
def test_trials_of_earlier_weights_or_settings_are_no_part_of_a_pretraining(new):
    """Five trials of each; of the first two were evaluated again, of new weights or under new settings."""
    records = [again(name, trial, 10.0, "2026", config="c") for name in ("a0", "a1") for trial in range(5)]
    records += [again("a0", trial, 60.0 + trial, **new) for trial in range(2)]
    (row,) = aggregate(merge_methods(records, {"a": ["a0", "a1"]})).cells.values()
    assert row["a"].values == {0: 60.5, 1: 10.0}


def test_other_settings_of_some_trials_of_a_pretraining_are_said_and_not_compared():
    records = [again(name, trial, 10.0 + trial, config="c") for name in ("a0", "a1", "b0", "b1") for trial in range(2)]
    records.append(again("a0", 2, 60.0, config="d"))
    results = aggregate(merge_methods(records, {"a": ["a0", "a1"], "b": ["b0", "b1"]}))
    (measure,) = results.cells
    assert any("svm/k=4 top1 of a" in each and "different settings" in each for each in results.notices)
    assert Comparisons(results).of(measure, "a", "b") is None


def test_a_sentence_says_whether_it_is_about_checkpoints_or_methods(results):
    both = make_report([results], methods=read_methods(["a=a0,a1,a2", "random=random0,random1"]), baseline="random")
    assert both.verdicts[0].endswith("; about methods, 3 and 2 pretrainings.")
    one = make_report([results], methods=read_methods(["a=a0,a1,a2"]), baseline="random0").verdicts
    assert any(each.endswith("; about a method, 3 pretrainings, beside one checkpoint.") for each in one)
    none = make_report([results], baseline="random0").verdicts
    assert all("about this checkpoint." in each and "method" not in each for each in none if each.startswith("Against"))
