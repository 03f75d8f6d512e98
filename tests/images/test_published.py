"""Published data sets by the numbers of their papers and pages, and downloads that cannot begin."""

import urllib.error
from pathlib import Path
from types import SimpleNamespace

import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.images import published
from momentum_transfer.images.published import (
    BIG,
    LICENSED,
    PUBLISHED,
    Licensed,
    Part,
    fetch,
    look,
    size,
    there,
)
from momentum_transfer.images.published_counts import published_counts, same_dataset


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("ImageNet val", (50_000, 1000)), ("imagenet", (50_000, 1000)), ("coco_2017_val", (5000, 80)),
        ("COCO val2017", (5000, 80)), ("lvis_v1_val", (19_809, 1203)), ("LVIS v0.5", (5000, 1230)),
        ("voc_2007_test", (4952, 20)), ("VOC07", (4952, 20)), ("cityscapes_fine_sem_seg_val", (500, 19)),
        ("STL-10 test", (8000, 10)), ("iNaturalist", (24_426, 8142)), ("cifar-10", (10_000, 10)),
        ("CIFAR 100", (10_000, 100)), ("mine", None), ("", None), ("test", None),
    ],
)  # fmt: skip
def test_a_test_set_is_known_by_its_name_with_its_published_counts(name: str, counts: tuple[int, int] | None):
    assert published_counts(name) == counts


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [("VOC07 test", "voc_2007_test", True), ("VOC12", "voc_2012_trainval", True), ("VOC07", "voc_2012", False),
     ("test", "val", False), ("", "", False), ("CIFAR-10", "CIFAR-100", False), ("set 07", "set 2007", False),
     ("VOC20", "voc_2020", False)],
)  # fmt: skip
def test_names_of_one_set_have_the_same_words(one: str, other: str, same: bool):
    assert same_dataset(one, other) is same


def test_sizes_are_told_in_megabytes_and_from_a_gigabyte_on_in_gigabytes():
    assert [size(count) for count in (0, 1, 1_499_999, 1_500_001, 999_400_000, 10**9, 18_449_000_000)] == [
        "1 MB", "1 MB", "1 MB", "2 MB", "999 MB", "1.0 GB", "18.4 GB"
    ]  # fmt: skip


def test_what_takes_more_than_a_gigabyte_asks_first():
    assert BIG == 10**9
    assert {name for name, data in PUBLISHED.items() if data.download > BIG} == {"stl10", "voc2012"}


def test_every_set_is_as_large_as_its_authors_say():
    """Bytes of torchvision's archives by their servers, in megabytes; unpacked, what the pixels take at least."""
    megabytes = {name: (data.download // 10**6, data.unpacked // 10**6) for name, data in PUBLISHED.items()}
    pixels = {"mnist": 70_000 * 28**2, "fashion-mnist": 70_000 * 28**2, "kmnist": 70_000 * 28**2,
              "cifar10": 60_000 * 32**2 * 3, "cifar100": 60_000 * 32**2 * 3, "stl10": 113_000 * 96**2 * 3}  # fmt: skip
    for name, count in pixels.items():
        assert 0.98 * count < PUBLISHED[name].unpacked < 1.05 * count
    archives = {"mnist": 12, "fashion-mnist": 31, "kmnist": 21, "cifar10": 171, "cifar100": 169, "stl10": 2640,
                "voc2007": 911, "voc2012": 2000}  # fmt: skip
    assert {name: download for name, (download, _) in megabytes.items()} == archives
    assert all(unpacked > download for download, unpacked in megabytes.values())


def test_parts_have_the_files_that_their_pages_count():
    found = {part.path: (part.count, part.classes) for one in LICENSED.values() for part in one.parts if part.count}
    assert found == {
        "coco/train2017": (118_287, 0), "coco/val2017": (5000, 0), "train": (1_281_167, 1000), "val": (50_000, 1000),
        **{f"cityscapes/{kind}/{part}": (count, 0) for kind in ("leftImg8bit", "gtFine")
           for part, count in (("train", 2975), ("val", 500))},
    }  # fmt: skip


def test_a_download_needs_room_for_the_archives_and_what_is_in_them(monkeypatch, tmp_path: Path):
    asked: list[Path] = []
    free = SimpleNamespace(free=(12 + 55) * 10**6 - 1)
    monkeypatch.setattr(published.shutil, "disk_usage", lambda folder: asked.append(folder) or free)
    with pytest.raises(InputError, match=r"expected 67 MB of free space in .*, found 67 MB; choose another --root"):
        fetch("mnist", tmp_path / "a/b")
    assert asked == [tmp_path]  # the nearest folder that is there
    free.free += 1
    tried: list[str] = []
    monkeypatch.setattr(published, "reachable", lambda address: tried.append(address) or False)
    with pytest.raises(InputError, match=r"no network to .*; fetch mnist where there is one"):
        fetch("mnist", tmp_path / "a/b")
    assert tried == list(PUBLISHED["mnist"].addresses)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("error", [urllib.error.URLError("refused"), RuntimeError("corrupted"), EOFError("cut off")])
def test_a_download_that_breaks_off_is_one_line_and_one_mirror_is_enough(error, monkeypatch, tmp_path: Path):
    def fail(root: Path) -> None:
        raise error

    data = PUBLISHED["mnist"]
    values = {**vars(data), "addresses": ("down", "up"), "fetch": fail, "check": lambda root: {"train": 3}}
    monkeypatch.setitem(published.PUBLISHED, "mnist", type(data)(**values))
    monkeypatch.setattr(published, "reachable", lambda address: address == "up")
    with pytest.raises(InputError, match=r"mnist could not be downloaded: .*; give the command again, or see yann"):
        fetch("mnist", tmp_path / "new")
    monkeypatch.setitem(published.PUBLISHED, "mnist", type(data)(**{**values, "fetch": lambda root: None}))
    assert fetch("mnist", tmp_path / "new") == {"train": 3}


def test_a_set_is_there_where_its_folder_is_whole(monkeypatch, tmp_path: Path):
    def check(root: Path) -> dict[str, int]:
        if not (root / "whole").exists():
            raise InputError("expected all parts")
        return {"train": 3}

    data = PUBLISHED["mnist"]
    monkeypatch.setitem(published.PUBLISHED, "mnist", type(data)(**{**vars(data), "check": check}))
    assert there("mnist", tmp_path / "absent") is there("mnist", tmp_path) is None
    (tmp_path / "whole").touch()
    assert there("mnist", tmp_path) == {"train": 3}


@pytest.mark.parametrize(
    ("part", "files", "problem"),
    [
        (Part("a/list.txt", "x"), {"a/list.txt": "1"}, ""),
        (Part("a/list.txt", "x"), {"a/list.txt": ""}, "empty"),
        (Part("a/list.txt", "x"), {}, "missing"),
        (Part("a/list.txt", "x"), {"list.txt": "1"}, "missing; list.txt is there: give the folder above it"),
        (Part("a/b", "x", 2), {"a/b/1.jpg": "", "a/b/deep/2.JPG": "", "a/b/3.png": ""}, ""),
        (Part("a/b", "x", 3), {"a/b/1.jpg": "", "a/b/2.jpg": ""}, "2 files of 3"),
        (Part("a/b", "x", 3), {"a/b": "a file"}, "missing"),
        (Part("b", "x", 2, classes=2), {"b/c/1.jpg": "", "b/d/2.jpg": ""}, ""),
        (Part("b", "x", 2, classes=2), {"b/c/1.jpg": "", "b/c/2.jpg": ""}, "1 class folders of 2"),
        (Part("b", "x", 1, classes=2), {"b/1.jpg": ""},
         "0 class folders of 2 (its files are not in class folders: move each into its class's)"),
        (Part("b", "x", 1, classes=2), {"b/1.txt": ""}, "0 class folders of 2"),
        (Part("b", "x", 2, classes=1), {"b/c/1.jpg": ""}, "1 files of 2"),
    ],
)  # fmt: skip
def test_a_part_is_whole_or_its_problem_is_told(part: Part, files: dict, problem: str, tmp_path: Path, monkeypatch):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setitem(published.LICENSED, "coco", Licensed("Small", "page", (part,), "x"))
    assert look("coco", tmp_path) == [(part, problem)]
    with pytest.raises(InputError, match="expected the folder of Small at"):
        look("coco", tmp_path / "absent")
