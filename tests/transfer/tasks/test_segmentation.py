"""Label maps as a task: what is checked before training, crops that fit, scores of written predictions."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.data.semantic_datasets import label_file
from momentum_transfer.transfer.predictions import Predictions
from momentum_transfer.transfer.tasks.segmentation import Segmentation, _check_crop
from momentum_transfer.transfer.torchvision_engine.data import AnnotatedImage
from tests.transfer.torchvision_engine.test_semantic import labels_config, write_labels

CROP = ["INPUT.CROP.ENABLED", "True", "INPUT.CROP.TYPE", "absolute", "INPUT.MAX_SIZE_TRAIN", "999",
        "INPUT.MAX_SIZE_TEST", "999"]  # fmt: skip


def task_of(cfg) -> Segmentation:
    from momentum_transfer.transfer.tasks import open_task

    found = open_task(cfg)
    assert isinstance(found, Segmentation)
    return found


@pytest.mark.parametrize(
    ("crop", "height", "width", "fits"),
    [
        ("[64,64]", 64, 64, True),
        ("[64,64]", 128, 192, True),  # resized to 64 × 96
        ("[64,96]", 128, 192, True),
        ("[64,97]", 128, 192, False),
        ("[65,64]", 128, 192, False),
        ("[96,64]", 192, 128, True),
        ("[97,64]", 192, 128, False),
    ],
)
def test_a_training_crop_fits_into_every_resized_image(crop, height, width, fits, tmp_path):
    cfg = labels_config("stride16", tmp_path, *CROP, "INPUT.CROP.SIZE", crop)
    image = AnnotatedImage(Path("a.png"), 0, height, width)
    _check_crop(cfg, image, trained=False, tested=False)
    if fits:
        _check_crop(cfg, image, trained=True, tested=False)
        return
    with pytest.raises(InputError, match=r"CROP\.SIZE .* does not fit into a\.png resized to"):
        _check_crop(cfg, image, trained=True, tested=False)


@pytest.mark.parametrize(
    ("crop", "height", "width", "whole"),
    [
        ("[64,64]", 64, 64, True),
        ("[64,64]", 64, 128, True),
        ("[32,64]", 64, 128, True),
        ("[64,48]", 64, 96, True),
        ("[64,64]", 64, 96, False),
        ("[48,32]", 64, 96, False),
        ("[64,64]", 64, 121, True),  # 16 cells of 8 pixels, the last of them padded
        ("[64,64]", 64, 120, False),
    ],
)
def test_test_images_hold_whole_pooling_windows(crop, height, width, whole, tmp_path):
    cfg = labels_config("stride8", tmp_path, *CROP, "INPUT.CROP.SIZE", crop)
    image = AnnotatedImage(Path("a.png"), 0, height, width)
    if whole:
        _check_crop(cfg, image, trained=False, tested=True)
    else:
        with pytest.raises(InputError, match=r"resized to .* is no multiple of INPUT\.CROP\.SIZE"):
            _check_crop(cfg, image, trained=False, tested=True)
    _check_crop(cfg, image, trained=False, tested=False)


def test_a_set_that_cannot_be_cropped_is_told_without_an_error(tmp_path):
    assert task_of(labels_config("stride8", tmp_path)).holds_crops(labels_config("stride8", tmp_path))
    for crop, holds in (("[64,64]", True), ("[32,32]", True), ("[96,96]", False), ("[48,48]", False)):
        cfg = labels_config("stride8", tmp_path, *CROP, "INPUT.CROP.SIZE", crop)
        assert task_of(cfg).holds_crops(cfg) == holds, crop


def test_labels_are_read_whole_and_written_only_where_pictures_are_wanted(tmp_path, capsys):
    cfg = labels_config("stride16", tmp_path)
    task = task_of(cfg)
    task.check(cfg)
    assert "4 images, 3 classes, checked" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    data = task.train[0]
    pixels = task._read_labels(cfg, data)
    assert pixels.shape == (4, 256)
    assert pixels[0, :3].tolist() == [64 * 64 - 32 * 24 - 36 * 24, 32 * 24, 36 * 24]
    assert not pixels[:, 3:].any()
    assert task.size(data.name) == {"images": 4, "classes": 3}
    assert [Path(file).name for file in task.images(data)] == [f"{k}.png" for k in range(4)]
    assert task.overlap == {data.name: 4}
    with pytest.raises(InputError, match="4"):
        task.check(cfg, forbid_overlap=True)


def test_a_label_file_of_another_size_and_a_set_of_nothing_are_named(tmp_path):
    cfg = labels_config("stride16", tmp_path)
    file = tmp_path / "data/labels/2.png"
    Image.fromarray(np.zeros((64, 63), np.uint8)).save(file)
    with pytest.raises(InputError, match=r"labels of 64×64 pixels as .*2\.png has, found 63×64"):
        task_of(cfg).check(cfg)
    for one in file.parent.iterdir():
        Image.fromarray(np.full((64, 64), 255, np.uint8)).save(one)
    with pytest.raises(InputError, match="labelled to be ignored; nothing is left to learn"):
        task_of(cfg).check(cfg)


def test_one_class_is_refused_where_it_trains_and_said_where_it_tests(tmp_path, capsys):
    cfg = labels_config("stride16", tmp_path)
    files = list((tmp_path / "data/labels").iterdir())
    for file in files:
        values = np.asarray(Image.open(file))
        Image.fromarray(np.where(values > 0, 255, 0).astype(np.uint8)).save(file)
    only_tests = Segmentation([], task_of(cfg).test)
    with pytest.raises(InputError, match=r"two classes or more in .*, found only label 0 .*\(255\); label the others"):
        task_of(cfg).check(cfg)
    only_tests.check(cfg)
    assert "found only label 0 beside those that are ignored (255)" in capsys.readouterr().err
    for file in files:
        Image.fromarray(np.full((64, 64), 2, np.uint8)).save(file)
    with pytest.raises(InputError, match="found only label 2; label the others"):
        task_of(cfg).check(cfg)


@pytest.mark.parametrize("wrong", [0, 16])
def test_predictions_are_scored_by_intersection_over_union(wrong: int, tmp_path):
    cfg = labels_config("stride16", tmp_path)
    task = task_of(cfg)
    data = task.test[0]
    folder = tmp_path / "results_x"
    folder.mkdir()
    inter, union = np.zeros(3), np.zeros(3)
    for number in range(4):
        truth = data.labels(number)
        found = truth.copy()
        found[8 : 8 + wrong, 4:28] = 2  # of class 1
        Image.fromarray(found).save(label_file(folder, number))
        for k in range(3):
            inter[k] += ((truth == k) & (found == k)).sum()
            union[k] += ((truth == k) | (found == k)).sum()
    (evaluation,) = task.evaluate(Predictions(folder, data.name, (), "torchvision"))
    assert evaluation.task == "semantic"
    assert evaluation.metrics["mIoU"] == pytest.approx(100 * (inter / union).mean())
    assert (tmp_path / "truth_x").exists()


def test_two_sets_are_checked_each_for_what_it_does(tmp_path):
    """A set that only trains need not hold whole windows, one that only tests need not hold crops."""
    first, second = write_labels(tmp_path / "one", size=64), write_labels(tmp_path / "two", size=48)
    cfg = labels_config("stride8", tmp_path, *CROP, "INPUT.CROP.SIZE", "[48,48]", "DATASETS.TRAIN", repr((first,)),
                        "DATASETS.TEST", repr((second,)), "INPUT.MIN_SIZE_TEST", "48")  # fmt: skip
    task = task_of(cfg)
    assert [task._roles(data) for data in task.sets()] == [(True, False), (False, True)]
    assert task.holds_crops(cfg)


def test_two_sets_of_one_name_are_refused(tmp_path):
    specs = tuple(f"mine={write_labels(tmp_path / folder)}" for folder in ("one", "two"))
    cfg = labels_config("stride16", tmp_path, "DATASETS.TEST", repr(specs))
    with pytest.raises(InputError, match="expected data sets of different names, found mine for two"):
        task_of(cfg)
