"""Records and items files: written whole, read completely, refused when damaged."""

import json
import time
import zipfile

import numpy as np
import pytest

from momentum_transfer.core import records, untrusted
from momentum_transfer.core import records as records_file
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.records import FORMAT, SPENT, append, done, make_record, read
from momentum_transfer.transfer.scores import coco
from momentum_transfer.verdicts.outcomes import PerItem, check_paired, label_hash, replicates
from tests.transfer.scores.random_sets import coco_set


def record(**changes):
    given = {"task": "knn/k=20", "metric": "top1", "value": 50.0, "checkpoint": {"name": "a", "sha256": "f" * 64}}
    given.update(changes)
    return make_record(given.pop("task"), given.pop("metric"), given.pop("value"), **given)


def test_what_is_appended_is_read_back(tmp_path):
    path = tmp_path / "deep" / "results.jsonl"
    append(path, [record(k=20), record(trial=1, seed=7)])
    append(path, [record(value=1)])
    records, problems = read(path)
    assert problems == []
    assert [r["value"] for r in records] == [50.0, 50.0, 1.0]
    assert records[0]["k"] == 20
    assert records[1]["seed"] == 7
    assert {"python", "torch"} <= set(records[0]["versions"])


def test_nan_becomes_null(tmp_path):
    append(tmp_path / "r.jsonl", [record(value=float("nan"))])
    assert read(tmp_path / "r.jsonl")[0][0]["value"] is None


def test_a_half_line_damages_no_later_record(tmp_path):
    path = tmp_path / "r.jsonl"
    append(path, [record()])
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    append(path, [record(value=2)])
    records, problems = read(path)
    assert [r["value"] for r in records] == [50.0, 2.0]
    assert len(problems) == 1
    assert "r.jsonl:2: not JSON" in problems[0]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("[]", "expected an object"),
        ('{"task": "a"}', "keys missing: metric, value, checkpoint"),
        ('{"task": "a", "metric": "b", "value": "12", "checkpoint": {}}', "'12', not a number"),
        ('{"task": "a", "metric": "b", "value": true, "checkpoint": {}}', "not a number"),
        ('{"task": "a", "metric": "b", "value": 1, "checkpoint": "c"}', "checkpoint is not an object"),
        (json.dumps({**record(), "format": FORMAT + 1}), f"format {FORMAT + 1}"),
    ],
)
def test_wrong_lines_are_listed(tmp_path, line, problem):
    path = tmp_path / "r.jsonl"
    path.write_text(line + "\n")
    records, problems = read(path)
    assert records == []
    assert problem in problems[0]


def test_done_compares_every_wanted_key(tmp_path):
    path = tmp_path / "r.jsonl"
    assert not done(path, task="knn/k=20")
    append(path, [record(seed=3)])
    assert done(path, task="knn/k=20", seed=3, sha256="f" * 64)
    assert not done(path, task="knn/k=20", seed=4)
    assert not done(path, task="knn/k=20", sha256="0" * 64)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(InputError, match="results file not found"):
        read(tmp_path / "none.jsonl")


def test_what_many_records_repeat_is_kept_once(tmp_path):
    path = tmp_path / "results.jsonl"
    append(path, [record(value=float(number)) for number in range(3)])
    first, *others = read(path)[0]
    for key in ("checkpoint", "versions", "protocol"):
        assert all(other[key] is first[key] for other in others)


def test_records_tell_the_hours_of_all_attempts(monkeypatch):
    monkeypatch.setenv(SPENT, "7200")
    made = make_record("t", "m", 1.0, checkpoint={})
    assert 2.0 < made["hours"] < 3.0
    assert made["gpu_hours"] == 0.0 or made["gpu_hours"] >= 2.0
    monkeypatch.setenv(SPENT, "nonsense")
    assert make_record("t", "m", 1.0, checkpoint={})["hours"] < 1.0


def test_hours_grow_though_the_clock_goes_back(monkeypatch):
    before = make_record("t", "m", 1.0, checkpoint={})["hours"]
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert make_record("t", "m", 1.0, checkpoint={})["hours"] >= before >= 0


def test_only_lines_of_the_wanted_weights_are_parsed(tmp_path, monkeypatch):
    path = tmp_path / "results.jsonl"
    append(path, [record(trial=n, checkpoint={"name": "a", "sha256": f"{n % 50:064x}"}) for n in range(200)])
    parsed = []
    known = records_file._parsed
    monkeypatch.setattr(records_file, "_parsed", lambda line: parsed.append(line) or known(line))
    assert done(path, sha256=f"{7:064x}", trial=57)
    assert len(parsed) == 2
    assert not done(path, sha256=f"{7:064x}", trial=58)
    assert done(path, trial=58)


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
