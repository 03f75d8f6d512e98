"""Data sets by name, and images kept in memory."""

import pickle
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.images import datasets
from momentum_transfer.images.datasets import DecodedImages, build_dataset, kept_in_memory
from momentum_transfer.images.labelled_images import ArrayImages, FileImages
from momentum_transfer.images.subsets import Selected


def picture(path: Path, value: int, side: int = 8) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.new("RGB", (side, side), (value, 0, 0)).save(path)
    return path


def red(sample: tuple[PIL.Image.Image, int]) -> int:
    return int(np.asarray(sample[0])[0, 0, 0])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for k in range(6):
        picture(tmp_path / "train" / ("cat" if k % 2 else "ant") / f"{k}.png", 10 * k)
    return tmp_path


def test_digits_need_no_folder():
    data = build_dataset("digits", split="val")
    assert len(data) == 540
    assert data.classes == [str(k) for k in range(10)]
    assert data.labels.dtype == np.int64


def test_image_folder_reads_classes_in_alphabetical_order(folder: Path):
    data = build_dataset("imagefolder", folder)
    assert data.classes == ["ant", "cat"]
    assert data.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert [red(data[k]) for k in range(6)] == [0, 20, 40, 10, 30, 50]
    assert data[0][0].mode == "RGB"


def test_file_list_takes_paths_with_spaces_and_named_or_numbered_classes(folder: Path):
    picture(folder / "two words" / "7.png", 70)
    listing = folder / "list.txt"
    listing.write_text("# index\ntwo words/7.png dog\ntrain/cat/1.png cat\n")
    data = build_dataset("filelist", folder, file_list=listing)
    assert data.classes == ["cat", "dog"]
    assert [red(data[0]), red(data[1])] == [70, 10]
    assert data.labels.tolist() == [1, 0]
    listing.write_text("train/cat/1.png 3\ntrain/ant/0.png 0\n")
    assert build_dataset("filelist", folder, file_list=listing).labels.tolist() == [3, 0]


def test_file_list_without_labels_takes_the_folder_as_class(folder: Path):
    listing = folder / "list.txt"
    listing.write_text("train/cat/1.png\ntrain/ant/0.png\n")
    data = build_dataset("filelist", folder, file_list=listing)
    assert data.classes == ["ant", "cat"]
    assert data.labels.tolist() == [1, 0]


def test_simclrs_lists_of_bare_imagenet_names_are_read(tmp_path: Path):
    picture(tmp_path / "n01440764" / "n01440764_10026.JPEG", 90)
    (tmp_path / "list.txt").write_text("n01440764_10026.JPEG\n")
    data = build_dataset("filelist", tmp_path, file_list=tmp_path / "list.txt")
    assert data.classes == ["n01440764"]
    assert abs(red(data[0]) - 90) < 4


def test_faulty_file_lists_are_named(folder: Path):
    listing = folder / "list.txt"
    with pytest.raises(InputError, match="index file"):
        build_dataset("filelist", folder, file_list=listing)
    listing.write_text("# nothing\n")
    with pytest.raises(InputError, match="empty file"):
        build_dataset("filelist", folder, file_list=listing)
    listing.write_text("train/ant/0.png 0\nnonsense\n")
    with pytest.raises(InputError, match=r"list\.txt:2, found 'nonsense'"):
        build_dataset("filelist", folder, file_list=listing)


@pytest.mark.parametrize("name", ["imagefolder", "stl10", "cifar10", "cifar100", "fashion-mnist", "inaturalist"])
def test_missing_data_is_an_error_and_not_a_download(name: str, tmp_path: Path):
    with pytest.raises(InputError, match=r"DATA\.ROOT"):
        build_dataset(name)
    with pytest.raises(InputError, match="found no such folder"):
        build_dataset(name, tmp_path / "absent")
    with pytest.raises(InputError, match="expected"):
        build_dataset(name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_unknown_dataset_and_split_are_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"digits, imagefolder, filelist.*found 'imagenet'"):
        build_dataset("imagenet")
    with pytest.raises(InputError, match="cifar10 split"):
        build_dataset("cifar10", tmp_path, "training")
    with pytest.raises(InputError, match="stl10 split"):
        build_dataset("stl10", tmp_path, "training")
    with pytest.raises(InputError, match="inaturalist split"):
        build_dataset("inaturalist", tmp_path, "2022")


def test_cifar_reads_the_published_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(0)
    base = tmp_path / "cifar-10-batches-py"
    base.mkdir()
    pixels = rng.integers(0, 256, (6, 3072), dtype=np.uint8)
    for number in range(1, 6):
        (base / f"data_batch_{number}").write_bytes(pickle.dumps({"data": pixels, "labels": [0, 1, 2, 3, 4, 5]}))
    (base / "batches.meta").write_bytes(pickle.dumps({"label_names": [str(k) for k in range(10)]}))
    monkeypatch.setattr("torchvision.datasets.CIFAR10._check_integrity", lambda self: True)
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)
    data = build_dataset("cifar10", tmp_path)
    assert len(data) == 30
    image, label = data[2]
    assert label == 2
    np.testing.assert_array_equal(np.asarray(image).transpose(2, 0, 1), pixels[2].reshape(3, 32, 32))


def test_stl10_reads_the_published_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    base = tmp_path / "stl10_binary"
    base.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3, 96, 96), dtype=np.uint8)
    pixels.tofile(base / "train_X.bin")
    pixels.tofile(base / "unlabeled_X.bin")
    np.array([1, 2, 3, 10], np.uint8).tofile(base / "train_y.bin")
    (base / "class_names.txt").write_text("\n".join("abcdefghij"))
    monkeypatch.setattr("torchvision.datasets.STL10._check_integrity", lambda self: True)
    data = build_dataset("stl10", tmp_path)
    assert data.labels.tolist() == [0, 1, 2, 9]
    # STL-10 stores columns first.
    np.testing.assert_array_equal(np.asarray(data[1][0]), pixels[1].transpose(2, 1, 0))
    unlabeled = build_dataset("stl10", tmp_path, "unlabeled")
    assert unlabeled.classes[unlabeled[0][1]] == "unlabeled"


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
