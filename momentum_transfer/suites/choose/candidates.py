"""What `choose` chooses from: weights, each with a random start of its architecture, and your detection set.

Of a detection set it takes crops of the boxes, and the detectors' settings that follow from it.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from momentum_transfer.backbones.build import own_input, parse_architecture
from momentum_transfer.backbones.read import load_backbone
from momentum_transfer.backbones.resnet import Architecture
from momentum_transfer.backbones.source import SourceBackbone
from momentum_transfer.core.errors import InputError, one_line
from momentum_transfer.core.files import RANDOM_OF, is_hub_name, is_made, weights_name
from momentum_transfer.core.log import say, track, warn
from momentum_transfer.images.class_folders import LabelledFiles, write_list
from momentum_transfer.suites.choose.stages import DETECTORS, Candidate
from momentum_transfer.transfer import config
from momentum_transfer.transfer.data.annotations import DetectionData
from momentum_transfer.transfer.data.crops import write_crops
from momentum_transfer.transfer.data.own.open import open_own
from momentum_transfer.transfer.fit import fit, settings_of_data, this_machine

#: Side of the images for features, in pixels, unless the networks take another one.
_IMAGE_SIZE = 224


def read_candidates(
    weights: Sequence[str], image_size: int | None = None, check: Callable[[SourceBackbone], None] | None = None,
    same_size: bool = True,
) -> tuple[tuple[Candidate, ...], int, list[str]]:  # fmt: skip
    """Reads the weights (checkpoints, run folders, names on the Hub) once and names them as results do.

    Args:
        image_size: None takes the networks' own where timm has one, else 224.
        check: raises InputError for weights that are then left out.
        same_size: refuse networks that want unlike sizes.

    Returns:
        The candidates, the size of images for all of them, and sentences on weights that are left out because they
        cannot be read or used.

    Raises:
        InputError: fewer than two of several can be read, two have one name, or networks of different fixed sizes.
    """
    for one in weights:
        if one.startswith(RANDOM_OF):
            raise InputError(f"expected checkpoints, found {one}; leave it out: a random start of each runs anyway")
    read, left_out = _read(weights, check)
    starts: dict[str, str] = {}  # architecture -> name of the network at random, after the first that has it
    for candidate in read:
        starts.setdefault(candidate.architecture, weights_name(RANDOM_OF + candidate.weights))
    candidates = tuple(replace(candidate, baseline=starts[candidate.architecture]) for candidate in read)
    names = [candidate.name for candidate in candidates] + list(starts.values())
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"expected weights of different names, found {twice[0]} twice; rename a folder, or link to it")
    return candidates, image_size or _size(list(starts), same_size), left_out


def _read(weights: Sequence[str], check: Callable[[SourceBackbone], None] | None) -> tuple[list[Candidate], list[str]]:
    """Weights that can be read, one at a time in memory, and a sentence on each of the others."""
    read, left_out = [], []
    for one in track(weights, "reading weights"):
        try:
            source = load_backbone(one)
            if check is not None:
                check(source)
            place = one if is_hub_name(one) or is_made(one) else os.path.abspath(one)
            read.append(Candidate(source.name, place, source.sha256, _text(source)))
        except (InputError, OSError, ImportError) as error:
            if len(weights) == 1:
                raise
            left_out.append(f"{one} is left out, because it cannot be used: {one_line(error)}")
            warn(left_out[-1])
    if left_out and len(read) < 2:
        raise InputError(f"expected at least two weights to choose from, found {len(read)}; {'; '.join(left_out)}")
    return read, left_out


def _text(source: SourceBackbone) -> str:
    """The architecture as `parse_architecture` reads it."""
    network = source.architecture
    if not isinstance(network, Architecture):
        return str(network)
    options = [f"width={network.width}"] * (network.width != 64) + [f"stem={network.stem}"] * (
        network.stem != "imagenet"
    )
    return network.name + (f"?{'&'.join(options)}" if options else "")


def _size(architectures: Sequence[str], same: bool) -> int:
    """The side that timm gives for its networks, 224 for ResNets: the largest, unless all have to be the ``same``."""
    own = [own_input(parse_architecture(one)) for one in architectures]
    sides = {_IMAGE_SIZE if one is None else one.size for one in own}
    if len(sides) > 1 and same:
        raise InputError(f"expected networks of one image size, found {sorted(sides)}; give --image-size")
    return max(sides)


#: Crops of the part that trains, and of the part that tests: more would take hours for the same answer.
_MOST_CROPS = {"train": 10_000, "val": 5_000}
#: Settings that the budget decides.
_BUDGETED = ("SOLVER.MAX_ITER", "SOLVER.WARMUP_ITERS", "SOLVER.CHECKPOINT_PERIOD")


class Opened(NamedTuple):
    """A detection set: its title, training crops of each class and the number of test crops (``tested``), KEY VALUE
    settings of the detectors and the iterations of the recipe for a set of this size (``longest``); its parts, the
    number of test images, side and number of the images of an iteration."""

    title: str
    counts: tuple[int, ...]
    tested: int
    settings: tuple[str, ...]
    longest: int
    parts: dict[str, DetectionData]
    images: int
    side: int
    batch: int


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
    """Opens the set and lists the crops of its boxes in ``out/images``; `cut` makes them, which takes time.

    ``overrides`` of the detectors win over what follows from the data. InputError for what is wrong with the set, with
    file and line, or with a setting.
    """
    if budgeted := [key for key in overrides[::2] if key in (*_BUDGETED, "OUTPUT_DIR", "SEED")]:
        raise InputError(f"expected no {budgeted[0]}: --minutes, --out and --seed decide it; leave it out")
    cfg = config.load(DETECTORS["finetuned"], overrides)  # a wrong one is refused before the data is read
    own = open_own(train, val, split, seed=seed, title=title, images=images)
    for line in own.lines():
        say(line)
    machine = this_machine(cfg.MODEL.DEVICE)
    fitted = {one.key: one for one in fit(cfg, [own.train], machine, overrides[::2])}
    settings = ["DATASETS.TRAIN", repr([own.specs[0]]), "DATASETS.TEST", repr([own.specs[1]])]
    chosen = [one for key, one in fitted.items() if key not in _BUDGETED]
    settings += [word for one in (*settings_of_data(cfg, [own.train, own.val]), *chosen) for word in one.words]
    parts = {"train": own.train, "val": own.val}
    train_crops, test_crops = (_crops(data, out, part, seed, write=False) for part, data in parts.items())
    value = {"INPUT.MIN_SIZE_TEST": cfg.INPUT.MIN_SIZE_TEST, "SOLVER.IMS_PER_BATCH": cfg.SOLVER.IMS_PER_BATCH}
    value |= {key: one.value for key, one in fitted.items()}
    longest, side, batch = (int(value[f"{key}"]) for key in ("SOLVER.MAX_ITER", *list(value)[:2]))
    counts = tuple(train_crops.counts())
    return Opened(own.title, counts, len(test_crops), tuple(settings), longest, parts, len(own.val.load()["images"]),
                  side, batch)  # fmt: skip


def cut(opened: Opened, out: Path, seed: int) -> None:
    """Write the crops that are listed, unless they are there."""
    for part, data in opened.parts.items():
        _crops(data, out, part, seed, write=True)


def _crops(data: DetectionData, out: Path, part: str, seed: int, write: bool) -> LabelledFiles:
    crops = write_crops(data, out / "crops" / part, _MOST_CROPS[part], seed, write)
    files = LabelledFiles(tuple(path for path, _ in crops), tuple(label for _, label in crops), data.classes)
    if not write:
        write_list(out / "images" / f"{part}.txt", files)
    return files
