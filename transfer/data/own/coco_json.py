"""COCO JSON with its images wherever an export has put them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from momentum_transfer.core.errors import InputError, shown
from momentum_transfer.core.untrusted import read_json
from momentum_transfer.transfer.data.annotations import read_annotations, refuse_fractions
from momentum_transfer.transfer.data.own.labelled import (
    SPLITS,
    Box,
    ImageIndex,
    LabelledImage,
    LabelledSet,
    check_box,
    check_names,
    labelled_orientation,
    left_out,
)

FORM = "COCO JSON"
_LISTS = ("images", "annotations", "categories")


def coco_files(folder: Path) -> list[Path]:
    """The COCO files of a folder: in it, in ``annotations``, or in its parts ``train``, ``valid``, …"""
    places = [folder, folder / "annotations", *(folder / name for name in SPLITS)]
    listed = [file for place in places for file in sorted(place.glob("*.json"))]
    contents = ((file, read_json(file, "annotations")) for file in listed)
    files = [file for file, content in contents if isinstance(content, dict) and set(_LISTS) <= set(content)]
    splits = {_split(file, folder) for file in files}
    for file in listed:
        if len(splits) == 1 and file not in files and splits | {_split(file, folder)} == {"train", "val"}:
            raise InputError(
                f"expected lists of {', '.join(_LISTS)} in {file}, as {files[0].name} has them, found other content; "
                "export it again, or take it away"
            )
    return files


def read_coco(source: Path, images: Path | None = None) -> LabelledSet:
    """Read one file, or those of a folder; two whose names say train and val are the set's own split.

    InputError names a missing image, an unknown class or image id, a class named twice, a box outside its image.
    """
    files = [source] if source.is_file() else coco_files(source)
    if not files:
        raise InputError(f"expected a COCO JSON in {source}, found none")
    splits = {file: _split(file, source) for file in files}
    if len(files) > 1 and set(splits.values()) != {"train", "val"}:
        listed = ", ".join(str(file) for file in files[:4])
        raise InputError(
            f"expected one COCO JSON in {source}, or one to train and one to test, found {listed}; name one"
        )
    tests = [file for file in files if "test" in (*_words(file), file.parent.name.lower())]
    kept_back = 0
    if 0 < len(tests) < sum(split == "val" for split in splits.values()):  # train, valid and test: test is kept back
        files = [file for file in files if file not in tests]
        kept_back = sum(len(read_annotations(file)["images"]) for file in tests)
    labelled: list[LabelledImage] = []
    names: dict[str, None] = {}
    notes = left_out(kept_back, source)
    for file in files:
        of_file, classes, note = _read(file, images, splits[file] if len(files) > 1 else "")
        labelled += of_file
        notes += note
        names.update(dict.fromkeys(classes))
    return LabelledSet(FORM, source, tuple(labelled), tuple(names), notes)


def _words(file: Path) -> list[str]:
    return file.stem.lower().replace("-", "_").replace(".", "_").split("_")


def _split(file: Path, source: Path) -> str:
    words = _words(file)
    if file.parent != source:
        words.append(file.parent.name.lower())
    for word in words:
        for known, split in SPLITS.items():
            if word == known or (word.startswith(known) and word[len(known) :].isdecimal()):
                return split
    return ""


def _read(file: Path, images: Path | None, split: str) -> tuple[list[LabelledImage], tuple[str, ...], tuple[str, ...]]:
    """The images and classes of a file, and what to note of it."""
    content = read_annotations(file)
    categories = sorted(content["categories"], key=lambda category: category["id"])
    if any(not isinstance(category.get("name"), str) for category in categories):
        raise InputError(f"expected a name for every category of {file}, found one without; name it")
    classes = check_names((category["name"] for category in categories), str(file))
    of_id = {category["id"]: category["name"] for category in categories}
    known = {image["id"] for image in content["images"]}
    for what, ids, listed in (("category", of_id, categories), ("image", known, content["images"])):
        if len(ids) < len(listed):
            raise InputError(f"expected every {what} id once in {file}, found one twice; number them anew")
    if not content["annotations"]:
        raise InputError(f"expected annotated objects in {file}, found none; label some, or take the file away")
    objects: dict[int, list[Mapping[str, Any]]] = {}
    for entry in content["annotations"]:
        for what, ids in (("an image", known), ("a category", of_id)):
            identity = entry.get(f"{what.split()[1]}_id")
            if type(identity) is not int or identity not in ids:
                raise InputError(
                    f"expected the id of {what} in annotation {entry['id']} of {file}, found {shown(identity)}; "
                    "correct it"
                )
        objects.setdefault(entry["image_id"], []).append(entry)
    index = ImageIndex(images or file.parent)
    if not index.files and images is None:
        index = ImageIndex(file.parent.parent)
    found = [_image(image, objects.get(image["id"], []), of_id, index, file, split) for image in content["images"]]
    refuse_fractions((box.box for image in found for box in image.objects), file)
    if not any("neg_category_ids" in image for image in content["images"]):
        return found, classes, ()
    return found, classes, (f"{file.name} has LVIS' lists of verified classes, which are left out: scored by COCO's "
                            "rules; DATASETS.TRAIN and DATASETS.TEST IMAGES_DIR:FILE.json keep LVIS'",)  # fmt: skip


def _image(
    image: Mapping[str, Any],
    entries: list[Mapping[str, Any]],
    of_id: Mapping[int, str],
    index: ImageIndex,
    file: Path,
    split: str,
) -> LabelledImage:
    where = f"image {image['id']} of {file}"
    name, width, height = image.get("file_name"), image.get("width"), image.get("height")
    if not isinstance(name, str) or not name:
        raise InputError(f"expected file_name in {where}, found {shown(name)}; add it")
    width, height = (int(side) if type(side) is float and side.is_integer() else side for side in (width, height))
    if type(width) is not int or type(height) is not int or min(width, height) < 1:
        sides = f"{shown(width)}, {shown(height)}"
        raise InputError(f"expected a positive width and height in {where}, found {sides}; correct it")
    path = index.find(name, file.parent / split, where)
    orientation = labelled_orientation(path, width, height, where)
    objects = tuple(_object(entry, of_id, file, width, height) for entry in entries)
    return LabelledImage(path, width, height, objects, split, orientation)


def _object(entry: Mapping[str, Any], of_id: Mapping[int, str], file: Path, width: int, height: int) -> Box:
    where = f"annotation {entry['id']} of {file}"
    box = entry.get("bbox")
    if not isinstance(box, list) or len(box) != 4 or not all(type(value) in (int, float) for value in box):
        raise InputError(f"expected bbox [x, y, width, height] in {where}, found {shown(box)}; correct it")
    check_box(box, width, height, where)
    crowd, area = entry.get("iscrowd", 0), entry.get("area")
    if crowd not in (0, 1):
        raise InputError(f"expected iscrowd 0 or 1 in {where}, found {shown(crowd)}; correct it")
    if area is not None and (type(area) not in (int, float) or not 0 <= area <= 4 * width * height):
        raise InputError(f"expected an area from 0 to the image's in {where}, found {shown(area)}; correct or drop it")
    x, y, across, down = (float(value) for value in box)
    return Box(
        of_id[entry["category_id"]], (x, y, across, down), where,
        segmentation=entry.get("segmentation") or None, area=area, crowd=bool(crowd),
        difficult=bool(entry.get("difficult", 0)),
    )  # fmt: skip
