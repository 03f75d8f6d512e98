"""VOC XML of your own: lists of splits, image names, corners, and the line that an error names."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.data.own.labelled import Box, LabelledImage, LabelledSet
from momentum_transfer.transfer.data.own.voc_xml import read_voc, read_xml, settle_corners, xml_files


def label(file: Path, *, filename: str = "", name: str = "cat", corners: str = "2 3 11 9", more: str = "") -> Path:
    """An annotation of an image of 20 × 10 pixels, an element a line."""
    left, top, right, bottom = corners.split()
    lines = [
        "<annotation>", f"<filename>{filename}</filename>", "<size><width>20</width>", "<height>10</height></size>",
        "<object>", f"<name> {name} </name>", more, "<bndbox>", f"<xmin>{left}</xmin>", f"<ymin>{top}</ymin>",
        f"<xmax>{right}</xmax>", f"<ymax>{bottom}</ymax>", "</bndbox></object></annotation>",
    ]  # fmt: skip
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines))
    return file


def image(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (20, 10)).save(file)
    return file


def test_an_object_is_read_with_the_line_of_its_box(tmp_path: Path):
    picture, file = image(tmp_path / "a.png"), label(tmp_path / "a.xml")
    read = read_voc(tmp_path)
    (one,) = read.images
    assert (read.form, read.root, read.notes) == ("VOC XML", tmp_path, ())
    assert (one.file, one.width, one.height, one.split) == (picture, 20, 10, "")
    assert one.objects == (Box("cat", (2.0, 3.0, 11.0, 9.0), f"{file}:8"),)
    for text, difficult in (("0", False), ("1", True), ("", False)):
        label(file, more=f"<difficult>{text}</difficult>")
        assert read_voc(tmp_path).images[0].objects[0].difficult == difficult


def test_the_files_own_name_comes_before_the_name_in_it(tmp_path: Path):
    first, second = image(tmp_path / "a.png"), image(tmp_path / "b.png")
    label(tmp_path / "a.xml", filename="b.png")
    label(tmp_path / "c.xml", filename="C:\\photos\\b.png")
    assert [one.file for one in read_voc(tmp_path).images] == [first, second]
    label(tmp_path / "d.xml", filename="none.png")
    with pytest.raises(InputError, match=r"the image none\.png of .*d\.xml:2"):
        read_voc(tmp_path)


def test_images_are_below_the_labels_beside_them_or_where_they_are_said_to_be(tmp_path: Path):
    label(tmp_path / "Annotations/a.xml")
    beside = image(tmp_path / "JPEGImages/a.png")
    assert read_voc(tmp_path / "Annotations").images[0].file == beside
    below = image(tmp_path / "Annotations/a.png")
    assert read_voc(tmp_path / "Annotations").images[0].file == below
    assert read_voc(tmp_path / "Annotations", tmp_path / "JPEGImages").images[0].file == beside
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="expected the image a"):
        read_voc(tmp_path / "Annotations", tmp_path / "empty")


def test_hidden_files_are_left_out(tmp_path: Path):
    kept = [label(tmp_path / name) for name in ("a.xml", "b/c.xml")]
    for name in (".a.xml", ".trash/b.xml", "b/.c/d.xml"):
        label(tmp_path / name)
    assert xml_files(tmp_path) == kept
    assert xml_files(tmp_path / ".trash") == [tmp_path / ".trash/b.xml"]
    with pytest.raises(InputError, match="expected VOC XML files below"):
        read_voc(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("lists", "splits", "left_out"),
    [
        ({"train": "a\n\nb 1\n", "val": "c\n"}, {"a": "train", "b": "train", "c": "val"}, 1),
        ({"train": "a\nb", "test": "c\nd"}, {"a": "train", "b": "train", "c": "val", "d": "val"}, 0),
        ({"trainval": "a", "valid": "c"}, {"a": "train", "c": "val"}, 2),
        ({"train": "a", "trainval": "a\nb", "val": "b", "test": "c"}, {"a": "train", "b": "val"}, 2),
        ({"train": "a", "val": "a\nb"}, {"a": "train", "b": "val"}, 2),  # the first list wins
        ({"train": "a"}, dict.fromkeys("abcd", ""), 0),
        ({"test": "a\nb"}, dict.fromkeys("abcd", ""), 0),
        ({"train": "x", "val": "y"}, {}, 4),
    ],
)
def test_lists_say_the_split(lists: dict[str, str], splits: dict[str, str], left_out: int, tmp_path: Path):
    for stem in "abcd":
        image(tmp_path / f"{stem}.png")
        label(tmp_path / f"{stem}.xml")
    (tmp_path / "ImageSets/Main").mkdir(parents=True)
    for name, text in lists.items():
        (tmp_path / f"ImageSets/Main/{name}.txt").write_text(text)
    read = read_voc(tmp_path)
    assert {one.file.stem: one.split for one in read.images} == splits
    assert [note.split()[2] for note in read.notes] == [str(left_out)] * bool(left_out)


@pytest.mark.parametrize(
    ("changes", "line", "said"),
    [
        ({"name": ""}, 5, "expected <name> in <object>"),
        ({"corners": "x 3 11 9"}, 9, "a number in <xmin> .* found 'x'"),
        ({"corners": "12 3 11 9"}, 8, "xmin <= xmax"),
        ({"corners": "2 9.5 11 9"}, 8, "ymin <= ymax"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(changes: dict[str, Any], line: int, said: str, tmp_path: Path):
    image(tmp_path / "a.png")
    file = label(tmp_path / "a.xml", **changes)
    with pytest.raises(InputError, match=said) as refused:
        read_voc(tmp_path)
    assert f"{file}:{line}" in str(refused.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("annotation>", "labels>", "expected <annotation> .* found <labels>"),
        ("bndbox>", "box>", "expected <bndbox>"),
        ("size>", "shape>", "expected <size>"),
        ("height>", "tall>", "expected <height> in <size>"),
        ("<width>20", "<width>20.5", "whole, positive width and height .* found 20.5x10"),
        ("<height>10", "<height>0", "whole, positive width and height .* found 20x0"),
        ("<height>10", "<height>11", "expected 20x11 pixels"),
    ],
)
def test_missing_elements_and_sizes_are_named(old: str, new: str, said: str, tmp_path: Path):
    image(tmp_path / "a.png")
    file = label(tmp_path / "a.xml")
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(InputError, match=said) as refused:
        read_voc(tmp_path)
    assert str(file) in str(refused.value)


@pytest.mark.parametrize("corners", ["1 1 1 1", "1 1 20 10", "5 5 5 9"])
def test_a_box_of_one_pixel_and_of_the_whole_image_is_read(corners: str, tmp_path: Path):
    image(tmp_path / "a.png")
    label(tmp_path / "a.xml", corners=corners)
    (one,) = settle_corners([read_voc(tmp_path)])
    left, top, right, bottom = map(int, corners.split())
    assert one.images[0].objects[0].box == (left - 1, top - 1, right - left + 1, bottom - top + 1)


def voc(*corners: tuple[float, ...], form: str = "VOC XML") -> LabelledSet:
    boxes = tuple(Box("a", one, f"line {number}") for number, one in enumerate(corners))  # type: ignore[arg-type]
    return LabelledSet(form, Path("x"), (LabelledImage(Path("a.png"), 20, 10, boxes),), notes=("before",))


@pytest.mark.parametrize("edge", [(0, 3, 5, 6), (3, 0.0, 5, 6), (1.5, 3, 5, 6), (1, 3, 5, 6.25)])
def test_one_corner_at_zero_or_between_pixels_means_edges_in_all_sets(edge: tuple[float, ...]):
    found = settle_corners([voc((2, 3, 5, 9)), voc((4, 4, 4, 4), edge), voc((0, 0, 0, 0), form="COCO JSON")])
    assert [box.box for box in found[0].images[0].objects] == [(2, 3, 3, 6)]
    left, top, right, bottom = edge
    assert [box.box for box in found[1].images[0].objects] == [(4, 4, 0, 0), (left, top, right - left, bottom - top)]
    assert found[2].images[0].objects[0].box == (0, 0, 0, 0)
    assert [len(one.notes) for one in found] == [2, 2, 1]
    assert "because line 1 has one at 0 or between pixels" in found[0].notes[1]


def test_corners_count_from_one_and_those_outside_are_refused():
    (found,) = settle_corners([voc((1, 1, 20, 10), (2, 3, 5, 9))])
    assert [box.box for box in found.images[0].objects] == [(0, 0, 20, 10), (1, 2, 4, 7)]
    assert found.notes == ("before", "corners are read as VOC's: pixels from 1, both ends included")
    with pytest.raises(InputError, match="inside its image of 20x10 pixels in line 0"):
        settle_corners([voc((2, 3, 22, 9))])


def test_elements_nest_to_a_limit(tmp_path: Path):
    file = tmp_path / "a.xml"
    for depth in (64, 65):
        file.write_text("\n<a>" * depth + "</a>" * depth)
        if depth == 64:
            assert read_xml(file).get("line") == "2"
        else:
            with pytest.raises(InputError, match=rf"at most 64 nested elements in {file}:66"):
                read_xml(file)
    file.write_text("<a><b/></a>" * 1 + " ")
    assert len(read_xml(file)) == 1
    file.write_text("<r>" + "<a></a>" * 100 + "</r>")  # many, but not deep
    assert len(read_xml(file)) == 100
