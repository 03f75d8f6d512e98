"""Groups of your own test images: ``groups.csv`` says of each which film, patient or site it is of."""

import csv
import os
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
    folder = Path(os.path.commonpath({os.path.dirname(os.path.abspath(file)) for file in files}))
    path = next((place / FILE for place in (folder, folder.parent) if (place / FILE).is_file()), None)
    if path is None:
        return None
    groups: dict[str, str] = {}
    for number, row in enumerate(csv.reader(read_lines(path, "images with their groups")), start=1):
        if len(row) != 2 or groups.setdefault(row[0].strip(), row[1].strip()) != row[1].strip():
            raise InputError(f"expected an image and its one group in {path}:{number}, found {shown(row)}; correct it")
    names = [(Path(os.path.abspath(file)).relative_to(path.parent).as_posix(), Path(file).name) for file in files]
    missing = [first for first, second in names if first not in groups and second not in groups]
    if missing:
        raise InputError(
            f"expected every test image in {path}, found none of {len(missing)}, first {shown(missing[0])}"
        )
    return group_numbers([groups.get(first, groups.get(second, "")) for first, second in names])
