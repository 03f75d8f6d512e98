"""Which plots the page has, with their captions: results, training curves, and analyses of weights.

Records of CKA between two backbones and of weight norms (``tools/compare.py``) have the stage or the layer as their
metric; they are drawn over it (RCF, figure 3), and never ranked or subtracted.
"""

import itertools
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from momentum_transfer.core.errors import counted
from momentum_transfer.core.files import weights_name
from momentum_transfer.report import plots, tables
from momentum_transfer.report.aggregate import Measure, Results
from momentum_transfer.report.answers import Pair
from momentum_transfer.report.differences import Comparisons
from momentum_transfer.report.read_inputs import Curve
from momentum_transfer.report.tables import CellView, RowView, TableView, number
from momentum_transfer.verdicts.corrections import BETTER, WORSE

#: Most lines of the slope chart and of a plot over layers.
_LINES = 8
#: Most rows of the plots of gains and of agreement.
_GAINS = 24
#: Most checkpoints in one plot: more could not be distinguished.
_CHECKPOINTS = 8
#: Most plots of one kind: each costs time, and room on the page.
_PLOTS = 12

#: Key of a metrics.jsonl to the heading of its plot and the label of its axis.
_CURVES = {
    "loss": ("Pretraining loss", "loss"),
    "embedding_std": ("Spread of the embedding (0 would be collapse)", "std"),
    "lr": ("Learning rate", "learning rate"),
    "task_loss": ("Training loss", "loss"),
    "pseudo_precision": ("Teacher's boxes that are right (precision at IoU .5)", "%"),
    "pseudo_recall": ("Objects that the teacher's boxes find (recall at IoU .5)", "%"),
    "pseudo_boxes": ("Boxes that the teacher gives an image", "boxes"),
    "knn_top1": ("kNN accuracy while training", "top-1, %"),
    "student_top1": ("Accuracy of the student while training", "top-1, %"),
    "teacher_top1": ("Accuracy of the teacher while training", "top-1, %"),
}

#: Headings of accuracies over fractions of the labels.
_FRACTIONS = {"linear": "Linear classification", "finetune": "Fine-tuning", "fixmatch": "FixMatch"}

_Layers = dict[str, list[tuple[str, float]]]


@dataclass(frozen=True)
class Plot:
    """An inline SVG with its heading and caption; a ``tall`` plot spans two rows of the grid."""

    title: str
    caption: str
    svg: str
    tall: bool = False


def summary_figures(
    comparisons: Comparisons, colours: Mapping[str, int], agreements: Sequence[Pair] = ()
) -> list[Plot]:
    """Gains over the first baseline, the slope chart, accuracies over amounts of labels, and agreements of measures."""
    results = comparisons.results
    shown = results.checkpoints
    if len(shown) > _CHECKPOINTS:
        baselines = [name for name in shown if results.kinds[name]][: _CHECKPOINTS // 2]
        others = [name for name in shown if name not in baselines][: _CHECKPOINTS - len(baselines)]
        shown = [name for name in shown if name in {*baselines, *others}]
    return [
        *_gains(comparisons, colours, shown),
        *_slopes(results, colours, shown),
        *_few_labels(results, colours, shown),
        *_agreement(agreements),
    ]


def _left_out(results: Results, shown: Sequence[str]) -> str:
    """A sentence for the caption where not all checkpoints are drawn."""
    total = len(results.checkpoints)
    return "" if len(shown) == total else f" {len(shown)} of {total} checkpoints; the tables have all."


def _gains(comparisons: Comparisons, colours: Mapping[str, int], shown: Sequence[str]) -> list[Plot]:
    results = comparisons.results
    pairs = tables.compared(results)
    if not pairs:
        return []
    base = pairs[0][1]
    names = [name for name, other in pairs if other == base and name in shown]
    common = [
        measure
        for measure in tables.headline_order(results)
        if base in results.cells[measure] and any(name in results.cells[measure] for name in names)
    ]
    kept = set(tables.one_of_each_family_first(common)[:_GAINS])
    rows: dict[str, dict[str, plots.Gain]] = {}
    words = {name: comparisons.words(name, base) for name in names}
    for measure, label in tables.short_labels([measure for measure in common if measure in kept]).items():
        changes = {name: change for name in names if (change := comparisons.of(measure, name, base))}
        if changes:
            rows[label] = {
                name: (change.value, change.low, change.high, words[name].get(measure) in (BETTER, WORSE))
                for name, change in changes.items()
            }
    if not rows:
        return []
    more = f" {len(rows)} of {len(common)} measures." if len(rows) < len(common) else ""
    who = f"{names[0]} − {base}" if len(names) == 1 else f"each minus {base}"
    caption = (
        f"{who}, in points; right of the line pretraining helps. Filled: better or worse by the rule; whiskers are 95 "
        "% intervals over trials and test images, none where there is one trial and nothing to resample."
        f"{more}{_left_out(results, shown)}"
    )
    return [Plot(f"What is gained over {base}", caption, plots.gain_plot(rows, colours), tall=True)]


def _slopes(results: Results, colours: Mapping[str, int], shown: Sequence[str]) -> list[Plot]:
    measures = [m for m in tables.headline_order(results) if sum(name in results.cells[m] for name in shown) > 1]
    chosen = tables.one_of_each_family_first(measures)[:_LINES]
    rows = {
        label: {name: (cell.mean, cell.std) for name, cell in results.cells[measure].items() if name in shown}
        for measure, label in tables.short_labels(chosen).items()
    }
    order = [name for name in reversed(shown) if any(name in cells for cells in rows.values())]
    if len(order) < 2:
        return []
    more = f" {len(chosen)} of {len(measures)} measures." if len(measures) > len(chosen) else ""
    caption = (
        "One line a task, from the baselines to the pretrained weights; whiskers are ±1 standard deviation over "
        f"trials.{more}{_left_out(results, shown)}"
    )
    return [Plot("From baseline to pretrained", caption, plots.slope_plot(order, rows, colours, caption))]


def _few_labels(results: Results, colours: Mapping[str, int], shown: Sequence[str]) -> list[Plot]:
    """One plot for every (family, dataset, protocol) with at least two amounts of labels, up to a number of plots."""
    groups: dict[tuple[str, str, str], dict[Measure, float]] = defaultdict(dict)
    for measure in results.headlines():
        if amount := _amount(measure.task):
            groups[measure.family, measure.dataset, measure.protocol][measure] = amount
    found = []
    curves = {place: amounts for place, amounts in groups.items() if len(set(amounts.values())) > 1}
    for (family, dataset, protocol), amounts in itertools.islice(curves.items(), _PLOTS):
        lines = {}
        for name in shown:
            cells = [(amount, results.cells[m].get(name)) for m, amount in amounts.items()]
            if points := [(amount, cell.mean, cell.std) for amount, cell in cells if cell is not None]:
                lines[name] = points
        if not lines:
            continue
        counts = {cell.trials for measure in amounts for cell in results.cells[measure].values()}
        low, high = min(counts), max(counts)
        trials = counted(low, "trial") if low == high else f"{low} to {high} trials"
        if family == "svm":
            title, of, axis = "Low-shot curve", "k images per class", "labelled images per class (k)"
        else:
            title, of, axis = f"{_FRACTIONS[family]} with few labels", "labelled images", "fraction of the labels, %"
        caption = (
            f"{' · '.join(part for part in (dataset, protocol) if part)}: mean over {trials} with {of}; bands are ±1 "
            f"standard deviation over trials.{_left_out(results, shown)}"
        )
        found.append(Plot(title, caption, plots.few_labels_plot(lines, colours, axis)))
    return found


def _amount(task: str) -> float:
    """Images per class of ``svm/k=4``; percent of the labels of ``linear/10%`` (``linear`` is all of them); else 0."""
    family, _, part = task.partition("/")
    if family == "svm":
        amount = part[2:] if part.startswith("k=") else ""
    else:
        amount = (part.removesuffix("%") if part else "100") if family in _FRACTIONS else ""
    return float(amount) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]+)?", amount) else 0.0


def _agreement(pairs: Sequence[Pair]) -> list[Plot]:
    """Rank correlations of pairs of measures, where there are enough checkpoints."""
    if not pairs:
        return []
    rows = {f"{pair.first} → {pair.second}": (pair.found.tau, *pair.found.tau_interval) for pair in pairs[:_GAINS]}
    more = f" {len(rows)} of {len(pairs)} pairs." if len(rows) < len(pairs) else ""
    caption = (
        "Kendall's τ_b of two measures over checkpoints: 1 where both order them alike, 0 where one says nothing of "
        "the other. Pairs of a cheap and a costly measure first; whiskers are 95 % intervals over the "
        f"{pairs[0].found.n} checkpoints.{more}"
    )
    return [Plot("Which measure predicts which", caption, plots.agreement_plot(rows))]


def training_figures(curves: Sequence[Curve], colours: Mapping[str, int]) -> list[Plot]:
    """Curves of one kind in one plot: those of pretraining, and one plot for every task that trains."""
    found = []
    for key, (title, label) in _CURVES.items():
        places: dict[str, list[Curve]] = defaultdict(list)
        for curve in curves:
            if curve.key == key:
                places["/".join(curve.run.split("/")[1:2])].append(curve)
        for place, same in itertools.islice(places.items(), _PLOTS):
            ends: dict[str, list[str]] = defaultdict(list)
            for curve in same:
                ends[curve.checkpoint].append(f"{curve.values[-1]:.4g}")
            caption = ", ".join(f"{name} ends at {', '.join(values)}" for name, values in ends.items())
            svg = plots.curve_plot(same, run_colours(list(ends), colours), f"{key}-{place}", label)
            found.append(Plot(f"{title}: {place}" if place else title, caption, svg))
    return found


def run_colours(runs: Sequence[str], known: Mapping[str, int]) -> dict[str, int]:
    """The checkpoint's colour where a run is called like one; the others take what is left."""
    used = {known[run] for run in runs if run in known}
    free = (index for index in range(len(known) + len(runs)) if index not in used)
    return {run: known[run] if run in known else next(free) for run in runs}


def analysis_figures(records: Sequence[Mapping[str, Any]]) -> tuple[list[Plot], list[TableView]]:
    """Plots and tables of CKA and weight norms, where there are such records."""
    cka, norms = _layers(records, "cka"), _layers(records, "weight_norm")
    found, views = [], []
    if cka:
        found.append(Plot("CKA by stage", "Linear CKA on the same images, in percent.", plots.line_plot(cka, "CKA, %")))
        stages = list(dict.fromkeys(stage for points in cka.values() for stage, _ in points))
        rows = []
        for label, points in cka.items():
            values = dict(points)
            cells = (CellView(number(values[stage])) if stage in values else CellView() for stage in stages)
            rows.append(RowView(label, "ours", tuple(cells)))
        caption = "Linear CKA on the same images, in percent; 100 is equal up to rotation and scale."
        views.append(TableView("Similarity of representations", caption, "pair", tuple(stages), tuple(rows)))
    if norms:
        caption = "2-norm of every convolution; LARS-trained weights are about ten times larger (RCF, figure 3a)."
        found.append(Plot("Weight norms by layer", caption, plots.line_plot(norms, "norm")))
        rows = []
        for label, points in norms.items():
            own = [value for _, value in points]
            cells = (CellView(f"{value:.2f}") for value in (min(own), sum(own) / len(own), max(own)))
            rows.append(RowView(label, "ours", tuple(cells)))
        title, caption = "Norms of the convolutions' weights", "2-norm of each weight tensor."
        views.append(TableView(title, caption, "weights", ("smallest", "mean", "largest"), tuple(rows)))
    return found, views


def _layers(records: Sequence[Mapping[str, Any]], task: str) -> _Layers:
    """Backbone or pair of backbones to (stage or layer, value); of repeated records the last counts."""

    def named(checkpoint: Mapping[str, Any], network: Any) -> str:
        name = weights_name(str(checkpoint.get("name") or "unnamed"))
        return f"{name} ({network})" if network else name

    found: dict[str, dict[str, float]] = {}
    for record in records:
        value = record["value"]
        if record["task"] == task and value is not None and abs(value) < 1e300:  # no integer beyond a float
            label, reference = named(record["checkpoint"], record.get("network")), record.get("reference")
            if isinstance(reference, Mapping):
                label += f" vs. {named(reference, reference.get('network'))}"
            found.setdefault(label, {})[str(record["metric"])] = float(value)
    return {label: list(points.items()) for label, points in list(found.items())[:_LINES]}
