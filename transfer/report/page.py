"""The page: everything gathered from records, run folders and reference tables, rendered once.

``build`` is a pure function of its inputs; ``render_html`` and ``render_markdown`` only lay out what it returns.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from pretrain.errors import InputError
from transfer import results as records_file
from transfer.report import analyses, plots
from transfer.report.aggregate import Measure, Results, aggregate, is_baseline
from transfer.report.conversion import conversion_table
from transfer.report.pictures import Gallery, galleries
from transfer.report.provenance import Provenance, provenance
from transfer.report.reference import Published, load_tables, published
from transfer.report.runs import Curve, RunFiles, read_runs
from transfer.report.tables import detail_tables, headline_order, short_labels, summary_table
from transfer.report.verdicts import verdicts
from transfer.report.views import TableView

#: Lines in the slope chart; more would not be told apart. The tables hold them all.
SLOPES = 8

#: Key of a metrics.jsonl to the heading of its plot and the label of its axis.
_CURVES = {
    "loss": ("Pretraining loss", "loss"),
    "embedding_std": ("Spread of the embedding (0 would be collapse)", "std"),
    "lr": ("Learning rate", "learning rate"),
    "detector_loss": ("Detector's training loss", "loss"),
}


@dataclass(frozen=True)
class Plot:
    """An inline SVG with its heading and caption."""

    title: str
    caption: str
    svg: str


@dataclass(frozen=True)
class Report:
    """All that the page shows."""

    results: Results
    title: str
    verdicts: tuple[str, ...]
    colours: Mapping[str, int]
    summary: TableView
    plots: tuple[Plot, ...]
    details: tuple[TableView, ...]
    curves: tuple[Plot, ...]
    analyses: tuple[Plot, ...]
    analysis_tables: tuple[TableView, ...]
    galleries: tuple[Gallery, ...]
    conversions: tuple[TableView, ...]
    provenance: tuple[Provenance, ...]
    notices: tuple[str, ...]
    sources: tuple[str, ...]
    command: str


def read_records(paths: Sequence[str | Path]) -> tuple[list[dict[str, Any]], list[str]]:
    """Records of all files, each file once, and what is wrong with their lines.

    Raises:
        InputError: a file is missing, or no line of any file is a record.
    """
    records: list[dict[str, Any]] = []
    problems: list[str] = []
    for path in dict.fromkeys(Path(path).resolve() for path in paths):
        found, wrong = records_file.read(path)
        records += found
        problems += wrong
    if not records:
        first = f"; the first of {len(problems)} unreadable lines: {problems[0]}" if problems else ""
        raise InputError(
            f"no record in {', '.join(map(str, paths))}{first}; run an evaluating tool with --results and this file"
        )
    return records, problems


def build(
    records: Sequence[Mapping[str, Any]],
    *,
    runs: RunFiles | None = None,
    reference: Sequence[Published] = (),
    problems: Sequence[str] = (),
    sources: Sequence[str] = (),
    command: str = "",
    title: str = "Does it transfer?",
) -> Report:
    """Turn records (and what run folders hold) into the report."""
    runs = runs or RunFiles()
    results = aggregate(records)
    colours = {name: index for index, name in enumerate(results.checkpoints)}
    notices: list[str] = []
    found = galleries(runs.pictures, notices)
    drawn, tables = _analyses(records)
    return Report(
        results=results,
        title=title,
        verdicts=tuple(verdicts(results)),
        colours=colours,
        summary=summary_table(results),
        plots=tuple(_summary_plots(results, colours)),
        details=tuple(detail_tables(results, reference, colours)),
        curves=tuple(_curve_plots(runs.curves)),
        analyses=tuple(drawn),
        analysis_tables=tuple(tables),
        galleries=tuple(found),
        conversions=tuple(conversion_table(name, content) for name, content in runs.conversions.items()),
        provenance=tuple(provenance(results)),
        notices=(*problems, *results.notices, *runs.notices, *notices),
        sources=tuple(sources),
        command=command,
    )


def _summary_plots(results: Results, colours: Mapping[str, int]) -> list[Plot]:
    drawn = []
    measures = [measure for measure in headline_order(results) if len(results.cells[measure]) > 1]
    chosen = _one_of_each_family_first(measures)[:SLOPES]
    rows = {
        label: {name: (cell.mean, cell.std) for name, cell in results.cells[measure].items()}
        for measure, label in short_labels(chosen).items()
    }
    order = [name for name in reversed(results.checkpoints) if any(name in cells for cells in rows.values())]
    if len(order) > 1:
        more = f" {len(chosen)} of {len(measures)} measures." if len(measures) > len(chosen) else ""
        caption = (
            "One line a task, from the baselines to the pretrained weights; whiskers are ±1 standard deviation over "
            f"trials.{more}"
        )
        drawn.append(Plot("From baseline to pretrained", caption, plots.slope_plot(order, rows, colours, caption)))
    drawn += _low_shot_plots(results, colours)
    return drawn


def _one_of_each_family_first(measures: Sequence[Measure]) -> list[Measure]:
    """Detection, low-shot, … each once before any of them twice; a stable order."""
    seen: Counter[str] = Counter()
    turns = []
    for measure in measures:
        family = measure.task.split("/")[0]
        turns.append((seen[family], measure))
        seen[family] += 1
    return [measure for _, measure in sorted(turns, key=lambda turn: turn[0])]


def _low_shot_plots(results: Results, colours: Mapping[str, int]) -> list[Plot]:
    """One plot for every (dataset, protocol) with at least two shot counts."""
    groups: dict[tuple[str, str], dict[str, list[tuple[int, float, float | None]]]] = {}
    for measure in results.headlines():
        family, _, k = measure.task.partition("/k=")
        if family != "svm" or not k.isdigit():
            continue
        lines = groups.setdefault((measure.dataset, measure.protocol), {})
        for name, cell in results.cells[measure].items():
            lines.setdefault(name, []).append((int(k), cell.mean, cell.std))
    drawn = []
    for (dataset, protocol), lines in groups.items():
        if max(len(points) for points in lines.values()) > 1:
            ordered = {name: lines[name] for name in results.checkpoints if name in lines}
            where = " · ".join(part for part in (dataset, protocol) if part)
            caption = (
                f"{where}: mean over {_draws(results, dataset, protocol)} of k images per class; bands are ±1 standard "
                "deviation over draws."
            )
            drawn.append(Plot("Low-shot curve", caption, plots.low_shot_plot(ordered, colours)))
    return drawn


def _draws(results: Results, dataset: str, protocol: str) -> str:
    """``5 draws``, or ``3 to 5 draws`` where the points of a curve have other numbers of them."""
    counts = {
        cell.trials
        for measure in results.headlines()
        if measure.task.startswith("svm/k=") and (measure.dataset, measure.protocol) == (dataset, protocol)
        for cell in results.cells[measure].values()
    }
    low, high = min(counts), max(counts)
    return f"{low} draw{'s' * (low != 1)}" if low == high else f"{low} to {high} draws"


def _curve_plots(curves: Sequence[Curve]) -> list[Plot]:
    drawn = []
    for key, (title, label) in _CURVES.items():
        same = [curve for curve in curves if curve.key == key]
        if same:
            caption = ", ".join(f"{curve.run} ends at {curve.values[-1]:.4g}" for curve in same)
            drawn.append(Plot(title, caption, plots.curve_plot(same, key, label)))
    return drawn


def _analyses(records: Sequence[Mapping[str, Any]]) -> tuple[list[Plot], list[TableView]]:
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


def environment() -> Environment:
    """Jinja with escaping on for HTML, and undefined names as errors."""
    return Environment(
        loader=PackageLoader("transfer.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip


def render_html(report: Report) -> str:
    """The page, in one file: style and pictures are inside it."""
    style = resources.files("transfer.report").joinpath("style.css").read_text(encoding="utf-8")
    template = environment().get_template("page.html.j2")
    return template.render(report=report, style=style, is_baseline=is_baseline)


def make_report(
    results: Sequence[str | Path],
    runs: Sequence[str | Path] = (),
    *,
    reference_dir: str | Path | None = None,
    command: str = "",
    title: str = "Does it transfer?",
) -> Report:
    """Read everything from disk and build the report.

    Raises:
        InputError: a results file or run folder is missing, there is no record, or a reference table is damaged.
    """
    records, problems = read_records(results)
    tables = load_tables(reference_dir) if reference_dir is not None else load_tables()
    return build(
        records,
        runs=read_runs(runs),
        reference=published(tables),
        problems=problems,
        sources=[str(path) for path in results],
        command=command,
        title=title,
    )
