"""PASCAL VOC's XML, read with the line of every element, in whatever folders a labelling tool left it."""

from collections.abc import Container, Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from momentum_transfer.core.errors import InputError, shown
from momentum_transfer.core.untrusted import read_lines, read_regular
from momentum_transfer.transfer.data.own.labelled import (
    Box,
    ImageIndex,
    LabelledImage,
    LabelledSet,
    check_box,
    labelled_orientation,
    left_out,
    split_by_folders,
)

FORM = "VOC XML"
#: Bytes of an annotation, at most: a gigabyte of elements would fit into the limit of other texts.
_MOST = 16 << 20
#: Nested elements, at most; labels have five levels.
_DEEPEST = 64


def read_xml(path: Path) -> Element:
    """The root of an XML file, each element with its ``line``; InputError if it is none.

    Entities are refused: labels need none.
    """
    parser, builder, depth = expat.ParserCreate(), TreeBuilder(), 0
    parser.buffer_text = True  # or every line comes alone

    def where() -> str:
        return f"{path}:{parser.CurrentLineNumber}"

    def begin(tag: str, _attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > _DEEPEST:
            raise InputError(f"expected at most {_DEEPEST} nested elements in {where()}, found more")
        builder.start(tag, {"line": str(parser.CurrentLineNumber)})

    def end(tag: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(tag)

    def entity(*_: object) -> None:
        raise InputError(f"expected an XML without entities, found one in {where()}; take it out")

    parser.StartElementHandler, parser.EndElementHandler = begin, end
    parser.CharacterDataHandler, parser.EntityDeclHandler = builder.data, entity
    try:
        parser.Parse(read_regular(path, "an XML file", _MOST), True)
    except (expat.ExpatError, ValueError, LookupError) as error:  # ValueError: encodings that expat does not know
        line = f":{error.lineno}" if isinstance(error, expat.ExpatError) else ""
        raise InputError(f"expected an XML file, found one that cannot be read at {path}{line}: {error}") from error
    return builder.close()


def xml_files(folder: Path) -> list[Path]:
    """Annotation files below a folder, hidden ones left out."""
    files = sorted(folder.rglob("*.xml"))
    return [file for file in files if not any(part.startswith(".") for part in file.relative_to(folder).parts)]


def read_voc(folder: Path, images: Path | None = None) -> LabelledSet:
    """Read every XML below ``folder``; images are looked for below ``images``, else here, else beside the folder.

    Boxes stay as they are written, see `settle_corners`. InputError names file and line of what is wrong.
    """
    files = xml_files(folder)
    if not files:
        raise InputError(f"expected VOC XML files below {folder}, found none")
    index = ImageIndex(images or folder)
    if not index.files and images is None:
        index = ImageIndex(folder.parent)
    splits = _splits(folder, {file.stem for file in files})
    read = [_read(file, index, splits) for file in files]
    kept = [image for image in read if image.split] if splits else split_by_folders(read, folder)
    return LabelledSet(FORM, folder, tuple(kept), notes=left_out(len(read) - len(kept), folder))


def _splits(folder: Path, stems: Container[str]) -> dict[str, str]:
    """Image stem → train or val by the lists in ImageSets/Main; each line is a name, perhaps with a number."""
    found: dict[str, str] = {}
    for list_folder in sorted(folder.rglob("ImageSets/Main")):
        for split, names in (("train", ("train", "trainval")), ("val", ("val", "valid", "test"))):
            files = [file for name in names if (file := list_folder / f"{name}.txt").is_file()]
            for line in read_lines(files[0], "a list of images") if files else ():
                if line:
                    found.setdefault(line if line in stems else line.rsplit(maxsplit=1)[0], split)
    return found if len(set(found.values())) == 2 else {}


def _read(file: Path, index: ImageIndex, splits: dict[str, str]) -> LabelledImage:
    root = read_xml(file)
    if root.tag != "annotation":
        raise InputError(f"expected <annotation> in {_at(file, root)}, found <{root.tag}>; is it VOC's XML?")
    width, height, size = image_size(root, file)
    name = root.find("filename")
    named = _text(name) or file.stem
    # The XML's own name first: tools rename files and leave <filename> as it was.
    where = _at(file, root if name is None else name)
    image = index.find(file.stem if index.has(file.stem) else named, file.parent, where)
    orientation = labelled_orientation(image, width, height, size)
    objects = tuple(read_object(node, file) for node in root.iterfind("object"))
    return LabelledImage(image, width, height, objects, splits.get(file.stem, ""), orientation)


def _at(file: Path, node: Element) -> str:
    return f"{file}:{node.get('line')}"


def _text(node: Element | None) -> str:
    return "" if node is None else (node.text or "").strip()


def image_size(root: Element, file: Path) -> tuple[int, int, str]:
    """Width and height in pixels, and where they stand."""
    size = root.find("size")
    if size is None:
        raise InputError(f"expected <size> with width and height in {_at(file, root)}, found none; add it")
    width, height = (_number(size, side, file) for side in ("width", "height"))
    if not all(side >= 1 and side % 1 == 0 for side in (width, height)):  # False for NaN and infinity
        sides = f"{width:g}x{height:g}"
        raise InputError(f"expected a whole, positive width and height in {_at(file, size)}, found {sides}; correct it")
    return int(width), int(height), _at(file, size)


def _number(node: Element, tag: str, file: Path) -> float:
    child = node.find(tag)
    if child is None:
        raise InputError(f"expected <{tag}> in <{node.tag}> of {_at(file, node)}, found none; add it")
    try:
        return float(_text(child))
    except ValueError as error:
        found = shown(_text(child))
        raise InputError(f"expected a number in <{tag}> of {_at(file, child)}, found {found}") from error


def read_object(node: Element, file: Path) -> Box:
    """An ``<object>``; its box holds xmin, ymin, xmax, ymax as they are written."""
    name, box = _text(node.find("name")), node.find("bndbox")
    if not name:
        raise InputError(f"expected <name> in <object> of {_at(file, node)}, found none; name its class")
    if box is None:
        raise InputError(f"expected <bndbox> in <object> of {_at(file, node)}, found none; draw its box")
    left, top, right, bottom = (_number(box, side, file) for side in ("xmin", "ymin", "xmax", "ymax"))
    if right < left or bottom < top:
        found = f"{left:g} {top:g} {right:g} {bottom:g}"
        raise InputError(f"expected xmin <= xmax and ymin <= ymax in {_at(file, box)}, found {found}")
    return Box(
        name, (left, top, right, bottom), _at(file, box), difficult=_text(node.find("difficult")) not in ("", "0")
    )


def settle_corners(sets: Sequence[LabelledSet]) -> list[LabelledSet]:
    """The corners of VOC's files as boxes x, y, width, height, by one rule for all sets of a command.

    VOC counts pixels from 1 and includes both ends: (xmin - 1, ymin - 1, xmax, ymax) are the edges. Many tools write
    the edges themselves, from 0: then some corner is at 0 or between two pixels, which VOC has neither of.
    """
    boxes = [box for one in sets if one.form == FORM for image in one.images for box in image.objects]
    edges = [box for box in boxes if min(box.box[:2]) < 1 or any(value % 1 for value in box.box)]
    shift = 0.0 if edges else 1.0
    note = "corners are read as VOC's: pixels from 1, both ends included"
    if edges:
        note = f"corners are read as pixel edges from 0, because {edges[0].where} has one at 0 or between pixels"
    return [
        one if one.form != FORM else replace(
            one, images=tuple(_settled(image, shift) for image in one.images), notes=(*one.notes, note)
        )
        for one in sets
    ]  # fmt: skip


def _settled(image: LabelledImage, shift: float) -> LabelledImage:
    objects = []
    for found in image.objects:
        left, top, right, bottom = found.box
        box = (left - shift, top - shift, right - left + shift, bottom - top + shift)
        check_box(box, image.width, image.height, found.where)
        objects.append(replace(found, box=box))
    return replace(image, objects=tuple(objects))
