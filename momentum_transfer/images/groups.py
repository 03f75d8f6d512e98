"""Groups of your own test images: ``groups.csv`` says of each which film, patient or site it is of."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from momentum_transfer.core.errors import InputError, counted, shown
from momentum_transfer.core.log import say
from momentum_transfer.core.untrusted import csv_rows, item_id, read_text
from momentum_transfer.verdicts.outcomes import group_numbers

FILE = "groups.csv"


def image_groups(files: Sequence[str], folder: str | Path | None = None) -> np.ndarray | None:
    """[N] the number of each image's group, by ``groups.csv`` in the folder of all the images or the one above.

    ``folder``: that of all the images, if it is not the deepest that holds them. Images are named by their path from
    the file's folder, or by their name alone; see ``read_groups``. None if there is no such file; InputError if an
    image is not in it.
    """
    if not files:
        return None
    if folder is None:
        folder = os.path.commonpath({os.path.dirname(os.path.abspath(file)) for file in files})
    folder = Path(os.path.abspath(folder))
    path = next((place / FILE for place in (folder, folder.parent) if (place / FILE).is_file()), None)
    if path is None:
        return None
    names = [(Path(os.path.abspath(file)).relative_to(path.parent).as_posix(), Path(file).name) for file in files]
    return read_groups(path, names)


def say_groups(groups: np.ndarray) -> None:
    """Say that dividing a set keeps its groups whole."""
    say(f"{FILE}: {counted(int(groups.max()) + 1, 'group')}, each of which trains or tests as a whole")


def read_groups(source: Any, names: Sequence[Sequence[str]]) -> np.ndarray:
    """[N] the number of each image's group.

    Args:
        source: a CSV file of images and groups (a heading is no image), a mapping or pandas series of groups by image,
            or an array [N]. The only row ``folder,1`` of a file means the folder that an image lies in
            (``film_03/0001.jpg``), ``folder,2`` the one above.
        names: all that each image may be called. A path counts before the name at its end.

    Raises:
        InputError: an image has no group or two; a name is of several images, or the id of one and the file of another.
    """
    where = str(source) if isinstance(source, (str, Path)) else "groups"
    groups = _of_file(Path(source)) if isinstance(source, (str, Path)) else source
    if not hasattr(groups, "items"):
        found = np.asarray(groups).tolist()
    elif list(groups.keys()) == ["folder"]:
        found = _by_folder(groups["folder"], names, where)
    else:
        found = _by_name({item_id(str(item)): group for item, group in groups.items()}, names, where)
    if any(isinstance(each, list) or each is None or each != each for each in found):
        raise InputError("expected a group of every item, found none of some; name one, each its own if need be")
    try:
        return group_numbers(found)
    except InputError as error:
        raise InputError(f"{error} ({where})") from error


def _of_file(path: Path) -> dict[str, str]:
    groups: dict[str, str] = {}
    for line, row in csv_rows(read_text(path, "images with their groups"), str(path)):
        if len(row) != 2 or not all(row):
            found = f"{shown(row)} in line {line}"
            raise InputError(f"expected two columns in {path}, an image and its group, found {found}; correct it")
        item, group = item_id(row[0]), row[1]
        if groups.setdefault(item, group) != group:
            found = f"{groups[item]} and, in line {line}, {group}"
            raise InputError(f"expected one group of {shown(item)} in {path}, found {found}; correct it")
    return groups


def _by_folder(level: str, names: Sequence[Sequence[str]], where: str) -> list[str]:
    folders = [max((Path(name).parent.parts for name in each), key=len) for each in names]
    least = min(map(len, folders), default=0)
    if level not in map(str, range(1, least + 1)):
        raise InputError(
            f"expected folder,1 to folder,{least} in {where}, as all images have them, found folder,{level}"
        )
    return [parts[-int(level)] for parts in folders]


def _by_name(groups: Mapping[str, Any], names: Sequence[Sequence[str]], where: str) -> list[Any]:
    called = [[name for name in dict.fromkeys(each) if name in groups] for each in names]
    if missing := [each[0] for each, own in zip(names, called, strict=True) if not own]:
        found = f"{len(missing)} of {len(called)} absent, first {shown(missing[0])}"
        raise InputError(f"expected every image in {where}, found {found}")
    used = Counter(own[0] for own in called)
    if twice := [name for name, count in used.items() if count > 1]:
        raise InputError(
            f"expected each image once in {where}, found {shown(twice[0])} to be several; give their paths"
        )
    others = [[own[0], *(name for name in own if not own[0].endswith(f"/{name}"))] for own in called]
    if several := [own for own in others if len({groups[name] for name in own}) > 1]:
        found = " and ".join(f"{shown(name)} in {groups[name]}" for name in dict.fromkeys(several[0]))
        raise InputError(f"expected one group of each image in {where}, found one that is {found}; give their paths")
    return [groups[own[0]] for own in called]
