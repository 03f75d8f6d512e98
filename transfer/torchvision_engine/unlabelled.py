"""Which training images keep their labels, and which images a teacher labels: a fraction, published draws, a folder."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from fvcore.common.config import CfgNode

from momentum_transfer.core.errors import InputError, counted
from momentum_transfer.core.log import say
from momentum_transfer.core.untrusted import read_json
from momentum_transfer.images.content import shared_files
from momentum_transfer.images.reading import upright_size
from momentum_transfer.transfer.data.annotations import DetectionData
from momentum_transfer.transfer.prediction.input_images import find_images
from momentum_transfer.transfer.torchvision_engine.data import AnnotatedImage, annotated_images, with_objects


def training_images(cfg: CfgNode, sets: Sequence[DetectionData]) -> list[AnnotatedImage]:
    """The images of the training sets, without those that FILTER_EMPTY_ANNOTATIONS leaves out; InputError for none."""
    every = [image for one in sets for image in annotated_images(one)]
    images = with_objects(every) if cfg.DATALOADER.FILTER_EMPTY_ANNOTATIONS else every
    if not images:
        names = ", ".join(one.name for one in sets)
        raise InputError(f"no image with objects in {names}; nothing can be trained")
    return images


def split_labels(
    cfg: CfgNode, images: Sequence[AnnotatedImage], seed: int
) -> tuple[list[AnnotatedImage], list[AnnotatedImage]]:
    """The images that keep their labels, and the others: SEMI.LABELLED percent, by the seed or as SEMI.SPLITS lists."""
    semi = cfg.SEMI
    if semi.LABELLED == 100:
        return list(images), []
    if semi.SPLITS:
        chosen = set(_published(semi.SPLITS, semi.LABELLED, seed, len(images)))
    else:
        count = max(round(semi.LABELLED / 100 * len(images)), 1)
        chosen = set(np.random.default_rng([seed, 6]).permutation(len(images))[:count].tolist())
    parts: tuple[list[AnnotatedImage], list[AnnotatedImage]] = [], []
    for place, image in enumerate(images):
        parts[place not in chosen].append(image)
    return parts


def _published(file: str, percent: float, seed: int, count: int) -> list[int]:
    """The places of a published draw: JSON {percent: {seed: [place, …]}}, places among the images with objects."""
    draws = read_json(Path(file).expanduser(), "draws of labelled images")
    given = draws if isinstance(draws, dict) else {}
    found = next((given[k] for k in given if k.replace(".", "", 1).isdecimal() and float(k) == percent), None)
    places = found.get(str(seed)) if isinstance(found, dict) else None
    if not isinstance(places, list) or not places:
        raise InputError(
            f"expected a list of images for {percent:g} % and seed {seed} in {file}, found none; set SEMI.LABELLED and "
            "SEED to a draw that it has"
        )
    wrong = [place for place in places if type(place) is not int or not 0 <= place < count]
    if wrong or len(set(places)) < len(places):
        what = f"{wrong[0]!r:.40}" if wrong else "one twice"
        raise InputError(
            f"expected different places from 0 to {count - 1}, one of each image with objects, for {percent:g} % in "
            f"{file}, found {what}; choose the training set that the draws are of"
        )
    return places


def unlabelled_images(
    cfg: CfgNode, sets: Sequence[DetectionData], test: Sequence[DetectionData], seed: int
) -> list[AnnotatedImage]:
    """What the teacher labels: the other training images, or those of SEMI.UNLABELLED that neither train nor test.

    InputError for none.
    """
    if cfg.SEMI.UNLABELLED:
        trained = [image.file for image in training_images(cfg, sets)]
        tested = [one.image_path(image) for one in test for image in one.load()["images"]]
        rest = _of_folder(Path(cfg.SEMI.UNLABELLED).expanduser(), [*trained, *tested])
    else:
        _, rest = split_labels(cfg, training_images(cfg, sets), seed)
    if not rest:
        raise InputError(
            "expected images without labels for SEMI.TEACHER, found none; name a folder of them by --unlabelled, or "
            "set SEMI.LABELLED below 100 percent"
        )
    return rest


def _of_folder(folder: Path, others: Sequence[Path]) -> list[AnnotatedImage]:
    """The folder's images, except ``others``."""
    if not folder.is_dir():
        raise InputError(f"expected a folder of images at {folder} (--unlabelled), found none; check the path")
    known = set(map(os.path.realpath, others))
    files = [image.path for image in find_images([folder]) if os.path.realpath(image.path) not in known]
    found = []
    for number, file in enumerate(files, 1):
        width, height = upright_size(file)
        found.append(AnnotatedImage(file, number, height, width))
    return found


def labels_of(cfg: CfgNode, sets: Sequence[DetectionData], test: Sequence[DetectionData], seed: int) -> dict[str, int]:
    """How many training images have labels and how many the teacher labels, for records."""
    labelled, _ = split_labels(cfg, training_images(cfg, sets), seed)
    others = unlabelled_images(cfg, sets, test, seed) if cfg.SEMI.TEACHER else []
    return {"labelled": len(labelled), "unlabelled": len(others)}


def check_labels(cfg: CfgNode, sets: Sequence[DetectionData], test: Sequence[DetectionData]) -> None:
    """Say what is labelled and what is not; refuse draws that are not there, and unlabelled images that test."""
    for seed in range(cfg.SEED, cfg.SEED + cfg.TRIALS):
        found = labels_of(cfg, sets, test, seed)
        if seed == cfg.SEED:
            without = f", {counted(found['unlabelled'], 'image')} for the teacher to label" * cfg.SEMI.TEACHER
            say(f"{counted(found['labelled'], 'training image')} with labels{without}")
        rest = [str(one.file) for one in (unlabelled_images(cfg, sets, test, seed) if cfg.SEMI.TEACHER else ())]
        shared = shared_files(rest, [str(one.image_path(image)) for one in test for image in one.load()["images"]])
        if shared.count:
            raise InputError(
                f"expected no test image among the unlabelled ones, found {shared.count} of {shared.total} test images "
                f"there, byte for byte (first: {shared.example}); remove them from the unlabelled images"
            )
