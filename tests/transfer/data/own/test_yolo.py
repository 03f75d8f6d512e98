"""YOLO's labels: which text file an image has, which folders a data.yaml means, numbers as before their rounding."""

import shutil
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.data.own import yolo


def image(file: Path, size: tuple[int, int] = (20, 10)) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size).save(file)
    return file


def text(file: Path, content: str = "0 .5 .5 .1 .1\n") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    return file


def test_names_are_those_nearest_to_the_labels(tmp_path: Path):
    folder = tmp_path / "a/b/set"
    folder.mkdir(parents=True)
    text(tmp_path / "classes.txt", "far")
    assert yolo.names_file(folder) is None  # three folders up
    for nearer in (tmp_path / "a/classes.txt", tmp_path / "a/b/obj.names", folder / "labels/labels.txt",
                   folder / "classes.txt", folder / "z.yaml"):  # fmt: skip
        text(nearer, "names: [x]\n")
        assert yolo.names_file(folder) == nearer
    text(folder / "a.yml", "train: images\n")  # no names
    assert yolo.names_file(folder) == folder / "z.yaml"


def test_images_of_a_folder_have_the_texts_beside_them_or_in_labels(tmp_path: Path):
    beside, inside, below, alone = (image(tmp_path / name) for name in ("a.png", "images/b.png", "x/c.png", "d.png"))
    texts = [text(tmp_path / name) for name in ("a.txt", "labels/b.txt", "x/labels/c.txt")]
    assert yolo.labelled_files(tmp_path) == {beside: texts[0], inside: texts[1], below: texts[2], alone: None}
    text(tmp_path / "images/b.txt")
    assert yolo.labelled_files(tmp_path)[inside] == texts[1]  # labels/ before beside


def test_the_last_images_of_a_path_stands_for_labels(tmp_path: Path):
    file = image(tmp_path / "images/set/images/train/a.png")
    text(tmp_path / "labels/set/images/train/a.txt")
    last = text(tmp_path / "images/set/labels/train/a.txt")
    assert yolo.labelled_files(tmp_path / "images/set/images") == {file: last}
    named = image(tmp_path / "one/images.png")
    assert yolo.labelled_files(tmp_path / "one") == {named: None}


def test_a_folder_of_labels_finds_its_images_beside_it(tmp_path: Path):
    first, second = image(tmp_path / "labels/set/images/train/a.png"), image(tmp_path / "labels/set/images/train/b.png")
    label = text(tmp_path / "labels/set/labels/train/a.txt")
    assert yolo.labelled_files(label.parent) == {first: label, second: None}
    shutil.rmtree(tmp_path / "labels/set/images")
    other = image(tmp_path / "labels/set/labels/a.png")  # no images/: the folder above the labels
    assert yolo.labelled_files(label.parent) == {other: label}
    assert yolo.labelled_files(text(tmp_path / "texts/a.txt").parent) == {}


def test_images_of_another_folder_need_a_text_and_one_only(tmp_path: Path):
    for name in ("train/a.png", "val/a.png", "b.png", "c.png"):
        image(tmp_path / "photos" / name)
    own, by_name = text(tmp_path / "texts/val/a.txt"), text(tmp_path / "texts/deep/b.txt")
    photos = tmp_path / "photos"
    found = yolo.labelled_files(tmp_path / "texts", photos)
    assert found == {photos / "train/a.png": own, photos / "val/a.png": own, photos / "b.png": by_name}
    other = text(tmp_path / "texts/train/a.txt")  # the same path comes before the same name
    assert yolo.labelled_files(tmp_path / "texts", photos)[photos / "train/a.png"] == other
    text(tmp_path / "texts/b/b.txt")
    with pytest.raises(InputError, match=r"one text file for .*b\.png, found .*b\.txt and .*b\.txt"):
        yolo.labelled_files(tmp_path / "texts", photos)


def yaml_set(folder: Path, *parts: str, **settings: str) -> Path:
    for part in parts:
        image(folder / f"{part}/images/{part}.png")
        text(folder / f"{part}/labels/{part}.txt")
    lines = [f"{key}: {value}\n" for key, value in {"names": "[a, b]", **settings}.items()]
    return text(folder / "data.yaml", "".join(lines))


@pytest.mark.parametrize(
    ("parts", "splits", "left_out"),
    [
        (("train", "val"), {"train": "train", "val": "val"}, 0),
        (("train", "test"), {"train": "train", "test": "val"}, 0),
        (("train", "val", "test"), {"train": "train", "val": "val"}, 1),
        (("train", "valid"), {"train": "train", "valid": "val"}, 0),
        (("train",), {"train": ""}, 0),
        (("test",), {"test": ""}, 0),
    ],
)
def test_of_three_parts_test_is_kept_back_and_a_part_alone_is_no_split(parts, splits, left_out, tmp_path: Path):
    read = yolo.read_yolo(yaml_set(tmp_path, *parts, **{part: f"{part}/images" for part in parts}))
    assert {one.file.stem: one.split for one in read.images} == splits
    assert [note.partition(" of ")[0] for note in read.notes] == ["left out: 1 image"] * left_out
    assert (read.declared, read.root) == (("a", "b"), tmp_path)
    assert [box.name for one in read.images for box in one.objects] == ["a"] * len(splits)


def test_an_image_of_train_that_test_lists_too_is_not_left_out(tmp_path: Path):
    file = yaml_set(tmp_path, "train", "val", train="train/images", val="val/images", test="[train/images, nowhere]")
    assert yolo.read_yolo(file).notes == ()
    file = yaml_set(tmp_path, "train", "val", train="train/images", val="val/images", test="train/images")
    assert yolo.read_yolo(file).notes == ()


@pytest.mark.parametrize(
    ("base", "train"),
    [
        ("", "train/images"),
        ("", "../train/images"),
        ("", "/home/other/deep/train/images"),
        ("/home/other", "D:\\\\deep\\\\TRAIN/../train/images"),
        ("inner", "train/images"),
        ("", "/other/inner/train"),  # by the last two folders
        ("", "[train/images]"),
        ("", "listed.txt"),
    ],
)
def test_folders_of_another_machine_are_found_by_their_end(base: str, train: str, tmp_path: Path):
    file = yaml_set(tmp_path, "train", path=f'"{base}"', train=train)
    (tmp_path / "inner").mkdir()
    if "inner" in base + train:
        (tmp_path / "train").rename(tmp_path / "inner/train")
    text(tmp_path / "listed.txt", "C:\\set\\train\\images\\train.png\n\n")
    assert [one.file.name for one in yolo.read_yolo(file).images] == ["train.png"]


def test_a_listed_image_is_the_one_with_the_longest_common_end(tmp_path: Path):
    wanted, other = image(tmp_path / "b/a.png"), image(tmp_path / "a.png")
    listing = text(tmp_path / "train.txt", "/of/another/b/a.png\n/of/another/c/a.png\nb/a.png\nnone.png\n")
    assert yolo._image_list(listing) == [wanted, other, wanted, tmp_path / "none.png"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"names": "{0: a, 2: b}"}, "names as a list, or numbered from 0"),
        ({"names": "[]"}, "names as a list"),
        ({"nc": "3"}, r"as many names as nc says in .*data\.yaml, found 2 and nc 3"),
        ({"kpt_shape": "[17, 3]"}, "key points"),
        ({"train": "3"}, "train in .* to name a folder, found 3"),
        ({"train": "empty"}, "images for train in .*empty"),
        ({"train": "missing"}, "the images of train at .*missing"),
    ],
)
def test_a_data_yaml_that_cannot_be_meant_is_refused(settings: dict[str, str], said: str, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=said):
        yolo.read_yolo(yaml_set(tmp_path, "train", **{"train": "train/images", **settings}))


def test_classes_may_be_numbered_in_any_order_and_counted(tmp_path: Path):
    file = yaml_set(tmp_path, "train", train="train/images", names="{1: b, 0: ' a '}", nc="2")
    assert yolo.read_yolo(file).declared == ("a", "b")


def test_a_folder_with_train_and_val_below_it_is_split(tmp_path: Path):
    yaml_set(tmp_path, "train", "valid", "test")
    for source, options in ((tmp_path, {}), (tmp_path, {"images": tmp_path})):
        read = yolo.read_yolo(source, **options)
        assert {one.file.stem: one.split for one in read.images} == {"train": "train", "valid": "val"}
        assert read.notes[0].startswith("left out: 1 image of")
    (tmp_path / "data.yaml").unlink()
    with pytest.raises(InputError, match=r"classes\.txt with the classes' names in or above"):
        yolo.read_yolo(tmp_path)
    text(tmp_path / "classes.txt", "a\nb\n")
    assert yolo.read_yolo(tmp_path).declared == ("a", "b")
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match="expected images below"):
        yolo.read_yolo(tmp_path / "none")


def test_centre_and_sides_are_pixels_of_the_corner(tmp_path: Path):
    size = (640, 480)
    file = image(tmp_path / "a.png", size)
    drawn = [(13, 7, 50, 31), (0, 0, 640, 480), (639, 479, 1, 1), (100.5, 3.25, 9.75, 2.5)]
    lines = [f"1 {(x + w / 2) / 640:.6f} {(y + h / 2) / 480:.6f} {w / 640:.6f} {h / 480:.6f}" for x, y, w, h in drawn]
    text(tmp_path / "a.txt", "\n\n".join(lines))
    text(tmp_path / "classes.txt", "a\nb\n")
    (one,) = yolo.read_yolo(tmp_path).images
    assert (one.file, one.width, one.height) == (file, *size)
    assert np.allclose([box.box for box in one.objects], drawn, atol=6e-4)  # a unit of the last place: 640e-6
    assert [box.box for box in one.objects][:3] == drawn[:3]
    assert [box.where for box in one.objects] == [f"{tmp_path / 'a.txt'}:{line}" for line in (1, 3, 5, 7)]
    assert {box.name for box in one.objects} == {"b"}


def test_a_polygon_gives_its_corners_and_the_box_around_them(tmp_path: Path):
    image(tmp_path / "a.png", (640, 480))
    text(tmp_path / "classes.txt", "a\n")
    corners = [(10, 20), (330, 20.5), (30, 400), (5, 77)]
    text(tmp_path / "a.txt", "0 " + " ".join(f"{x / 640:.7f} {y / 480:.7f}" for x, y in corners))
    (found,) = yolo.read_yolo(tmp_path).images[0].objects
    assert np.allclose(found.segmentation, [[value for corner in corners for value in corner]], atol=1e-4)
    assert np.allclose(found.box, (5, 20, 325, 380), atol=1e-3)


def test_corners_are_the_shortest_numbers_that_centre_and_side_can_stand_for():
    """.503 and .14 of 100 pixels are 43.3 ± .3 (.05 by the centre, .25 by half the side)."""
    for centre, corner in ((".503", 43), (".504", 43.4)):
        words = [centre, centre, ".14", ".14"]
        found = yolo._box([float(word) for word in words], [yolo._half_unit(word) for word in words], 100, 100)
        assert found == (corner, corner, 14, 14)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("2 .5 .5 .1 .1", "class from 0 to 1 .*found 2"),
        ("0 .5 .5 .1", "found 3 numbers"),
        ("0 .5 .5 .1 .1 .1", "found 5 numbers"),
        ("0 .5 .5 .1 .1 .1 .1 .1", "found 7 numbers"),
        ("0 .5 .5 .1 x", "numbers after the class"),
        ("0 1.001 .5 .1 .1", "from 0 to 1 .*found 1.001"),
        ("0 -.001 .5 .1 .1", "from 0 to 1 .*found -0.001"),
    ],
)
def test_a_wrong_line_is_named(line: str, said: str, tmp_path: Path):
    image(tmp_path / "a.png")
    text(tmp_path / "classes.txt", "a\nb\n")
    text(tmp_path / "a.txt", f"1 .5 .5 .1 .1\n{line}\n")
    with pytest.raises(InputError, match=said) as refused:
        yolo.read_yolo(tmp_path)
    assert f"{tmp_path / 'a.txt'}:2" in str(refused.value)


@pytest.mark.parametrize(
    "line", ["0 1.0000000000000002 .5 0 .1", "0 -1e-15 .5 0 .1", "1 .2 .2 .4 .2 .3 .4", "0 .5 .5 1 1"]
)
def test_a_number_that_is_over_the_edge_by_a_floats_error_is_read(line: str, tmp_path: Path):
    image(tmp_path / "a.png")
    text(tmp_path / "classes.txt", "a\nb\n")
    text(tmp_path / "a.txt", line)
    assert len(yolo.read_yolo(tmp_path).images[0].objects) == 1


@pytest.mark.parametrize("word", ["0.5", "0.25", ".123456", "1", "0.", "5e-1", "1.25E-3"])
def test_the_rounding_error_is_half_a_unit_of_the_last_place(word: str):
    exponent = Decimal(word).as_tuple().exponent
    assert isinstance(exponent, int)
    assert yolo._half_unit(word) == pytest.approx(0.5 * 10.0**exponent, rel=1e-12)
    assert yolo._half_unit("1e9") == 0.5  # no more, whatever the exponent
    assert yolo._half_unit("0." + "1" * 40) == 1e-15


def test_the_shortest_number_within_the_error_is_taken():
    assert [yolo._shortest(12.9997, off) for off in (1e-3, 3e-4, 2e-4, 1e-5)] == [13.0, 13.0, 12.9997, 12.9997]
    assert yolo._shortest(12.34567, 5e-3) == 12.35
    assert yolo._shortest(0.1234567890123456, 0.0) == 0.1234567890123456
    assert str(yolo._shortest(-0.0, 0.1)) == "0.0"
    assert yolo._shortest(float("nan"), 0.1) == 0.0
