"""Images in Hugging Face's tables, Parquet files or a folder that ``datasets`` saved, for packing into tar files."""

import json
import os
import re
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from momentum_transfer.core.errors import InputError, extra, one_line, shown
from momentum_transfer.images.reading import FORMATS, UnreadableImage, opened

_SPLITS = {"train": "train", "val": "val", "validation": "val", "valid": "val", "dev": "val", "test": "test"}
_ROWS = 64  # of a batch: images are large
_HEAD = 100  # entries of a folder that say what it holds

#: An image: its name without ending, the ending, the file's bytes, its label if it has one.
Entry = tuple[str, str, bytes, int | None]


def tables(folder: Path) -> dict[str, list[Path]]:
    """Split -> its files in the order of their names: ``data/train-00000-of-00002.parquet``, ``train/data-0.arrow``."""
    found: dict[str, list[Path]] = {}
    for path in sorted(_table_files(folder)):
        words = [word for part in path.relative_to(folder).with_suffix("").parts for word in re.split(r"[-_.]", part)]
        split = next((_SPLITS[word] for word in words if word in _SPLITS), "train")
        found.setdefault(split, []).append(path)
    return found


def _table_files(folder: str | Path) -> Iterator[Path]:
    """Every table below a folder; one that begins with many images, a class of ImageNet, is not listed to its end."""
    with os.scandir(folder) as entries:
        head = list(islice(entries, _HEAD))
        if len(head) == _HEAD and all(Path(each.name).suffix.lower() in FORMATS for each in head):
            return
        for entry in chain(head, entries):
            if entry.is_dir(follow_symlinks=False):
                yield from _table_files(entry.path)
            elif entry.name.endswith((".parquet", ".arrow")):
                yield Path(entry.path)


def table_entries(files: Sequence[Path]) -> Iterator[Entry]:
    """The images of a split's files; InputError for a damaged file, or one whose columns are no images."""
    number = 0
    for file in files:
        for image, label, class_name in _rows(file):
            content = (image or {}).get("bytes")
            if not content:
                raise InputError(
                    f"expected images within {file}, found row {number} without; save the data set with them"
                )
            yield f"{class_name}/{number:08d}".lstrip("/"), _ending(image.get("path") or "", content), content, label
            number += 1


def _rows(file: Path) -> Iterator[tuple[Any, int | None, str]]:
    """Image, label and class name of every row."""
    pyarrow = extra("pyarrow", f"{file} is a table")
    try:
        if file.suffix == ".parquet":
            source = extra("pyarrow.parquet", f"{file} is a table").ParquetFile(file)
            schema, batches = source.schema_arrow, lambda names: source.iter_batches(_ROWS, columns=names)
        else:
            source = pyarrow.ipc.open_stream(pyarrow.memory_map(str(file)))
            schema, batches = source.schema, lambda names: (batch.select(names) for batch in source)
        image, label, classes = _columns(schema, file)
        for batch in batches([image, label] if label else [image]):
            labels = batch.column(1).to_pylist() if label else [None] * len(batch)
            for value, number in zip(batch.column(0), labels, strict=True):
                known = number is not None and 0 <= number < len(classes)
                yield value.as_py(), number, classes[number].replace("/", "_") if known else ""
    except InputError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"expected a table of images in {file}, found: {one_line(error)}; fetch it again") from error


def _columns(schema: Any, file: Path) -> tuple[str, str | None, list[str]]:
    """Names of the image's and the label's column, and the classes, as the file's own description has them."""
    known = json.loads((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features", {})
    images = [name for name in schema.names if known.get(name, {}).get("_type") == "Image"] or ["image"]
    is_struct = extra("pyarrow", f"{file} is a table").types.is_struct
    types = {field.name: field.type for field in schema if is_struct(field.type)}
    images = [name for name in images if name in types and types[name].get_field_index("bytes") >= 0]
    labels = [name for name in schema.names if known.get(name, {}).get("_type") == "ClassLabel"] or ["label"]
    label = labels[0] if len(labels) == 1 else "label"
    if len(images) != 1 or (len(labels) > 1 and label not in labels):
        raise InputError(
            f"expected one column of images and at most one of labels in {file}, found "
            f"{shown(', '.join(schema.names))}; save the data set with these alone"
        )
    return images[0], label if label in schema.names else None, known.get(label, {}).get("names") or []


def _ending(path: str, content: bytes) -> str:
    """Of the image's own name, else of its format; a damaged one is found when it is read."""
    if (suffix := Path(path).suffix.lower()) in FORMATS:
        return suffix
    try:
        with opened("an image", content=content) as image:
            return next(suffix for suffix, name in FORMATS.items() if name == image.format)
    except UnreadableImage:
        return ".jpg"
