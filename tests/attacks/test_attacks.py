"""Whatever is in a file or a setting, the end is success or one line and exit 2: no traceback, no silent change."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.attacks.annotations import CHANGES, Annotations
from tests.attacks.binary_files import IMAGES, PROGRAMS, Images, Programs
from tests.attacks.outcome import DONE, LINE, count
from tests.attacks.own_files import BYTES, CHOICE_NOTES, PLACED, SUITE_NOTES, TABLES, XMLS, YAMLS, OwnFiles
from tests.attacks.settings_files import FILES, PAIRS, Settings
from tests.attacks.state_files import FLIPS, FORMATS, POINTERS, STATES, TREES, Resumption, Weights

#: The slow tests try so many times as much as those of every day.
MANY = 25

#: Area -> attack in a folder, what it draws, and how often.
AREAS: dict[str, tuple[Callable, object, int]] = {
    "annotation files": (lambda folder: Annotations(folder).ground_truth, CHANGES, 6),
    "result files": (lambda folder: Annotations(folder).detections, CHANGES, 10),
    "records": (lambda folder: Annotations(folder).records, CHANGES, 4),
    "YOLO labels": (lambda folder: OwnFiles(folder).yolo, BYTES, 6),
    "data.yaml": (lambda folder: OwnFiles(folder).data_yaml, YAMLS, 6),
    "VOC labels": (lambda folder: OwnFiles(folder).voc, XMLS, 6),
    "lists": (lambda folder: OwnFiles(folder).lists, BYTES, 6),
    "outcomes as CSV": (lambda folder: OwnFiles(folder).outcomes, TABLES, 6),
    "shard indexes": (lambda folder: OwnFiles(folder).index, PLACED, 6),
    "suites' notes": (lambda folder: OwnFiles(folder).notes, SUITE_NOTES, 6),
    "a choice's notes": (lambda folder: OwnFiles(folder).choice, CHOICE_NOTES, 15),
    "settings": (lambda folder: Settings(folder).pair, PAIRS, 30),
    "YAML": (lambda folder: Settings(folder).yaml, FILES, 30),
    "images": (lambda folder: Images(folder).changed, IMAGES, 12),
    "exported programs": (lambda folder: Programs(folder).changed, PROGRAMS, 6),
    "nesting": (lambda folder: Weights(folder).nested, TREES, 15),
    **{
        f"flips in {suffix}": (
            lambda folder, suffix=suffix: lambda place: Weights(folder).flip(suffix, place), FLIPS, 4
        )
        for suffix in (*FORMATS, ".npz")
    },
    "flips in a checkpoint": (lambda folder: Resumption(folder).flip, FLIPS, 8),
    "states to resume": (lambda folder: Resumption(folder).state_of, STATES, 8),
    "last": (lambda folder: Resumption(folder).pointer, POINTERS, 3),
}  # fmt: skip

#: What the slow tests try at least of files of a user's own.
LEAST = dict.fromkeys(("YOLO labels", "data.yaml", "VOC labels", "lists", "shard indexes", "suites' notes"), 375)


def ends(area: str, folder: Path, factor: int, least: int = 1) -> dict[str, int]:
    """Those that must not be."""
    attack, strategy, examples = AREAS[area]
    return {
        end: n
        for end, n in count(attack(folder), strategy, max(factor * examples, least)).items()
        if end not in (DONE, LINE)
    }


@pytest.mark.parametrize("area", AREAS)
def test_a_few_attacks_of_every_area_end_in_success_or_one_line(area: str, tmp_path: Path):
    assert ends(area, tmp_path, 1) == {}


@pytest.mark.slow
@pytest.mark.parametrize("area", AREAS)
def test_many_attacks_of_every_area_end_in_success_or_one_line(area: str, tmp_path: Path):
    assert ends(area, tmp_path, MANY, LEAST.get(area, 1)) == {}
