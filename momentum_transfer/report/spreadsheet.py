"""The cells as CSV: one line a measure and checkpoint, unrounded, for whoever wants to plot them otherwise."""

import csv
import io

from momentum_transfer.report.aggregate import Results

COLUMNS = ("task", "metric", "dataset", "protocol", "engine", "checkpoint", "mean", "std", "trials", "values")


def render_csv(results: Results) -> str:
    """Mean and sample standard deviation over trials; ``values`` lists the trials in order, separated by spaces.

    A name that a spreadsheet would run as a formula (it begins with = + - @) is prefixed with an apostrophe.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for measure, cells in results.cells.items():
        for name, cell in cells.items():
            values = " ".join(repr(value) for _, value in sorted(cell.values.items()))
            numbers = (repr(cell.mean), "" if cell.std is None else repr(cell.std), cell.trials, values)
            writer.writerow([*(_inert(text) for text in (*measure, name)), *numbers])
    return buffer.getvalue()


def _inert(text: str) -> str:
    text = text.replace("\0", "\\0")  # Python 3.10's writer refuses NUL
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
