"""Detection data sets by name: embedded, COCO, LVIS and VOC in Detectron2's folder layout, any set in COCO's form."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from momentum_transfer.core.errors import InputError, shown
from momentum_transfer.core.files import cache_root, part_title, sha256_of_text, write_text
from momentum_transfer.core.log import say
from momentum_transfer.core.untrusted import read_lines
from momentum_transfer.images.labelled_images import CLASSES as VOC_CLASSES
from momentum_transfer.transfer.data.annotations import DetectionData, coco_content, open_dataset
from momentum_transfer.transfer.data.digit_scenes import RECIPES, ensure_scenes
from momentum_transfer.transfer.data.own.labelled import Box
from momentum_transfer.transfer.data.own.voc_xml import image_size, read_object, read_xml

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
_VOC_VERSION = 1  # raise it when the conversion changes: the cache is keyed by it
#: A set that has no name here: its images' folder and its JSON, and perhaps what to call it.
_FILES = re.compile(r"(?:(?P<name>[\w.-]+)=)?(?P<images>.+):(?P<file>[^:]+\.json)", re.DOTALL)


def datasets_root(root: str | Path | None) -> Path:
    """`root`, else $DETECTRON2_DATASETS, else ./datasets: the folder that holds coco/, lvis/, VOC2007/, cityscapes/."""
    return Path(root or os.environ.get("DETECTRON2_DATASETS") or "datasets").expanduser()


def short_name(name: str) -> str:
    """The name of a set of DATASETS.TRAIN or TEST in tables and files: the one given, else one from its file.

    ``blood=IMAGES:FILE.json`` is blood, ``…/blood/valid:…/blood/instances_valid.json`` is blood_val.
    """
    found = _FILES.fullmatch(name)
    return name if found is None else found["name"] or part_title(found["file"])


def content_name(name: str) -> str:
    """A set of DATASETS.TRAIN or TEST as it enters hashes of settings: for a file that `open_own` wrote, its name and
    the hash of its content, without folders."""
    found = _FILES.fullmatch(name)
    content = re.search(r"-([0-9a-f]{12})\.json$", found["file"]) if found else None
    return f"{short_name(name)}={content[1]}" if content else name


def get_dataset(name: str, root: str | Path | None = None) -> DetectionData:
    """Find a dataset.

    Args:
        name: an embedded or published set, or `IMAGES_DIR:FILE.json` for a set in COCO's or LVIS' form, or
            `NAME=IMAGES_DIR:FILE.json` to name it; see `short_name`.
        root: see `datasets_root`; embedded sets do not need it.

    Raises:
        InputError: an unknown name, a missing folder or file, a file that is not a COCO JSON or half an LVIS JSON.
    """
    if name in _EMBEDDED:
        recipe, split = _EMBEDDED[name]
        folder = ensure_scenes(RECIPES[recipe])
        kind = "lvis" if RECIPES[recipe].lvis else "coco"
        return open_dataset(name, folder / split, folder / "annotations" / f"{split}.json", kind)
    if name in _PUBLISHED:
        images, annotations, kind = _PUBLISHED[name]
        return open_dataset(name, datasets_root(root) / images, datasets_root(root) / annotations, kind)
    if name in _VOC:
        year, split = _VOC[name]
        folder = datasets_root(root) / f"VOC{year}"
        return open_dataset(name, folder / "JPEGImages", _voc_as_coco(folder, split), "voc")
    found = _FILES.fullmatch(name)
    if found:
        data = open_dataset(short_name(name), Path(found["images"]).expanduser(), Path(found["file"]).expanduser())
        return replace(data, kind="lvis") if _is_lvis(data) else data
    known = ", ".join([*_EMBEDDED, *_PUBLISHED, *_VOC])
    raise InputError(f"expected a dataset among {known}, or IMAGES_DIR:FILE.json, found {name!r}")


def _is_lvis(data: DetectionData) -> bool:
    """Whether a JSON has LVIS' lists of verified classes, by whose rules it is scored; InputError for some of them."""
    lists, content = ("neg_category_ids", "not_exhaustive_category_ids"), data.content
    given = [image.get(key) is not None for image in content["images"] for key in lists]
    if not any(given):
        return False
    if not all(given) or any(category.get("frequency") is None for category in content["categories"]):
        raise InputError(
            f"expected {' and '.join(lists)} of every image and a frequency of every category in "
            f"{data.annotation_file}, as LVIS has them, found only some; add the rest, or remove these for COCO's rules"
        )
    return True


def _voc_as_coco(folder: Path, split: str) -> Path:
    """One image set of a VOC folder (`VOC2007`) as a COCO JSON in the cache, converted unless it is there already.

    As in Detectron2, VOC's (xmin, ymin, xmax, ymax), pixels from 1 with both ends included, become the continuous box
    (xmin − 1, ymin − 1, xmax, ymax); training uses `difficult` objects, scoring ignores them.
    """
    list_file = folder / "ImageSets" / "Main" / f"{split}.txt"
    if not list_file.is_file():
        raise InputError(f"expected PASCAL VOC's image list at {list_file}, found none; check DATASETS.ROOT")
    names = [name for line in read_lines(list_file, "a list of images") for name in line.split()]
    files = [folder / "Annotations" / f"{name}.xml" for name in names]
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise InputError(
            f"expected an annotation file for all {len(names)} images of {list_file}, found {len(missing)} missing: "
            + ", ".join(str(file) for file in missing[:10])
        )
    stamps = [(str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files]
    key = sha256_of_text(json.dumps([_VOC_VERSION, str(folder.resolve()), stamps]))[:12]
    target = cache_root() / "voc" / f"{folder.name}-{split}-{key}.json"
    if not target.is_file():
        say(f"converting {len(files)} VOC annotations to {target}")
        images = (_voc_image(name, file) for name, file in zip(names, files, strict=True))
        write_text(target, json.dumps(coco_content(images, ({"name": name} for name in VOC_CLASSES))))
    return target


def _voc_image(name: str, file: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    try:
        root = read_xml(file)
        width, height, _ = image_size(root, file)
        objects = [_voc_object(read_object(node, file)) for node in root.iterfind("object")]
    except InputError as error:
        raise InputError(f"expected a PASCAL VOC annotation in {file}, found: {error}") from error
    return {"file_name": f"{name}.jpg", "height": height, "width": width}, objects


def _voc_object(box: Box) -> dict[str, Any]:
    if box.name not in VOC_CLASSES:
        raise InputError(f"the class {shown(box.name)} in {box.where}, which is none of VOC's 20")
    left, top, right, bottom = box.box
    width, height = right - left + 1, bottom - top + 1
    return {
        "category_id": VOC_CLASSES.index(box.name) + 1,
        "bbox": [left - 1, top - 1, width, height],
        "area": width * height,
        "iscrowd": 0,
        "difficult": int(box.difficult),
    }
