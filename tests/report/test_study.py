"""A study's answer against scipy's paired and Welch tests and a Holm correction by hand."""

import re

import numpy as np
import pytest
from scipy import stats

from momentum_transfer.core import records as items
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.records import make_record
from momentum_transfer.report.read_inputs import Curve
from momentum_transfer.report.study_page import (
    Scores,
    answers,
    difference_figure,
    in_short,
    line_figure,
    notes,
    subjects,
    table_markdown,
)
from momentum_transfer.suites.study_entry import read_study
from momentum_transfer.verdicts.outcomes import PerItem

A, B = [81.0, 88.0, 85.0, 84.0, 86.0], [61.0, 85.0, 60.0, 80.0, 83.0]


def record(name, value, task="knn", trial=0, **more):
    return make_record(task, "top1", value, checkpoint={"name": name, "sha256": ""}, trial=trial, seed=trial, **more)


def study_of(*compare, **more):
    settings = dict.fromkeys(("NORM.TEACHER", "SEED"))
    return read_study({"claim": "why?", "compare": list(compare), **more}, "suite", settings)


def between(first, second, name="one", y="knn top1"):
    return {"name": name, "y": y, "first": first, "second": second, "expected": "better"}


def sweep():
    """Records and runs of two variants; seeds stand in another order in each, and every checkpoint has two trials."""
    values = {"eman": dict(enumerate(A)), "bn": dict(reversed(list(enumerate(B))))}
    found = [
        record(f"{variant}_seed{seed}", value + shift, trial=trial)
        for variant, seeds in values.items()
        for seed, value in seeds.items()
        for trial, shift in enumerate((-1.0, 1.0))
    ]
    runs = {
        f"{variant}_seed{seed}": {"variant": variant, "settings": {"NORM.TEACHER": variant.upper()}, "seed": seed}
        for variant in values
        for seed in range(5)
    }
    return found, runs


def test_variants_of_pretrainings_are_paired_by_seed():
    records, runs = sweep()
    (answer,) = answers(study_of(between({"variant": "eman"}, {"NORM.TEACHER": "BN"})), Scores(records, runs))
    expected = stats.ttest_rel(A, B)
    low, high = expected.confidence_interval()
    assert (answer.found.low, answer.found.high, answer.p) == pytest.approx((low, high, expected.pvalue))
    assert answer.found.value == pytest.approx(np.mean(A) - np.mean(B))
    assert list(answer.first.values()) == pytest.approx(A)


def test_trials_of_protocols_are_paired_and_comparisons_corrected_together():
    records = [record("scratch", value, trial=t, protocol="a") for t, value in enumerate(A)]
    records += [record("scratch", value, trial=t, protocol="b") for t, value in enumerate(B)]
    records += [record("scratch", value + 3, "svm", t, protocol="b") for t, value in enumerate(B)]
    sides = {"protocol": "a"}, {"protocol": "b"}
    second = between({"y": "svm top1", "protocol": "b"}, {"protocol": "b"}, "two")
    found = answers(study_of(between(*sides), second), Scores(records, {}))
    p = stats.ttest_rel(A, B).pvalue
    assert [answer.word for answer in found] == ["not significant" if max(p, 0) > 0.05 else "better", "better"]
    assert found[0].p == pytest.approx(p)  # the other p is 0, so that Holm leaves this one alone
    records += [record("scratch", value, "fixmatch", t, protocol="b") for t, value in enumerate(A[::-1])]
    third = between({"y": "fixmatch top1", "protocol": "b"}, {"protocol": "b"}, "three")
    found = answers(study_of(between(*sides), third), Scores(records, {}))
    pvalues = sorted([p, stats.ttest_rel(A[::-1], B).pvalue])
    assert sorted(answer.p for answer in found) == pytest.approx(
        [min(1, 2 * pvalues[0]), max(min(1, 2 * pvalues[0]), pvalues[1])]
    )


def test_a_star_pairs_by_what_it_stands_for_and_a_missing_partner_is_left_out():
    records = [record(f"conv10_s{n}", value) for n, value in enumerate(A)]
    records += [record(f"plain_s{n}", value) for n, value in enumerate(B[:4])]
    (answer,) = answers(study_of(between({"checkpoint": "conv10_*"}, {"checkpoint": "plain_*"})), Scores(records, {}))
    assert answer.found.paired
    assert answer.found.n == (4, 4)
    assert list(answer.first.values()) == A[:4]  # the table's mean is of what is compared
    assert answer.found.p == pytest.approx(stats.ttest_rel(A[:4], B[:4]).pvalue)


def test_pretrainings_without_a_partner_are_not_counted_among_those_compared():
    records = [record(f"{side}_s{n}", 10.0 * n) for side, seeds in (("a", range(5)), ("b", range(2, 9))) for n in seeds]
    (answer,) = answers(study_of(between({"checkpoint": "a_*"}, {"checkpoint": "b_*"})), Scores(records, {}))
    assert answer.found.n == (3, 3)  # s2, s3, s4
    assert subjects([answer]) == "Verdicts are about methods, 3 pretrainings."


def test_a_bar_in_a_name_stays_in_its_cell_of_the_table():
    records = [record("scratch", value, trial=t, protocol=p) for p in "ab" for t, value in enumerate(A)]
    study = study_of(between({"protocol": "a"}, {"protocol": "b"}, name="P(a|b)"))
    row = table_markdown(answers(study, Scores(records, {}))).splitlines()[2]
    assert row.startswith("| P(a\\|b) | 84.8 ")
    assert len(re.split(r"(?<!\\)\|", row)) == 9  # seven cells, and what is outside of them


def test_sides_without_a_common_key_are_compared_by_welch():
    records = [record(f"{name}{n}", v) for name, side in (("a_x", A), ("b_y", B)) for n, v in enumerate(side)]
    (answer,) = answers(study_of(between({"checkpoint": "a_*"}, {"checkpoint": "b_*"})), Scores(records, {}))
    assert not answer.found.paired
    assert answer.found.p == pytest.approx(stats.ttest_ind(A, B, equal_var=False).pvalue)


def test_test_images_count_where_every_trial_kept_them(tmp_path):
    rng = np.random.default_rng(0)
    records = []
    for protocol, fraction in (("a", 0.9), ("b", 0.6)):
        for trial in range(4):
            hits = rng.random(200) < fraction
            kept = items.write_items(tmp_path, f"{protocol}{trial}", PerItem("digits", {"top1": hits}))
            made = record("scratch", 100 * hits.mean(), trial=trial, protocol=protocol, items=kept)
            made["items"] = {**made["items"], "folder": str(tmp_path)}
            records.append(made)
    (answer,) = answers(study_of(between({"protocol": "a"}, {"protocol": "b"})), Scores(records, {}))
    assert (answer.found.items, answer.found.n) == (200, (4, 4))
    assert answer.word == "better"

    records[-1]["items"]["folder"] = "gone"
    (answer,) = answers(study_of(between({"protocol": "a"}, {"protocol": "b"})), Scores(records, {}))
    assert answer.found.items == 0
    assert "gone" in answer.notices[0]


def test_scores_of_earlier_weights_or_settings_do_not_count():
    def at(hour, value, trial, **more):
        made = {**record("x_seed0", value, trial=trial, **more), "time": f"2026-01-01T{hour:02}:00:00+00:00", "seed": 0}
        return made

    runs = {"x_seed0": {"variant": "x", "settings": {}, "seed": 0}}
    old = [at(1, 10.0, trial, config="old") for trial in range(5)]
    new = [at(2, 90.0 + trial, trial, config="new") for trial in range(3)]
    assert Scores([*old, *new], runs).values({"y": "knn top1", "variant": "x"}, "it") == {0: 91.0}
    again = [{**one, "checkpoint": {"name": "x_seed0", "sha256": "trained again"}} for one in new[:1]]
    again[0]["time"] = "2026-01-02T00:00:00+00:00"
    assert Scores([*old, *new, *again], runs).values({"y": "knn top1", "variant": "x"}, "it") == {0: 90.0}


@pytest.mark.parametrize("back", [False, True])
def test_settings_that_were_replaced_do_not_count_in_trials_with_seeds_of_their_own(back):
    """As transfer writes them, SEED + trial; five trials at first, then three, then perhaps one as at first."""

    def at(hour, trial, value, config):
        made = {**record("x_seed0", value, trial=trial, config=config), "time": f"2026-01-01T{hour:02}:00:00+00:00"}
        return {**made, "seed": trial}

    records = [at(1, trial, 10.0 + trial, "old") for trial in range(5)]
    records += [at(2, trial, 60.0, "new") for trial in range(3)]
    records += [at(3, 0, 10.0, "old")] * back
    scores = Scores(records, {"x_seed0": {"variant": "x", "settings": {}, "seed": 0}})
    assert scores.values({"y": "knn top1", "variant": "x"}, "it") == {0: 12.0 if back else 60.0}


def test_trials_of_several_settings_count_where_none_replaced_another():
    records = [{**record("x_seed0", 10.0 * trial, trial=trial, config=f"c{trial}"), "seed": trial} for trial in (1, 2)]
    scores = Scores(records, {"x_seed0": {"variant": "x", "settings": {}, "seed": 0}})
    assert scores.values({"y": "knn top1", "variant": "x"}, "it") == {0: 15.0}


def test_seeds_of_pretrainings_are_not_paired_with_trials_of_given_weights():
    records, runs = sweep()
    records += [record("pixels", value, trial=trial) for trial, value in enumerate(B)]
    (answer,) = answers(study_of(between({"variant": "eman"}, {"checkpoint": "pixels"})), Scores(records, runs))
    assert not answer.found.paired


def test_a_selection_of_several_scores_is_refused():
    records = [record("scratch", 1.0, network=network) for network in ("student", "teacher")]
    with pytest.raises(InputError, match=r"one score a seed or trial for comparison one.*student.*teacher"):
        answers(study_of(between({}, {})), Scores(records, {}))


def test_missing_scores_and_single_trials_give_no_verdict():
    records = [record("scratch", 1.0, protocol="a")]
    study = study_of(between({"protocol": "a"}, {"protocol": "b"}))
    assert answers(study, Scores(records, {}))[0].word == "no scores yet"
    assert difference_figure(answers(study, Scores(records, {})), "t").svg == ""
    records.append(record("scratch", 2.0, protocol="b"))
    (answer,) = answers(study, Scores(records, {}))
    assert (answer.word, answer.p) == ("one trial: no verdict", None)


def test_table_and_plots_show_what_was_found():
    records, runs = sweep()
    lines = {"title": "t", "x": [1, 2], "axis": "n", "label": "%", "of": {"eman": {"y": "knn top1", "variant": "eman"}}}
    study = study_of(between({"variant": "eman"}, {"variant": "bn"}), lines=[lines])
    table = table_markdown(answers(study, Scores(records, runs))).splitlines()
    assert table[0].startswith("| comparison | first | second | difference [95 %] |")
    assert table[2].startswith("| one | 84.8 ± 2.59 (n 5) | 73.8 ± 12.3 (n 5) | +11.0 [")
    assert table[2].endswith("| not significant (17.9 would have been seen) | better |")
    assert table[4] == "Verdicts are about methods, 5 pretrainings."
    assert difference_figure(answers(study, Scores(records, runs)), "t").svg.startswith("<svg")
    assert "n" in line_figure(study.lines[0], Scores(records, runs)).svg


def test_the_sentence_names_six_comparisons_and_counts_more():
    records, runs = sweep()
    sides = [{"variant": "eman"}, {"variant": "bn"}]
    scores = Scores(records, runs)
    for number, start in ((6, "In short: 0: +11."), (7, "In short: of 7 comparisons 7 not significant.")):
        study = study_of(*(between(*sides, str(name)) for name in range(number)))
        assert in_short(study, answers(study, scores)).startswith(start)


def test_a_margin_makes_equality_an_answer_and_noise_has_no_better():
    records = [record("scratch", value, "fixmatch", t, protocol="a") for t, value in enumerate(A)]
    records += [record("scratch", v + 0.1 * (-1) ** t, "fixmatch", t, protocol="b") for t, v in enumerate(A)]
    entry = between({"y": "fixmatch top1", "protocol": "a"}, {"y": "fixmatch top1", "protocol": "b"})
    (found,) = answers(study_of({**entry, "margin": 0.5}), Scores(records, {}))
    assert found.word == "equal within 0.5"
    assert answers(study_of({**entry, "margin": 0.05}), Scores(records, {}))[0].word == "not significant"
    with pytest.raises(InputError, match=r"expected compare\[0\].margin as a number > 0.0, found -1"):
        study_of({**entry, "margin": -1.0})
    noise = [
        {**each, "metric": "target_noise", "value": each["value"] - 50 * (each["protocol"] == "b")} for each in records
    ]
    entry = between({"y": "fixmatch target_noise", "protocol": "a"}, {"y": "fixmatch target_noise", "protocol": "b"})
    assert "| higher | better |" in table_markdown(answers(study_of(entry), Scores(noise, {})))
    assert "Verdicts are about these checkpoints as they are (1 of 1)." in table_markdown(
        answers(study_of(entry), Scores(noise, {}))
    )
    old = answers(study_of({**entry, "expected": "ahead, far"}), Scores(noise, {}))
    assert table_markdown(old).endswith("quoted as it was committed: ahead is better, behind is worse.\n")


def loss_curves(**last):
    """A curve of three lines for each run of ``sweep``; ``last``: run to its loss at step 500."""
    return [Curve(name, "loss", (100.0, 500.0, 900.0), (2.0, last.get(name, 0.5), 0.1)) for name in sweep()[1]]


def preregistered(**more):
    check = {"name": "left the plateau", "curve": "loss", "step": 500, "below": 1.5, "least": 4}
    primary = {**between({"variant": "eman"}, {"variant": "bn"}), "primary": True, "expected": "better", "margin": 2}
    other = between({"variant": "bn"}, {"variant": "eman"}, "other")
    return study_of(primary, other, **{"seeds": 5, "checks": [check], **more})


def test_only_primaries_are_tested_and_corrected_and_the_rest_is_descriptive():
    records, runs = sweep()
    primary, other = answers(preregistered(), Scores(records, runs, loss_curves()))
    assert primary.p == pytest.approx(stats.ttest_rel(A, B).pvalue)  # as if alone
    assert (other.p, other.word) == (None, "descriptive")
    assert other.found.value == pytest.approx(-primary.found.value)


def test_a_run_that_failed_its_check_is_no_sample_and_too_few_pairs_have_no_verdict():
    records, runs = sweep()
    one, _ = answers(preregistered(), Scores(records, runs, loss_curves(bn_seed3=2.1)))
    rest = [place for place in range(5) if place != 3]
    assert one.p == pytest.approx(stats.ttest_rel([A[i] for i in rest], [B[i] for i in rest]).pvalue)
    two, _ = answers(preregistered(), Scores(records, runs, loss_curves(bn_seed3=2.1, eman_seed0=1.5)))
    assert (two.p, two.word) == (None, "stopped: left the plateau (3 of 5 pairs left)")
    (said,) = notes(preregistered(), Scores(records, runs, loss_curves(bn_seed3=2.1)))
    assert said.endswith("9 of 10 runs; no samples: bn_seed3 (2.1).")
    exported = [{**one, "checkpoint": {**one["checkpoint"], "name": f"{one['checkpoint']['name']}_epoch10"}}
                for one in records]  # fmt: skip
    epochs = Scores(exported, {f"{name}_epoch10": run for name, run in runs.items()}, loss_curves(bn_seed3=2.1))
    assert notes(preregistered(), epochs)[0].endswith("9 of 10 runs; no samples: bn_seed3_epoch10 (2.1).")
    unknown, _ = answers(preregistered(), Scores(records, runs))  # no curve was kept
    assert unknown.word == "stopped: left the plateau (0 of 5 pairs left)"


def test_a_primary_has_no_verdict_before_its_seeds_ran():
    records, runs = sweep()
    half = [one for one in records if one["checkpoint"]["name"] != "bn_seed4"]
    assert answers(preregistered(), Scores(half, runs, loss_curves()))[0].word == "no verdict: 4 of 5 seeds ran"


def test_a_primary_that_is_still_to_come_stays_in_the_correction():
    records, runs = sweep()
    names = {"variant": "eman"}, {"variant": "bn"}
    told = {"primary": True, "expected": "better", "margin": 2}
    asked = [{**between(*names), **told}, {**between(*names, "two", "svm top1"), **told}]
    one, two = answers(study_of(*asked, seeds=5), Scores(records, runs))
    assert one.p == pytest.approx(min(1, 2 * stats.ttest_rel(A, B).pvalue))
    assert (two.p, two.word) == (None, "no verdict: 0 of 5 seeds ran")


@pytest.mark.parametrize(("bounds", "word"), [({"above": 1.1}, "better"), ({"above": 1.2}, "stopped: grown")])
def test_a_ratio_of_measures_that_is_not_reached_stops_every_verdict(bounds, word):
    records, runs = sweep()  # 84.8 over 73.8 is 1.149
    better = [{**one, "value": one["value"] + 30} for one in records if one["checkpoint"]["name"].startswith("eman")]
    norms = [{**one, "task": "norm"} for one in records]
    records = [*[one for one in records if one["checkpoint"]["name"].startswith("bn")], *better, *norms]
    check = {"name": "grown", "y": "norm top1", "first": {"variant": "eman"}, "second": {"variant": "bn"}, **bounds}
    assert answers(preregistered(checks=[check]), Scores(records, runs))[0].word == word


def test_a_trend_is_the_mean_slope_over_seeds_with_its_t_interval():
    rng = np.random.default_rng(0)
    gains = rng.normal(size=(5, 3))
    runs, records = {}, []
    for place, x in enumerate((16, 32, 64)):
        for seed in range(5):
            for side, shift in (("a", gains[seed, place]), ("b", 0.0)):
                name = f"{side}{x}_seed{seed}"
                runs[name] = {"variant": f"{side}{x}", "settings": {}, "seed": seed}
                records.append(record(name, 50 + seed + shift))
    asked = {"name": "gain", "x": [16, 32, 64], "log": True, "y": "knn top1", "first": {"variant": "a{x}"},
             "second": {"variant": "b{x}"}}  # fmt: skip
    (said,) = notes(study_of(between({"variant": "a16"}, {"variant": "b16"}), trends=[asked]), Scores(records, runs))
    slopes = (gains[:, 2] - gains[:, 0]) / 2  # least squares over 4, 5 and 6
    low, high = stats.t.interval(0.95, 4, slopes.mean(), stats.sem(slopes))
    assert (
        said == f"gain: slope {slopes.mean():+.2f} [{low:+.2f}, {high:+.2f}] points a doubling, 5 seeds (descriptive)."
    )


def test_orders_are_kendalls_tau_over_checkpoints_and_the_least_that_is_of_use():
    rng = np.random.default_rng(2)
    true = rng.normal(size=20)
    values = {"top1": true, "good": true + 0.05 * rng.normal(size=20), "none": rng.normal(size=20), "flat": np.ones(20)}
    records = [{**record(f"v{n}_seed0", float(each[n])), "metric": metric} for metric, each in values.items()
               for n in range(20)]  # fmt: skip
    orders = [{"name": "accuracy", "y": "knn top1", "of": ["knn none", "knn good", "knn flat", "svm top1"],
               "least": 0.4, "expected": "good of use"}]  # fmt: skip
    lines = notes(read_study({"claim": "why?", "orders": orders}, "suite", {}), Scores(records, {}))
    tau = stats.kendalltau(values["good"], true).statistic
    assert lines[0].startswith(f"accuracy: knn good: τ {tau:+.2f} [")
    assert lines[0].endswith("20 checkpoints, of use (least 0.4).")
    assert lines[1].startswith(f"accuracy: knn none: τ {stats.kendalltau(values['none'], true).statistic:+.2f} [")
    assert "use" in lines[1]
    assert "of use" not in lines[1].replace("of no use", "").replace("not shown to be of use", "")
    assert [line.split(": ")[1] for line in lines[2:4]] == ["knn flat", "svm top1"]
    assert all(line.endswith("no order yet.") for line in lines[2:4])
    assert lines[4] == "accuracy: expected: good of use."
