"""Outcomes per test item (means per item, ranked detections, confusion matrices) and their bootstrap.

A resample of n items with replacement is a weight per item: how often it was drawn. All checkpoints of a comparison get
the same weights, so that differences are paired item by item (Efron and Tibshirani, "An introduction to the bootstrap",
1993, chapters 6 and 14).
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from momentum_transfer.core.errors import InputError
from momentum_transfer.verdicts import confusion
from momentum_transfer.verdicts.confusion import Confusions
from momentum_transfer.verdicts.ranked import Ranked


def label_hash(labels: np.ndarray) -> str:
    """Hash of a test set by its labels in order, [N] class indices or [N, K] multi-hot."""
    labels = np.asarray(labels)
    digest = hashlib.sha256(repr(labels.shape).encode())
    digest.update(labels.astype("<i8").tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class PerItem:
    """Metrics that are means over test items: metric to [N] bool (a hit) or fraction; ``test_set`` is a hash.

    ``clusters``, here and in the other kinds: [N] the number of each item's group, where items come in groups.
    """

    test_set: str
    values: Mapping[str, np.ndarray]
    clusters: np.ndarray | None = None

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
        """Read back what ``arrays`` returned; InputError if it is something else."""
        try:
            count, test_set = int(found["count"]), str(found["test_set"])
            if any(name.startswith("hit ") and 8 * values.size < count for name, values in found.items()):
                raise ValueError(f"the hits of {count} items")  # unpackbits would pad to any count
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


def per_item(values: np.ndarray, renderings: int) -> np.ndarray:
    """[N / renderings] means over the renderings of each item; resampled one by one, intervals would be too narrow.

    Args:
        values: [N] outcomes of all items once, then of all once more, and so on.
    """
    return values if renderings == 1 else values.reshape(renderings, -1).mean(axis=0)


#: Groups of items below which nothing is said of the items.
FEWEST_GROUPS = 3


def group_numbers(names: Sequence[str] | np.ndarray) -> np.ndarray:
    """[items] numbers 0 … G − 1 of the groups that ``names`` gives item by item; InputError below 3 groups."""
    groups = np.unique(np.asarray(names), return_inverse=True)[1]
    if (count := int(groups.max(initial=-1)) + 1) < FEWEST_GROUPS:
        raise InputError(
            f"expected {FEWEST_GROUPS} groups or more, found {count}; leave the groups out, or test on more"
        )
    return groups


def item_weights(
    items: int, resamples: int, seed: int = 0, groups: np.ndarray | None = None, blocks: int = 0
) -> np.ndarray:
    """[resamples + min(blocks, items), items] int16 weights of the items: of the bootstrap, then of the jackknife.

    A row of the bootstrap is how often each item is drawn, and sums to ``items``; one of the jackknife is all ones but
    for the block of items that is left out. Leaving out blocks instead of single items keeps the acceleration at the
    price of some noise (Efron and Tibshirani 1993, section 14.3), and 5000 items need 100 evaluations instead of 5000.

    With ``groups`` ([items], numbers 0 … G − 1: films, patients, sites) whole groups are drawn, G of them, and left out
    (the cluster bootstrap, Davison and Hinkley 1997, section 3.8): a row then sums to more or less where they differ in
    size.
    """
    if groups is not None:
        return item_weights(int(groups.max()) + 1, resamples, seed, blocks=blocks)[:, groups]
    if items < 1 or resamples + blocks < 1:
        raise InputError(f"expected at least one item and one resample, found {items} and {resamples}")
    random, blocks = np.random.default_rng(seed), min(blocks, items)
    weights = np.empty((resamples + blocks, items), dtype=np.int16)
    for row in weights[:resamples]:
        row[:] = np.bincount(random.integers(0, items, items), minlength=items)
    block = np.random.default_rng(0).permutation(items) % blocks if blocks else np.zeros(0)
    for number, row in enumerate(weights[resamples:]):
        np.not_equal(block, number, out=row)
    return weights


def weighted_means(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """[B] mean of ``values`` [n] under each row of integer weights [B, n]; the unit weights give NumPy's own mean."""
    values = np.asarray(values)
    if values.dtype == bool:  # whole numbers: their sum is exact in any order
        return np.array([row[values].sum() / row.sum() for row in weights])
    return np.array([np.repeat(values, row).mean() for row in weights])


Outcomes = PerItem | Ranked | Confusions

_KINDS: dict[str, Any] = {"per item": PerItem, "ranked detections": Ranked, "confusion matrices": Confusions}


def arrays(outcomes: Outcomes) -> dict[str, np.ndarray]:
    """Arrays for a file, with the kind under ``kind``."""
    clusters = {} if outcomes.clusters is None else {"clusters": outcomes.clusters.astype(np.uint32)}
    return {"kind": np.array(_kind(outcomes)), **clusters, **outcomes.arrays()}


def from_arrays(found: Mapping[str, Any]) -> Outcomes:
    """Read back what ``arrays`` returned; InputError if it is something else."""
    kind = str(found["kind"]) if "kind" in found else "no kind"
    if kind not in _KINDS:
        raise InputError(
            f"expected outcomes of the kind {', '.join(_KINDS)}, found {kind}; written by a later version?"
        )
    outcomes: Outcomes = _KINDS[kind].from_arrays(
        {name: values for name, values in found.items() if name not in ("kind", "clusters")}
    )
    return in_groups(outcomes, group_numbers(found["clusters"])) if "clusters" in found else outcomes


def in_groups(outcomes: Outcomes, clusters: np.ndarray | None) -> Outcomes:
    """The outcomes with the group of every item; None: with none."""
    if clusters is not None and clusters.shape != (outcomes.images,):
        raise InputError(f"expected the group of each of {outcomes.images} test items, found {clusters.size}")
    return replace(outcomes, clusters=clusters)


def replicates(outcomes: Outcomes, weights: np.ndarray) -> dict[str, np.ndarray]:
    """Every metric that the outcomes hold, in percent, under each set of item weights [B, items]."""
    if isinstance(outcomes, Ranked):
        # Imported here, because it takes scipy, which writing outcomes does not.
        from momentum_transfer.verdicts import average_precision

        return average_precision.replicates(outcomes, weights)
    if isinstance(outcomes, Confusions):
        return confusion.replicates(outcomes, weights)
    return outcomes.replicates(weights)


def check_paired(first: Outcomes, second: Outcomes, names: tuple[str, str]) -> None:
    """InputError (with ``names``) unless both are outcomes of one kind on the same test items in the same order."""
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
    groups = [np.zeros(0) if each.clusters is None else each.clusters for each in (first, second)]
    if not np.array_equal(groups[0], groups[1]):
        raise InputError(f"expected the same groups of test items of {names[0]} and {names[1]}; evaluate both again")
    if isinstance(first, Ranked) and isinstance(second, Ranked) and first.rule != second.rule:
        raise InputError(f"expected one protocol, found {first.rule} of {names[0]} and {second.rule} of {names[1]}")


def _kind(outcomes: Outcomes) -> str:
    return next(name for name, kind in _KINDS.items() if isinstance(outcomes, kind))
