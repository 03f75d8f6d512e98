"""The report as files: the page, and beside it Markdown and CSV."""

from pathlib import Path

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import write_text
from momentum_transfer.report.markdown import render_markdown
from momentum_transfer.report.page import Report, render_html
from momentum_transfer.report.spreadsheet import render_csv


def write_report(report: Report, out: str | Path) -> list[Path]:
    """Write ``out`` (.html) and the same under .md and .csv, each whole or not at all.

    Returns:
        The files, the page first.

    Raises:
        InputError: ``out`` does not end in .html.
    """
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
