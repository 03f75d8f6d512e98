"""Few-shot detection: base and novel classes, and draws of K objects a class (TFA, Wang et al., arXiv 2003.06957).

As in FsDet, TFA's own code, a shot is one object of one class in an image of its own: an image with two shots trains
twice, each time with one object. Shots are read from FsDet's seed files, or drawn here.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from fvcore.common.config import CfgNode

from momentum_transfer.core.errors import InputError, counted, shown
from momentum_transfer.core.untrusted import read_lines
from momentum_transfer.transfer.data.annotations import DetectionData, read_annotations

#: An image of a training set with one of its objects: the set's place, the image's entry, the object's entry.
Shot = tuple[int, dict[str, Any], dict[str, Any]]


@dataclass(frozen=True)
class FewShot:
    """A few-shot protocol, FEW_SHOT of the settings: the classes that are not novel are base, and shots are K."""

    novel: tuple[str, ...]
    stage: str = "all"
    shots: int = 1
    seed_files: str = ""

    @classmethod
    def of(cls, cfg: CfgNode) -> "FewShot | None":
        """The protocol of a config; None if it names no novel classes."""
        few = cfg.FEW_SHOT
        return cls(tuple(few.NOVEL), few.STAGE, few.SHOTS, few.SEED_FILES) if few.NOVEL else None

    def parts(self, classes: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """The base and the novel ones of ``classes``, in their order."""
        novel = tuple(name for name in classes if name in self.novel)
        return {"base": tuple(name for name in classes if name not in self.novel), "novel": novel}

    def of_stage(self, data: DetectionData) -> DetectionData:
        """A set with the classes of the stage alone; InputError for novel classes that it lacks, or without a base."""
        known = f"the classes of {data.name}: {', '.join(data.classes)}"
        if unknown := [name for name in self.novel if name not in data.classes]:
            raise InputError(f"expected FEW_SHOT.NOVEL among {known}, found {shown(unknown[0])}; correct it")
        if not self.parts(data.classes)["base"]:
            raise InputError(f"expected base classes beside FEW_SHOT.NOVEL, found none in {known}; name fewer")
        return data if self.stage == "all" else _restricted(data, self.parts(data.classes)[self.stage])

    def drawn(self, pool: "Pool", draw: int) -> list[DetectionData]:
        """The training sets with the shots of one draw alone; drawn here, those of K are among those of K + 1.

        A set without one is left out. InputError for fewer than K objects of a class, and for a seed file that is
        absent or names an unknown image or another class.
        """
        if self.stage == "base":
            return list(pool.train)
        shots: list[Shot] = []
        for place, name in enumerate(pool.train[0].classes):
            file = self._seed_file(draw, name) if self.seed_files else None
            found = pool.listed(file, name) if file else pool.objects[name]
            if len(found) < self.shots:
                raise InputError(f"expected {self.shots} or more objects of {name!r} in {file or pool.names}, found "
                                 f"{len(found)}; lower FEW_SHOT.SHOTS, or label more")  # fmt: skip
            order = np.random.default_rng((draw, place)).permutation(len(found))
            shots += [found[k] for k in sorted(order[: self.shots])]
        by_set = ([shot for shot in shots if shot[0] == place] for place in range(len(pool.train)))
        return [_with_shots(data, own, self.seed_files) for data, own in zip(pool.train, by_set, strict=True) if own]

    def _seed_file(self, draw: int, name: str) -> Path:
        """FsDet's file of a class: COCO's or VOC's; those of draw 0 lie in the folder, those of draw N in seedN."""
        folder = Path(self.seed_files).expanduser() / (f"seed{draw}" if draw else "")
        stem = f"box_{self.shots}shot_{name}"
        for file in (folder / f"full_{stem}_trainval.json", folder / f"{stem}_train.txt"):
            if file.is_file():
                return file
        raise InputError(f"expected FsDet's full_{stem}_trainval.json or {stem}_train.txt in {folder}, found neither; "
                         "correct FEW_SHOT.SEED_FILES, SHOTS or the draws")  # fmt: skip


def draw_of(cfg: CfgNode, trial: int) -> int | None:
    """The draw of a trial: FEW_SHOT.SEEDS trials one after another share one; None where nothing is drawn."""
    few = cfg.FEW_SHOT
    return few.DRAW + trial // few.SEEDS if few.NOVEL and few.STAGE != "base" else None


def _restricted(data: DetectionData, names: Sequence[str]) -> DetectionData:
    """A set without the objects and categories of other classes; all its images stay."""
    ids = {name: k for name, k in zip(data.classes, data.category_ids, strict=True) if name in names}
    left = set(data.category_ids) - set(ids.values())  # what has an unknown id stays, and is refused by the check
    content = dict(data.load())
    content["annotations"] = [entry for entry in content["annotations"] if entry.get("category_id") not in left]
    content["categories"] = [entry for entry in content["categories"] if entry["id"] not in left]
    return replace(data, classes=tuple(ids), category_ids=tuple(ids.values()), content=content)


class Pool:
    """What shots are drawn from: the objects of the training sets by class, and their images by the file's stem."""

    def __init__(self, train: Sequence[DetectionData]) -> None:
        self.train, self.names = train, ", ".join(data.name for data in train)
        self.objects: dict[str, list[Shot]] = defaultdict(list)  # no crowds, in the order of the sets and their files
        self.images: dict[str, tuple[int, dict[str, Any]]] = {}
        self._held: dict[tuple[str, str], list[Shot]] = defaultdict(list)  # by image and class
        for place, data in enumerate(train):
            images = {image["id"]: (data.image_path(image).stem, image) for image in data.load()["images"]}
            names = dict(zip(data.category_ids, data.classes, strict=True))
            self.images |= {stem: (place, image) for stem, image in images.values()}
            for entry in data.load()["annotations"]:
                (stem, image), name = images[entry["image_id"]], names[entry["category_id"]]
                if not entry.get("iscrowd", 0):
                    self.objects[name].append((place, image, entry))
                    self._held[stem, name].append((place, image, entry))

    def listed(self, file: Path, name: str) -> list[Shot]:
        """The objects of a class in FsDet's seed file: COCO's has objects, VOC's has images with all their objects."""
        if file.suffix == ".txt":
            stems = [Path(line).stem for line in read_lines(file, "a list of images") if line]
            self._check_known(stems, file)
            return [shot for stem in stems for shot in self._held[stem, name]]
        content, data = read_annotations(file), self.train[0]
        entries, category = content["annotations"], data.category_ids[data.classes.index(name)]
        if other := [entry for entry in entries if entry.get("category_id") != category]:
            found = f"annotation {other[0]['id']} of {shown(other[0].get('category_id'))}"
            raise InputError(f"expected objects of category_id {category}, {name!r}, in {file}, found {found}")
        stem_of = {image["id"]: data.image_path(image).stem for image in content["images"] if image.get("file_name")}
        stems = [stem_of.get(entry.get("image_id"), f"image_id {entry.get('image_id')}") for entry in entries]
        self._check_known(stems, file)
        return [(*self.images[stem], entry) for stem, entry in zip(stems, entries, strict=True)]

    def _check_known(self, stems: Sequence[str], file: Path) -> None:
        if unknown := [stem for stem in stems if stem not in self.images]:
            found = f"{counted(len(unknown), 'unknown image')}, first {shown(unknown[0])}"
            raise InputError(f"expected images of {self.names} in {file}, found {found}; let DATASETS.TRAIN be the "
                             "sets that the seed files were drawn from")  # fmt: skip


def _with_shots(data: DetectionData, shots: Sequence[Shot], seed_files: str) -> DetectionData:
    """A set of one image a shot, with that object alone; ids from 1."""
    content = dict(data.load())
    content["images"] = [{**image, "id": number} for number, (_, image, _) in enumerate(shots, 1)]
    content["annotations"] = [{**entry, "id": n, "image_id": n} for n, (_, _, entry) in enumerate(shots, 1)]
    return replace(data, content=content, annotation_file=Path(seed_files or data.annotation_file))
