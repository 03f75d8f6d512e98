"""The tools, run as a user runs them: from images to a report, tiny; and what they say of bad input."""

import json
import pickle
from pathlib import Path

import pytest
import torch

from momentum_transfer.core.records import read
from tests.tools.in_process import run_tool

PRETRAIN = "configs/smoke/momentum2_digits.yaml"
DETECT = "configs/smoke/mask_rcnn_digits.yaml"
LOWSHOT = "configs/smoke/lowshot_digits.yaml"
TINY = ["MODEL.WIDTH", "8", "HEAD.HIDDEN", "16", "HEAD.OUTPUT", "8", "SOLVER.BATCH_SIZE", "8", "SOLVER.STEPS", "2"]
TINY_DETECTOR = [
    *("MODEL.RESNETS.STEM_OUT_CHANNELS", "8", "MODEL.RESNETS.RES2_OUT_CHANNELS", "8", "MODEL.FPN.OUT_CHANNELS", "8"),
    *("SOLVER.MAX_ITER", "2", "SOLVER.STEPS", "()", "SOLVER.IMS_PER_BATCH", "2", "TEST.PRECISE_BN.ENABLED", "False"),
]


def run(tool: str, *arguments: object, code: int = 0) -> str:
    """Run a tool; its output."""
    done = run_tool(tool, *arguments)
    output = done.stdout + done.stderr
    assert done.returncode == code, output
    if code:
        assert "Traceback" not in output, output
    return output


@pytest.fixture(scope="module")
def backbone(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("chain") / "momentum2_digits"
    run("pretrain", "--config", PRETRAIN, "OUTPUT_DIR", folder, *TINY)
    return folder


def test_from_images_to_a_report(backbone):
    results = backbone.parent / "results.jsonl"
    weights = backbone / "backbone.pkl"
    run("convert", backbone, weights, "--report", backbone / "conversion.json")
    run("lowshot", "knn", "--config", LOWSHOT, "--weights", backbone, "--results", results)
    run("lowshot", "svm", "--config", LOWSHOT, "--weights", backbone, "--results", results, "SVM.TRIALS", "2")
    output = ["--results", results, "OUTPUT_DIR", backbone / "mask_rcnn"]
    said = run("transfer", "--config", DETECT, "--weights", weights, "--engine", "auto", *output, *TINY_DETECTOR)
    assert "engine " in said
    run("report", results, "--runs", backbone, "--out", backbone.parent / "report.html")

    records, problems = read(results)
    assert problems == []
    tasks = {record["task"] for record in records}
    assert {"knn/k=20", "coco/bbox", "coco/segm", *(f"svm/k={k}" for k in (1, 2, 4, 8, 16))} <= tasks
    assert {record["checkpoint"]["name"] for record in records} == {"momentum2_digits"}
    assert {record["network"] for record in records} == {"teacher"}
    assert len([r for r in records if r["task"] == "svm/k=4" and r["metric"] == "top1"]) == 2
    page = (backbone.parent / "report.html").read_text(encoding="utf-8")
    assert "momentum2_digits" in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_the_converted_weights_are_the_teachers(backbone):
    out = backbone / "again.pkl"
    run("convert", backbone, out)
    with open(out, "rb") as stream:
        converted = pickle.load(stream)["model"]  # our own file
    last = backbone / "checkpoints" / (backbone / "checkpoints" / "last").read_text().strip()
    state = torch.load(last, weights_only=True)["model"]
    assert (converted["stem.conv1.weight"] == state["teacher.backbone.conv1.weight"].numpy()).all()
    assert (
        converted["res5.0.conv2.norm.running_var"] == state["teacher.backbone.layer4.0.bn2.running_var"].numpy()
    ).all()


def test_a_mistyped_key_is_named_with_the_nearest(tmp_path):
    said = run("pretrain", "--config", PRETRAIN, "SOLVER.BASE_LRR", "1", code=2)
    assert "SOLVER.BASE_LRR" in said
    assert "SOLVER.BASE_LR" in said
    said = run("transfer", "--config", DETECT, "--weights", "none", "SOLVER.MAX_ITERS", "1", code=2)
    assert "nearest known key is SOLVER.MAX_ITER" in said
    said = run("lowshot", "svm", "--config", LOWSHOT, "--weights", "pixels", "SVM.TRIALS", "many", code=2)
    assert "expects int" in said


def test_missing_images_are_named(tmp_path):
    given = ["DATA.NAME", "imagefolder", "DATA.ROOT", tmp_path / "nowhere", "DATA.VIEWS", "byol"]
    assert "nowhere" in run("pretrain", "--config", PRETRAIN, "OUTPUT_DIR", tmp_path / "out", *given, code=2)


def test_what_is_no_checkpoint_is_refused_by_every_consumer(backbone, tmp_path):
    page = tmp_path / "page.pth"
    page.write_text("<!DOCTYPE html><html>not found</html>")
    assert "page.pth" in run("convert", page, tmp_path / "out.pkl", code=2)
    assert not (tmp_path / "out.pkl").exists()
    assert "page.pth" in run("lowshot", "knn", "--config", LOWSHOT, "--weights", page, code=2)
    output = ["OUTPUT_DIR", tmp_path / "out"]
    assert "page.pth" in run(
        "transfer", "--config", DETECT, "--weights", page, "--engine", "torchvision", *output, code=2
    )


def test_weights_of_another_architecture_are_refused_before_training(backbone, tmp_path):
    weights = backbone / "narrow.pkl"
    run("convert", backbone, weights)
    given = ["--engine", "torchvision", "OUTPUT_DIR", tmp_path / "out"]
    said = run("transfer", "--config", DETECT, "--weights", weights, *given, code=2)
    assert "narrow.pkl" in said
    assert not (tmp_path / "out" / "metrics.jsonl").exists()


def test_a_truncated_checkpoint_is_refused(backbone, tmp_path):
    last = backbone / "checkpoints" / (backbone / "checkpoints" / "last").read_text().strip()
    cut = tmp_path / "cut.pt"
    cut.write_bytes(last.read_bytes()[:20000])
    assert "cut.pt" in run("convert", cut, tmp_path / "out.pkl", code=2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda coco: coco["annotations"][0].update(bbox=[5, 5, 900, 20]), "outside"),
        (lambda coco: coco["annotations"][0].update(category_id=77), "77"),
        (lambda coco: coco["images"][0].update(file_name="gone.png"), "gone.png"),
    ],
)
def test_broken_annotations_stop_before_training(tmp_path, change, message):
    from PIL import Image

    Image.new("RGB", (64, 64)).save(tmp_path / "a.png")
    coco = {
        "images": [{"id": 1, "file_name": "a.png", "width": 64, "height": 64}],
        "annotations": [
            {"id": 1, "image_id": 1, "category_id": 1, "bbox": [4, 4, 20, 20], "area": 400, "iscrowd": 0}
            | {"segmentation": [[4, 4, 24, 4, 24, 24, 4, 24]]}
        ],
        "categories": [{"id": 1, "name": "digit"}],
    }
    change(coco)
    (tmp_path / "a.json").write_text(json.dumps(coco))
    data = f"('{tmp_path}:{tmp_path / 'a.json'}',)"
    given = ["DATASETS.TRAIN", data, "DATASETS.TEST", data, "MODEL.ROI_HEADS.NUM_CLASSES", "1"]
    output = ["--engine", "torchvision", "OUTPUT_DIR", tmp_path / "out"]
    said = run("transfer", "--config", DETECT, "--weights", "none", *output, *given, code=2)
    assert message in said
    assert not (tmp_path / "out" / "metrics.jsonl").exists()
