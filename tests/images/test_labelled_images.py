"""Image files with replacements, arrays, and VOC 2007."""

from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch

from momentum_transfer.core.errors import InputError
from momentum_transfer.images.labelled_images import CLASSES, ArrayImages, FileImages, VocImages


def picture(path: Path, value: int, side: int = 8) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.new("RGB", (side, side), (value, 0, 0)).save(path)
    return path


def red(sample: tuple[PIL.Image.Image, int]) -> int:
    return int(np.asarray(sample[0])[0, 0, 0])


def damaged(tmp_path: Path, broken: list[int], limit: int = 100) -> FileImages:
    paths = [picture(tmp_path / f"{k}.png", 10 * k, side=64) for k in range(8)]
    for k in broken:
        paths[k].write_bytes(paths[k].read_bytes()[:60])
    return FileImages(paths, [k % 2 for k in range(8)], ["even", "odd"], limit)


def test_unreadable_image_is_replaced_by_the_next_of_its_class_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    data = damaged(tmp_path, broken=[2, 7])
    assert red(data[2]) == 40
    assert red(data[7]) == 10  # cyclically
    assert data[7][1] == 1
    assert data.unreadable == [str(tmp_path / "2.png"), str(tmp_path / "7.png")]
    _ = data[2]
    assert capsys.readouterr().err.count("2.png") == 1  # named once


def test_replacement_does_not_depend_on_what_was_read_before(tmp_path: Path):
    forwards, backwards = damaged(tmp_path, [2, 3, 4]), damaged(tmp_path, [2, 3, 4])
    first = [red(forwards[k]) for k in range(8)]
    second = [red(backwards[k]) for k in reversed(range(8))][::-1]
    assert first == second == [0, 10, 60, 50, 60, 50, 60, 70]


def test_more_unreadable_images_than_the_limit_are_an_error(tmp_path: Path):
    data = damaged(tmp_path, broken=[0, 1, 2], limit=2)
    _ = data[0]
    with pytest.raises(InputError, match=r"at most 2 unreadable images, found 3: .*0\.png.*1\.png.*2\.png"):
        _ = [data[k] for k in range(8)]


def test_a_class_without_any_readable_image_is_an_error(tmp_path: Path):
    data = damaged(tmp_path, broken=[0, 2, 4, 6])
    with pytest.raises(InputError, match="readable image of class 'even', found none"):
        _ = data[4]


def test_missing_file_counts_as_unreadable(tmp_path: Path):
    data = damaged(tmp_path, broken=[])
    (tmp_path / "5.png").unlink()
    assert red(data[5]) == 70
    assert data.unreadable == [str(tmp_path / "5.png")]


def test_workers_share_the_count_of_unreadable_images(tmp_path: Path):
    data = damaged(tmp_path, broken=[1, 6])
    loader = torch.utils.data.DataLoader(
        data, batch_size=2, num_workers=2, collate_fn=lambda batch: [red(s) for s in batch]
    )
    values = [value for batch in loader for value in batch]
    assert values == [0, 30, 20, 30, 40, 50, 0, 70]
    assert len(data.unreadable) == 2


def test_too_many_unreadable_images_in_a_worker_are_one_line(tmp_path: Path):
    data = damaged(tmp_path, broken=[0, 1, 2], limit=1)
    loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=1, collate_fn=len)
    with pytest.raises(InputError, match=r"^expected at most 1 unreadable images, found 2: \S*0\.png") as caught:
        list(loader)
    assert "\n" not in str(caught.value)


@pytest.fixture
def devkit(tmp_path):
    """Three images: a cat, a difficult cat with a dog, nothing but a person."""
    (tmp_path / "JPEGImages").mkdir()
    (tmp_path / "ImageSets" / "Main").mkdir(parents=True)
    flags = {"cat": (1, 0, -1), "dog": (-1, 1, -1), "person": (-1, -1, 1)}
    for name in CLASSES:
        lines = [f"00000{i} {flag:2d}\n" for i, flag in enumerate(flags.get(name, (-1, -1, -1)))]
        (tmp_path / "ImageSets" / "Main" / f"{name}_test.txt").write_text("".join(lines))
    for i in range(3):
        PIL.Image.new("L", (8, 6), 40 * i).save(tmp_path / "JPEGImages" / f"00000{i}.jpg")
    return tmp_path


def test_labels_are_multi_hot_and_difficult_counts_as_absent(devkit):
    data = VocImages(devkit, "test")
    shown = [[CLASSES[k] for k in np.flatnonzero(row)] for row in data.labels]
    assert shown == [["cat"], ["dog"], ["person"]]
    assert data.labels.shape == (3, 20)
    image, _ = data[2]
    assert (image.mode, image.size) == ("RGB", (8, 6))
    assert len(data) == 3


def test_damaged_folders_are_refused(devkit):
    with pytest.raises(InputError, match="a VOC 2007 split of train, val, trainval, test, found 'all'"):
        VocImages(devkit, "all")
    with pytest.raises(InputError, match=r"image list .*aeroplane_trainval\.txt"):
        VocImages(devkit, "trainval")
    (devkit / "JPEGImages" / "000001.jpg").unlink()
    with pytest.raises(InputError, match="1 images of VOC 2007 test are missing"):
        VocImages(devkit, "test")
    listing = devkit / "ImageSets" / "Main" / "dog_test.txt"
    listing.write_text("000000 1\n")
    with pytest.raises(InputError, match="name different images"):
        VocImages(devkit, "test")
    listing.write_text("000000 yes\n")
    with pytest.raises(InputError, match=r"expected an image and 1, 0 or -1 in .*:1"):
        VocImages(devkit, "test")


def test_the_last_readable_image_of_a_class_replaces_all_others(tmp_path: Path):
    data = damaged(tmp_path, broken=[0, 2, 6])
    assert [red(data[k]) for k in (0, 2, 4, 6)] == [40] * 4
    few = FileImages([tmp_path / "0.png", tmp_path / "1.png"], [0, 0], ["only"])
    assert red(few[0]) == 10


def test_as_many_unreadable_images_as_the_limit_are_replaced(tmp_path: Path):
    data = damaged(tmp_path, broken=[0, 1], limit=2)
    assert [red(data[k]) for k in range(4)] == [20, 30, 20, 30]
    assert (len(data), data[-1][1]) == (8, 1)


def test_arrays_are_images_with_their_labels():
    pixels = np.random.default_rng(0).integers(0, 256, (3, 4, 5, 3), dtype=np.uint8)
    data = ArrayImages(pixels, [2, 0, 1], ["a", "b", "c"])
    assert len(data) == 3
    image, label = data[1]
    assert (image.mode, image.size, label) == ("RGB", (5, 4), 0)
    assert np.array_equal(np.asarray(image), pixels[1])
