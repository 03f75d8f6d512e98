"""VOC, YOLO and COCO exports of one set are read as one set; what is wrong is named with file and line."""

import json
import re
import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.data.annotations import decode_mask, encode_mask
from momentum_transfer.transfer.data.detection_datasets import get_dataset
from momentum_transfer.transfer.data.own.open import open_own, training_images
from tests.transfer import own_set


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


def test_a_split_keeps_the_images_of_one_group_on_one_side(tmp_path: Path):
    own_set.write_coco(own_set.make(12, 0), tmp_path)
    files = sorted((tmp_path / "images").rglob("*.jpg"))
    films = {file.name: f"film {k // 3}" for k, file in enumerate(files)}
    (tmp_path / "groups.csv").write_text("".join(f"{name},{film}\n" for name, film in films.items()))
    own = open_own(tmp_path, split=0.5)
    sides = [{films[Path(one["file_name"]).name] for one in data.load()["images"]} for data in (own.train, own.val)]
    assert sides[0] | sides[1] == set(films.values())
    assert not sides[0] & sides[1]


def test_images_without_their_labels_are_those_that_train_in_every_form(forms: Path, tmp_path: Path):
    """Of a set's own split; of a single file, and of one that a name gives, LVIS's too, all."""
    made = own_set.make(12, 0)
    trained, tested = ({one.name for one in made if one.split == split} for split in ("train", "val"))
    for form in ("coco", "coco_boxes", "voc", "yolo", "yolo_segments", "yolo/data.yaml"):
        assert {file.stem for file in training_images(str(forms / form))} == trained
    json_file = forms / "coco/annotations/instances_val.json"
    assert {file.stem for file in training_images(str(json_file))} == tested
    lvis = json.loads(json_file.read_text())
    for image in lvis["images"]:
        image["coco_url"] = f"http://images.cocodataset.org/val/{image.pop('file_name')}"
    (tmp_path / "lvis.json").write_text(json.dumps(lvis))
    found = training_images(f"{forms / 'coco/images'}:{tmp_path / 'lvis.json'}")
    assert {file.stem for file in found} == tested
    assert all(file.is_file() for file in found)
    assert training_images(str(forms / "flat")) == []


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


def as_fractions(content: dict[str, Any]) -> None:
    sizes = {image["id"]: (image["width"], image["height"]) for image in content["images"]}
    for entry in content["annotations"]:
        entry["bbox"] = [
            round(v / side, 4) for v, side in zip(entry["bbox"], sizes[entry["image_id"]] * 2, strict=True)
        ]


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
        (coco_with(as_fractions), r"in pixels in .*instances_train\.json, found all \d+ within 0 … 1, as fractions"),
        (coco_with(lambda c: c["annotations"].clear()), r"expected annotated objects in .*found none"),
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
    with pytest.raises(InputError, match="training fraction between 0 and 1"):
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


def in_three_parts(form: str, folder: Path) -> Path:
    """A set of 12 images, of which 3 move from train to test."""
    made = own_set.make(12, 0)
    if form == "coco":
        own_set.write_coco(made, folder)
        whole = json.loads((folder / "annotations/instances_train.json").read_text())
        for part, images in (("train", whole["images"][3:]), ("test", whole["images"][:3])):
            kept = {image["id"] for image in images}
            found = [entry for entry in whole["annotations"] if entry["image_id"] in kept]
            text = json.dumps({**whole, "images": images, "annotations": found})
            (folder / f"annotations/instances_{part}.json").write_text(text)
    elif form == "voc":
        own_set.write_voc(made, folder)
        lists = folder / "ImageSets/Main"
        first = (lists / "train.txt").read_text().splitlines(keepends=True)
        (lists / "train.txt").write_text("".join(first[3:]))
        (lists / "test.txt").write_text("".join(first[:3]))
    else:
        own_set.write_yolo(made, folder)
        for image in sorted((folder / "images/train").iterdir())[:3]:
            label = folder / f"labels/train/{image.stem}.txt"
            for file in (image, label):
                target = Path(str(file).replace("/train/", "/test/"))
                target.parent.mkdir(parents=True, exist_ok=True)
                file.rename(target)
        names = yaml.safe_load((folder / "data.yaml").read_text())
        (folder / "data.yaml").write_text(yaml.safe_dump({**names, "test": "images/test"}))
        if form == "folders":
            (folder / "classes.txt").write_text("\n".join(names["names"].values()))
            (folder / "data.yaml").unlink()
    return folder


@pytest.mark.parametrize("split", [None, 0.5])
@pytest.mark.parametrize("form", ["coco", "voc", "yolo", "folders"])
def test_images_of_a_third_part_are_counted_as_left_out(form: str, split: float | None, tmp_path: Path):
    own = open_own(in_three_parts(form, tmp_path), split=split)
    assert sum(len(data.load()["images"]) for data in (own.train, own.val)) == 9
    assert [note for note in own.notes if "left out" in note] == [
        f"left out: 3 images of {tmp_path}, which its split gives neither to train nor to val"
    ]


def test_images_that_val_replaces_are_counted_as_left_out(forms: Path):
    own = open_own(forms / "voc", forms / "yolo/images/val")
    unused = len(list((forms / "voc/Annotations").iterdir())) - len(own.train.load()["images"])
    assert any(note.startswith(f"left out: {unused} images of {forms / 'voc'}") for note in own.notes)
    assert not any("left out" in note for note in open_own(forms / "voc").notes)


def lie_down(file: Path, orientation: int) -> None:
    """Store an image so that EXIF's orientation turns it upright again."""
    back = {6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270, 5: Image.Transpose.TRANSPOSE}
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.open(file).transpose(back.get(orientation, Image.Transpose.TRANSVERSE)).save(file, exif=exif, quality=95)


def as_stored(x: float, y: float, orientation: int) -> tuple[float, float]:
    """Where a point of the upright image of 320 x 240 lies in the stored one."""
    return {5: (y, x), 6: (y, 320 - x), 7: (240 - y, 320 - x), 8: (240 - y, x)}[orientation]


@pytest.mark.parametrize("orientation", [5, 6, 7, 8])
@pytest.mark.parametrize("run_lengths", [False, True])
def test_labels_of_images_as_stored_are_turned_with_them(orientation: int, run_lengths: bool, tmp_path: Path):
    made = own_set.make(3, 0)
    own_set.write_coco(made, tmp_path / "set")
    upright = open_own(tmp_path / "set")
    for file in (tmp_path / "set" / "images").rglob("*.jpg"):
        lie_down(file, orientation)
    again = open_own(tmp_path / "set")  # labels may be of the upright image, as before
    assert again.train.load()["annotations"] == upright.train.load()["annotations"]
    for split in ("train", "val"):
        file = tmp_path / "set" / "annotations" / f"instances_{split}.json"
        loaded = json.loads(file.read_text())
        for image in loaded["images"]:
            image.update(width=240, height=320)
        for entry in loaded["annotations"]:
            x, y, w, h = entry["bbox"]
            corners = [as_stored(x, y, orientation), as_stored(x + w, y + h, orientation)]
            left, top = (min(corner[k] for corner in corners) for k in (0, 1))
            entry["bbox"] = [left, top, h, w]
            part = entry["segmentation"][0]
            points = [as_stored(u, v, orientation) for u, v in zip(part[::2], part[1::2], strict=True)]
            entry["segmentation"] = [[value for point in points for value in point]]
            if run_lengths:
                entry["segmentation"] = encode_mask(decode_mask(entry["segmentation"], 320, 240))
        file.write_text(json.dumps(loaded))
    turned = open_own(tmp_path / "set")
    assert any("labelled as stored" in note for note in turned.notes)
    for part, before in ((turned.train, upright.train), (turned.val, upright.val)):
        assert [(i["width"], i["height"]) for i in part.load()["images"]] == [(320, 240)] * len(part.load()["images"])
        for one, other in zip(part.load()["annotations"], before.load()["annotations"], strict=True):
            assert one["bbox"] == other["bbox"]
            masks = [decode_mask(entry["segmentation"], 240, 320) for entry in (one, other)]
            assert (masks[0] & masks[1]).sum() / (masks[0] | masks[1]).sum() > 0.9  # drawn on another grid


def test_names_with_spaces_and_accents_are_found(tmp_path: Path):
    own_set.write_voc(own_set.make(4, 0), tmp_path)
    plain = open_own(tmp_path)
    for file in [*(tmp_path / "JPEGImages").iterdir(), *(tmp_path / "Annotations").iterdir()]:
        form = "NFD" if file.suffix == ".jpg" else "NFC"  # as macOS writes them, and as labels do
        file.rename(file.with_name(unicodedata.normalize(form, f"Größe 1 {file.name}")))
    for file in (tmp_path / "ImageSets" / "Main").iterdir():
        number = "" if file.stem == "train" else " 1"  # some lists say more
        file.write_text("".join(f"Größe 1 {line}{number}\n" for line in file.read_text().split()), encoding="utf-8")
    found = open_own(tmp_path)
    assert [data.load()["annotations"] for data in (found.train, found.val)] == [
        data.load()["annotations"] for data in (plain.train, plain.val)
    ]


def test_folders_of_the_export_come_before_those_beside_it(tmp_path: Path):
    """``../train/images`` of an export is its own ``train/images``, also where a neighbour has such a folder."""
    made = own_set.make(4, 0)
    for name in ("garden", "."):
        own_set.write_yolo(made, tmp_path / name)
        for split, folder in (("train", "train"), ("val", "valid")):
            for kind in ("images", "labels"):
                (tmp_path / name / folder).mkdir(exist_ok=True)
                (tmp_path / name / kind / split).rename(tmp_path / name / folder / kind)
    text = (tmp_path / "garden/data.yaml").read_text().replace("path: .\n", "")
    text = text.replace("images/train", "../train/images").replace("images/val", "../valid/images")
    (tmp_path / "garden/data.yaml").write_text(text)
    assert open_own(tmp_path / "garden").train.images_dir == tmp_path / "garden"
