"""Decoded images in memory beside the files that they come from."""

import numpy as np
import PIL.Image
import pytest

from momentum_transfer.images import datasets
from momentum_transfer.images.datasets import DecodedImages, kept_in_memory
from momentum_transfer.images.labelled_images import ArrayImages, FileImages
from momentum_transfer.images.subsets import Selected


@pytest.fixture
def files(tmp_path):
    """Seven JPEGs of different sizes and modes, one of them damaged, in two classes."""
    random = np.random.default_rng(0)
    for index in range(7):
        pixels = random.integers(0, 256, (20 + index, 31 - index, 3), dtype=np.uint8)
        image = PIL.Image.fromarray(pixels)
        (image.convert("L") if index == 2 else image).save(tmp_path / f"{index}.jpg")
    (tmp_path / "5.jpg").write_bytes(b"no image")
    return FileImages([tmp_path / f"{index}.jpg" for index in range(7)], [0, 1, 0, 1, 0, 1, 0], ["a", "b"])


def same(one, other):
    assert len(one) == len(other)
    for index in range(len(one)):
        (image, label), (expected, other_label) = one[index], other[index]
        assert image.mode == "RGB"
        assert label == other_label
        np.testing.assert_array_equal(np.asarray(image), np.asarray(expected))


def test_the_pixels_labels_and_replacements_are_those_of_the_files(files):
    same(DecodedImages(files), files)
    part = Selected(files, np.array([6, 1, 5]), np.array([0, 1, 1]), ["x", "y"])
    kept = kept_in_memory(part, 0.5, uses=2)
    assert isinstance(kept, DecodedImages)
    same(kept, part)
    assert kept.classes == ["x", "y"]
    with pytest.raises(IndexError):
        kept[3]


def test_images_stay_files_where_memory_or_uses_do_not_suffice(files, monkeypatch: pytest.MonkeyPatch):
    assert kept_in_memory(files, 0.0, uses=9) is files
    assert kept_in_memory(files, 0.5, uses=1) is files
    monkeypatch.setattr(datasets, "available_memory", lambda: 4 * 2 * 3 * 7 * 30 * 30)
    assert isinstance(kept_in_memory(files, 0.5, uses=2), DecodedImages)
    assert kept_in_memory(files, 0.5, uses=2, processes=4) is files
    monkeypatch.setattr(datasets, "available_memory", lambda: None)
    assert kept_in_memory(files, 0.5, uses=2) is files


def test_arrays_are_in_memory_already():
    images = ArrayImages(np.zeros((3, 4, 4, 3), dtype=np.uint8), [0, 0, 0], ["a"])
    assert kept_in_memory(images, 0.5, uses=9) is images
