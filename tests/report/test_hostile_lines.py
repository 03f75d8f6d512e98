"""Lines that are no records are skipped and counted, whatever is in them; text from records is no markup."""

import json

import pytest

from momentum_transfer.core import records
from momentum_transfer.report.page import make_report, render_html, render_markdown
from momentum_transfer.report.read_inputs import read_runs

GOOD = {"task": "knn/k=20", "metric": "top1", "value": 50.0, "checkpoint": {"name": "m2", "sha256": "a"}}
GARBAGE = {
    "digits": '{"task": "a", "metric": "b", "checkpoint": {}, "value": ' + "7" * 5000 + "}",
    "brackets": "[" * 100_000,
    "whole brackets": "[" * 100_000 + "]" * 100_000,
    "braces": '{"a":' * 100_000,
    "surrogate": json.dumps({**GOOD, "task": "a\ud800b"}),
    "surrogate in a key": json.dumps({**GOOD, "\udfff": 1}),
    "surrogate deep": json.dumps({**GOOD, "details": [{"a": "\ud800"}]}),
    "bytes": "\x00\x01\x02",
    "number": "12",
    "half": '{"task": "a"',
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_a_line_of_garbage_is_skipped_and_told_and_its_neighbours_are_read(kind, tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text("\n".join([json.dumps(GOOD), GARBAGE[kind], json.dumps({**GOOD, "trial": 1})]) + "\n")
    found, problems = records.read(path)
    assert [record.get("trial", 0) for record in found] == [0, 1]
    (problem,) = problems
    assert problem.startswith(f"{path}:2: ")
    assert len(problem) < 600
    assert "results.jsonl:2" in render_html(make_report([path]))


@pytest.mark.parametrize("kind", GARBAGE)
def test_a_line_of_garbage_in_a_training_curve_is_counted(kind, tmp_path):
    steps = [json.dumps({"step": step, "loss": 1.0}) for step in range(3)]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*steps, GARBAGE[kind]]) + "\n")
    (tmp_path / "suite_state.json").write_text(GARBAGE[kind])
    found = read_runs([tmp_path])
    assert [curve.steps for curve in found.curves] == [(0.0, 1.0, 2.0)]
    assert any("1 broken line" in notice for notice in found.notices)


def test_text_of_a_record_is_no_markup_in_markdown(tmp_path):
    path = tmp_path / "results.jsonl"
    command = "tools/lowshot.py knn --weights <script>alert(1)</script>`*x*"
    path.write_text(json.dumps({**GOOD, "task": "<script>", "dataset": "<script>", "command": command}) + "\n")
    page = render_markdown(make_report([path]))
    assert "<script>" not in page
    assert "alert(1)" in page
