"""Outcomes per test item, whatever their kind: means per item, ranked detections, confusion matrices.

One number per test item, right or wrong or a fraction: McNemar's exact test, an interval, the bootstrap.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from momentum_transfer.core.errors import InputError
from momentum_transfer.verdicts import confusion
from momentum_transfer.verdicts.confusion import Confusions
from momentum_transfer.verdicts.ranked import Ranked


def label_hash(labels: np.ndarray) -> str:
    """Hash of a test set that is told by its labels in order, [N] class indices or [N, K] multi-hot."""
    labels = np.asarray(labels)
    digest = hashlib.sha256(repr(labels.shape).encode())
    digest.update(labels.astype("<i8").tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class PerItem:
    """Metrics that are means over test items.

    Attributes:
        test_set: hash of the items in their order.
        values: metric to [N]: bool (a hit) or a fraction.
    """

    test_set: str
    values: Mapping[str, np.ndarray]

    @property
    def images(self) -> int:
        return len(next(iter(self.values.values())))

    def arrays(self) -> dict[str, np.ndarray]:
        """The fields as arrays for a file; hits take a bit each."""
        found = {"test_set": np.array(self.test_set), "count": np.array(self.images)}
        for name, values in self.values.items():
            found["hit " * (values.dtype == bool) + name] = np.packbits(values) if values.dtype == bool else values
        return found

    @classmethod
    def from_arrays(cls, found: Mapping[str, Any]) -> "PerItem":
        """What ``arrays`` gave; InputError where it is something else."""
        try:
            count, test_set = int(found["count"]), str(found["test_set"])
            if any(name.startswith("hit ") and 8 * values.size < count for name, values in found.items()):
                raise ValueError(f"the hits of {count} items")  # unpackbits would make as many as it is told
            values = {
                name.removeprefix("hit "): np.unpackbits(values, count=count).astype(bool)
                if name.startswith("hit ")
                else np.asarray(values, dtype=np.float64)
                for name, values in found.items()
                if name not in ("count", "test_set")
            }
        except (KeyError, ValueError, TypeError) as error:
            raise InputError(f"expected outcomes per test item, found a file without {error}") from error
        if not values or any(len(each) != count for each in values.values()):
            raise InputError(f"expected outcomes of {count} test items for each metric, found a damaged set")
        return cls(test_set, values)

    def replicates(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """Every metric, in percent, under each set of weights [B, N]."""
        return {name: 100 * weighted_means(values, weights) for name, values in self.values.items()}


def per_item(values: np.ndarray, drawings: int) -> np.ndarray:
    """[N / drawings] means over the drawings of each item, which share what makes it hard.

    Resampled one by one, as if each told something of its own, they would make intervals too narrow.

    Args:
        values: [N] outcomes of all items once, then of all once more, and so on.
    """
    return values if drawings == 1 else values.reshape(drawings, -1).mean(axis=0)


def mcnemar(first: np.ndarray, second: np.ndarray) -> tuple[int, int, float]:
    """Exact McNemar test of two classifiers on the same images (McNemar 1947).

    Of the images on which exactly one of them is right, each is as likely to be the first's as the second's if they are
    equally good: a binomial test with probability ½.

    Args:
        first, second: [n] bool, whether each image was classified rightly; the same images in the same order.

    Returns:
        (images only the first has right, only the second, two-sided p).
    """
    a, b = np.asarray(first), np.asarray(second)
    if a.shape != b.shape or a.ndim != 1:
        raise InputError(f"expected hits of the same images, found the shapes {a.shape} and {b.shape}")
    a, b = a.astype(bool), b.astype(bool)
    only_first, only_second = int((a & ~b).sum()), int((b & ~a).sum())
    if only_first + only_second == 0:
        return 0, 0, 1.0
    from scipy import stats  # here, because it takes a second and writing outcomes needs none of it

    return only_first, only_second, float(stats.binomtest(only_first, only_first + only_second).pvalue)


#: Continuity correction of the score interval, in items. One is usual; with 0.9 the interval excludes 0 wherever the
#: exact test does (0.918 is the most that allows it, at 17 discordant items).
_CORRECTION = 0.9


def paired_interval(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """95 % interval of the difference of two fractions of hits; it excludes 0 where ``mcnemar``'s p is below .05 only.

    Tango's score interval (Statistics in Medicine 17, 1998) with a continuity correction, which holds also where hits
    differ on few images or none; it is widened to 0 where the exact test is not significant.

    Args:
        first, second: as of ``mcnemar``.
    """
    only_first, only_second, p = mcnemar(first, second)
    low = -_upper_end(only_second, only_first, len(first))
    high = _upper_end(only_first, only_second, len(first))
    return (min(low, 0.0), max(high, 0.0)) if p >= 0.05 else (low, high)


def _upper_end(b: int, c: int, n: int) -> float:
    """The largest difference that the score test does not refuse, where b of n images speak for it and c against."""
    if b - c == n:
        return 1.0
    from scipy import optimize, special

    z = float(special.ndtri(0.975))

    def beyond(difference: float) -> float:
        linear = (2 * n - b + c) * difference - b - c
        against = (math.sqrt(linear**2 + 8 * n * c * difference * (1 - difference)) - linear) / (4 * n)
        variance = n * (2 * against + difference * (1 - difference))
        return n * difference - (b - c) - _CORRECTION - z * math.sqrt(max(variance, 0.0))

    return float(optimize.brentq(beyond, (b - c) / n, 1.0, xtol=1e-12))


def weighted_means(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """[B] mean of ``values`` [n] under each row of integer weights [B, n]; the unit weights give NumPy's own mean."""
    values = np.asarray(values)
    if values.dtype == bool:  # whole numbers: their sum is exact in any order
        return weights[:, values].sum(axis=1) / weights.sum(axis=1)
    return np.array([np.repeat(values, row).mean() for row in weights])


Outcomes = PerItem | Ranked | Confusions

_KINDS: dict[str, Any] = {"per item": PerItem, "ranked detections": Ranked, "confusion matrices": Confusions}


def arrays(outcomes: Outcomes) -> dict[str, np.ndarray]:
    """Arrays for a file, with the kind under ``kind``."""
    kind = next(name for name, made in _KINDS.items() if isinstance(outcomes, made))
    return {"kind": np.array(kind), **outcomes.arrays()}


def from_arrays(found: Mapping[str, Any]) -> Outcomes:
    """What ``arrays`` gave; InputError where it is something else."""
    kind = str(found["kind"]) if "kind" in found else "no kind"
    if kind not in _KINDS:
        raise InputError(
            f"expected outcomes of the kind {', '.join(_KINDS)}, found {kind}; written by a later version?"
        )
    made: Outcomes = _KINDS[kind].from_arrays({name: values for name, values in found.items() if name != "kind"})
    return made


def replicates(outcomes: Outcomes, weights: np.ndarray) -> dict[str, np.ndarray]:
    """Every metric that the outcomes hold, in percent, under each set of item weights [B, items]."""
    if isinstance(outcomes, Ranked):
        from momentum_transfer.verdicts import (
            average_precision,  # here: it takes scipy, which writing outcomes does not
        )

        return average_precision.replicates(outcomes, weights)
    if isinstance(outcomes, Confusions):
        return confusion.replicates(outcomes, weights)
    return outcomes.replicates(weights)


def check_paired(first: Outcomes, second: Outcomes, names: tuple[str, str]) -> None:
    """Raise unless both are outcomes of one kind on the same test items in the same order.

    Args:
        names: what each is called, for the message.
    """
    if type(first) is not type(second):
        raise InputError(
            f"expected outcomes of one kind, found {_kind(first)} of {names[0]} and {_kind(second)} of {names[1]}; "
            "compare the same evaluation"
        )
    if first.images != second.images or first.test_set != second.test_set:
        raise InputError(
            f"expected the same test items in the same order, found {first.images} ({first.test_set[:12]}) of "
            f"{names[0]} and {second.images} ({second.test_set[:12]}) of {names[1]}; evaluate both on the same files"
        )
    if isinstance(first, Ranked) and isinstance(second, Ranked) and first.rule != second.rule:
        raise InputError(f"expected one protocol, found {first.rule} of {names[0]} and {second.rule} of {names[1]}")


def _kind(outcomes: Outcomes) -> str:
    return next(name for name, made in _KINDS.items() if isinstance(outcomes, made))
