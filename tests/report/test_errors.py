"""The section on errors: tables and plots of the analyses in run folders; damaged ones are left out with a notice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from momentum_transfer.report.detector_errors import KINDS, MATRIX, ErrorPart, error_parts
from momentum_transfer.report.page import build, render_html, render_markdown
from momentum_transfer.report.read_inputs import Analysis, read_runs
from tests.report.report_records import small_records


def analysis(ap50: float = 60.0, classes: int = 2, **changes) -> dict:
    """What ``transfer/error_analysis`` writes."""
    kinds = {kind: {"number": n, "cost": float(n)} for n, kind in enumerate(KINDS)}
    entry = {"objects": 5, "detections": 9, "ap": 30.0, "ap50": ap50, "threshold": 0.4, "precision": 50.0,
             "recall": 40.0, "f1": 44.4, "kinds": dict.fromkeys(KINDS, 1), "curve": [1.0, 0.5, 0.0]}  # fmt: skip
    hard = {"file_name": "a.png", "objects": 3, "right": 1, "wrong": 2, "missed": 2, "f1": 33.3, "kinds": {"both": 2}}
    return {
        "format": 1, "iou_type": "bbox", "ap50": ap50, "kinds": kinds,
        "sides": {"false positives": 9.0, "false negatives": 8.0},
        "classes": [{**entry, "name": f"<b>class {k}", "objects": 5 - k if k < 5 else 0} for k in range(classes)],
        "curve": [1.0, 0.5, 0.0], "confusion": [[0, 0, 4], [0, 1, 1], [classes, 0, 2], [1, classes, 3]],
        "calibration": {"number": [4, 0], "score": [0.3, None], "precision": [0.5, None], "error": 20.0},
        "hardest": [hard], **changes,
    }  # fmt: skip


def write(folder: Path, content: object, name: str = "errors_digits_bbox.json") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder


def test_runs_of_one_detector_stand_in_one_part_with_their_costs_and_classes(tmp_path: Path):
    folders = [write(tmp_path / name / "fcos", analysis(ap50)).parent for name, ap50 in (("a", 60.0), ("b", 70.0))]
    report = build(small_records(), runs=read_runs(folders))
    (part,) = report.errors
    assert part.title == "fcos: digits, boxes"
    costs, classes = part.tables
    assert [row.label for row in costs.rows] == ["a", "b"]
    assert [cell.text for cell in costs.rows[0].cells] == [
        "60.0", "0.0 (0)", "1.0 (1)", "2.0 (2)", "3.0 (3)", "4.0 (4)", "5.0 (5)", "9.0", "8.0"
    ]  # fmt: skip
    assert classes.columns == ("objects", "a", "b")
    assert [row.label for row in classes.rows] == ["<b>class 0", "<b>class 1"]
    titles = [plot.title for plot in part.plots]
    assert titles == ["What each kind of error costs", "Precision over recall", "Calibration", "Confusions of a",
                      "Confusions of b"]  # fmt: skip
    assert [table.title for table in part.details] == [
        f"{what} of {run}" for run in ("a", "b") for what in ("Classes", "Hardest images")
    ]
    page, text = render_html(report), render_markdown(report)
    assert 'href="#errors"' in page
    assert "&lt;b&gt;class 0" in page
    assert "<b>class" not in page
    assert "2 both" in text
    assert "How to read these numbers" in page


def test_many_classes_have_their_most_frequent_confusions_in_a_table(tmp_path: Path):
    content = analysis(classes=MATRIX + 1)
    content["confusion"] = [[0, 1, 3], [2, 1, 7], [0, 0, 9], [0, MATRIX + 1, 5]]
    (part,) = build(small_records(), runs=read_runs([write(tmp_path / "run", content)])).errors
    assert not any(plot.title.startswith("Confusions") for plot in part.plots)
    (table,) = [table for table in part.details if table.title.startswith("Confusions")]
    assert [(row.label, row.cells[0].main) for row in table.rows] == [
        ("<b>class 2 → <b>class 1", "7"), ("<b>class 0 → <b>class 1", "3")
    ]  # fmt: skip


def test_values_that_are_undefined_are_dashes(tmp_path: Path):
    content = analysis(
        ap50=None, curve=[], calibration={"number": [0], "score": [None], "precision": [None], "error": None}
    )
    for entry in content["classes"]:
        entry |= dict.fromkeys(("ap", "ap50", "threshold", "precision", "recall", "f1"))
    (part,) = build(small_records(), runs=read_runs([write(tmp_path / "run", content)])).errors
    assert part.tables[0].rows[0].cells[0].main == "–"
    assert {cell.main for cell in part.details[0].rows[0].cells[1:7]} == {"–"}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"format": 2}, "of another version"),
        ({"format": 1}, "not an analysis of errors"),
        ([1], "expected an object, found list"),
        (analysis(classes=2, confusion=[[0, 0]]), "not an analysis of errors"),
        (analysis(hardest=[{"f1": "much"}]), "not an analysis of errors"),
    ],
)
def test_a_damaged_analysis_is_a_notice_and_the_page_is_made(content, problem, tmp_path: Path):
    report = build(small_records(), runs=read_runs([write(tmp_path / "run", content)]))
    assert not report.errors
    assert any(problem in notice for notice in report.notices)
    assert 'id="errors"' not in render_html(report)


def part_of(*contents: dict) -> ErrorPart:
    """The section's only part, of one run a content: a, b, …"""
    found = [Analysis(run, "fcos", "digits_bbox", content) for run, content in zip("abcdef", contents, strict=False)]
    notices: list[str] = []
    (part,) = error_parts(found, {}, notices)
    assert not notices
    return part


def by_label(canvases: list, ylabel: str) -> list:
    return [axes for axes in canvases if axes.get_ylabel() == ylabel]


def test_costs_are_bars_of_their_length_beside_each_other_in_the_row_of_their_kind(canvases):
    other = analysis()
    other["kinds"] = {kind: {"number": 1, "cost": 2.0 * n + 1} for n, kind in enumerate(KINDS)}
    part_of(analysis(), other)
    (axes,) = [axes for axes in canvases if axes.get_xlabel() == "points of AP50"]
    first, second = axes.containers
    assert [bar.get_width() for bar in first] == [0, 1, 2, 3, 4, 5]
    assert [bar.get_width() for bar in second] == [1, 3, 5, 7, 9, 11]
    for row, (above, below) in enumerate(zip(first, second, strict=True)):
        ends = [edge for bar in (above, below) for edge in (bar.get_y(), bar.get_y() + bar.get_height())]
        assert sorted(ends) == ends  # they do not overlap
        assert sum(ends) / 4 == pytest.approx(row)
        assert row - 0.5 < ends[0] < ends[-1] < row + 0.5
    assert [tick.get_text() for tick in axes.get_yticklabels()] == list(KINDS)
    assert axes.get_ylim() == (5.5, -0.5)  # the first kind on top
    assert 11 < axes.get_xlim()[1] < 13  # the longest bar and its number fit
    assert [text.get_text() for text in axes.texts] == [f"{n}.0" for n in (0, 1, 2, 3, 4, 5, 1, 3, 5, 7, 9, 11)]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b"]


def test_a_single_detector_needs_no_legend_of_its_costs(canvases):
    part_of(analysis())
    (axes,) = [axes for axes in canvases if axes.get_xlabel() == "points of AP50"]
    assert axes.get_legend() is None
    assert [bar.get_y() + bar.get_height() / 2 for bar in axes.containers[0]] == pytest.approx(range(6))


def test_precision_stands_over_recall_from_0_to_100_percent(canvases):
    content = analysis(curve=[1.0, 0.9, 0.6, 0.3, 0.0])
    scores = [50.0, 40.0, None, 95.0, 10.0, 20.0, 30.0, 60.0, 70.0, 80.0, 90.0]
    content["classes"] = [{**content["classes"][0], "name": f"c{k}", "ap50": ap} for k, ap in enumerate(scores)]
    part = part_of(content)
    mean, classes = by_label(canvases, "precision, %")
    (line,) = mean.get_lines()
    assert line.get_xydata().tolist() == [[0, 100], [25, 90], [50, 60], [75, 30], [100, 0]]
    # the eight of lowest AP50 that have one
    assert [line.get_label() for line in classes.get_lines()] == ["c4", "c5", "c6", "c1", "c0", "c7", "c8", "c9"]
    assert [plot.title for plot in part.plots][:3] == [
        "What each kind of error costs", "Precision over recall", "Precision over recall by class"
    ]  # fmt: skip


def test_calibration_has_a_mark_a_bin_that_grows_with_what_it_holds(canvases):
    calibration = {"number": [10, 0, 40], "score": [0.1, None, 0.9], "precision": [0.3, None, 0.7], "error": 20.0}
    part = part_of(analysis(calibration=calibration))
    (axes,) = by_label(canvases, "fraction of right detections")
    equal, line = axes.get_lines()
    assert equal.get_xydata().tolist() == [[0, 0], [1, 1]]
    assert line.get_xydata().tolist() == [[0.1, 0.3], [0.9, 0.7]]
    (marks,) = axes.collections
    assert marks.get_offsets().tolist() == [[0.1, 0.3], [0.9, 0.7]]
    small, large = marks.get_sizes()
    assert large - 20 == pytest.approx(4 * (small - 20))  # 40 detections and 10, above the smallest mark
    assert small > 20
    (caption,) = (plot.caption for plot in part.plots if plot.title == "Calibration")
    assert "Mean gap: a 20.0 %" in caption


def test_confusions_are_squares_at_their_row_and_column_shaded_by_their_share_of_the_row(canvases):
    part_of(analysis(confusion=[[0, 0, 6], [0, 1, 2], [1, 2, 5], [2, 0, 3]]))
    (axes,) = by_label(canvases, "is")
    squares = {(patch.get_y() + 0.5, patch.get_x() + 0.5): patch for patch in axes.patches}
    assert set(squares) == {(0, 0), (0, 1), (1, 2), (2, 0)}
    assert all((patch.get_width(), patch.get_height()) == (1, 1) for patch in axes.patches)
    shades = {place: patch.get_alpha() for place, patch in squares.items()}
    faint = shades[0, 1] - (shades[1, 2] - shades[0, 1]) / 3  # of a share of 0; shares are 1/4 and 1
    assert shades[0, 0] - faint == pytest.approx(3 * (shades[0, 1] - faint))
    assert shades[2, 0] == shades[1, 2] <= 1
    assert faint > 0
    colours = {place: patch.get_facecolor()[:3] for place, patch in squares.items()}
    assert colours[0, 0] != colours[0, 1] == colours[1, 2]
    assert {text.get_position(): text.get_text() for text in axes.texts} == {
        (0, 0): "6", (1, 0): "2", (2, 1): "5", (0, 2): "3"
    }  # fmt: skip
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["<b>class 0", "<b>class 1", "missed"]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["<b>class 0", "<b>class 1", "background"]
    assert (axes.get_xlim(), axes.get_ylim()) == ((-0.5, 2.5), (2.5, -0.5))


def test_four_detectors_have_tables_and_confusions_of_their_own():
    part = part_of(*(analysis(ap50=60.0 + n) for n in range(5)))
    assert len(part.tables[0].rows) == 5
    assert [plot.title for plot in part.plots if "Confusions" in plot.title] == [f"Confusions of {n}" for n in "abcd"]
    assert [table.title for table in part.details if "Classes" in table.title] == [f"Classes of {n}" for n in "abcd"]
    assert not any("by class" in plot.title for plot in part.plots)  # with several runs, of none


def test_as_many_classes_as_fit_have_a_matrix():
    part = part_of(analysis(classes=MATRIX))
    assert [plot.title for plot in part.plots][-1] == "Confusions of a"
    assert [table.title for table in part.details] == ["Classes of a", "Hardest images of a"]


def test_fifteen_pairs_ten_images_and_a_hundred_classes_are_listed():
    content = analysis(classes=101)
    for k, entry in enumerate(content["classes"]):
        entry |= {"name": f"c{k}", "objects": 200 - k if k else 0, "detections": 0, "ap50": None if k == 50 else 1.0}
    content["classes"] += [{**content["classes"][0], "name": "more"}]  # neither objects nor detections, as c0
    content["confusion"] = [[1, k, k] for k in range(2, 19)]
    content["hardest"] = [{**content["hardest"][0], "file_name": f"{k}.png"} for k in range(11)]
    part = part_of(content, content)
    classes, pairs, images = part.details[:3]
    assert [row.label for row in pairs.rows] == [f"c1 → c{k}" for k in range(18, 3, -1)]
    assert [row.label for row in images.rows] == [f"{k}.png" for k in range(10)]
    names = [f"c{k}" for k in range(1, 101)]
    assert [row.label for row in part.tables[1].rows] == names
    names.remove("c50")
    assert [row.label for row in classes.rows] == [*names, "c50"]  # what is undefined stands last
    assert "most frequent" not in classes.caption
    content["classes"][0]["objects"] = 300
    part = part_of(content, content)
    assert [row.label for row in part.details[0].rows][:2] == ["c0", "c1"]
    assert len(part.details[0].rows) == len(part.tables[1].rows) == 100
    for table in (part.details[0], part.tables[1]):
        assert "The 100 most frequent of 101 classes." in table.caption


def test_the_best_of_each_class_is_marked_as_shown_and_ap50_stands_in_for_ap():
    first, second = analysis(classes=3), analysis(classes=3)
    for content, aps in ((first, (30.04, 20.0, None)), (second, (29.96, 30.0, None))):
        for entry, ap in zip(content["classes"], aps, strict=True):
            entry["ap"] = ap
    first["classes"][2]["ap50"], second["classes"][2]["ap50"] = 7.0, None
    rows = part_of(first, second).tables[1].rows
    assert [[cell.main for cell in row.cells] for row in rows] == [
        ["5", "30.0", "30.0"], ["4", "20.0", "30.0"], ["3", "7.0", "–"]
    ]  # fmt: skip
    assert [[cell.best for cell in row.cells[1:]] for row in rows] == [[True, True], [False, True], [True, False]]


def test_a_class_has_its_numbers_and_an_image_its_mistakes_by_kind():
    content = analysis(classes=1)
    content["hardest"] = [{**content["hardest"][0], "kinds": {"both": 2, "duplicate": 0, "missed": 1}},
                          {**content["hardest"][0], "kinds": {"both": 0}}]  # fmt: skip
    classes, images = part_of(content).details
    cells = dict(zip(classes.columns, [cell.main for cell in classes.rows[0].cells], strict=True))
    assert cells == {
        "objects": "5", "AP": "30.0", "AP50": "60.0", "threshold": "0.40", "precision": "50.0", "recall": "40.0",
        "F1": "44.4", **dict.fromkeys(KINDS, "1"),
    }  # fmt: skip
    assert [row.cells[-1].main for row in images.rows] == ["2 both, 1 missed", "–"]
    assert [cell.main for cell in images.rows[0].cells[:-1]] == ["33.3", "3", "1", "2", "2"]


def test_masks_and_data_sets_of_any_name_have_their_title():
    names = ("my_set_segm", "plain")
    parts = error_parts([Analysis("a", ".", name, analysis()) for name in names], {}, [])
    assert [part.title for part in parts] == ["my_set, masks", "plain"]
