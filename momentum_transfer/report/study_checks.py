"""What a study said must hold for a verdict, found in its runs, and the slopes that it describes."""

import math
import re
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from momentum_transfer.report.read_inputs import Curve
from momentum_transfer.suites.study_entry import Check, Order, Selection, Study, Trend
from momentum_transfer.verdicts.comparison import compare
from momentum_transfer.verdicts.ranking import FEWEST_CHECKPOINTS, agreement

#: A selection's value by what pairs it; the second argument says for what it is.
Selected = Callable[[Selection, str], Mapping[Hashable, float]]


@dataclass(frozen=True)
class Checked:
    """A check's result: ``failed`` runs are no samples; ``stops`` where no verdict of the study holds."""

    check: Check
    text: str
    failed: tuple[str, ...] = ()
    stops: bool = False


def checked(study: Study, names: Sequence[str], curves: Sequence[Curve], values: Selected) -> list[Checked]:
    """Every check of the study; a run or measure that is missing fails.

    Args:
        names: of the pretrainings that have records. curves: of their metrics.jsonl.
    """
    return [_curve(one, names, curves) if one.curve else _measure(one, values) for one in study.checks]


def _curve(check: Check, names: Sequence[str], curves: Sequence[Curve]) -> Checked:
    found = {curve.checkpoint: _at(curve, check.step) for curve in curves if curve.key == check.curve}
    runs = {name: name if name in found else re.sub(r"_epoch[\w.+-]+$", "", name) for name in names}  # of exports
    at = {name: found.get(run, math.nan) for name, run in runs.items()}
    failed = tuple(name for name, value in at.items() if not check.holds(value))
    listed = ", ".join(f"{name} ({'not there' if math.isnan(at[name]) else f'{at[name]:.3g}'})" for name in failed)
    says = f"{check.curve} {_bounds(check)} at {f'step {check.step}' if check.step else 'the end'}"
    held = f"{len(at) - len(failed)} of {len(at)} runs" + (f"; no samples: {listed}" if failed else "")
    return Checked(check, f"{check.name} ({says}): {held}", failed)


def _at(curve: Curve, step: int) -> float:
    """The curve's value at the first line from ``step`` on, of step 0 the last; NaN where it ends before."""
    if not step:
        return curve.values[-1]
    return next((value for at, value in zip(curve.steps, curve.values, strict=True) if at >= step), math.nan)


def _measure(check: Check, values: Selected) -> Checked:
    sides = [values(side, f"check {check.name}") for side in check.sides()]
    says = f"{check.sides()[0]['y']}{', first over second,' if len(sides) > 1 else ''} {_bounds(check)}"
    if not all(sides):
        return Checked(check, f"{check.name} ({says}): not measured", stops=True)
    means = [statistics.fmean(side.values()) for side in sides]
    value = means[0] if len(means) == 1 else means[0] / means[1] if means[1] else math.nan
    holds = check.holds(value)
    return Checked(check, f"{check.name} ({says}): {value:.3g}, {'holds' if holds else 'FAILED'}", stops=not holds)


def _bounds(check: Check) -> str:
    above, below = check.above > -math.inf, check.below < math.inf
    return " and ".join([f"above {check.above:g}"] * above + [f"below {check.below:g}"] * below)


def trend(asked: Trend, values: Selected) -> str:
    """The mean over seeds of each one's least-squares slope, with its 95 % t interval, in words."""
    points = [[values(side, f"trend {asked.name}") for side in asked.at(x)] for x in asked.x]
    seeds = set.intersection(*({*first} & {*second} for first, second in points))
    said = f"; expected: {asked.expected}" if asked.expected else ""
    if len(seeds) < 2:
        return (
            f"{asked.name}: {len(seeds)} seed(s) with all of {', '.join(f'{x:g}' for x in asked.x)}, no slope yet{said}"
        )
    x = np.log2(asked.x) if asked.log else np.array(asked.x, dtype=float)
    slopes = {
        place: float(np.polyfit(x, [first[seed] - second[seed] for first, second in points], 1)[0])
        for place, seed in enumerate(sorted(seeds, key=str))
    }
    found = compare(slopes, dict.fromkeys(slopes, 0.0))
    interval = f"[{found.low:+.2f}, {found.high:+.2f}]" if found.low is not None else ""
    over = "a doubling" if asked.log else "a unit"
    return f"{asked.name}: slope {found.value:+.2f} {interval} points {over}, {len(slopes)} seeds (descriptive){said}"


def order(asked: Order, values: Selected) -> list[str]:
    """Kendall's τ of every measure with y over the checkpoints that have both, the largest first, in words.

    Intervals are of resampled checkpoints (`verdicts.ranking.agreement`).
    """
    target, *measures = (values(side, f"order {asked.name}") for side in asked.sides())
    lines: list[tuple[float, str]] = []
    for name, own in zip(asked.of, measures, strict=True):
        both = [one for one in target if one in own]
        if len(both) < FEWEST_CHECKPOINTS or len({own[one] for one in both}) < 2:
            lines.append((-2.0, f"{asked.name}: {name}: {len(both)} checkpoints with unlike values, no order yet"))
            continue
        found = agreement(np.array([own[one] for one in both]), np.array([target[one] for one in both]))
        low, high = found.tau_interval
        word = "of use" if low > asked.least else "of no use" if high < asked.least else "not shown to be of use"
        lines.append((found.tau, f"{asked.name}: {name}: τ {found.tau:+.2f} [{low:+.2f}, {high:+.2f}], "
                                 f"{found.n} checkpoints, {word} (least {asked.least:g})"))  # fmt: skip
    said = [f"{asked.name}: expected: {asked.expected}"] if asked.expected else []
    return [line for _, line in sorted(lines, key=lambda line: -line[0])] + said
