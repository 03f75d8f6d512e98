"""What a setting may be, and the table of settings that every room has in its ``config.py``.

A row of the table says a setting once: its key, default, rule, meaning, and what it decides. Functions that take plain
arguments use the same rules: ``FRACTION.require("the fraction of labels", fraction)``.
"""

from __future__ import annotations

import copy
import difflib
import itertools
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fvcore.common.config import CfgNode

from momentum_transfer.core.errors import InputError, shown
from momentum_transfer.core.settings import value_of


class Rule:
    """``str(rule)`` completes "expected KEY …"; ``plural`` says the same of the elements of a list."""

    def holds(self, value: Any) -> bool:
        """Whether the value is allowed."""
        raise NotImplementedError

    def plural(self) -> str:
        """For example "numbers above 0"."""
        raise NotImplementedError

    def next_step(self, value: Any) -> str:
        """What the user can do about a wrong value."""
        return "correct the config"

    def require(self, key: str, value: Any, next_step: str = "") -> None:
        """Raise InputError, which names the key, what is allowed and what was found, unless the value is allowed."""
        if not self.holds(value):
            raise InputError(f"expected {key} {self}, found {shown(value)}; {next_step or self.next_step(value)}")


@dataclass(frozen=True)
class Number(Rule):
    """Finite numbers from ``low`` to ``high``."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False  # without the lower end
    below: bool = False  # without the upper end
    whole: bool = False  # no fractions
    unit: str = ""  # of the number, for example "px"
    note: str = ""  # on values with a meaning of their own, for example "0: the preset's"

    def holds(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, int if self.whole else (int, float)):
            return False
        low = value > self.low if self.above else value >= self.low
        high = value < self.high if self.below else value <= self.high
        return low and high and (isinstance(value, int) or math.isfinite(value))

    def __str__(self) -> str:
        ends = []
        if self.low > -math.inf:
            ends.append(f"{'above' if self.above else 'of at least'} {self.low:.12g}")
        if self.high < math.inf:
            ends.append(f"{'below' if self.below else 'at most'} {self.high:.12g}")
        if len(ends) == 2 and not self.above and not self.below:
            ends = [f"between {self.low:.12g} and {self.high:.12g}"]
        text = " and ".join(ends) or "as a finite number"
        return text + (f" {self.unit}" if self.unit else "") + (f" ({self.note})" if self.note else "")

    def plural(self) -> str:
        bounded = self.low > -math.inf or self.high < math.inf
        return ("whole numbers" if self.whole else "numbers") + (f" {self}" if bounded else "")


@dataclass(frozen=True)
class Momentum(Rule):
    """The weight of a new value in a moving average, as every momentum here: 0 to 0.5, or 1, which copies.

    What lies between is the fraction that is kept, as most papers print it (.9, .99, .999), written by mistake.
    """

    frozen: bool = True  # 0 is allowed, under which nothing ever moves
    negative: str = ""  # what a value below 0 means; "" where there is no such value
    note: str = ""  # on values with a meaning of their own

    def holds(self, value: Any) -> bool:
        if self.negative and Number(high=0, below=True).holds(value):
            return True
        return (UNIT if self.frozen else FRACTION).holds(value) and not 0.5 < value < 1

    def __str__(self) -> str:
        notes = "; ".join(note for note in (self.note, self.negative and f"below 0: {self.negative}") if note)
        least = "between 0 and 0.5" if self.frozen else "above 0 and at most 0.5"
        return f"as the weight of the new value, {least}, or 1" + (f" ({notes})" if notes else "")

    def plural(self) -> str:
        return f"numbers {self}"

    def next_step(self, value: Any) -> str:
        if not UNIT.holds(value) or value == 0:
            return super().next_step(value)
        return f"it looks like the fraction that is kept, as papers write it; if so, write {1 - value:.6g}"


@dataclass(frozen=True, init=False)
class Choice(Rule):
    """One of some words (or of a few numbers)."""

    words: tuple[Any, ...]

    def __init__(self, words: Iterable[Any]) -> None:
        object.__setattr__(self, "words", tuple(words))

    def holds(self, value: Any) -> bool:
        return any(value == word and type(value) is type(word) for word in self.words)

    def __str__(self) -> str:
        return "of " + ", ".join("'' (none)" if word == "" else str(word) for word in self.words)

    def plural(self) -> str:
        return f"words {self}"

    def next_step(self, value: Any) -> str:
        near = difflib.get_close_matches(str(value)[:80], [str(word) for word in self.words], n=1)
        return f"the nearest is {near[0]}" if near else super().next_step(value)


class ArchitectureName(Choice):
    """A ResNet's name, or ``timm:NAME[?key=value…]``; whether timm has it is asked where it is built."""

    def __init__(self) -> None:
        super().__init__(("resnet10", "resnet18", "resnet34", "resnet50", "resnet101", "timm:NAME"))

    def holds(self, value: Any) -> bool:
        return super().holds(value) or (isinstance(value, str) and value.startswith("timm:"))


class Switch(Rule):
    """True or False."""

    def holds(self, value: Any) -> bool:
        return isinstance(value, bool)

    def __str__(self) -> str:
        return "as True or False"

    def plural(self) -> str:
        return "True or False"


@dataclass(frozen=True)
class Words(Rule):
    """Text of a form that a regular expression describes; ``form`` completes "expected KEY …"."""

    pattern: str
    form: str

    def holds(self, value: Any) -> bool:
        return isinstance(value, str) and re.fullmatch(self.pattern, value) is not None

    def __str__(self) -> str:
        return self.form

    def plural(self) -> str:
        return f"words {self.form}"


@dataclass(frozen=True)
class PathName(Rule):
    """Text that can name a file or a folder; whether it is there is asked where it is opened."""

    needed: bool = False  # not empty

    def holds(self, value: Any) -> bool:
        if not isinstance(value, str) or "\0" in value:
            return False
        if self.needed and (not value.strip() or "://" in value):  # no URL has the locks and renaming of a run's folder
            return False
        try:
            encoded = os.fsencode(value)
        except UnicodeEncodeError:
            return False
        return len(encoded) < 4096 and all(len(part) <= 255 for part in encoded.split(b"/"))

    def __str__(self) -> str:
        return ("as a path, no URL" if self.needed else "as a path or ''") + " (at most 255 bytes a name, no NUL)"

    def plural(self) -> str:
        return "names or paths"


@dataclass(frozen=True)
class Many(Rule):
    """A list of values of one rule."""

    rule: Rule
    lengths: tuple[int, ...] = ()  # how many are allowed; () for any number from ``least`` on
    least: int = 0
    ascending: bool = False  # each above the one before
    nested: bool = False  # the elements may all be lists of such values

    def holds(self, value: Any) -> bool:
        if not isinstance(value, (list, tuple)) or len(value) < self.least:
            return False
        if self.lengths and len(value) not in self.lengths:
            return False
        if self.nested and value and all(isinstance(element, (list, tuple)) for element in value):
            return all(element and all(map(self.rule.holds, element)) for element in value)
        if not all(map(self.rule.holds, value)):
            return False
        return not self.ascending or all(low < high for low, high in itertools.pairwise(value))

    def _what(self) -> str:
        count = " or ".join(map(str, self.lengths)) or ("one or more" if self.least == 1 else str(self.least or ""))
        order = "ascending" if self.ascending else ""
        return " ".join(word for word in (count, order, self.rule.plural()) if word)

    def __str__(self) -> str:
        return f"as a list{', or lists,' if self.nested else ''} of {self._what()}"

    def plural(self) -> str:
        return f"lists of {self._what()}"


COUNT = Number(1, whole=True)
COUNT_OR_NONE = Number(0, whole=True)
SEED = Number(0, 2**31 - 1, whole=True)
POSITIVE = Number(0, above=True)
NOT_NEGATIVE = Number(0)
#: From nothing to all, and a part that is not empty.
UNIT = Number(0, 1)
FRACTION = Number(0, 1, above=True)
MOMENTUM = Momentum()
SWITCH = Switch()
ARCHITECTURE = ArchitectureName()
ANY_PATH, PATH = PathName(), PathName(needed=True)
#: Which of them are there is asked by ``devices.check_device``.
BACKEND = Choice(("pillow", "opencv"))
DEVICE = Words(r"auto|cpu|cuda(:\d+)?", "of auto, cuda, cuda:N, cpu")
#: Which part of a backbone is trained (``backbones.trainable.train_only``).
TRAINABLE = Words(r"all|frozen|last-[1-9]\d?|norms|lora(-[1-9]\d{0,2})?", "of all, frozen, last-K, norms, lora, lora-R")

#: What a setting decides: no number at all, the scores only, or what is trained (and so the scores).
NOTHING, SCORES, TRAINING = "nothing", "scores", "training"


@dataclass(frozen=True)
class Setting:
    """A row of a room's table."""

    key: str  # dotted, as in YAML
    default: Any
    rule: Rule  # what the value may be, with its unit
    meaning: str = ""  # a few words for the documentation
    decides: str = TRAINING  # NOTHING, SCORES or TRAINING; what decides nothing belongs to no identity

    def __str__(self) -> str:
        return f"{self.key} = {self.default!r}  ({self.rule})" + (f": {self.meaning}" if self.meaning else "")

    def require(self, value: Any) -> None:
        """Raise InputError, which names the key, unless the value is allowed."""
        self.rule.require(self.key, value)


def table(*settings: Setting, free: Sequence[str] = ()) -> dict[str, Setting]:
    """The settings by key; those named as ``free`` decide nothing."""
    by_key = {setting.key: setting for setting in settings}
    if len(by_key) != len(settings):
        raise ValueError("a setting stands twice in the table")
    return by_key | {key: replace(by_key[key], decides=NOTHING) for key in free}


def add_defaults(cfg: CfgNode, settings: Mapping[str, Setting]) -> CfgNode:
    """Set every setting to its default, in place; sections that are missing become nodes of ``cfg``'s own type."""
    for setting in settings.values():
        *sections, name = setting.key.split(".")
        node = cfg
        for section in sections:
            node = node.setdefault(section, type(cfg)())
        node[name] = copy.deepcopy(setting.default)
    return cfg


def check(cfg: CfgNode, settings: Mapping[str, Setting]) -> None:
    """Raise InputError for the first setting whose value is not allowed."""
    for key, setting in settings.items():
        setting.require(value_of(cfg, key))


def refuse(problems: Iterator[str]) -> None:
    """Raise InputError for the first problem, of settings that are allowed one by one and contradict each other."""
    if problem := next(problems, None):
        raise InputError(problem if ";" in problem else f"{problem}; correct the config")
