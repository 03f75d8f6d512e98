"""The section on errors: tables and plots of the analyses in run folders; damaged ones are left out with a notice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from momentum_transfer.report.detector_errors import KINDS, MATRIX
from momentum_transfer.report.page import build, render_html, render_markdown
from momentum_transfer.report.read_inputs import read_runs
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
