"""The sentences and bars of the first screen, and which measure predicts which, from records of known outcome."""

import pytest

from momentum_transfer.report.aggregate import aggregate
from momentum_transfer.report.answers import agreement_table, balances, measure_pairs, sentences
from momentum_transfer.report.differences import Comparisons
from tests.report.report_records import record


def of(task: str, trials: int = 3, **means: float) -> list[dict]:
    """Records of a task with little spread over its trials."""
    return [record(name, task, "top1", mean + 0.01 * trial * (1 + (name == "random")), trial=trial)
            for name, mean in means.items() for trial in range(trials)]  # fmt: skip


def said(records: list[dict]) -> list[str]:
    return sentences(Comparisons(aggregate(records)))


@pytest.mark.parametrize(
    ("records", "sentence"),
    [
        (of("svm/k=1", a=60, random=10), "a is better on 1 of 1 measure; …"),
        (of("svm/k=1", a=60, random=10) + of("svm/k=2", a=60, random=10), "a is better on all 2 measures; …"),
        (of("svm/k=1", a=60, random=10) + of("svm/k=2", a=5, random=10),
         "a is better on 1 of 2 measures, worse on 1; …"),
        (of("svm/k=1", a=5, random=10) + of("svm/k=2", a=5, random=10), "a is worse on all 2 measures; …"),
        (of("svm/k=1", a=10, random=10.01),
         "a is not significant on 1 of 1 measure (0.033 points would have been seen on each); …"),
        (of("svm/k=1", a=60, random=10) + of("svm/k=2", trials=1, a=60, random=10),
         "a is better on 1 of 2 measures (1 with one trial: no verdict); …"),
        (of("svm/k=1", trials=1, a=60, random=10), "a has no verdict: 1 with one trial: no verdict."),
        (of("svm/k=1", a=60) + of("svm/k=2", random=10), "(random weights) have no measure in common."),
    ],
)  # fmt: skip
def test_a_sentence_counts_the_words_of_the_rule(records: list[dict], sentence: str):
    (found,) = said(records)
    assert found.endswith(sentence.replace("…", "about this checkpoint."))
    assert "random (random weights)" in found


def test_without_a_baseline_that_is_said_first():
    found = said(of("svm/k=1", a=60, b=50))
    assert found[0].startswith("No baseline: none of the checkpoints")
    assert not any("No baseline" in one for one in said(of("svm/k=1", a=60, random=50)))


def test_more_than_six_pairs_are_those_against_the_first_kind_of_baseline_and_then_counted():
    def names(count: int, *others: str) -> list[str]:
        means = {f"n{index}": 50.0 + index for index in range(count)} | dict.fromkeys(others, 10.0)
        return [one for one in said(of("svm/k=1", **means)) if not one.startswith("Best mean rank")]

    found = names(3, "random", "pixels")
    assert sum("(random weights)" in one for one in found) == 3
    assert sum("(raw pixels)" in one for one in found) == 3
    found = names(4, "random", "pixels")
    assert len(found) == 4
    assert all("(random weights)" in one for one in found)
    assert names(6, "random")[-1].startswith("Against random")
    found = names(7, "random")
    assert len(found) == 7
    assert found[-1] == "1 more checkpoints are in the tables."


def test_of_three_checkpoints_the_best_by_mean_rank_is_named():
    records = [line for k in range(1, 9) for line in of(f"svm/k={k}", a=60, b=50, c=40, random=10)]
    assert said(records)[0].startswith("Best mean rank: a (1.0 of 4, over 8 measures); ranks differ (Friedman p = ")
    even = of("svm/k=1", a=60, b=50, c=40) + of("svm/k=2", a=40, b=50, c=60) + of("svm/k=4", a=61, b=50, c=40)
    assert "; ranks do not differ significantly (Friedman p = " in said(even)[1]
    assert said(of("svm/k=1", a=60, b=50, c=40))[1] == "Best mean rank: a (1.0 of 3, over 1 measures)."
    assert not any("Best mean rank" in one for one in said(of("svm/k=1", a=60, b=50, random=10)))


def test_a_bar_has_the_counts_of_its_sentence_and_the_range_of_differences():
    records = of("svm/k=1", a=60, random=10) + of("svm/k=2", a=70, random=10) + of("svm/k=4", a=5, random=10)
    records += of("svm/k=8", trials=1, a=11, random=10)
    (found,) = balances(Comparisons(aggregate(records)))
    assert (found.name, found.base, found.called, found.total) == ("a", "random", "random weights", 4)
    assert (found.low, found.middle, found.high) == pytest.approx((-5, 25.5, 60), abs=0.03)
    assert found.parts == (("up-clear", "better", 2), ("down-clear", "worse", 1), ("none", "one trial: no verdict", 1))
    assert balances(Comparisons(aggregate(of("svm/k=1", a=60) + of("svm/k=2", random=10)))) == []
    many = of("svm/k=1", random=10, **{f"n{index}": 50.0 for index in range(8)})
    assert [one.name for one in balances(Comparisons(aggregate(many)))] == [f"n{index}" for index in range(6)]


NAMES = [f"n{index}" for index in range(6)]


def ordered(task: str, order: list[int], metric: str = "top1", names: list[str] = NAMES) -> list[dict]:
    return [record(name, task, metric, float(place)) for name, place in zip(names, order, strict=True)]


def test_a_cheap_measure_stands_before_the_costly_one_that_it_predicts():
    records = ordered("coco/bbox", [0, 1, 2, 3, 4, 5], "AP") + ordered("knn/k=20", [5, 4, 3, 2, 1, 0])
    records += ordered("svm/k=4", [0, 1, 2, 3, 5, 4]) + ordered("finetune/10%", [0, 1, 2, 3, 4, 5])
    found = measure_pairs(aggregate(records))
    assert [(pair.first, pair.second, pair.mixed, round(pair.found.tau, 2)) for pair in found] == [
        ("svm/k=4 top1", "coco/bbox AP", True, 0.87),
        ("svm/k=4 top1", "finetune/10% top1", True, 0.87),
        ("knn/k=20 top1", "coco/bbox AP", True, -1),
        ("knn/k=20 top1", "finetune/10% top1", True, -1),
        ("coco/bbox AP", "finetune/10% top1", False, 1),
        ("svm/k=4 top1", "knn/k=20 top1", False, -0.87),
    ]
    table = agreement_table(found)
    assert [row.note for row in table.rows] == ["cheap → costly"] * 4 + [""] * 2
    assert table.rows[0].label == "svm/k=4 top1 → coco/bbox AP"
    assert [cell.main for cell in table.rows[4].cells] == ["1.00", "1.00", "6"]
    assert agreement_table([]) is None


def test_measures_of_fewer_than_five_common_checkpoints_or_without_an_order_are_no_pair():
    five, four = NAMES[:5], NAMES[:4]
    base = ordered("knn/k=20", [0, 1, 2, 3, 4], names=five)
    assert len(measure_pairs(aggregate(base + ordered("svm/k=4", [0, 1, 2, 3, 4], names=five)))) == 1
    assert measure_pairs(aggregate(base + ordered("svm/k=4", [0, 1, 2, 3], names=four))) == []
    assert measure_pairs(aggregate(base + ordered("svm/k=4", [0, 1, 2, 3, 4], names=NAMES[1:]))) == []
    assert measure_pairs(aggregate(base + ordered("svm/k=4", [1, 1, 1, 1, 1], names=five))) == []


def test_twelve_measures_are_compared():
    records = [line for k in range(1, 15) for line in ordered(f"svm/k={k}", [0, 1, 2, 3, 4, k])]
    assert len(measure_pairs(aggregate(records))) == 12 * 11 / 2
