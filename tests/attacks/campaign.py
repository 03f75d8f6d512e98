"""Attacks by area, counted: ``python -m tests.attacks.campaign [EXAMPLES [SEED]]`` from the repository's root."""

import sys
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path

from tests.attacks import outcome
from tests.attacks.annotations import CHANGES, Annotations
from tests.attacks.binary_files import IMAGES, PROGRAMS, Images, Programs
from tests.attacks.outcome import DONE, LINE
from tests.attacks.own_files import BYTES, CHOICE_NOTES, PLACED, SUITE_NOTES, TABLES, XMLS, YAMLS, OwnFiles
from tests.attacks.settings_files import FILES, PAIRS, Settings
from tests.attacks.state_files import FLIPS, FORMATS, POINTERS, STATES, TREES, Resumption, Weights


def areas(folder: Path, examples: int, seed: int = 0) -> dict[str, Counter[str]]:
    """Area -> outcomes. Resuming takes longest and gets a quarter of the examples."""
    for name in ("annotations", "settings", "weights", "resume", "own", "images", "programs"):
        (folder / name).mkdir()
    data, words = Annotations(folder / "annotations"), Settings(folder / "settings")
    weights, resumed = Weights(folder / "weights"), Resumption(folder / "resume")
    own = OwnFiles(folder / "own")
    few, count = max(examples // 4, 1), partial(outcome.count, seed=seed)
    return {
        "annotation files": count(data.ground_truth, CHANGES, examples),
        "result files": count(data.detections, CHANGES, examples),
        "records": count(data.records, CHANGES, examples),
        "YOLO labels": count(own.yolo, BYTES, examples),
        "data.yaml": count(own.data_yaml, YAMLS, examples),
        "VOC labels": count(own.voc, XMLS, examples),
        "lists": count(own.lists, BYTES, examples),
        "outcomes as CSV": count(own.outcomes, TABLES, examples),
        "shard indexes": count(own.index, PLACED, examples),
        "suites' notes": count(own.notes, SUITE_NOTES, examples),
        "a choice's notes": count(own.choice, CHOICE_NOTES, examples),
        "settings": count(words.pair, PAIRS, examples),
        "YAML": count(words.yaml, FILES, examples),
        **{
            f"flips in {suffix}": count(lambda place, suffix=suffix: weights.flip(suffix, place), FLIPS, few)
            for suffix in (*FORMATS, ".npz")
        },
        "images": count(Images(folder / "images").changed, IMAGES, examples),
        "exported programs": count(Programs(folder / "programs").changed, PROGRAMS, examples),
        "checkpoints' nesting": count(weights.nested, TREES, examples),
        "flips in a checkpoint": count(resumed.flip, FLIPS, few),
        "states to resume": count(resumed.state_of, STATES, few),
        "last": count(resumed.pointer, POINTERS, few // 2),
    }


def main(examples: int, seed: int = 0) -> None:
    """Print the table, and each kind of bad end once."""
    with tempfile.TemporaryDirectory() as folder:
        found = areas(Path(folder), examples, seed)
    print(f"{'area':24}{'tried':>8}{'done':>8}{'one line':>10}{'traceback':>11}{'silently wrong':>16}{'other':>7}")
    for area, ends in found.items():
        traces = sum(n for end, n in ends.items() if end.startswith("traceback"))
        wrong = sum(n for end, n in ends.items() if end.startswith("silently"))
        known = ends[DONE] + ends[LINE] + traces + wrong
        tried = ends.total()
        print(f"{area:24}{tried:8}{ends[DONE]:8}{ends[LINE]:10}{traces:11}{wrong:16}{tried - known:7}")
    for area, ends in found.items():
        for end, n in ends.items():
            if end not in (DONE, LINE):
                print(f"{area}: {n} x {end}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:] or ["100"]))
