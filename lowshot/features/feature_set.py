"""Features with their labels: read, checked, compared."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from momentum_transfer.core import untrusted
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import sha256_of
from momentum_transfer.core.neighbours import chunks

#: Class indices from here on must be something else (an image's number, a hash): tables have a place for each.
_MOST_CLASSES = 10**6


@dataclass(frozen=True)
class FeatureSet:
    """Features of one split."""

    features: np.ndarray  # [N, D] float32, often a read-only memory map
    labels: np.ndarray  # [N] int64 class indices, or [N, K] of 0 and 1 (an image may carry several labels)
    name: str  # what messages and records call this split
    sha256: str  # hash of what the features were made from (weights), or of the file that holds them

    @property
    def multi_label(self) -> bool:
        return self.labels.ndim == 2

    @property
    def num_classes(self) -> int:
        return self.labels.shape[1] if self.multi_label else int(self.labels.max()) + 1

    def __len__(self) -> int:
        return len(self.labels)


def read_npz(path: str | Path) -> FeatureSet:
    """Features made elsewhere: ``features`` [N, D] float and ``labels`` [N] int or [N, K] multi-hot, in one .npz.

    Raises InputError if there is no such file, it is no .npz, an array is missing, or :func:`check` fails.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"feature file not found: {path}; expected an .npz with the arrays features and labels")
    with untrusted.opened(path) as archive:
        known = untrusted.names_of(archive)
        if missing := [key for key in ("features", "labels") if key not in known]:
            raise InputError(f"expected the arrays features [N, D] and labels in {path}, found {', '.join(known)}; "
                             f"missing: {', '.join(missing)}")  # fmt: skip
    features, labels = untrusted.read_arrays(path, ("features", "labels")).values()
    if features.dtype.kind != "f":
        raise InputError(f"features of {path} are {features.dtype}, expected floating-point numbers")
    if labels.dtype.kind not in "iub":
        raise InputError(f"labels of {path} are {labels.dtype}, expected whole numbers or a multi-hot matrix")
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and check() says where
        features = features.astype(np.float32)
    result = FeatureSet(features, labels.astype(np.int64), path.name, sha256_of(path))
    check(result)
    return result


def check(data: FeatureSet) -> None:
    """Raise :class:`InputError` for shapes that do not fit, NaN or infinite features, or invalid labels."""
    features, labels = data.features, data.labels
    if features.ndim != 2 or not len(features):
        raise InputError(f"features of {data.name} have shape {features.shape}, expected [N, D] with N ≥ 1")
    if labels.ndim not in (1, 2) or len(labels) != len(features):
        raise InputError(
            f"labels of {data.name} have shape {labels.shape} for {len(features)} features; "
            "expected [N] class indices or an [N, K] multi-hot matrix"
        )
    if labels.ndim == 1 and not 0 <= labels.min() <= labels.max() < _MOST_CLASSES:
        raise InputError(
            f"labels of {data.name} go from {labels.min()} to {labels.max()}; expected class indices from 0, below "
            f"{_MOST_CLASSES}"
        )
    if labels.ndim == 2 and not np.isin(labels, (0, 1)).all():
        raise InputError(f"multi-hot labels of {data.name} hold values other than 0 and 1")
    for part in chunks(len(features)):
        finite = np.isfinite(features[part]).all(axis=1)
        if not finite.all():
            row = part.start + int(np.argmin(finite))
            raise InputError(
                f"features of {data.name} hold NaN or infinite values (first in row {row}); "
                "the weights diverged, or the extraction overflowed: try FEATURES.PRECISION fp32"
            )


def check_vary(*sides: FeatureSet) -> None:
    """Raise :class:`InputError` where all images of a side, two or more, have the same features up to rounding."""
    for data in sides:
        features, first = data.features, data.features[0]
        most = 1e-6 * float(np.abs(first).max(initial=0))
        with np.errstate(over="ignore"):  # the two ends of float32 differ by infinity
            same = not any((np.abs(features[part] - first) > most).any() for part in chunks(len(features)))
        if same and len(features) > 1:
            raise InputError(
                f"expected features that differ between images, found the same for all {len(features)} of {data.name}; "
                "the images are copies of one, the network has collapsed, or its weights are not the trained ones"
            )


def check_pair(train: FeatureSet, test: FeatureSet) -> None:
    """Raise :class:`InputError` where a test set cannot be scored with this training set."""
    if train.features.shape[1] != test.features.shape[1]:
        raise InputError(
            f"{train.name} has {train.features.shape[1]} features an image, {test.name} has "
            f"{test.features.shape[1]}; both must come from the same backbone and layer"
        )
    if train.multi_label != test.multi_label or (train.multi_label and train.num_classes != test.num_classes):
        raise InputError(
            f"labels do not match: {train.name} has shape {train.labels.shape}, {test.name} {test.labels.shape}; "
            "expected class indices in both, or multi-hot labels with the same number of classes in both"
        )
    if train.multi_label:
        if train.num_classes < 2:
            raise InputError(f"{train.name} holds one class only; expected multi-hot labels of at least two")
        if not test.labels.any():
            raise InputError(f"no image of {test.name} carries a label; expected at least one positive to score")
    else:
        check_known(train.labels, test.labels, train.name, test.name)


def check_known(labels: np.ndarray, test_labels: np.ndarray, name: str, test_name: str) -> None:
    """InputError unless there are two classes to train on, and no other ones to test; [N] and [M] class indices."""
    known = np.unique(labels)
    if len(known) < 2:
        raise InputError(f"expected at least two classes in {name}, found one class only (label {known[0]})")
    unknown = np.setdiff1d(test_labels, known)
    if len(unknown):
        raise InputError(
            f"labels do not match: {test_name} has classes that {name} lacks: "
            f"{', '.join(map(str, unknown[:10]))}{' …' if len(unknown) > 10 else ''}; "
            "were both splits indexed by the same list of classes, and have all of them images that train?"
        )
