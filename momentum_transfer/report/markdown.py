"""The report as Markdown, for a pull request or a terminal: the same tables, without plots and pictures."""

from collections.abc import Iterable

from momentum_transfer.report.page import Report
from momentum_transfer.report.views import TableView


def render_markdown(report: Report) -> str:
    """All tables, curves' ends, provenance and notices."""
    lines = [
        f"# {escape(report.title)}",
        "",
        *(f"- {escape(verdict)}" for verdict in report.verdicts),
        "",
        escape(report.rule),
        "",
    ]
    lines += _table(report.summary)
    for table in (*report.overall, *report.evidence, *report.details, *report.analysis_tables, *report.conversions):
        lines += _table(table)
    for part in report.errors:
        for table in (*part.tables, *part.details):
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
    lines += [_row([table.first, *heads]), _row(["---", *("---:" for _ in heads)])]
    for row in table.rows:
        label = f"{row.label} *({row.note})*" if row.note else row.label
        label = f"published: {label}" if row.kind == "published" else label
        cells = [f"**{cell.text}**" if cell.best else cell.text for cell in row.cells] or [""] * len(heads)
        lines.append(_row([label, *cells]))
    return [*lines, "", *([escape(table.reading)] if table.reading else []), *table.notes, ""]


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(escape(cell) for cell in cells) + " |"


def _code(command: str) -> str:
    """A command as a code span; with ``<``, ``>`` or a backtick in it as an element, for a span cannot escape them."""
    if not set(command) & set("<>`"):
        return f"`{' '.join(command.split())}`"
    entities = {ord(mark): f"&#{ord(mark)};" for mark in "`*_[]\\"}
    return f"<code>{escape(command).translate(entities)}</code>"


def escape(text: str) -> str:
    """Text that cannot break a table or become HTML, a heading, a link or an image."""
    plain = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    plain = plain.replace("|", "\\|").replace("](", "]\\(")
    return " ".join(plain.split())
