"""mIoU and its kin from a confusion matrix, and under many sets of image weights.

IoU of a class = TP / (TP + FP + FN) over the pixels of all images (Everingham et al., IJCV 2015, section 4.1.3): a
ratio of sums over images, so a resample of images adds up other confusion matrices.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from momentum_transfer.core.errors import InputError

_BLOCK = 64


@dataclass(frozen=True)
class Confusions:
    """The cells that are not 0 in the confusion matrix of each of n images, K classes.

    Attributes:
        absent: which mean ``mIoU`` is: over classes in the ``ground-truth``, or in the ``union`` with predictions.
        image: [N] of the cell. cell: [N] true class · (K + 1) + predicted class (K: no class). pixels: [N].
    """

    images: int
    classes: int
    absent: str
    image: np.ndarray
    cell: np.ndarray
    pixels: np.ndarray
    clusters: np.ndarray | None = None

    @property
    def test_set(self) -> str:
        """Hash of the ground truth: the pixels of every class in every image, in order."""
        from scipy import sparse  # here, because it takes half a second and scoring imports this module

        truth = sparse.csr_matrix(
            (self.pixels, (self.image, self.cell // (self.classes + 1))), shape=(self.images, self.classes)
        )
        truth.sum_duplicates()
        digest = hashlib.sha256(f"{self.images} {self.classes}".encode())
        for part in (truth.indptr, truth.indices, truth.data):
            digest.update(part.astype("<i8").tobytes())
        return digest.hexdigest()

    def total(self) -> np.ndarray:
        """[K, K + 1] pixels of all images together."""
        table = np.zeros(self.classes * (self.classes + 1), dtype=np.int64)
        np.add.at(table, self.cell, self.pixels)
        return table.reshape(self.classes, self.classes + 1)

    def arrays(self) -> dict[str, np.ndarray]:
        """The fields as arrays for a file."""
        return {
            "shape": np.array([self.images, self.classes], dtype=np.int64),
            "absent": np.array(self.absent),
            "image": self.image.astype(np.uint32),
            "cell": self.cell.astype(np.uint32),
            "pixels": self.pixels.astype(np.uint32 if self.pixels.max(initial=0) < 1 << 32 else np.uint64),
        }

    @classmethod
    def from_arrays(cls, found: dict[str, Any]) -> "Confusions":
        """What ``arrays`` gave; InputError if it is something else."""
        try:
            images, classes = (int(value) for value in found["shape"])
            image, cell, pixels = (found[name].astype(np.int64) for name in ("image", "cell", "pixels"))
            confusions = cls(images, classes, str(found["absent"]), image, cell, pixels)
        except (KeyError, ValueError) as error:
            raise InputError(f"expected confusion matrices per image, found a file without {error}") from error
        fit = len(image) == len(cell) == len(pixels) and confusions.absent in ("ground-truth", "union")
        if not fit or (len(image) and not (image.max() < images and cell.max() < classes * (classes + 1))):
            raise InputError("expected confusion matrices whose arrays fit each other, found a damaged set")
        return confusions


def replicates(confusions: Confusions, weights: np.ndarray) -> dict[str, np.ndarray]:
    """Every metric of ``metrics``, in percent, under each set of weights [B, images]."""
    from scipy import sparse

    shape = (confusions.images, confusions.classes * (confusions.classes + 1))
    per_image = sparse.csr_matrix((confusions.pixels, (confusions.image, confusions.cell)), shape=shape).T.tocsr()
    rows = []
    for start in range(0, len(weights), _BLOCK):
        block = np.ascontiguousarray(weights[start : start + _BLOCK].T.astype(np.int64))
        for table in (per_image @ block).T:
            rows.append(metrics(table.reshape(confusions.classes, confusions.classes + 1), confusions.absent))
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def metrics(confusion: np.ndarray, absent: str) -> dict[str, float]:
    """mIoU, mIoU_ground_truth, mIoU_union, fwIoU, mACC, pACC in percent; NaN if undefined.

    Args:
        confusion: [K, K + 1] pixels: true class × predicted class, the last column "no class".
        absent: ``ground-truth`` (the mean is over classes in the ground truth) or ``union`` (also over classes that are
            only predicted, with IoU 0).
    """
    hit, true, union = class_counts(confusion)
    with np.errstate(invalid="ignore"):
        iou, accuracy = hit / union, hit / true
    in_truth, in_either = true > 0, union > 0
    over_truth = iou[in_truth].mean() if in_truth.any() else np.nan
    over_union = iou[in_either].mean() if in_either.any() else np.nan
    pixels = true.sum()
    fractions = {
        "mIoU": {"ground-truth": over_truth, "union": over_union}[absent],
        "mIoU_ground_truth": over_truth,
        "mIoU_union": over_union,
        "fwIoU": (iou[in_truth] * true[in_truth]).sum() / pixels if pixels else np.nan,
        "mACC": accuracy[in_truth].mean() if in_truth.any() else np.nan,
        "pACC": hit.sum() / pixels if pixels else np.nan,
    }
    return {name: float(fraction) * 100 for name, fraction in fractions.items()}


def class_counts(confusion: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[K] pixels of each class: rightly labelled, in the ground truth, in the union of truth and prediction."""
    hit = np.diag(confusion).astype(np.float64)
    true, predicted = confusion.sum(axis=1), confusion[:, :-1].sum(axis=0)
    return hit, true, true + predicted - hit
