"""The documentation's page and the command line show every setting of every room, from its table."""

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

from momentum_transfer.core.settings import keys_of

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("pretrain", "transfer", "lowshot")


@pytest.fixture(scope="module")
def page() -> dict[str, dict[str, list[str]]]:
    """Room -> key -> the other cells of its row."""
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    rooms: dict[str, dict[str, list[str]]] = {}
    for part in generate.settings().split("\n## ")[1:]:
        rows = [line.split(" | ") for line in part.splitlines() if line.startswith("| `")]
        rooms[part.split("\n")[0]] = {row[0].strip("| `"): [cell.strip(" |") for cell in row[1:]] for row in rows}
    return rooms


def test_every_setting_has_a_row_with_its_default_rule_and_meaning(page: dict[str, dict[str, list[str]]]):
    assert set(page) == set(ROOMS)
    for room, rows in page.items():
        assert set(rows) == set(keys_of(importlib.import_module(f"momentum_transfer.{room}.config").get_cfg()))
        assert all(len(cells) == 4 for cells in rows.values())
        assert all(cells[-1] for cells in rows.values())
    assert page["pretrain"]["SOLVER.ACCUMULATE"] == [
        "`1`",
        "between 1 and 16777216 micro-batches",
        "",
        "micro-batches per step",
    ]
    assert page["lowshot"]["SVM.SHOTS"][-1] == "labelled images per class"
    assert page["transfer"]["TEST.VISUALS"][2] == page["pretrain"]["DATA.WORKERS"][2] == "nothing"
    assert page["transfer"]["TEST.DETECTIONS_PER_IMAGE"][2] == "scores"


@pytest.mark.parametrize(
    ("words", "first", "count"),
    [
        (["pretrain", "milestones"], "pretrain  SOLVER.MILESTONES = [0.6, 0.8]  (as a list of ascending numbers", 1),
        (["lowshot", "svm.", "protocol of"], "lowshot  SVM.PRESET = 'imagenet'  (of imagenet, inaturalist, own, ", 1),
        (["OUTPUT_DIR ="], "pretrain  OUTPUT_DIR = 'outputs/pretrain'  (as a path, no URL (at most 255 bytes", 3),
    ],
)
def test_the_command_line_shows_the_settings_that_hold_all_words(words, first, count, monkeypatch, capsys):
    cli = importlib.import_module("momentum_transfer.tools.cli")
    monkeypatch.setattr(sys, "argv", ["momentum-transfer", "--settings", *words])
    assert cli.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == count
    assert lines[0].startswith(first)


def test_settings_that_are_not_there_end_with_the_nearest(monkeypatch, capsys):
    cli = importlib.import_module("momentum_transfer.tools.cli")
    monkeypatch.setattr(sys, "argv", ["momentum-transfer", "--settings", "transfer", "SOLVER.MAXITER"])
    assert cli.main() == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: no setting holds transfer SOLVER.MAXITER; the nearest are SOLVER.MAX_ITER")
    assert printed.err.count("\n") == 1
