"""A study's answer: its comparisons by the verdict rule, as a table and plots; a pure function of records and suite.

Each comparison is judged as the report judges two checkpoints (``differences``): trials in pairs where both sides have
them, test items besides where every trial kept them, Holm's correction over all comparisons of the study.
"""

import re
import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import weights_name
from momentum_transfer.report.aggregate import aggregate, trial_of
from momentum_transfer.report.differences import AHEAD, ALPHA, BEHIND, LEVEL, ONE_TRIAL, RESAMPLES, Comparisons
from momentum_transfer.report.figures import Plot
from momentum_transfer.report.plots import Gain, gain_plot
from momentum_transfer.report.sweeps import Point, setting_plot
from momentum_transfer.suites.study import Difference, Lines, Selection, Study
from momentum_transfer.suites.sweep import VARIANT
from momentum_transfer.verdicts.comparison import Comparison
from momentum_transfer.verdicts.ranking import holm

Record = Mapping[str, Any]
COLUMNS = ("comparison", "first", "second", "difference [95 %]", "p (Holm)", "rule", "expected")


@dataclass(frozen=True)
class Answer:
    """One comparison: values by what pairs them, and the verdict; nothing where scores are still missing."""

    asked: Difference
    first: Mapping[Hashable, float]
    second: Mapping[Hashable, float]
    found: Comparison | None = None
    p: float | None = None
    word: str = "no scores yet"

    def cells(self) -> tuple[str, ...]:
        """A row of the table."""
        change = "–"
        if self.found is not None:
            found = self.found
            interval = "" if found.low is None else f" [{_signed(found.low)}, {_signed(found.high or 0.0)}]"
            change = f"{_signed(found.value)}{interval}"
        p = "–" if self.p is None else f"{self.p:.2g}"
        return (self.asked.name, _spread(self.first), _spread(self.second), change, p, self.word, self.asked.expected)


def answers(
    study: Study, records: Sequence[Record], runs: Mapping[str, Any], resamples: int = RESAMPLES
) -> list[Answer]:
    """Every comparison of the study, judged together.

    Args:
        records: of the suite, as ``page.read_records`` gives them. runs: checkpoint -> variant, settings, seed of the
            suite's pretrainings.

    Raises:
        InputError: a selection means several scores at once.
    """
    made = [_answer(asked, records, runs, resamples) for asked in study.compare]
    judged = [answer for answer in made if answer.found is not None and answer.found.p is not None]
    adjusted = dict(
        zip(map(id, judged), holm([answer.found.p or 0.0 for answer in judged if answer.found]), strict=True)
    )
    return [_worded(answer, adjusted.get(id(answer))) for answer in made]


def _worded(answer: Answer, p: float | None) -> Answer:
    if answer.found is None or p is None:
        return answer if answer.found is None else replace(answer, word=ONE_TRIAL)
    told = p <= ALPHA and answer.found.value != 0
    word = (AHEAD if answer.found.value > 0 else BEHIND) if told else LEVEL
    return replace(answer, p=p, word=word)


def _answer(asked: Difference, records: Sequence[Record], runs: Mapping[str, Any], resamples: int) -> Answer:
    first, second = (_selected(records, runs, side, f"comparison {asked.name}") for side in asked.sides())
    made = Answer(asked, _means(first), _means(second))
    if not first or not second:
        return made
    common = [key for key in first if key in second]
    keys = common if len(common) > 1 else list(dict.fromkeys([*first, *second]))  # unpaired where nothing pairs
    whole = all(
        len(side[key]) == 1 and "items" in side[key][0] for side in (first, second) for key in keys if key in side
    )
    relabelled = [
        _relabelled(name, place, side[key], whole)
        for name, side in (("first", first), ("second", second))
        for place, key in enumerate(keys)
        if key in side
    ]
    results = aggregate(relabelled)
    measure = next(iter(results.cells))
    return replace(made, found=Comparisons(results, resamples).of(measure, "first", "second"))


def _means(side: Mapping[Hashable, Sequence[Record]]) -> dict[Hashable, float]:
    return {key: statistics.fmean(record["value"] for record in found) for key, found in side.items()}


def _relabelled(name: str, place: int, found: Sequence[Record], whole: bool) -> dict[str, Any]:
    """A record of one side of a comparison, so that the report's rule applies to variants as to checkpoints."""
    made = {
        "task": "study",
        "metric": found[0]["metric"] if whole else "value",
        "value": statistics.fmean(record["value"] for record in found),
        "trial": place,
        "seed": place,
        "checkpoint": {"name": name, "sha256": ""},
    }
    return {**made, "items": found[0]["items"]} if whole else made


def _selected(
    records: Sequence[Record], runs: Mapping[str, Any], selection: Selection, where: str
) -> dict[Hashable, list[Record]]:
    """The selection's records by what pairs them, the newest of each trial."""
    task, metric = selection["y"].split()
    chosen: dict[Hashable, dict[int, Record]] = {}
    kinds: dict[Hashable, tuple[str, ...]] = {}
    for record in records:
        name = weights_name(str(record["checkpoint"].get("name", "")))
        if (record["task"], record["metric"]) != (task, metric) or record["value"] is None:
            continue
        key = _key(record, name, runs, selection)
        if key is None:
            continue
        trial = trial_of(record)
        kind = (name, *(str(record.get(word) or "") for word in ("protocol", "dataset", "network")))
        if kinds.setdefault(key, kind) != kind:
            raise InputError(
                f"expected one score a seed or trial for {where}, found {' '.join(filter(None, kinds[key]))} and "
                f"{' '.join(filter(None, kind))}; say more in the selection: protocol, network, checkpoint, a setting"
            )
        newest = chosen.setdefault(key, {}).get(trial)
        if newest is None or str(record.get("time", "")) >= str(newest.get("time", "")):
            chosen[key][trial] = record
    return {key: list(trials.values()) for key, trials in sorted(chosen.items(), key=lambda item: str(item[0]))}


def _key(record: Record, name: str, runs: Mapping[str, Any], selection: Selection) -> Hashable | None:
    """What pairs the record with others: a seed, what stands for the star, or the trial; None where it is not meant."""
    run = runs.get(name)
    star = None
    for word, value in selection.items():
        if word == "y":
            continue
        if word == "checkpoint":
            star = re.fullmatch("(.*)".join(map(re.escape, value.split("*"))), name)
            if star is None:
                return None
        elif word in ("protocol", "dataset", "network"):
            if str(record.get(word) or "") != value:
                return None
        elif run is None or (run["variant"] if word == VARIANT else run["settings"].get(word)) != value:
            return None
    if star is not None and star.groups():
        return star[1]
    return run["seed"] if run is not None else trial_of(record)


def table_markdown(found: Sequence[Answer]) -> str:
    """The table as Markdown."""
    lines = [COLUMNS, ("---",) * len(COLUMNS), *(answer.cells() for answer in found)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def difference_figure(found: Sequence[Answer], title: str) -> Plot:
    """All differences with their intervals."""
    rows: dict[str, dict[str, Gain]] = {
        answer.asked.name: {
            "difference": (answer.found.value, answer.found.low, answer.found.high, answer.word in (AHEAD, BEHIND))
        }
        for answer in found
        if answer.found is not None
    }
    if not rows:
        return Plot(title, "Not drawn: there are no scores yet.", "")
    caption = "Difference in points with its 95 % interval; filled where the rule tells it from 0."
    return Plot(title, caption, gain_plot(rows, {"difference": 0}))


def line_figure(lines: Lines, records: Sequence[Record], runs: Mapping[str, Any]) -> Plot:
    """One plot of ``study.lines``; points without scores are left out.

    Raises:
        InputError: as ``answers``.
    """
    drawn: dict[str, list[Point]] = {}
    for label in lines.of:
        for x in lines.x:
            side = _selected(records, runs, lines.at(label, x), f"plot {lines.title}")
            values = [statistics.fmean(record["value"] for record in same) for same in side.values()]
            if values:
                std = statistics.stdev(values) if len(values) > 1 else None
                drawn.setdefault(label, []).append(Point(float(x), statistics.fmean(values), std))
    if not drawn:
        return Plot(lines.title, "Not drawn: there are no scores yet.", "")
    caption = f"{lines.label} over {lines.axis}; bands are ±1 standard deviation over seeds."
    return Plot(lines.title, caption, setting_plot(drawn, lines.axis, lines.label, None, lines.log))


def _spread(values: Mapping[Hashable, float]) -> str:
    """Mean ± standard deviation and number."""
    if not values:
        return "–"
    deviation = f" ± {_digits(statistics.stdev(values.values()))}" if len(values) > 1 else ""
    return f"{_digits(statistics.fmean(values.values()))}{deviation} (n {len(values)})"


def _digits(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def _signed(value: float) -> str:
    return f"{'−' if value < 0 else '+'}{_digits(abs(value))}"
