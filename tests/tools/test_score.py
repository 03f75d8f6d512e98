import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from momentum_transfer.core import records
from momentum_transfer.transfer.scores import coco, lvis, semantic, voc
from tests.tools.in_process import run_tool
from tests.transfer.scores.random_sets import coco_set, federated


def run(*arguments: object, code: int = 0) -> str:
    done = run_tool("score", *arguments)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    truth, found = coco_set(5)
    (tmp_path / "gt.json").write_text(json.dumps(federated(truth, 5)))
    (tmp_path / "predictions.json").write_text(json.dumps(found))
    return tmp_path / "gt.json", tmp_path / "predictions.json"


@pytest.mark.parametrize(
    ("arguments", "task", "expected"),
    [
        (("coco", "--max-dets", "300"), "coco/bbox", lambda *f: coco.evaluate(*f, max_dets=300)),
        (("lvis",), "lvis/bbox", lvis.evaluate),
        (("voc", "--interpolation", "area"), "voc/bbox", lambda *f: voc.evaluate(*f, interpolation="area")),
    ],
)
def test_scores_are_printed_and_recorded(files, arguments, task: str, expected):
    output = run(arguments[0], *files, *arguments[1:], "--per-class", "--dataset", "scenes")
    scores = expected(*files)
    assert f"{scores.metrics['AP']:.2f}" in output
    assert "class 1" in output
    found, problems = records.read(files[1].parent / "results.jsonl")
    assert not problems
    assert {record["metric"]: record["value"] for record in found} == {
        name: None if np.isnan(value) else value for name, value in scores.metrics.items()
    }
    assert {(record["task"], record["dataset"]) for record in found} == {(task, "scenes")}


def test_what_is_recorded_already_is_not_recorded_again(files, tmp_path: Path):
    file = tmp_path / "own" / "results.jsonl"
    run("coco", *files, "--results", file)
    before = file.read_text()
    assert "already" in run("coco", *files, "--results", file)
    assert file.read_text() == before
    run("coco", *files, "--results", file, "--max-dets", "50")
    assert len(file.read_text()) > len(before)


def test_weights_given_by_file_are_recorded_with_their_hash(files, tmp_path: Path):
    weights = tmp_path / "weights.pkl"
    weights.write_bytes(b"weights")
    run("coco", *files, "--checkpoint", weights, "--network", "teacher", "--trial", 2)
    record = records.read(tmp_path / "results.jsonl")[0][0]
    assert record["checkpoint"] == {"name": str(weights), "sha256": hashlib.sha256(b"weights").hexdigest()}
    assert (record["network"], record["trial"]) == ("teacher", 2)


@pytest.mark.parametrize("changed", [0, 1])
def test_a_changed_file_of_the_same_name_is_recorded_anew(files, tmp_path: Path, changed: int):
    weights = tmp_path / "weights.pkl"
    weights.write_bytes(b"weights")
    arguments = ("coco", *files, "--checkpoint", weights)
    run(*arguments)
    before = len(records.read(tmp_path / "results.jsonl")[0])
    files[changed].write_text(files[changed].read_text() + " ")  # other bytes, the same scores
    assert "records appended" in run(*arguments)
    found = records.read(tmp_path / "results.jsonl")[0]
    assert len(found) == 2 * before
    digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    assert [found[-1]["ground_truth_sha256"], found[-1]["predictions_sha256"]] == digests
    assert found[0]["checkpoint"] == found[-1]["checkpoint"]


def test_a_changed_image_in_a_list_is_recorded_anew(tmp_path: Path):
    for side in ("gt", "predicted"):
        Image.fromarray(np.array([[0, 1]], dtype=np.uint8)).save(tmp_path / f"{side}.png")
        (tmp_path / f"{side}.txt").write_text(f"{side}.png\n")
    arguments = ("semantic", tmp_path / "gt.txt", tmp_path / "predicted.txt")
    run(*arguments)
    assert "already" in run(*arguments)
    Image.fromarray(np.array([[0, 0]], dtype=np.uint8)).save(tmp_path / "predicted.png")
    assert "records appended" in run(*arguments)
    found = [r["value"] for r in records.read(tmp_path / "results.jsonl")[0] if r["metric"] == "pACC"]
    assert found == [100, 50]


def test_label_images_are_scored(tmp_path: Path):
    for name in ("gt", "predicted"):
        (tmp_path / name).mkdir()
        Image.fromarray(np.array([[0, 1, 1, 255]], dtype=np.uint8)).save(tmp_path / name / "a.png")
    (tmp_path / "names.txt").write_text("road\nsky\n")
    output = run(
        "semantic", tmp_path / "gt", tmp_path / "predicted", "--classes", tmp_path / "names.txt", "--per-class"
    )
    assert "road" in output
    found, _ = records.read(tmp_path / "results.jsonl")
    assert {record["metric"]: record["value"] for record in found} == semantic.evaluate(
        tmp_path / "gt", tmp_path / "predicted"
    ).metrics


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("coco", "nowhere.json", "nowhere.json"), "error: ground truth file not found: nowhere.json"),
        (("semantic", ".", ".", "--classes", "nowhere.txt"), "error: expected --classes as a number or a file"),
        (("semantic", ".", ".", "--classes", "²"), "error: expected --classes as a number or a file"),
        (("semantic", ".", ".", "--classes", "9" * 5000), "error: expected --classes as a number or a file"),
        (
            ("semantic", ".", ".", "--classes", "999999999999"),
            "error: expected 1 to 4096 classes, found 999999999999",
        ),
        (
            ("semantic", "gt.json", "dt.json"),
            "error: expected label images, found gt.json; JSON files are scored by coco",
        ),
        (
            ("voc", "a.json", "b.json", "--iou-type", "segm"),
            "error: expected only --interpolation with voc",
        ),
        (
            ("voc", "a.json", "b.json", "--max-dets", "0"),
            "error: expected only --interpolation with voc",
        ),
        (
            ("coco", "a.json", "b.json", "--ignore-label", "0"),
            "error: expected only --iou-type, --area",
        ),
        (("coco", "a.json", "b.json", "--area-from", "mask"), "error: expected --area-from with --iou-type segm only"),
        (
            ("coco", "a.json", "b.json", "--results", "."),
            "error: expected --results as a file in a folder, found ., but",
        ),
        (
            ("coco", "a.json", "b.json", "--results", "README.md/x.jsonl"),
            "error: expected --results as a file in a folder, found README.md/x.jsonl",
        ),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_two(arguments, message: str):
    output = run(*arguments, code=2)
    assert output.startswith(message)
    assert len(output.strip().splitlines()) == 1


def test_a_wrong_entry_is_named_and_nothing_is_recorded(files):
    entries = json.loads(files[1].read_text())
    entries[3]["score"] = None
    files[1].write_text(json.dumps(entries))
    assert "predictions.json: entry 3" in run("coco", *files, code=2)
    assert not (files[1].parent / "results.jsonl").exists()


def test_class_names_are_read_from_text_only(tmp_path: Path):
    image = tmp_path / "image.png"
    Image.fromarray(np.array([[0, 1]], dtype=np.uint8)).save(image)
    output = run("semantic", image, image, "--classes", image, code=2)
    assert output.startswith("error: expected --classes as a number or a file with one name a line")
    assert len(output.strip().splitlines()) == 1


def test_results_are_not_appended_to_what_is_scored(files):
    assert "expected --results as a file of its own" in run("coco", *files, "--results", files[1], code=2)


def test_errors_are_told_and_kept_for_the_report(tmp_path):
    from momentum_transfer.transfer.error_analysis.analysis import analyse
    from tests.transfer.error_analysis.test_analysis import crowded_set

    truth, results = crowded_set(0)
    for name, content in (("truth", truth), ("found", results)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    words = ("coco", tmp_path / "truth.json", tmp_path / "found.json", "--errors", tmp_path / "errors_mine_bbox.json")
    done = run_tool("score", *words)
    assert done.returncode == 0, done.stderr
    assert "localisation" in done.stdout
    kept = json.loads((tmp_path / "errors_mine_bbox.json").read_text())
    assert kept["kinds"] == analyse("coco", truth, results)["kinds"]
    assert kept["classes"][0]["ap"] is not None
