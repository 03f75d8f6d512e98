"""A study's answer: its comparisons by the verdict rule, as a table and plots.

Trials are paired where both sides have them, test items count besides where every trial kept them, and the correction
is over the study's primary comparisons (all, where none is marked). The others are descriptive. A primary has no
verdict before all its seeds ran, nor where a check of the study takes too many of them out.
"""

import re
import statistics
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from momentum_transfer.core.errors import InputError
from momentum_transfer.report.aggregate import DESCRIPTIVE, Record, aggregate, checkpoint_of, current_trials, trial_of
from momentum_transfer.report.differences import Comparisons
from momentum_transfer.report.figures import Plot
from momentum_transfer.report.page import markdown_row
from momentum_transfer.report.plots import Gain, gain_plot
from momentum_transfer.report.read_inputs import Curve
from momentum_transfer.report.study_checks import Checked, checked, order, trend
from momentum_transfer.report.sweeps import Point, setting_plot
from momentum_transfer.suites.study_entry import Difference, Lines, Selection, Study
from momentum_transfer.suites.sweep import VARIANT
from momentum_transfer.verdicts.comparison import Comparison
from momentum_transfer.verdicts.corrections import BETTER, WORSE, verdicts
from momentum_transfer.verdicts.corrections import word as for_readers

COLUMNS = ("comparison", "first", "second", "difference [95 %]", "p (corrected)", "rule", "expected")
#: The sentence *In short* has no more comparisons than these one by one.
_SPELT_OUT = 6


@dataclass(frozen=True)
class Answer:
    """One comparison: values by what pairs them, and the verdict; nothing where scores are still missing.

    ``pretrainings``: of its two sides' checkpoints that are compared, the fewer. ``notices``: what its interval leaves
    out, and why.
    """

    asked: Difference
    first: Mapping[Hashable, float]
    second: Mapping[Hashable, float]
    found: Comparison | None = None
    p: float | None = None
    word: str = "no scores yet"
    pretrainings: int = 1
    notices: tuple[str, ...] = ()

    def cells(self) -> tuple[str, ...]:
        """A row of the table."""
        change = "–"
        if self.found is not None:
            change = _signed(self.found.value)
            if self.found.low is not None:
                change += f" [{_signed(self.found.low)}, {_signed(self.found.high or 0.0)}]"
        p = "–" if self.p is None else f"{self.p:.2g}"
        said = for_readers(self.word, self.found)
        if self.asked.sides()[0]["y"].split()[1] in DESCRIPTIVE:  # more is not better
            said = {BETTER: "higher", WORSE: "lower"}.get(said, said)
        return (self.asked.name, _spread(self.first), _spread(self.second), change, p, said, self.asked.expected)


@dataclass(frozen=True)
class Scores:
    """What a study reads: ``records`` as ``read_records`` gives them, ``runs`` (checkpoint to variant, settings and
    seed of a pretraining), and the ``curves`` of these.
    """

    records: Sequence[Record]
    runs: Mapping[str, Any]
    curves: Sequence[Curve] = ()

    def by_key(self, selection: Selection, where: str) -> dict[Hashable, list[Record]]:
        """The selection's ``current_trials`` by what pairs them; InputError if it means several scores."""
        task, metric = selection["y"].split()
        chosen: dict[Hashable, list[Record]] = {}
        kinds: dict[Hashable, str] = {}
        for record in self.records:
            name = checkpoint_of(record)
            if (record["task"], record["metric"]) != (task, metric) or record["value"] is None:
                continue
            if (key := _key(record, name, self.runs, selection)) is None:
                continue
            kind = " ".join(
                [name, *(str(record.get(word) or "") for word in ("protocol", "dataset", "network"))]
            ).strip()
            if kinds.setdefault(key, kind) != kind:
                raise InputError(f"expected one score a seed or trial for {where}, found {kinds[key]} and {kind}; say "
                                 "more in the selection: protocol, network, checkpoint, a setting")  # fmt: skip
            chosen.setdefault(key, []).append(record)
        return {key: current_trials(same) for key, same in sorted(chosen.items(), key=lambda item: str(item[0]))}

    def values(self, selection: Selection, where: str) -> dict[Hashable, float]:
        """The selection's means by what pairs them."""
        return {key: _mean(same) for key, same in self.by_key(selection, where).items()}

    def checked(self, study: Study) -> tuple[list[Checked], "Scores"]:
        """The study's checks, and the scores of the runs that they leave."""
        names = dict.fromkeys(name for name in map(checkpoint_of, self.records) if name in self.runs)
        checks = checked(study, list(names), self.curves, self.values)
        failed = {name for one in checks for name in one.failed}
        return checks, replace(self, records=[one for one in self.records if checkpoint_of(one) not in failed])


def answers(study: Study, scores: Scores) -> list[Answer]:
    """Every comparison of the study; InputError if a selection means several scores."""
    checks, left = scores.checked(study)
    primaries = study.primaries()
    found = [_answer(asked, left) for asked in study.compare]
    why = {n: _unready(study, one, scores, checks) for n, one in enumerate(found) if one.asked in primaries}
    tested = {n: found[n].found for n, reason in why.items() if not reason and found[n].found is not None}
    if study.seeds:  # a primary that is still to come, or stopped, stays in the correction
        tested |= {n: Comparison(0.0, (0, 0), p=1.0) for n in why if n not in tested}
    margins = {n: margin for n in tested if (margin := found[n].asked.margin) is not None}
    words = verdicts(tested, margins)
    for n, one in enumerate(found):
        if n in words and not why[n]:
            found[n] = replace(one, word=words[n][0], p=words[n][1])
        elif n in why:
            found[n] = replace(one, word=why[n] or one.word)
        elif one.found is not None:
            found[n] = replace(one, word="descriptive")
    return found


def _unready(study: Study, one: Answer, scores: Scores, checks: Sequence[Checked]) -> str:
    """Why a primary has no verdict: its seeds have not all run, or a check stops it; "" where it may have one."""
    if stopping := [check.check.name for check in checks if check.stops]:
        return f"stopped: {', '.join(stopping)}"
    ran = set.intersection(*(set(scores.by_key(side, one.asked.name)) for side in one.asked.sides()))
    if len(ran) < study.seeds:
        return f"no verdict: {len(ran)} of {study.seeds} seeds ran"
    left = len({*one.first} & {*one.second})
    short = [check.check.name for check in checks if check.failed and left < (check.check.least or study.seeds)]
    return f"stopped: {', '.join(short)} ({left} of {study.seeds} pairs left)" if short else ""


def notes(study: Study, scores: Scores) -> list[str]:
    """What was checked, and the slopes, a line each."""
    checks, left = scores.checked(study)
    orders = (line for one in study.orders for line in order(one, left.values))
    return [*(f"Check: {one.text}." for one in checks), *(f"{trend(one, left.values)}." for one in study.trends),
            *(f"{line}." for line in orders)]  # fmt: skip


def _answer(asked: Difference, scores: Scores) -> Answer:
    first, second = (scores.by_key(side, f"comparison {asked.name}") for side in asked.sides())
    means = [{key: _mean(same) for key, same in side.items()} for side in (first, second)]
    answer = Answer(asked, means[0], means[1])
    if not first or not second:
        return answer
    common = [key for key in first if key in second]
    keys = common if len(common) > 1 else list(dict.fromkeys([*first, *second]))  # unpaired where nothing pairs
    sides = [(name, place, side[key]) for name, side in (("first", first), ("second", second))
             for place, key in enumerate(keys) if key in side]  # fmt: skip
    whole = all(len(same) == 1 and "items" in same[0] for _, _, same in sides)
    comparisons = Comparisons(aggregate([_relabelled(*side, whole) for side in sides]))
    found = comparisons.of(next(iter(comparisons.results.cells)), "first", "second")
    compared = [{key: side[key] for key in keys if key in side} for side in means]
    names = [{checkpoint_of(side[key][0]) for key in keys if key in side} for side in (first, second)]
    return replace(answer, first=compared[0], second=compared[1], found=found, pretrainings=min(map(len, names)),
                   notices=tuple(comparisons.notices))  # fmt: skip


def _mean(same: Sequence[Record]) -> float:
    return statistics.fmean(record["value"] for record in same)


def _relabelled(name: str, place: int, same: Sequence[Record], whole: bool) -> dict[str, Any]:
    """A record of one side of a comparison, so that the report's rule applies to variants as to checkpoints."""
    record = {"task": "study", "metric": same[0]["metric"] if whole else "value", "value": _mean(same), "trial": place,
              "seed": place, "checkpoint": {"name": name, "sha256": ""}}  # fmt: skip
    return {**record, "items": same[0]["items"]} if whole else record


def _key(record: Record, name: str, runs: Mapping[str, Any], selection: Selection) -> Hashable | None:
    """What pairs the record with others: a seed, what stands for the star, or the trial; None if it is not selected."""
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
    return run["seed"] if run is not None else ("trial", trial_of(record))


def table_markdown(found: Sequence[Answer], said: Sequence[str] = ()) -> str:
    """The table as Markdown, and below it what ``notes`` says."""
    rows = [COLUMNS, ("---",) * len(COLUMNS), *(answer.cells() for answer in found)]
    lines = [*map(markdown_row, rows), "", subjects(found), *(f"- {one}" for one in said)]
    return "\n".join(lines) + "\n"


def in_short(study: Study, found: Sequence[Answer]) -> str:
    """The sentence of the page: every primary's difference, its interval and word, or why there is none.

    Of more than six the words are counted: the table has the rest.
    """
    primaries = [one for one in found if one.asked in study.primaries()]
    if len(primaries) > _SPELT_OUT:
        words = Counter(one.cells()[5].partition(" (")[0] for one in primaries)  # without what would have been seen
        counted = ", ".join(f"{count} {word}" for word, count in words.most_common())
        return f"In short: of {len(primaries)} comparisons {counted}."
    parts = []
    for one in primaries:
        name, _, _, change, _, said, _ = one.cells()
        parts.append(f"{name}: {f'{change} points, ' if one.found is not None else ''}{said}")
    return f"In short: {'; '.join(parts)}." if parts else "In short: nothing is primary, all is descriptive."


def subjects(found: Sequence[Answer]) -> str:
    """What the verdicts are about; one pretraining a side never reads as a method."""
    counts = [one.pretrainings for one in found if one.found is not None]
    methods = sorted({count for count in counts if count > 1})
    numbers = " to ".join(map(str, dict.fromkeys((*methods[:1], *methods[-1:]))))
    parts = [f"methods, {numbers} pretrainings"] if methods else []
    parts += [f"these checkpoints as they are ({counts.count(1)} of {len(counts)})"] if 1 in counts else []
    said = f"Verdicts are about {' and '.join(parts)}." if parts else "No verdicts yet."
    old = any(re.search(r"\b(ahead|behind)\b", one.asked.expected) for one in found)
    return said + " What was expected is quoted as it was committed: ahead is better, behind is worse." * old


def difference_figure(found: Sequence[Answer], title: str) -> Plot:
    """All differences with their intervals."""
    rows: dict[str, dict[str, Gain]] = {
        one.asked.name: {"difference": (one.found.value, one.found.low, one.found.high, one.word in (BETTER, WORSE))}
        for one in found
        if one.found is not None
    }
    if not rows:
        return Plot(title, "Not drawn: there are no scores yet.", "")
    caption = "Difference in points with its 95 % interval; filled where it is significant."
    return Plot(title, caption, gain_plot(rows, {"difference": 0}))


def line_figure(lines: Lines, scores: Scores) -> Plot:
    """One plot of ``study.lines``; points without scores are left out."""
    points: dict[str, list[Point]] = {}
    for label in lines.of:
        for x in lines.x:
            if values := scores.values(lines.at(label, x), f"plot {lines.title}"):
                points.setdefault(label, []).append(Point.of([float(x)], list(values.values())))
    if not points:
        return Plot(lines.title, "Not drawn: there are no scores yet.", "")
    caption = f"{lines.label} over {lines.axis}; bands are ±1 standard deviation over seeds."
    return Plot(lines.title, caption, setting_plot(points, lines.axis, lines.label, None, lines.log))


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
