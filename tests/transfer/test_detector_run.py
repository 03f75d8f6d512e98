"""A finished run predicts on images in memory what it predicts on its data set, and says clearly what is no run."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.settings import dump
from momentum_transfer.transfer.detector_run import RunClasses, load_run, write_classes
from momentum_transfer.transfer.run import Request, run
from momentum_transfer.transfer.torchvision_engine.detectors import export_state
from momentum_transfer.transfer.torchvision_engine.engine import build
from tests.transfer.torchvision_engine.tiny import shapes_config, tiny_config

SHORT = ("SOLVER.MAX_ITER", "1", "SOLVER.STEPS", "()", "SOLVER.CHECKPOINT_PERIOD", "10", "ENGINE", "torchvision")


def write_run(folder: Path, detector: str, *overrides: str) -> Path:
    """An untrained run, as `transfer` would leave it."""
    folder.mkdir(parents=True, exist_ok=True)
    cfg = tiny_config(detector, "ENGINE", "torchvision", *overrides)
    torch.manual_seed(0)
    torch.save({"model": export_state(build(cfg))}, folder / "model_final.pth")
    (folder / "config.yaml").write_text(dump(cfg))
    write_classes(folder, RunClasses(("square", "diamond", "triangle"), (10, 20, 30), "shapes", "torchvision"))
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    run(shapes_config("mask_rcnn", folder, *SHORT), Request("none"))
    return folder


def test_images_in_memory_get_the_detections_of_the_data_set_bit_for_bit(trained):
    detector = load_run(trained / "out")
    assert detector.classes.names == ("square", "diamond", "triangle")
    assert detector.classes.engine == "torchvision"
    kept = defaultdict(list)
    for entry in json.loads(next((trained / "out").glob("results_*.json")).read_text()):
        kept[entry["image_id"]].append(entry)
    files = sorted((trained / "data/images").glob("*.png"))
    for number, (_, found) in enumerate(zip(files, detector.predict(files), strict=True), start=1):
        entries = kept[number]
        assert [entry["score"] for entry in entries] == found.scores.tolist()
        assert [entry["category_id"] for entry in entries] == list(found.category_ids)
        corners = np.array([entry["bbox"] for entry in entries]).reshape(-1, 4)
        corners[:, 2:] += corners[:, :2]
        np.testing.assert_allclose(corners, found.boxes, atol=1e-12)
        assert found.masks is not None
        assert found.masks.shape == (len(entries), 64, 64)


def test_every_form_of_an_image_is_the_same_image(trained):
    detector = load_run(trained / "out")
    file = sorted((trained / "data/images").glob("*.png"))[0]
    pixels = np.asarray(Image.open(file).convert("RGB"))
    forms = [str(file), Image.open(file), pixels, torch.from_numpy(pixels.transpose(2, 0, 1).copy())]
    expected = detector.predict(file)[0]
    assert len(expected)
    for form in forms:
        (found,) = detector.predict(form)
        assert np.array_equal(found.scores, expected.scores)
    assert len(detector.predict(np.stack([pixels, pixels]))) == 2


def test_a_batch_of_mixed_sizes_gives_what_single_images_give_in_their_order(trained):
    detector = load_run(trained / "out")
    random = np.random.default_rng(0)
    images = [random.integers(0, 255, (h, w, 3), dtype=np.uint8) for h, w in ((64, 64), (40, 90), (64, 64), (5, 300))]
    together, alone = detector.predict(images, batch_size=4), [detector.predict(image)[0] for image in images]
    for first, second in zip(together, alone, strict=True):
        assert len(first) == len(second)
        np.testing.assert_allclose(first.scores, second.scores, atol=1e-5)


def test_the_threshold_leaves_out_what_lies_below_and_nothing_else(trained):
    detector = load_run(trained / "out")
    file = sorted((trained / "data/images").glob("*.png"))[0]
    every = detector.predict(file)[0].scores
    middle = float(np.median(every))
    assert detector.predict(file, threshold=middle)[0].scores.tolist() == [s for s in every if s >= middle]


def test_a_segmenter_gives_a_class_for_every_pixel(tmp_path):
    detector = load_run(write_run(tmp_path / "run", "stride16"))
    (found,) = detector.predict(np.zeros((30, 50, 3), dtype=np.uint8))
    assert len(found) == 0
    assert found.labels is not None
    assert found.labels.shape == (30, 50)
    assert found.labels.max() < 3


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: (run / "model_final.pth").unlink(), r"finished run with model_final\.pth .* found no run"),
        (
            lambda run: ((run / "model_final.pth").unlink(), (run / "training.json").write_text("{}")),
            r"found a training that left no checkpoint; run `transfer` again$",
        ),
        (
            lambda run: (
                (run / "model_final.pth").rename(run / "last_checkpoint"),
                (run / "training.json").write_text("{}"),
            ),
            "has not ended; go on with `transfer --resume`",
        ),
        (lambda run: (run / "config.yaml").unlink(), r"expected config\.yaml beside"),
        (lambda run: (run / "classes.json").unlink(), r"expected classes\.json beside .*found none"),
        (lambda run: (run / "classes.json").write_text("[1]"), r"expected the classes of a run in .*classes\.json"),
        (
            lambda run: write_classes(run, RunClasses(("one",), (1,))),
            r"expected the 3 classes of MODEL\.RETINANET\.NUM_CLASSES",
        ),
    ],
)
def test_what_is_no_finished_run_is_refused_in_one_line(damage, message, tmp_path):
    folder = write_run(tmp_path / "run", "retinanet")
    damage(folder)
    with pytest.raises(InputError, match=message):
        load_run(folder)


def test_a_missing_folder_and_one_of_several_trials_say_what_to_give(tmp_path):
    with pytest.raises(InputError, match="run not found"):
        load_run(tmp_path / "nowhere")
    write_run(tmp_path / "run/trial_0", "retinanet")
    with pytest.raises(InputError, match=f"found 1 trials .* {re.escape(str(tmp_path / 'run/trial_0'))}"):
        load_run(tmp_path / "run")
    assert load_run(tmp_path / "run/trial_0/model_final.pth").task == "detection"


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((8, 8, 3)), "image of uint8"),
        (np.zeros((8, 8, 2), dtype=np.uint8), r"found the shape \[8, 8, 2\]"),
        ("nowhere.png", "cannot read the image nowhere.png"),
    ],
)
def test_what_is_no_image_is_refused(image, message, trained):
    with pytest.raises(InputError, match=message):
        load_run(trained / "out").predict(image)


@pytest.mark.detectron2
def test_detectron2_too_predicts_in_memory_what_it_predicts_on_the_data_set(tmp_path):
    cfg = shapes_config(
        "mask_rcnn", tmp_path, *SHORT, "ENGINE", "detectron2", "DATALOADER.FILTER_EMPTY_ANNOTATIONS", "True"
    )
    run(cfg, Request("none"))
    detector = load_run(tmp_path / "out")
    assert detector.engine.name == "detectron2"
    kept = json.loads(next((tmp_path / "out").glob("results_*.json")).read_text())
    found = detector.predict(sorted((tmp_path / "data/images").glob("*.png")))
    assert [entry["score"] for entry in kept] == np.concatenate([one.scores for one in found]).tolist()
