"""Records of a study that ship: packed from a run, the same table from them, and cells run again and compared."""

import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import yaml

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.shipped import CONFIGS
from momentum_transfer.report import study_records
from momentum_transfer.suites.planning import plan
from momentum_transfer.suites.suite import load_suite
from momentum_transfer.suites.task import PRETRAIN
from tests.tools.in_process import ROOT, run_tool

with mock.patch.object(sys, "path", list(sys.path)):  # a tool replaces its first entry
    from momentum_transfer.tools import study

TRAIN = """
import json, os, sys
folder, seed = sys.argv[sys.argv.index("OUTPUT_DIR") + 1], int(sys.argv[sys.argv.index("SEED") + 1])
os.makedirs(folder, exist_ok=True)
with open(folder + "/metrics.jsonl", "w") as stream:
    for step in range(10, 60, 10):
        stream.write(json.dumps({"step": step, "loss": 2.1 - step / 25, "embedding_std": 1.0, "seconds": 0.1}) + "\\n")
"""
SCORE = """
import json, os, sys
weights, results = sys.argv[1:]
name = os.path.basename(weights)
variant, seed = name.split("_seed")
value = 60.0 + 5 * (variant == "good") + 0.3 * int(seed) ** 2
record = {**json.loads(RECORD), "checkpoint": {"name": name, "sha256": ""}, "value": value, "trial": 0}
with open(results, "a") as stream:
    stream.write(json.dumps(record) + "\\n")
    stream.write(json.dumps({**record, "task": "not asked for"}) + "\\n")
"""


@pytest.fixture
def suite(tmp_path, monkeypatch) -> Path:
    """A study of two variants and three seeds, whose programs take no time, and what they wrote."""
    from momentum_transfer.core.records import make_record

    record = make_record("knn", "top1", 0.0, checkpoint={"name": "", "sha256": ""})
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    (tmp_path / "score.py").write_text(f"RECORD = {json.dumps(record)!r}\n{SCORE}", encoding="utf-8")
    compare = {"name": "good − bad", "y": "knn top1", "first": {"variant": "good"}, "second": {"variant": "bad"}}
    compare |= {"primary": True, "expected": "better", "margin": 1}
    content = {
        "name": "study_mine",
        "pretrain": {
            "config": str(CONFIGS / "smoke" / "momentum2_digits.yaml"), "command": str(tmp_path / "train.py"),
            "variants": {"bad": {}, "good": {}}, "seeds": [3, 4, 5],
        },
        "tasks": [{"name": "knn", "command": f"{tmp_path / 'score.py'} {{weights}} {{results}}"}],
        "study": {
            "claim": "Is good better?", "seeds": 3, "compare": [compare],
            "checks": [{"name": "left", "curve": "loss", "step": 30, "below": 1.5}],
        },
    }  # fmt: skip
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(content, allow_unicode=True), encoding="utf-8")
    monkeypatch.setattr(study_records, "shipped", lambda name: tmp_path / "records" / f"{name}.tar.xz")
    for name, seed in ((f"{variant}_seed{seed}", seed) for variant in ("bad", "good") for seed in (3, 4, 5)):
        folder = tmp_path / "out" / "pretrained" / name
        program(tmp_path / "train.py", "SEED", seed, "OUTPUT_DIR", folder)
        program(tmp_path / "score.py", folder, tmp_path / "out" / "results.jsonl")
    return path


def program(*words: object) -> None:
    subprocess.run([sys.executable, *map(str, words)], check=True)


def ran(suite: Path, *words: object) -> str:
    told = run_tool("study", suite, *words)
    assert told.returncode == 0, told.stderr + told.stdout
    return told.stdout


def test_what_was_packed_gives_the_same_table_and_cells_run_again_agree(suite, tmp_path):
    ran(suite, "--table", "--output", tmp_path / "out")
    table = (tmp_path / "out" / "study.md").read_text(encoding="utf-8")
    assert (
        "| good − bad | 70.0 ± 2.41 (n 3) | 65.0 ± 2.41 (n 3) | +5.00 [+5.00, +5.00] | 0 | better | better |" in table
    )
    assert "Check: left (loss below 1.5 at step 30): 6 of 6 runs." in table
    ran(suite, "--pack", "--output", tmp_path / "out")
    shipped = tmp_path / "records" / "mine.tar.xz"
    study_records.unpack(shipped, tmp_path / "new")
    assert "not asked for" not in (tmp_path / "new" / "results.jsonl").read_text(encoding="utf-8")
    ran(suite, "--table", "--output", tmp_path / "new")
    assert (tmp_path / "new" / "study.md").read_text(encoding="utf-8") == table
    first = shipped.read_bytes()
    ran(suite, "--pack", "--output", tmp_path / "new")
    assert shipped.read_bytes() == first  # nothing of when and where
    assert ran(suite, "--verify", "2", "--output", tmp_path / "out").count("bit-equal") == 2


def test_scores_of_pretrainings_whose_settings_changed_since_are_said(suite, tmp_path):
    for name, key in (("bad_seed3", "another"), ("good_seed3", "")):
        jobs = {job.title: job for job in plan(load_suite(suite), [], tmp_path / "out")}
        job = jobs[f"{name}: {PRETRAIN}"]
        state = {"key": key or job.key, "exit_code": 0}
        (job.folder / "suite_state.json").write_text(json.dumps(state), encoding="utf-8")
    said = ran(suite, "--table", "--output", tmp_path / "out")
    assert "1 of 12 tasks have not ended with the suite as it is now" in said
    assert "bad_seed3: pretrain" in said


def test_a_score_that_another_machine_cannot_explain_fails_the_verification(suite, tmp_path):
    results = tmp_path / "out" / "results.jsonl"
    lines = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    results.write_text("".join(json.dumps({**line, "value": line["value"] + 0.1}) + "\n" for line in lines))
    ran(suite, "--pack", "--output", tmp_path / "out")
    told = run_tool("study", suite, "--verify", "1", "--output", tmp_path / "out")
    assert told.returncode == 1
    assert "other bits on the same CPU kind" in told.stdout


def test_a_record_that_another_cpu_made_agrees_within_seeds_noise_and_keeps_its_cpu_when_packed_again(suite, tmp_path):
    results = tmp_path / "out" / "results.jsonl"
    lines = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        line["value"] += 0.1
        if "good" in line["checkpoint"]["name"]:
            line["cpu"] = "of another machine"
    results.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ran(suite, "--pack", "--output", tmp_path / "out")
    told = run_tool("study", suite, "--verify", "6", "--output", tmp_path / "out")
    assert told.returncode == 1
    assert told.stdout.count("within seeds' noise (±") == 3
    assert told.stdout.count("other bits on the same CPU kind") == 3
    study_records.unpack(tmp_path / "records" / "mine.tar.xz", tmp_path / "new")
    assert (tmp_path / "new" / "results.jsonl").read_text(encoding="utf-8").count("of another machine") == 3
    machine = tmp_path / "new" / "machine.json"
    machine.write_text(machine.read_text().replace(study_records.cpu_kind(), "of a third"))
    ran(suite, "--pack", "--output", tmp_path / "new")
    study_records.unpack(tmp_path / "records" / "mine.tar.xz", tmp_path / "newer")
    assert "of a third" in (tmp_path / "newer" / "machine.json").read_text(encoding="utf-8")


def test_cells_of_given_weights_bring_what_they_need(tmp_path):
    suite = load_suite(CONFIGS / "suites" / "study_few_shot.yaml")
    jobs = plan(suite, list(suite.weights), tmp_path)
    seen = set()
    for _ in range(30):
        chosen = study.cells(jobs, {"base_0", "scratch"}, 1)
        titles = {job.title for job in chosen}
        assert {need.title for job in chosen for need in job.needs} <= titles
        seen |= titles
    assert any(title.startswith("scratch: tfa") for title in seen)


def test_scores_with_one_name_and_several_seeds_are_told_apart():
    record = {"task": "coco/bbox/base", "metric": "AP", "checkpoint": {"name": "none"}}
    before = [{**record, "value": 50.0 + seed, "seed": seed} for seed in range(3)]
    assert [row[-2] for row in study_records.agreement(before, before[::-1], {}, same=["none"])] == ["bit-equal"] * 3


def test_records_that_do_not_ship_or_are_damaged_are_refused(suite, tmp_path):
    missing = run_tool("study", suite, "--verify", "1")
    assert (missing.returncode, "expected the records of the study in" in missing.stderr) == (2, True)
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "mine.tar.xz").write_bytes(b"no archive")
    damaged = run_tool("study", suite, "--verify", "1")
    assert (damaged.returncode, "check it out again" in damaged.stderr) == (2, True)
    with tarfile.open(tmp_path / "records" / "mine.tar.xz", "w:xz") as archive:
        archive.add(__file__, "../outside.py")
    with pytest.raises(InputError, match="no file below it"):
        study_records.unpack(tmp_path / "records" / "mine.tar.xz", tmp_path / "unpacked")
    assert not (tmp_path / "outside.py").exists()


def test_scores_of_another_machine_agree_within_seeds_noise_only():
    def record(name, value):
        return {"task": "knn", "metric": "top1", "checkpoint": {"name": name}, "value": value}

    runs = {f"a_seed{seed}": {"variant": "a", "settings": {}, "seed": seed} for seed in range(3)}
    before = [record(f"a_seed{seed}", 60.0 + seed) for seed in range(3)]  # a standard deviation of 1
    again = [record("a_seed0", 60.0), record("a_seed1", 63.5), record("a_seed2", 70.0)]
    other = study_records.agreement(before, again, runs, same=())
    assert [row[-1] for row in other] == [True, True, False]
    assert [row[-2] for row in other] == ["bit-equal", "within seeds' noise (±3)", "apart (±3)"]
    assert [row[-1] for row in study_records.agreement(before, again, runs, same=runs)] == [True, False, False]
    assert study_records.agreement(before, again, {}, same=()) == other  # a study's own program names seeds alike


def test_a_score_is_the_mean_over_samples_and_none_may_be_missing():
    def record(name, value, trial, task="svm"):
        return {"task": task, "metric": "top1", "checkpoint": {"name": name}, "value": value, "trial": trial}

    runs = {f"a_seed{seed}": {"variant": "a", "settings": {}, "seed": seed} for seed in range(3)}
    before = [
        record(f"a_seed{seed}", 60.0 + seed + spread, t) for seed in range(3) for t, spread in ((0, -20), (1, 20))
    ]
    again = [record("a_seed1", value, trial) for trial, value in ((0, 50.0), (1, 75.0))]
    (row,) = study_records.agreement(before, again, runs, same=())
    assert row == ("a_seed1", "svm top1", 61.0, 62.5, "within seeds' noise (±3)", True)  # not ± 63, with the samples'
    (row,) = study_records.agreement(before, again[:1], runs, same=())
    assert row[-2:] == ("not scored again", False)
    whole = [*before, *(record(f"a_seed{seed}", 70.0 + seed, 0, "knn") for seed in range(3))]
    assert [row[-1] for row in study_records.agreement(whole, again, runs, same=())] == [True, False]


def test_a_start_with_one_seed_is_not_known_to_agree_on_another_cpu_kind():
    before = {"task": "knn", "metric": "top1", "checkpoint": {"name": "a_seed51"}, "value": 60.0}
    again = [{**before, "value": 61.0}]
    assert study_records.agreement([before], again, {}, same=())[0][-2:] == ("not known: one seed", False)
    (row,) = study_records.agreement([before], again, {}, same={"a_seed51"})
    assert row[-2:] == ("other bits on the same CPU kind", False)


def test_one_of_several_tasks_that_score_one_name_may_run_again_alone():
    record = {"task": "coco/bbox/base", "metric": "AP", "checkpoint": {"name": "none"}}
    before = [{**record, "value": 50.0 + seed, "seed": seed} for seed in range(3)]
    (row,) = study_records.agreement(before, [{**before[1], "value": 53.5}], {}, same=())
    assert row[2:] == (51.0, 53.5, "within seeds' noise (±3)", True)


def missing_rows(table: str, page: str) -> list[str]:
    """Rows of a study's table, and lines below it, that the page does not have."""
    rows = [line for line in table.splitlines() if line.startswith(("| ", "- ")) and not line.startswith("| ---")]
    return [row for row in rows if row.removeprefix("- ") not in page]


def test_a_page_without_a_row_of_its_study_is_noticed(suite, tmp_path):
    ran(suite, "--table", "--output", tmp_path / "out")
    table = (tmp_path / "out" / "study.md").read_text(encoding="utf-8")
    assert "In short: good − bad: +5.00 [+5.00, +5.00] points, better." in table
    assert missing_rows(table, table) == []
    assert len(missing_rows(table, table.replace("70.0", "71.0"))) == 1
    assert len(missing_rows(table, table.replace("points, better", "points, worse"))) == 1


def same_drawing(one: str, other: str) -> bool:
    """Whether plots have the same labels, and marks and lines at the same places within their axes."""
    if re.findall(r"<text[^>]*>([^<]*)", one) != re.findall(r"<text[^>]*>([^<]*)", other):
        return False
    places = []
    for svg in (one, other):
        marks = re.findall(r'<use [^>]*x="([\d.]+)" y="([\d.]+)" style="(?!fill: \S+; fill-opacity)', svg)
        lines = re.findall(r'<path d="([^"]*)" clip-path', svg)  # grid, intervals and curves
        places.append([*marks, *re.findall(r"[ML] (\S+) (\S+)", " ".join(lines))])
    here, there = (np.array(found, float) for found in places)
    if here.shape != there.shape:
        return False
    fits = [np.polyval(np.polyfit(a, b, 1), a) - b for a, b in zip(here.T, there.T, strict=True)]
    return bool(np.abs(fits).max() < 0.5)  # points of 1/72 inch


def test_a_figure_with_a_mark_elsewhere_is_noticed():
    figure = (ROOT / "docs" / "claims" / "lars.svg").read_text(encoding="utf-8")
    (mark, *_) = re.findall(r'<use [^>]*x="([\d.]+)"', figure)
    assert same_drawing(figure, figure)
    assert not same_drawing(figure, figure.replace(f'x="{mark}"', f'x="{float(mark) + 5}"', 1))
    end = re.findall(r'M (\S+) \S+ \nL \S+ \S+ \n" clip-path[^>]*stroke: #1f5fbf', figure)[0]
    assert not same_drawing(figure, figure.replace(f"M {end} ", f"M {float(end) + 5} ", 1))
    assert not same_drawing(figure, figure.replace("LARS", "SGD", 1))


ARCHIVES = sorted((ROOT / "studies" / "records").glob("*.tar.xz"))
SHIPPED = [file.name for file in ARCHIVES]
#: Studies of AP over many detectors, whose test images are resampled for half a minute to several.
SLOW = ("continue.tar.xz", "lars.tar.xz", "norm_rescale.tar.xz", "semi.tar.xz", "semi_norms.tar.xz")


@pytest.mark.parametrize(
    "archive",
    [pytest.param(file, id=file.name, marks=[pytest.mark.slow] if file.name in SLOW else []) for file in ARCHIVES],
)
def test_the_claims_page_has_every_row_of_the_records_that_ship(archive, tmp_path):
    study_records.unpack(archive, tmp_path)
    ran(Path(archive.name.removesuffix(".tar.xz")), "--table", "--output", tmp_path)
    lines = (tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines()
    commands = [json.loads(line)["command"] for line in lines]
    assert commands
    assert not [command for command in commands if re.search(r"[\s='\"]/", command)]
    page = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    table = (tmp_path / "study.md").read_text(encoding="utf-8")
    assert missing_rows(table, page) == []
    plots = [plot.read_text(encoding="utf-8") for plot in tmp_path.glob("plot_*.svg")]
    for figure in sorted((ROOT / "docs" / "claims").glob("*.svg")):
        name = figure.stem if (figure.stem + ".tar.xz") in SHIPPED else figure.stem.rpartition("_")[0]
        if f"{name}.tar.xz" == archive.name:
            assert any(same_drawing(figure.read_text(encoding="utf-8"), plot) for plot in plots), figure.name
    if archive.name == "momentum_bn.tar.xz":  # the seeds' headline, in the README's words
        (said,) = re.findall(r"In short: (.*)", table)
        assert said in (ROOT / "README.md").read_text(encoding="utf-8")


DIFFERENCE = re.compile(r"([+−-]?\d*\.?\d+) \[([+−-]?\d*\.?\d+), ([+−-]?\d*\.?\d+)\]")  # of tables and of prose


def without_a_row(page: str) -> list[str]:
    """Differences with intervals in the page's table for readers that are in no study's table, to the digits quoted."""
    readers, _, studies = page.partition("## Target noise")
    rows = "\n".join(line for line in studies.splitlines() if line.startswith(("| ", "- ")))
    known = {numbers(match) for match in DIFFERENCE.finditer(rows)}
    missing = []
    for match in DIFFERENCE.finditer(readers):
        half = 0.501 * 0.1 ** len(match[2].partition(".")[2])
        if not any(all(abs(a - b) < half for a, b in zip(numbers(match), row, strict=True)) for row in known):
            missing.append(match[0])
    return missing


def numbers(match: re.Match[str]) -> tuple[float, ...]:
    return tuple(float(one.replace("−", "-")) for one in match.groups())


def test_the_table_for_readers_quotes_rows_of_the_studies():
    page = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    readers = page.partition("## Target noise")[0]
    assert len(DIFFERENCE.findall(readers)) > 70
    assert without_a_row(page) == []
    assert without_a_row(page.replace("−0.7 [−2.1, 0.7] after", "−0.7 [−2.1, 0.8] after")) == ["−0.7 [−2.1, 0.8]"]


def test_the_records_that_ship_are_small():
    files = list((ROOT / "studies" / "records").glob("*.tar.xz"))
    assert sum(file.stat().st_size for file in files) < 5_000_000
