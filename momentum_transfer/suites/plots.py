"""Plots that a suite asks for: a measure over a setting of its pretrainings, or one measure over another.

    plots:
      - {title: "Images per BN", y: svm/k=16 top1, x: NORM.GROUP, by: NORM.TEACHER, log: true}
      - {title: "Linear and long-tailed accuracy", y: finetune top1, x: linear top1, by: METHOD.NAME}
      - {title: "kNN while training", curve: knn_top1, by: arm}

``y`` and ``x`` name a measure as ``TASK METRIC``, or ``TASK METRIC @ PLACE`` where several data sets or protocols have
it: PLACE is the name of one. ``x`` and ``by`` name a setting of the sweep, or ``arm``. ``curve`` is a key of the runs'
metrics.jsonl over ``x``: step or seconds. A measure over another gets a regression line for each ``by``.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from momentum_transfer.core.errors import InputError
from momentum_transfer.suites.schema import checked

#: Stands for the name of an arm where a setting could stand.
ARM = "arm"
_SETTING = re.compile(r"[A-Z][A-Z0-9_]*(\.[A-Z0-9_]+)*")
#: What a curve is over.
AXES = ("step", "seconds")


class PlotRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One plot.

    Attributes:
        y, x: ``TASK METRIC`` of the records; x may be a setting or ``arm``, and is "step" or "seconds" for a curve.
        by: the setting (or ``arm``) that tells lines apart; "" for a single line.
        curve: key of metrics.jsonl, in the place of y.
        log: the axis of a setting is logarithmic.
    """

    title: str
    y: str = ""
    x: str = ""
    by: str = ""
    curve: str = ""
    log: bool = False

    def as_dict(self) -> dict[str, Any]:
        """What ``suite.json`` keeps for the report."""
        return msgspec.structs.asdict(self)


def is_setting(word: str) -> bool:
    """Whether a word names a setting (or the arm) rather than a measure."""
    return word == ARM or bool(_SETTING.fullmatch(word))


def read_plots(entries: list[Any], where: str, known: Mapping[str, Any]) -> tuple[PlotRequest, ...]:
    """The plots of a suite, checked.

    Args:
        known: settings that tell the suite's pretrainings apart; empty without any.

    Raises:
        InputError: an unknown key or setting, a measure without metric, or neither y nor curve.
    """
    return tuple(_read(entry, f"{where}, plot {number}", known) for number, entry in enumerate(entries, start=1))


def _read(entry: Any, where: str, known: Mapping[str, Any]) -> PlotRequest:
    plot = checked(entry, PlotRequest, where)
    if bool(plot.y) == bool(plot.curve):
        raise InputError(f"{where}: expected either y, a measure, or curve, a key of metrics.jsonl")
    if plot.curve and plot.x not in ("", *AXES):
        raise InputError(f"{where}: expected x of a curve as {' or '.join(AXES)}, found {plot.x!r}")
    if not plot.curve:
        _check_measure(plot.y, "y", where)
        if not is_setting(plot.x):
            _check_measure(plot.x, "x", where)
    for key in ("x", "by"):
        word = getattr(plot, key)
        if is_setting(word) and word != ARM and word not in known:
            raise InputError(
                f"{where}: expected {key} as arm or a setting that tells the pretrainings apart "
                f"({', '.join(known) or 'the suite has none'}), found {word!r}"
            )
    return plot


def _check_measure(word: str, key: str, where: str) -> None:
    measure, _, dataset = word.partition("@")
    if len(measure.split()) != 2 or ("@" in word and not dataset.strip()):
        raise InputError(
            f"{where}: expected {key} as TASK METRIC [@ DATASET or PROTOCOL], such as svm/k=16 top1, found {word!r}"
        )
