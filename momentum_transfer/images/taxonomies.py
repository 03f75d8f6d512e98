"""Coarse classes from a hierarchy of concepts such as WordNet's (RCF, table 6), and iNaturalist's species.

A hierarchy is a text file of ``parent child`` lines (names without spaces), as ImageNet's ``wordnet.is_a.txt``. RCF
clusters bottom-up: in every round all concepts whose narrower concepts are classes become classes themselves. One of
the rounds (RCF: 10, 79 or 127 classes), or a cut at one concept (its two balanced classes, artifact and the rest), is
written as a mapping for DATA.TAXONOMY.

iNaturalist ("The iNaturalist Species Classification and Detection Dataset", CVPR 2018, and the yearly competitions) is
read as published: split lists in COCO's form beside the images (2017-2019), or one folder a species.
"""

import re
from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Annotated

import msgspec
import torchvision

from momentum_transfer.core.errors import InputError, shown
from momentum_transfer.core.files import write_text
from momentum_transfer.core.untrusted import read_lines, read_regular
from momentum_transfer.images.labelled_images import FileImages


def read_hierarchy(path: str | Path) -> dict[str, list[str]]:
    """Child -> its parents, in the order of the file; InputError for a malformed line or a circle."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"expected a hierarchy of `parent child` lines, found no file {path}; see --help")
    parents: dict[str, list[str]] = {}
    for number, line in enumerate(read_lines(path, "a hierarchy"), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or words[0] == words[1]:
            raise InputError(f"{path}, line {number}: expected `parent child`, found {shown(line)}")
        known = parents.setdefault(words[1], [])
        if words[0] not in known:
            known.append(words[0])
    try:
        TopologicalSorter({child: above[:1] for child, above in parents.items()}).prepare()
    except CycleError as error:
        own = error.args[1][0]
        raise InputError(f"{path}: expected a hierarchy, found {own} to be its own ancestor; correct it") from error
    return parents


def _trail(concept: str, parents: dict[str, list[str]]) -> list[str]:
    """A concept and its ancestors up to the root, by the first parent of each (a few have several)."""
    trail = [concept]
    while above := parents.get(trail[-1]):
        trail.append(above[0])
    return trail


def rounds(classes: Sequence[str], parents: dict[str, list[str]]) -> list[dict[str, str]]:
    """Mappings class -> cluster of every round of bottom-up clustering, from one class each to one class for all."""
    _check_classes(classes, parents)
    clusters = {name: name for name in classes}
    mappings = [dict(clusters)]
    while len(set(clusters.values())) > 1:
        leaves = set(clusters.values())
        inner = {ancestor for leaf in leaves for ancestor in _trail(leaf, parents)[1:]}
        # Concepts above nothing but leaves become leaves; those above another inner concept wait.
        ready = inner - {parent for concept in inner for parent in _trail(concept, parents)[1:2]}
        if not ready:
            break
        for name, cluster in clusters.items():
            above = _trail(cluster, parents)[1:2]
            clusters[name] = above[0] if above and above[0] in ready else cluster
        if len(set(clusters.values())) < len(set(mappings[-1].values())):
            mappings.append(dict(clusters))
    return mappings


def of_count(classes: Sequence[str], parents: dict[str, list[str]], count: int) -> dict[str, str]:
    """The round that leaves ``count`` classes; InputError with the possible counts if there is none."""
    mappings = {len(set(mapping.values())): mapping for mapping in rounds(classes, parents)}
    if count not in mappings:
        raise InputError(
            f"expected a number of classes that bottom-up clustering of these {len(classes)} gives "
            f"({', '.join(map(str, sorted(mappings)))}), found {count}; the numbers depend on the hierarchy's version"
        )
    return mappings[count]


def under(classes: Sequence[str], parents: dict[str, list[str]], concepts: Iterable[str]) -> dict[str, str]:
    """Each class under the first given concept above it, else under ``other``; InputError for an unused concept."""
    _check_classes(classes, parents)
    concepts = list(concepts)
    mapping = {}
    for name in classes:
        trail = _trail(name, parents)
        mapping[name] = next((concept for concept in concepts if concept in trail), "other")
    if empty := [concept for concept in concepts if concept not in mapping.values()]:
        raise InputError(f"expected concepts above some of the classes, found none below {empty[0]}; correct --under")
    return mapping


def _check_classes(classes: Sequence[str], parents: dict[str, list[str]]) -> None:
    above = {parent for found in parents.values() for parent in found}
    if not classes:
        raise InputError("expected classes to cluster, found none; name a list or a folder of class folders")
    missing = [name for name in classes if name not in parents and name not in above]
    if missing:
        raise InputError(
            f"expected a hierarchy that has every class, found {len(missing)} of {len(classes)} missing, the first "
            f"{missing[0]}; use the hierarchy's class names (ImageNet: n01440764)"
        )


def write_mapping(path: str | Path, mapping: dict[str, str], comment: str) -> None:
    """Write ``fine coarse`` lines for DATA.TAXONOMY, atomically."""
    lines = [f"# {comment}", *(f"{fine}\t{coarse}" for fine, coarse in sorted(mapping.items()))]
    write_text(path, "\n".join(lines) + "\n")


_FOLDERS = {"train": "2021_train", "val": "2021_valid"}


def inaturalist_images(root: Path, split: str, max_unreadable: int) -> FileImages:
    """The labelled images of one split.

    "train2018" and "val2018" (2017 and 2019 too) read the published lists, ``root/train2018.json``, whose image names
    such as ``train_val2018/Aves/2761/….jpg`` are relative to root. "train" and "val" are 2021's extracted folders
    2021_train and 2021_valid; "2021_train_mini", and "2017" to "2019" for all images of a year, are torchvision's other
    folders. Raises InputError for an unknown split, missing files, or a list that contradicts itself.
    """
    if re.fullmatch(r"(train|val)201[789]", split):
        return _listed(root, root / f"{split}.json", max_unreadable)
    return _folders(root, split, max_unreadable)


def _listed(root: Path, file: Path, max_unreadable: int) -> FileImages:
    listing = _read(file)
    # The categories' order is that of their ids, in every list of a year, whether or not a class has images there.
    categories = sorted(listing.categories, key=lambda category: category.id)
    number_of = {category.id: number for number, category in enumerate(categories)}
    class_of = {entry.image_id: entry.category_id for entry in listing.annotations}
    paths, labels = [], []
    for image in listing.images:
        category = class_of.get(image.id)
        if category not in number_of:
            raise InputError(
                f"expected a category of the list for every image of {file}, found {category} for "
                f"{image.file_name!r}; the test lists carry no labels"
            )
        paths.append(root / image.file_name)
        labels.append(number_of[category])
    if not paths[0].is_file():
        raise InputError(
            f"expected the images of {file} beside it, found no {paths[0]}; extract the year's archive there"
        )
    return FileImages(paths, labels, [str(category.name) for category in categories], max_unreadable)


class _Image(msgspec.Struct):
    id: int
    file_name: str


class _Annotation(msgspec.Struct):
    image_id: int
    category_id: int


class _Category(msgspec.Struct):
    id: int
    name: str | int


class _Listing(msgspec.Struct):
    images: Annotated[list[_Image], msgspec.Meta(min_length=1)]
    annotations: Annotated[list[_Annotation], msgspec.Meta(min_length=1)]
    categories: Annotated[list[_Category], msgspec.Meta(min_length=1)]


def _read(file: Path) -> _Listing:
    if not file.exists():
        raise InputError(
            f"expected iNaturalist's published list {file.name} in {file.parent}, found none; nothing is downloaded, "
            "put it there beside the year's images, or choose another DATA.SPLIT"
        )
    try:
        return msgspec.json.decode(read_regular(file, "iNaturalist's published list", most=None), type=_Listing)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"expected iNaturalist's published list in {file}, found another: {error}") from error


def _folders(root: Path, split: str, max_unreadable: int) -> FileImages:
    version = _FOLDERS.get(split, split)
    try:
        found = torchvision.datasets.INaturalist(str(root), version=version)
    except ValueError as error:
        raise InputError(
            f"expected an inaturalist split (train2018, val2018, train, val, 2021_train_mini, …), found {split!r}"
        ) from error
    except (RuntimeError, FileNotFoundError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"expected the extracted folder {version}/ in {root} for dataset 'inaturalist'; found: {reason}; nothing "
            "is downloaded, put it there"
        ) from error
    folder = Path(found.root)  # torchvision appends the version
    paths = [folder / found.all_categories[category] / file for category, file in found.index]
    return FileImages(paths, [category for category, _ in found.index], found.all_categories, max_unreadable)
