"""Semantic segmentation: mIoU, IoU per class and pixel accuracy from label images.

IoU of a class = TP / (TP + FP + FN) over the pixels of all images whose ground truth is not the ignore label
(Everingham et al., IJCV 2015, section 4.1.3). Papers differ in the classes of the mean; both are returned:

- ``ground-truth``: those in the ground truth (Detectron2's SemSegEvaluator);
- ``union``: also those that occur only in predictions, with IoU 0 (cityscapesScripts).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.untrusted import read_lines
from momentum_transfer.images.reading import opened, stored_pixels
from momentum_transfer.verdicts.confusion import Confusions, class_counts, metrics

AbsentClasses = Literal["ground-truth", "union"]
Labels = str | Path | Sequence[str | Path]

#: By these endings Cityscapes names the label images and the image of a scene.
_CITYSCAPES_ENDINGS = ("_gtFine_labelTrainIds", "_gtFine_labelIds", "_leftImg8bit")

#: A confusion matrix of this many classes takes 128 MiB. Data sets have up to about a thousand.
_MOST_CLASSES = 4096
_MOST_COUNTERS = 1 << 22  # of one image; if labels are too large for that, its pixels are sorted instead


@dataclass(frozen=True)
class SemanticScores:
    """The scores, and the confusion matrix from which they follow."""

    metrics: dict[str, float]  # mIoU, mIoU_ground_truth, mIoU_union, fwIoU, mACC, pACC in percent; NaN if undefined
    per_class: dict[str, float]  # class name → IoU in percent; NaN where neither truth nor prediction has the class
    confusion: np.ndarray  # [K, K + 1] pixels: true class × predicted class, the last column "no class"
    items: Confusions  # the same of every image


def evaluate(
    ground_truth: Labels,
    predictions: Labels,
    classes: int | Sequence[str] | None = None,
    ignore_label: int = 255,
    absent_classes: AbsentClasses = "ground-truth",
) -> SemanticScores:
    """Score label images.

    Args:
        ground_truth, predictions: a folder (label images are looked for in its subfolders too and paired by relative
            path, whatever the ending of Cityscapes), a text file with one path a line, or a list of paths (paired in
            order). Label images are single-channel PNG: the pixel's value is its class.
        classes: names of the classes, or their number; by default up to the largest label found.
        ignore_label: pixels with this ground truth are left out. As a prediction it means "no class": a missed pixel.
        absent_classes: the classes over which ``mIoU`` is the mean, see above.

    Raises:
        InputError: a file is missing, unreadable or no label image, the sizes of a pair differ, or a label is no class.
    """
    if absent_classes not in ("ground-truth", "union"):
        raise InputError(f"expected absent_classes ground-truth or union, found {absent_classes!r}")
    number, names = _classes(classes)
    items = _confusions(pairs(ground_truth, predictions), number, ignore_label, absent_classes)
    confusion = items.total()
    names = [str(k) for k in range(len(confusion))] if names is None else names
    hit, _, union = class_counts(confusion)
    with np.errstate(invalid="ignore"):
        per_class = [float(iou) * 100 for iou in hit / union]
    return SemanticScores(
        metrics(confusion, absent_classes), dict(zip(names, per_class, strict=True)), confusion, items
    )


def _classes(classes: int | Sequence[str] | None) -> tuple[int | None, list[str] | None]:
    """Number and names of the classes, if they are given."""
    if classes is None:
        return None, None
    names = None if isinstance(classes, (int, np.integer)) else list(classes)
    number = int(classes) if isinstance(classes, (int, np.integer)) else len(classes)
    if not 1 <= number <= _MOST_CLASSES:
        raise InputError(f"expected 1 to {_MOST_CLASSES} classes, found {number}")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(f"expected each class name once, found {twice[0]!r} more often")
    return number, names


def _confusions(
    pairs: Sequence[tuple[Path, Path]], number: int | None, ignore_label: int, absent_classes: str
) -> Confusions:
    """The confusion matrix of every image; K grows with the labels found where ``number`` is None."""
    found = []
    highest = -1
    for truth_file, prediction_file in pairs:
        truth, prediction = _read(truth_file), _read(prediction_file)
        if truth.shape != prediction.shape:
            raise InputError(
                f"expected the size of the ground truth {truth_file} (height, width {truth.shape}), found "
                f"{prediction.shape} in {prediction_file}; predict at the size of the image"
            )
        counts = _joint(truth, prediction)
        for labels, file in ((counts[0], truth_file), (counts[1], prediction_file)):
            classes = labels[labels != ignore_label]
            highest = max(highest, int(classes.max(initial=-1)))
            if number is not None and highest >= number:
                raise InputError(
                    f"expected labels 0 … {number - 1} or the ignore label {ignore_label} in {file}, found {highest}"
                )
        if highest >= _MOST_CLASSES:
            raise InputError(
                f"expected labels below {_MOST_CLASSES} or the ignore label {ignore_label} in {truth_file} and "
                f"{prediction_file}, found {highest}; is another label to be ignored, or are these instance ids?"
            )
        kept = counts[0] != ignore_label
        found.append(tuple(values[kept] for values in counts))
    classes = number if number is not None else highest + 1
    label, predicted, pixels = (
        np.concatenate([part[column] for part in found]).astype(np.int64) for column in range(3)
    )
    column = np.where(predicted == ignore_label, classes, predicted)
    image = np.repeat(np.arange(len(found)), [len(part[0]) for part in found])
    return Confusions(len(found), classes, absent_classes, image, label * (classes + 1) + column, pixels)


def _joint(truth: np.ndarray, prediction: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The pairs (label, predicted label) that occur, and in how many pixels."""
    width = int(prediction.max(initial=0)) + 1
    joint = (truth.astype(np.int64) * width + prediction).ravel()
    if (int(truth.max(initial=0)) + 1) * width > _MOST_COUNTERS:
        found, pixels = np.unique(joint, return_counts=True)
        return found // width, found % width, pixels
    counts = np.bincount(joint)
    found = np.flatnonzero(counts)
    return found // width, found % width, counts[found]


def _read(file: Path) -> np.ndarray:
    if not file.exists():
        raise InputError(f"label image not found: {file}")
    with opened(file, ("PNG",)) as image:
        if image.mode not in ("L", "P", "1", "I", "I;16"):
            raise InputError(f"expected a single-channel label image in {file}, found mode {image.mode}")
        labels = stored_pixels(image, file)
    if labels.size and labels.min() < 0:
        raise InputError(f"expected labels of 0 and above in {file}, found {labels.min()}")
    return labels.astype(np.int32)


def pairs(ground_truth: Labels, predictions: Labels) -> list[tuple[Path, Path]]:
    """The files that ``evaluate`` compares: ground truth and prediction of every image; see there."""
    if all(isinstance(side, (str, Path)) and Path(side).is_dir() for side in (ground_truth, predictions)):
        return _pairs_of_folders(Path(ground_truth), Path(predictions))  # type: ignore[arg-type]  # asked above
    sides = [_listed(side) for side in (ground_truth, predictions)]
    if len(sides[0]) != len(sides[1]):
        raise InputError(
            f"expected as many predictions as ground truth images, found {len(sides[1])} and {len(sides[0])}; "
            "lists are paired in order, two folders by name"
        )
    if not sides[0]:
        raise InputError(f"expected label images in {ground_truth} and {predictions}, found none")
    return list(zip(*sides, strict=True))


def _listed(side: Labels) -> list[Path]:
    if not isinstance(side, (str, Path)):
        return [Path(file) for file in side]
    path = Path(side)
    if path.suffix.lower() == ".json":
        raise InputError(f"expected label images, found {path}; JSON files are scored by coco, lvis and voc")
    if path.is_dir():
        return sorted(path.rglob("*.png"))
    if not path.is_file():
        raise InputError(f"label images not found: {path}; expected a folder, or a text file with one path a line")
    if path.suffix.lower() == ".png":
        return [path]
    return [path.parent / line for line in read_lines(path, "label images, a path a line,") if line]


def _pairs_of_folders(ground_truth: Path, predictions: Path) -> list[tuple[Path, Path]]:
    truth, predicted = _by_name(ground_truth), _by_name(predictions)
    if not truth:
        raise InputError(f"expected label images (*.png) in {ground_truth}, found none")
    missing, unknown = sorted(truth.keys() - predicted.keys()), sorted(predicted.keys() - truth.keys())
    if missing:
        raise InputError(f"no prediction for {truth[missing[0]]} ({len(missing)} missing in {predictions})")
    if unknown:
        raise InputError(f"no ground truth for {predicted[unknown[0]]} ({len(unknown)} unknown to {ground_truth})")
    return [(truth[name], predicted[name]) for name in sorted(truth)]


def _by_name(folder: Path) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for file in sorted(folder.rglob("*.png")):
        name = file.relative_to(folder).with_suffix("").as_posix()
        for ending in _CITYSCAPES_ENDINGS:
            name = name.removesuffix(ending)
        if name in files:
            raise InputError(f"{files[name]} and {file} label the same image; keep one of them in {folder}")
        files[name] = file
    return files
