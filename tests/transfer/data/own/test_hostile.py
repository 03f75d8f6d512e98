"""Labels and lists of any content: read or refused in one line that names the file, never a traceback, never a wait."""

import json
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.data.own import coco_json, voc_xml, yolo
from momentum_transfer.transfer.data.semantic_datasets import label_specs

BOX = "<object><name>a</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></object>"
XML = f"<annotation><size><width>20</width><height>10</height></size>{BOX}</annotation>"


def image(file: Path, mode: str = "RGB") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (20, 10)).save(file)


def refusal(read: Callable[[], object]) -> str:
    with pytest.raises(InputError) as refused:
        read()
    message = str(refused.value)
    assert "\n" not in message
    assert len(message) < 700
    return message


def pipe(file: Path) -> None:
    file.unlink(missing_ok=True)
    os.mkfifo(file)


def loop(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.symlink_to(file)


def device(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.symlink_to("/dev/zero")


def garbage(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.write_bytes(b"\xff\xfe\x00\xfa")


@pytest.fixture
def yolo_set(tmp_path: Path) -> Path:
    image(tmp_path / "images/a.png")
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels/a.txt").write_text("0 .5 .5 .1 .1\n")
    (tmp_path / "data.yaml").write_text("names: [a, b]\ntrain: images\n")
    return tmp_path


def test_yolo_lines_of_any_number_are_read_or_named(yolo_set: Path):
    label = yolo_set / "labels/a.txt"
    for line in ("0 nan .5 .1 .1", "0 1e308 .5 .1 .1", "0 0e" + "9" * 5000 + " 1e5 .1 .1", "9" * 5000 + " .5 .5 .1 .1",
                 "² .5 .5 .1 .1", "0 " + ".5 " * 7, "0 .5 .5 -.1 .1", "0 .5 .5 .1 .1\0", "-1 .5 .5 .1 .1"):  # fmt: skip
        label.write_text(f"0 .5 .5 .1 .1\n\n{line}\n")
        assert f"{label}:3" in refusal(lambda: yolo.read_yolo(yolo_set / "data.yaml"))
    for line in (
        "0 0." + "5" * 5000 + " .5 .1 .1",
        "0 5e-" + "0" * 5000 + "1 .5 .1 .1",
        "0 0e-5000 .5 .1 .1",
    ):
        label.write_text(line)
        assert len(yolo.read_yolo(yolo_set / "data.yaml").images) == 1


def test_yolo_files_that_are_no_text_files_are_refused(yolo_set: Path):
    for way in (pipe, loop, device, garbage):
        way(yolo_set / "data.yaml")
        assert str(yolo_set) in refusal(lambda: yolo.read_yolo(yolo_set / "data.yaml"))
        assert not yolo.is_data_yaml(yolo_set / "data.yaml")
    (yolo_set / "data.yaml").unlink()
    for way in (garbage, pipe):
        way(yolo_set / "classes.txt")
        refusal(lambda: yolo.read_yolo(yolo_set))
    (yolo_set / "classes.txt").unlink()
    (yolo_set / "data.yaml").write_text("names: [a]\ntrain: images\n")
    garbage(yolo_set / "labels/a.txt")
    assert "a.txt" in refusal(lambda: yolo.read_yolo(yolo_set / "data.yaml"))
    for target in ("/dev/zero", "/bin/ls", '"a\\0b"', "x" * 5000, "~nobody"):
        (yolo_set / "data.yaml").write_text(f"names: [a]\ntrain: {target}\n")
        refusal(lambda: yolo.read_yolo(yolo_set / "data.yaml"))
    pipe(yolo_set / "images/a.png")
    (yolo_set / "data.yaml").write_text("names: [a]\ntrain: images\n")
    assert "a.png" in refusal(lambda: yolo.read_yolo(yolo_set / "data.yaml"))


def test_voc_sizes_encodings_and_files_of_any_kind_are_refused(tmp_path: Path):
    image(tmp_path / "a.png")
    label = tmp_path / "a.xml"
    for width in ("inf", "nan", "1e400", "9" * 5000, "-20", "20.5", "0", "x", ""):
        label.write_text(XML.replace("<width>20", f"<width>{width}"))
        assert f"{label}:1" in refusal(lambda: voc_xml.read_voc(tmp_path)), width
    for encoding in ("shift_jis", "hex", "idna", "nosuch", "rot13", "zip", "euc_kr"):
        label.write_text(f'<?xml version="1.0" encoding="{encoding}"?>{XML}')
        assert str(label) in refusal(lambda: voc_xml.read_voc(tmp_path)), encoding
    label.write_text('<!DOCTYPE a [<!ENTITY a "x">]>' + XML)
    assert str(label) in refusal(lambda: voc_xml.read_voc(tmp_path))
    for way in (garbage, pipe, loop, device):
        way(label)
        assert str(label) in refusal(lambda: voc_xml.read_voc(tmp_path))
    label.unlink()
    label.write_text(XML)
    (tmp_path / "ImageSets/Main").mkdir(parents=True)
    garbage(tmp_path / "ImageSets/Main/train.txt")
    assert "train.txt" in refusal(lambda: voc_xml.read_voc(tmp_path))


def test_two_million_line_breaks_in_an_xml_file_take_a_second(tmp_path: Path):
    image(tmp_path / "a.png")
    (tmp_path / "a.xml").write_text(XML.replace("<annotation>", "<annotation>" + "\n" * 2_000_000))
    assert len(voc_xml.read_voc(tmp_path).images) == 1


def test_coco_ids_boxes_and_areas_of_any_kind_are_refused(tmp_path: Path):
    image(tmp_path / "a.png")
    entry = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 1, 5, 5], "area": 25, "iscrowd": 0}
    whole = {"images": [{"id": 1, "file_name": "a.png", "width": 20, "height": 10}],
             "categories": [{"id": 1, "name": "a"}]}  # fmt: skip
    infinite, nothing = float("inf"), float("nan")
    for key, values in {
        "image_id": ([1], {}, 10**400, None, "1"),
        "category_id": ([1], nothing, "1", True),
        "bbox": ([10**400] * 4, [nothing] * 4, [-50, 0, 10, 10], ["1", 2, 3, 4], [[1]] * 4, {}, [1, 2, 3]),
        "area": (infinite, nothing, -1, 10**400, "x", [1]),
        "iscrowd": ([1], "x", nothing, 10**400),
    }.items():
        for value in values:
            content = {**whole, "annotations": [{**entry, key: value}]}
            (tmp_path / "a.json").write_text(json.dumps(content))
            assert "a.json" in refusal(lambda: coco_json.read_coco(tmp_path / "a.json")), (key, value)


def test_a_damaged_file_beside_a_whole_one_is_not_passed_over(tmp_path: Path):
    image(tmp_path / "a.png")
    whole = {"images": [], "annotations": [], "categories": []}
    (tmp_path / "instances_val.json").write_text(json.dumps(whole))
    for content in (b"", b"\xff\xfe\x00", b'{"images": [', b"[" * 100_000):
        (tmp_path / "instances_train.json").write_bytes(content)
        assert "instances_train.json" in refusal(lambda: coco_json.coco_files(tmp_path))
    pipe(tmp_path / "instances_train.json")
    assert "instances_train.json" in refusal(lambda: coco_json.coco_files(tmp_path))


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def test_label_pngs_that_are_bombs_pipes_or_cut_are_refused_before_they_are_counted(tmp_path: Path):
    for split in ("train", "val"):
        image(tmp_path / f"images/{split}/a.png")
        image(tmp_path / f"masks/{split}/a.png", "L")
    file = tmp_path / "masks/train/a.png"
    whole = file.read_bytes()
    header = struct.pack(">IIBBBBB", 60000, 60000, 8, 0, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(999)))
    for content in (bomb, whole[:40], b"garbage", b""):
        file.write_bytes(content)
        assert str(file) in refusal(lambda: label_specs(tmp_path, None))
    Image.fromarray(np.zeros((10, 20), np.uint16)).save(file)
    assert "one 8-bit class per pixel" in refusal(lambda: label_specs(tmp_path, None))
    pipe(file)
    assert str(file) in refusal(lambda: label_specs(tmp_path, None))
    garbage(tmp_path / "classes.txt")
    assert "classes.txt" in refusal(lambda: label_specs(tmp_path, None))
