"""Groups of your own test images: ``groups.csv`` says of each which film, patient or site it is of."""

import csv
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from momentum_transfer.core.errors import InputError, shown
from momentum_transfer.core.untrusted import read_lines
from momentum_transfer.verdicts.outcomes import group_numbers

FILE = "groups.csv"


def image_groups(files: Sequence[str]) -> np.ndarray | None:
    """[N] the number of each image's group, by ``groups.csv`` in the folder of all the images or the one above.

    Its rows are an image (its path from the file's folder, or its name alone) and a group; a first row ``image,group``
    is a heading. None if there is no such file; InputError if an image is not in it.
    """
    if not files:
        return None
    folder = Path(os.path.commonpath({os.path.dirname(os.path.abspath(file)) for file in files}))
    path = next((place / FILE for place in (folder, folder.parent) if (place / FILE).is_file()), None)
    if path is None:
        return None
    names = [(Path(os.path.abspath(file)).relative_to(path.parent).as_posix(), Path(file).name) for file in files]
    return read_groups(path, names)


def read_groups(path: Path, names: Sequence[Sequence[str]]) -> np.ndarray:
    """[N] the number of each image's group by the rows of ``path``; ``names``: all that each image may be called."""
    groups: dict[str, str] = {}
    try:
        lines = read_lines(path, "images with their groups")
        semicolons = bool(lines) and lines[0].count(";") > lines[0].count(",")
        rows = list(csv.reader(lines, delimiter=";" if semicolons else ","))
    except csv.Error as error:  # a cell without end
        raise InputError(f"expected images and their groups in {path}, found: {error}; correct it") from error
    for number, row in enumerate(rows, start=1):
        if not any(cell.strip() for cell in row):
            continue
        if len(row) != 2 or not row[1].strip() or groups.setdefault(row[0].strip(), row[1].strip()) != row[1].strip():
            raise InputError(f"expected an image and its one group in {path}:{number}, found {shown(row)}; correct it")
    found = [next((groups[name] for name in each if name in groups), None) for each in names]
    if missing := [each[0] for each, group in zip(names, found, strict=True) if group is None]:
        raise InputError(
            f"expected every test image in {path}, found none of {len(missing)}, first {shown(missing[0])}"
        )
    used = Counter(next(name for name in each if name in groups) for each in names)
    if twice := [name for name, count in used.items() if count > 1]:
        raise InputError(f"expected each image once in {path}, found {shown(twice[0])} to be several; give their paths")
    try:
        return group_numbers([str(group) for group in found])
    except InputError as error:
        raise InputError(f"{error} ({path})") from error
