"""The suite runner from the command line: plan, exit codes, a failure that stops no other, the page at the end."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from momentum_transfer.core.records import make_record
from tests.tools.in_process import run_tool

TOOL = """
import json, sys
results, weights, word = sys.argv[1:4]
if word == "fail":
    sys.exit("error: this task always fails")
record = json.loads(RECORD)
record["checkpoint"]["name"] = weights
with open(results, "a") as stream:
    stream.write(json.dumps(record) + "\\n")
"""


def evaluate(*words: str) -> subprocess.CompletedProcess[str]:
    return run_tool("evaluate", *words)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A suite whose first of two tasks fails, a checkpoint, and the output folder."""
    tmp_path = tmp_path / "a folder"  # with a space
    tmp_path.mkdir()
    record = make_record("knn/k=20", "top1", 50.0, checkpoint={"name": "", "sha256": ""})
    tool, weights, suite = tmp_path / "tool.py", tmp_path / "momentum2.pt", tmp_path / "suite.yaml"
    tool.write_text(f"RECORD = {json.dumps(record)!r}\n{TOOL}", encoding="utf-8")
    weights.write_text("weights", encoding="utf-8")
    tasks = [
        {"name": "broken", "command": f"'{tool}' {{results}} {{weights}} fail", "gpu_hours": 1.5},
        {"name": "whole", "command": f"'{tool}' {{results}} {{weights}} go", "gpu_hours": 2.0},
    ]
    suite.write_text(yaml.safe_dump({"name": "two", "tasks": tasks}), encoding="utf-8")
    return suite, weights, tmp_path / "out"


def test_a_failing_task_stops_no_other_and_the_exit_code_is_1(files):
    suite, weights, output = files
    words = ("--suite", str(suite), "--weights", str(weights), "--output", str(output), "--gpus", "0")
    ended = evaluate(*words)
    assert ended.returncode == 1, ended.stderr
    assert "failed: momentum2: broken, exit code 1: error: this task always fails; see" in ended.stdout
    assert "momentum2: whole: done in" in ended.stdout
    page = (output / "report.html").read_text(encoding="utf-8")
    assert "knn/k=20 top1" in page
    assert "1 task did not end well" in page
    assert "momentum2/broken failed, so that what it would measure is missing" in page


def test_dry_run_prints_commands_and_expected_hours_and_runs_nothing(files):
    suite, weights, output = files
    ended = evaluate("--suite", str(suite), "--weights", str(weights), "--output", str(output), "--dry-run")
    assert ended.returncode == 0, ended.stderr
    assert "2 of 2 tasks to do, 3.5 GPU hours expected" in ended.stdout
    assert "$ python " in ended.stdout
    assert f"'{output}/results.jsonl'" in ended.stdout  # quoted: the line can be typed
    assert not output.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--suite", "smokes.yaml"), "error: suite not found: smokes.yaml; the nearest names are smoke, "),
        (("--suite", "smoke", "--price", "-1", "--dry-run"), "argument --price: expected a number above 0"),
        (("--suite", "smoke", "--dry-run", "--measured", "nowhere.jsonl"), "error: results file not found"),
        (
            ("--suite", "configs/suites/smoke.yaml", "--slurm", "--gpus", "8", "--sbatch", "gpu"),
            "error: expected --sbatch KEY=VALUE, found 'gpu'; for example",
        ),
        (("--suite", "smoke", "--sbatch", "partition=gpu"), "expected --sbatch together with --slurm"),
        (("--suite", "smoke", "--slurm", "--gpus", "0", "--sbatch", "array=1-3"), "expected --sbatch of other options"),
        (("--suite", "smoke", "--gpus", "64"), "expected --gpus of at most the"),
        (
            ("--suite", "configs/suites/smoke.yaml", "--jobs", "0"),
            "argument --jobs: expected a whole number of at least 1, found 0",
        ),
    ],
)
def test_wrong_words_are_one_line_and_exit_code_2(tmp_path: Path, words: tuple[str, ...], message: str):
    ended = evaluate("--weights", "pixels", "--output", str(tmp_path / "out"), *words)
    assert ended.returncode == 2
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "out").exists()


def test_plan_says_how_many_seeds_a_difference_needs():
    done = evaluate("--plan", "--detect", "0.3", "--sigma", "0.2")
    assert done.returncode == 0
    assert "9 seeds of each checkpoint, compared by Welch's t; or 6 shared trials" in done.stdout.replace("\n", " ")
    for words, message in (
        (("--plan", "--detect", "0.3"), "expected --plan with --detect POINTS and --sigma POINTS, found no --sigma"),
        (("--detect", "0.3", "--sigma", "1"), "--detect POINTS and --sigma POINTS, found no --plan; add it"),
        ((), "expected --suite YAML, found none"),
        (("--plan", "--detect", "0", "--sigma", "1"), "expected a number above 0, found '0'"),
    ):
        refused = evaluate(*words)
        assert refused.returncode == 2
        assert message in refused.stderr


@pytest.mark.parametrize(
    ("pretrain", "message"),
    [
        ({"variants": {"good": {}, "bad": {"SOLVER.EPOCH": 3}}}, "bad_seed0: .*SOLVER.EPOCH"),
        ({"variants": {"good": {}, "bad": {"NORM.GROUP_SIZE": 7}}}, "bad_seed0: .*NORM.GROUP_SIZE to divide"),
        (
            {"variants": {"a": {"SOLVER.STEPS": 0, "SOLVER.EPOCHS": 4}}, "exports": {"every": 5, "last": 5}},
            "last of exports",
        ),
    ],
)
def test_a_wrong_setting_of_any_pretraining_is_told_before_the_first_runs(tmp_path: Path, pretrain, message):
    config = "configs/smoke/momentum2_digits.yaml"
    command = "tools/lowshot.py knn --config configs/smoke/lowshot_digits.yaml --weights {weights} --results {results}"
    content = {"name": "wrong", "pretrain": {"config": config, **pretrain}}
    content["tasks"] = [{"name": "knn", "command": command}]
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    done = evaluate("--suite", str(tmp_path / "wrong.yaml"), "--output", str(tmp_path / "out"))
    assert done.returncode == 2
    assert re.search(message, done.stderr)
    assert not (tmp_path / "out").exists()
