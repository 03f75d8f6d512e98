"""The page: everything gathered from records, run folders and reference tables, as HTML, Markdown and CSV.

``build`` is a pure function of its inputs; the ``render_…`` functions only lay out what it returns.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import write_text
from momentum_transfer.report import provenance as origin
from momentum_transfer.report.aggregate import Record, Results, aggregate, check_settings_agree
from momentum_transfer.report.answers import Balance, agreement_table, balances, measure_pairs, sentences
from momentum_transfer.report.details import detail_tables
from momentum_transfer.report.detector_errors import ErrorPart, error_parts
from momentum_transfer.report.differences import RESAMPLES, RULE, Comparisons, about
from momentum_transfer.report.draws import by_draw, draw_tables
from momentum_transfer.report.examples import Gallery, galleries
from momentum_transfer.report.figures import Plot, analysis_figures, summary_figures, training_figures
from momentum_transfer.report.read_inputs import RunFiles, merge_methods, read_records, read_runs, read_suites
from momentum_transfer.report.reference import REFERENCE_DIR, Published, load_tables, published
from momentum_transfer.report.summary import evidence_tables, overall_table, summary_table
from momentum_transfer.report.sweeps import sweep_figures
from momentum_transfer.report.tables import TableView, rendered


@dataclass(frozen=True)
class Report:
    """All that the page shows."""

    results: Results
    title: str
    verdicts: tuple[str, ...]
    balances: tuple[Balance, ...]
    colours: Mapping[str, int]
    summary: TableView
    rule: str
    overall: tuple[TableView, ...]
    evidence: tuple[TableView, ...]
    plots: tuple[Plot, ...]
    details: tuple[TableView, ...]
    curves: tuple[Plot, ...]
    analyses: tuple[Plot, ...]
    analysis_tables: tuple[TableView, ...]
    galleries: tuple[Gallery, ...]
    errors: tuple[ErrorPart, ...]
    conversions: tuple[TableView, ...]
    provenance: tuple[origin.Provenance, ...]
    unfinished: tuple[str, ...]
    notices: tuple[str, ...]
    sources: tuple[str, ...]
    command: str


def build(
    records: Sequence[Record],
    *,
    runs: RunFiles | None = None,
    reference: Sequence[Published] = (),
    problems: Sequence[str] = (),
    sources: Sequence[str] = (),
    command: str = "",
    title: str = "Does it transfer?",
    suites: Sequence[Mapping[str, Any]] = (),
    resamples: int = RESAMPLES,
    times: Sequence[tuple[str, str, float]] = (),
    methods: Mapping[str, Sequence[str]] | None = None,
    baseline: str = "",
    margin: float | None = None,
    costs: Sequence[TableView] = (),
) -> Report:
    """Turn records (and what run folders hold) into the report; ``methods``: see ``inputs.merge_methods``."""
    runs = runs or RunFiles()
    drawn, records = draw_tables(records), by_draw(records)
    if methods:
        records = merge_methods(records, methods)
    results = aggregate(records, baseline)
    comparisons = Comparisons(results, resamples, methods or {}, margin=margin)
    colours = {name: index for index, name in enumerate(results.checkpoints)}
    notices: list[str] = []
    figures, views = analysis_figures(records)
    agreements = measure_pairs(results)
    return Report(
        results=results,
        title=title,
        colours=colours,
        rule=f"{RULE} {about(methods or {})}",
        verdicts=tuple(sentences(comparisons)),
        summary=summary_table(comparisons),
        overall=tuple(table for table in (overall_table(results, colours), agreement_table(agreements)) if table),
        evidence=(*evidence_tables(comparisons), *drawn),
        balances=tuple(balances(comparisons)),
        plots=(*sweep_figures(suites, results, runs.curves), *summary_figures(comparisons, colours, agreements)),
        details=tuple(detail_tables(comparisons, reference, colours)),
        curves=tuple(training_figures(runs.curves, colours)),
        analyses=tuple(figures),
        analysis_tables=(*costs, *origin.time_tables(runs.curves, times), *views),
        galleries=tuple(galleries(runs.examples, notices)),
        errors=tuple(error_parts(runs.errors, colours, notices)),
        conversions=tuple(origin.conversion_table(name, content) for name, content in runs.conversions.items()),
        provenance=tuple(origin.provenance(results)),
        unfinished=tuple(runs.unfinished),
        # last: what could not be compared, shown or read is known by now
        notices=(*runs.unfinished, *problems, *results.notices, *runs.notices, *notices, *comparisons.notices),
        sources=tuple(sources),
        command=command,
    )


def render_html(report: Report) -> str:
    """The page, in one file: style and images are inside it."""
    return rendered("page.html.j2", report=report)


def make_report(
    results: Sequence[str | Path],
    runs: Sequence[str | Path] = (),
    *,
    reference_dir: str | Path | None = None,
    command: str = "",
    title: str = "Does it transfer?",
    resamples: int = RESAMPLES,
    methods: Mapping[str, Sequence[str]] | None = None,
    baseline: str = "",
    margin: float | None = None,
) -> Report:
    """Read everything from disk and build the report; ``margin``: points within which a difference counts as none.

    Raises:
        InputError: a results file or run folder is missing, there is no record, a reference table is damaged, or the
            records of several files do not belong in one row.
    """
    records, problems = read_records(results)
    check_settings_agree(records)
    tables = load_tables(reference_dir or REFERENCE_DIR)
    return build(
        records,
        runs=read_runs(runs),
        reference=published(tables),
        problems=problems,
        sources=[str(path) for path in results],
        command=command,
        title=title,
        suites=read_suites(results),
        resamples=resamples,
        times=origin.published_times(tables),
        costs=origin.cost_tables(results),
        methods=methods,
        baseline=baseline,
        margin=margin,
    )


def render_markdown(report: Report) -> str:
    """All tables, curves' ends, provenance and notices."""
    lines = [f"# {escape(report.title)}", "", *(f"- {escape(verdict)}" for verdict in report.verdicts), ""]
    lines += [escape(report.rule), ""]
    tables = [report.summary, *report.overall, *report.evidence, *report.details, *report.analysis_tables]
    tables += report.conversions
    for part in report.errors:
        tables += [*part.tables, *part.details]
    for table in tables:
        lines += _table(table)
    if report.curves:
        lines += ["## Training", "", *(f"- {escape(f'{plot.title}: {plot.caption}')}" for plot in report.curves), ""]
    lines += ["## Provenance", ""]
    for block in report.provenance:
        lines += [f"### {escape(block.name)}", "", f"- records: {block.records}"]
        lines += [f"- {heading}: {escape('; '.join(values))}" for heading, values in block.facts]
        lines += [*(f"- {_code(command)}" for command in block.commands), ""]
    if report.notices:
        lines += ["## Set aside or worth knowing", "", *(f"- {escape(notice)}" for notice in report.notices), ""]
    lines.append(f"Made from {escape(', '.join(report.sources))}.")
    return "\n".join(lines) + "\n"


def _table(table: TableView) -> list[str]:
    heads = list(table.columns)
    if table.groups:
        tasks = [task for task, span in table.groups for _ in range(span)]
        heads = [f"{task} {metric}" for task, metric in zip(tasks, table.columns, strict=True)]
    lines = [f"## {escape(table.title)}", ""]
    lines += [escape(table.caption), ""] if table.caption else []
    lines += [markdown_row([table.first, *heads]), markdown_row(["---", *("---:" for _ in heads)])]
    for row in table.rows:
        label = f"{row.label} *({row.note})*" if row.note else row.label
        label = f"published: {label}" if row.kind == "published" else label
        cells = [f"**{cell.text}**" if cell.best else cell.text for cell in row.cells] or [""] * len(heads)
        lines.append(markdown_row([label, *cells]))
    return [*lines, "", *([escape(table.reading)] if table.reading else []), *table.notes, ""]


def markdown_row(cells: Iterable[str]) -> str:
    """A line of a Markdown table, escaped."""
    return "| " + " | ".join(escape(cell) for cell in cells) + " |"


def _code(command: str) -> str:
    """A command as a code span; with ``<``, ``>`` or a backtick in it as an element, which can escape them."""
    if not set(command) & set("<>`"):
        return f"`{' '.join(command.split())}`"
    entities = {ord(mark): f"&#{ord(mark)};" for mark in "`*_[]\\"}
    return f"<code>{escape(command).translate(entities)}</code>"


def escape(text: str) -> str:
    """Text that cannot break a table or become HTML, a heading, a link or an image."""
    plain = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    plain = plain.replace("|", "\\|").replace("](", "]\\(")
    return " ".join(plain.split())


def write_report(report: Report, out: str | Path) -> list[Path]:
    """Write ``out`` (.html) and the same under .md and .csv, each whole or not at all; the files, the page first."""
    out = page_name(out)
    texts = {out: render_html(report), out.with_suffix(".md"): render_markdown(report)}
    texts[out.with_suffix(".csv")] = render_csv(report.results)
    for path, text in texts.items():
        write_text(path, text)
    return list(texts)


def page_name(out: str | Path) -> Path:
    """``out`` as a path, or an :class:`InputError` where it is no name of a page."""
    out = Path(out)
    if out.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"expected --out to end in .html, found {out}; .md and .csv are written beside it")
    return out


_COLUMNS = ("task", "metric", "dataset", "protocol", "engine", "checkpoint", "mean", "std", "trials", "values")


def render_csv(results: Results) -> str:
    """Mean and sample standard deviation over trials; ``values`` lists the trials in order, separated by spaces.

    A name that a spreadsheet would run as a formula (it begins with = + - @) is prefixed with an apostrophe.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for measure, cells in results.cells.items():
        for name, cell in cells.items():
            values = " ".join(repr(value) for _, value in sorted(cell.values.items()))
            numbers = (repr(cell.mean), "" if cell.std is None else repr(cell.std), cell.trials, values)
            writer.writerow([*(_inert(text) for text in (*measure, name)), *numbers])
    return buffer.getvalue()


def _inert(text: str) -> str:
    text = text.replace("\0", "\\0")  # Python 3.10's writer refuses NUL
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
