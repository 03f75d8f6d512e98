"""The documentation's page of settings has what the defaults' comments say, of every room."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


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


def test_comments_stand_beside_keys_wherever_they_are_set(page: dict[str, dict[str, list[str]]]):
    assert page["pretrain"]["SOLVER.ACCUMULATE"][-1] == "micro-batches a step"
    assert page["lowshot"]["SVM.SHOTS"][-1] == "labelled images per class"  # set in a function of its own
    assert page["lowshot"]["FIXMATCH.STATISTICS_MOMENTUM"][-1] == "of EMAN's statistics; 1 copies the student's"
    assert page["lowshot"]["FIXMATCH.EPOCHS"][-1] == page["lowshot"]["LINEAR.EPOCHS"][-1] != ""  # shared
    assert page["lowshot"]["DATASETS.SEED"][-1] == "of the digits' drawings"
    assert page["lowshot"]["SEED"][-1] != "of the digits' drawings"
    assert page["transfer"]["SOLVER.AMP.PRECISION"][-1] == "or bfloat16"
    assert page["transfer"]["MODEL.DEVICE"][-1].startswith("Detectron2's is cuda")


def test_every_setting_has_a_row(page: dict[str, dict[str, list[str]]]):
    assert set(page) == {"pretrain", "transfer", "lowshot"}
    assert {"OUTPUT_DIR", "SEED"} <= set(page["pretrain"]) & set(page["lowshot"]) & set(page["transfer"])
    assert all(len(cells) == 3 for room in page.values() for cells in room.values())
