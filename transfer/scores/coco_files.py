"""COCO-form ground truth and result files as checked columns: one array per field instead of one dict per object.

The fast reader for scoring; for everything else ``transfer/data/annotations.py`` reads the same form.
"""

import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.log import warn
from momentum_transfer.core.untrusted import read_json
from momentum_transfer.transfer.data.annotations import in_fractions, refuse_fractions
from momentum_transfer.transfer.scores import rle, typed
from momentum_transfer.transfer.scores.columns import Columns, Positions, paused_collector
from momentum_transfer.transfer.scores.typed import Unusual

IouType = Literal["bbox", "segm"]
AreaFrom = Literal["file", "mask"]


@dataclass(frozen=True)
class GroundTruth:
    """N objects, in file order; images and categories in the order of their sorted ids."""

    where: str  # the file, for messages
    images: list[dict[str, Any]]
    sides: np.ndarray  # [2, I] float64 width and height of the images, infinite where unknown; only for bbox
    categories: list[dict[str, Any]]
    image_index: Positions
    category_index: Positions
    image: np.ndarray  # [N] position in images
    category: np.ndarray  # [N] position in categories
    area: np.ndarray  # [N] float64, pixels
    crowd: np.ndarray  # [N] bool
    ignore: np.ndarray  # [N] bool, the annotation's own "ignore"
    difficult: np.ndarray  # [N] bool, VOC's flag
    zero_id: np.ndarray  # [N] bool, an annotation id that reads as 0: see ``greedy_matching.match``
    boxes: np.ndarray | None  # [N, 4] x, y, width, height; only for bbox
    rles: rle.Rles | None  # only for segm

    def __len__(self) -> int:
        return len(self.image)

    def take(self, which: np.ndarray) -> "GroundTruth":
        """The objects at the positions ``which``; images and categories stay."""
        return _taken(self, ("image", "category", "area", "crowd", "ignore", "difficult", "zero_id"), which)

    def class_names(self) -> list[str]:
        """One name per category; a name that is used twice is followed by the id."""
        names = [str(category.get("name", category["id"])) for category in self.categories]
        twice = {name for name in set(names) if names.count(name) > 1} if len(set(names)) < len(names) else set()
        pairs = zip(names, self.categories, strict=True)
        return [f"{name} ({category['id']})" if name in twice else name for name, category in pairs]


@dataclass(frozen=True)
class Detections:
    """N detections, in file order."""

    where: str
    image: np.ndarray  # [N] position in GroundTruth.images
    category: np.ndarray  # [N] position in GroundTruth.categories
    score: np.ndarray  # [N] float64, no NaN
    area: np.ndarray  # [N] float64, pixels
    boxes: np.ndarray | None  # [N, 4]; only for bbox
    rles: rle.Rles | None  # only for segm

    def __len__(self) -> int:
        return len(self.image)

    def take(self, which: np.ndarray) -> "Detections":
        """The detections at the positions ``which``."""
        return _taken(self, ("image", "category", "score", "area"), which)


_Entries = TypeVar("_Entries", GroundTruth, Detections)


def _taken(entries: _Entries, columns: Sequence[str], which: np.ndarray) -> _Entries:
    return replace(
        entries,
        **{name: getattr(entries, name)[which] for name in columns},
        boxes=None if entries.boxes is None else entries.boxes[which],
        rles=None if entries.rles is None else entries.rles.take(which),
    )


def of_classes(truth: GroundTruth, detections: Detections, ids: Collection[Any]) -> tuple[GroundTruth, Detections]:
    """Both with the categories of these ids alone; all images stay."""
    places = [place for place, category in enumerate(truth.categories) if category["id"] in ids]
    categories = [truth.categories[place] for place in places]
    objects = truth.take(np.flatnonzero(np.isin(truth.category, places)))
    found = detections.take(np.flatnonzero(np.isin(detections.category, places)))
    number, of_found = (np.searchsorted(places, one.category).astype(np.int32) for one in (objects, found))
    index = Positions([category["id"] for category in categories])
    objects = replace(objects, categories=categories, category_index=index, category=number)
    return objects, replace(found, category=of_found)


def _of_type(entries: _Entries, iou_type: IouType) -> _Entries:
    if (entries.boxes if iou_type == "bbox" else entries.rles) is None:
        other = "segm" if iou_type == "bbox" else "bbox"
        raise InputError(f"expected {entries.where} read for {iou_type}, found it read for {other}; read it again")
    return entries


def load_ground_truth(source: Any, iou_type: IouType, area: bool = True) -> GroundTruth:
    """Read a COCO-form annotation file.

    Args:
        source: path, or the loaded mapping with ``images``, ``categories`` and ``annotations``; what was read before
            is returned as it is, if it has this geometry.
        iou_type: which geometry to read.
        area: whether every annotation must carry its ``area`` (COCO, LVIS); otherwise areas are 0.

    Raises:
        InputError: it is no such file, or an entry is wrong; the entry and the file are named.
    """
    if iou_type not in ("bbox", "segm"):
        raise InputError(f"expected iou_type bbox or segm, found {iou_type!r}")
    if isinstance(source, GroundTruth):
        return _of_type(source, iou_type)
    with paused_collector():
        truth = None
        if isinstance(source, (str, Path)):
            with suppress(Unusual):
                truth = _ground_truth(typed.ground_truth(Path(source), iou_type, area), iou_type, area)
        if truth is None:
            truth = _ground_truth(_sections(*_read_json(source, "ground truth")), iou_type, area)
    _warn_of_objects(truth)
    return truth


_warn_once = cache(warn)  # a file is read for its scores, and again for its errors


def _warn_of(where: str, counts: dict[str, Any]) -> None:
    for what, count in counts.items():
        if count:
            _warn_once(f"{where}: {count} {what}")


def _outside(boxes: np.ndarray, image: np.ndarray, sides: np.ndarray) -> int:
    """How many boxes [N, 4] leave their images [N] by more than a pixel; ``sides`` [2, I] as `_sides` gives them."""
    outside = np.zeros(len(boxes), dtype=bool)
    for side, most in enumerate(sides + 1):  # any(axis=1) of two is slow
        with np.errstate(over="ignore"):
            outside |= (boxes[:, side] < -1) | (boxes[:, side] + boxes[:, 2 + side] > most[image])
    return int(outside.sum())


def _warn_of_objects(truth: GroundTruth) -> None:
    """Warn of what the references score silently, though it is most probably a mistake."""
    if truth.boxes is not None:
        refuse_fractions(truth.boxes, truth.where)
    odd = (~np.isfinite(truth.area) | (truth.area < 0)).sum()
    outside = 0 if truth.boxes is None else _outside(truth.boxes, truth.image, truth.sides)
    counts = {
        "objects with a negative or infinite area, which no range of sizes holds": odd,
        "annotations with the id 0, which COCO's scores count as never found": truth.zero_id.sum(),
        "categories without a name, reported by their ids": sum("name" not in entry for entry in truth.categories),
        "boxes that leave their image by more than a pixel": outside,
    }
    _warn_of(truth.where, counts)


def _ground_truth(sections: tuple[Columns, Columns, Columns], iou_type: IouType, area: bool) -> GroundTruth:
    images, categories, annotations = sections
    where = images.where
    if not len(categories):
        raise InputError(f"expected at least one category in {where}, found none")
    image_index, category_index = _positions(images), _positions(categories)
    image = annotations.lookup("image_id", image_index, f"the images of {where}")
    boxes = annotations.boxes() if iou_type == "bbox" else None
    if boxes is not None and len(wrong := np.flatnonzero((boxes[:, 2:] < 0).any(axis=1))):
        annotations.fail(int(wrong[0]), f"the bbox {boxes[wrong[0]].tolist()}", "expected no negative width or height")
    sorted_images = sorted(images.entries, key=lambda entry: image_index[entry["id"]])
    return GroundTruth(
        where=where,
        images=sorted_images,
        sides=_sides(images, image_index) if iou_type == "bbox" else np.zeros((2, 0)),
        categories=sorted(categories.entries, key=lambda entry: category_index[entry["id"]]),
        image_index=image_index,
        category_index=category_index,
        image=image,
        category=annotations.lookup("category_id", category_index, f"the categories of {where}"),
        area=annotations.numbers("area") if area else np.zeros(len(annotations)),
        crowd=annotations.flags("iscrowd"),
        ignore=annotations.flags("ignore"),
        difficult=annotations.flags("difficult"),
        zero_id=_zeros(annotations.unique("id")),
        boxes=boxes,
        rles=annotations.rles(_sizes(sorted_images, where)[image]) if iou_type == "segm" else None,
    )


def load_detections(source: Any, truth: GroundTruth, iou_type: IouType, area_from: AreaFrom = "file") -> Detections:
    """Read a COCO-form result file: a list of ``{image_id, category_id, score, bbox and/or segmentation}``.

    Args:
        source: path, or the loaded list. A file in the plain form is read block by block, so that memory follows the
            columns and not the file. What was read before is returned as it is, if it has
            this geometry.
        truth: gives the known images and categories.
        iou_type: which geometry to read.
        area_from: how a detection's size is found for ``segm``. ``file``: from ``bbox`` where the entries have one, as
            pycocotools and lvis do; ``mask``: from the mask, as Detectron2 does (it strips the boxes first). Without
            boxes in the file both are the same.

    Raises:
        InputError: it is no such list, an entry is wrong, or it names an image or category that ``truth`` lacks.
    """
    if isinstance(source, Detections):
        return _of_type(source, iou_type)
    sizes = _sizes(truth.images, truth.where) if iou_type == "segm" else None
    with paused_collector():
        found = _load_detections(source, truth, iou_type, area_from, sizes)
    _warn_of_detections(found, truth)
    return found


def _warn_of_detections(found: Detections, truth: GroundTruth) -> None:
    """Warn of what lowers a score without being an error."""
    if not len(found):  # as scored before a training
        return
    of, images = f"of {len(found)} detections", len(truth.images)
    counts = {f"of {images} images have no detection": int((np.bincount(found.image, minlength=images) == 0).sum())}
    if found.boxes is not None:
        negative = ((found.boxes[:, 2] < 0) | (found.boxes[:, 3] < 0)).sum()
        counts |= {
            f"{of} are fractions of the image, not pixels, and match nothing": in_fractions(found.boxes),
            f"{of} have a negative width or height and match nothing": int(negative),
            f"{of} leave their image by more than a pixel": _outside(found.boxes, found.image, truth.sides),
        }
    _warn_of(found.where, counts)


def _load_detections(
    source: Any, truth: GroundTruth, iou_type: IouType, area_from: AreaFrom, sizes: np.ndarray | None
) -> Detections:
    if isinstance(source, (str, Path)):
        with suppress(Unusual):
            blocks = typed.detections(Path(source), iou_type, area_from)
            return _joined([_detections(*block, truth, iou_type, sizes, str(source)) for block in blocks])
    data, where = _read_json(source, "results")
    if not isinstance(data, list):
        raise InputError(
            f"expected a list of detections (COCO result format) in {where}, found {_kind(data)}; "
            "is this the ground truth file, or another kind of output?"
        )
    sized_by_box = iou_type == "bbox" or (area_from == "file" and len(data) > 0 and _has_box(data[0]))
    return _detections(Columns(data, where, "entry"), sized_by_box, truth, iou_type, sizes, where)


def _detections(
    entries: Columns, sized_by_box: bool, truth: GroundTruth, iou_type: IouType, sizes: np.ndarray | None, where: str
) -> Detections:
    image = entries.lookup("image_id", truth.image_index, f"the images of {truth.where}")
    category = entries.lookup("category_id", truth.category_index, f"the categories of {truth.where}")
    score = entries.numbers("score")
    boxes = entries.boxes() if sized_by_box else None
    rles = None if sizes is None else entries.rles(sizes[image])
    with np.errstate(over="ignore"):  # an infinite area lies in no range of sizes
        area = boxes[:, 2] * boxes[:, 3] if boxes is not None else rles.areas if rles is not None else np.zeros(0)
    return Detections(where, image, category, score, area, boxes if iou_type == "bbox" else None, rles)


def _joined(blocks: list[Detections]) -> Detections:
    """One after another; a column's blocks are released as soon as it is whole."""
    first, rles = blocks[0], [block.rles for block in blocks if block.rles is not None]
    names = ("image", "category", "score", "area") + (("boxes",) if first.boxes is not None else ())
    columns = {name: [getattr(block, name) for block in blocks] for name in names}
    blocks.clear()
    joined: dict[str, Any] = {name: np.concatenate(columns.pop(name)) for name in names}
    return replace(first, **joined, rles=rle.join(rles) if rles else None)


def _has_box(entry: dict[str, Any]) -> bool:
    box = entry.get("bbox") if isinstance(entry, dict) else None
    return box is not None and not (isinstance(box, (list, tuple)) and not box)


def _zeros(ids: list[Any]) -> np.ndarray:
    """[N] bool, ids that become 0 in the references' array of floats: 0, and also "00" or " 0"."""

    def reads_as_zero(identity: Any) -> bool:
        if type(identity) is int:  # as nearly always
            return identity == 0
        try:
            return float(identity) == 0
        except (ValueError, OverflowError):
            return False

    return np.fromiter(map(reads_as_zero, ids), dtype=bool, count=len(ids))


def _read_json(source: Any, what: str) -> tuple[Any, str]:
    """The object, and its name for messages; ``source`` is a path or the object itself."""
    if not isinstance(source, (str, Path)):
        return source, f"the given {what}"
    path = Path(source)
    if not os.path.exists(path):
        raise InputError(f"{what} file not found: {path}; expected a JSON file")
    return read_json(path, what), str(path)


def _kind(data: Any) -> str:
    if isinstance(data, dict):
        return f"an object with the keys {', '.join(map(str, list(data)[:6])) or '(none)'}"
    return f"a list of {len(data)}" if isinstance(data, list) else f"{data!r:.60}"


def _sections(data: Any, where: str) -> tuple[Columns, Columns, Columns]:
    kinds = {"images": "image", "categories": "category", "annotations": "annotation"}
    if not isinstance(data, dict) or not all(isinstance(data.get(section), list) for section in kinds):
        hint = "is this a result file? the ground truth comes first" if isinstance(data, list) else "wrong file?"
        raise InputError(
            f"expected an object with the lists {', '.join(kinds)} in {where}, found {_kind(data)}; {hint}"
        )
    images, categories, annotations = (Columns(data[section], where, kind) for section, kind in kinds.items())
    return images, categories, annotations


def _positions(entries: Columns) -> Positions:
    """Positions in the order of the sorted ids, which is that of the references."""
    try:
        ordered = sorted(entries.unique("id"))
    except TypeError as error:
        raise InputError(
            f"{entries.where}: the ids of the {entries.kind} entries are numbers and strings mixed; expected one kind"
        ) from error
    return Positions(ordered)


def _sides(images: Columns, index: Positions) -> np.ndarray:
    """[2, I] width and height, for boxes, where they may be missing: infinite then; InputError for 0 or less."""
    sides = np.full((2, len(images)), np.inf)
    for place, entry in enumerate(images.entries):
        for side, name in enumerate(("width", "height")):
            value = entry.get(name)
            if isinstance(value, (int, float, np.number)) and value < 1e9:
                if value <= 0:
                    images.fail(place, f"the {name} {value!r}", "expected a whole number above 0")
                sides[side, index[entry["id"]]] = value
    return sides


def _sizes(images: list[dict[str, Any]], where: str) -> np.ndarray:
    """[I, 2] int64 height and width of the images."""
    sizes = []
    for entry in images:
        height: Any = entry.get("height")
        width: Any = entry.get("width")
        if not all(isinstance(side, (int, np.integer)) and side > 0 for side in (height, width)):
            raise InputError(
                f"{where}: image {entry['id']!r} has height {height!r} and width {width!r}; masks need both as whole "
                "numbers above 0"
            )
        if int(height) * int(width) > rle.MOST_PIXELS:
            raise InputError(
                f"{where}: image {entry['id']!r} has {height} x {width} pixels; a run-length code holds at most "
                f"{rle.MOST_PIXELS}"
            )
        sizes.append([int(height), int(width)])
    return np.array(sizes, dtype=np.int64).reshape(-1, 2)
