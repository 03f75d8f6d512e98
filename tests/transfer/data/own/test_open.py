"""VOC, YOLO and COCO exports of one set are read as one set; what is wrong is named with file and line."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from momentum_transfer.errors import InputError
from tests.transfer import own_set
from transfer.data.datasets import get_dataset
from transfer.data.own.open import open_own


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own") / "garden"
    own_set.write_all(folder, 12)
    return folder


def content(data: Any) -> tuple[Any, ...]:
    """Everything but where the images lie."""
    loaded = data.load()
    images = [(i["id"], Path(i["file_name"]).name, i["width"], i["height"]) for i in loaded["images"]]
    return images, loaded["annotations"], loaded["categories"]


@pytest.mark.parametrize("split", [None, 0.6])
def test_voc_yolo_and_coco_are_one_set_to_the_last_bit(forms: Path, split: float | None):
    read = [open_own(forms / form, split=split, seed=3) for form in ("coco_boxes", "voc", "yolo")]
    for part in ("train", "val"):
        first, *others = [content(getattr(one, part)) for one in read]
        assert first[1]
        assert all(other == first for other in others)
    assert read[0].train.classes == ("flower", "pagoda", "tree")
    assert [one.masks for one in read] == ["", "", ""]


def test_boxes_are_those_that_were_drawn(forms: Path):
    made = {one.name: one for one in own_set.make(12, 0)}
    data = open_own(forms / "yolo").train
    loaded = data.load()
    for image in loaded["images"]:
        drawn = sorted((thing.name, *thing.box) for thing in made[data.image_path(image).stem].objects)
        found = [a for a in loaded["annotations"] if a["image_id"] == image["id"]]
        assert [(data.classes[a["category_id"] - 1], *a["bbox"]) for a in found] == drawn


def test_segments_and_coco_polygons_make_masks(forms: Path):
    coco, yolo = open_own(forms / "coco"), open_own(forms / "yolo_segments")
    assert coco.masks == yolo.masks == "polygon"
    pairs = zip(coco.train.load()["annotations"], yolo.train.load()["annotations"], strict=True)
    for one, other in pairs:
        corners = zip(one["segmentation"][0], other["segmentation"][0], strict=True)
        assert max(abs(a - b) for a, b in corners) < 1e-3  # six decimals of 320 pixels


def test_a_set_is_found_again_by_its_spec_under_a_short_name(forms: Path):
    own = open_own(forms / "voc", split=0.5)
    again = get_dataset(own.specs[0])
    assert again.name == own.train.name == "garden_train"
    assert again.load() == own.train.load()


def test_parts_are_stratified_and_share_no_image(forms: Path):
    own = open_own(forms / "yolo", split=0.75, seed=1)
    parts = [{image["file_name"] for image in data.load()["images"]} for data in (own.train, own.val)]
    assert [len(part) for part in parts] == [9, 3]
    assert not parts[0] & parts[1]
    assert {a["category_id"] for a in own.val.load()["annotations"]} == {1, 2, 3}


def test_val_may_have_another_form_and_images_of_both_are_told(forms: Path):
    own = open_own(forms / "voc" / "Annotations", forms / "yolo" / "data.yaml", images=forms / "voc")
    assert len(own.train.load()["images"]) == 12
    assert len(own.val.load()["images"]) == 4


def test_a_corner_at_zero_means_pixel_edges(forms: Path, tmp_path: Path):
    made = own_set.make(4, 0)
    own_set.write_voc(made, tmp_path)
    file = next((tmp_path / "Annotations").iterdir())
    text = re.sub(r"<xmin>\d+</xmin>", "<xmin>0</xmin>", file.read_text(), count=1)
    file.write_text(text)
    own = open_own(tmp_path, split=0.5)
    assert any("pixel edges from 0" in note for note in own.notes)
    wanted = sorted((thing.box[0] + 1, thing.box[1] + 1) for one in made for thing in one.objects)
    found = sorted(tuple(a["bbox"][:2]) for d in (own.train, own.val) for a in d.load()["annotations"])
    assert len(set(wanted) - set(found)) == 1  # the one that was moved


def voc_with(change: Callable[[str], str]) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        own_set.write_voc(own_set.make(3, 0), folder)
        file = folder / "Annotations" / "photo_0001.xml"
        file.write_text(change(file.read_text()))
        return folder

    return write


def yolo_with(change: Callable[[str], str]) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        own_set.write_yolo(own_set.make(3, 0), folder)
        file = folder / "labels" / "train" / "photo_0001.txt"
        file.write_text(change(file.read_text()))
        return folder

    return write


def coco_with(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        own_set.write_coco(own_set.make(3, 0), folder, masks=False)
        file = folder / "annotations" / "instances_train.json"
        loaded = json.loads(file.read_text())
        change(loaded)
        file.write_text(json.dumps(loaded))
        return folder

    return write


def yaml_with(text: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        own_set.write_yolo(own_set.make(3, 0), folder)
        (folder / "data.yaml").write_text(text)
        return folder

    return write


def missing_image(folder: Path) -> Path:
    own_set.write_voc(own_set.make(3, 0), folder)
    (folder / "JPEGImages" / "photo_0001.jpg").unlink()
    return folder


def other_size(folder: Path) -> Path:
    own_set.write_voc(own_set.make(3, 0), folder)
    Image.new("RGB", (99, 77)).save(folder / "JPEGImages" / "photo_0001.jpg")
    return folder


TWICE = "path: .\ntrain: images/train\nval: images/val\nnames: [tree, flower, tree]\n"
NOWHERE = "path: .\ntrain: images/nowhere\nval: images/val\nnames: [tree, flower, pagoda]\n"


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (missing_image, r"expected the image photo_0001\.jpg of .*photo_0001\.xml.* found none"),
        (other_size, r"expected 320x240 pixels in .*photo_0001\.jpg as .*xml:3 says, found 99x77"),
        (voc_with(lambda text: re.sub("<size>.*</size>", "", text)), r"expected <size> .* in .*photo_0001\.xml:1"),
        (voc_with(lambda text: text.replace("</name>", "", 1)), r"cannot be read at .*photo_0001\.xml:\d+"),
        (voc_with(lambda text: re.sub(r"<xmax>\d+", "<xmax>900", text)), r"inside its image of 320x240 .*xml:\d+"),
        (voc_with(lambda text: re.sub(r"<xmax>\d+", "<xmax>0", text)), r"expected xmin <= xmax .*photo_0001\.xml:\d+"),
        (voc_with(lambda text: re.sub(r"<ymax>\d+", "<ymax>x", text)), r"number in <ymax> of .*\.xml:\d+, found 'x'"),
        (yolo_with(lambda text: f"7{text[1:]}"), r"class from 0 to \d in .*photo_0001\.txt:1, found 7"),
        (yolo_with(lambda text: f"{text}0 0.5 1.5 0.1 0.1\n"), r"from 0 to 1 in .*photo_0001\.txt:\d+, found 1\.5"),
        (yolo_with(lambda text: f"{text}0 0.9 0.5 0.4 0.1\n"), r"inside its image .*photo_0001\.txt:\d+"),
        (yolo_with(lambda text: f"{text}0 0.5 0.5\n"), r"found 2 numbers"),
        (yolo_with(lambda text: f"{text}0 0.5 0.5 nan 0.1\n"), r"from 0 to 1 in .*photo_0001\.txt:\d+, found nan"),
        (yaml_with(TWICE), r"every class once in .*data\.yaml, found 'tree' twice"),
        (yaml_with(NOWHERE), r"images of train at .*nowhere.*data\.yaml"),
        (yaml_with("train: x\nval: y\n"), r"data\.yaml|classes\.txt"),
        (coco_with(lambda c: c["annotations"][0].update(category_id=77)), r"category in annotation 1 of .*train\.json"),
        (coco_with(lambda c: c["annotations"][0].update(image_id=77)), r"image in annotation 1 of .*train\.json"),
        (coco_with(lambda c: c["annotations"][0].update(bbox=[1, 1, 900, 5])), r"inside its image .*annotation 1"),
        (coco_with(lambda c: c["categories"][1].update(name="pagoda")), r"every class once in .*found 'pagoda' twice"),
        (coco_with(lambda c: c["images"][0].update(file_name="no.jpg")), r"the image no\.jpg of image 100 of"),
        (coco_with(lambda c: c["images"][0].pop("width")), r"positive width and height in image 100 of"),
        (coco_with(lambda c: c["annotations"].clear()), r"expected objects in the images that train"),
    ],
)
def test_what_is_wrong_is_one_line_with_its_file(write: Callable[[Path], Path], said: str, tmp_path: Path):
    with pytest.raises(InputError, match=said) as caught:
        open_own(write(tmp_path / "set"))
    assert "\n" not in str(caught.value)


def test_options_that_contradict_or_lack_are_told(forms: Path, tmp_path: Path):
    with pytest.raises(InputError, match="--val or --split, found both"):
        open_own(forms / "voc", forms / "voc", 0.5)
    with pytest.raises(InputError, match="expected --val FOLDER_OR_FILE or --split"):
        open_own(forms / "voc" / "Annotations", images=forms / "voc")
    with pytest.raises(InputError, match="share between 0 and 1"):
        open_own(forms / "voc", split=8)
    with pytest.raises(InputError, match="found nothing"):
        open_own(tmp_path / "nowhere")
    with pytest.raises(InputError, match="found none"):
        open_own(tmp_path)


def test_exports_lie_in_many_ways(forms: Path, tmp_path: Path):
    """Folders that say the split, class names beside the labels, paths of the machine that exported."""
    whole = open_own(forms / "yolo")

    def same(*words: Path, **options: Any) -> bool:
        own = open_own(*words, **options)
        return [data.load()["annotations"] for data in (own.train, own.val)] == [
            data.load()["annotations"] for data in (whole.train, whole.val)
        ]

    yolo, names = tmp_path / "yolo", yaml.safe_load((forms / "yolo/data.yaml").read_text())["names"]
    shutil.copytree(forms / "yolo", yolo)
    for told in (
        {"path": "/of/another/machine", "train": "images/train", "val": "images/val", "names": list(names.values())},
        {"train": "C:\\other\\images\\train", "val": "../images/val", "names": {str(k): v for k, v in names.items()}},
    ):
        (yolo / "data.yaml").write_text("\ufeff" + yaml.safe_dump(told), encoding="utf-8")
        assert same(yolo)
    (yolo / "data.yaml").unlink()
    (yolo / "classes.txt").write_text("\ufeff" + "\r\n".join(names.values()), encoding="utf-8")
    assert same(yolo)
    assert same(yolo / "labels")
    assert same(yolo / "images/train", yolo / "images/val")
    (yolo / "images").rename(tmp_path / "elsewhere")
    assert same(yolo / "labels/train", yolo / "labels/val", images=tmp_path / "elsewhere")
    for part, split in (("train", "train"), ("valid", "val")):
        (tmp_path / "voc" / part).mkdir(parents=True)
        for stem in (forms / "voc/ImageSets/Main" / f"{split}.txt").read_text().split():
            shutil.copy(forms / "voc/Annotations" / f"{stem}.xml", tmp_path / "voc" / part)
            shutil.copy(forms / "voc/JPEGImages" / f"{stem}.jpg", tmp_path / "voc" / part)
    assert same(tmp_path / "voc")
