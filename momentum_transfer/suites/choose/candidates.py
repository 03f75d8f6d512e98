"""What `choose` chooses from: weights, each with a random start of its architecture, and your detection set.

Of a detection set it takes crops of the boxes, and the detectors' settings that follow from it.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from momentum_transfer.backbones.read import load_backbone
from momentum_transfer.backbones.resnet import Architecture
from momentum_transfer.backbones.source import SourceBackbone
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import RANDOM_OF, is_hub_name, is_made, weights_name
from momentum_transfer.core.log import say, warn
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
    weights: Sequence[str], image_size: int | None = None
) -> tuple[tuple[Candidate, ...], dict[str, SourceBackbone], int, list[str]]:
    """Reads the weights (checkpoints, run folders, names on the Hub) once and names them as results do.

    Args:
        image_size: None takes the networks' own where timm has one, else 224.

    Returns:
        The candidates, a backbone of each architecture by its text, the size of images for all of them, and sentences
        on weights that are left out because they cannot be read.

    Raises:
        InputError: fewer than two of several can be read, two have one name, or networks of different fixed sizes.
    """
    for one in weights:
        if one.startswith(RANDOM_OF):
            raise InputError(f"expected checkpoints, found {one}; leave it out: a random start of each runs anyway")
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
    """Weights that can be read, and a sentence on each of the others."""
    read, left_out = [], []
    for one in weights:
        try:
            read.append((one, load_backbone(one)))
        except InputError as error:
            if len(weights) == 1:
                raise
            left_out.append(f"{one} is left out, because it cannot be read: {error}")
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


def _size(sources: Sequence[SourceBackbone]) -> int:
    """The side that timm gives for its networks; 224 where there are only ResNets."""
    sides = {
        _IMAGE_SIZE if isinstance(source.architecture, Architecture) else source.build().input.size
        for source in sources
    }
    if len(sides) > 1:
        raise InputError(f"expected networks of one image size, found {sorted(sides)}; give --image-size")
    return int(sides.pop())


#: Crops of the part that trains, and of the part that tests: more would take hours for the same answer.
_MOST_CROPS = {"train": 10_000, "val": 5_000}
#: Settings that the budget decides.
_BUDGETED = ("SOLVER.MAX_ITER", "SOLVER.WARMUP_ITERS", "SOLVER.CHECKPOINT_PERIOD")


class Opened(NamedTuple):
    """A detection set: its title, training crops of each class and the number of test crops (``tested``), KEY VALUE
    settings of the detectors, and the iterations of the recipe for a set of this size (``longest``)."""

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
    """Opens the set, cuts its boxes into ``out/crops`` and lists them in ``out/images``.

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
    train_crops, test_crops = _crops(own.train, out, "train", seed), _crops(own.val, out, "val", seed)
    longest = int(fitted["SOLVER.MAX_ITER"].value)
    return Opened(own.title, tuple(train_crops.counts()), len(test_crops), tuple(settings), longest)


def _crops(data: DetectionData, out: Path, part: str, seed: int) -> LabelledFiles:
    crops = write_crops(data, out / "crops" / part, _MOST_CROPS[part], seed)
    files = LabelledFiles(tuple(path for path, _ in crops), tuple(label for _, label in crops), data.classes)
    write_list(out / "images" / f"{part}.txt", files)
    return files
