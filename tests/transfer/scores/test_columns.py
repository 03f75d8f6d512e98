"""Positions of ids among the sorted ids: a column at a time as one at a time."""

import numpy as np
import pytest

from momentum_transfer.transfer.scores.columns import Positions


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
