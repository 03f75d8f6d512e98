"""A detection set of one's own for `choose`: crops of its boxes, and the settings of detectors that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.log import say
from momentum_transfer.images.class_folders import LabelledFiles, write_list
from momentum_transfer.suites.choose.plan import DETECTORS
from momentum_transfer.transfer import config
from momentum_transfer.transfer.data.annotations import DetectionData
from momentum_transfer.transfer.data.crops import write_crops
from momentum_transfer.transfer.data.own.open import open_own
from momentum_transfer.transfer.fit import fit, settings_of_data, this_machine

#: Crops of the part that trains, and of the part that tests: more would take hours and tell nothing more.
MOST_CROPS = {"train": 10_000, "val": 5_000}
#: Settings that the budget decides.
_BUDGETED = ("SOLVER.MAX_ITER", "SOLVER.WARMUP_ITERS", "SOLVER.CHECKPOINT_PERIOD")


class Opened(NamedTuple):
    """title: of the set. counts: crops that train, by class; tested: that test. settings: KEY VALUE words of the
    detectors. longest: iterations of the recipe for a set of this size."""

    title: str
    counts: tuple[int, ...]
    tested: int
    settings: tuple[str, ...]
    longest: int


def open_detection(
    train: str,
    val: str | None,
    split: float | None,
    *,
    title: str,
    images: str | None,
    seed: int,
    out: Path,
    overrides: Sequence[str] = (),
) -> Opened:
    """Open the set, cut its boxes into ``out/crops`` and list them in ``out/images``.

    Args:
        overrides: KEY VALUE words of the detectors, which win over what follows from the data.

    Raises:
        InputError: what is wrong with the set, with its file and line, or with a setting.
    """
    if budgeted := [key for key in overrides[::2] if key in (*_BUDGETED, "OUTPUT_DIR", "SEED")]:
        raise InputError(f"expected no {budgeted[0]}: --minutes, --out and --seed decide it; leave it out")
    cfg = config.load(DETECTORS["finetuned"], overrides)  # a wrong one is refused before the data is read
    own = open_own(train, val, split, seed=seed, title=title, images=images)
    for line in own.lines():
        say(line)
    machine = this_machine(cfg.MODEL.DEVICE)
    fitted = {one.key: one for one in fit(cfg, [own.train], machine, overrides[::2])}
    found = [*settings_of_data(cfg, [own.train, own.val]),
             *(one for key, one in fitted.items() if key not in _BUDGETED)]  # fmt: skip
    words = ["DATASETS.TRAIN", repr([own.specs[0]]), "DATASETS.TEST", repr([own.specs[1]])]
    words += [word for one in found for word in one.words]
    crops = {part: _crops(data, out, part, seed) for part, data in (("train", own.train), ("val", own.val))}
    return Opened(
        own.title, tuple(crops["train"].counts()), len(crops["val"]), tuple(words), int(fitted["SOLVER.MAX_ITER"].value)
    )


def _crops(data: DetectionData, out: Path, part: str, seed: int) -> LabelledFiles:
    made = write_crops(data, out / "crops" / part, MOST_CROPS[part], seed)
    files = LabelledFiles(tuple(path for path, _ in made), tuple(label for _, label in made), data.classes)
    write_list(out / "images" / f"{part}.txt", files)
    return files
