"""Differences by the rule: paired or not, one trial, other settings, outcomes per test item, Holm, untrusted files."""

import math
from dataclasses import replace

import numpy as np
import pytest
from fvcore.common.config import CfgNode
from scipy import stats

from momentum_transfer.core import records as items
from momentum_transfer.core import records as records_file
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.settings import config_hash, keep
from momentum_transfer.report.aggregate import Measure, aggregate
from momentum_transfer.report.differences import Comparisons
from momentum_transfer.report.page import build, make_report, render_html
from momentum_transfer.verdicts.corrections import BETTER, NOT_COMPARED, NOT_SIGNIFICANT, ONE_TRIAL, WORSE, holm
from momentum_transfer.verdicts.outcomes import PerItem, item_weights, label_hash
from tests.report.report_records import record

SVM4 = Measure("svm/k=4", "top1", "digits", "imagenet/heldout", "scikit-learn")
LABELS = np.arange(400) % 10


def trials_of(name: str, values, first: int = 0, **more) -> list[dict]:
    return [record(name, "svm/k=4", "top1", value, trial=i, **more) for i, value in enumerate(values, first)]


def hits(folder, name, fraction, trial=0, seed=0, *, labels=LABELS, common=None, **more):
    """A record whose outcomes are random hits with that chance; ``common`` makes them depend on one another."""
    random = np.random.default_rng(seed)
    found = (common if common is not None else random.random(len(labels))) < fraction
    kept = items.write_items(folder, name, PerItem(label_hash(labels), {"top1": found}))
    return record(
        name, "svm/k=4", "top1", 100 * found.mean(), trial=trial, items={**kept, "folder": str(folder)}, **more
    )


def test_shared_trials_are_students_paired_t():
    a, b = [50.0, 60.0, 58.0], [40.0, 52.0, 51.0]
    found = Comparisons(aggregate(trials_of("a", a) + trials_of("random", b))).of(SVM4, "a", "random")
    expected = stats.ttest_rel(a, b)
    assert (found.paired, found.items, found.n) == (True, 0, (3, 3))
    interval = expected.confidence_interval()
    assert (found.p, found.low, found.high) == pytest.approx((expected.pvalue, interval.low, interval.high))


def test_a_difference_that_is_the_same_in_every_trial_is_said_to_show_no_spread():
    comparisons = Comparisons(aggregate(trials_of("a", [62.0, 71.0]) + trials_of("random", [60.0, 69.0])))
    found = comparisons.of(SVM4, "a", "random")
    assert (found.p, found.items) == (0.0, 0)
    said = "a against random: the same difference in every trial; p = 0 says only that these do not spread"
    assert comparisons.notices == [f"svm/k=4 top1, {said}"]
    comparisons = Comparisons(aggregate(trials_of("a", [62.0, 71.0]) + trials_of("random", [60.0, 69.5])))
    assert comparisons.of(SVM4, "a", "random").p > 0
    assert comparisons.notices == []


@pytest.mark.parametrize("other", [{"first": 1}, {"seed": 7}])
def test_other_trials_or_other_seeds_are_welchs(other):
    a, b = [50.0, 60.0, 58.0], [40.0, 52.0, 51.0]
    records = trials_of("a", a, seed=1) + trials_of("random", b, **{"seed": 1, **other})
    found = Comparisons(aggregate(records)).of(SVM4, "a", "random")
    assert not found.paired
    assert found.p == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue)


def test_words_are_by_rule_after_holm():
    comparisons = Comparisons(
        aggregate(
            trials_of("a", [50, 51, 52]) + trials_of("random", [40, 42, 41])
            + [record("a", "knn/k=20", "top1", 1.0), record("random", "knn/k=20", "top1", 2.0)]
            + [record(n, "linear", "top1", v, trial=t, config=n) for n in ("a", "random") for t, v in enumerate((1, 9))]
            + [record("a", "svm/k=8", "top1", v, trial=t) for t, v in enumerate((50, 60, 70))]
            + [record("random", "svm/k=8", "top1", v, trial=t) for t, v in enumerate((51, 59, 71))]
            + [record("a", "svm/k=2", "top1", v, trial=t) for t, v in enumerate((10, 20, 30))]
            + [record("random", "svm/k=2", "top1", v, trial=t) for t, v in enumerate((50.0, 60.1, 70.2))]
        )
    )  # fmt: skip
    words = {measure.task: word for measure, word in comparisons.words("a", "random").items()}
    expected = {
        "svm/k=4": BETTER,
        "knn/k=20": ONE_TRIAL,
        "linear": NOT_COMPARED,
        "svm/k=8": NOT_SIGNIFICANT,
        "svm/k=2": WORSE,
    }
    assert words == expected


def test_holm_takes_back_what_one_test_alone_would_find():
    def records(tasks):
        values = {"a": (50.0, 51.0, 52.4), "random": (48.0, 48.2, 50.9)}
        return [record(n, task, "top1", v, trial=t) for task in tasks for n in values for t, v in enumerate(values[n])]

    alone = Comparisons(aggregate(records(["svm/k=4"]))).words("a", "random")
    many = Comparisons(aggregate(records([f"svm/k={k}" for k in range(1, 9)]))).words("a", "random")
    assert set(alone.values()) == {BETTER}
    assert set(many.values()) == {NOT_SIGNIFICANT}


def test_one_trial_with_outcomes_is_compared_by_mcnemar_and_the_items(tmp_path):
    a, b = hits(tmp_path, "a", 0.8, seed=1), hits(tmp_path, "random", 0.6, seed=2)
    found = Comparisons(aggregate([a, b])).of(SVM4, "a", "random")
    outcomes = [items.read_items(tmp_path, each["items"]).values["top1"] for each in (a, b)]
    only = [int((outcomes[0] & ~outcomes[1]).sum()), int((outcomes[1] & ~outcomes[0]).sum())]
    assert found.p == pytest.approx(stats.binomtest(only[0], sum(only)).pvalue)
    assert (found.items, found.n) == (400, (1, 1))
    weights = item_weights(400, 1000)
    spread = (100 * weights @ (outcomes[0] * 1.0 - outcomes[1]) / 400).std(ddof=1) * (400 / 399) ** 0.5
    assert found.se == pytest.approx(spread)
    assert found.low < found.value < found.high
    assert found.high - found.low == pytest.approx(2 * 1.96 * spread, rel=0.15)


def test_trials_and_items_add_their_variances(tmp_path):
    common = np.random.default_rng(0).random(400)
    records = [hits(tmp_path, name, fraction + 0.01 * t, t, common=np.roll(common, 7 * (name == "a")))
               for name, fraction in (("a", 0.7), ("random", 0.5)) for t in range(3)]  # fmt: skip
    both = Comparisons(aggregate(records)).of(SVM4, "a", "random")
    trials = Comparisons(aggregate(records), resamples=0).of(SVM4, "a", "random")
    assert (both.items, trials.items) == (400, 0)
    assert both.se == pytest.approx(math.hypot(trials.se, both.floor))
    assert both.item_fraction == pytest.approx(both.floor**2 / both.se**2)
    assert 0 < both.floor < 100 * (0.5 / 400) ** 0.5


def test_unlike_test_sets_are_not_paired_and_both_are_named(tmp_path):
    records = [hits(tmp_path, "a", 0.8), hits(tmp_path, "random", 0.5, labels=LABELS[::-1])]
    report = build(records)
    (notice,) = [notice for notice in report.notices if "same test items" in notice]
    assert "svm/k=4 of a" in notice
    assert "svm/k=4 of random" in notice
    assert ONE_TRIAL in report.verdicts[0]


def test_a_lost_items_file_is_a_notice_and_trials_still_decide(tmp_path):
    records = [
        hits(tmp_path, name, fraction, t, seed=t) for name, fraction in (("a", 0.9), ("random", 0.2)) for t in range(3)
    ]
    (tmp_path / records[0]["items"]["file"]).unlink()
    report = build(records)
    assert any("items file not found" in notice for notice in report.notices)
    assert "better on 1 of 1 measure;" in report.verdicts[0]


def test_untrusted_files_with_other_settings_are_refused(tmp_path):
    for name, config in (("mine", "c1"), ("other", "c2"), ("same", "c1")):
        records_file.append(tmp_path / f"{name}.jsonl", trials_of(name, [1.0, 2.0], config=config))
    with pytest.raises(InputError, match=r"expected one protocol in a row.*mine\.jsonl.*other\.jsonl"):
        make_report([tmp_path / "mine.jsonl", tmp_path / "other.jsonl"])
    assert make_report([tmp_path / "mine.jsonl", tmp_path / "same.jsonl"]).results.checkpoints == ["mine", "same"]


def test_a_refusal_names_the_settings_that_differ_where_they_lie_beside_the_records(tmp_path):
    hashes = []
    for name, steps in (("mine", 34), ("other", 300)):
        cfg = CfgNode({"SOLVER": {"MAX_ITER": steps, "BASE_LR": 0.1}})
        hashes.append(config_hash(cfg))
        keep(tmp_path / name, hashes[-1], cfg)
        records_file.append(tmp_path / name / "results.jsonl", trials_of(name, [1.0, 2.0], config=hashes[-1]))
    files = [tmp_path / name / "results.jsonl" for name in ("mine", "other")]
    with pytest.raises(InputError, match=r"with other settings: SOLVER\.MAX_ITER 34 and 300; evaluate both alike"):
        make_report(files)
    kept = tmp_path / "mine" / "settings" / f"{hashes[0]}.yaml"
    kept.write_text("[damaged")
    with pytest.raises(InputError, match=f"config hash {hashes[0]} and {hashes[1]}"):
        make_report(files)
    report = make_report(files[:1])
    assert any(str(kept) in notice for notice in report.notices)


def test_page_shows_ranks_evidence_and_which_measure_predicts_which():
    random = np.random.default_rng(0)
    names = ["random", *(f"m{n}" for n in range(5))]
    records = [
        record(name, task, "top1", 10 * n + random.normal(), trial=t)
        for n, name in enumerate(names) for task in ("svm/k=4", "finetune/10%", "knn/k=20") for t in range(3)
    ]  # fmt: skip
    report = build(records)
    assert "ranks differ (Friedman p = 0.01" in report.verdicts[0]
    assert "Nemenyi" in report.verdicts[0]
    overall, agreements = report.overall
    assert overall.columns == ("mean rank", "interquartile mean, %", "chance to beat random, %")
    assert [cell.main for cell in overall.rows[-2].cells] == ["1.0", overall.rows[-2].cells[1].main, "100.0"]
    assert agreements.rows[0].cells[0].main == "1.00"
    assert agreements.rows[0].note == "cheap → costly"
    assert "Which measure predicts which" in [plot.title for plot in report.plots]
    page = render_html(report)
    assert "Evidence and power of every verdict" in page
    assert "3, in pairs" in page


def test_the_family_is_every_headline_measure_and_baseline_of_the_page():
    values = {"a": (50.0, 51.0, 52.4), "random": (48.0, 48.3, 50.7), "pixels": (49.0, 50.0, 51.5)}
    records = [record(n, f"svm/k={k}", "top1", v + 9 * (k == 8) * (n == "a") * t, trial=t)
               for n, listed in values.items() for t, v in enumerate(listed) for k in (4, 8)]  # fmt: skip
    page = Comparisons(aggregate(records))
    keys = [(measure, base) for measure in page.results.headlines() for base in ("random", "pixels")]
    p = holm([page.of(measure, "a", base).p for measure, base in keys])
    found = {key: page.words("a", key[1])[key[0]] for key in keys}
    assert found == {key: BETTER if each <= 0.05 else NOT_SIGNIFICANT for key, each in zip(keys, p, strict=True)}
    alone = Comparisons(aggregate([each for each in records if each["checkpoint"]["name"] != "pixels"]))
    assert (found[SVM4, "random"], alone.words("a", "random")[SVM4]) == (NOT_SIGNIFICANT, BETTER)


def test_correlated_measures_with_outcomes_are_corrected_by_max_t(tmp_path):
    """The same images are wrong in every measure, so that nine measures say no more than one."""
    random = np.random.default_rng(3)
    base = random.random(400)
    sides = {"a": base < 0.62, "random": (base < 0.5) | (random.random(400) < 0.12)}
    sides["a"][random.random(400) < 0.07] ^= True
    records = []
    for name, found in sides.items():
        kept = items.write_items(tmp_path, name, PerItem(label_hash(LABELS), {"top1": found}))
        records += [record(name, f"svm/k={k}", "top1", 100 * found.mean(), items={**kept, "folder": str(tmp_path)})
                    for k in range(1, 10)]  # fmt: skip
    comparisons = Comparisons(aggregate(records))
    p = comparisons.of(SVM4, "a", "random").p
    assert 0.05 / 9 < p < 0.03
    assert set(comparisons.words("a", "random").values()) == {BETTER}


def in_films(folder, name, found, clusters=None):
    kept = items.write_items(folder, name, PerItem(label_hash(LABELS), {"top1": found}, clusters))
    return record(name, "svm/k=4", "top1", 100 * found.mean(), items={**kept, "folder": str(folder)})


def test_images_in_groups_are_resampled_by_group_and_few_groups_are_told(tmp_path):
    random = np.random.default_rng(0)
    films = random.permutation(np.arange(400) % 8)
    a, b = (np.repeat(random.random(50), 8)[np.argsort(np.argsort(films))] < each for each in (0.8, 0.5))
    report = build([in_films(tmp_path, "a", a, films), in_films(tmp_path, "random", b, films)])
    found = Comparisons(report.results).of(SVM4, "a", "random")
    assert (found.items, found.clusters, found.df, found.discordant) == (400, 8, 7, None)
    weights = item_weights(8, 1000)[:, films]
    spread = (100 * weights @ (a * 1.0 - b) / weights.sum(axis=1)).std(ddof=1) * (8 / 7) ** 0.5
    assert found.se == pytest.approx(spread)
    assert "svm/k=4: 8 groups of test images are few; intervals are wide, and rough" in report.notices
    assert report.evidence[0].rows[0].cells[2].main == "400 in 8 groups"
    other = [in_films(tmp_path, "a", a, films), in_films(tmp_path, "random", b)]
    assert any("same groups of test items" in notice for notice in build(other).notices)


def test_damaged_groups_in_an_items_file_are_a_notice(tmp_path):
    found = np.arange(400) % 2 == 0
    records = [in_films(tmp_path, name, found, np.arange(399) % 5) for name in ("a", "random")]
    assert any("the group of each of 400 test items, found 399" in notice for notice in build(records).notices)


def test_within_the_pages_margin_the_word_is_equal_and_sentence_and_bar_count_it():
    values = {"a": (50.1, 50.2, 50.3), "random": (50.0, 50.2, 50.2)}
    records = [record(n, "svm/k=4", "top1", v, trial=t) for n, listed in values.items() for t, v in enumerate(listed)]
    assert "not significant on 1 of 1" in build(records).verdicts[0]
    report = build(records, margin=1.0)
    assert "a is equal within 1 on 1 of 1 measure;" in report.verdicts[0]
    assert report.balances[0].parts == (("even", "equal within 1", 1),)
    assert "equal within 1" in render_html(report)


def test_a_measure_is_descriptive_where_the_results_say_so():
    results = aggregate(
        [record(name, "svm/k=4", "loss", value, trial=t) for name in "ab" for t, value in ((0, 1.0), (1, 2.0))]
    )
    (measure,) = results.cells
    assert Comparisons(results).of(measure, "a", "b") is None
    assert Comparisons(replace(results, descriptive=())).of(measure, "a", "b") is not None
