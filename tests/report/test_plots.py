"""Every plot shows the numbers that it was given where its axes say they are, in colours that the page defines."""

import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer

from momentum_transfer.report import plots
from momentum_transfer.report.read_inputs import Curve

COLOURS = {"a": 0, "b": 1, "c": 2}
CSS = Path(plots.__file__).with_name("style.css").read_text(encoding="utf-8")


def whiskers(container: ErrorbarContainer) -> tuple[float, float, float, float]:
    """Place of a mark and the ends of its horizontal whisker."""
    (x,), (y,) = container[0].get_data()
    ((left, _), (right, _)) = container[2][0].get_segments()[0]
    return float(x), float(y), float(left), float(right)


def lines_of(axes) -> dict[str, list[tuple[float, float]]]:
    return {str(line.get_label()): list(zip(*map(list, line.get_data()), strict=True)) for line in axes.get_lines()}


def ticks(axis) -> dict[float, str]:
    return dict(zip(axis.get_ticklocs().tolist(), [tick.get_text() for tick in axis.get_ticklabels()], strict=True))


def test_series_have_eight_colours_of_the_page_and_eight_marks():
    assert len({plots.series_colour(index) for index in range(8)}) == 8
    assert len({plots.series_marker(index) for index in range(8)}) == 8
    assert plots.series_colour(8) == plots.series_colour(0)
    assert plots.series_marker(9) == plots.series_marker(1)
    assert set(re.findall(r"--series-(\d+)", CSS)) == set(map(str, range(8)))


def test_labels_are_cut_at_their_length_and_never_hidden():
    assert plots.short_label("a" * 40) == "a" * 40
    assert plots.short_label("a" * 41) == "a" * 39 + "…"
    assert plots.short_label("abcdef", 6) == "abcdef"
    assert plots.short_label("abcdefg", 6) == "abcde…"
    assert plots.short_label("_a") == " _a"  # matplotlib hides what begins with an underscore


def test_one_svg_has_its_title_its_axes_names_and_only_colours_of_the_page():
    drawn = []
    for number in (1, 2):
        figure, axes = plots.make_axes(4, 3)
        axes.plot([0, number], [0, 1], color=plots.series_colour(7), label="$a$")
        drawn.append(plots.finish(figure, "A plot", "<b> & co", x="recall, %", y="precision", legend=number == 2))
    assert drawn[0].startswith('<svg role="img" aria-label="&lt;b&gt; &amp; co"')
    assert drawn[0].endswith("</svg>\n")
    opening = drawn[0][: drawn[0].index(">")]
    assert "viewBox" in opening
    assert not re.search(r" (width|height)=", opening)
    for text in ("recall, %", "precision", "var(--series-7)"):
        assert text in drawn[0]
    assert "$a$" in drawn[1]
    assert "$a$" not in drawn[0]  # no legend
    for svg in drawn:
        assert not any(word in svg for word in (*plots._SENTINELS, "font-family", "<metadata", "<style"))
    first, second = (set(re.findall(r' id="([^"]+)"', svg)) for svg in drawn)
    assert first
    assert not first & second, "two plots of one name on a page"
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', drawn[1]))
    assert used <= second


def test_a_file_of_its_own_needs_no_style_sheet():
    figure, axes = plots.make_axes(4, 3)
    axes.plot([0, 1], color=plots.series_colour(0))
    alone = plots.standalone(plots.finish(figure, "x", "t"))
    assert "var(" not in alone
    assert re.findall(r"--series-0: (#\w+)", CSS)[0] in alone  # the light page's, which comes first
    assert alone.startswith('<svg style="background: #')


def test_gains_stand_in_their_rows_with_their_intervals_filled_where_they_count(canvases):
    rows = {"knn": {"a": (5.0, 3.0, 9.0, True), "b": (-2.0, -4.0, 1.0, False)}, "svm": {"a": (1.0, None, None, False)}}
    plots.gain_plot(rows, COLOURS)
    (axes,) = canvases
    marks = [one for one in axes.containers if isinstance(one, ErrorbarContainer)]
    (knn_a, knn_b, svm_a) = map(whiskers, marks)
    assert (knn_a[0], knn_a[2:], knn_b[0], knn_b[2:]) == (5, (3, 9), -2, (-4, 1))
    assert (svm_a[0], svm_a[2:]) == (1, (1, 1))
    assert [round(mark[1]) for mark in (knn_a, knn_b, svm_a)] == [0, 0, 1]
    assert knn_a[1] < 0 < knn_b[1]  # side by side, around the middle of the row
    assert knn_a[1] + knn_b[1] == pytest.approx(0)
    assert svm_a[1] - 1 == pytest.approx(knn_a[1])
    fills = [mark[0].get_markerfacecolor() for mark in marks]
    assert fills == [plots.series_colour(0), plots.PAPER, plots.PAPER]
    assert [mark[0].get_color() for mark in marks] == [plots.series_colour(n) for n in (0, 1, 0)]
    assert ticks(axes.yaxis) == {0: "knn", 1: "svm"}
    low, high = axes.get_ylim()
    assert low > 1.3  # the first row is on top and the last one whole
    assert high < -0.3
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b"]
    plots.gain_plot({"knn": {"a": (5.0, 3.0, 9.0, True)}}, COLOURS)
    assert canvases[1].get_legend() is None
    ((_, y, _, _),) = (whiskers(one) for one in canvases[1].containers)
    assert y == pytest.approx(0)


def test_more_rows_make_a_taller_plot(canvases):
    for count in (2, 5, 10):
        plots.gain_plot({f"task {n}": {"a": (1.0, None, None, False)} for n in range(count)}, COLOURS)
    few, five, ten = (axes.figure.get_figheight() for axes in canvases)
    assert few == five < ten


def test_agreements_have_their_intervals_and_none_where_it_is_undefined(canvases):
    plots.agreement_plot({"x → y": (0.5, 0.1, 0.8), "x → z": (-1.0, float("nan"), float("nan"))})
    (axes,) = canvases
    assert [whiskers(one) for one in axes.containers] == [(0.5, 0, pytest.approx(0.1), pytest.approx(0.8)),
                                                          (-1, 1, -1, -1)]  # fmt: skip
    low, high = axes.get_xlim()
    assert low < -1
    assert high > 1


def test_whiskers_end_at_the_interval_and_never_point_inwards():
    assert plots._whisker(5.0, 3.0, 9.0) == [[2.0], [4.0]]
    assert plots._whisker(5.0, 6.0, 9.0) == [[0.0], [4.0]]
    assert plots._whisker(5.0, 3.0, 4.0) == [[2.0], [0.0]]
    for low, high in ((None, 6.0), (4.0, None), (float("nan"), float("nan"))):
        assert plots._whisker(5.0, low, high) == [[0.0], [0.0]]


def test_lines_over_labels_are_sorted_with_bands_of_one_standard_deviation(canvases):
    points = [(10.0, 60.0, 3.0), (1.0, 40.0, None), (5.0, 50.0, 2.0)]
    plots.few_labels_plot({"a": points, "b": [(1.0, 30.0, 1.0)]}, COLOURS, "labels")
    (axes,) = canvases
    assert lines_of(axes) == {"a": [(1, 40), (5, 50), (10, 60)], "b": [(1, 30)]}
    band = axes.collections[0].get_paths()[0].vertices
    for x, low, high in ((1, 40, 40), (5, 48, 52), (10, 57, 63)):
        ends = [y for place, y in band if place == x]
        assert (min(ends), max(ends)) == (low, high)
    assert ticks(axes.xaxis) == {1: "1", 5: "5", 10: "10"}
    assert axes.get_xscale() == "log"
    assert axes.xaxis.get_transform().base == 2
    assert axes.get_ylabel() == "accuracy, %"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b"]


def test_long_lines_have_no_marks(canvases):
    for count in (39, 40):
        _, axes = plots.make_axes(4, 3)
        assert plots.banded_lines(axes, {"": [(x, 1.0, None) for x in range(count)]}, {"": 0}) == list(range(count))
    assert [axes.get_lines()[0].get_marker() for axes in canvases] == [plots.series_marker(0), "None"]
    assert canvases[0].get_lines()[0].get_label() == "all"


def test_the_slope_chart_has_a_line_a_task_over_the_checkpoints_that_it_has(canvases):
    rows = {"knn": {"a": (10.0, 2.0), "b": (30.0, None), "c": (20.0, 1.0)}, "svm": {"a": (5.0, None), "c": (19.9, 0.0)}}
    plots.slope_plot(["a", "b", "c"], rows, COLOURS, "t")
    (axes,) = canvases
    drawn = [line.get_xydata().tolist() for line in axes.get_lines() if len(line.get_xdata()) > 1]
    assert drawn[0] == [[0, 10], [1, 30], [2, 20]]
    assert [[0, 5], [2, 19.9]] in drawn
    bars = [one for one in axes.containers if isinstance(one, ErrorbarContainer)]
    spans = [tuple(one[2][0].get_segments()[0][:, 1]) for one in bars]
    assert spans == [(8, 12), (30, 30), (19, 21), (5, 5), (19.9, 19.9)]
    assert [one[0].get_color() for one in bars] == [plots.series_colour(n) for n in (0, 1, 2, 0, 2)]
    assert ticks(axes.xaxis) == {0: "a", 1: "b", 2: "c"}
    low, high = axes.get_xlim()
    assert low < 0 < 2 < high < 2.5
    names = {text.get_text(): text.xy for text in axes.texts}
    assert set(names) == {"knn", "svm"}
    assert names["knn"][1] > names["svm"][1]  # moved apart, in the order of their lines' ends


@pytest.mark.parametrize(("count", "rotation"), [(5, 0), (6, 90)])
def test_names_of_many_checkpoints_stand_upright(canvases, count: int, rotation: int):
    names = [f"n{index}" for index in range(count)]
    rows = {"knn": {name: (float(index), None) for index, name in enumerate(names)}}
    plots.slope_plot(names, rows, {name: index for index, name in enumerate(names)}, "t")
    assert {tick.get_rotation() for tick in canvases[0].get_xticklabels()} == {rotation}


def test_labels_are_moved_apart_by_one_line_and_stay_on_the_axes():
    _, axes = plots.make_axes(6, 4)
    axes.set_ylim(0, 100)
    gap = 100 * 0.26 / 4  # a line of text takes .26 inches
    assert plots._spread([], axes, 4) == []
    assert plots._spread([10.0, 50.0, 90.0], axes, 4) == [10, 50, 90]
    close = plots._spread([10.0, 10.0, 11.0], axes, 4)
    assert close == pytest.approx([10, 10 + gap, 10 + 2 * gap])
    top = plots._spread([98.0, 99.0, 99.5], axes, 4)
    assert top[-1] == pytest.approx(100)
    assert np.diff(top) == pytest.approx([gap, gap])


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("short", ["short"]),
        ("momentum2_digits", ["momentum2_", "digits"]),
        ("a-b_c", ["a-b_c"]),
        ("twelve_chars", ["twelve_chars"]),  # 12 fit
        ("thirteen_char", ["thirteen_", "char"]),
        ("averyverylongword", ["averyverylongword"]),
    ],
)
def test_a_long_name_is_broken_after_its_joints(name: str, lines: list[str]):
    assert plots._in_lines(name).split("\n") == lines


def test_trials_of_a_checkpoint_have_one_name_and_one_colour(canvases):
    curves = [Curve("a", "loss", (1, 2), (3.0, 2.0)), Curve("b", "loss", (1, 2), (9.0, 8.0)),
              Curve("a", "loss", (1, 2), (3.5, 2.5))]  # fmt: skip
    plots.curve_plot(curves, COLOURS, "loss", "loss")
    (axes,) = canvases
    assert [line.get_xydata().tolist() for line in axes.get_lines()] == [
        [[1, 3], [2, 2]], [[1, 9], [2, 8]], [[1, 3.5], [2, 2.5]]
    ]  # fmt: skip
    assert [line.get_color() for line in axes.get_lines()] == [plots.series_colour(n) for n in (0, 1, 0)]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b"]


@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 17])
def test_long_curves_are_thinned_by_means_of_equal_blocks(count: int):
    values = np.random.default_rng(0).random(count)
    size = 1
    while size * 8 < count:
        size += 1
    blocks = [values[start : start + size].mean() for start in range(0, count, size)]
    assert plots._thin(list(values), 8) == pytest.approx(blocks)
    assert len(blocks) <= 8
    assert len(plots._thin([0.0] * 400)) == 400
    assert len(plots._thin([0.0] * 401)) == 201


def test_values_by_layer_stand_at_the_place_of_their_layer(canvases):
    plots.line_plot({"a": [("conv1", 1.0), ("res2", 2.0)], "b": [("res2", 5.0), ("res3", 6.0)]}, "norm")
    (axes,) = canvases
    assert lines_of(axes) == {"a": [(0, 1), (1, 2)], "b": [(1, 5), (2, 6)]}
    assert ticks(axes.xaxis) == {0: "conv1", 1: "res2", 2: "res3"}
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b"]
    assert {tick.get_rotation() for tick in axes.get_xticklabels()} == {0}


@pytest.mark.parametrize(("count", "step"), [(20, 1), (21, 2), (41, 3)])
def test_of_many_layers_at_most_twenty_are_named_and_all_are_drawn(canvases, count: int, step: int):
    names = [f"layer{n}" for n in range(count)]
    plots.line_plot({"a": [(name, float(n)) for n, name in enumerate(names)]}, "norm")
    assert ticks(canvases[0].xaxis) == {n: names[n] for n in range(0, count, step)}
    assert len(canvases[0].get_lines()[0].get_xdata()) == count
    assert {tick.get_rotation() for tick in canvases[0].get_xticklabels()} == {60}


@pytest.mark.parametrize(("length", "rotation"), [(25, 0), (26, 60)])
def test_names_of_layers_are_turned_where_fifty_characters_do_not_hold_them(canvases, length: int, rotation: int):
    plots.line_plot({"x": [("a" * 25, 1.0), ("b" * length, 2.0)]}, "norm")
    assert {tick.get_rotation() for tick in canvases[0].get_xticklabels()} == {rotation}
