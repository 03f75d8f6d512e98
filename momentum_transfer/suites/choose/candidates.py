"""The weights to choose from: read once, named as results name them, each with a random start of its architecture.

A detection set of one's own for `choose`: crops of its boxes, and the settings of detectors that follow from it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from momentum_transfer.backbones.hub import is_hub_name
from momentum_transfer.backbones.read import load_backbone
from momentum_transfer.backbones.resnet import Architecture
from momentum_transfer.backbones.source import SourceBackbone
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import RANDOM_OF, is_made, weights_name
from momentum_transfer.core.log import say, warn
from momentum_transfer.images.class_folders import LabelledFiles, write_list
from momentum_transfer.suites.choose.stages import DETECTORS, Candidate
from momentum_transfer.transfer import config
from momentum_transfer.transfer.data.annotations import DetectionData
from momentum_transfer.transfer.data.crops import write_crops
from momentum_transfer.transfer.data.own.open import open_own
from momentum_transfer.transfer.fit import fit, settings_of_data, this_machine

#: Side of the images that features are of, in pixels, unless the networks take another one.
IMAGE_SIZE = 224


def read_candidates(
    weights: Sequence[str], image_size: int | None = None
) -> tuple[tuple[Candidate, ...], dict[str, SourceBackbone], int, list[str]]:
    """Every candidate, a backbone of each architecture by its text, the size of images for all of them, and what of
    ``weights`` is left out because it cannot be read, with the reason.

    Args:
        weights: checkpoints, run folders or names on the Hub. image_size: None takes the networks' own where timm says
            one, else 224.

    Raises:
        InputError: fewer than two of several can be read, two have one name, or networks of different fixed sizes.
    """
    if given := [one for one in weights if one.startswith(RANDOM_OF)]:
        raise InputError(
            f"expected checkpoints, found {given[0]}; leave it out: a random start of each runs beside them"
        )
    read, left_out = _read(weights)
    weights, sources = [one for one, _ in read], [source for _, source in read]
    texts = [_text(source) for source in sources]
    places = [one if is_hub_name(one) or is_made(one) else os.path.abspath(one) for one in weights]
    starts: dict[str, str] = {}  # architecture -> name of the network at random, after the first that has it
    for text, place in zip(texts, places, strict=True):
        starts.setdefault(text, weights_name(RANDOM_OF + place))
    candidates = tuple(
        Candidate(source.name, place, source.sha256, text, starts[text])
        for place, source, text in zip(places, sources, texts, strict=True)
    )
    names = [one.name for one in candidates] + list(starts.values())
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"expected weights of different names, found {twice[0]} twice; rename a folder, or link to it")
    return candidates, dict(zip(texts, sources, strict=True)), image_size or _size(sources), left_out


def _read(weights: Sequence[str]) -> tuple[list[tuple[str, SourceBackbone]], list[str]]:
    """Those that can be read, and what is said of the others."""
    found, left_out = [], []
    for one in weights:
        try:
            found.append((one, load_backbone(one)))
        except InputError as error:
            if len(weights) == 1:
                raise
            left_out.append(f"{one} is left out, because it cannot be read: {error}")
            warn(left_out[-1])
    if left_out and len(found) < 2:
        raise InputError(f"expected at least two weights to choose from, found {len(found)}; {'; '.join(left_out)}")
    return found, left_out


def _text(source: SourceBackbone) -> str:
    """The architecture as `parse_architecture` reads it."""
    found = source.architecture
    if not isinstance(found, Architecture):
        return str(found)
    options = [f"width={found.width}"] * (found.width != 64) + [f"stem={found.stem}"] * (found.stem != "imagenet")
    return found.name + (f"?{'&'.join(options)}" if options else "")


def _size(sources: Sequence[SourceBackbone]) -> int:
    """The sides that timm says for its networks; 224 where there are only ResNets."""
    sides = {source.build().input.size if not isinstance(source.architecture, Architecture) else IMAGE_SIZE
             for source in sources}  # fmt: skip
    if len(sides) > 1:
        raise InputError(f"expected networks of one image size, found {sorted(sides)}; give --image-size")
    return int(sides.pop())


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
