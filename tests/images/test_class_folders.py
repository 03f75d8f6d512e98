from pathlib import Path

import PIL.Image
import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.images.class_folders import (
    is_class_folders,
    open_class_folders,
    title_of,
    training_part,
    write_list,
)
from momentum_transfer.images.datasets import build_dataset


def images(folder: Path, **counts: int) -> Path:
    for name, count in counts.items():
        for number in range(count):
            path = folder / name / f"{number} of {name}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            PIL.Image.new("RGB", (4, 4), (number, 0, 0)).save(path)
    return folder


def test_only_folders_of_images_are_a_classification_set(tmp_path):
    assert is_class_folders(images(tmp_path / "a", cat=2, dog=1))
    split = images(tmp_path / "b" / "train", cat=1, dog=1).parent
    images(split / "val", cat=1, dog=1)
    assert is_class_folders(split)
    yolo = images(tmp_path / "yolo", train=2, val=1)
    (yolo / "train/0.txt").write_text("0 .5 .5 .1 .1")
    voc = images(tmp_path / "voc", JPEGImages=2)
    (voc / "Annotations").mkdir()
    coco = images(tmp_path / "coco", train=2, val=2)
    (coco / "train.json").write_text("{}")
    assert not [folder for folder in (yolo, voc, coco, tmp_path / "absent") if is_class_folders(folder)]


def test_a_split_is_stratified_and_a_lists_reader_gives_the_same_images_back(tmp_path):
    folder = images(tmp_path / "mine", ant=10, bee=20)
    train, val = open_class_folders(folder, None, 0.8, seed=0)
    assert (train.counts(), val.counts(), train.classes) == ([8, 16], [2, 4], ("ant", "bee"))
    assert not set(train.paths) & set(val.paths)
    assert (
        open_class_folders(folder, None, 0.8, seed=0) == (train, val) != open_class_folders(folder, None, 0.8, seed=1)
    )
    write_list(tmp_path / "val.txt", val)
    data = build_dataset("filelist", tmp_path, file_list=tmp_path / "val.txt")
    assert data.labels.tolist() == list(val.labels)
    assert [data[k][0].getpixel((0, 0))[0] for k in range(6)] == [int(path.name.split()[0]) for path in val.paths]


def test_a_split_keeps_the_images_of_one_group_on_one_side(tmp_path, caplog):
    folder = images(tmp_path / "mine", ant=20, bee=20)
    rows = [
        f"{name}/{number} of {name}.png,patient {number // 4} {name}" for name in ("ant", "bee") for number in range(20)
    ]
    (folder / "groups.csv").write_text("\n".join(rows), encoding="utf-8")
    caplog.set_level("INFO")
    parts = open_class_folders(folder, None, 0.6, seed=0)
    patients = [{(path.parent.name, int(path.name.split()[0]) // 4) for path in part.paths} for part in parts]
    assert not patients[0] & patients[1]
    assert [part.counts() for part in parts] == [[12, 12], [8, 8]]  # three and two patients of each class
    assert caplog.messages == ["groups.csv: 10 groups, each of which trains or tests as a whole"]
    (folder / "groups.csv").write_text("\n".join(rows[1:]), encoding="utf-8")
    with pytest.raises(InputError, match="found 1 of 40 absent, first 'ant/0 of ant"):
        open_class_folders(folder, None, 0.6, seed=0)


def test_a_folders_own_split_or_a_second_folder_tests(tmp_path):
    whole = images(tmp_path / "mine" / "train", ant=3, bee=2).parent
    images(whole / "val", ant=1, bee=2)
    assert [part.counts() for part in open_class_folders(whole, None, None, 0)] == [[3, 2], [1, 2]]
    other = images(tmp_path / "other", ant=1, bee=1)
    assert [part.counts() for part in open_class_folders(other, whole / "val", None, 0)] == [[1, 1], [1, 2]]


def test_a_set_is_called_as_its_own_folder(tmp_path):
    assert title_of(tmp_path / "mine" / "images") == title_of(tmp_path / "mine/images/train") == "images"
    assert title_of(tmp_path / "two words" / "Training") == "two_words"


def test_a_third_part_is_counted_as_left_out(tmp_path, caplog):
    whole = images(tmp_path / "mine" / "train", ant=3, bee=2).parent
    images(whole / "val", ant=1, bee=2)
    images(whole / "test", ant=2, bee=2)
    caplog.set_level("INFO")
    open_class_folders(whole, None, None, 0)
    assert [record.getMessage() for record in caplog.records] == [
        f"left out: 4 images of {whole / 'test'}, which neither trains nor tests"
    ]


def test_what_cannot_be_split_or_compared_is_one_line(tmp_path):
    folder, other = images(tmp_path / "a", ant=3, bee=2), images(tmp_path / "b", ant=1, cow=1)
    for arguments, message in {
        (folder, None, None): "expected --val FOLDER or --split 0.8",
        (folder, other, 0.5): "expected --val or --split, found both",
        (folder, other, None): "expected the same classes in .*, found 'bee' in",
        (folder, None, 1.5): "expected a training fraction between 0 and 1",
        (folder, folder / "ant", None): "expected a folder for each class in",
    }.items():
        with pytest.raises(InputError, match=message):
            open_class_folders(*arguments, seed=0)


def test_the_part_that_trains_is_found_beside_one_that_tests(tmp_path):
    both = tmp_path / "both"
    images(both / "Train", cat=1, dog=1)
    assert training_part(both) == "."  # a class may be called so
    images(both / "validation", cat=1, dog=1)
    assert training_part(both) == "Train"
    packed = tmp_path / "packed"
    packed.mkdir()
    (packed / "train-0000.tar").touch()
    (packed / "val-0000.tar").touch()
    assert training_part(packed) == "train"
