"""What a prediction has done so far: one line an image, so that a stopped command goes on where it was."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import write_text
from momentum_transfer.transfer.prediction.photographs import Photograph

#: One line an image; and by what it was made.
LINES, ORIGIN = "predictions.jsonl", "predict.json"


@dataclass(frozen=True)
class Done:
    """An image that is done: ``result`` is what its line holds besides its name and file."""

    image_id: int
    result: Mapping[str, Any]
    stamp: tuple[int, int]


class Store:
    """The lines of an output folder.

    Args:
        origin: what decides the results (the weights' hash, the threshold …); a folder belongs to one.

    Raises:
        InputError: the folder holds the predictions of another origin.
    """

    def __init__(self, folder: Path, origin: Mapping[str, Any]) -> None:
        self.folder, self.file = folder, folder / LINES
        self._claim(origin)
        self.done: dict[str, Done] = {}
        whole = 0
        for line in self.file.read_bytes().splitlines(keepends=True) if self.file.is_file() else []:
            if not self._take(line):
                break  # cut off by a kill or a full disk, or damaged: from here on images are done again
            whole += len(line)
        if self.file.is_file() and whole < self.file.stat().st_size:
            os.truncate(self.file, whole)

    def _claim(self, origin: Mapping[str, Any]) -> None:
        note = self.folder / ORIGIN
        if not note.is_file():
            if self.file.is_file():
                raise InputError(f"expected {ORIGIN} beside {self.file}, found none; choose another --out")
            write_text(note, json.dumps(dict(origin), indent=1, ensure_ascii=False) + "\n")
            return
        try:
            before = json.loads(note.read_text(encoding="utf-8"))
        except (ValueError, RecursionError):
            before = None
        if not isinstance(before, dict):
            raise InputError(
                f"expected the origin of predictions in {note}, found no JSON object; choose another --out"
            )
        for key, value in origin.items():
            if before.get(key) != value:
                raise InputError(
                    f"{self.folder} holds predictions with {key} {before.get(key)!s:.40}, this command has "
                    f"{value!s:.40}; choose another --out"
                )

    def _take(self, line: bytes) -> bool:
        try:
            row = json.loads(line)
            if row.pop("crc32") != zlib.crc32(_as_text(row)):
                return False
            done = Done(int(row["image_id"]), row["result"], (int(row["bytes"]), int(row["changed"])))
            name = str(row["file_name"])
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return False
        if whole := line.endswith(b"\n"):
            self.done[name] = done
        return whole

    def has(self, photo: Photograph) -> bool:
        """Whether the image is done, and its file is still the one that was read."""
        done = self.done.get(photo.name)
        return done is not None and done.stamp == _stamp(photo.path)

    def next_id(self) -> int:
        """An id that no image has."""
        return max((done.image_id for done in self.done.values()), default=0) + 1

    def add(self, photo: Photograph, image_id: int, result: Mapping[str, Any]) -> None:
        """Append an image's line; what was said of the file before is replaced."""
        size, changed = stamp = _stamp(photo.path)
        row = {"image_id": image_id, "file_name": photo.name, "bytes": size, "changed": changed, "result": result}
        with open(self.file, "ab") as stream:
            stream.write(_as_text({**row, "crc32": zlib.crc32(_as_text(row))}) + b"\n")
        self.done[photo.name] = Done(image_id, result, stamp)


def _as_text(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode()


def _stamp(path: Path) -> tuple[int, int]:
    """Size in bytes and time of the last change in nanoseconds."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns
