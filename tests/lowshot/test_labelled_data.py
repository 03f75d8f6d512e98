"""Labelled rows, split files and class names, on real folders of image files."""

import shutil

import numpy as np
import PIL.Image
import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.images.datasets import ArrayImages, build_dataset
from momentum_transfer.images.views import eval_transform
from momentum_transfer.lowshot import evaluations
from momentum_transfer.lowshot.classifier import Result
from momentum_transfer.lowshot.config import get_cfg
from momentum_transfer.lowshot.evaluations import _run_folder
from momentum_transfer.lowshot.identity import settings_hash
from momentum_transfer.lowshot.inputs import Images, feature_sets
from momentum_transfer.lowshot.labelled_data import LabelledData, file_names, search_split

VIEW = eval_transform("digits", 16)
CLASSES = ("ant", "bee", "cat")


@pytest.fixture
def folder(tmp_path):
    """train/ and val/ with four images of each of three classes, and lists of them."""
    for split in ("train", "val"):
        lines = []
        for number, name in enumerate(CLASSES):
            (tmp_path / split / name).mkdir(parents=True)
            for index in range(4):
                file = f"{split}/{name}/{name}_{split}{index}.jpeg"
                PIL.Image.new("RGB", (16, 16), (80 * number, 20 * index, 0)).save(tmp_path / file)
                lines.append(f"{file} {name}\n")
        (tmp_path / f"{split}.txt").write_text("".join(lines))
    return tmp_path


def settings(folder, name="imagefolder"):
    cfg = get_cfg()
    cfg.DATASETS.NAME, cfg.DATASETS.ROOT, cfg.INPUT.IMAGE_SIZE = name, str(folder), 16
    cfg.DATASETS.TRAIN_LIST, cfg.DATASETS.TEST_LIST = str(folder / "train.txt"), str(folder / "val.txt")
    cfg.FEATURES.CACHE, cfg.FEATURES.WORKERS = str(folder / "cache"), 0
    return cfg


@pytest.mark.parametrize("name", ["imagefolder", "filelist"])
def test_split_file_finds_its_images_by_name(folder, name):
    data = Images(settings(folder, name)).labelled(workers=0)
    listing = folder / "10percent.txt"
    listing.write_text("cat_train2.jpeg\nant_train1.jpeg\n")
    rows = data.labelled_rows(0.17, str(listing), 0)
    assert rows.tolist() == [1, 10]
    assert data.train.labels[rows].tolist() == [0, 2]


def test_split_file_finds_its_images_in_a_long_tail(folder):
    cfg = settings(folder)
    cfg.DATASETS.LONG_TAIL = 0.25
    data = Images(cfg).labelled(workers=0)
    names = file_names(data.train)
    assert len(names) == len(data.train) < 12
    assert all(CLASSES[label] in name for name, label in zip(names, data.train.labels, strict=True))
    listing = folder / "list.txt"
    listing.write_text("".join(name.rpartition("/")[2] + "\n" for name in names))
    assert data.labelled_rows(1.0, str(listing), 0).tolist() == list(range(len(names)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ant_train0.jpeg\ndog_train0.jpeg\n", r"names 1 of 2 images that the data set lacks, first dog_train0\.jpeg"),
        ("ant_train0.jpeg\nant_train1.jpeg\n", "names images of one class only"),
        (
            "ant_train0.jpeg\nbee_train0.jpeg\ncat_train0.jpeg\n",
            r"FRACTION 0\.25, the fraction .* found 0\.17; set it",
        ),
        ("\n", "is empty"),
    ],
)
def test_unusable_split_file_is_refused(folder, text, message):
    (folder / "list.txt").write_text(text)
    with pytest.raises(InputError, match=message):
        Images(settings(folder)).labelled(workers=0).labelled_rows(0.17, str(folder / "list.txt"), 0)


def test_split_file_needs_files():
    images = ArrayImages(np.zeros((4, 16, 16, 3), np.uint8), [0, 1, 0, 1], ["a", "b"])
    assert file_names(images) is None
    with pytest.raises(InputError, match="a split file needs a data set of image files"):
        LabelledData(images, images, VIEW, VIEW).labelled_rows(0.1, "list.txt", 0)


@pytest.mark.parametrize("name", ["imagefolder", "filelist"])
def test_class_that_only_one_split_has_is_refused_as_it_shifts_the_others(folder, name):
    shutil.rmtree(folder / "val" / "ant")
    listing = folder / "val.txt"
    listing.write_text("".join(line for line in listing.read_text().splitlines(True) if " ant" not in line))
    for build in (lambda cfg: Images(cfg).labelled(0), lambda cfg: feature_sets(cfg, None, Images(cfg))):
        with pytest.raises(InputError, match="class 0 is 'ant' in the training images and 'bee' in the test images"):
            build(settings(folder, name))


def test_classes_may_be_missing_at_the_end_of_the_test_set(folder):
    shutil.rmtree(folder / "val" / "cat")
    train, test = feature_sets(settings(folder), None, Images(settings(folder)))
    assert (train.num_classes, test.num_classes) == (3, 2)
    assert len(Images(settings(folder)).labelled(0).test) == 8


def test_labels_that_do_not_fit_are_refused():
    one_class = ArrayImages(np.zeros((3, 16, 16, 3), np.uint8), [1, 1, 1], ["a", "b"])
    with pytest.raises(InputError, match="one class only"):
        LabelledData(one_class, one_class, VIEW, VIEW)
    two = ArrayImages(np.zeros((4, 16, 16, 3), np.uint8), [0, 1, 0, 1], ["a", "b"])
    more = ArrayImages(np.zeros((3, 16, 16, 3), np.uint8), [0, 1, 2], ["a", "b", "c"])
    with pytest.raises(InputError, match="classes that the training set lacks"):
        LabelledData(two, more, VIEW, VIEW)


def test_search_split_is_disjoint_and_holds_out_every_class():
    labels = np.repeat(np.arange(5), 20)
    rows = np.arange(0, 100, 2)
    fitted, held = search_split(labels, rows, 0)
    assert sorted([*fitted, *held]) == rows.tolist()
    assert np.bincount(labels[held]).tolist() == [2] * 5


def test_search_split_holds_out_a_fifth_of_every_class_of_a_long_tail():
    labels = np.repeat(np.arange(4), [100, 20, 5, 1])
    fitted, held = search_split(labels, np.arange(126), 0)
    assert np.bincount(labels[held], minlength=4).tolist() == [20, 4, 1, 0]
    assert len(fitted) + len(held) == 126


def test_an_edited_list_is_another_experiment(folder):
    cfg = settings(folder, "filelist")
    before = settings_hash(cfg)
    folders = {_run_folder(cfg, None, "linear", 0, np.arange(rows), {}) for rows in (3, 4, 4)}
    assert len(folders) == 2
    with (folder / "train.txt").open("a") as listing:
        listing.write("train/ant/ant_train0.jpeg ant\n")
    assert settings_hash(cfg) != before
    assert _run_folder(cfg, None, "linear", 0, np.arange(3), {}) not in folders


def test_unreadable_test_image_is_an_error_and_not_replaced(folder):
    (folder / "val" / "bee" / "bee_val1.jpeg").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"at most 0 unreadable images, found 1: .*bee_val1\.jpeg"):
        feature_sets(settings(folder), None, Images(settings(folder)))


@pytest.mark.parametrize(("layer", "channels"), [("pooled", 32), ("res4", 16)])
def test_linear_evaluation_takes_the_layer_that_is_asked_for(folder, monkeypatch, layer, channels):
    cfg, dims = settings(folder), []
    cfg.FEATURES.LAYER, cfg.FEATURES.PRECISION, cfg.OUTPUT_DIR = layer, "fp32", str(folder / "out")
    cfg.MODEL.ARCH, cfg.MODEL.WIDTH, cfg.MODEL.STEM = "resnet10", 4, "small"
    cfg.LINEAR.BATCH_SIZE, cfg.LINEAR.WORKERS = 4, 0
    scores = Result(1.0, 1.0, 0.1, dict.fromkeys(("top1", "top5"), np.ones(8, bool)))
    monkeypatch.setattr(evaluations, "evaluate_linear", lambda source, *_: dims.append(source.dim) or scores)
    list(evaluations.ON_IMAGES["linear"](cfg, None, Images(cfg), lambda *_: True))
    assert dims == [channels]


def test_file_names_are_text_in_the_order_of_the_data_set(folder):
    names = file_names(build_dataset("imagefolder", folder, "val"))
    assert names[5] == str(folder / "val" / "bee" / "bee_val1.jpeg")
