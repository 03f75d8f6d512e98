import json
import re
import statistics

import msgspec
import pytest
from scipy.stats import linregress

from momentum_transfer.core.errors import InputError
from momentum_transfer.report import read_inputs, sweeps
from momentum_transfer.report.aggregate import aggregate
from momentum_transfer.report.page import make_report, render_html
from momentum_transfer.report.read_inputs import Curve
from momentum_transfer.suites.sweep import PlotRequest

RUNS = {
    f"{norm}-{n}_seed{seed}": {"variant": f"{norm}-{n}", "settings": {"NORM": norm, "GROUP": n}, "seed": seed}
    for norm in ("BN", "EMAN")
    for n in (8, 16, 128)
    for seed in (0, 1, 2)
}


def record(name: str, task: str, value: float) -> dict:
    return {"task": task, "metric": "top1", "value": value, "checkpoint": {"name": name, "sha256": name}, "trial": 0}


def records() -> list[dict]:
    found = []
    for index, (name, run) in enumerate(RUNS.items()):
        found.append(record(name, "knn", run["settings"]["GROUP"] + run["seed"] ** 2))
        found.append(record(name, "linear", 2 * index + (index % 3) * 0.7))
    return found


@pytest.fixture
def drawn(monkeypatch):
    """What the drawing functions were given."""
    seen = []
    for name in ("setting_plot", "scatter_plot"):
        original = getattr(sweeps, name)
        monkeypatch.setattr(sweeps, name, lambda *given, original=original: (seen.append(given), original(*given))[1])
    return seen


def figures(*plots: PlotRequest, curves=()):
    return sweeps.sweep_figures([{"runs": RUNS, "plots": list(plots)}], aggregate(records()), curves)


def test_a_line_holds_mean_and_spread_over_seeds_of_each_setting(drawn):
    (plot,) = figures(PlotRequest("t", y="knn top1", x="GROUP", by="NORM", log=True))
    lines = drawn[0][0]
    assert list(lines) == ["BN", "EMAN"]
    assert [(point.x, point.mean) for point in lines["BN"]] == [(n, n + 5 / 3) for n in (8, 16, 128)]
    assert lines["BN"][0].std == pytest.approx(statistics.stdev([8, 9, 12]))
    assert "3 pretraining seed(s)" in plot.caption
    assert plot.svg.startswith("<svg")


def test_a_setting_of_words_keeps_the_suites_order(drawn):
    figures(PlotRequest("t", y="knn top1", x="variant"))
    assert drawn[0][3] == ["BN-8", "BN-16", "BN-128", "EMAN-8", "EMAN-16", "EMAN-128"]
    assert [point.x for point in drawn[0][0][""]] == [0, 1, 2, 3, 4, 5]


def test_lists_are_written_out_in_the_suites_order_as_augmentations_go_one_after_the_other(drawn):
    removed = [[], ["solarize"], ["solarize", "blur"], ["solarize", "blur", "grayscale"]]
    runs = {f"r{len(cut)}": {"variant": "", "settings": {"REMOVE": cut}, "seed": 0} for cut in removed}
    plot = PlotRequest("t", y="knn top1", x="REMOVE")
    lines = [record(name, "knn", 10.0 - place) for place, name in enumerate(runs)]
    (drawing,) = sweeps.sweep_figures([{"runs": runs, "plots": [plot]}], aggregate(lines[::-1]), ())
    assert drawn[0][3] == ["none", "solarize", "solarize, blur", "solarize, blur, grayscale"]
    assert [(point.x, point.mean) for point in drawn[0][0][""]] == [(0, 10), (1, 9), (2, 8), (3, 7)]
    assert "solarize, blur, grayscale<" in drawing.svg  # in full


def test_a_measure_over_another_has_scipys_regression_for_each_group(drawn):
    (plot,) = figures(PlotRequest("t", y="knn top1", x="linear top1", by="NORM"))
    groups, fits = drawn[0][:2]
    for label, points in groups.items():
        wanted = linregress([p[1] for p in points], [p[2] for p in points])
        assert fits[label] == pytest.approx((wanted.slope, wanted.intercept, wanted.rvalue))
    assert "n = 9" in plot.caption


@pytest.mark.parametrize("key", ["dataset", "protocol"])
def test_a_measure_may_name_its_data_set_or_its_protocol(key, drawn):
    lines = [{**record("BN-8_seed0", "linear", value), key: name} for name, value in (("A", 1.0), ("B", 2.0))]
    plot = PlotRequest("t", y="linear top1 @ B", x="GROUP")
    sweeps.sweep_figures([{"runs": RUNS, "plots": [plot]}], aggregate(lines), ())
    assert [point.mean for point in drawn[0][0][""]] == [2.0]


def test_curves_are_means_over_seeds_and_seconds_add_up(drawn):
    names = ["BN-8_seed0", "BN-8_seed1"]
    curves = [Curve(name, "knn_top1", (10, 20), (50.0 + i, 60.0 + i)) for i, name in enumerate(names)]
    curves += [Curve(name, "seconds", (5, 20), (0.2, 0.4)) for name in names]
    figures(
        PlotRequest("t", curve="knn_top1", by="NORM"), PlotRequest("t", curve="knn_top1", x="seconds"), curves=curves
    )
    assert [(p.x, p.mean) for p in drawn[0][0]["BN"]] == [(10, 50.5), (20, 60.5)]
    assert [p.x for p in drawn[1][0][""]] == pytest.approx([5 * 0.2 + 5 * 0.4, 5 * 0.2 + 15 * 0.4])


def test_what_a_point_takes_together_beside_seeds_is_said():
    (pooled, seeds) = figures(PlotRequest("t", y="knn top1", x="NORM"), PlotRequest("t", y="knn top1", x="variant"))
    assert "9 checkpoint(s), which differ in other settings too" in pooled.caption
    assert "3 pretraining seed(s)" in seeds.caption


def test_seeds_can_tell_lines_apart(drawn):
    figures(PlotRequest("t", y="knn top1", x="GROUP", by="SEED"))
    assert list(drawn[0][0]) == ["0", "1", "2"]


def test_seconds_count_from_the_start_of_training(drawn):
    name = "BN-8_seed0"
    curves = [Curve(name, "knn_top1", (5, 20), (40.0, 60.0)), Curve(name, "seconds", (10, 20), (0.2, 0.4))]
    figures(PlotRequest("t", curve="knn_top1", x="seconds"), curves=curves)
    assert [p.x for p in drawn[0][0][""]] == pytest.approx([1, 6])


def test_seconds_have_round_ticks_and_settings_their_own_values():
    curves = [
        Curve("BN-8_seed0", "knn_top1", (10, 20), (40.0, 60.0)),
        Curve("BN-8_seed0", "seconds", (10,), (0.12345,)),
    ]
    requests = (PlotRequest("t", curve="knn_top1", x="seconds"), PlotRequest("t", y="knn top1", x="GROUP", log=True))
    seconds, groups = figures(*requests, curves=curves)
    assert "1.2345" not in seconds.svg
    assert all(f">{n}<" in groups.svg for n in (8, 16, 128))


def test_lines_keep_the_suites_order_in_every_plot_whatever_came_first(drawn):
    requests = [PlotRequest("t", y="knn top1", x="GROUP", by="NORM"), PlotRequest("t", curve="knn_top1", by="NORM")]
    requests.append(PlotRequest("t", y="knn top1", x="linear top1", by="NORM"))
    curves = [Curve(name, "knn_top1", (1, 2), (40.0, 60.0)) for name in reversed(RUNS)]
    sweeps.sweep_figures([{"runs": RUNS, "plots": requests}], aggregate(records()[::-1]), curves)
    assert [list(given[0]) for given in drawn] == [["BN", "EMAN"]] * 3


def test_seconds_of_seeds_are_averaged_step_by_step(drawn):
    curves = []
    for name, pace in (("BN-8_seed0", 0.1), ("BN-8_seed1", 0.3)):
        curves += [Curve(name, "knn_top1", (10, 20), (50.0, 60.0)), Curve(name, "seconds", (10, 20), (pace, pace))]
    figures(PlotRequest("t", curve="knn_top1", x="seconds", by="NORM"), curves=curves)
    assert [(p.x, p.mean, p.std) for p in drawn[0][0]["BN"]] == [(pytest.approx(2), 50, 0), (pytest.approx(4), 60, 0)]


def test_what_is_not_measured_yet_is_said():
    plots = [
        PlotRequest("t", y="svm top1", x="GROUP"),
        PlotRequest("t", y="svm top1", x="knn top1"),
        PlotRequest("t", curve="knn_top1"),
    ]
    assert [(plot.svg, "Not drawn" in plot.caption) for plot in figures(*plots)] == [("", True)] * 3


def test_the_page_draws_what_stands_beside_the_records(tmp_path):
    file = tmp_path / "results.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in records()), encoding="utf-8")
    plot = PlotRequest("Images <per> BN", y="knn top1", x="GROUP", by="NORM")
    content = {"runs": RUNS, "plots": [msgspec.to_builtins(plot)]}
    (tmp_path / "suite.json").write_text(json.dumps(content), encoding="utf-8")
    page = render_html(make_report([file]))
    assert "Images &lt;per&gt; BN" in page
    assert re.search(r'<svg role="img" aria-label="knn top1 over GROUP"', page)


@pytest.mark.parametrize("text", ["{", "[]", '{"runs": {}}', '{"runs": {}, "plots": [{"title": 1, "no": 2}]}'])
def test_a_damaged_description_is_refused(text, tmp_path):
    (tmp_path / "suite.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"suite\.json"):
        read_inputs.read_suites([tmp_path / "results.jsonl"])


@pytest.mark.parametrize(("length", "rotation"), [(25, 0), (26, 30)])
def test_names_of_settings_are_turned_where_fifty_characters_do_not_hold_them(length: int, rotation: int, canvases):
    lines = {"": [sweeps.Point(0, 1.0, None), sweeps.Point(1, 2.0, None)]}
    sweeps.setting_plot(lines, "REMOVE", "top1", ["a" * 25, "b" * length], False)
    assert {tick.get_rotation() for tick in canvases[0].get_xticklabels()} == {rotation}


@pytest.mark.parametrize(
    ("places", "x", "log", "scale", "own"),
    [((1, 8), "GROUP", True, "log", True), ((0, 8), "GROUP", True, "linear", True),
     ((1, 8), "GROUP", False, "linear", True),
     (tuple(range(1, 13)), "GROUP", True, "log", True), (tuple(range(1, 14)), "GROUP", True, "linear", False),
     ((1, 8), "seconds", True, "linear", False), ((1, 8), "step", False, "linear", False)],
)  # fmt: skip
def test_up_to_twelve_values_of_a_setting_are_the_ticks_of_its_axis(places, x, log, scale, own, canvases):
    sweeps.setting_plot({"": [sweeps.Point(place, 1.0, None) for place in places]}, x, "top1", None, log)
    (axes,) = canvases
    assert axes.get_xscale() == scale
    assert (tuple(axes.get_xticks()) == places) is own
    assert axes.get_legend() is None


@pytest.mark.parametrize(("count", "named"), [(12, 12), (13, 0)])
def test_checkpoints_are_points_with_their_groups_line_and_named_up_to_twelve(count: int, named: int, canvases):
    points = [(f"n{index}", float(index), 2.0 * index + 1) for index in range(count - 1)]
    sweeps.scatter_plot({"BN": points, "GN": [("m", 3.0, 4.0)]}, {"BN": (2.0, 1.0, 1.0), "GN": None}, "knn", "linear")
    (axes,) = canvases
    first, line, second = axes.get_lines()
    assert first.get_xydata().tolist() == [list(point[1:]) for point in points]
    assert line.get_xydata().tolist() == [[0, 1], [count - 2, 2 * (count - 2) + 1]]
    assert second.get_xydata().tolist() == [[3, 4]]
    assert {text.get_text(): text.xy for text in axes.texts} == {
        name: (x, y) for name, x, y in [*points, ("m", 3.0, 4.0)][:named]
    }
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["BN", "GN"]


def test_of_two_points_or_one_place_there_is_no_regression():
    assert sweeps._regression([("a", 1.0, 2.0), ("b", 2.0, 3.0)]) is None
    assert sweeps._regression([("a", 1.0, 2.0), ("b", 1.0, 3.0), ("c", 1.0, 4.0)]) is None
    assert sweeps._regression([("a", 1.0, 2.0), ("b", 2.0, 4.0), ("c", 3.0, 6.0)]) == pytest.approx((2, 0, 1))


def test_points_over_unlike_numbers_of_seeds_say_from_how_many_to_how_many():
    lines = [line for line in records() if line["checkpoint"]["name"] not in ("BN-8_seed1", "BN-8_seed2")]
    plot = PlotRequest("t", y="knn top1", x="GROUP", by="NORM")
    (few,) = sweeps.sweep_figures([{"runs": RUNS, "plots": [plot]}], aggregate(lines), ())
    assert "mean over 1 to 3 pretraining seed(s)" in few.caption
    (all_of_them,) = figures(plot)
    assert "mean over 3 pretraining seed(s)" in all_of_them.caption
