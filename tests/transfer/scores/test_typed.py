"""The fast reader beside the general one, which goes through ``json`` and dicts: same columns, same refusals."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.scores import coco, coco_files, rle, typed
from momentum_transfer.transfer.scores import typed as plain
from tests.transfer.scores.random_sets import coco_set


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed, "_BLOCK", 500)


@pytest.fixture
def never_plain(monkeypatch: pytest.MonkeyPatch):
    """Run something with the general reader alone."""

    def run(work, *args):
        def refuse(*_):
            raise typed.Unusual

        with monkeypatch.context() as patch:
            patch.setattr(plain, "ground_truth", refuse)
            patch.setattr(plain, "detections", refuse)
            return work(*args)

    return run


@pytest.fixture
def always_plain(monkeypatch: pytest.MonkeyPatch):
    """Run something without the general reader."""

    def run(work, *args):
        def refuse(*_):
            raise AssertionError("the general reader was called")

        with monkeypatch.context() as patch:
            patch.setattr(coco_files, "_read_json", refuse)
            return work(*args)

    return run


def assert_same(first: Any, second: Any) -> None:
    """Every column, with its type; masks by their codes."""
    if isinstance(first, rle.Rles):
        assert first.codes_at(np.arange(len(first))) == second.codes_at(np.arange(len(second)))
    for field in dataclasses.fields(first):
        if isinstance(first, rle.Rles) and field.name in ("texts", "text", "start", "stop"):
            continue  # where the codes stand
        ours, theirs = getattr(first, field.name), getattr(second, field.name)
        if isinstance(ours, np.ndarray):
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, theirs)
        elif dataclasses.is_dataclass(ours):
            assert_same(ours, theirs)
        else:
            assert ours == theirs


def written(folder: Path, truth: Any, results: Any, **form: Any) -> tuple[Path, Path]:
    files = folder / "gt.json", folder / "results.json"
    for file, content in zip(files, (truth, results), strict=True):
        file.write_text(json.dumps(content, **form))
    return files


def loaded(files: tuple[Path, Path], iou_type: Any, area_from: Any = "file"):
    truth = coco_files.load_ground_truth(files[0], iou_type)
    return truth, coco_files.load_detections(files[1], truth, iou_type, area_from)


@pytest.mark.parametrize("form", [{}, {"indent": 1}, {"separators": (",", ":")}], ids=["line", "indented", "tight"])
@pytest.mark.parametrize(("segm", "string_ids"), [(False, False), (True, False), (True, True)])
def test_plain_files_give_the_columns_of_the_general_reader_whatever_the_blocks(
    tmp_path: Path, small_blocks, never_plain, always_plain, form, segm: bool, string_ids: bool
):
    truth, results = coco_set(3, segm, string_ids=string_ids)
    for entry in results if segm else ():
        entry["bbox"] = [1, 2, 3.5, 4]
    files = written(tmp_path, truth, results, **form)
    for iou_type in ("bbox", "segm") if segm else ("bbox",):
        for area_from in ("file", "mask"):
            fast = always_plain(loaded, files, iou_type, area_from)
            for ours, theirs in zip(fast, never_plain(loaded, files, iou_type, area_from), strict=True):
                assert_same(ours, theirs)


def outcome(files: tuple[Path, Path], iou_type: str) -> Any:
    try:
        return loaded(files, iou_type)
    except InputError as error:
        return str(error)


_junk = st.sampled_from(
    [b"", b" ", b",", b"]", b"[", b"{", b"}", b"},{", b'"', b"\\", b"\xff", b"\n", b"\x00", b"0", b"-", b".", b"e5"]
) | st.sampled_from(
    [b"1e999", b"NaN", b"true", b"null", b'"7"', b"\xc3\xa9", b'"id": 1, ', b"\xef\xbb\xbf", b"1" * 30, b"[]", b"2, "]
)


@pytest.mark.parametrize("field", ["width", "other"])
def test_a_number_of_5000_digits_in_the_ground_truth_is_an_input_error(tmp_path: Path, field: str):
    truth, results = coco_set(3, segm=False, images=3)
    files = written(tmp_path, truth, results)
    truth["images"][0][field] = "HERE"
    files[0].write_text(json.dumps(truth).replace('"HERE"', "9" * 5000))
    with pytest.raises(InputError, match=r"gt\.json, but it cannot be read: Exceeds the limit"):
        loaded(files, "bbox")


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), segm=st.booleans(), results=st.booleans())
def test_a_damaged_file_is_read_or_refused_as_by_the_general_reader(
    tmp_path: Path, small_blocks, never_plain, data: st.DataObject, segm: bool, results: bool
):
    files = written(tmp_path, *coco_set(3, segm, images=3))
    text = files[results].read_bytes()
    at = data.draw(st.integers(0, len(text)))
    files[results].write_bytes(text[:at] + data.draw(_junk) + text[at + data.draw(st.integers(0, 6)) :])
    fast, slow = (
        outcome(files, "segm" if segm else "bbox"),
        never_plain(outcome, files, "segm" if segm else "bbox"),
    )
    if isinstance(slow, str):
        assert fast == slow
    else:
        for ours, theirs in zip(fast, slow, strict=True):
            assert_same(ours, theirs)


@pytest.mark.parametrize(
    "number",
    ["0.1", "1e-05", "5e-324", "0.30000000000000004", "9007199254740993", "1" * 25, "2.2250738585072011e-308", "-0"],
)
def test_numbers_are_rounded_as_python_rounds_them(tmp_path: Path, always_plain, number: str):
    truth, results = coco_set(3)
    files = written(tmp_path, truth, results[:1])
    text = files[1].read_text()
    files[1].write_text(text[: text.index('"score"')] + f'"score": {number}, ' + text[text.index('"bbox"') :])
    assert always_plain(loaded, files, "bbox")[1].score.tobytes() == np.float64(json.loads(number)).tobytes()


def test_a_comma_with_nothing_behind_it_is_refused_at_the_end_of_a_block(tmp_path: Path, small_blocks):
    files = written(tmp_path, *coco_set(3))
    files[1].write_text(files[1].read_text()[:-1] + ",]")
    with pytest.raises(InputError, match="expected results as JSON"):
        coco.evaluate(*files)


def test_a_ground_truth_that_is_a_pipe_is_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "truth.json")
    with pytest.raises(typed.Unusual):
        typed.ground_truth(tmp_path / "truth.json", "bbox", area=True)


def test_the_garbage_collector_is_left_as_it_was(tmp_path: Path):
    import gc

    files = written(tmp_path, *coco_set(3))
    assert gc.isenabled()
    loaded(files, "bbox")
    assert gc.isenabled()
    files[1].write_text("[")
    with pytest.raises(InputError):
        loaded(files, "bbox")
    assert gc.isenabled()


def test_a_result_file_is_never_held_as_a_whole(tmp_path: Path, small_blocks, monkeypatch: pytest.MonkeyPatch):
    truth, results = coco_set(3)
    files = written(tmp_path, truth, results * 5)
    decode, lengths = typed._decode, []

    def note(decoder, text: bytes):
        lengths.append(len(text))
        return decode(decoder, text)

    loaded_truth = coco_files.load_ground_truth(files[0], "bbox")
    monkeypatch.setattr(typed, "_decode", note)
    assert len(coco_files.load_detections(files[1], loaded_truth, "bbox")) == 5 * len(results)
    assert sum(lengths) >= files[1].stat().st_size
    assert max(lengths) < 3 * 500


@pytest.mark.parametrize("count", [1, 15, 16, 70000])  # MessagePack marks lists of each size in another way
def test_packed_numbers_are_the_written_ones(count: int):
    names = ("image_id", "category_id", "score")
    kind = typed._struct("Entry", **dict.fromkeys(names, float), bbox=typed._Box)
    written = np.random.default_rng(0).normal(size=(count, 7)) * 1e3
    entries = [kind(**dict(zip(names, row, strict=False)), bbox=tuple(row[3:])) for row in written.tolist()]
    numbers, boxes = typed._table(entries)
    np.testing.assert_array_equal([numbers[name] for name in names], written[:, :3].T)
    np.testing.assert_array_equal(boxes, written[:, 3:])


@pytest.mark.parametrize("name", ["{}", "image {}"])
def test_ids_that_are_strings_are_read_as_by_the_general_reader(tmp_path: Path, always_plain, never_plain, name: str):
    truth, results = coco_set(5)
    for entry in truth["images"]:
        entry["id"] = name.format(entry["id"])
    for entry in [*truth["annotations"], *results]:
        entry["image_id"] = name.format(entry["image_id"])
    first, second = tmp_path / "truth.json", tmp_path / "results.json"
    first.write_text(json.dumps(truth))
    second.write_text(json.dumps(results))
    fast = always_plain(lambda: coco_files.load_detections(second, coco_files.load_ground_truth(first, "bbox"), "bbox"))
    assert_same(
        fast,
        never_plain(lambda: coco_files.load_detections(second, coco_files.load_ground_truth(first, "bbox"), "bbox")),
    )
