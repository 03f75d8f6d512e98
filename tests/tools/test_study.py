"""momentum-transfer study from the command line: list, plan, run, table, refusals."""

import json
from pathlib import Path

import pytest
import yaml

from momentum_transfer.core.records import append, make_record
from tests.tools.in_process import run_tool

TOOL = """
import json, sys
results, weights, protocol = sys.argv[1:4]
with open(results, "a") as stream:
    for trial in range(3):
        record = {**json.loads(RECORD), "protocol": protocol, "trial": trial, "seed": trial}
        record["value"] = (80.0 if protocol == "a" else 60.0) + trial
        stream.write(json.dumps(record) + "\\n")
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A study whose two tasks write three trials each."""
    record = make_record("knn", "top1", 0.0, checkpoint={"name": "scratch", "sha256": ""})
    tool = tmp_path / "tool.py"
    tool.write_text(f"RECORD = {json.dumps(record)!r}\n{TOOL}", encoding="utf-8")
    tasks = [{"name": word, "command": f"{tool} {{results}} {{weights}} {word}"} for word in "ab"]
    compare = [{"name": "a − b", "y": "knn top1", "first": {"protocol": "a"}, "second": {"protocol": "b"}}]
    content = {"weights": ["scratch"], "tasks": tasks, "study": {"claim": "Is a better than b?", "compare": compare}}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(content, allow_unicode=True), encoding="utf-8")
    return path


@pytest.mark.slow
def test_a_study_runs_its_suite_on_its_own_weights_and_answers(suite, tmp_path):
    out = tmp_path / "out"
    planned = run_tool("study", suite, "--output", out, "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert not out.exists()
    ended = run_tool("study", suite, "--output", out)
    assert ended.returncode == 0, ended.stderr + ended.stdout
    table = (out / "study.md").read_text(encoding="utf-8")
    assert table.startswith("# Is a better than b?\n")
    assert "| a − b | 81.0 ± 1.00 (n 3) | 61.0 ± 1.00 (n 3) | +20.0 [+20.0, +20.0] | 0 | better |" in table
    plot = (out / "plot_1.svg").read_text(encoding="utf-8")
    assert plot.startswith("<svg")
    assert "var(" not in plot
    assert (out / "report.html").is_file()


def test_a_table_is_of_the_scores_that_are_there(suite, tmp_path):
    scores = {"a": [80.0, 81.0, 85.0], "b": [60.0, 62.0]}
    records = [
        make_record("knn", "top1", value, checkpoint={"name": "scratch", "sha256": ""}, protocol=protocol, trial=trial)
        for protocol, values in scores.items()
        for trial, value in enumerate(values)
    ]
    append(tmp_path / "out" / "results.jsonl", records)
    told = run_tool("study", suite, "--output", tmp_path / "out", "--table")
    assert told.returncode == 0, told.stderr
    table = (tmp_path / "out" / "study.md").read_text(encoding="utf-8")
    assert "| a − b | 80.5 ± 0.71 (n 2) | 61.0 ± 1.41 (n 2) | +19.5 [+13.1, +25.9] | 0.016 | better |" in table
    assert (tmp_path / "out" / "plot_1.svg").is_file()


def test_the_studies_that_ship_are_listed_and_others_refused(tmp_path):
    listed = run_tool("study", "--list")
    assert "fixmatch" in listed.stdout
    assert "EMAN" in listed.stdout
    wrong = run_tool("study", "fixmatsh")
    assert wrong.returncode == 2
    assert "found fixmatsh; did you mean fixmatch?" in wrong.stderr
    none = run_tool("study", "configs/suites/smoke.yaml")
    assert none.returncode == 2
    assert "expected a suite with a study" in none.stderr
    nothing = run_tool("study", "fixmatch", "--table", "--output", tmp_path)
    assert nothing.returncode == 2
    assert "results file not found" in nothing.stderr
