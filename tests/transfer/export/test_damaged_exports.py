"""Exported files of other content than was written, or of other people: refused in one line, or what was written."""

import io
import json
import os
import pickle
import random
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from momentum_transfer.errors import InputError
from tests.attacks.outcome import DONE, LINE, outcome_of
from transfer.export import export as exporting
from transfer.export.exported import Wants, load_exported
from transfer.export.onnx_seal import BLANK, KEY, check_seal, seal

WANTS = Wants(("a",), (1,), 64, 96, 32, (1.0, 2.0, 3.0), (64, 96))
SMALL = Wants(("a",), (1,), 32, 32, 32, (1.0, 2.0, 3.0), (32, 32))


def test_no_byte_of_a_sealed_file_can_change_unseen(tmp_path):
    file = tmp_path / "a.onnx"
    file.write_bytes(b"weights" + KEY.encode() + b"\x12\x40" + BLANK.encode() + b"more weights")
    seal(file)
    content = file.read_bytes()
    check_seal(content, file)
    for place in range(len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        with pytest.raises(InputError, match=r"cannot read .*a\.onnx as ONNX"):
            check_seal(bytes(flipped), file)


@pytest.mark.parametrize("key", ["classes", "category_ids", "short_edge", "long_edge", "multiple", "pad", "size", None])
def test_wants_of_any_content_are_read_or_refused_in_one_line(key):
    assert Wants.from_json(WANTS.as_json(), "a.onnx") == WANTS
    texts = ["", "[" * 100_000, "[]", "1", "null"] if key is None else [
        json.dumps({**json.loads(WANTS.as_json()), key: value})
        for value in (-1, 0, 10**400, float("inf"), float("nan"), "x", {}, [[]], [float("inf")] * 3, [10**400] * 3)
    ]  # fmt: skip
    found: list[Wants] = []
    for text in texts:
        end = outcome_of(lambda text=text: found.append(Wants.from_json(text, "a.onnx")))
        assert end in (DONE, LINE)
    assert [one for one in found if key not in ("classes", "category_ids")] == []  # numbers are words too
    assert all(type(word) is str for one in found for word in one.classes)
    assert all(type(number) is int for one in found for number in one.category_ids)


class Bad:
    """Unpickled, it would make a file."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self):
        return Path.touch, (self.made,)


class Tiny(torch.nn.Module):
    """One box for each weight, moved with the image."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([[1.0, 2.0, 9.0, 8.0], [3.0, 1.0, 7.0, 9.0]]))
        self.register_buffer("more", torch.ones(4), persistent=False)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        boxes = self.weight + self.more * image.mean() / 255
        return boxes, boxes[:, 0] / 10, torch.zeros(2, dtype=torch.int64)


IMAGE = np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def traced():
    return torch.export.export(Tiny(), (torch.zeros(3, 32, 32),))


@pytest.fixture
def pt2(traced, tmp_path):
    exporting._WRITERS["pt2"](traced, SMALL, tmp_path / "detector.pt2")
    return tmp_path / "detector.pt2"


def with_records(file, change):
    """The same archive, its records through ``change(name, content)``: of other content, with fitting checksums."""
    with zipfile.ZipFile(file) as archive:
        records = {name: change(name, archive.read(name)) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in records.items():
            archive.writestr(name, content)
    return file


def read(file):
    """How loading and running it ended, and its detections."""
    found: list[tuple[np.ndarray, ...]] = []
    end = outcome_of(lambda: found.append(load_exported(file).predict(IMAGE)))
    assert end == (DONE if found else LINE)
    return found


@pytest.mark.parametrize("kind", [pytest.param("onnx", marks=pytest.mark.slow), "pt2"])
def test_a_flipped_bit_is_refused_in_one_line_or_changes_nothing(kind, traced, tmp_path):
    file, chance, refused, flips = tmp_path / f"detector.{kind}", random.Random(0), 0, 24
    exporting._WRITERS[kind](traced, SMALL, file)
    whole, (expected,) = file.read_bytes(), read(file)
    moved = (Tiny().weight + float(SMALL.prepare(IMAGE)[0].mean()) / 255).detach().numpy()
    np.testing.assert_allclose(expected[0], moved, rtol=1e-6)
    for number in range(flips):
        content = bytearray(whole)
        content[int((number + chance.random()) / flips * len(content))] ^= 1 << chance.randrange(8)
        file.write_bytes(content)
        found = read(file)
        refused += not found
        for arrays in found:  # of an archive's dates and padding
            assert all(np.array_equal(one, other) for one, other in zip(arrays, expected, strict=True))
    assert refused == flips or (kind == "pt2" and refused > flips // 2)
    file.write_bytes(whole[: len(whole) // 2])
    assert not read(file)


@pytest.mark.parametrize("forced", [{}, {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}])
def test_pickled_code_in_a_pt2_is_not_run(forced, pt2, tmp_path, monkeypatch):
    for name, value in forced.items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    assert read(with_records(pt2, lambda _, content: content))
    stream = io.BytesIO()
    torch.save(({"image": Bad(tmp_path / "made")},), stream)
    touched = []

    def change(name, content):
        touched.extend([name] * name.endswith(".pt"))
        return stream.getvalue() if name.endswith(".pt") else content

    assert not read(with_records(pt2, change))
    assert touched
    assert not (tmp_path / "made").exists()
    assert dict(os.environ) == before


def test_archives_of_libraries_or_of_something_else_are_refused_without_a_log(pt2, tmp_path, capfd):
    with zipfile.ZipFile(pt2, "a") as archive:
        archive.writestr("detector/data/constants/opaque_obj_0", pickle.dumps(Bad(tmp_path / "made")))
    with pytest.raises(InputError, match=r"found code or pickled objects in .*opaque_obj_0"):
        load_exported(pt2)
    with zipfile.ZipFile(pt2, "w") as archive:
        archive.writestr("letter.txt", "text")
    with pytest.raises(InputError, match=r"cannot read .* as a torch\.export program"):
        load_exported(pt2)
    assert not (tmp_path / "made").exists()
    assert capfd.readouterr().err == ""
