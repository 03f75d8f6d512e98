"""``classes.json`` of a run: what a trained network's outputs are called, so that it can be used without its data."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import write_text
from momentum_transfer.core.text_files import read_json
from momentum_transfer.transfer.data.annotations import DetectionData
from momentum_transfer.transfer.data.semantic_datasets import SemanticData

FILE = "classes.json"


@dataclass(frozen=True)
class RunClasses:
    """Output k of a network is the class ``names[k]``, whose id in result files is ``ids[k]``.

    title: of the data that it was trained on. engine: which engine trained it; "" where that is not known.
    """

    names: tuple[str, ...]
    ids: tuple[int, ...]
    title: str = ""
    engine: str = ""


def classes_of(data: DetectionData | SemanticData, engine: str = "") -> RunClasses:
    """The classes of a data set; those of label images are numbered from 0."""
    ids = data.category_ids if isinstance(data, DetectionData) else tuple(range(len(data.classes)))
    return RunClasses(tuple(data.classes), tuple(ids), getattr(data, "title", "") or data.name, engine)


def write_classes(folder: Path, classes: RunClasses) -> None:
    """Write ``classes.json`` into a run's folder."""
    pairs = zip(classes.ids, classes.names, strict=True)
    content = {
        "title": classes.title,
        "engine": classes.engine,
        "classes": [{"id": identity, "name": name} for identity, name in pairs],
    }
    write_text(folder / FILE, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def read_classes(folder: Path) -> RunClasses | None:
    """What ``write_classes`` wrote; None where the folder has no such file (a run from before 2026-11-22).

    Raises:
        InputError: the file is damaged.
    """
    file = folder / FILE
    if not file.is_file():
        return None
    try:
        content = read_json(file, "the classes of a run")
        names = tuple(str(entry["name"]) for entry in content["classes"])
        ids = tuple(int(entry["id"]) for entry in content["classes"])
        return RunClasses(names, ids, str(content.get("title", "")), str(content.get("engine", "")))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise InputError(
            f"expected the classes of a run in {file}, found something else ({error}); it holds "
            '{"title": …, "classes": [{"id": 1, "name": …}, …]}'
        ) from error
