"""Images that are the same by their bytes: on both sides of a split, and before and after a resume."""

import os
import shutil
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.images import content
from momentum_transfer.images.content import (
    Overlap,
    fingerprint,
    report_overlap,
    shared_files,
    shared_images,
    shared_rows,
)
from momentum_transfer.images.digits import DigitImages
from momentum_transfer.images.labelled_images import ArrayImages, FileImages
from momentum_transfer.images.subsets import Selected


@pytest.fixture
def files(tmp_path):
    """``files("train", [bytes, …])`` -> paths of files with that content."""

    def make(name, contents):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        paths = [folder / f"{name}_{number}.jpg" for number in range(len(contents))]
        for path, content_of in zip(paths, contents, strict=True):
            path.write_bytes(content_of)
        return [str(path) for path in paths]

    return make


def random_bytes(seed, count):
    return np.random.default_rng(seed).bytes(count)


def test_files_are_shared_by_their_bytes_and_not_by_their_names(files):
    train = [random_bytes(seed, 9000 + seed % 3) for seed in range(30)]
    middle = bytearray(train[7])
    middle[4500] ^= 1
    first, last = bytearray(train[4]), bytearray(train[5])
    first[0] ^= 1
    last[-1] ^= 1
    test = [train[3], bytes(middle), bytes(first), bytes(last), random_bytes(99, 9000), train[3], train[29]]
    naive = sum(one in train for one in test)
    found = shared_files(files("train", train), files("test", test))
    assert (found.count, found.total) == (naive, 7) == (3, 7)
    assert "test_0.jpg is " in found.example
    assert "train_3.jpg" in found.example


def test_a_file_listed_twice_counts_twice(files):
    train, test = files("train", [b"a" * 10]), files("test", [b"a" * 10])
    assert shared_files(train, test * 2).count == 2


def test_only_files_of_a_size_of_both_sides_are_opened_and_links_are_not(files, monkeypatch):
    train, test = files("train", [b"abc", b"defgh", b"linked"]), files("test", [b"abd", b"longest one"])
    os.link(train[2], test[0] + ".link")
    os.symlink(train[1], test[0] + ".symlink")
    opened = []
    for name in ("_middle", "_content"):
        known = getattr(content, name)
        monkeypatch.setattr(content, name, lambda file, known=known: opened.append(file.path) or known(file))
    found = shared_files(train, [*test, test[0] + ".link", test[0] + ".symlink", train[0]])
    assert found.count == 3
    assert set(opened) <= {*train, test[0]}
    assert test[0] in opened


def test_missing_and_empty_files_are_not_shared(files, tmp_path):
    empty = files("train", [b""])
    gone = [str(tmp_path / "gone.jpg")]
    assert shared_files([*empty, *gone], [*files("test", [b""]), *gone]).count == 0


def test_images_in_memory_are_shared_by_their_pixels_also_in_parts():
    pixels = np.random.default_rng(0).integers(0, 256, (12, 4, 4, 3)).astype(np.uint8)
    whole = ArrayImages(pixels, np.arange(12) % 2, ["a", "b"])
    part = Selected(whole, np.array([1, 5, 7]), np.zeros(3, np.int64), ["a"])
    rest = Selected(whole, np.array([0, 7, 9, 5]), np.zeros(4, np.int64), ["a"])
    assert shared_images(part, rest).count == 2
    assert shared_images(ArrayImages(pixels[:6], np.zeros(6), ["a"]), whole).count == 6
    assert shared_images(part, ArrayImages(pixels[:1], np.zeros(1), ["a"])).count == 0


def test_parts_of_a_folder_are_compared_by_their_own_files(files):
    train, test = files("train", [b"one", b"two", b"three"]), files("test", [b"two", b"four"])
    whole = FileImages(train, [0, 0, 0], ["a"])
    part = Selected(whole, np.array([0, 2]), np.zeros(2, np.int64), ["a"])
    assert shared_images(whole, FileImages(test, [0, 0], ["a"])).count == 1
    assert shared_images(part, FileImages(test, [0, 0], ["a"])).count == 0


@pytest.mark.parametrize(("train", "test", "renderings"), [("train", "val", 2), ("val", "val", 2)])
def test_digits_are_shared_where_their_renderings_are_equal(train, test, renderings):
    sides = DigitImages(train, 12), DigitImages(test, 12, renderings=renderings)
    drawn = [[side[index][0].tobytes() for index in range(len(side))] for side in sides]
    assert shared_images(*sides).count == len(set(drawn[0]) & set(drawn[1]))


def test_rows_are_shared_where_all_their_bits_are():
    train = np.random.default_rng(0).standard_normal((50, 7)).astype(np.float32)
    swapped = train[4, ::-1].copy()  # another row of the same sum
    test = np.stack([train[3], swapped, np.nextafter(train[5], 9), train[49], train[3]])
    naive = sum(any((row == other).all() for other in train) for row in test)
    assert shared_rows(train, test).count == naive == 3
    assert "features" in shared_rows(train, test).what


def test_an_overlap_is_told_or_refused_and_none_is_silent(capsys):
    found = Overlap(3, 40, "test images are byte for byte training images", "a.jpg is b.jpg")
    assert report_overlap(found) == 3
    assert "3 of 40 test images are byte for byte training images (first: a.jpg is b.jpg)" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"found 3 of 40 test images .*remove them"):
        report_overlap(found, forbid=True)
    assert report_overlap(Overlap(0, 40, "x"), forbid=True) == 0
    assert capsys.readouterr().err == ""


def image_folder(folder, count=70):
    for number in range(count):
        place = folder / f"class_{number % 2}"
        place.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (4, 4, 3)).astype(np.uint8)
        PIL.Image.fromarray(pixels).save(place / f"{number:03d}.bmp")  # all of one size
    paths = sorted(folder.rglob("*.bmp"))
    return FileImages(paths, [int(path.parent.name[-1]) for path in paths], ["0", "1"])


def differing(before, after):
    return {part for part in after if before.get(part) != after[part]}


def test_a_copy_of_a_folder_is_the_same_and_every_change_names_its_part(tmp_path):
    before = fingerprint(image_folder(tmp_path / "data"))
    shutil.copytree(tmp_path / "data", tmp_path / "elsewhere" / "data")
    assert fingerprint(image_folder(tmp_path / "elsewhere" / "data")) == before
    images = image_folder(tmp_path / "data")
    images.labels[0] = 1
    assert differing(before, fingerprint(images)) == {"labels"}
    assert differing(before, fingerprint(image_folder(tmp_path / "more", 71))) >= {"number", "names and sizes"}
    longer = Path(os.fsdecode(images.paths[3]))
    longer.write_bytes(longer.read_bytes() + b"1")
    assert "names and sizes" in differing(before, fingerprint(images))


def test_overwritten_images_of_the_same_names_and_sizes_differ_in_their_bytes(tmp_path):
    images = image_folder(tmp_path / "data")
    before = fingerprint(images)
    for path in map(os.fsdecode, images.paths):
        pixels = np.asarray(PIL.Image.open(path))[::-1]
        PIL.Image.fromarray(pixels.copy()).save(path)
    assert differing(before, fingerprint(images)) == {"bytes"}


def test_a_pipe_among_the_images_is_not_waited_for(tmp_path):
    images = image_folder(tmp_path / "data", 6)
    pipe = Path(os.fsdecode(images.paths[2]))
    pipe.unlink()
    os.mkfifo(pipe)
    assert fingerprint(images)["number"] == "6"
    assert shared_files([str(pipe)], [str(pipe)]).count == 0


def test_images_in_memory_have_a_fingerprint_of_their_pixels():
    pixels = np.random.default_rng(0).integers(0, 256, (12, 4, 4, 3)).astype(np.uint8)
    before, after = (fingerprint(ArrayImages(one, np.zeros(12), ["a"])) for one in (pixels, pixels[::-1]))
    assert differing(before, after) == {"pixels"}
