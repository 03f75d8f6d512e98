"""The report from the command line: three files, exit codes, wrong input in one line."""

import subprocess
from pathlib import Path

import pytest

from momentum_transfer.core import records as results
from tests.tools.in_process import run_tool


def report(*words: str) -> subprocess.CompletedProcess[str]:
    return run_tool("report", *words)


@pytest.fixture
def records(tmp_path: Path) -> Path:
    path = tmp_path / "results.jsonl"
    lines = [
        results.make_record("knn/k=20", "top1", 50.0, checkpoint={"name": n, "sha256": "a"}) for n in ("m", "random")
    ]
    results.append(path, lines)
    return path


def test_page_markdown_and_csv_are_written_beside_the_records(records: Path):
    ended = report(str(records))
    assert ended.returncode == 0, ended.stderr
    assert {path.name for path in records.parent.iterdir()} == {
        "results.jsonl",
        "report.html",
        "report.md",
        "report.csv",
    }
    assert "python tools/report.py" in (records.parent / "report.html").read_text(encoding="utf-8")
    assert "Against random (random weights) m has no verdict: 1 with one trial: no verdict." in ended.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{}/none.jsonl"], "results file not found"),
        (["{}/results.jsonl", "--runs", "{}/none"], "run folder not found"),
        (["{}/results.jsonl", "--out", "{}/report.pdf"], "expected --out to end in .html"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(records: Path, words: list[str], message: str):
    ended = report(*(word.format(records.parent) for word in words))
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: ")
    assert message in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
