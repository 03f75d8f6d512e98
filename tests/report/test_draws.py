"""Draws and seeds apart: by hand, and one trial a draw in every comparison."""

import math
import statistics

import pytest
from scipy import stats

from momentum_transfer.report.aggregate import aggregate
from momentum_transfer.report.draws import by_draw, draw_tables
from momentum_transfer.report.page import build, render_markdown
from tests.report.report_records import record, small_records

VALUES = {0: (10.0, 14.0), 1: (20.0, 22.0), 5: (15.0, 15.0)}


def drawn(name: str = "m2", offset: float = 0.0) -> list[dict]:
    found = []
    for place, (draw, values) in enumerate(VALUES.items()):
        for seed, value in enumerate(values):
            about = {"trial": 2 * place + seed, "draw": draw, "shots": 5, "seed": seed}
            found += [record(name, "coco/bbox/novel", metric, value + offset, **about) for metric in ("AP", "AP50")]
    return found


def test_the_spreads_over_draws_and_over_seeds_are_those_by_hand():
    (table,) = draw_tables([*small_records(), *drawn()])
    row, at_50 = table.rows
    assert at_50.label == "coco/bbox/novel AP50, m2"
    means = [12.0, 21.0, 15.0]
    between, within = statistics.stdev(means), math.sqrt((8 + 2 + 0) / 3)
    half = stats.t.interval(0.95, 2, scale=between / math.sqrt(3))[1]
    assert row.label == "coco/bbox/novel AP, m2"
    assert [cell.text for cell in row.cells] == [
        f"16.0 [{16 - half:.1f}, {16 + half:.1f}]".replace("-", "−"), f"± {between:.1f}", f"± {within:.1f}", "3", "2"
    ]  # fmt: skip
    assert "5 shots" in row.note
    assert table.notes == ("Scores vary much with the draw: 3 draws here, TFA takes 30.",)


def test_thirty_draws_have_their_interval_and_no_warning_of_few():
    values = [20 + (7 * draw) % 11 for draw in range(30)]
    drawn_once = [
        record("m2", "coco/bbox/novel", "AP", float(value), trial=draw, draw=draw, shots=5)
        for draw, value in enumerate(values)
    ]
    (table,) = draw_tables(drawn_once)
    low, high = stats.t.interval(0.95, 29, statistics.fmean(values), stats.sem(values))
    found = [cell.text for cell in table.rows[0].cells]
    assert found[0] == f"{statistics.fmean(values):.1f} [{low:.1f}, {high:.1f}]"
    assert found[2:] == ["–", "30", "1"]
    assert table.notes == ()


def test_a_draw_is_one_trial_and_the_newest_record_of_a_trial_counts():
    records = [*small_records(), *drawn(), *drawn("random", -3.0)]
    records.append({**drawn()[0], "value": 12.0, "time": "9999"})
    cells = next(
        cells for measure, cells in aggregate(by_draw(records)).cells.items() if measure.label.endswith("novel AP")
    )
    assert cells["m2"].values == {0: 13.0, 1: 21.0, 5: 15.0}
    assert cells["random"].values == {0: 9.0, 1: 18.0, 5: 12.0}
    others = small_records()
    assert by_draw(others) == others


def test_a_draws_seeds_of_earlier_weights_do_not_count():
    (late,) = (each for each in drawn() if each["draw"] == 1 and each["seed"] == 0 and each["metric"] == "AP")
    late = {**late, "value": 30.0, "time": "9999", "checkpoint": {"name": "m2", "sha256": "cd" * 32}}
    values = {each["draw"]: each["value"] for each in by_draw([*drawn(), late]) if each["metric"] == "AP"}
    assert values == {0: 12.0, 1: 30.0, 5: 15.0}


def test_other_numbers_of_shots_have_rows_of_their_own():
    more = [{**each, "shots": 10, "value": each["value"] + 20} for each in drawn()]
    (table,) = draw_tables([*drawn(), *more])
    assert [(row.cells[0].main, "10 shots" in row.note) for row in table.rows if row.label.endswith("AP, m2")] == [
        ("36.0", True), ("16.0", False)
    ]  # fmt: skip


def test_single_draws_and_undefined_values_have_no_spread():
    one = record("m2", "coco/bbox/novel", "AP", 10.0, draw=2)
    undefined = record("m2", "coco/bbox/novel", "AP", float("nan"), trial=1, draw=3)
    (table,) = draw_tables([one, undefined])
    assert undefined in by_draw([one, undefined])  # for the page to say so
    assert [cell.text for cell in table.rows[0].cells] == ["10.0", "–", "–", "1", "1"]
    assert draw_tables(small_records()) == []


@pytest.mark.parametrize("count", [1, 2])
def test_the_page_shows_them(count):
    text = render_markdown(build([*small_records(), *drawn()[: 4 * count]], resamples=100))
    assert "## Draws and seeds" in text
    assert "coco/bbox/novel AP, m2" in text
