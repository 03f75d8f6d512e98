"""Outcomes per test item, whatever their kind: means per item, ranked detections, confusion matrices."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from momentum_transfer.core.errors import InputError
from momentum_transfer.verdicts import confusion
from momentum_transfer.verdicts.confusion import Confusions
from momentum_transfer.verdicts.hits import PerItem
from momentum_transfer.verdicts.ranked import Ranked

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
