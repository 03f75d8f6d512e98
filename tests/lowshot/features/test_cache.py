"""An entry of the feature cache: what is in it is what was written, or it is refused."""

import errno
import fcntl
import json
import re
from pathlib import Path

import numpy as np
import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.lowshot.features.cache import About, Entry, crc_of

ABOUT = About("w", "d", "t", "pooled", "fp32")
LABELS = np.arange(6) % 3


def written(folder: Path, rows: int = 6) -> tuple[Entry, np.ndarray]:
    """An entry that one process has written to its end."""
    entry, features = Entry(folder / ABOUT.key), np.random.default_rng(0).standard_normal((rows, 4)).astype(np.float32)
    with entry.locked():
        array = entry.open_rows(ABOUT, rows, lambda: 4)
        own, done, checksum = entry.own_rows(array)
        assert (own, done, checksum) == (range(rows), 0, 0)
        array[:] = features
        array.flush()
        entry.write_progress(own, rows, crc_of(features))
        assert not entry.complete
        entry.finish(LABELS[:rows])
    return entry, features


def test_what_was_written_is_read_and_the_notes_of_the_way_go(tmp_path):
    entry, features = written(tmp_path)
    assert entry.complete
    entry.check(ABOUT)
    assert np.array_equal(entry.read(LABELS), features)
    assert sorted(file.name for file in entry.folder.iterdir()) == ["about.json", "features.npy", "labels.npy"]


def test_an_entry_of_other_settings_says_which(tmp_path):
    entry, _ = written(tmp_path)
    with pytest.raises(InputError, match=r"made with other settings \(weights, precision\)"):
        entry.check(About("x", "d", "t", "pooled", "bf16"))
    for text in ("[]", "{"):
        (entry.folder / "about.json").write_text(text)
        with pytest.raises(InputError, match=r"expected .*about\.json as an extraction writes it, found it damaged"):
            entry.check(ABOUT)
    (entry.folder / "about.json").unlink()
    entry.check(ABOUT)
    assert len({ABOUT.key, About("x", "d", "t", "pooled", "fp32").key, About("w", "d", "t", "res4", "fp32").key}) == 3
    assert re.fullmatch("[0-9a-f]{24}", ABOUT.key)


def other_labels(entry: Entry) -> None:
    np.save(entry.folder / "labels.npy", LABELS[::-1])


def flipped(entry: Entry) -> None:
    content = bytearray((entry.folder / "features.npy").read_bytes())
    content[-1] ^= 1
    (entry.folder / "features.npy").write_bytes(content)


def no_sums(entry: Entry) -> None:
    (entry.folder / "about.json").write_text("{}")


def gone(entry: Entry) -> None:
    (entry.folder / "labels.npy").unlink()


@pytest.mark.parametrize("damage", [other_labels, flipped, no_sums, gone])
def test_damage_is_found(damage, tmp_path):
    entry, _ = written(tmp_path)
    damage(entry)
    with pytest.raises(InputError, match=rf"found it damaged; delete {entry.folder} and run again"):
        entry.read(LABELS)


@pytest.mark.parametrize("labels", [LABELS[:5], LABELS + 1, np.stack([LABELS] * 2)])
def test_labels_of_another_set_are_refused(labels, tmp_path):
    entry, _ = written(tmp_path)
    with pytest.raises(InputError, match=r"labels\.npy"):
        entry.read(labels)


@pytest.mark.parametrize(("shape", "fits"), [((6, None), True), ((6, 4), True), ((5, None), False), ((6, 3), False),
                                             ((6,), False), ((6, 4, None), False), ((None, None), True)])  # fmt: skip
def test_an_array_has_the_asked_shape_and_as_many_dimensions(shape, fits, tmp_path):
    entry, _ = written(tmp_path)
    if fits:
        assert entry._array(entry.folder / "features.npy", shape).shape == (6, 4)
        return
    with pytest.raises(InputError, match=r"features\.npy"):
        entry._array(entry.folder / "features.npy", shape)


def test_rows_that_an_earlier_run_has_written_are_kept_if_they_are_what_it_wrote(tmp_path):
    entry = Entry(tmp_path / ABOUT.key)
    rows = entry.open_rows(ABOUT, 6, lambda: 4)
    rows[:4] = 1.5
    rows.flush()
    entry.write_progress(range(6), 4, crc_of(rows[:4]))
    again = entry.open_rows(ABOUT, 6, lambda: pytest.fail("asked for the width again"))
    assert entry.own_rows(again) == (range(6), 4, crc_of(np.full((4, 4), 1.5, np.float32)))
    again[2, 1] = 0
    with pytest.raises(InputError, match=r"features\.partial\.npy"):
        entry.own_rows(again)
    file = next(entry.folder.glob("progress.*"))
    for text in ("7 0", "x 0", "-1 0", "9" * 12 + " 0", ""):
        file.write_text(text)
        with pytest.raises(InputError, match="progress"):
            entry.own_rows(again)
    file.write_text("6 0")  # all rows, of another checksum
    with pytest.raises(InputError, match=r"features\.partial\.npy"):
        entry.own_rows(again)


def test_an_unfinished_entry_without_its_description_begins_anew(tmp_path):
    entry = Entry(tmp_path / ABOUT.key)
    entry.open_rows(ABOUT, 6, lambda: 4)
    entry.write_progress(range(6), 0, 0)
    (entry.folder / "about.json").unlink()
    assert entry.open_rows(ABOUT, 6, lambda: 5).shape == (6, 5)
    assert not list(entry.folder.glob("progress.*"))
    assert json.loads((entry.folder / "about.json").read_text())["weights"] == "w"
    with pytest.raises(InputError, match=r"features\.partial\.npy"):
        entry.open_rows(ABOUT, 7, lambda: 5)


def test_processes_share_the_rows(tmp_path, monkeypatch):
    entry, rows = Entry(tmp_path), np.zeros((7, 2), np.float32)
    parts = []
    for rank in range(3):
        monkeypatch.setattr("momentum_transfer.core.distributed.rank", lambda rank=rank: rank)
        monkeypatch.setattr("momentum_transfer.core.distributed.world_size", lambda: 3)
        parts.append(entry.own_rows(rows)[0])
    assert [row for part in parts for row in part] == list(range(7))
    assert {len(part) for part in parts} == {2, 3}


def test_the_checksum_of_parts_is_that_of_the_whole():
    rows = np.random.default_rng(0).standard_normal((9, 3)).astype(np.float32)
    assert crc_of(rows[4:], crc_of(rows[:4])) == crc_of(rows) != crc_of(rows[::-1])


def test_a_file_system_without_locks_is_no_obstacle(tmp_path, monkeypatch):
    def without(*_):
        raise OSError(errno.ENOSYS, "no locks here")

    monkeypatch.setattr(fcntl, "flock", without)
    with Entry(tmp_path / "key").locked():
        assert (tmp_path / "key.lock").is_file()
