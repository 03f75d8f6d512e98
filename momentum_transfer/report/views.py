"""Table view: cells, rows and headings as text, shared by the HTML page and the Markdown."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class CellView:
    """One cell.

    Attributes:
        main: the number, or a dash.
        spread, trials: ``± 1.3`` and ``n=5`` where there are several trials.
        best: the best mean of its column.
        tone: ``up`` or ``down`` for a clear difference.
        mark: a footnote sign of the paper; its meaning stands in the row's note.
        differs: a published number of another protocol or other data than the rows beside it.
        note: a few words after the number.
    """

    main: str = "–"
    spread: str = ""
    trials: str = ""
    best: bool = False
    tone: str = ""
    mark: str = ""
    differs: bool = False
    note: str = ""

    @property
    def text(self) -> str:
        """The cell in one line of plain text."""
        count = f"({self.trials})" if self.trials else ""
        sign = "≠" if self.differs else ""
        return " ".join(part for part in (sign, self.main + self.mark, self.spread, count, self.note) if part)


@dataclass(frozen=True)
class RowView:
    """A row: ``colour`` is the checkpoint's series number.

    ``kind``: ours, difference, rank, published, fact, or a heading without cells across the table: group (of our
    rows), source (of published ones).
    """

    label: str
    kind: str
    cells: tuple[CellView, ...]
    note: str = ""
    colour: int | None = None


@dataclass(frozen=True)
class TableView:
    """A table with a heading for each column after the first; ``groups`` are (heading, columns spanned).

    ``reading`` says how the numbers are to be read, at more length than the caption.
    """

    title: str
    caption: str
    first: str
    columns: tuple[str, ...]
    rows: tuple[RowView, ...]
    groups: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = field(default=())
    reading: str = ""


def number(value: float) -> str:
    """A percentage with one decimal and a true minus sign."""
    return f"{value:.1f}".replace("-", "−")
