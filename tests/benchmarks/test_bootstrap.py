"""The benchmark of the bootstrap: its items files hold the outcomes and nothing else."""

import zipfile

import numpy as np

from benchmarks.bootstrap import ours, prepare
from tests.core.test_records import savez_before_numpy_2_2


def test_its_items_files_are_read_whole_and_hold_no_array_more(tmp_path, monkeypatch):
    monkeypatch.setattr(np, "savez_compressed", savez_before_numpy_2_2)
    prepare(tmp_path, images=4)
    for name in ("first", "second"):
        with zipfile.ZipFile(tmp_path / f"{name}.npz") as archive:
            assert "allow_pickle.npy" not in archive.namelist()
            assert "starts.npy" in archive.namelist()
    assert ours(tmp_path, resamples=5)["std"] > 0
