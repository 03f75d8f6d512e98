"""The benchmark of coverage: intervals of every method for every pair, and no correction that calls more than none."""

import numpy as np

from benchmarks.coverage import coverage, families


def test_every_pair_has_an_interval_of_every_method_and_films_widen_it(tmp_path):
    found = coverage(range(2), True, tmp_path)
    assert {"ours", "unpaired bootstrap", "ours, films resampled"} <= set(found)
    assert all(ends.shape == (2, 2) and (ends[:, 0] < ends[:, 1]).all() for ends in found.values())
    assert (np.diff(found["ours, films resampled"]) > np.diff(found["ours"])).all()


def test_a_correction_calls_no_measure_that_none_calls():
    called = families(10, 0.9, 3.0)
    assert all(each.shape == (10, 9) for each in called.values())
    assert not (called["Holm"] & ~called["max-t"]).any()
    assert not (called["max-t"] & ~called["none"]).any()
