"""Which images keep their labels, and which a teacher may see: draws, published lists, folders, and what is refused."""

import json
import shutil

import pytest
from PIL import Image

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.config import check_settings, identity
from momentum_transfer.transfer.detectron2_engine.engine import Detectron2Engine
from momentum_transfer.transfer.tasks import open_task
from momentum_transfer.transfer.torchvision_engine.unlabelled import (
    check_labels,
    labels_of,
    split_labels,
    training_images,
    unlabelled_images,
)
from tests.transfer.torchvision_engine.tiny import shapes_config, write_shapes

TEACHER = ["SEMI.TEACHER", "True", "MODEL.MASK_ON", "False", "SEMI.BURN_IN", "1"]


@pytest.fixture
def opened(tmp_path):
    """``opened(KEY, VALUE, …)`` -> settings and task of 20 images that train and of 4 others that test."""
    write_shapes(tmp_path / "data", images=20)
    test = f"held={write_shapes(tmp_path / 'test', images=4, size=80)}"

    def make(*words):
        cfg = shapes_config("retinanet", tmp_path, "DATASETS.TEST", repr((test,)), *words)
        return cfg, open_task(cfg)

    return make


def ids(images):
    return [image.image_id for image in images]


def test_a_percentage_is_drawn_by_the_seed_and_the_parts_are_all(opened):
    cfg, task = opened("SEMI.LABELLED", "25")
    images = training_images(cfg, task.train)
    labelled, others = split_labels(cfg, images, 1)
    assert (len(labelled), len(others)) == (5, 15)
    assert sorted(ids(labelled) + ids(others)) == ids(images)
    assert ids(split_labels(cfg, images, 1)[0]) == ids(labelled)
    assert len({tuple(ids(split_labels(cfg, images, seed)[0])) for seed in range(5)}) == 5
    assert len(split_labels(opened("SEMI.LABELLED", "1")[0], images, 0)[0]) == 1
    assert split_labels(opened()[0], images, 0) == (images, [])


def test_published_draws_are_followed_and_what_is_not_there_is_refused(opened, tmp_path):
    file = tmp_path / "draws.json"
    file.write_text(json.dumps({"10.0": {"1": [3, 17], "2": [3, 20], "3": [3, 3]}}))
    cfg, task = opened("SEMI.LABELLED", "10", "SEMI.SPLITS", str(file))
    images = training_images(cfg, task.train)
    assert ids(split_labels(cfg, images, 1)[0]) == [4, 18]
    with pytest.raises(
        InputError, match=r"expected different places from 0 to 19, .*, found 20; choose the training set"
    ):
        split_labels(cfg, images, 2)
    with pytest.raises(InputError, match="found one twice"):
        split_labels(cfg, images, 3)
    with pytest.raises(
        InputError, match=r"for 10 % and seed 4 in .*draws.json, found none; set SEMI.LABELLED and SEED"
    ):
        split_labels(cfg, images, 4)
    with pytest.raises(InputError, match="for 5 % and seed 1"):
        split_labels(opened("SEMI.LABELLED", "5", "SEMI.SPLITS", str(file))[0], images, 1)


def folder_of(tmp_path, count):
    folder = tmp_path / "more"
    folder.mkdir()
    for number in range(count):
        Image.new("RGB", (60, 50), (number, 0, 0)).save(folder / f"{number}.png")
    return folder


def test_a_folder_gives_all_its_images_but_those_that_the_sets_name(opened, tmp_path):
    folder = folder_of(tmp_path, 3)
    cfg, task = opened(*TEACHER, "SEMI.UNLABELLED", str(folder))
    found = unlabelled_images(cfg, task.train, task.test, 0)
    assert [(image.file.name, image.height, image.width, image.annotations) for image in found] == [
        (f"{number}.png", 50, 60, ()) for number in range(3)
    ]
    assert labels_of(cfg, task.train, task.test, 0) == {"labelled": 20, "unlabelled": 3}
    (tmp_path / "data/images/new.png").write_bytes((folder / "0.png").read_bytes())
    same, task = opened(*TEACHER, "SEMI.UNLABELLED", str(tmp_path / "data/images"))
    assert [image.file.name for image in unlabelled_images(same, task.train, task.test, 0)] == ["new.png"]


def test_test_images_are_refused_by_content_under_whatever_name(opened, tmp_path):
    folder = folder_of(tmp_path, 2)
    shutil.copy(tmp_path / "test/images/002.png", folder / "holiday.png")
    cfg, task = opened(*TEACHER, "SEMI.UNLABELLED", str(folder))
    with pytest.raises(
        InputError, match=r"expected no test image among the unlabelled ones, found 1 of 4 test images .*"
    ):
        check_labels(cfg, task.train, task.test)
    with pytest.raises(InputError, match=r"002.png is .*holiday.png"):
        task.check(cfg, overview=False)


def test_no_unlabelled_images_are_refused_with_the_next_step(opened, tmp_path):
    cfg, task = opened(*TEACHER)
    with pytest.raises(
        InputError, match=r"expected images without labels .*, found none; name a folder .* --unlabelled"
    ):
        check_labels(cfg, task.train, task.test)
    cfg, task = opened(*TEACHER, "SEMI.UNLABELLED", str(tmp_path / "absent"))
    with pytest.raises(InputError, match=r"expected a folder of images at .*absent .*check the path"):
        check_labels(cfg, task.train, task.test)
    cfg, task = opened(*TEACHER, "SEMI.UNLABELLED", str(tmp_path / "data/images"))
    with pytest.raises(InputError, match="found none; name a folder"):
        check_labels(cfg, task.train, task.test)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("SEMI.TEACHER True", "expected MODEL.MASK_ON False with SEMI.TEACHER"),
        (
            "SEMI.TEACHER True MODEL.MASK_ON False SOLVER.MAX_ITER 2000",
            "expected SEMI.BURN_IN below SOLVER.MAX_ITER 2000",
        ),
        ("SEMI.TEACHER True MODEL.MASK_ON False SEMI.TEACHER_GROUP 3", "SEMI.TEACHER_GROUP that divides"),
        ("SEMI.UNLABELLED somewhere", "expected SEMI.TEACHER True with SEMI.UNLABELLED"),
        ("SEMI.LABELLED 50 FEW_SHOT.NOVEL ['square']", "expected FEW_SHOT.NOVEL or settings of SEMI, found both"),
        ("SEMI.SPLITS some.json", "expected SEMI.LABELLED below 100 with SEMI.SPLITS"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(words, said, tmp_path):
    with pytest.raises(InputError, match=said):
        check_settings(shapes_config("mask_rcnn", tmp_path, *words.split()))


def test_settings_without_semi_keep_their_name_and_any_of_semi_changes_it(tmp_path):
    plain = shapes_config("retinanet", tmp_path)
    assert identity(plain) == identity(shapes_config("retinanet", tmp_path, "SEMI.EMA", "0.9996"))
    assert identity(plain) != identity(shapes_config("retinanet", tmp_path, "SEMI.LABELLED", "50"))


def test_detectron2_refuses_of_few_labels_what_only_the_other_engine_does(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    few = ("retinanet", tmp_path, "SEMI.LABELLED", "50", "SEMI.TEACHER", "True", "TEST.EVAL_PERIOD")
    assert Detectron2Engine().unsupported(shapes_config(*few, "0")) is None
    assert "set TEST.EVAL_PERIOD 0" in Detectron2Engine().unsupported(shapes_config(*few, "5"))
