"""Datasets by name; nothing is downloaded."""

import pickle
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.images.datasets import build_dataset


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
