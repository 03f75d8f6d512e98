"""Readers of your own labels: images by name, splits by folder, checks of boxes, EXIF orientation."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.data.annotations import decode_mask, encode_mask
from momentum_transfer.transfer.data.own.labelled import (
    Box,
    ImageIndex,
    LabelledImage,
    LabelledSet,
    all_upright,
    check_box,
    check_names,
    labelled_orientation,
    left_out,
    read_names,
    split_by_folders,
)


def image(file: Path, size: tuple[int, int] = (20, 10), orientation: int = 1) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.new("RGB", size).save(file, exif=exif)
    return file


def test_an_image_is_found_by_name_by_stem_and_the_closest_of_several(tmp_path: Path):
    first, second = image(tmp_path / "one/a.jpg"), image(tmp_path / "two/a.jpg")
    other, dotted = image(tmp_path / "b.png"), image(tmp_path / "c.d.jpg")
    index = ImageIndex(tmp_path)

    def find(name: str, near: str = "") -> Path:
        return index.find(name, tmp_path / near, "a label")

    assert find("b.png") == find("b") == find("deep/b.jpg") == find("C:\\x\\b.png") == other
    assert find("c.d.jpg") == find("c.d") == dotted
    assert find("two/a.jpg") == find("one\\two\\a.jpg") == find("a.jpg", near="two") == second
    assert find("two/a.jpg", near="one") == second  # the path says more than the label's folder
    assert find("a.jpg", near="one/labels") == first
    with pytest.raises(InputError, match=r"one image a\.jpg for a label, found .*a\.jpg and .*a\.jpg"):
        find("a.jpg")
    with pytest.raises(InputError, match=rf"the image d\.jpg of a label below {tmp_path}, found none"):
        find("d.jpg")
    assert [index.has(stem) for stem in ("a", "b", "c.d", "c", "b.png")] == [True, True, True, False, False]


def labelled(*names: str) -> list[LabelledImage]:
    return [LabelledImage(Path("/set", name), 20, 10, ()) for name in names]


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (("train/a", "val/b"), ["train", "val"]),
        (("x/Training/a", "x/VALID/b", "x/train/c"), ["train", "val", "train"]),
        (("train/a", "test/b"), ["train", "val"]),
        (("train/a", "val/b", "test/c"), ["train", "val"]),  # test is kept back
        (("train/a", "valid/b", "validation/c", "test/d"), ["train", "val", "val"]),
        (("train/a", "train/b"), ["", ""]),
        (("val/a", "test/b"), ["", ""]),
        (("train/a", "val/b", "c"), ["", "", ""]),
        (("a/train", "b/val"), ["", ""]),  # files, not folders
        (("images/train/a", "images/val/test/b"), ["train", "val"]),  # the first that says one
    ],
)
def test_folders_say_the_split_if_all_do(names: tuple[str, ...], splits: list[str]):
    assert [one.split for one in split_by_folders(labelled(*names), Path("/set"))] == splits
    assert [one.split for one in split_by_folders(labelled(*names), Path("/other"))] == [""] * len(names)


def test_a_note_counts_what_is_left_out():
    assert left_out(0, Path("x")) == ()
    assert left_out(2, Path("x")) == ("left out: 2 images of x, which its split gives neither to train nor to val",)


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_a_labels_size_says_whether_it_is_of_the_image_as_stored(orientation: int, tmp_path: Path):
    file = image(tmp_path / "a.jpg", orientation=orientation)
    upright = (20, 10) if orientation < 5 else (10, 20)
    assert labelled_orientation(file, *upright, "here") == 1
    if orientation > 4:
        assert labelled_orientation(file, 20, 10, "here") == orientation
    with pytest.raises(InputError, match=rf"expected 20x11 pixels .* as here says, found {upright[0]}x{upright[1]}"):
        labelled_orientation(file, 20, 11, "here")


@pytest.mark.parametrize(
    ("box", "said"),
    [
        ((0, 0, 20, 10), ""),
        ((-1, -1, 22, 12), ""),  # a pixel is forgiven
        ((5, 5, 0, 0), ""),
        ((-1.01, 0, 5, 5), "inside its image of 20x10"),
        ((0, -1.01, 5, 5), "inside its image"),
        ((0, 0, 21.01, 5), "inside its image"),
        ((0, 0, 5, 11.01), "inside its image"),
        ((5, 5, -1, 1), "ends in order"),
        ((5, 5, 1, -1), "ends in order"),
        ((float("nan"), 5, 1, 1), "finite numbers"),
        ((0, 0, 1e9, 1), "finite numbers"),
        ((-1e9, 0, 1, 1), "finite numbers"),
    ],
)
def test_a_box_lies_in_its_image_give_or_take_a_pixel(box: tuple[float, ...], said: str):
    if not said:
        check_box(box, 20, 10, "here")
        return
    with pytest.raises(InputError, match=f"{said}.*here|here.*{said}|{said}"):
        check_box(box, 20, 10, "here")


def test_class_names_are_there_once_and_not_empty(tmp_path: Path):
    (tmp_path / "classes.txt").write_text("a\n\nb b\n")
    assert read_names(tmp_path / "classes.txt") == ("a", "b b")
    with pytest.raises(InputError, match="every class once in here, found 'a' twice"):
        check_names(["b", "a", "a"], "here")
    with pytest.raises(InputError, match="found an empty one"):
        check_names(["a", ""], "here")


#: EXIF's orientation -> how an array [H, W] as stored becomes upright, by Pillow's own names.
_TURNS = {5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE,
          8: Image.Transpose.ROTATE_90}  # fmt: skip


@pytest.mark.parametrize("orientation", sorted(_TURNS))
def test_boxes_polygons_and_masks_turn_as_pillow_turns_the_image(orientation: int):
    width, height, box = 20, 10, (3, 1, 8, 4)
    mask = np.zeros((height, width), np.uint8)
    mask[1:5, 3:11] = 1
    mask[1, 3] = 0  # no symmetry
    turned = np.asarray(Image.fromarray(mask).transpose(_TURNS[orientation]))
    rows, columns = turned.any(1).nonzero()[0], turned.any(0).nonzero()[0]
    corner = (columns.min(), rows.min(), columns.max() + 1 - columns.min(), rows.max() + 1 - rows.min())
    polygon = [3.0, 1.0, 11.0, 1.0, 11.0, 5.0, 3.0, 5.0]
    boxes = (Box("a", box, "x"), Box("a", box, "x", segmentation=[polygon]),
             Box("a", box, "x", segmentation=encode_mask(mask.astype(bool))))  # fmt: skip
    lying = LabelledImage(Path("a.jpg"), width, height, boxes, "val", orientation)
    upright = LabelledImage(Path("b.jpg"), width, height, boxes)
    found = all_upright(LabelledSet("form", Path("x"), (upright, lying), notes=("before",)))
    assert found.images[0] is upright
    one = found.images[1]
    assert (one.width, one.height, one.orientation, one.split) == (height, width, 1, "val")
    assert [tuple(turned_box.box) for turned_box in one.objects] == [corner] * 3
    plain, outlined, coded = one.objects
    assert plain.segmentation is None
    xs, ys = outlined.segmentation[0][::2], outlined.segmentation[0][1::2]
    assert (min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)) == corner
    assert np.array_equal(decode_mask(coded.segmentation, width, height), turned.astype(bool))
    assert found.notes == ("before", "1 image labelled as stored, first a.jpg: boxes are turned as EXIF says")


def test_upright_sets_stay_and_malformed_masks_are_named():
    plain = LabelledSet("form", Path("x"), tuple(labelled("a")))
    assert all_upright(plain) is plain
    for mask in ([[1, 2, 3]], {"size": [1, 1], "counts": "P"}, [7]):
        wrong = replace(plain.images[0], objects=(Box("a", (0, 0, 1, 1), "line 3", mask),), orientation=6)
        with pytest.raises(InputError, match="polygons or run lengths in line 3"):
            all_upright(replace(plain, images=(wrong,)))
