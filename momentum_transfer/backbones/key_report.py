"""Key report: which keys of a checkpoint were used, dropped (with the reason) or missing, as data and as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from momentum_transfer.core import log
from momentum_transfer.core.errors import InputError


@dataclass
class KeyReport:
    """Every tensor of the file is in exactly one of ``used``, ``dropped``, ``wrong_shape`` and ``unexpected``.

    ``dropped`` groups what lies outside the state dicts as ``path.*``.

    Attributes:
        used: key in the file -> backbone tensor it became.
        dropped: key in the file -> the rule that dropped it.
        missing: backbone tensors that the file lacks.
        wrong_shape: (key in the file, shape found, shape expected).
        unexpected: keys under the backbone's prefix that are neither a backbone tensor nor dropped by a rule, or that
            name a backbone tensor which an earlier key named (``module.conv1.weight`` beside ``conv1.weight``).
        filled: ``num_batches_tracked`` counters that the file lacks, set to 0. BatchNorm's evaluation and its momentum
            updates do not read them.
        notes: decisions, in words: which family won, which network was taken.
    """

    used: dict[str, str] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    wrong_shape: list[tuple[str, Sequence[int], Sequence[int]]] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    filled: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether the whole backbone was found and nothing unexplained is left in it."""
        return not (self.missing or self.wrong_shape or self.unexpected)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"complete": self.complete, **asdict(self)}

    def rows(self) -> list[tuple[str, str, int, str]]:
        """(what happened, why, how many keys, examples), grouped by rule."""
        integers = [key for key, target in self.used.items() if target.endswith("num_batches_tracked")]
        floats = [key for key in self.used if key not in set(integers)]
        rows = [("used", "weights and BatchNorm statistics", len(floats), _examples(floats))]
        if integers:
            rows.append(
                ("used", "integers, kept as they are (num_batches_tracked)", len(integers), _examples(integers))
            )
        for reason, count in Counter(self.dropped.values()).items():
            keys = [key for key, why in self.dropped.items() if why == reason]
            rows.append(("dropped", reason, count, _examples(keys)))
        if self.filled:
            rows.append(("filled with 0", "integers absent from the file", len(self.filled), _examples(self.filled)))
        shapes = [f"{key} {list(found)} for {list(expected)}" for key, found, expected in self.wrong_shape]
        for what, keys in (("missing", self.missing), ("wrong shape", shapes), ("unexpected", self.unexpected)):
            rows.append((what, "", len(keys), _examples(keys)))
        return rows

    def show(self, title: str) -> None:
        """Print the grouped table."""
        log.table(title, ("keys", "rule", "number", "examples"), self.rows())


class CoverageError(InputError):
    """The file does not hold the whole backbone, or more than it; ``report`` says what became of every key."""

    def __init__(self, message: str, report: KeyReport) -> None:
        super().__init__(message)
        self.report = report


def _examples(keys: Sequence[str], count: int = 2) -> str:
    return ", ".join(keys[:count]) + (", …" if len(keys) > count else "")
