"""Label folders give one class per pixel, Cityscapes' files as they are published."""

import struct
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.data.digit_scenes import RECIPES
from momentum_transfer.transfer.data.semantic_datasets import (
    _CITYSCAPES,
    IGNORE,
    _label_folder,
    get_semantic_dataset,
    label_file,
    label_specs,
    stored_labels,
    write_truth,
)
from momentum_transfer.transfer.scores import semantic
from tests.transfer.torchvision_engine.test_semantic import write_labels


def save(path: Path, values: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.fromarray(values).save(path)
    return path


def test_cityscapes_ids_become_training_ids(tmp_path: Path):
    root = tmp_path / "cityscapes"
    save(root / "leftImg8bit/val/bonn/bonn_000000_000019_leftImg8bit.png", np.zeros((4, 9, 3), np.uint8))
    values = np.array([[0, 7, 8, 11, 9, 33, 26, 29, 4]], np.uint8).repeat(4, 0)
    save(root / "gtFine/val/bonn/bonn_000000_000019_gtFine_labelIds.png", values)
    data = get_semantic_dataset("cityscapes_fine_sem_seg_val", tmp_path)
    assert len(data.classes) == 19
    assert data.labels(0)[0].tolist() == [IGNORE, 0, 1, 2, IGNORE, 18, 13, IGNORE, IGNORE]


def test_cityscapes_table_is_the_published_one():
    # Cordts et al., the 19 classes that are evaluated, by label id.
    assert list(_CITYSCAPES.values()) == [7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33]


def test_embedded_labels_are_background_and_ten_digits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(RECIPES, "digit_scenes", replace(RECIPES["digit_scenes"], images=(1, 20)))
    data = get_semantic_dataset("digit_scenes_sem_seg_val")
    assert len(data.classes) == 11
    assert len(data.pairs) == 20
    found = {value for k in range(20) for value in np.unique(data.labels(k))}
    assert found == set(range(11))


def test_any_folders_pair_by_name(tmp_path: Path):
    save(tmp_path / "images/sub/a.png", np.zeros((2, 2, 3), np.uint8))
    labels = save(tmp_path / "labels/sub/a.png", np.array([[0, 1], [255, 1]], np.uint8))
    data = _label_folder("own", tmp_path / "images", tmp_path / "labels", ("x", "y"))
    assert data.pairs == ((tmp_path / "images/sub/a.png", labels),)
    assert data.labels(0).tolist() == [[0, 1], [255, 1]]


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("colour", [0, 3], ids=["grey", "palette"])
def test_few_bits_hold_the_same_classes_as_eight(bits: int, colour: int, tmp_path: Path):
    values = np.arange(2 * 13).reshape(2, 13) % 2**bits
    rows = b""  # by hand, after the PNG specification: Pillow writes no grey of 2 or 4 bits
    for row in values:
        text = "".join(f"{value:0{bits}b}" for value in row)
        text += "0" * (-len(text) % 8)
        rows += b"\0" + int(text, 2).to_bytes(len(text) // 8, "big")
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", 13, 2, bits, colour, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    ]
    if colour == 3:
        chunks.insert(1, (b"PLTE", bytes(range(3)) * 2**bits))
    file = tmp_path / "a.png"
    parts = [
        struct.pack(">I", len(held)) + kind + held + struct.pack(">I", zlib.crc32(kind + held)) for kind, held in chunks
    ]
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))
    assert stored_labels(file).tolist() == values.tolist()
    eight = save(tmp_path / "eight.png", values.astype(np.uint8))
    assert semantic.evaluate([eight], [file], [str(one) for one in range(2**bits)]).metrics["mIoU"] == 100.0


def test_faults_are_named(tmp_path: Path):
    with pytest.raises(InputError, match="found 'cityscapes'"):
        get_semantic_dataset("cityscapes")
    with pytest.raises(InputError, match="no such folder"):
        get_semantic_dataset("cityscapes_fine_sem_seg_train", tmp_path)
    image = save(tmp_path / "images/a.png", np.zeros((2, 2, 3), np.uint8))
    (tmp_path / "labels").mkdir()
    with pytest.raises(InputError, match=r"1 images and 1 without: .*a\.png"):
        _label_folder("own", tmp_path / "images", tmp_path / "labels", ("x", "y"))
    label = save(tmp_path / "labels/a.png", np.full((2, 2), 3, np.uint8))
    data = _label_folder("own", tmp_path / "images", tmp_path / "labels", ("x", "y"))
    with pytest.raises(InputError, match=r"labels 0\.\.1 or 255 in .*found \[3\]"):
        data.labels(0)
    save(label, np.zeros((2, 2, 3), np.uint8))
    with pytest.raises(InputError, match="one 8-bit class per pixel"):
        data.labels(0)
    label.write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"cannot read the image .*a\.png"):
        data.labels(0)
    image.unlink()
    with pytest.raises(InputError, match="found 0 images"):
        _label_folder("own", tmp_path / "images", tmp_path / "labels", ("x", "y"))


def test_classes_are_counted_and_binary_masks_of_0_and_255_are_refused(tmp_path: Path):
    for split in ("train", "val"):
        save(tmp_path / f"images/{split}/a.png", np.zeros((2, 2, 3), np.uint8))
        save(tmp_path / f"masks/{split}/a.png", np.array([[0, 255], [255, 0]], np.uint8))
    with pytest.raises(
        InputError, match=r"labels 0, 1, … \(255: ignored\) in .*masks/train, found only 0 and 255; save"
    ):
        label_specs(tmp_path, None)
    save(tmp_path / "masks/val/a.png", np.array([[0, 255], [255, 1]], np.uint8))  # the sets together count
    assert label_specs(tmp_path, None)[2] == 2
    save(tmp_path / "masks/train/a.png", np.array([[0, 255], [255, 7]], np.uint8))
    assert label_specs(tmp_path, None)[2] == 8


def test_truth_of_changed_labels_is_written_anew_and_what_is_left_over_goes(tmp_path):
    data = get_semantic_dataset(write_labels(tmp_path / "data"))
    write_truth(data, tmp_path / "truth")
    first = label_file(tmp_path / "truth", 0)
    before = first.stat().st_mtime_ns
    write_truth(data, tmp_path / "truth")
    assert first.stat().st_mtime_ns == before
    PIL.Image.fromarray(np.full((64, 64), 2, np.uint8)).save(tmp_path / "data/labels/0.png")
    (tmp_path / "data/labels/3.png").unlink()
    (tmp_path / "data/images/3.png").unlink()
    write_truth(get_semantic_dataset(f"{tmp_path / 'data/images'}:{tmp_path / 'data/labels'}:3"), tmp_path / "truth")
    assert (np.asarray(PIL.Image.open(first)) == 2).all()
    assert sorted(file.name for file in (tmp_path / "truth").glob("*.png")) == [
        "000000.png",
        "000001.png",
        "000002.png",
    ]
