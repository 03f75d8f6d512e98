"""Images in, COCO results, visualizations and counts out; a stopped prediction resumes."""

from __future__ import annotations

import csv
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.detector_run import load_run
from momentum_transfer.transfer.prediction import predict_images as prediction
from momentum_transfer.transfer.prediction.input_images import _natural_order, find_images
from momentum_transfer.transfer.prediction.predict_images import Options, ids_of, predict
from momentum_transfer.transfer.scores import coco
from tests.tools.in_process import run_tool
from tests.transfer.test_detector_run import write_run
from tests.transfer.torchvision_engine.tiny import write_shapes


@pytest.fixture(scope="module")
def detector(tmp_path_factory):
    """A Mask R-CNN of noise, whose scores are all above a few percent."""
    return load_run(write_run(tmp_path_factory.mktemp("run"), "mask_rcnn"))


@pytest.fixture
def photos(tmp_path) -> Path:
    """Four images of a labelled set, and two of other sizes in a folder below."""
    write_shapes(tmp_path / "data")
    folder = tmp_path / "data/images"
    random = np.random.default_rng(1)
    (folder / "more").mkdir()
    Image.fromarray(random.integers(0, 255, (40, 90, 3), dtype=np.uint8)).save(folder / "more/frame_10.jpg")
    Image.fromarray(random.integers(0, 255, (50, 30), dtype=np.uint8)).save(folder / "more/frame_2.bmp")
    return folder


def test_every_image_has_its_picture_and_its_place_in_the_results(detector, photos, tmp_path):
    written = predict(detector, [photos], tmp_path / "out", Options(batch_size=3))
    assert {path.name for path in written} == {"predictions.json", "images.json", "counts.csv", "counts_by_image.csv"}
    images = json.loads((tmp_path / "out/images.json").read_text())
    names = ["000.png", "001.png", "002.png", "003.png", "more/frame_2.bmp", "more/frame_10.jpg"]
    assert [image["file_name"] for image in images["images"]] == names
    assert [(image["width"], image["height"]) for image in images["images"]][4:] == [(30, 50), (90, 40)]
    assert [category["id"] for category in images["categories"]] == [10, 20, 30]
    pictures = {
        path.relative_to(tmp_path / "out/visuals").as_posix() for path in (tmp_path / "out/visuals").rglob("*.*")
    }
    assert pictures == {*names} - {"more/frame_2.bmp"} | {"more/frame_2.bmp.png"}
    found = json.loads((tmp_path / "out/predictions.json").read_text())
    (first,) = detector.predict(photos / "000.png")
    mine = [entry for entry in found if entry["image_id"] == 1]
    np.testing.assert_allclose([entry["score"] for entry in mine], first.scores, atol=1e-6)
    assert mine[0]["file_name"] == "000.png"


def test_results_with_the_ids_of_an_annotation_file_are_scored_as_the_runs_own(detector, photos, tmp_path):
    shutil.rmtree(photos / "more")
    truth = tmp_path / "data/shapes.json"
    predict(detector, [photos], tmp_path / "out", Options(ids=ids_of(truth), visuals=False))
    entries = json.loads((tmp_path / "out/predictions.json").read_text())
    assert {entry["image_id"] for entry in entries} == {1, 2, 3, 4}
    for iou_type in ("bbox", "segm"):
        assert coco.evaluate(truth, tmp_path / "out/predictions.json", iou_type).metrics["AP"] >= 0
    assert not (tmp_path / "out/visuals").exists()


def test_counts_are_those_of_the_results_above_the_threshold(detector, photos, tmp_path):
    threshold = float(np.median(detector.predict(photos / "000.png")[0].scores))
    predict(detector, [photos], tmp_path / "out", Options(threshold=threshold, visuals=False))
    found = json.loads((tmp_path / "out/predictions.json").read_text())
    assert found
    assert min(entry["score"] for entry in found) >= threshold
    with open(tmp_path / "out/counts.csv", newline="") as stream:
        rows = {row["class"]: (int(row["images"]), int(row["detections"])) for row in csv.DictReader(stream)}
    for name, identity in (("square", 10), ("diamond", 20), ("triangle", 30)):
        mine = [entry["image_id"] for entry in found if entry["category_id"] == identity]
        assert rows[name] == (len(set(mine)), len(mine))
    with open(tmp_path / "out/counts_by_image.csv", newline="") as stream:
        by_image = {row["file_name"]: int(row["all"]) for row in csv.DictReader(stream)}
    assert by_image == {name: sum(e["file_name"] == name for e in found) for name in by_image}
    assert len(by_image) == 6


def test_a_stopped_prediction_goes_on_and_ends_with_the_same_files(detector, photos, tmp_path, monkeypatch):
    predict(detector, [photos], tmp_path / "whole", Options())
    original, seen = prediction._write_image, []

    def stops(run, name, *rest):
        seen.append(name)
        if len(seen) == 4:
            raise KeyboardInterrupt
        return original(run, name, *rest)

    monkeypatch.setattr(prediction, "_write_image", stops)
    with pytest.raises(KeyboardInterrupt):
        predict(detector, [photos], tmp_path / "out", Options())
    with open(tmp_path / "out/predictions.jsonl", "ab") as stream:
        stream.write(b'{"image_id": 4, "file_na')  # as a kill in the middle of a line leaves it
    predict(detector, [photos], tmp_path / "out", Options())
    assert seen[:3] == ["000.png", "001.png", "002.png"]
    assert seen[4:] == ["003.png", "more/frame_2.bmp", "more/frame_10.jpg"]
    for name in ("predictions.json", "images.json", "counts.csv", "counts_by_image.csv"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_new_and_changed_images_are_added_and_the_others_stay(detector, photos, tmp_path, monkeypatch):
    predict(detector, [photos / "more"], tmp_path / "out", Options())
    Image.new("RGB", (20, 20)).save(photos / "more/frame_2.bmp")
    Image.new("RGB", (20, 20)).save(photos / "more/frame_1.bmp")
    original, seen = prediction._write_image, []

    def noted(run, name, *rest):
        seen.append(name)
        return original(run, name, *rest)

    monkeypatch.setattr(prediction, "_write_image", noted)
    predict(detector, [photos / "more"], tmp_path / "out", Options())
    assert seen == ["frame_1.bmp", "frame_2.bmp"]
    images = json.loads((tmp_path / "out/images.json").read_text())["images"]
    assert [(image["id"], image["file_name"], image["width"]) for image in images] == [
        (1, "frame_2.bmp", 20), (2, "frame_10.jpg", 90), (3, "frame_1.bmp", 20)
    ]  # fmt: skip


def test_a_folder_belongs_to_one_detector_and_threshold(detector, photos, tmp_path):
    predict(detector, [photos / "000.png"], tmp_path / "out", Options(visuals=False))
    with pytest.raises(InputError, match=r"holds predictions with threshold None, this command has 0\.4"):
        predict(detector, [photos], tmp_path / "out", Options(threshold=0.4))


def test_pictures_that_lie_in_the_folder_of_the_images_are_not_predicted_on(detector, photos, tmp_path):
    predict(detector, [photos], photos / "found", Options())
    predict(detector, [photos], photos / "found", Options())
    assert len(json.loads((photos / "found/images.json").read_text())["images"]) == 6


def test_a_broken_image_is_named_before_any_compute_or_left_out_if_asked(detector, photos, tmp_path):
    (photos / "bad.png").write_text("no image")
    with pytest.raises(InputError, match=r"found 1 that cannot be read: .*bad\.png.*--skip-unreadable"):
        predict(detector, [photos], tmp_path / "out", Options())
    assert not (tmp_path / "out").exists()
    whole = (photos / "000.png").read_bytes()
    (photos / "000.png").write_bytes(whole[: len(whole) // 2])  # its header is right
    with pytest.raises(InputError, match=r"000\.png"):
        predict(detector, [photos / "000.png"], tmp_path / "out", Options())
    predict(detector, [photos], tmp_path / "out", Options(skip_unreadable=True, batch_size=2))
    assert len(json.loads((tmp_path / "out/images.json").read_text())["images"]) == 5


def test_a_name_that_is_no_utf8_is_named_with_its_folder_before_any_compute_or_left_out(detector, photos, tmp_path):
    name = os.fsdecode(b"caf\xe9.png")
    shutil.copy(photos / "000.png", photos / name)
    with pytest.raises(InputError, match=r"expected a file name in UTF-8, found .*/images/caf\\udce9\.png; rename it"):
        predict(detector, [photos], tmp_path / "out", Options())
    assert not (tmp_path / "out").exists()
    predict(detector, [photos], tmp_path / "out", Options(skip_unreadable=True, batch_size=3))
    assert len(json.loads((tmp_path / "out/images.json").read_text())["images"]) == 6


def test_frames_come_in_the_order_of_their_numbers():
    names = ["f10.png", "f2.png", "a/f1.png", "F1.png"]
    assert sorted(names, key=_natural_order) == ["a/f1.png", "F1.png", "f2.png", "f10.png"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "nowhere.jpg", "image not found"),
        (lambda folder: folder, r"found none; clip\.mp4 is a video: cut it into frames"),
        (lambda folder: folder / "clip.mp4", "found the video"),
    ],
)
def test_what_holds_no_images_is_refused(make, message, tmp_path):
    (tmp_path / "clip.mp4").write_bytes(b"")
    with pytest.raises(InputError, match=message):
        find_images([make(tmp_path)])


def test_images_of_one_name_are_refused(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / folder / "a.png")
    with pytest.raises(InputError, match="images of different names"):
        find_images([tmp_path / "one", tmp_path / "two/a.png"])


def test_an_image_that_the_id_file_lacks_is_named(detector, photos, tmp_path):
    with pytest.raises(InputError, match=r"found 2 that it lacks \(more/frame_2\.bmp\)"):
        predict(detector, [photos], tmp_path / "out", Options(ids=ids_of(tmp_path / "data/shapes.json")))
    with pytest.raises(InputError, match="expected image ids as JSON in"):
        ids_of(photos / "000.png")


def test_the_command_predicts_and_says_what_it_wrote(tmp_path):
    run = write_run(tmp_path / "run", "stride16")
    Image.new("RGB", (60, 40), (200, 10, 10)).save(tmp_path / "a.jpg")
    done = run_tool("predict", "--detector", run, tmp_path / "a.jpg", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 classes, engine torchvision" in done.stdout
    labels = np.asarray(Image.open(tmp_path / "out/labels/a.jpg.png"))
    assert labels.shape == (40, 60)
    with open(tmp_path / "out/counts.csv", newline="") as stream:
        assert sum(int(row["pixels"]) for row in csv.DictReader(stream)) == 2400
    refused = run_tool(
        "predict", "--detector", run, tmp_path / "a.jpg", "--out", tmp_path / "out", "--threshold", "0.5"
    )
    assert refused.returncode == 2
    assert (
        refused.stderr
        == "error: expected no --threshold with a segmenter, which gives every pixel a class; leave it out\n"
    )


def test_a_damaged_line_is_found_and_its_image_done_again(detector, photos, tmp_path):
    predict(detector, [photos], tmp_path / "out", Options(visuals=False))
    lines, results = (tmp_path / "out" / name for name in ("predictions.jsonl", "predictions.json"))
    whole, expected = lines.read_bytes(), results.read_bytes()
    place = whole.index(b'"score": 0.') + len(b'"score": 0.')
    damaged = [whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :], whole[:-1], b"[" * 9999 + b"\n" + whole,
               b'{"image_id": Infinity, "crc32": 0}\n' + whole, b"[]\n"]  # fmt: skip
    for content in damaged:
        lines.write_bytes(content)
        results.unlink()
        predict(detector, [photos], tmp_path / "out", Options(visuals=False))
        assert (lines.read_bytes(), results.read_bytes()) == (whole, expected)


def test_ids_of_a_file_are_whole_numbers_that_stand_once_and_may_be_0(detector, photos, tmp_path):
    file = tmp_path / "ids.json"

    def write(*pairs):
        file.write_text(json.dumps({"images": [{"file_name": name, "id": number} for name, number in pairs]}))

    for number in (1.5, True, "1", None, [1], float("inf")):
        write(("000.png", number))
        with pytest.raises(InputError, match="no whole number"):
            ids_of(file)
    for pairs in ([("a", 1), ("b", 1)], [("a", 1), ("a", 2)]):
        write(*pairs)
        with pytest.raises(InputError, match="found one twice"):
            ids_of(file)
    shutil.rmtree(photos / "more")
    write(*((f"{number:03d}.png", number) for number in range(4)))
    predict(detector, [photos], tmp_path / "out", Options(ids=ids_of(file), visuals=False))
    images = json.loads((tmp_path / "out/images.json").read_text())["images"]
    assert [image["id"] for image in images] == [0, 1, 2, 3]


def test_ids_of_another_file_need_another_folder(detector, photos, tmp_path):
    shutil.rmtree(photos / "more")
    predict(detector, [photos], tmp_path / "out", Options(visuals=False))
    ids = {f"00{number}.png": 10 - number for number in range(4)}
    with pytest.raises(InputError, match=r"out has 000.png under the id 1, --ids under 10; choose another --out"):
        predict(detector, [photos], tmp_path / "out", Options(visuals=False, ids=ids))
    same = {f"00{number}.png": number + 1 for number in range(4)}
    predict(detector, [photos], tmp_path / "out", Options(visuals=False, ids=same))
