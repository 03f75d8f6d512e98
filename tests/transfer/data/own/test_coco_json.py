"""COCO JSON of your own: which files of a folder are read, and which fields of an entry are kept."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.data.own.coco_json import coco_files, read_coco
from tests.transfer import own_set

OBJECT: dict[str, Any] = {"id": 4, "image_id": 9, "category_id": 7, "bbox": [1, 2, 5, 6.5]}


def write(file: Path, name: str = "a.png", *objects: dict[str, Any], **changes: Any) -> Path:
    """A file of one image of 20 × 10 pixels, which lies beside it, and its objects."""
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (20, 10)).save(file.parent / name)
    content = {
        "images": [{"id": 9, "file_name": name, "width": 20, "height": 10}],
        "categories": [{"id": 7, "name": "b"}, {"id": 3, "name": "a"}],
        "annotations": list(objects) or [OBJECT],
    }
    file.write_text(json.dumps({**content, **changes}))
    return file


def test_an_entry_is_taken_as_it_is(tmp_path: Path):
    more = {"iscrowd": 1, "area": 30, "difficult": 1, "segmentation": [[1, 2, 5, 2, 5, 6]]}
    objects = OBJECT, {**OBJECT, "id": 5, "category_id": 3, **more}, {**OBJECT, "id": 6, "segmentation": []}
    file = write(tmp_path / "x.json", "a.png", *objects)
    read = read_coco(file)
    (image,) = read.images
    assert (read.form, read.root, read.declared, read.notes) == ("COCO JSON", file, ("a", "b"), ())
    assert (image.file, image.width, image.height, image.split) == (tmp_path / "a.png", 20, 10, "")
    plain, whole, empty = image.objects
    assert (plain.name, plain.box, plain.where) == ("b", (1.0, 2.0, 5.0, 6.5), f"annotation 4 of {file}")
    assert (plain.segmentation, plain.area, plain.crowd, plain.difficult) == (None, None, False, False)
    assert (whole.name, whole.segmentation, whole.area) == ("a", [[1, 2, 5, 2, 5, 6]], 30)
    assert (whole.crowd, whole.difficult) == (True, True)
    assert empty.segmentation is None


def test_images_without_objects_stay(tmp_path: Path):
    write(tmp_path / "x.json", "b.png")
    images = [{"id": k, "file_name": f"{name}.png", "width": 20.0, "height": 10} for k, name in ((9, "a"), (2, "b"))]
    read = read_coco(write(tmp_path / "x.json", images=images))
    assert [(image.file.name, len(image.objects)) for image in read.images] == [("a.png", 1), ("b.png", 0)]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"categories": [{"id": 7, "name": "b"}, {"id": 7, "name": "a"}]}, "every category id once"),
        ({"images": [{"id": 9, "file_name": "a.png", "width": 20, "height": 10}] * 2}, "every image id once"),
        ({"categories": [{"id": 7}]}, "a name for every category"),
        ({"annotations": []}, "expected annotated objects"),
        ({"annotations": [{**OBJECT, "image_id": 8}]}, "id of an image in annotation 4 .* found 8"),
        ({"annotations": [{**OBJECT, "category_id": 8}]}, "id of a category in annotation 4 .* found 8"),
        ({"annotations": [{**OBJECT, "bbox": [1, 2, 3]}]}, "expected bbox"),
        ({"annotations": [{**OBJECT, "bbox": [1, 2, 3, True]}]}, "expected bbox"),
        ({"annotations": [{**OBJECT, "iscrowd": 2}]}, "iscrowd 0 or 1 .* found 2"),
        ({"annotations": [{**OBJECT, "area": -1}]}, "an area from 0"),
        ({"annotations": [{**OBJECT, "area": 801}]}, "an area from 0"),
        ({"annotations": [{**OBJECT, "bbox": [0.1, 0.2, 0.3, 0.4]}]}, "found all 1 within 0"),
        ({"images": [{"id": 9, "file_name": "", "width": 20, "height": 10}]}, "file_name in image 9"),
        ({"images": [{"id": 9, "file_name": "a.png", "width": 20.5, "height": 10}]}, "positive width and height"),
        ({"images": [{"id": 9, "file_name": "a.png", "width": 20, "height": 0}]}, "positive width and height"),
        ({"images": [{"id": 9, "file_name": "a.png", "width": 21, "height": 10}]}, "expected 21x10 pixels"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], said: str, tmp_path: Path):
    with pytest.raises(InputError, match=said) as refused:
        read_coco(write(tmp_path / "x.json", **changes))
    assert str(tmp_path / "x.json") in str(refused.value)


@pytest.mark.parametrize("area", [0, 800])
def test_areas_up_to_four_images_are_read(area: int, tmp_path: Path):
    assert read_coco(write(tmp_path / "x.json", "a.png", {**OBJECT, "area": area})).images[0].objects[0].area == area


@pytest.mark.parametrize(
    ("names", "splits", "left_out"),
    [
        (("instances_train2017", "instances_val2017"), {"0": "train", "1": "val"}, 0),
        (("train/x", "valid/x"), {"0": "train", "1": "val"}, 0),
        (("train/x", "test/x"), {"0": "train", "1": "val"}, 0),
        (("train/x", "valid/x", "test/x"), {"0": "train", "1": "val"}, 1),
        (("a.train", "a-val", "a_test"), {"0": "train", "1": "val"}, 1),
        (("annotations/training", "annotations/validation"), {"0": "train", "1": "val"}, 0),
        (("trainable",), {"0": ""}, 0),
        (("train",), {"0": ""}, 0),
    ],
)
def test_names_of_files_and_folders_say_the_split(names, splits, left_out, tmp_path: Path):
    files = [write(tmp_path / f"{name}.json", f"{number}.png") for number, name in enumerate(names)]
    (tmp_path / "settings.json").write_text('{"images": []}')  # no COCO
    assert set(coco_files(tmp_path)) == set(files)
    read = read_coco(tmp_path, images=tmp_path)
    assert {image.file.stem: image.split for image in read.images} == splits
    assert [note.partition(" of ")[0] for note in read.notes] == ["left out: 1 image"] * left_out


def test_what_is_lost_of_lvis_form_is_noted(tmp_path: Path):
    own_set.write_coco(own_set.make(3, 0), tmp_path)
    (file, *_) = sorted(tmp_path.rglob("*.json"))
    assert not [note for note in read_coco(tmp_path, None).notes if "LVIS" in note]
    content = json.loads(file.read_text())
    content["images"][0]["neg_category_ids"] = [1]
    file.write_text(json.dumps(content))
    (note,) = [note for note in read_coco(tmp_path, None).notes if "LVIS" in note]
    assert note.startswith(
        f"{file.name} has LVIS' lists of verified classes, which are left out: scored by COCO's rules"
    )


def test_files_that_are_no_split_must_be_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"expected a COCO JSON in .* found none"):
        read_coco(tmp_path)
    for names in (("one", "two"), ("train_a", "train_b"), ("one", "val")):
        for file in tmp_path.glob("*.json"):
            file.unlink()
        for name in names:
            write(tmp_path / f"{name}.json")
        with pytest.raises(InputError, match=r"one COCO JSON in .*, or one to train and one to test, found .*\.json, "):
            read_coco(tmp_path)


def test_a_file_of_other_content_where_the_other_part_should_be_is_refused(tmp_path: Path):
    whole, other = write(tmp_path / "train.json"), tmp_path / "val.json"
    other.write_text("[]")
    with pytest.raises(InputError, match=rf"lists of images, .* in {other}, as train\.json has them"):
        coco_files(tmp_path)
    other.rename(tmp_path / "notes.json")
    assert coco_files(tmp_path) == [whole]


def test_images_are_found_beside_the_file_above_it_or_where_they_are_said_to_be(tmp_path: Path):
    file = write(tmp_path / "annotations/x.json")
    beside = file.parent / "a.png"
    assert read_coco(file).images[0].file == beside
    (tmp_path / "photos").mkdir()
    moved = beside.rename(tmp_path / "photos/a.png")
    assert read_coco(file).images[0].file == moved
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"image a\.png of image 9"):
        read_coco(file, images=tmp_path / "empty")
