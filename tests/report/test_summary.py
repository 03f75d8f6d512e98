"""The tables of all tasks: who stands in them, and what is said of the evidence behind a verdict."""

import numpy as np
import pytest

from momentum_transfer.report.aggregate import aggregate
from momentum_transfer.report.differences import Comparisons
from momentum_transfer.report.page import build
from momentum_transfer.report.summary import _evidence, evidence_tables, overall_table, ranking, summary_table
from momentum_transfer.verdicts.comparison import Comparison, compare
from momentum_transfer.verdicts.ranking import friedman, interquartile_mean, probability_of_improvement
from tests.report.report_records import record

TASKS = ("svm/k=1", "svm/k=4", "knn/k=20")
MEANS = {"a": (50.0, 60.0, 70.0), "b": (40.0, 65.0, 71.0), "random": (10.0, 20.0, 30.0)}


def records(names=("a", "b", "random"), tasks=TASKS, trials: int = 2) -> list[dict]:
    return [record(name, task, "top1", MEANS[name][TASKS.index(task)] + trial, trial=trial)
            for name in names for task in tasks for trial in range(trials)]  # fmt: skip


def test_ranks_need_three_checkpoints_and_two_measures_that_all_have():
    found = ranking(aggregate(records()))
    expected = friedman(np.array([[MEANS[name][index] for name in MEANS] for index in (0, 1, 2)]))
    assert found.ranks == expected.ranks == pytest.approx([5 / 3, 4 / 3, 3])
    assert found.p == pytest.approx(expected.p)
    assert ranking(aggregate(records(("a", "random")))) is None
    assert ranking(aggregate(records(tasks=TASKS[:1]))) is None
    assert ranking(aggregate(records(tasks=TASKS[:2]))) is not None
    assert ranking(aggregate(records(tasks=TASKS[:1]) + records(("a", "b"), TASKS[1:]))) is None


def test_the_overall_table_has_ranks_means_and_chances_over_the_common_measures():
    table = overall_table(aggregate(records()), {"a": 3, "b": 4, "random": 5})
    assert table.columns == ("mean rank", "interquartile mean, %", "chance to beat random, %")
    assert "Over the 3 headline measures that all 3 checkpoints have. Mean ranks" in table.caption
    rows = {row.label: [cell.main for cell in row.cells] for row in table.rows}
    scores = {name: [np.array([mean, mean + 1]) for mean in means] for name, means in MEANS.items()}
    for name in ("a", "b"):
        chance = 100 * probability_of_improvement(scores[name], scores["random"])
        assert rows[name][1:] == [f"{interquartile_mean(scores[name]):.1f}", f"{chance:.1f}"]
    assert [rows[name][0] for name in MEANS] == ["1.7", "1.3", "3.0"]
    assert rows["random"][2] == "–"
    assert [row.colour for row in table.rows] == [3, 4, 5]
    two = overall_table(aggregate(records(("a", "random"))), {"a": 0, "random": 1})
    assert two.columns == ("interquartile mean, %", "chance to beat random, %")
    assert "Mean ranks" not in two.caption
    alone = overall_table(aggregate(records(("a", "b"))), {"a": 0, "b": 1})
    assert alone.columns == ("interquartile mean, %",)
    assert overall_table(aggregate(records(tasks=TASKS[:1])), {}) is None
    assert overall_table(aggregate(records(("a",))), {}) is None


def test_chances_are_told_in_percent_with_their_interval():
    trials = {"a": (1.0, 3.0), "random": (2.0, 0.0)}
    lines = [record(name, task, "top1", value, trial=trial) for task in TASKS[:2]
             for name, values in trials.items() for trial, value in enumerate(values)]  # fmt: skip
    (ours, _) = overall_table(aggregate(lines), {"a": 0, "random": 1}).rows
    assert ours.cells[1].main == "75.0"
    low, high = (float(end) for end in ours.cells[1].spread.strip("[]").split(", "))
    assert 0 <= low < 75 < high <= 100


def cells(change: Comparison | None, word: str = "ahead") -> dict[str, str]:
    columns = ("word", "trials", "items", "se", "p", "can show", "needed", "from items")
    return dict(zip(columns, _evidence(change, word), strict=True))


def of(first, second, shared: bool = False) -> Comparison:
    return compare(dict(enumerate(first)), dict(enumerate(second)), shared)


def test_the_evidence_says_what_was_compared():
    assert cells(of([5.0, 6.0, 8.0], [1.0, 2.0, 2.5], True))["trials"] == "3, in pairs"
    assert cells(of([5.0, 6.0, 8.0], [1.0, 2.0, 2.5]))["trials"] == "3"
    assert cells(of([5.0, 6.0, 8.0], [1.0, 2.0]))["trials"] == "3 and 2"
    assert cells(of([5.0], [1.0]))["trials"] == "1, one trial: no verdict from trials"
    assert cells(of([5.0, 6.0], [1.0]))["trials"] == "2 and 1, no verdict from one"
    assert cells(Comparison(1.0, (3, 1), p=0.2, items=9))["trials"] == "3 and 1, the one as it stands"
    assert set(list(cells(None, "other settings").values())[1:]) == {"–"}


def test_the_evidence_has_p_the_error_and_what_the_design_can_show():
    change = of([50.0, 60.0, 58.0], [40.0, 52.0, 51.0], True)
    found = cells(change)
    assert found["word"] == "ahead"
    assert found["p"] == f"{change.p:.2g} (sign flips 0.25)"
    assert found["se"] == f"{change.se:.2f}"
    assert found["can show"] == f"{change.detectable:.1f}"
    assert found["needed"] == str(change.needed)
    assert (found["items"], found["from items"]) == ("–", "–")
    plain = cells(Comparison(1.0, (3, 3), p=0.0312, se=0.0, items=40, item_fraction=0.256, std=0.1))
    assert (plain["p"], plain["se"], plain["items"], plain["from items"]) == ("0.031", "–", "40", "26 %")


def test_where_no_number_of_trials_would_do_the_images_are_named():
    hidden = Comparison(0.1, (3, 3), p=0.9, se=1.0, df=4, items=50, std=0.1, floor=1.0)
    assert hidden.needed is None
    assert cells(hidden)["needed"] == "none: the test images alone hide it"
    assert cells(Comparison(0.0, (3, 3), p=1.0, se=1.0, df=4, std=0.1))["needed"] == "–"  # no difference to show
    assert cells(Comparison(0.1, (3, 1), p=0.9, se=1.0, df=4, items=50))["needed"] == "–"


def test_every_pair_of_the_summary_has_its_evidence_up_to_four():
    def tables(names: list[str]) -> list[str]:
        lines = [record(name, "knn/k=20", "top1", 1.0 + place) for place, name in enumerate(names)]
        comparisons = Comparisons(aggregate(lines))
        columns = [column for column in summary_table(comparisons).columns if "−" in column]
        titles = [table.title.removesuffix(": evidence and power") for table in evidence_tables(comparisons)]
        assert columns == (titles if len(names) <= 5 else [])
        return titles

    assert tables(["a", "b", "random"]) == ["a − random", "b − random"]
    assert len(tables(["a", "b", "c", "d", "random"])) == 4
    assert len(tables(["a", "b", "c", "d", "e", "random"])) == 4


def test_the_summary_says_over_how_many_trials_it_is():
    table = summary_table(Comparisons(aggregate(records(trials=3))))
    assert "over 3 trials" in table.caption
    assert {cell.trials for row in table.rows for cell in row.cells} == {""}
    mixed = summary_table(Comparisons(aggregate(records(trials=3) + [
        record("a", "linear", "top1", value, trial=trial) for trial, value in enumerate((1.0, 2.0))
    ])))  # fmt: skip
    assert "over n trials" in mixed.caption
    assert {cell.trials for row in mixed.rows for cell in row.cells} == {"", "n=2", "n=3"}


def test_mean_ranks_stand_below_the_measures_and_what_rows_have_in_common_in_their_heading():
    lines = records(trials=1) + [record(name, "svm/k=8", "top1", 1.0, dataset="other") for name in ("a", "b")]
    rows = summary_table(Comparisons(aggregate(lines))).rows
    ranks = rows[-1]
    assert (ranks.kind, ranks.label) == ("rank", "mean rank")
    # a: 1, 2, 2 and a tie; b: 2, 1, 1 and a tie; random: 3, 3, 3
    assert [(cell.main, cell.note) for cell in ranks.cells[:3]] == [
        ("1.6", "over 4"), ("1.4", "over 4"), ("3.0", "over 3")
    ]  # fmt: skip
    notes = {row.label: row.note for row in rows if row.kind in ("group", "ours")}
    assert notes["Low-shot classification (linear SVM)"] == "imagenet/heldout · scikit-learn"
    assert notes["svm/k=8 top1"] == "other"
    assert notes["k-nearest neighbours"] == "digits · imagenet/heldout · scikit-learn"
    assert notes["knn/k=20 top1"] == ""


def test_ranks_over_other_settings_say_so():
    plain = records()
    other = [{**one, "config": "b" if one["checkpoint"]["name"] == "a" else "a"} for one in records(tasks=TASKS[:1])]
    colours = dict.fromkeys(MEANS, 0)
    assert "other settings" not in overall_table(aggregate(plain), colours).caption
    found = aggregate([*other, *(one for one in plain if one["task"] != TASKS[0])])
    assert ", 1 of them with other settings for some (≠)." in overall_table(found, colours).caption
    named = [{**one, "checkpoint": {"name": one["checkpoint"]["name"].replace("random", "c"), "sha256": ""}}
             for one in [*other, *(one for one in plain if one["task"] != TASKS[0])]]  # fmt: skip
    assert ", over 3 measures, 1 of them with other settings for some (≠))" in " ".join(build(named).verdicts)


def test_a_difference_that_too_many_trials_would_show_is_not_blamed_on_images():
    small = of([50.0, 52.0, 54.0, 51.0], [52.0, 50.0, 51.0, 53.98], True)
    assert cells(small, "not significant")["needed"] == "more than 65536"
