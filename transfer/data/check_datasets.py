"""Every data set of a config, looked through before anything is trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from fvcore.common.config import CfgNode
from PIL import Image

from momentum_transfer.console import say, track, warn
from momentum_transfer.distributed import is_main
from momentum_transfer.errors import InputError
from transfer.config import is_semantic, num_classes
from transfer.data.annotations import DetectionData
from transfer.data.check_annotations import NAMED, check
from transfer.data.datasets import get_dataset
from transfer.data.overview import write_overview
from transfer.data.semantic_datasets import get_semantic_dataset
from transfer.data.semantic_overview import write_label_overview
from transfer.torchvision_engine.data import Picture, output_size
from transfer.torchvision_engine.semantic_data import pictures_of


def check_data(cfg: CfgNode, open_pictures: bool = False) -> None:
    """Look through every data set; what is wrong but bearable is said, what is not raises InputError.

    A class histogram and example pictures of each go to OUTPUT_DIR/data.

    Args:
        open_pictures: also open every picture of a detection set and compare its size with the annotations'; takes
            some milliseconds a picture, so that training leaves it to the moment when a picture's turn comes.
    """
    if not cfg.DATASETS.TRAIN or not cfg.DATASETS.TEST:
        raise InputError("expected DATASETS.TRAIN and DATASETS.TEST to name at least one data set each")
    classes: dict[str, tuple[str, ...]] = {}
    for name in dict.fromkeys([*cfg.DATASETS.TRAIN, *cfg.DATASETS.TEST]):
        if is_semantic(cfg):
            _check_labels(cfg, name)
            continue
        data = get_dataset(name, cfg.DATASETS.ROOT or None)
        _check_count(cfg, name, len(data.classes))
        classes[name] = data.classes
        for problem in check(data, masks=cfg.MODEL.MASK_ON, scored=name in cfg.DATASETS.TEST):
            warn(f"{name}: {problem}")
        if open_pictures:
            _open_pictures(data)
        say(f"{name}: {len(data.load()['images'])} images, {len(data.classes)} classes, checked")
        if is_main() and cfg.TEST.VISUALS:
            for path in write_overview(data, Path(cfg.OUTPUT_DIR) / "data", examples=cfg.TEST.VISUALS):
                say(f"  {path}")
    _check_same_classes(classes)


def _check_count(cfg: CfgNode, name: str, found: int) -> None:
    key, count = num_classes(cfg)
    if count != found:
        raise InputError(f"{key} is {count}, but {name} has {found} classes; set {key} {found}")


def _check_same_classes(classes: dict[str, tuple[str, ...]]) -> None:
    """Class k is the same thing in every set; otherwise a score would compare cats with dogs."""
    if not classes:
        return
    first, expected = next(iter(classes.items()))
    for name, found in classes.items():
        if found != expected:
            place = next(k for k, pair in enumerate(zip(expected, found, strict=True)) if pair[0] != pair[1])
            raise InputError(
                f"expected the classes of {first} in {name} too, found {found[place]!r} in the place of "
                f"{expected[place]!r}; give both the same categories"
            )


def _open_pictures(data: DetectionData) -> None:
    """InputError with the first pictures that cannot be opened or have another size than the annotations say."""
    bad = []
    for image in track(data.load()["images"], f"{data.name}: pictures"):
        path = data.image_path(image)
        try:
            with Image.open(path) as opened:
                opened.verify()
                # A picture may be stored turned, with an EXIF note; both orders are one size here.
                if sorted(opened.size) != sorted((image["width"], image["height"])):
                    bad.append(f"{path} is {opened.width}×{opened.height}, not {image['width']}×{image['height']}")
        except (OSError, SyntaxError, ValueError) as error:
            bad.append(f"{path}: {error}")
    if bad:
        more = ", …" if len(bad) > NAMED else ""
        raise InputError(f"{len(bad)} pictures of {data.name} are unusable: {'; '.join(bad[:NAMED])}{more}")


def _check_labels(cfg: CfgNode, name: str) -> None:
    """Read every label file; InputError names a bad one."""
    data = get_semantic_dataset(name, cfg.DATASETS.ROOT or None)
    _check_count(cfg, name, len(data.classes))
    counts = np.zeros((len(data.pairs), 256), dtype=np.int64)
    for index, picture in enumerate(pictures_of(data)):
        labels = data.labels(index)
        if labels.shape != (picture.height, picture.width):
            raise InputError(
                f"expected labels of {picture.width}×{picture.height} pixels as {picture.file} has, found "
                f"{labels.shape[1]}×{labels.shape[0]} in {data.pairs[index][1]}"
            )
        counts[index] = np.bincount(labels.ravel(), minlength=256)
        _check_crop(cfg, name, picture)
    if not counts[:, : len(data.classes)].any():
        raise InputError(f"every pixel of {name} is labelled to be ignored; nothing can be trained or scored")
    say(f"{name}: {len(data.pairs)} images, {len(data.classes)} classes, checked")
    if is_main() and cfg.TEST.VISUALS:
        folder = Path(cfg.OUTPUT_DIR) / "data"
        for path in write_label_overview(data, counts[:, : len(data.classes)], folder, cfg.TEST.VISUALS):
            say(f"  {path}")


def _check_crop(cfg: CfgNode, name: str, picture: Picture) -> None:
    """DeepLab pools over windows of a crop's size: crops must fit into images, and test images hold whole ones."""
    i, stride = cfg.INPUT, cfg.MODEL.SEM_SEG_HEAD.COMMON_STRIDE
    if not i.CROP.ENABLED:
        return
    if name in cfg.DATASETS.TRAIN:
        size = output_size(picture.height, picture.width, min(i.MIN_SIZE_TRAIN), i.MAX_SIZE_TRAIN)
        if any(side < crop for side, crop in zip(size, i.CROP.SIZE, strict=True)):
            raise InputError(
                f"INPUT.CROP.SIZE {list(i.CROP.SIZE)} does not fit into {picture.file} resized to {list(size)}; raise "
                "INPUT.MIN_SIZE_TRAIN, or lower the crop"
            )
    if name in cfg.DATASETS.TEST:
        size = output_size(picture.height, picture.width, i.MIN_SIZE_TEST, i.MAX_SIZE_TEST)
        if any(-(-side // stride) % (crop // stride) for side, crop in zip(size, i.CROP.SIZE, strict=True)):
            raise InputError(
                f"{picture.file} resized to {list(size)} is no multiple of INPUT.CROP.SIZE {list(i.CROP.SIZE)}, over "
                "which DeepLab pools; choose INPUT.MIN_SIZE_TEST so, or set INPUT.CROP.ENABLED False"
            )
