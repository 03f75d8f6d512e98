"""The command verdict: what it prints, its exit codes, and that inputs stay as they are."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.tools.in_process import ROOT, run_tool
from tests.transfer.scores.random_sets import coco_set


def run(*arguments: object, code: int = 0) -> str:
    done = run_tool("verdict", *arguments)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def tables(tmp_path: Path) -> tuple[Path, Path]:
    random = np.random.default_rng(0)
    for name, chance in (("a", 0.6), ("b", 0.9)):
        hits = (random.random(200) < chance).astype(int)
        rows = [f"{n}.png,{hit}" for n, hit in enumerate(hits)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["image id,accuracy", *rows]))
    return tmp_path / "a.csv", tmp_path / "b.csv"


@pytest.fixture
def predictions(tmp_path: Path) -> tuple[Path, Path, Path]:
    truth, found = coco_set(3, images=40)
    contents = {"gt": truth, "first": found, "second": found[::2]}
    for name, content in contents.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return tuple(tmp_path / f"{name}.json" for name in contents)


def test_it_prints_the_table_a_sentence_and_a_line_for_each_requirement(tables):
    said = run("--outcomes", *tables, "--require", "accuracy >= -1", "--require", "accuracy > 0")
    assert "b against a in accuracy: +" in said
    assert "points, better (200 items)" in said
    assert [line for line in said.splitlines() if line.startswith("gate met: accuracy")][1].startswith(
        "gate met: accuracy > 0 for b: difference +"
    )


def test_exit_codes_are_met_not_met_and_wrong_input(tables):
    run("--outcomes", *tables, "--require", "accuracy > 0")
    assert "gate NOT MET: accuracy > 0 for a" in run("--outcomes", *tables[::-1], "--require", "accuracy > 0", code=1)
    for wrong in (["--require", "AP > 0"], ["--require", "accuracy"], ["--groups", "nowhere.csv"]):
        said = run("--outcomes", *tables, *wrong, code=2)
        assert len([line for line in said.splitlines() if line.startswith("error: ")]) == 1


def test_predictions_are_compared_and_written(predictions, tmp_path: Path):
    before = {path: path.read_bytes() for path in predictions}
    said = run(*predictions, "--json", tmp_path / "v.json", "--html", tmp_path / "v.html", "--resamples", 200)
    content = json.loads((tmp_path / "v.json").read_text())
    assert content["against"] == "first"
    assert {row["measure"] for row in content["rows"]} >= {"AP", "AP50", "AR100"}
    page = (tmp_path / "v.html").read_text()
    assert "AR100" in page
    assert "http" not in page.replace("http-equiv", "")
    assert f"{content['rows'][0]['first']:.2f}" in said
    assert {path: path.read_bytes() for path in predictions} == before


def test_inputs_are_never_written_to(predictions, tables, tmp_path: Path):
    for out in (predictions[1], tmp_path):
        for option in ("--json", "--html"):
            assert "files of their own" in run(*predictions, option, out, code=2)
    assert "files of their own" in run(*predictions, "--json", tmp_path / "x", "--html", tmp_path / "x", code=2)
    assert "files of their own" in run("--outcomes", *tables, "--groups", tables[0], "--json", tables[0], code=2)
    labels = tmp_path / "labels"
    labels.mkdir()
    assert "files of their own" in run(labels, labels, "other", "--html", labels / "v.html", code=2)


@pytest.mark.parametrize(
    "words", [[], ["gt.json"], ["gt.json", "a.json"], ["--outcomes", "a.csv", "b.json", "gt.json"]]
)
def test_what_is_compared_must_be_given(words, tmp_path: Path):
    assert "error: " in run(*words, code=2)
    assert "expected GT A B" in run("gt.json", "a.json", "b.json", "--outcomes", "a.csv", code=2)


def test_the_first_line_comes_before_scipy_and_torch_are_imported(tables):
    code = """
import sys
import momentum_transfer.tools.verdict as tool
class Said(Exception): pass
def say(text): raise Said
tool.say = say
try:
    tool.main(tool.parser().parse_args(["--outcomes", *sys.argv[1:]]))
except Said:
    sys.exit(bool({"torch", "scipy", "pandas"} & set(sys.modules)))
"""
    assert subprocess.run([sys.executable, "-c", code, *map(str, tables)], cwd=ROOT, check=False).returncode == 0


def test_a_run_imports_no_torch(tables):
    code = """
import sys
from momentum_transfer.core.command import run_tool
import momentum_transfer.tools.verdict as tool
code = run_tool(tool.parser(), tool.main, ["--outcomes", *sys.argv[1:], "--html", sys.argv[1] + ".html"])
sys.exit(code or bool({"torch", "matplotlib", "pandas"} & set(sys.modules)))
"""
    assert subprocess.run([sys.executable, "-c", code, *map(str, tables)], cwd=ROOT, check=False).returncode == 0
