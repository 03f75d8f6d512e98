"""Detection as a task: what is refused before training, scores by the set's own rules, and the class order."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.data.annotations import DetectionData, open_dataset
from momentum_transfer.transfer.data.few_shot import FewShot
from momentum_transfer.transfer.predictions import Predictions, iou_types
from momentum_transfer.transfer.tasks import open_task
from momentum_transfer.transfer.tasks.detection import Detection, _check_same_classes
from tests.transfer.scores.random_sets import coco_set
from tests.transfer.scores.references import pycocotools_eval
from tests.transfer.torchvision_engine.tiny import shapes_config, write_shapes


def opened(cfg, **options) -> Detection:
    found = open_task(cfg, **options)
    assert isinstance(found, Detection)
    return found


def test_a_set_has_its_counts_and_every_set_comes_once(tmp_path):
    cfg = shapes_config("retinanet", tmp_path, "TEST.DETECTIONS_PER_IMAGE", "7")
    task = opened(cfg)
    (data,) = task.sets()
    assert (task.train, task.test, task.detections) == ((data,), (data,), 7)
    assert task.size(data.name) == {"images": 4, "classes": 3, "objects": 8}
    assert [Path(file).name for file in task.images(data)] == [f"{k:03d}.png" for k in range(4)]
    assert opened(cfg, training=False).train == ()
    for split in ("TRAIN", "TEST"):
        with pytest.raises(InputError, match=rf"DATASETS\.{split} to name at least one data set"):
            open_task(shapes_config("retinanet", tmp_path, f"DATASETS.{split}", "()"))


def test_two_files_of_one_name_are_refused(tmp_path):
    cfg = shapes_config("retinanet", tmp_path)
    other = tmp_path / "other/shapes.json"
    other.parent.mkdir()
    other.write_text((tmp_path / "data/shapes.json").read_text())
    names = [f"one={tmp_path}/data/images:{file}" for file in (tmp_path / "data/shapes.json", other)]
    cfg = shapes_config("retinanet", tmp_path, "DATASETS.TRAIN", repr((names[0],)), "DATASETS.TEST", repr((names[1],)))
    with pytest.raises(InputError, match="data sets of different names, found one for"):
        open_task(cfg)


def test_the_check_counts_and_writes_pictures_only_if_wanted(tmp_path, capsys):
    cfg = shapes_config("mask_rcnn", tmp_path)
    task = opened(cfg)
    task.check(cfg, open_images=True)
    assert "4 images, 3 classes, checked" in capsys.readouterr().out
    assert task.overlap == {task.test[0].name: 4}
    assert not (tmp_path / "out").exists()
    pictured = shapes_config("mask_rcnn", tmp_path, "TEST.VISUALS", "2")
    opened(pictured).check(pictured, overview=False)
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError):
        opened(pictured).check(pictured, forbid_overlap=True)
    assert not (tmp_path / "out").exists()
    opened(pictured).check(pictured)
    assert len(list((tmp_path / "out/data").glob("*example*.png"))) == 2


def test_the_sizes_of_test_images_and_of_small_training_sets_are_compared_before_a_training(tmp_path, monkeypatch):
    trained, tested = (f"{name}={write_shapes(tmp_path / name)}" for name in ("trained", "tested"))
    sets = "DATASETS.TRAIN", repr((trained,)), "DATASETS.TEST", repr((tested,))
    cfg = shapes_config("retinanet", tmp_path, *sets)
    opened(cfg).check(cfg, overview=False)
    turned = Image.Exif()
    turned[0x0112] = 6  # EXIF: on its side
    for name, limit in (("trained", 4), ("trained", 3), ("tested", 3)):
        file = tmp_path / name / "images/001.png"
        before = file.read_bytes()
        Image.new("RGB", (48, 64)).save(file, exif=turned)
        monkeypatch.setattr("momentum_transfer.transfer.tasks.detection.FEW_IMAGES", limit)
        if (name, limit) == ("trained", 3):
            opened(cfg).check(cfg, overview=False)
        else:
            with pytest.raises(InputError, match=rf"1 unusable image of {name}: .*001\.png is 64×48, not 64×64"):
                opened(cfg).check(cfg, overview=False)
        file.write_bytes(before)


def test_images_are_opened_if_asked_and_compared_with_their_annotations(tmp_path):
    cfg = shapes_config("retinanet", tmp_path)
    folder = tmp_path / "data/images"
    whole = (folder / "003.png").read_bytes()
    (folder / "003.png").write_bytes(whole[:-20])  # its header is as it was
    opened(cfg).check(cfg, overview=False)
    with pytest.raises(InputError, match=r"1 unusable image of .*003\.png"):
        opened(cfg).check(cfg, open_images=True)
    (folder / "003.png").write_bytes(whole)
    Image.new("RGB", (64, 63)).save(folder / "001.png")
    (folder / "002.png").write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"2 unusable images of .*001\.png is 64×63, not 64×64; .*002\.png"):
        opened(cfg).check(cfg, open_images=True)
    content = json.loads((tmp_path / "data/shapes.json").read_text())
    turned = Image.Exif()
    turned[0x0112] = 6  # EXIF: on its side
    Image.new("RGB", (64, 63)).save(folder / "001.png", exif=turned)
    content["images"][1].update(height=64, width=63)
    content["annotations"] = [entry for entry in content["annotations"] if entry["image_id"] != 2]
    content["images"].pop(2)
    content["annotations"] = [entry for entry in content["annotations"] if entry["image_id"] != 3]
    (tmp_path / "data/shapes.json").write_text(json.dumps(content))
    opened(cfg).check(cfg, open_images=True)
    content["images"][1].update(height=63, width=64)  # as it is stored, not as it is shown
    (tmp_path / "data/shapes.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"001\.png is 63×64, not 64×63"):
        opened(cfg).check(cfg, open_images=True)


def test_a_test_set_without_annotations_is_refused(tmp_path):
    cfg = shapes_config("retinanet", tmp_path)
    content = json.loads((tmp_path / "data/shapes.json").read_text())
    (tmp_path / "data/shapes.json").write_text(json.dumps({**content, "annotations": []}))
    with pytest.raises(InputError, match=r"annotations to score against in .*, found images only"):
        opened(cfg).check(cfg)


def test_every_set_has_the_classes_of_the_first():
    first = DetectionData("one", Path("x"), Path("x.json"), ("cat", "dog", "bird"), (1, 2, 3), "coco", {})
    _check_same_classes([first, replace(first, name="two")])
    with pytest.raises(InputError, match="the classes of one in two too, found 'cow' instead of 'dog'"):
        _check_same_classes([first, replace(first, name="two", classes=("cat", "cow", "ant"))])


@pytest.mark.parametrize("masks", [False, True])
def test_the_truth_as_predictions_scores_one_hundred_of_everything_that_can_be_scored(masks, tmp_path):
    cfg = shapes_config("mask_rcnn", tmp_path)
    task = opened(cfg)
    data = task.test[0]
    found = [{**{key: entry[key] for key in ("image_id", "category_id", "bbox", "segmentation")}, "score": 0.9}
             for entry in data.load()["annotations"]]  # fmt: skip
    if masks:
        from momentum_transfer.transfer.data.annotations import decode_mask, encode_mask

        for entry in found:
            entry["segmentation"] = encode_mask(decode_mask(entry["segmentation"], 64, 64))
    (tmp_path / "results.json").write_text(json.dumps(found))
    types = iou_types(masks)
    assert types == (("bbox", "segm") if masks else ("bbox",))
    evaluations = list(task.evaluate(Predictions(tmp_path / "results.json", data.name, types, "torchvision")))
    assert [one.task for one in evaluations] == [f"coco/{kind}" for kind in types]
    for one in evaluations:
        assert one.metrics["AP"] == pytest.approx(100.0)
        assert set(one.per_class) == {"square", "diamond", "triangle"}
        assert one.errors is not None
        assert one.errors()
    halved = [entry for entry in found if entry["image_id"] in (1, 2)]
    (tmp_path / "results.json").write_text(json.dumps(halved))
    (one, *_) = task.evaluate(Predictions(tmp_path / "results.json", data.name, ("bbox",), "torchvision"))
    assert 30 < one.metrics["AP"] < 70


@pytest.mark.parametrize(("name", "points"), [("voc_2007_test", "11-point"), ("voc_2012_val", "area")])
def test_voc_scores_by_the_rule_of_its_year(name, points, tmp_path, monkeypatch):
    from momentum_transfer.transfer.scores import voc

    asked = []
    monkeypatch.setattr(voc, "evaluate", lambda truth, found, interpolation: asked.append(interpolation))
    cfg = shapes_config("retinanet", tmp_path)
    data = replace(opened(cfg).test[0], name=name, kind="voc")
    task = Detection([], [data])
    task._score(data, task._truth(data, "bbox"), [], "bbox")
    assert asked == [points]


def test_drawings_are_of_the_predictions(tmp_path):
    cfg = shapes_config("retinanet", tmp_path)
    task = opened(cfg)
    (tmp_path / "results.json").write_text("[]")
    predictions = Predictions(tmp_path / "results.json", task.test[0].name, ("bbox",), "torchvision")
    drawn = task.draw(predictions, tmp_path / "visuals", 1)
    assert [path.suffix for path in drawn] == [".png"]
    assert np.asarray(Image.open(drawn[0])).ndim == 3


@pytest.mark.parametrize("seed", [7, 8, 9, 11])
def test_base_and_novel_ap_are_pycocotools_on_these_classes(seed, tmp_path):
    truth, found = coco_set(seed)
    novel = sorted(category["name"] for category in truth["categories"])[::2]
    for name, content in (("truth.json", truth), ("results.json", found)):
        (tmp_path / name).write_text(json.dumps(content))
    data = open_dataset("random", tmp_path, tmp_path / "truth.json")
    predictions = Predictions(tmp_path / "results.json", "random", ("bbox",), "torchvision")
    task = Detection([], [data], few_shot=FewShot(tuple(novel)))
    whole, base, new = task.evaluate(predictions)
    assert [one.task for one in (whole, base, new)] == ["coco/bbox", "coco/bbox/base", "coco/bbox/novel"]
    for one, side in ((base, False), (new, True)):
        chosen = [category["id"] for category in truth["categories"] if (category["name"] in novel) == side]
        # the objects and detections of other classes stay: pycocotools itself passes them over
        reference = pycocotools_eval(truth, found, "bbox", categories=chosen)
        expected = dict(zip(one.metrics, (100 * value for value in reference.stats), strict=True))
        assert {key: pytest.approx(value, nan_ok=True) for key, value in one.metrics.items()} == {
            key: value if value > -100 else float("nan") for key, value in expected.items()
        }
    alone = [entry for entry in found if entry["category_id"] in data.category_ids[1::2]]
    (tmp_path / "results.json").write_text(json.dumps(alone))
    stage = Detection([], [data], few_shot=FewShot(tuple(novel), "base"))
    (only,) = stage.evaluate(predictions)
    assert only.task == "coco/bbox/base"
    assert only.metrics == pytest.approx(base.metrics, nan_ok=True)
