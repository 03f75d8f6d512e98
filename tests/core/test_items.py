"""Items files: written whole, found by hash, refused when they are not what the record was written with."""

import zipfile

import numpy as np
import pytest

from momentum_transfer.core import records, untrusted
from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.scores import coco
from momentum_transfer.verdicts.outcomes import PerItem, check_paired, label_hash, replicates
from tests.transfer.scores.random_sets import coco_set

LABELS = np.array([0, 1, 1, 2, 0])
HITS = PerItem(label_hash(LABELS), {"top1": np.array([1, 0, 1, 1, 0], bool), "AP": np.array([0.1, 0.2, 0.3, 0.4, 0.5])})


def test_what_is_written_is_read(tmp_path):
    kept = records.write_items(tmp_path, "svm/k=4 of a b", HITS)
    assert kept["file"].startswith("items/svm_k=4_of_a_b.")
    found = records.read_items(tmp_path, kept)
    for name, values in HITS.values.items():
        np.testing.assert_array_equal(found.values[name], values)
    assert found.test_set == HITS.test_set
    assert replicates(found, np.ones((1, 5), np.int32))["top1"][0] == pytest.approx(60.0)
    assert records.write_items(tmp_path, "svm/k=4 of a b", HITS) == kept
    assert [file.name for file in (tmp_path / "items").iterdir()] == [kept["file"].removeprefix("items/")]


def savez_before_numpy_2_2(file, *arrays, **named):
    """Its savez_compressed: every keyword is an array, one named allow_pickle too."""
    assert not arrays
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, values in named.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, np.asanyarray(values))


@pytest.mark.parametrize("old_numpy", [False, True], ids=["this NumPy", "NumPy before 2.2"])
def test_the_archive_holds_the_outcomes_and_no_array_more(tmp_path, monkeypatch, old_numpy):
    if old_numpy:
        monkeypatch.setattr(np, "savez_compressed", savez_before_numpy_2_2)
    kept = records.write_items(tmp_path, "a", HITS)
    with untrusted.opened(tmp_path / kept["file"]) as archive:
        assert sorted(untrusted.names_of(archive)) == ["AP", "count", "hit top1", "kind", "test_set"]
    np.testing.assert_array_equal(records.read_items(tmp_path, kept).values["top1"], HITS.values["top1"])


def test_another_content_a_lost_file_and_a_file_elsewhere_are_refused(tmp_path):
    kept = records.write_items(tmp_path, "a", HITS)
    with pytest.raises(InputError, match="in the folder of the results, found"):
        records.read_items(tmp_path, {**kept, "file": "../" + kept["file"]})
    with pytest.raises(InputError, match="found another content"):
        records.read_items(tmp_path, {**kept, "sha256": "0" * 64})
    (tmp_path / kept["file"]).unlink()
    with pytest.raises(InputError, match="copy the folder items/"):
        records.read_items(tmp_path, kept)


def test_unlike_test_sets_orders_and_kinds_are_never_paired():
    other = PerItem(label_hash(LABELS[::-1]), HITS.values)
    with pytest.raises(InputError, match=r"same order, found 5 \(.*\) of mine and 5 \(.*\) of theirs"):
        check_paired(HITS, other, ("mine", "theirs"))
    first, second = (coco.evaluate(*coco_set(seed)).items for seed in (4, 10))
    with pytest.raises(InputError, match="of mine and per item of theirs"):
        check_paired(first, HITS, ("mine", "theirs"))
    with pytest.raises(InputError, match="same test items"):
        check_paired(first, second, ("mine", "theirs"))
    check_paired(first, first, ("mine", "theirs"))
