"""Images in tar files are those of the folder, in its order; archives that are cut or hostile are refused in a line."""

import io
import os
import tarfile
from pathlib import Path

import fsspec
import numpy as np
import PIL.Image
import pytest
import torch

from momentum_transfer.core.errors import InputError
from momentum_transfer.images import tar_shards
from momentum_transfer.images.content import fingerprint, shared_images
from momentum_transfer.images.datasets import build_dataset, packed_folders
from momentum_transfer.images.tar_shards import ShardImages, open_shards
from momentum_transfer.images.views import TwoViewDataset, build_views
from momentum_transfer.lowshot.features.extract import data_hash


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for split, count in (("train", 9), ("val", 4)):
        for k in range(count):
            path = tmp_path / "set" / split / ("cat", "ant", "bee")[k % 3] / f"{split}{k}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            PIL.Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8)).save(path)
    return tmp_path / "set"


@pytest.fixture
def shards(folder: Path) -> Path:
    packed_folders(folder, folder.parent / "shards", shard_bytes=3000)
    return folder.parent / "shards"


def opened(root: Path | str, split: str = "train") -> ShardImages:
    found = open_shards(root, split)
    assert found is not None
    return found


def test_shards_hold_the_folders_images_labels_and_order(folder: Path, shards: Path):
    assert len(list(shards.glob("train-*.tar"))) > 2
    for split in ("train", "val"):
        files, packed = (build_dataset("imagefolder", root, split) for root in (folder, shards))
        assert isinstance(packed, ShardImages)
        assert packed.classes == files.classes == ["ant", "bee", "cat"]
        np.testing.assert_array_equal(packed.labels, files.labels)
        for index in range(len(files)):
            np.testing.assert_array_equal(np.asarray(packed[index][0]), np.asarray(files[index][0]))
            assert packed[index][1] == files[index][1]
        assert fingerprint(packed) == fingerprint(files)


def test_two_views_are_bit_for_bit_those_of_the_folder_in_workers_too(folder: Path, shards: Path):
    views = [
        TwoViewDataset(build_dataset("imagefolder", root), build_views("byol", 8), seed=2) for root in (folder, shards)
    ]
    loader = torch.utils.data.DataLoader(views[1], batch_size=9, num_workers=1)
    first, second, labels, _ = next(iter(loader))
    for index in range(9):
        expected = views[0][index]
        assert torch.equal(first[index], expected[0])
        assert torch.equal(second[index], expected[1])
        assert int(labels[index]) == expected[2]


def test_a_damaged_image_is_replaced_as_in_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch):
    path = next((folder / "train" / "bee").iterdir())
    path.write_bytes(path.read_bytes()[:60])
    packed_folders(folder, folder.parent / "shards")
    files, packed = build_dataset("imagefolder", folder), opened(folder.parent / "shards")
    for index in range(len(files)):
        np.testing.assert_array_equal(np.asarray(packed[index][0]), np.asarray(files[index][0]))
    assert ":bee/" in packed._name(4)


def test_test_images_that_train_too_are_found_in_shards(folder: Path, shards: Path, tmp_path: Path):
    train, val = (build_dataset("imagefolder", shards, split) for split in ("train", "val"))
    assert shared_images(train, val).count == 0
    target = folder / "val" / "ant" / "again.png"
    target.write_bytes(next((folder / "train" / "cat").iterdir()).read_bytes())
    packed_folders(folder, tmp_path / "other")
    assert shared_images(train, build_dataset("imagefolder", tmp_path / "other", "val")).count == 1
    assert shared_images(train, build_dataset("imagefolder", folder, "val")).count == 1


def test_features_of_replaced_archives_are_not_taken_from_the_cache(shards: Path):
    before = data_hash(opened(shards)), data_hash(opened(shards), content=True)
    tar = sorted(shards.glob("train-*.tar"))[0]
    os.utime(tar, ns=(1, 1))
    assert data_hash(opened(shards)) != before[0]
    assert data_hash(opened(shards), content=True) == before[1]


def test_an_archive_that_vanishes_makes_its_images_unreadable(shards: Path):
    data = opened(shards)
    data.max_unreadable = 1
    sorted(shards.glob("train-*.tar"))[0].unlink()
    with pytest.raises(InputError, match="expected at most 1 unreadable images"):
        [data[k] for k in range(9)]


def test_shards_at_a_url_are_read_there(shards: Path):
    memory = fsspec.filesystem("memory")
    memory.put(f"{shards}/", "/bucket/shards/", recursive=True)
    here, there = opened(shards), build_dataset("imagefolder", "memory://bucket/shards", "train")
    np.testing.assert_array_equal(np.asarray(there[7][0]), np.asarray(here[7][0]))
    assert fingerprint(there) == fingerprint(here)
    with pytest.raises(InputError, match=r"expected test-\*\.tar at memory://bucket/shards, found none"):
        build_dataset("imagefolder", "memory://bucket/shards", "test")


def archive(path: Path, members: list[tuple[tarfile.TarInfo | str, bytes]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for member, content in members:
            info = tarfile.TarInfo(member) if isinstance(member, str) else member
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def png(value: int) -> bytes:
    stream = io.BytesIO()
    PIL.Image.new("RGB", (4, 4), (value, 0, 0)).save(stream, "PNG")
    return stream.getvalue()


def test_archives_of_other_writers_are_indexed_once_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    long = "d" * 120 + "/é" + "x" * 90
    archive(tmp_path / "web" / "train" / "b.tar", [("3.jpg", png(30)), ("3.cls", b"dog"), ("3.json", b"{}")])
    first = [(f"./{long}.png", png(10)), (f"./{long}.cls", b"cat\n"), ("2.seg.png", png(99))]
    archive(tmp_path / "web" / "train" / "a.tar", [*first, ("2.png", png(20)), ("2.cls", b"dog")])
    data = opened(tmp_path / "web")
    assert data.classes == ["cat", "dog"]
    assert data.labels.tolist() == [0, 1, 1]
    assert [np.asarray(data[k][0])[0, 0, 0] for k in range(3)] == [10, 20, 30]
    assert os.fsdecode(data.paths[0]) == f"{long}.png"
    monkeypatch.setattr(tar_shards, "_scan", lambda *_: pytest.fail("scanned again"))
    assert len(opened(tmp_path / "web")) == 3
    unlabelled = archive(tmp_path / "plain" / "train-0.tar", [("1.png", png(1)), ("2.png", png(2))])
    monkeypatch.undo()
    assert opened(unlabelled.parent).classes == ["unlabelled"]


def link(kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo("1.png")
    info.type, info.linkname = kind, "/etc/passwd"
    return info


HOSTILE: dict[str, tuple[list[tuple[tarfile.TarInfo | str, bytes]], str]] = {
    "symbolic link": ([(link(tarfile.SYMTYPE), b"")], "found a link or a device"),
    "hard link": ([(link(tarfile.LNKTYPE), b"")], "found a link or a device"),
    "pipe": ([(link(tarfile.FIFOTYPE), b"")], "found a link or a device"),
    "absolute": ([("/etc/1.png", png(1))], "found a name outside it"),
    "upward": ([("../1.png", png(1))], "found a name outside it"),
    "twice": ([("1.png", png(1)), ("2.png", png(2)), ("1.png", png(3))], "found two"),
    "two labels": ([("1.png", png(1)), ("1.cls", b"1"), ("1.cls", b"2")], "one short label"),
    "no label": ([("1.png", png(1)), ("2.png", png(2)), ("2.cls", b"2")], "found none of 1.png"),
    "no image": ([("1.txt", b"words")], "found none"),
    "long name": ([("n" * 5000 + ".png", png(1))], "names of at most"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_one_line(name: str, tmp_path: Path):
    members, message = HOSTILE[name]
    archive(tmp_path / "train-0.tar", members)
    with pytest.raises(InputError, match=message) as caught:
        open_shards(tmp_path, "train")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("left", [100, 512, 600, 1024, 1536, 2000])
def test_a_cut_archive_is_one_line(left: int, tmp_path: Path):
    path = archive(tmp_path / "train-0.tar", [("1.png", png(1)), ("1.cls", b"0"), ("2.png", png(2))])
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(InputError, match=r"it is cut|copy it again"):
        open_shards(tmp_path, "train")


def test_a_size_that_lies_or_a_flipped_header_is_one_line(tmp_path: Path):
    path = archive(tmp_path / "train-0.tar", [("1.png", png(1)), ("2.png", png(2))])
    content = bytearray(path.read_bytes())
    info = tarfile.TarInfo("1.png")
    info.size = 1 << 33
    path.write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(content[512:]))
    with pytest.raises(InputError, match=r"expected 8589934592 bytes for '1\.png'"):
        open_shards(tmp_path, "train")
    content[3] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="expected a tar file"):
        open_shards(tmp_path, "train")


def test_an_index_of_other_archives_or_with_places_outside_is_one_line(shards: Path):
    array = shards / "train.index.npy"
    tar = sorted(shards.glob("train-*.tar"))[1]
    whole, index = tar.read_bytes(), np.load(array)
    tar.write_bytes(whole[:-512])
    with pytest.raises(InputError, match="found another size of"):
        open_shards(shards, "train")
    tar.write_bytes(whole)
    for field, value in (("offset", -1), ("offset", 1 << 62), ("size", 1 << 40), ("shard", 99), ("label", 3)):
        changed = index.copy()
        changed[field][4] = value
        np.save(array, changed)
        with pytest.raises(InputError, match="a place outside the archives in row 4"):
            open_shards(shards, "train")
    changed = index.copy()
    changed["offset"][0] += 512
    np.save(array, changed)
    with pytest.raises(InputError, match=r"found others|expected a tar file"):
        opened(shards)[0]
    array.write_bytes(b"\x93NUMPY no")
    with pytest.raises(InputError, match="expected an index of tar files"):
        open_shards(shards, "train")


def test_packing_keeps_names_apart_that_webdataset_would_join(tmp_path: Path):
    for name in ("a.b.png", "a.c.png", "a_b.png"):
        (tmp_path / "x" / "k").mkdir(parents=True, exist_ok=True)
        (tmp_path / "x" / "k" / name).write_bytes(png(ord(name[-5])))
    packed_folders(tmp_path / "x", tmp_path / "out")
    data = opened(tmp_path / "out")
    assert sorted(os.fsdecode(path) for path in data.paths) == ["k/a_b.png", "k/a_b_.png", "k/a_c.png"]
    with pytest.raises(InputError, match="expected no tar files of train"):
        packed_folders(tmp_path / "x", tmp_path / "out")


def test_an_empty_file_keeps_its_place(tmp_path: Path):
    (tmp_path / "x" / "k").mkdir(parents=True)
    for name, content in (("a.png", png(1)), ("b.png", b""), ("c.png", png(3))):
        (tmp_path / "x" / "k" / name).write_bytes(content)
    packed_folders(tmp_path / "x", tmp_path / "out")
    data = opened(tmp_path / "out")
    assert [os.fsdecode(path) for path in data.paths] == ["k/a.png", "k/b.png", "k/c.png"]
    assert data.labels.tolist() == [0, 0, 0]


def test_pack_is_a_function_of_the_images_alone(folder: Path, tmp_path: Path):
    for name in ("one", "two"):
        packed_folders(folder, tmp_path / name)
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == [
        f"{split}{end}" for split in ("train", "val") for end in ("-000000.tar", ".index.json", ".index.npy")
    ]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
