"""What `choose` chooses from: weights, each with a random start of its architecture, and your images.

Of a detection set it takes crops of the boxes, and the detectors' settings that follow from it.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import PIL.Image

from momentum_transfer.backbones.build import own_input, parse_architecture
from momentum_transfer.backbones.read import load_backbone
from momentum_transfer.core.errors import InputError, counted, one_line
from momentum_transfer.core.files import RANDOM_OF, is_hub_name, is_made, weights_name
from momentum_transfer.core.log import say, track, warn
from momentum_transfer.images.class_folders import LabelledFiles, open_class_folders, title_of, write_list
from momentum_transfer.suites.choose.screen import check_features, read_images
from momentum_transfer.suites.choose.stages import CLASSIFICATION, DETECTION, DETECTORS, Candidate
from momentum_transfer.transfer import config
from momentum_transfer.transfer.data.annotations import DetectionData
from momentum_transfer.transfer.data.crops import write_crops
from momentum_transfer.transfer.data.own.open import open_own
from momentum_transfer.transfer.fit import fit, settings_of_data, this_machine

#: Side of the images for features, in pixels, unless the networks take another one.
_IMAGE_SIZE = 224


def read_candidates(
    weights: Sequence[str], image_size: int | None = None, some: Sequence[PIL.Image.Image] = (), *,
    detectors: bool = False, same_size: bool = True,
) -> tuple[tuple[Candidate, ...], int, list[str]]:  # fmt: skip
    """Reads the weights (checkpoints, run folders, names on the Hub), one at a time, and names them as results do.

    Args:
        image_size: None takes the networks' own where timm has one, else 224.
        some: images whose features must be finite and differ.
        detectors: take only networks that the detectors here train.
        same_size: refuse networks that want unlike sizes.

    Returns:
        The candidates, the size of images for all, and sentences on weights that cannot be used and are left out.

    Raises:
        InputError: fewer than two of several can be read, two have one name, or networks of different fixed sizes.
    """
    if made := [one for one in weights if one.startswith(RANDOM_OF)]:
        raise InputError(f"expected checkpoints, found {made[0]}; leave it out: a random start of each runs anyway")
    read, left_out = [], []
    starts: dict[str, str] = {}  # architecture -> name of the network at random, after the first that has it
    for one in track(weights, "reading weights"):
        try:
            source = load_backbone(one)
            network, place = str(source.architecture), one if is_hub_name(one) or is_made(one) else os.path.abspath(one)
            if detectors and getattr(source.architecture, "style", "pytorch") != "pytorch":
                raise InputError(f"expected a network that the detectors here train, found {network}; --screen or "
                                 "--probes-only takes it")  # fmt: skip
            if some:
                check_features(source, some)
            baseline = starts.setdefault(network, weights_name(RANDOM_OF + place))
            read.append(Candidate(source.name, place, source.sha256, network, baseline))
        except (InputError, OSError, ImportError) as error:
            if len(weights) == 1:
                raise
            left_out.append(f"{one} is left out, because it cannot be used: {one_line(error)}")
    if left_out and len(read) < 2:
        raise InputError(f"expected at least two weights to choose from, found {len(read)}; {'; '.join(left_out)}")
    for line in left_out:
        warn(line)
    names = [candidate.name for candidate in read] + list(starts.values())
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"expected weights of different names, found {twice[0]} twice; rename a folder, or link to it")
    own = [own_input(parse_architecture(one)) for one in starts]
    sides = {_IMAGE_SIZE if one is None else one.size for one in own}
    if image_size is None and len(sides) > 1 and same_size:
        raise InputError(f"expected networks of one image size, found {sorted(sides)}; give --image-size")
    return tuple(read), image_size or max(sides), left_out


#: Crops of the part that trains, and of the part that tests: more would take hours for the same answer.
_MOST_CROPS = {"train": 10_000, "val": 5_000}
#: Settings that the budget decides.
_BUDGETED = ("SOLVER.MAX_ITER", "SOLVER.WARMUP_ITERS", "SOLVER.CHECKPOINT_PERIOD")
#: Training images on which a candidate's features are checked before the budget is spent.
_FEW = 6


class Opened(NamedTuple):
    """An opened set. ``side`` and ``batch``: of an iteration's images, of a detection set."""

    question: dict[str, Any]  # what a `Question` says of the set
    tested: int  # number of test images
    parts: dict[str, Any]  # train and val, as `LabelledFiles` or `DetectionData`
    some: tuple[PIL.Image.Image, ...]  # a few training images
    side: int = 0
    batch: int = 1


def open_classes(train: Path, val: Path | None, split: float | None, *, title: str, seed: int, out: Path) -> Opened:
    """Opens class folders and lists their images in ``out/images``; InputError for what is wrong with them."""
    parts = dict(zip(("train", "val"), open_class_folders(train, val, split, seed), strict=True))
    files, counts = parts["train"], tuple(parts["train"].counts())
    if 0 in counts or len(files) < 2 * len(counts):
        found = f"{counted(len(files), 'image')} of {counted(len(counts), 'class')}, {min(counts)} of the rarest"
        raise InputError(f"expected training images of each class, two a class or more, found {found}; give more")
    for name, part in parts.items():
        write_list(out / "images" / f"{name}.txt", part)
        say(f"{name}: {counted(len(part), 'image')}, {counted(len(part.classes), 'class')}")
    question = {"kind": CLASSIFICATION, "title": title or title_of(train), "counts": counts}
    return Opened(question, len(parts["val"]), parts, read_images(files.paths[:: max(1, len(files) // _FEW)]))


def open_detection(
    train: str, val: str | None, split: float | None, *, title: str, images: str | None, seed: int, out: Path,
    overrides: Sequence[str] = (),
) -> Opened:  # fmt: skip
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
    fitted = {one.key: one for one in fit(cfg, [own.train], this_machine(cfg.MODEL.DEVICE), overrides[::2])}
    settings = ["DATASETS.TRAIN", repr([own.specs[0]]), "DATASETS.TEST", repr([own.specs[1]])]
    chosen = [one for key, one in fitted.items() if key not in _BUDGETED]
    settings += [word for one in (*settings_of_data(cfg, [own.train, own.val]), *chosen) for word in one.words]
    parts, counts = {"train": own.train, "val": own.val}, []
    for part, data in parts.items():
        paths, labels = zip(*write_crops(data, out / "crops" / part, _MOST_CROPS[part], seed, False), strict=True)
        crops = LabelledFiles(paths, labels, data.classes)
        write_list(out / "images" / f"{part}.txt", crops)
        counts.append(tuple(crops.counts()))
    keys = ("SOLVER.MAX_ITER", "INPUT.MIN_SIZE_TEST", "SOLVER.IMS_PER_BATCH")
    longest, side, batch = (int(fitted[key].value) for key in keys)
    if "INPUT.MIN_SIZE_TEST" in overrides[::2]:
        side = cfg.INPUT.MIN_SIZE_TEST or side
    question = {"kind": DETECTION, "title": own.title, "counts": counts[0], "settings": tuple(settings),
                "longest": longest}  # fmt: skip
    some = read_images([own.train.image_path(image) for image in own.train.load()["images"][:_FEW]])
    return Opened(question, len(own.val.load()["images"]), parts, some, side, batch)


def cut(parts: Mapping[str, DetectionData], out: Path, seed: int) -> None:
    """Write the crops that are listed, unless they are there."""
    for part, data in parts.items():
        write_crops(data, out / "crops" / part, _MOST_CROPS[part], seed, True)
