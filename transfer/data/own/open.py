"""Opens your own data set: finds its form, splits it, and writes it once in the form that engines and scores read.

VOC, YOLO and COCO forms of one set become equal: images and classes sorted by name, the objects of an image by class
and place. So they train the same detector and score the same, to the last bit.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from momentum_transfer.core.errors import InputError, counted
from momentum_transfer.core.files import cache_root, set_title, sha256_of_text, write_text
from momentum_transfer.images.class_folders import is_class_folders
from momentum_transfer.images.groups import image_groups, say_groups
from momentum_transfer.images.subsets import stratified_split
from momentum_transfer.transfer.data.annotations import DetectionData, coco_content, decode_mask, open_dataset
from momentum_transfer.transfer.data.detection_datasets import get_dataset
from momentum_transfer.transfer.data.own import coco_json, voc_xml, yolo
from momentum_transfer.transfer.data.own.labelled import (
    Box,
    LabelledImage,
    LabelledSet,
    all_upright,
    checked_mask,
    left_out,
)
from momentum_transfer.transfer.data.semantic_datasets import has_label_pngs


@dataclass(frozen=True)
class OwnData:
    """Your own set, split and ready."""

    title: str  # short name, of the folder
    form: str  # "COCO JSON", "VOC XML", "YOLO text"
    train: DetectionData
    val: DetectionData
    masks: str  # "" (boxes only), "polygon" or "bitmask"
    notes: tuple[str, ...]  # for the user, before the run

    @property
    def specs(self) -> tuple[str, str]:
        """The two sets' names for DATASETS.TRAIN and TEST, ``NAME=IMAGES_DIR:FILE.json``, which `get_dataset` reads."""
        train, val = (f"{data.name}={data.images_dir}:{data.annotation_file}" for data in (self.train, self.val))
        return train, val

    def lines(self) -> list[str]:
        """The summary that is shown before anything is computed."""
        lines = [
            f"{self.title}: {self.form}, {counted(len(self.train.classes), 'class')}: {', '.join(self.train.classes)}"
        ]
        for word, data in (("train", self.train), ("test", self.val)):
            content = data.load()
            counts = Counter(entry["category_id"] for entry in content["annotations"])
            each = ", ".join(f"{name} {counts[k]}" for name, k in zip(data.classes, data.category_ids, strict=True))
            lines.append(
                f"  {word}: {counted(len(content['images']), 'image')}, {counted(counts.total(), 'object')} ({each})"
            )
        return [*lines, *(f"  {note}" for note in self.notes)]


def open_own(
    train: str | Path,
    val: str | Path | None = None,
    split: float | None = None,
    *,
    seed: int = 0,
    title: str = "",
    images: str | Path | None = None,
) -> OwnData:
    """Open your own data set.

    Args:
        train: a folder or file: COCO JSON, VOC XML, YOLO text with its data.yaml or classes.txt.
        val: the part that tests, in any of these forms; or
        split: the fraction of the images that train, the rest tests: stratified by class, a function of the seed.
            Groups of a groups.csv stay whole. Without both, the set's own split is used.
        title: short name in tables and files; "" takes the folder's.
        images: where images lie, if not beside the labels.

    Raises:
        InputError: with the file and line of what is wrong.
    """
    where = None if images is None else _existing(images)
    if val is not None and split is not None:
        raise InputError("expected --val or --split, found both; leave one out")
    sources = [_existing(train)] + ([_existing(val)] if val is not None else [])
    read = [all_upright(one) for one in voc_xml.settle_corners([_read_set(source, where) for source in sources])]
    whole = read[0]
    if val is not None:
        parts = [_part(read[0], "train"), _part(read[1], "val")]
        kept = {image.file for part in parts for image in part}
        unused = {image.file for one in read for image in one.images} - kept
        read[0] = replace(read[0], notes=(*read[0].notes, *left_out(len(unused), whole.root)))
    else:
        parts = _split(whole, split, seed)
    name = re.sub(r"[^\w.-]+", "_", title) or set_title(sources[0])
    classes, notes = _used_classes(read)
    masks = _mask_form([box for part in parts for image in part for box in image.objects])
    notes += _notes(parts, masks) + [note for one in read for note in one.notes]
    root = Path(os.path.commonpath([image.file.parent.resolve() for part in parts for image in part]))
    opened = [
        _write(f"{name}_{word}", part, classes, masks, root) for word, part in zip(("train", "val"), parts, strict=True)
    ]
    return OwnData(name, whole.form, opened[0], opened[1], masks, tuple(dict.fromkeys(notes)))


def training_images(train: str) -> list[Path]:
    """The image files of a set that trains detectors, for what needs no labels; none of a folder without labels.

    Args:
        train: a folder or file as of `open_own`, or a name of DATASETS.TRAIN. Of a set with a split of its own the
            part that trains is taken.

    Raises:
        InputError: with the file and line of what is wrong.
    """
    source = Path(train).expanduser()
    if not source.exists():
        try:
            data = get_dataset(train)
        except InputError as error:
            raise InputError(f"{error}, where there is no folder or file either") from error
        return [data.image_path(image) for image in data.load()["images"]]
    if source.is_dir() and not _forms(source):
        return []
    return [image.file for image in _part(_read_set(source), "train")]


def _existing(path: str | Path) -> Path:
    found = Path(path).expanduser()
    if not found.exists():
        raise InputError(f"expected a folder or file of labelled images at {found}, found nothing; check the path")
    return found


def _read_set(source: Path, images: Path | None = None) -> LabelledSet:
    """Read a folder or file in whichever form it is; InputError if it is in none, or in two."""
    if source.is_file():
        if source.suffix == ".json":
            return coco_json.read_coco(source, images)
        if source.suffix in (".yaml", ".yml"):
            return yolo.read_yolo(source, images)
        raise InputError(f"expected a folder, a COCO .json or YOLO's data.yaml, found {source}")
    present = _forms(source, images)
    if len(present) > 1:
        raise InputError(f"expected labels in one form in {source}, found {' and '.join(present)}; give one of them")
    if not present:
        raise _no_form(source, images)
    if present[0] == coco_json.FORM:
        return coco_json.read_coco(source, images)
    if present[0] == voc_xml.FORM:
        return voc_xml.read_voc(source, images)
    named = _data_yaml(source) if images is None else None
    return yolo.read_yolo(named or source, images)


def _forms(source: Path, images: Path | None = None) -> list[str]:
    forms = {
        coco_json.FORM: bool(coco_json.coco_files(source)),
        voc_xml.FORM: bool(voc_xml.xml_files(source)),
        yolo.FORM: _data_yaml(source) is not None
        or (yolo.names_file(source) is not None and any(yolo.labelled_files(source, images).values())),
    }
    return [form for form, here in forms.items() if here]


def _data_yaml(source: Path) -> Path | None:
    return next(filter(yolo.is_data_yaml, sorted(source.glob("*.y*ml"))), None)


def _no_form(source: Path, images: Path | None) -> InputError:
    """The error for a folder in none of the forms, with the next step."""
    found, step = "none", "name the labels' folder"
    if any(yolo.labelled_files(source, images).values()):
        found, step = "text files without names", "write the classes' names into classes.txt beside them, a line each"
    elif has_label_pngs(source):
        found, step = "label PNGs", "give a segmenter's --config, such as transfer/own_small_segmentation"
    elif is_class_folders(source):
        found, step = "a folder for each class", "lowshot and choose take those, a detector needs boxes"
    return InputError(
        f"expected a COCO JSON, VOC XML, or YOLO labels with data.yaml or classes.txt in {source}, "
        f"found {found}; {step}"
    )


def _part(one: LabelledSet, split: str) -> list[LabelledImage]:
    """The images of a set given as --train or --val: that part of its own split, else all."""
    chosen = [image for image in one.images if image.split == split] or list(one.images)
    if not chosen:
        raise InputError(f"expected images in {one.root}, found none")
    return _ordered(chosen)


def _split(whole: LabelledSet, fraction: float | None, seed: int) -> list[list[LabelledImage]]:
    images = _ordered(whole.images)
    if fraction is None:
        parts = [[image for image in images if image.split == word] for word in ("train", "val")]
        if not all(parts):
            raise InputError(
                f"expected --val FOLDER_OR_FILE or --split 0.8, found neither, and {whole.root} has no split of "
                "its own; add one of them"
            )
        return parts
    number: dict[str, int] = {}
    labels = [[number.setdefault(box.name, len(number)) for box in image.objects] for image in images]
    names = sorted(number)
    place = {number[name]: k for k, name in enumerate(names)}  # the same split of the same set in any form
    if (groups := image_groups([str(image.file) for image in images])) is not None:
        say_groups(groups)
    trains = stratified_split([[place[k] for k in found] for found in labels], fraction, seed, groups)
    return [[image for image, first in zip(images, trains, strict=True) if first == side] for side in (True, False)]


def _ordered(images: Sequence[LabelledImage]) -> list[LabelledImage]:
    return sorted(images, key=lambda image: (image.file.stem, str(image.file)))


def _used_classes(sets: Sequence[LabelledSet]) -> tuple[list[str], list[str]]:
    """Classes that objects have, by name, and a note on the others."""
    used = {box.name for one in sets for image in one.images for box in image.objects}
    if not used:
        raise InputError(f"expected at least one object in {sets[0].root}, found none; label some")
    unused = sorted({name for one in sets for name in one.declared} - used)
    return sorted(used), [f"classes without an object are left out: {', '.join(unused)}"] if unused else []


def _mask_form(boxes: Sequence[Box]) -> str:
    if not boxes or any(box.segmentation is None for box in boxes if not box.crowd):
        return ""
    return "bitmask" if any(isinstance(box.segmentation, dict) for box in boxes if not box.crowd) else "polygon"


def _notes(parts: Sequence[Sequence[LabelledImage]], masks: str) -> list[str]:
    train, val = parts
    boxes = [box for part in parts for image in part for box in image.objects]
    notes = []
    learnt = {box.name for image in train for box in image.objects}
    if not learnt:
        raise InputError("expected objects in the images that train, found none; label some, or raise --split")
    if not any(image.objects for image in val):
        raise InputError("expected objects in the images that test, found none; label some, or lower --split")
    unseen = sorted({box.name for box in boxes} - learnt)
    if unseen:
        notes.append(f"no training image shows {', '.join(unseen)}: they cannot be learnt")
    both = {image.file.resolve() for image in train} & {image.file.resolve() for image in val}
    if both:
        notes.append(
            f"{counted(len(both), 'image')} in train and in test, first {min(both).name}: the score will be too good"
        )
    masked = sum(box.segmentation is not None for box in boxes)
    if not masks and masked:
        notes.append(f"{len(boxes) - masked} of {len(boxes)} objects have no mask: boxes only are trained")
    hard = sum(box.difficult for box in boxes)
    if hard:
        notes.append(f"{counted(hard, 'object')} marked difficult, trained and scored like the others")
    return notes


def _write(name: str, images: Sequence[LabelledImage], classes: Sequence[str], masks: str, root: Path) -> DetectionData:
    """The set as a COCO JSON in the cache, named by its content."""
    number = {name: k for k, name in enumerate(classes, 1)}
    files = [image.file.resolve().relative_to(root).as_posix() for image in images]
    entries = [
        ({"file_name": file, "width": image.width, "height": image.height}, _annotations(image, number, masks))
        for file, image in zip(files, images, strict=True)
    ]
    content = coco_content(entries, ({"name": name} for name in classes))
    text = json.dumps(content)
    # Where its images lie is no part of a set: the last digits are the same for a set in any form.
    stems = [{**image, "file_name": Path(image["file_name"]).stem} for image in content["images"]]
    same = sha256_of_text(json.dumps({**content, "images": stems}))[:12]
    file = cache_root() / "own" / f"{name}-{sha256_of_text(text)[:6]}-{same}.json"
    if not file.is_file():
        write_text(file, text)
    return replace(open_dataset(name, root, file), name=name)


def _annotations(image: LabelledImage, number: Mapping[str, int], masks: str) -> Iterator[dict[str, Any]]:
    for box in sorted(image.objects, key=lambda box: (box.name, box.box)):
        entry = {"category_id": number[box.name], "bbox": [float(value) for value in box.box],
                 "area": _area(box, image), "iscrowd": int(box.crowd)}  # fmt: skip
        yield entry | ({"segmentation": box.segmentation} if masks and box.segmentation is not None else {})


def _area(box: Box, image: LabelledImage) -> float:
    """The file's own, else the mask's, else the box's."""
    if box.area is not None:
        return float(box.area)
    if box.segmentation is None:
        return float(box.box[2] * box.box[3])
    with checked_mask(box):
        return float(decode_mask(box.segmentation, image.height, image.width).sum())
