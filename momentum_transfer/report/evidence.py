"""Evidence behind a verdict: numbers of trials and images, standard errors, power, sources of variance."""

from momentum_transfer.report.differences import Comparisons
from momentum_transfer.report.tables import compared, headline_order, short_labels
from momentum_transfer.report.views import CellView, RowView, TableView, number
from momentum_transfer.verdicts.comparison import Comparison

#: More pairs than these nobody reads.
PAIRS = 4

CAPTION = (
    "Can show: the smallest true difference, in points, that this design finds in 80 % of cases (at 5 %, before Holm). "
    "Trials to show it: how many would find the observed difference in 80 % of cases. From items: share of the "
    "variance that the choice of test images has, where trials have the rest."
)

COLUMNS = ("word", "trials", "test items", "standard error", "p", "can show", "trials to show it", "from items")


def evidence_tables(comparisons: Comparisons) -> list[TableView]:
    """One table for each pair that the summary compares: what was judged, and what this design could have shown."""
    tables = []
    for name, base in compared(comparisons.results)[:PAIRS]:
        words = comparisons.words(name, base)
        measures = [measure for measure in headline_order(comparisons.results) if measure in words]
        rows = [
            RowView(label, "fact", _cells(comparisons.of(measure, name, base), words[measure]))
            for measure, label in short_labels(measures).items()
        ]
        if rows:
            tables.append(
                TableView(
                    f"{name} − {base}: evidence and power",
                    CAPTION,
                    "measure", COLUMNS, tuple(rows),
                )
            )  # fmt: skip
    return tables


def _cells(change: Comparison | None, word: str) -> tuple[CellView, ...]:
    if change is None:
        return (CellView(word), *(CellView() for _ in COLUMNS[1:]))
    first, second = change.n
    trials = f"{first}" if first == second else f"{first} and {second}"
    judged = ", in pairs" if change.paired else ""
    if max(change.n) < 2:
        judged = ", one trial: no verdict from trials"
    elif min(change.n) < 2:
        judged = ", the one as it stands" if change.p is not None else ", no verdict from one"
    p = "" if change.p is None else f"{change.p:.2g}"
    p += "" if change.exact_p is None else f" (sign flips {change.exact_p:.2g})"
    needed = "–"
    if change.needed is not None:
        needed = str(change.needed)
    elif min(change.n) > 1 and change.value:
        needed = "none: the test images alone hide it"
    return (
        CellView(word),
        CellView(trials + judged),
        CellView(str(change.items) if change.items else "–"),
        CellView(f"{change.se:.2f}" if change.se else "–"),  # without any spread nothing is known of it
        CellView(p or "–"),
        CellView("–" if change.detectable is None else number(change.detectable)),
        CellView(needed),
        CellView("–" if change.item_share is None else f"{100 * change.item_share:.0f} %"),
    )
