"""Detection datasets by name: embedded, COCO, LVIS and VOC in Detectron2's folder layout, any set in COCO's form."""

from __future__ import annotations

import os
import re
from pathlib import Path

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import part_title
from momentum_transfer.transfer.data.annotations import DetectionData, open_dataset
from momentum_transfer.transfer.data.check_annotations import Problem, check
from momentum_transfer.transfer.data.digit_scenes import RECIPES, ensure_scenes
from momentum_transfer.transfer.data.voc import voc_as_coco

__all__ = ["DetectionData", "Problem", "check", "dataset_names", "get_dataset", "register_coco",
           "short_name"]  # fmt: skip

# name -> images folder, annotation file, kind; below the root
_PUBLISHED = {
    "coco_2017_train": ("coco/train2017", "coco/annotations/instances_train2017.json", "coco"),
    "coco_2017_val": ("coco/val2017", "coco/annotations/instances_val2017.json", "coco"),
    # LVIS v1 mixes images of train2017 and val2017, so its folder is the one above them.
    "lvis_v1_train": ("coco", "lvis/lvis_v1_train.json", "lvis"),
    "lvis_v1_val": ("coco", "lvis/lvis_v1_val.json", "lvis"),
    "lvis_v0.5_train": ("coco/train2017", "lvis/lvis_v0.5_train.json", "lvis"),
    "lvis_v0.5_val": ("coco/val2017", "lvis/lvis_v0.5_val.json", "lvis"),
}
_VOC = {f"voc_{year}_{split}": (year, split) for year in ("2007", "2012") for split in ("train", "val", "trainval")}
_VOC["voc_2007_test"] = ("2007", "test")
_EMBEDDED = {f"{name}_{split}": (name, split) for name in RECIPES for split in ("train", "val")}
_registered: dict[str, tuple[Path, Path]] = {}
#: A set that has no name here: its images' folder and its JSON, and perhaps what to call it.
_FILES = re.compile(r"(?:(?P<name>[\w.-]+)=)?(?P<images>.+):(?P<file>[^:]+\.json)", re.DOTALL)


def dataset_names() -> list[str]:
    """Every name that `get_dataset` knows."""
    return [*_EMBEDDED, *_PUBLISHED, *_VOC, *_registered]


def datasets_root(root: str | Path | None) -> Path:
    """`root`, else $DETECTRON2_DATASETS, else ./datasets: the folder that holds coco/, lvis/, VOC2007/, cityscapes/."""
    return Path(root or os.environ.get("DETECTRON2_DATASETS") or "datasets").expanduser()


def short_name(name: str) -> str:
    """What tables and files call a set of DATASETS.TRAIN or TEST: the name that was given, else one of its file.

    ``blood=IMAGES:FILE.json`` is blood, ``…/blood/valid:…/blood/instances_valid.json`` is blood_val.
    """
    found = _FILES.fullmatch(name)
    return name if found is None else found["name"] or part_title(found["file"])


def content_name(name: str) -> str:
    """A set of DATASETS.TRAIN or TEST as hashes of settings take it: of one that `open_own` wrote, whose file is named
    by its content, the name and that, without folders."""
    found = _FILES.fullmatch(name)
    content = re.search(r"-([0-9a-f]{12})\.json$", found["file"]) if found else None
    return f"{short_name(name)}={content[1]}" if content else name


def register_coco(name: str, images_dir: str | Path, annotation_file: str | Path) -> None:
    """Make a set in COCO's form known under a name.

    Raises:
        InputError: the name stands for another dataset.
    """
    entry = (Path(images_dir).expanduser(), Path(annotation_file).expanduser())
    if name in {*_EMBEDDED, *_PUBLISHED, *_VOC} or _registered.get(name, entry) != entry:
        raise InputError(f"expected a new dataset name, found {name!r}, which stands for another dataset")
    _registered[name] = entry


def get_dataset(name: str, root: str | Path | None = None) -> DetectionData:
    """Find a dataset.

    Args:
        name: one of `dataset_names()`, or `IMAGES_DIR:FILE.json` for a set in COCO's form, or
            `NAME=IMAGES_DIR:FILE.json` to name it; see `short_name`.
        root: see `datasets_root`; embedded and registered sets do not need it.

    Raises:
        InputError: an unknown name, a missing folder or file, a file that is not a COCO JSON.
    """
    if name in _EMBEDDED:
        recipe, split = _EMBEDDED[name]
        folder = ensure_scenes(RECIPES[recipe])
        kind = "lvis" if RECIPES[recipe].lvis else "coco"
        return open_dataset(name, folder / split, folder / "annotations" / f"{split}.json", kind)
    if name in _registered:
        return open_dataset(name, *_registered[name])
    if name in _PUBLISHED:
        images, annotations, kind = _PUBLISHED[name]
        return open_dataset(name, datasets_root(root) / images, datasets_root(root) / annotations, kind)
    if name in _VOC:
        year, split = _VOC[name]
        folder = datasets_root(root) / f"VOC{year}"
        return open_dataset(name, folder / "JPEGImages", voc_as_coco(folder, split), "voc")
    found = _FILES.fullmatch(name)
    if found:
        return open_dataset(short_name(name), Path(found["images"]).expanduser(), Path(found["file"]).expanduser())
    raise InputError(f"expected a dataset among {', '.join(dataset_names())}, or IMAGES_DIR:FILE.json, found {name!r}")
