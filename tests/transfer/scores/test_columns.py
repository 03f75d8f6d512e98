"""A column at a time as one entry at a time; the first wrong entry is named, whatever stands before it."""

import gc

import numpy as np
import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.scores.columns import Columns, Positions, paused_collector


@pytest.mark.parametrize("ids", [[3], [-5, 0, 2.5, 7], list(range(0, 3000, 7)), [2**53 - 1]])
def test_a_column_of_ids_is_found_as_one_by_one(ids):
    positions = Positions(ids)
    asked = np.array(ids * 2, dtype=np.float64)[::-1]
    assert positions.of(asked).tolist() == [positions[one] for one in asked.tolist()]
    assert positions.of(asked).dtype == np.int32
    assert positions.of(asked[:0]).tolist() == []


@pytest.mark.parametrize(
    ("ids", "asked"), [([1, 2], 3.0), ([1, 2], 1.5), ([1, 2], -1.0), (["1", "2"], 1.0), ([2**53 + 2], 2.0**53 + 2)]
)
def test_an_unknown_id_and_ids_that_floats_do_not_hold_are_not_found(ids, asked):
    with pytest.raises(KeyError):
        Positions(ids).of(np.array([asked]))


def columns(key: str, *values: object) -> Columns:
    return Columns([{"id": 7 + n, key: value} for n, value in enumerate(values)], "found.json", "entry")


GOOD = {
    "lookup": ((1, 1.0, np.int64(2), 4), [0, 0, 1, 2]),
    "numbers": ((0, 1, -2.5, float("-inf"), np.float32(0.5)), [0, 1, -2.5, float("-inf"), 0.5]),
    "flags": ((0, 1, False, True, 0.0, 1.0, np.int8(1), np.bool_(0)), [0, 1, 0, 1, 0, 1, 1, 0]),
    "boxes": (([0, 1, 2, 3.5], (0, 1, 0, 1), np.arange(4)), [[0, 1, 2, 3.5], [0, 1, 0, 1], [0, 1, 2, 3]]),
}


def read(how: str, *values: object) -> np.ndarray:
    read_as = columns("bbox" if how == "boxes" else "field", *values)
    if how == "boxes":
        return read_as.boxes()
    return (
        read_as.lookup("field", Positions([1, 2, 4]), "a.json") if how == "lookup" else getattr(read_as, how)("field")
    )


@pytest.mark.parametrize("how", GOOD)
def test_a_column_holds_every_value_in_the_order_of_the_entries(how):
    values, expected = GOOD[how]
    found = read(how, *values)
    assert found.tolist() == expected
    assert found.dtype == {"lookup": np.int32, "flags": bool}.get(how, np.float64)


@pytest.mark.parametrize(
    ("how", "wrong"),
    [
        *(("lookup", value) for value in (3, "1", None, [1], True, np.bool_(1))),
        *(("numbers", value) for value in (float("nan"), "1", None, True, [1.0], 10**400)),
        *(("flags", value) for value in (2, -1, 0.5, "1", "0", None, float("nan"))),
        *(("boxes", value) for value in ([1, 2, 3], [1, 2, 3, 4, 5], 7, None, "1234", [1, 2, 3, "4"], np.arange(3))),
        *(("boxes", [1, 2, 3, value]) for value in (float("inf"), float("nan"), True, None)),
    ],
)
def test_the_one_wrong_value_among_good_ones_is_named(how, wrong):
    good = GOOD[how][0]
    with pytest.raises(InputError, match=rf"^found\.json: entry {len(good)} \(id {7 + len(good)}\) has "):
        read(how, *good, wrong, *good)


def test_an_entry_without_a_field_and_one_that_is_no_object_are_named():
    with pytest.raises(InputError, match=r"entry 1 \(id 4\) has no score; expected the field score in every entry"):
        Columns([{"id": 3, "score": 1}, {"id": 4}], "found.json", "entry").numbers("score")
    with pytest.raises(InputError, match=r"found\.json: entry 1 is 5; expected an object with named fields"):
        Columns([{}, 5], "found.json", "entry")  # type: ignore[list-item]
    assert Columns([{}, {"crowd": 1}], "found.json", "entry").flags("crowd").tolist() == [False, True]


@pytest.mark.parametrize("values", [(1, 2.5, np.int64(3), "1"), ("a", "", "b")])
def test_ids_are_numbers_or_strings_each_only_once(values):
    assert columns("name", *values).unique("name") == list(values)
    with pytest.raises(InputError, match=rf"entry {len(values)} .* has the name of an earlier entry"):
        columns("name", *values, values[1], values[0]).unique("name")
    for wrong in (True, None, float("nan"), (1,)):
        with pytest.raises(InputError, match=rf"entry {len(values)} .* expected a number or a string"):
            columns("name", *values, wrong).unique("name")


@pytest.mark.parametrize("ids", [[2**53 - 1], [-(2**53) + 1, 0.5]])
def test_ids_up_to_what_floats_hold_exactly_are_found(ids):
    assert Positions(ids).of(np.array(ids, dtype=np.float64)).tolist() == list(range(len(ids)))
    with pytest.raises(KeyError):
        Positions([*ids, 2**53]).of(np.array(ids[:1], dtype=np.float64))


@pytest.mark.parametrize("running", [True, False])
def test_the_collector_is_paused_and_then_as_it_was(running):
    before = gc.isenabled()
    try:
        (gc.enable if running else gc.disable)()
        with pytest.raises(RuntimeError), paused_collector():
            assert not gc.isenabled()
            raise RuntimeError
        assert gc.isenabled() == running
    finally:
        (gc.enable if before else gc.disable)()
