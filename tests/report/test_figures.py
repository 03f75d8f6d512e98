"""Which plots there are, what each is given and what its caption says, from records alone."""

import pytest

from momentum_transfer.report import figures, plots
from momentum_transfer.report.aggregate import aggregate
from momentum_transfer.report.answers import measure_pairs
from momentum_transfer.report.differences import Comparisons
from momentum_transfer.report.figures import analysis_figures, run_colours, summary_figures, training_figures
from momentum_transfer.report.read_inputs import Curve
from tests.report.report_records import record


@pytest.fixture
def given(monkeypatch) -> dict[str, list[tuple]]:
    """What every drawing function was given, by its name; nothing is drawn."""
    seen: dict[str, list[tuple]] = {}
    for name in ("gain_plot", "slope_plot", "few_labels_plot", "agreement_plot", "curve_plot", "line_plot"):
        monkeypatch.setattr(plots, name, lambda *words, name=name: seen.setdefault(name, []).append(words) or "<svg>")
    return seen


def shown(records: list[dict], agreements=()) -> dict[str, str]:
    """Title -> caption of the plots of the summary."""
    comparisons = Comparisons(aggregate(records))
    colours = {name: index for index, name in enumerate(comparisons.results.checkpoints)}
    return {plot.title: plot.caption for plot in summary_figures(comparisons, colours, agreements)}


def test_gains_are_differences_from_the_baseline_filled_where_the_rule_says_so(given):
    records = [record(name, "svm/k=4", "top1", value + trial, trial=trial)
               for name, value in (("a", 60.0), ("random", 10.0)) for trial in range(3)]  # fmt: skip
    records += [record(name, "knn/k=20", "top1", value) for name, value in (("a", 40.0), ("random", 45.0))]
    records += [record("a", "linear", "top1", 99.0)]  # of one alone there is no difference
    (caption,) = (text for title, text in shown(records).items() if title == "What is gained over random")
    assert caption.startswith("a − random, in points")
    ((rows, _),) = given["gain_plot"]
    assert {label: cells["a"][0] for label, cells in rows.items()} == {"svm/k=4 top1": 50, "knn/k=20 top1": -5}
    assert [cells["a"][3] for cells in rows.values()] == [True, False]
    assert rows["knn/k=20 top1"]["a"][1:3] == (None, None)
    records.append(record("b", "knn/k=20", "top1", 41.0))
    assert shown(records)["What is gained over random"].startswith("each minus random, in points")


def test_without_a_baseline_nothing_is_gained(given):
    titles = shown([record(name, "knn/k=20", "top1", 1.0) for name in ("a", "b")])
    assert list(titles) == ["From baseline to pretrained"]


def test_the_slope_chart_goes_from_the_baselines_to_the_others(given):
    records = [record(name, f"svm/k={k}", "top1", value + k + trial, trial=trial)
               for name, value in (("a", 60.0), ("random", 10.0)) for k in (1, 2) for trial in (0, 2)]  # fmt: skip
    caption = shown(records)["From baseline to pretrained"]
    ((order, rows, _, _),) = given["slope_plot"]
    assert order == ["random", "a"]
    assert rows["svm/k=1 top1"] == {"a": (62, pytest.approx(2**0.5)), "random": (12, pytest.approx(2**0.5))}
    assert "measures" not in caption
    assert "checkpoints" not in caption


def test_eight_lines_eight_checkpoints_and_24_gains_are_drawn_and_the_captions_say_so(given):
    names = [f"n{index}" for index in range(9)] + ["random", "supervised"]
    records = [record(name, f"svm/k={k}", "top1", float(k + place))
               for place, name in enumerate(names) for k in range(1, 26)]  # fmt: skip
    captions = shown(records)
    ((order, rows, *_),) = given["slope_plot"]
    assert order == ["random", "supervised", *reversed(names[:6])]
    assert len(rows) == 8
    assert "8 of 25 measures. 8 of 11 checkpoints" in captions["From baseline to pretrained"]
    ((gains, _),) = given["gain_plot"]
    assert len(gains) == 24
    assert "24 of 25 measures. 8 of 11 checkpoints" in captions["What is gained over random"]
    assert {name for cells in gains.values() for name in cells} == {*names[:6], "supervised"}


def test_accuracies_over_amounts_of_labels_have_a_plot_a_task_data_set_and_protocol(given):
    records = [record(name, f"svm/k={k}", "top1", 10.0 * k + trial, trial=trial)
               for name in ("a", "random") for k in (4, 1) for trial in range(3)]  # fmt: skip
    records += [record("a", task, "top1", value, protocol="eman")
                for task, value in (("linear", 80.0), ("linear/1%", 40.0), ("linear/10%", 60.0))]  # fmt: skip
    records += [record("a", "finetune/10%", "top1", 1.0)]  # one amount is no curve
    captions = shown(records)
    assert captions["Low-shot curve"].startswith(
        "digits · imagenet/heldout: mean over 3 trials with k images per class; bands"
    )
    assert captions["Linear classification with few labels"].startswith(
        "digits · eman: mean over 1 trial with labelled images; bands"
    )
    (svm, _, svm_axis), (linear, _, linear_axis) = given["few_labels_plot"]
    assert svm_axis == "labelled images per class (k)"
    assert linear_axis == "fraction of the labels, %"
    assert sorted(svm["random"]) == [(1, 11, 1), (4, 41, 1)]
    assert sorted(linear["a"]) == [(1, 40, None), (10, 60, None), (100, 80, None)]
    assert list(linear) == ["a"]
    records.append(record("a", "svm/k=1", "top1", 10.0, trial=3))
    assert "mean over 3 to 4 trials" in shown(records)["Low-shot curve"]


@pytest.mark.parametrize(
    ("task", "amount"),
    [("svm/k=4", 4), ("svm/k=", 0), ("svm/8", 0), ("svm", 0), ("linear", 100), ("linear/10%", 10), ("linear/0.2%", 0.2),
     ("finetune/1%", 1), ("fixmatch/10%", 10), ("knn/k=20", 0), ("coco/bbox", 0), ("linear/all", 0),
     ("svm/k=1234567890", 0)],
)  # fmt: skip
def test_a_tasks_name_says_how_many_labels_it_has(task: str, amount: float):
    assert figures._amount(task) == amount


def test_agreements_are_drawn_for_24_pairs(given):
    records = [record(f"n{index}", f"svm/k={k}", "top1", float(index + (k * index) % 5))
               for index in range(5) for k in range(1, 9)]  # fmt: skip
    pairs = measure_pairs(aggregate(records))
    assert len(pairs) == 28
    caption = shown(records, pairs)["Which measure predicts which"]
    assert caption.endswith("over the 5 checkpoints. 24 of 28 pairs.")
    ((rows,),) = given["agreement_plot"]
    assert rows == {f"{p.first} → {p.second}": (p.found.tau, *p.found.tau_interval) for p in pairs[:24]}
    assert shown(records, pairs[:24])["Which measure predicts which"].endswith("over the 5 checkpoints.")


def test_runs_have_the_colour_of_their_checkpoint_and_others_a_free_one():
    assert run_colours(["x", "b", "y"], {"a": 0, "b": 1}) == {"x": 0, "b": 1, "y": 2}
    assert run_colours(["a", "b"], {"a": 0, "b": 1}) == {"a": 0, "b": 1}
    assert run_colours(["x"], {}) == {"x": 0}


def test_curves_of_one_kind_and_task_share_a_plot_that_says_how_each_run_ends(given):
    curves = [Curve("a", "loss", (1, 2), (3.0, 2.0)), Curve("b", "loss", (1,), (1.23456,)),
              Curve("a/fcos", "task_loss", (1,), (5.0,)), Curve("a/deep/er", "task_loss", (1,), (6.0,)),
              Curve("a", "unknown", (1,), (1.0,))]  # fmt: skip
    found = training_figures(curves, {"b": 0})
    assert [(plot.title, plot.caption) for plot in found] == [
        ("Pretraining loss", "a ends at 2, b ends at 1.235"),
        ("Training loss: fcos", "a ends at 5"),
        ("Training loss: deep", "a ends at 6"),
    ]
    assert given["curve_plot"][0][1] == {"a": 1, "b": 0}
    many = [Curve(f"a/task{n}", "loss", (1,), (1.0,)) for n in range(13)]
    assert [plot.title for plot in training_figures(many, {})] == [f"Pretraining loss: task{n}" for n in range(12)]


def test_similarities_and_norms_are_lines_over_stages_and_layers(given):
    other = {"name": "b", "network": "teacher"}
    records = [
        {**record("a", "cka", stage, value), "reference": other} for stage, value in (("res2", 90.0), ("res3", 50.0))
    ]
    records += [{**record("a", "cka", "res2", 91.0), "reference": other}]  # the last counts
    records += [{**record("c", "cka", "res3", 10.0, network="student"), "reference": {"name": "d"}}]
    records += [
        record("a", "weight_norm", layer, value) for layer, value in (("conv1", 4.0), ("res2", 2.0), ("res3", 9.0))
    ]
    records += [{**record("a", "weight_norm", "fc", 1.0), "value": None}, record("a", "knn/k=20", "top1", 1.0)]
    records += [{**record("a", "weight_norm", "fc", 1.0), "value": 10**400}]
    found, (similar, norms) = analysis_figures(records)
    assert [plot.title for plot in found] == ["CKA by stage", "Weight norms by layer"]
    (cka, _), (weights, _) = given["line_plot"]
    assert cka == {"a vs. b (teacher)": [("res2", 91), ("res3", 50)], "c (student) vs. d": [("res3", 10)]}
    assert weights == {"a": [("conv1", 4), ("res2", 2), ("res3", 9)]}
    assert similar.columns == ("res2", "res3")
    assert [[cell.main for cell in row.cells] for row in similar.rows] == [["91.0", "50.0"], ["–", "10.0"]]
    assert [[cell.main for cell in row.cells] for row in norms.rows] == [["2.00", "5.00", "9.00"]]
    assert analysis_figures([record("a", "knn/k=20", "top1", 1.0)]) == ([], [])
    many = [record(f"n{n}", "weight_norm", "conv1", 1.0) for n in range(9)]
    assert len(analysis_figures(many)[1][0].rows) == 8
