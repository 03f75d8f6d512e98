"""PASCAL VOC's XML becomes COCO's JSON with Detectron2's box convention."""

import time
from pathlib import Path

import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.data.detection_datasets import VOC_CLASSES, get_dataset

OBJECT = """<object><name>{name}</name>{difficult}
<bndbox><xmin>{box[0]}</xmin><ymin>{box[1]}</ymin><xmax>{box[2]}</xmax><ymax>{box[3]}</ymax></bndbox></object>"""


def write(root: Path, name: str, *objects: str) -> Path:
    folder = root / "VOC2007"
    for part in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / "JPEGImages" / f"{name}.jpg").touch()
    file = folder / "Annotations" / f"{name}.xml"
    size = "<size><width>50</width><height>40</height><depth>3</depth></size>"
    file.write_text(f"<annotation>{size}{''.join(objects)}</annotation>")
    with open(folder / "ImageSets/Main/trainval.txt", "a") as stream:
        stream.write(f"{name}\n")
    return file


def thing(name: str, box: tuple[int, int, int, int], difficult: int | None = None) -> str:
    mark = "" if difficult is None else f"<difficult>{difficult}</difficult>"
    return OBJECT.format(name=name, box=box, difficult=mark)


def test_boxes_become_continuous_and_difficult_is_kept(tmp_path: Path):
    write(tmp_path, "000005", thing("dog", (1, 1, 50, 40), 0), thing("cat", (11, 21, 20, 30), 1))
    write(tmp_path, "000007", thing("dog", (3, 4, 3, 4)))
    data = get_dataset("voc_2007_trainval", tmp_path)
    assert data.kind == "voc"
    assert data.classes == tuple(VOC_CLASSES)
    content = data.load()
    assert [a["bbox"] for a in content["annotations"]] == [[0, 0, 50, 40], [10, 20, 10, 10], [2, 3, 1, 1]]
    assert [a["difficult"] for a in content["annotations"]] == [0, 1, 0]
    assert [data.classes[data.category_ids.index(a["category_id"])] for a in content["annotations"]] == [
        "dog",
        "cat",
        "dog",
    ]
    assert data.image_path(content["images"][1]) == tmp_path / "VOC2007/JPEGImages/000007.jpg"


def test_conversion_is_cached_until_a_file_changes(tmp_path: Path):
    write(tmp_path, "1", thing("dog", (1, 1, 50, 40)))
    first = get_dataset("voc_2007_trainval", tmp_path).annotation_file
    assert get_dataset("voc_2007_trainval", tmp_path).annotation_file == first
    (tmp_path / "VOC2007/ImageSets/Main/trainval.txt").write_text("")
    write(tmp_path, "1", thing("dog", (1, 1, 50, 40)), thing("cat", (1, 1, 5, 4)))
    assert get_dataset("voc_2007_trainval", tmp_path).annotation_file != first


@pytest.mark.parametrize(
    "entity",
    ['<!ENTITY a "dog">', '<!ENTITY a SYSTEM "file:///etc/hostname">', '<!ENTITY b "dog"><!ENTITY a "&b;&b;&b;">'],
    ids=["plain", "external", "nested"],
)
def test_entities_are_refused_before_they_are_unfolded(tmp_path: Path, entity: str):
    file = write(tmp_path, "1", thing("&a;", (1, 1, 5, 4)))
    file.write_text(f"<!DOCTYPE annotation [{entity}]>{file.read_text()}")
    with pytest.raises(InputError, match=r"PASCAL VOC annotation in .*1\.xml, found: expected an XML without entities"):
        get_dataset("voc_2007_trainval", tmp_path)


def test_elements_nested_without_end_are_refused_at_once(tmp_path: Path):
    file = write(tmp_path, "1")
    file.write_bytes(b"<a>" * 10**6 + b"</a>" * 10**6)
    began = time.process_time()
    with pytest.raises(InputError, match="at most 64 nested elements"):
        get_dataset("voc_2007_trainval", tmp_path)
    assert time.process_time() - began < 3


def test_faults_are_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"image list at .*trainval\.txt"):
        get_dataset("voc_2007_trainval", tmp_path)
    file = write(tmp_path, "1", thing("unicorn", (1, 1, 5, 4)))
    with pytest.raises(InputError, match=r"1\.xml"):
        get_dataset("voc_2007_trainval", tmp_path)
    for text in ("<annotation>", "<annotation></annotation>", "<annotation><size><width>a</width></size></annotation>"):
        file.write_text(text)
        with pytest.raises(InputError, match=r"PASCAL VOC annotation in .*1\.xml"):
            get_dataset("voc_2007_trainval", tmp_path)
    file.unlink()
    with pytest.raises(InputError, match="found 1 missing"):
        get_dataset("voc_2007_trainval", tmp_path)
