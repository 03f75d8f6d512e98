"""Groups of your own test images: ``groups.csv`` says of each which film, patient or site it is of."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from momentum_transfer.core.errors import InputError, counted, shown
from momentum_transfer.core.untrusted import csv_rows, item_id, read_text
from momentum_transfer.verdicts.outcomes import group_numbers

FILE = "groups.csv"


def image_groups(files: Sequence[str]) -> np.ndarray | None:
    """[N] the number of each image's group, by ``groups.csv`` in the folder of all the images or the one above.

    Images are named by their path from the file's folder, or by their name alone; see ``read_groups``. None if there is
    no such file; InputError if an image is not in it.
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
    """[N] the number of each image's group by the rows of ``path``: an image and its group; a heading is no image.

    The only row ``folder,1`` means the folder that an image lies in (``film_03/0001.jpg``), ``folder,2`` the one above.

    Args:
        names: all that each image may be called.
    """
    rows = csv_rows(read_text(path, "images with their groups"), str(path))
    for line, row in rows:
        if len(row) != 2 or not all(row):
            found = f"{shown(row)} in line {line}"
            raise InputError(f"expected two columns in {path}, an image and its group, found {found}; correct it")
    if len(rows) == 1 and rows[0][1][0].lower() == "folder" and rows[0][1][1] in "123456789":
        return _by_folder(path, names, int(rows[0][1][1]))
    groups: dict[str, str] = {}
    for line, (name, group) in rows:
        if groups.setdefault(item_id(name), group) != group:
            found = f"{groups[item_id(name)]} and, in line {line}, {group}"
            raise InputError(f"expected one group of {shown(name)} in {path}, found {found}; correct it")
    return numbers_of(groups, names, str(path))


def _by_folder(path: Path, names: Sequence[Sequence[str]], level: int) -> np.ndarray:
    folders = [max((Path(name).parent.parts for name in each), key=len) for each in names]
    if short := [each[0] for each, parts in zip(names, folders, strict=True) if len(parts) < level]:
        raise InputError(f"expected images in {counted(level, 'folder')} for {path}, found {shown(short[0])}")
    return _numbers([parts[-level] for parts in folders], str(path))


def numbers_of(groups: Mapping[str, str], names: Sequence[Sequence[str]], where: str) -> np.ndarray:
    """[N] the number of each image's group, from group by name; a path counts before the name at its end.

    InputError where a name is of several images, or the id of one and the file name of another.
    """
    called = [[name for name in dict.fromkeys(each) if name in groups] for each in names]
    if missing := [each[0] for each, own in zip(names, called, strict=True) if not own]:
        found = f"none of {len(missing)}, first {shown(missing[0])}"
        raise InputError(f"expected every test image in {where}, found {found}")
    used = Counter(own[0] for own in called)
    if twice := [name for name, count in used.items() if count > 1]:
        raise InputError(
            f"expected each image once in {where}, found {shown(twice[0])} to be several; give their paths"
        )
    others = [[own[0], *(name for name in own if not own[0].endswith(f"/{name}"))] for own in called]
    if several := [own for own in others if len({groups[name] for name in own}) > 1]:
        found = " and ".join(f"{shown(name)} in {groups[name]}" for name in dict.fromkeys(several[0]))
        raise InputError(f"expected one group of each image in {where}, found one that is {found}; give their paths")
    return _numbers([groups[own[0]] for own in called], where)


def _numbers(groups: Sequence[str], where: str) -> np.ndarray:
    try:
        return group_numbers(groups)
    except InputError as error:
        raise InputError(f"{error} ({where})") from error
