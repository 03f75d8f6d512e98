"""Which plots the page has: results, curves and analyses to drawn figures with their captions."""

import itertools
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from momentum_transfer.core.errors import counted
from momentum_transfer.report import analyses, plots
from momentum_transfer.report.aggregate import Measure, Results
from momentum_transfer.report.answers import Pair
from momentum_transfer.report.differences import AHEAD, BEHIND, Comparisons
from momentum_transfer.report.runs import Curve
from momentum_transfer.report.tables import compared, headline_order, one_of_each_family_first, short_labels
from momentum_transfer.report.views import TableView

#: Lines in the slope chart; more would not be told apart. The tables hold them all.
SLOPES = 8

#: Lines of the plot of gains, for the same reason.
GAINS = 24

#: Checkpoints in one plot: the first of those to be judged, and the baselines.
CHECKPOINTS = 8

#: Plots of one kind; each costs time to draw and room on the page.
PLOTS = 12

#: Key of a metrics.jsonl to the heading of its plot and the label of its axis.
_CURVES = {
    "loss": ("Pretraining loss", "loss"),
    "embedding_std": ("Spread of the embedding (0 would be collapse)", "std"),
    "lr": ("Learning rate", "learning rate"),
    "task_loss": ("Training loss", "loss"),
    "knn_top1": ("kNN accuracy while training", "top-1, %"),
    "student_top1": ("Accuracy of the student while training", "top-1, %"),
    "teacher_top1": ("Accuracy of the teacher while training", "top-1, %"),
}

#: Headings of accuracies over shares of the labels.
_SHARES = {"linear": "Linear classification", "finetune": "Fine-tuning", "fixmatch": "FixMatch"}


@dataclass(frozen=True)
class Plot:
    """An inline SVG with its heading and caption; a ``tall`` one has two others beside it."""

    title: str
    caption: str
    svg: str
    tall: bool = False


def summary_figures(
    comparisons: Comparisons, colours: Mapping[str, int], agreements: Sequence[Pair] = ()
) -> list[Plot]:
    """Gains over the first baseline, the slope chart, and accuracies over amounts of labels."""
    results = comparisons.results
    shown = _shown(results)
    return [
        *_gains(comparisons, colours, shown),
        *_slopes(results, colours, shown),
        *_few_labels(results, colours, shown),
        *_agreement(agreements),
    ]


def _shown(results: Results) -> list[str]:
    """The checkpoints that plots show: all of them up to a number, then baselines first and the others in order."""
    if len(results.checkpoints) <= CHECKPOINTS:
        return results.checkpoints
    baselines = [name for name in results.checkpoints if results.kind(name)][: CHECKPOINTS // 2]
    others = [name for name in results.checkpoints if name not in baselines][: CHECKPOINTS - len(baselines)]
    return [name for name in results.checkpoints if name in {*baselines, *others}]


def _left_out(results: Results, shown: Sequence[str]) -> str:
    """A sentence for the caption where not all checkpoints are drawn."""
    total = len(results.checkpoints)
    return "" if len(shown) == total else f" {len(shown)} of {total} checkpoints; the tables have all."


def _gains(comparisons: Comparisons, colours: Mapping[str, int], shown: Sequence[str]) -> list[Plot]:
    results = comparisons.results
    pairs = compared(results)
    if not pairs:
        return []
    base = pairs[0][1]
    names = [name for name, other in pairs if other == base and name in shown]
    common = [
        measure
        for measure in headline_order(results)
        if base in results.cells[measure] and any(name in results.cells[measure] for name in names)
    ]
    kept = set(one_of_each_family_first(common)[:GAINS])
    rows: dict[str, dict[str, plots.Gain]] = {}
    words = {name: comparisons.words(name, base) for name in names}
    for measure, label in short_labels([measure for measure in common if measure in kept]).items():
        changes = {name: change for name in names if (change := comparisons.of(measure, name, base))}
        if changes:
            rows[label] = {
                name: (change.value, change.low, change.high, words[name].get(measure) in (AHEAD, BEHIND))
                for name, change in changes.items()
            }
    if not rows:
        return []
    more = f" {len(rows)} of {len(common)} measures." if len(rows) < len(common) else ""
    more += _left_out(results, shown)
    who = f"{names[0]} − {base}" if len(names) == 1 else f"each minus {base}"
    caption = (
        f"{who}, in points; right of the line pretraining helps. Filled: ahead or behind by the rule; whiskers are 95 "
        f"% intervals over trials and test images, none where there is one trial and nothing to resample.{more}"
    )
    return [Plot(f"What is gained over {base}", caption, plots.gain_plot(rows, colours), tall=True)]


def _slopes(results: Results, colours: Mapping[str, int], shown: Sequence[str]) -> list[Plot]:
    measures = [m for m in headline_order(results) if sum(name in results.cells[m] for name in shown) > 1]
    chosen = one_of_each_family_first(measures)[:SLOPES]
    rows = {
        label: {name: (cell.mean, cell.std) for name, cell in results.cells[measure].items() if name in shown}
        for measure, label in short_labels(chosen).items()
    }
    order = [name for name in reversed(shown) if any(name in cells for cells in rows.values())]
    if len(order) < 2:
        return []
    more = f" {len(chosen)} of {len(measures)} measures." if len(measures) > len(chosen) else ""
    more += _left_out(results, shown)
    caption = (
        "One line a task, from the baselines to the pretrained weights; whiskers are ±1 standard deviation over "
        f"trials.{more}"
    )
    return [Plot("From baseline to pretrained", caption, plots.slope_plot(order, rows, colours, caption))]


def _few_labels(results: Results, colours: Mapping[str, int], shown: Sequence[str]) -> list[Plot]:
    """One plot for every (family, dataset, protocol) with at least two amounts of labels, up to a number of plots."""
    groups: dict[tuple[str, str, str], dict[Measure, float]] = defaultdict(dict)
    for measure in results.headlines():
        family = measure.task.split("/")[0]
        amount = _amount(measure.task)
        if amount is not None:
            groups[family, measure.dataset, measure.protocol][measure] = amount
    drawn = []
    curves = {place: amounts for place, amounts in groups.items() if len(set(amounts.values())) > 1}
    for (family, dataset, protocol), amounts in itertools.islice(curves.items(), PLOTS):
        lines: dict[str, list[tuple[float, float, float | None]]] = {}
        for name in shown:
            cells = {measure: results.cells[measure].get(name) for measure in amounts}
            points = [(amounts[m], cell.mean, cell.std) for m, cell in cells.items() if cell is not None]
            if points:
                lines[name] = points
        if not lines:
            continue
        where = " · ".join(part for part in (dataset, protocol) if part)
        repeats, more = _repeats(results, amounts), _left_out(results, shown)
        if family == "svm":
            caption = f"{where}: mean over {repeats} of k images per class; bands are ±1 standard deviation over draws."
            caption += more
            svg = plots.few_labels_plot(lines, colours, "labelled images per class (k)")
            drawn.append(Plot("Low-shot curve", caption, svg))
        else:
            caption = f"{where}: mean over {repeats} of labelled images; bands are ±1 standard deviation over them."
            caption += more
            svg = plots.few_labels_plot(lines, colours, "share of the labels, %")
            drawn.append(Plot(f"{_SHARES[family]} with few labels", caption, svg))
    return drawn


def _agreement(made: Sequence[Pair]) -> list[Plot]:
    """Rank correlations of pairs of measures, where there are enough checkpoints."""
    if not made:
        return []
    rows = {f"{pair.first} → {pair.second}": (pair.found.tau, *pair.found.tau_interval) for pair in made[:GAINS]}
    more = f" {len(rows)} of {len(made)} pairs." if len(rows) < len(made) else ""
    caption = (
        "Kendall's τ_b of two measures over checkpoints: 1 where both order them alike, 0 where one says nothing of "
        "the other. Pairs of a cheap and a costly measure first; whiskers are 95 % intervals over the "
        f"{made[0].found.n} checkpoints.{more}"
    )
    return [Plot("Which measure predicts which", caption, plots.agreement_plot(rows))]


def _amount(task: str) -> float | None:
    """Images per class of ``svm/k=4``; percent of the labels of ``linear/10%`` (``linear`` is all of them)."""
    family, _, part = task.partition("/")
    if family == "svm" and part.startswith("k="):
        number = part[2:]
    elif family in _SHARES:
        number = part.removesuffix("%") if part else "100"
    else:
        return None
    amount = float(number) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]+)?", number) else 0.0
    return amount or None


def _repeats(results: Results, measures: Mapping[Measure, float]) -> str:
    """``5 draws``, or ``3 to 5 draws`` where the points of a curve have other numbers of them."""
    counts = {cell.trials for measure in measures for cell in results.cells[measure].values()}
    low, high = min(counts), max(counts)
    return counted(low, "draw") if low == high else f"{low} to {high} draws"


def training_figures(curves: Sequence[Curve], colours: Mapping[str, int]) -> list[Plot]:
    """Curves of one kind in one plot: those of pretraining, and one plot for every task that trains."""
    drawn = []
    for key, (title, label) in _CURVES.items():
        places: dict[str, list[Curve]] = defaultdict(list)
        for curve in curves:
            if curve.key == key:
                places["/".join(curve.run.split("/")[1:2])].append(curve)
        for place, same in itertools.islice(places.items(), PLOTS):
            heading = f"{title}: {place}" if place else title
            caption = ", ".join(f"{name} ends at {ends}" for name, ends in _ends(same).items())
            svg = plots.curve_plot(same, _colours_of(same, colours), f"{key}-{place}", label)
            drawn.append(Plot(heading, caption, svg))
    return drawn


def _ends(curves: Sequence[Curve]) -> dict[str, str]:
    """Checkpoint to the last values of its curves, one for each trial."""
    ends: dict[str, list[str]] = defaultdict(list)
    for curve in curves:
        ends[curve.checkpoint].append(f"{curve.values[-1]:.4g}")
    return {name: ", ".join(values) for name, values in ends.items()}


def _colours_of(curves: Sequence[Curve], colours: Mapping[str, int]) -> list[int]:
    """The checkpoint's colour where a run is called like one; the others take what is left."""
    known = {curve.checkpoint: colours.get(curve.checkpoint) for curve in curves}
    free = (number for number in range(len(colours) + len(curves)) if number not in known.values())
    chosen = {name: number if number is not None else next(free) for name, number in known.items()}
    return [chosen[curve.checkpoint] for curve in curves]


def analysis_figures(records: Sequence[Mapping[str, Any]]) -> tuple[list[Plot], list[TableView]]:
    """Plots and tables of CKA and weight norms, where there are such records."""
    cka, norms = analyses.cka_lines(records), analyses.norm_lines(records)
    drawn, tables = [], []
    if cka:
        drawn.append(Plot("CKA by stage", "Linear CKA on the same images, in percent.", plots.line_plot(cka, "CKA, %")))
        tables.append(analyses.cka_table(cka))
    if norms:
        caption = "2-norm of every convolution; LARS-trained weights are about ten times larger (RCF, figure 3a)."
        drawn.append(Plot("Weight norms by layer", caption, plots.line_plot(norms, "norm")))
        tables.append(analyses.norm_table(norms))
    return drawn, tables
