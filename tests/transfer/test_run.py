import json
import re

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from momentum_transfer.backbones import read as backbone_reading
from momentum_transfer.backbones.build import build_backbone
from momentum_transfer.backbones.resnet import Architecture, build_resnet
from momentum_transfer.core import records as results
from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer import run as run_module
from momentum_transfer.transfer.config import identity
from momentum_transfer.transfer.data import annotations
from momentum_transfer.transfer.detector_run import choose_engine
from momentum_transfer.transfer.run import Request, run
from momentum_transfer.transfer.scores import typed
from momentum_transfer.transfer.torchvision_engine.detectors import export_state
from momentum_transfer.transfer.torchvision_engine.engine import build
from tests.transfer.torchvision_engine.tiny import check_data, shapes_config, write_shapes

SHORT = ["SOLVER.MAX_ITER", "2", "SOLVER.STEPS", "()", "ENGINE", "torchvision", "PROTOCOL", "tiny"]


def test_every_trial_leaves_its_records_and_pictures(tmp_path):
    cfg = shapes_config("mask_rcnn", tmp_path, *SHORT, "TRIALS", "2", "TEST.VISUALS", "2")
    run(cfg, Request("none"))
    records, problems = results.read(tmp_path / "out/results.jsonl")
    assert problems == []
    ap = [r for r in records if r["metric"] == "AP" and r["task"] == "coco/bbox"]
    assert [(r["trial"], r["seed"]) for r in ap] == [(0, 0), (1, 1)]
    assert {r["task"] for r in records} == {"coco/bbox", "coco/segm"}
    assert {(r["engine"], r["protocol"], r["checkpoint"]["name"]) for r in records} == {("torchvision", "tiny", "none")}
    assert len(list((tmp_path / "out/trial_1/visuals").glob("*.png"))) >= 2
    found = json.loads(next((tmp_path / "out/trial_0").glob("results_*.json")).read_text())
    assert {"image_id", "category_id", "bbox", "score", "segmentation"} <= set(found[0]) if found else True


def test_what_the_results_hold_is_not_done_again(tmp_path, capsys):
    cfg = shapes_config("retinanet", tmp_path, *SHORT)
    run(cfg, Request("none"))
    before = (tmp_path / "out/results.jsonl").read_text()
    capsys.readouterr()
    run(cfg, Request("none", resume=True))
    assert "records are in" in capsys.readouterr().out
    assert (tmp_path / "out/results.jsonl").read_text() == before


def test_records_of_all_test_sets_are_written_together(tmp_path, monkeypatch):
    write_shapes(tmp_path / "other")
    both = [f"{name}={tmp_path / folder / 'images'}:{tmp_path / folder / 'shapes.json'}"
            for name, folder in (("one", "data"), ("two", "other"))]  # fmt: skip
    write_shapes(tmp_path / "data")
    cfg = shapes_config("retinanet", tmp_path, *SHORT, "DATASETS.TEST", repr(tuple(both)))
    original = run_module._Command._records
    killed = []

    def second_is_killed(self, predictions, *rest):
        if predictions.dataset == "two" and not killed:
            killed.append(1)
            raise KeyboardInterrupt
        return original(self, predictions, *rest)

    monkeypatch.setattr(run_module._Command, "_records", second_is_killed)
    with pytest.raises(KeyboardInterrupt):
        run(cfg, Request("none"))
    run(cfg, Request("none", resume=True))
    assert {record["dataset"] for record in results.read(tmp_path / "out/results.jsonl")[0]} == {"one", "two"}


def test_one_detector_is_one_trial(tmp_path):
    cfg = shapes_config("retinanet", tmp_path, *SHORT)
    run(cfg, Request("none"))
    again = shapes_config("retinanet", tmp_path, *SHORT, "TRIALS", "3", "OUTPUT_DIR", str(tmp_path / "eval"))
    run(again, Request(str(tmp_path / "out/model_final.pth"), eval_only=True))
    assert {record["trial"] for record in results.read(tmp_path / "eval/results.jsonl")[0]} == {0}


def test_a_finished_detector_is_scored_alone_without_the_training_data(tmp_path):
    cfg = shapes_config("retinanet", tmp_path, *SHORT)
    run(cfg, Request("none"))
    absent = ["DATASETS.TRAIN", "('coco_2017_train',)", "DATASETS.ROOT", str(tmp_path / "nowhere")]
    again = shapes_config("retinanet", tmp_path, *SHORT, *absent, "OUTPUT_DIR", str(tmp_path / "eval"))
    run(again, Request(str(tmp_path / "out/model_final.pth"), eval_only=True))
    assert not (tmp_path / "eval/model_final.pth").exists()
    first, second = (
        [r["value"] for r in results.read(folder / "results.jsonl")[0]]
        for folder in (tmp_path / "out", tmp_path / "eval")
    )
    assert first == second


@pytest.mark.parametrize("trials", [1, 2])
def test_an_evaluation_leaves_the_folder_of_a_training_as_it_is(trials, tmp_path):
    cfg = shapes_config("retinanet", tmp_path, *SHORT, "TRIALS", str(trials))
    run(cfg, Request("none"))
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "out").rglob("*")}
    last = tmp_path / "out" / ("trial_1" if trials > 1 else "")
    for words in ([], ["INPUT.MIN_SIZE_TEST", "96"]):
        again = shapes_config("retinanet", tmp_path, *SHORT, *words)
        with pytest.raises(InputError, match=r"OUTPUT_DIR of its own for --eval-only, found a training in .*/out, wh"):
            run(again, Request(str(last), eval_only=True))
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "out").rglob("*")} == before


@pytest.mark.parametrize("size", [999.0, 1001.0])
def test_a_diverged_detector_is_not_scored_later_either(size, tmp_path):
    cfg = shapes_config("retinanet", tmp_path, *SHORT)
    state = export_state(build(cfg))
    state["backbone.bottom_up.stem.conv1.weight"].view(-1)[0] = -size
    state["backbone.bottom_up.stem.conv1.norm.running_var"].fill_(1e12)
    torch.save({"model": state}, tmp_path / "model_final.pth")
    request = Request(str(tmp_path / "model_final.pth"), eval_only=True)
    if size < 1000:
        run(cfg, request)
        return
    with pytest.raises(InputError, match=r"found backbone\.bottom_up\.stem\.conv1\.weight at 1e\+03 .* no score"):
        run(cfg, request)
    assert not (tmp_path / "out/results.jsonl").exists()


def test_to_evaluate_a_backbone_alone_is_refused(tmp_path):
    backbone = tmp_path / "backbone.pth"
    torch.save(build_resnet(Architecture("resnet10", 8)).state_dict(), backbone)
    cfg = shapes_config("retinanet", tmp_path, *SHORT)
    with pytest.raises(InputError, match=r"expected a trained detector .* with --eval-only, found the backbone"):
        run(cfg, Request(str(backbone), eval_only=True))


def test_minutes_of_an_evaluation_alone_time_nothing_and_keep_no_schedule(tmp_path, monkeypatch):
    run(shapes_config("retinanet", tmp_path, *SHORT), Request("none"))

    def estimate(experiment):
        raise AssertionError("timed")

    monkeypatch.setattr("momentum_transfer.transfer.cost.estimate", estimate)
    again = shapes_config("retinanet", tmp_path, *SHORT, "OUTPUT_DIR", str(tmp_path / "eval"))
    run(again, Request(str(tmp_path / "out"), eval_only=True, minutes=1.0))
    records = results.read(tmp_path / "eval/results.jsonl")[0]
    assert {record["checkpoint"]["name"] for record in records} == {"out"}
    assert not (tmp_path / "eval/model_final.pth").exists()
    assert not list(tmp_path.rglob("schedule_*.json"))


def test_weights_and_data_are_read_once_for_all_trials(tmp_path, monkeypatch):
    backbone = tmp_path / "backbone.pth"
    torch.save(build_resnet(Architecture("resnet10", 32)).state_dict(), backbone)
    cfg, read = shapes_config("retinanet", tmp_path, *SHORT, "TRIALS", "2"), []
    for module, name in ((backbone_reading, "sha256_of"), (annotations, "read_annotations")):
        original = getattr(module, name)
        monkeypatch.setattr(module, name, lambda file, original=original: read.append(file) or original(file))
    run(cfg, Request(str(backbone)))
    assert {r["trial"] for r in results.read(tmp_path / "out/results.jsonl")[0]} == {0, 1}
    assert read == [backbone, tmp_path / "data/shapes.json"]


def test_ground_truth_is_parsed_once_and_every_result_file_once(tmp_path, monkeypatch):
    parsed = []
    for name in ("ground_truth", "detections"):
        original = getattr(typed, name)
        monkeypatch.setattr(
            typed, name, lambda file, *rest, original=original: parsed.append(file.parent.name) or original(file, *rest)
        )
    run(shapes_config("retinanet", tmp_path, *SHORT, "TRIALS", "2", "TEST.EVAL_PERIOD", "2"), Request("none"))
    assert parsed == ["data", *("validation", "trial_0", "validation", "trial_1")]
    assert len(list(tmp_path.glob("out/trial_*/errors_*.json"))) == 2


def test_a_class_count_that_differs_from_the_datas_is_refused(tmp_path):
    cfg = shapes_config("mask_rcnn", tmp_path, *SHORT, "MODEL.ROI_HEADS.NUM_CLASSES", "7")
    with pytest.raises(InputError, match=r"MODEL.ROI_HEADS.NUM_CLASSES is 7, but .* has 3 classes"):
        run(cfg, Request("none"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: d["annotations"][0].update(bbox=[60, 60, 30, 30]), "box outside its image"),
        (lambda d: d["annotations"][0].update(category_id=999), "unknown category id"),
        (lambda d: d["images"][0].update(file_name="lost.png"), "missing image file"),
    ],
)
def test_damaged_data_stops_before_training(damage, message, tmp_path):
    cfg = shapes_config("mask_rcnn", tmp_path, *SHORT)
    file = tmp_path / "data/shapes.json"
    content = json.loads(file.read_text())
    damage(content)
    file.write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        run(cfg, Request("none"))
    assert not (tmp_path / "out").exists()


def test_both_a_training_and_a_test_set_are_needed(tmp_path):
    with pytest.raises(InputError, match=r"expected DATASETS.TEST to name at least one data set"):
        check_data(shapes_config("mask_rcnn", tmp_path, "DATASETS.TEST", "()"))


def test_auto_says_why_it_chose():
    from momentum_transfer.transfer.config import load

    cfg = load(None, ["MODEL.RESNETS.STRIDE_IN_1X1", "False"])
    engine, why = choose_engine("auto", cfg)
    assert engine.name in why
    assert engine.name == "detectron2" or "not installed" in why


def test_an_engine_that_cannot_run_the_config_says_so():
    from momentum_transfer.transfer.config import load

    with pytest.raises(InputError, match="STRIDE_IN_1X1 True"):
        choose_engine("torchvision", load(None, []))
    with pytest.raises(InputError, match="auto, detectron2, torchvision, found 'tensorflow'"):
        choose_engine("tensorflow", load(None, []))


def test_the_identity_of_a_config_ignores_places_but_not_numbers(tmp_path):
    one = shapes_config("mask_rcnn", tmp_path)
    elsewhere = shapes_config("mask_rcnn", tmp_path, "OUTPUT_DIR", "other", "DATALOADER.NUM_WORKERS", "3")
    other = shapes_config("mask_rcnn", tmp_path, "SOLVER.BASE_LR", "0.5")
    assert identity(one) == identity(elsewhere)
    assert identity(one) != identity(other)


def test_checking_the_data_writes_a_histogram_and_examples(tmp_path):
    check_data(shapes_config("mask_rcnn", tmp_path, "TEST.VISUALS", "2"))
    written = {path.name.split("_", 1)[-1] for path in (tmp_path / "out/data").iterdir()}
    assert sum(name.endswith("classes.csv") for name in written) == 1
    assert sum(bool(re.search(r"example_\d\.png$", name)) for name in written) == 2


def test_the_best_detector_of_a_training_is_kept(tmp_path):
    cfg = shapes_config("retinanet", tmp_path, *SHORT, "SOLVER.MAX_ITER", "4", "TEST.EVAL_PERIOD", "2")
    run(cfg, Request("none"))
    note = json.loads((tmp_path / "out/model_best.json").read_text())
    assert note["iteration"] in (2, 4)
    absent = ["DATASETS.TRAIN", "('coco_2017_train',)", "DATASETS.ROOT", str(tmp_path / "nowhere")]
    again = shapes_config("retinanet", tmp_path, *SHORT, *absent, "OUTPUT_DIR", str(tmp_path / "eval"))
    run(again, Request(str(tmp_path / "out/model_best.pth"), eval_only=True))
    value = next(r["value"] for r in results.read(tmp_path / "eval/results.jsonl")[0] if r["metric"] == "AP")
    assert value == pytest.approx(note["score"])


def test_widths_that_belong_to_no_one_network_are_refused(tmp_path):
    with pytest.raises(InputError, match="RES2_OUT_CHANNELS and WIDTH_PER_GROUP"):
        choose_engine("torchvision", shapes_config("mask_rcnn", tmp_path, "MODEL.RESNETS.RES2_OUT_CHANNELS", "64"))


def test_norms_that_cannot_be_synchronised_are_refused(tmp_path, monkeypatch):
    cfg = shapes_config("mask_rcnn", tmp_path, "MODEL.RESNETS.NORM", "SyncBN")
    choose_engine("torchvision", cfg)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="SyncBN over several processes needs GPUs"):
        choose_engine("torchvision", cfg)


def test_the_long_tailed_scenes_are_scored_as_lvis_scores_them(tmp_path):
    from momentum_transfer.transfer.data.detection_datasets import get_dataset
    from momentum_transfer.transfer.predictions import Predictions
    from momentum_transfer.transfer.tasks import Detection

    data = get_dataset("digit_scenes_lt_val")
    truth = data.load()["annotations"]
    keys = ("image_id", "category_id", "bbox", "segmentation")
    found = [{"score": 0.9, **{key: annotation[key] for key in keys}} for annotation in truth]
    (tmp_path / "results.json").write_text(json.dumps(found))
    predictions = Predictions(tmp_path / "results.json", data.name, ("bbox", "segm"), "torchvision")
    found = Detection([], [data], detections=300).evaluate(predictions)
    scores = {one.task: one.metrics for one in found}
    assert set(scores) == {"lvis/bbox", "lvis/segm"}
    assert scores["lvis/segm"]["AP"] == pytest.approx(100.0)
    assert {"APr", "APc", "APf"} <= set(scores["lvis/bbox"])


def test_training_and_test_classes_have_to_be_the_same(tmp_path):
    cfg = shapes_config("retinanet", tmp_path, *SHORT)
    content = json.loads((tmp_path / "data/shapes.json").read_text())
    content["categories"].reverse()
    for place, category in enumerate(content["categories"]):
        category["id"] = 10 * (place + 1)
    (tmp_path / "data/other.json").write_text(json.dumps(content))
    other = repr((f"{tmp_path}/data/images:{tmp_path}/data/other.json",))
    with pytest.raises(InputError, match="found 'triangle' instead of 'square'"):
        check_data(shapes_config("retinanet", tmp_path, *SHORT, "DATASETS.TEST", other))
    check_data(cfg)


@pytest.mark.parametrize(("box_side", "ap_small_boxes"), [(50, 100.0), (12, 50.0)])
def test_a_masks_size_is_its_pixels_though_the_file_holds_boxes_too(box_side, ap_small_boxes, tmp_path):
    """A wrong small mask counts against the small masks even if the box beside it is a large one."""
    from pycocotools import mask as coco_mask

    from momentum_transfer.transfer.data.annotations import open_dataset
    from momentum_transfer.transfer.predictions import Predictions
    from momentum_transfer.transfer.tasks import Detection

    def entry(x, side, **more):
        bitmap = np.zeros((100, 100), np.uint8, order="F")
        bitmap[10 : 10 + side, x : x + side] = 1
        runs = coco_mask.encode(bitmap)
        segmentation = {"size": [100, 100], "counts": runs["counts"].decode()}
        box = [x, 10, side, side]
        return {"image_id": 1, "category_id": 1, "bbox": box, "segmentation": segmentation, **more}

    truth = {
        "images": [{"id": 1, "height": 100, "width": 100}],
        "categories": [{"id": 1, "name": "square"}],
        "annotations": [entry(5, 12, id=1, area=144, iscrowd=0)],
    }
    wrong = entry(45, 12, score=0.9)
    wrong["bbox"] = [45, 10, box_side, box_side]
    (tmp_path / "truth.json").write_text(json.dumps(truth))
    (tmp_path / "found.json").write_text(json.dumps([wrong, entry(5, 12, score=0.8)]))
    predictions = Predictions(tmp_path / "found.json", "squares", ("bbox", "segm"), "torchvision")
    squares = open_dataset("squares", tmp_path, tmp_path / "truth.json")
    scores = {one.task: one.metrics for one in Detection([], [squares]).evaluate(predictions)}
    assert scores["coco/bbox"]["APs"] == pytest.approx(ap_small_boxes)
    assert scores["coco/segm"]["APs"] == pytest.approx(50.0)


def test_scoring_without_annotations_names_predict_before_anything_is_written(tmp_path):
    cfg = shapes_config("retinanet", tmp_path, *SHORT)
    run(cfg, Request("none"))
    file = tmp_path / "data/shapes.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "annotations": []}))
    alone = ["DATASETS.TRAIN", "()", "OUTPUT_DIR", str(tmp_path / "eval")]
    with pytest.raises(InputError, match=r"found images only; to find objects .*predict"):
        run(
            shapes_config("retinanet", tmp_path, *SHORT, *alone),
            Request(str(tmp_path / "out/model_final.pth"), eval_only=True),
        )
    assert not (tmp_path / "eval").exists()


def test_a_scored_run_keeps_its_classes_and_its_errors(tmp_path):
    run(shapes_config("mask_rcnn", tmp_path, *SHORT), Request("none"))
    classes = json.loads((tmp_path / "out/classes.json").read_text())["classes"]
    assert [entry["id"] for entry in classes] == [10, 20, 30]
    found = {
        path.name.rpartition("_")[2]: json.loads(path.read_text()) for path in (tmp_path / "out").glob("errors_*.json")
    }
    assert set(found) == {"bbox.json", "segm.json"}
    records = {r["task"]: r["value"] for r in results.read(tmp_path / "out/results.jsonl")[0] if r["metric"] == "AP50"}
    assert found["bbox.json"]["ap50"] == pytest.approx(records["coco/bbox"])
    assert found["segm.json"]["ap50"] == pytest.approx(records["coco/segm"])
    assert all(entry["ap"] is not None for entry in found["bbox.json"]["classes"])


def test_a_diverged_training_is_said_on_the_way_and_leaves_no_record(tmp_path, capsys):
    architecture = "timm:convnext_atto?depths=(1,1,1,1)&dims=(16,24,32,48)"
    state = build_backbone(architecture).state_dict()
    state["stem.0.bias"].zero_()  # of a file from before these were drawn; 66 px are padded to 96
    save_file(state, tmp_path / "backbone.safetensors", {"architecture": architecture})
    settings = ["MODEL.BACKBONE.ARCH", architecture, "INPUT.MIN_SIZE_TRAIN", "[66]", "SOLVER.BASE_LR", "1"]
    cfg = shapes_config("retinanet", tmp_path, *SHORT, *settings, "SOLVER.MAX_ITER", "1", "SOLVER.WARMUP_ITERS", "0")
    with pytest.raises(InputError, match=r"found backbone\.bottom_up\.stem\.0\.bias at .*e\+\d+ .* diverged"):
        run(cfg, Request(str(tmp_path / "backbone.safetensors")))
    assert not (tmp_path / "out/results.jsonl").exists()
    assert re.search(r"expected gradients up to 100000, found \S+e\+\d+ at iteration 1", capsys.readouterr().err)


def test_records_keep_how_many_test_images_also_train(tmp_path, capsys):
    write_shapes(tmp_path / "data")
    write_shapes(tmp_path / "other")
    for number in range(3):  # of the four test images one stays a training image
        picture = tmp_path / f"other/images/{number:03d}.png"
        Image.open(picture).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(picture)
    test = f"apart={tmp_path}/other/images:{tmp_path}/other/shapes.json"
    words = ("DATASETS.TEST", repr((test,)), "TEST.VISUALS", "1")
    with pytest.raises(InputError, match=r"found 1 of 4 test images .*\(apart"):
        run(shapes_config("retinanet", tmp_path, *SHORT, *words), Request("none", forbid_overlap=True))
    assert not list(tmp_path.glob("out/*"))
    run(shapes_config("retinanet", tmp_path, *SHORT, *words), Request("none"))
    assert (tmp_path / "out/data").is_dir()
    assert "1 of 4 test images are byte for byte training images (apart; first: " in capsys.readouterr().err
    assert {record["overlap"] for record in results.read(tmp_path / "out/results.jsonl")[0]} == {1}


def test_groups_of_images_come_in_the_order_of_their_outcomes(tmp_path):
    """The references score images by their ids, whatever their order in the file."""
    from momentum_transfer.transfer.scores import coco
    from momentum_transfer.transfer.tasks.detection import Detection

    images = [{"id": n, "file_name": f"{n}.png", "width": 9, "height": 9} for n in (7, 2, 40, 5)]
    boxes = [
        {"id": n, "image_id": n, "category_id": 1, "bbox": [1, 1, 4, 4], "area": 16, "iscrowd": 0} for n in (7, 40)
    ]
    content = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "a"}]}
    (tmp_path / "truth.json").write_text(json.dumps(content))
    (tmp_path / "groups.csv").write_text("2.png,a\n5.png,b\n7.png,c\n40.png,d\n")
    data = annotations.open_dataset("mine", tmp_path, tmp_path / "truth.json")
    task = Detection([], [data])
    task.check_overlap()
    groups = task.groups["mine"]
    outcomes = coco.evaluate(tmp_path / "truth.json", []).items
    assert groups[outcomes.object_image].tolist() == [2, 3]  # of 7.png and of 40.png
