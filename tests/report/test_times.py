import statistics

from momentum_transfer.report.provenance import published_times, time_tables
from momentum_transfer.report.read_inputs import Curve
from momentum_transfer.report.reference import load_tables


def test_every_printed_time_is_found_with_its_row():
    found = published_times(load_tables())
    assert ("Momentum² Teacher table 2", "BYOL w/ Synced BN", 5.25) in found
    assert {source for source, _, _ in found} == {f"Momentum² Teacher table {number}" for number in (1, 2, 3)}


def test_our_median_stands_above_the_published_times():
    seconds = (0.3, 0.1, 0.2, 9.0)
    curves = [Curve("byol", "seconds", (1, 2, 3, 4), seconds), Curve("byol", "loss", (1,), (2.0,))]
    (table,) = time_tables(curves, [("A table 1", "x", 5.25)])
    assert [(row.label, row.kind) for row in table.rows] == [
        ("byol", "ours"),
        ("A table 1", "source"),
        ("x", "published"),
    ]
    assert table.rows[0].cells[0].main == f"{statistics.median(seconds):.3f}"
    assert table.rows[2].cells[0].text == "≠ 5.25"
    assert time_tables(curves[1:], []) == []
