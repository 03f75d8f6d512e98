"""Detection data sets as files: a folder of images and one JSON in COCO's form, and the masks in it as arrays.

The one reader of such files for training, checking, converting and plotting. Scoring reads the same form into columns
of arrays (``transfer/scores/coco_files.py``).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as coco_mask

from momentum_transfer.core.errors import InputError, shown
from momentum_transfer.core.untrusted import read_json

#: Pixels by which a box may leave its image.
TOLERANCE = 1.0


@dataclass(frozen=True)
class DetectionData:
    """A detection data set."""

    name: str  # as in configs and results
    images_dir: Path
    annotation_file: Path
    classes: tuple[str, ...]  # names in ascending order of category id: class k of a model is the k-th category
    category_ids: tuple[int, ...]  # in the same order
    kind: str  # "coco", "lvis" (scored only on verified classes) or "voc" (COCO's form with `difficult`)
    content: dict[str, Any] = field(repr=False, compare=False)

    def image_path(self, image: Mapping[str, Any]) -> Path:
        """The file of an entry of `images`.

        LVIS v1 names images by `coco_url`, whose last two parts are folder and file; v0.5 has names of COCO 2014
        (`COCO_val2014_000000000001.jpg`), of which COCO 2017 kept the number.
        """
        if "file_name" in image:
            file_name = str(image["file_name"])
            return self.images_dir / (file_name[-16:] if file_name.startswith("COCO_") else file_name)
        return self.images_dir.joinpath(*str(image["coco_url"]).split("/")[-2:])

    def load(self) -> dict[str, Any]:
        """The parsed JSON; do not change it."""
        return self.content


def file_stem(dataset: str) -> str:
    """A data set's name as part of a file name: other characters than letters, digits, - . _ are replaced."""
    return re.sub(r"[^\w.-]+", "_", dataset.removesuffix(".json")).strip("_")[-80:]


def read_annotations(path: str | Path) -> dict[str, Any]:
    """Parse a COCO-form JSON file; InputError if it is none, or lacks one of the three lists."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"expected an annotation file (COCO JSON) at {path}, found none; check DATASETS.ROOT")
    data = read_json(path, "annotations")
    for part in ("images", "annotations", "categories"):
        if not isinstance(data, dict) or not isinstance(data.get(part), list):
            raise InputError(f"expected a list {part!r} in {path}, found none; is it a COCO JSON for detection?")
        for entry in data[part]:
            if not isinstance(entry, dict) or type(entry.get("id")) is not int:
                raise InputError(f"expected entries with an integer id in {part!r} of {path}, found {shown(entry)}")
    return data


def in_fractions(boxes: Iterable[Sequence[float]]) -> int:
    """The number of boxes [x, y, width, height] if all are fractions of their image; 0 if any is in pixels.

    They are fractions if all lie within 0 … 1 (give or take 0.1) and not all at whole pixels.
    """
    count, between = 0, False
    for box in boxes:
        if not all(-0.1 <= value <= 1.1 for value in box):
            return 0
        count += 1
        between = between or any(0 < round(value, 6) < 1 for value in box)
    return count if between else 0


def refuse_fractions(boxes: Iterable[Sequence[float]], where: str | Path) -> None:
    """Raise InputError if the boxes are `in_fractions` of their images."""
    if count := in_fractions(boxes):
        raise InputError(
            f"expected boxes [x, y, width, height] in pixels in {where}, found all {count} within 0 … 1, as fractions "
            "of the image; multiply them by its width and height"
        )


def open_dataset(name: str, images_dir: Path, annotation_file: Path, kind: str = "coco") -> DetectionData:
    """Read a data set; InputError for a missing folder, file or category list."""
    if not images_dir.is_dir():
        raise InputError(
            f"expected the images of dataset {name!r} in {images_dir}, found no such folder; correct the path or "
            "DATASETS.ROOT"
        )
    content = read_annotations(annotation_file)
    categories = sorted(content["categories"], key=lambda category: category["id"])
    nameless = [c for c in categories if type(c.get("name")) not in (str, int, float) or c["name"] == ""]
    if not categories or nameless:
        raise InputError(f"expected named categories in {annotation_file}, found {shown(nameless)[:120]}")
    classes = tuple(str(category["name"]) for category in categories)
    ids = tuple(category["id"] for category in categories)
    return DetectionData(name, images_dir, annotation_file, classes, ids, kind, content)


def coco_content(
    images: Iterable[tuple[Mapping[str, Any], Iterable[Mapping[str, Any]]]], categories: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    """COCO's JSON of images with their annotations, and of categories; all get ids from 1 in the given order."""
    content: dict[str, Any] = {"images": [], "annotations": []}
    for image_id, (image, objects) in enumerate(images, 1):
        content["images"].append({"id": image_id, **image})
        for entry in objects:
            content["annotations"].append({"id": len(content["annotations"]) + 1, "image_id": image_id, **entry})
    content["categories"] = [{"id": k, **category} for k, category in enumerate(categories, 1)]
    return content


def decode_mask(segmentation: Any, height: int, width: int) -> NDArray[np.bool_]:
    """Mask [height, width] of a COCO segmentation: polygons, or (un)compressed run lengths.

    ValueError for run lengths that do not sum up to the pixels of the image.
    """
    if isinstance(segmentation, list):
        segmentation = coco_mask.merge(coco_mask.frPyObjects(segmentation, height, width))
    runs = checked_runs(segmentation["counts"], height, width)
    return np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(width, height).T


def encode_mask(bitmap: NDArray[np.bool_]) -> dict[str, Any]:
    """COCO's compressed run lengths of a mask [height, width]."""
    runs = coco_mask.encode(np.asfortranarray(bitmap.astype(np.uint8)))
    return {"size": runs["size"], "counts": runs["counts"].decode("ascii")}


def checked_runs(counts: Any, height: int, width: int) -> NDArray[np.int64]:
    """The run lengths of ``counts``, compressed or not; ValueError unless they fill [height, width] exactly."""
    if isinstance(counts, list):
        if not all(type(run) is int and 0 <= run <= height * width for run in counts):
            raise ValueError(f"run lengths need to be whole numbers from 0 to {height} x {width}")
        runs = np.asarray(counts, dtype=np.int64)
    else:
        runs = _run_lengths(counts)
    if runs.min(initial=0) < 0 or runs.sum() != height * width:
        raise ValueError(f"run lengths of {runs.sum()} pixels, expected {height} x {width}")
    return runs


def _run_lengths(code: Any) -> NDArray[np.int64]:
    """Lengths of the runs of zeros, ones, zeros, …, column after column, from COCO's compressed code.

    A character minus 48 holds five bits of a number, lowest first, and in its sixth whether more follow; the last one's
    fifth bit is the sign. From the fourth number on each is a difference from the one two before (maskApi.c).
    pycocotools' ``decode`` does not check codes, and warns at every call under NumPy 2. For whole files, whose sums
    alone are needed, see ``transfer/scores/rle.py``.
    """
    if not isinstance(code, str | bytes):
        raise ValueError(f"expected compressed run lengths, found {code!r:.40}")
    bits = np.frombuffer(code if isinstance(code, bytes) else code.encode("latin-1"), dtype=np.uint8) - np.uint8(48)
    ends = np.flatnonzero(bits & 0x20 == 0)
    digits = np.diff(ends, prepend=-1)
    if not len(ends) or ends[-1] != len(bits) - 1 or digits.max() > 6 or bits.max() > 63:  # 6: runs of up to 2^29
        raise ValueError(f"expected compressed run lengths, found {code!r:.40}")
    begins = ends - digits + 1
    place = np.arange(len(bits)) - np.repeat(begins, digits)
    values = np.add.reduceat((bits & 0x1F).astype(np.int64) << (5 * place), begins)
    values -= (bits[ends] & 0x10 != 0) * (np.int64(1) << (5 * digits))
    values[1::2] = np.cumsum(values[1::2])
    values[2::2] = np.cumsum(values[2::2])
    return values
