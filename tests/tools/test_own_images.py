"""Images of one's own from the command line: named by their folder, split if asked, flat folders for pretraining."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image

from momentum_transfer.backbones.resnet import Architecture, build_resnet
from tests.tools.in_process import run_tool
from tests.transfer import own_set

SMALL = ["INPUT.IMAGE_SIZE", "32", "FEATURES.WORKERS", "0", "FEATURES.PRECISION", "fp32", "SVM.TRIALS", "1",
         "SVM.SHOTS", "[1]"]  # fmt: skip


@pytest.fixture(scope="module")
def crops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own") / "garden"
    own_set.write_crops(own_set.make(30, 0), folder / "crops")
    return folder / "crops"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "tiny.pth"
    torch.manual_seed(0)
    torch.save(build_resnet(Architecture("resnet10", 8)).state_dict(), path)
    return path


def records(weights: Path, folder: Path, *arguments: object, config: str = "lowshot/own_images") -> tuple[list, str]:
    results = folder / "results.jsonl"
    given = ["svm", "--config", config, "--weights", weights, "--results", results, *arguments, *SMALL]
    done = run_tool("lowshot", *given)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in results.read_text().splitlines()], done.stdout + done.stderr


def test_own_images_have_their_folders_name_their_counts_and_no_top5_of_three_classes(weights, crops, tmp_path):
    found, _ = records(weights, tmp_path, "--train", crops / "train", "--val", crops / "val")
    assert {(r["dataset"], r["protocol"]) for r in found} == {("garden_val", "own/heldout")}
    assert "top5" not in {r["metric"] for r in found}
    held = sum(1 for _ in (crops / "val").rglob("*.jpg"))
    assert found[0]["data"] == {"images": held, "classes": 3}


@pytest.mark.parametrize("command", ["linear", "finetune"])
def test_own_images_are_recorded_under_no_papers_protocol(command: str, weights, crops, tmp_path):
    results, node = tmp_path / "results.jsonl", command.upper()
    done = run_tool(
        "lowshot", command, "--config", "lowshot/own_images", "--weights", weights, "--results", results, *SMALL,
        "--train", crops / "train", "--val", crops / "val", "OUTPUT_DIR", tmp_path / "out", f"{node}.EPOCHS", "1.0",
        f"{node}.TRIALS", "1", f"{node}.WORKERS", "0", f"{node}.LEARNING_RATES", "[0.1]",
        f"{node}.BATCH_SIZE", "16",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {json.loads(line)["protocol"] for line in results.read_text().splitlines()} == {"own"}


def test_another_groups_file_is_another_division_whose_scores_are_not_those_of_before(weights, crops, tmp_path):
    shutil.copytree(crops / "train", tmp_path / "garden")
    before, _ = records(weights, tmp_path, "--train", tmp_path / "garden", "--split", "0.5")
    files = sorted(file.relative_to(tmp_path / "garden").as_posix() for file in (tmp_path / "garden").rglob("*.jpg"))
    rows = "".join(f"{file},film {number % 7}\n" for number, file in enumerate(files))
    (tmp_path / "garden" / "groups.csv").write_text(rows)
    for _ in range(2):  # the second time they are there
        after, _ = records(weights, tmp_path, "--train", tmp_path / "garden", "--split", "0.5")
        assert len(after) == 2 * len(before)
    assert len({record["config"] for record in after}) == 2


def test_a_third_part_is_counted_as_left_out(weights, crops, tmp_path):
    whole = tmp_path / "whole"
    for part in ("train", "val", "test"):
        shutil.copytree(crops / ("val" if part == "test" else part), whole / part)
    _, printed = records(weights, tmp_path, "--train", whole)
    count = sum(1 for _ in (whole / "test").rglob("*.jpg"))
    assert f"left out: {count} images of test, which neither trains nor tests" in printed


def test_of_a_folder_with_its_own_train_the_train_part_trains_beside_another_val(weights, crops, tmp_path):
    whole, other = tmp_path / "whole", tmp_path / "other"
    shutil.copytree(crops, whole)
    (whole / "train").rename(whole / "Training")
    shutil.copytree(crops / "val", other)
    found, printed = records(weights, tmp_path / "a", "--train", whole, "--val", other)
    expected, _ = records(weights, tmp_path / "b", "--train", crops / "train", "--val", crops / "val")
    assert [(r["task"], r["metric"], r["value"]) for r in found] == [
        (r["task"], r["metric"], r["value"]) for r in expected
    ]
    count = sum(1 for _ in (crops / "val").rglob("*.jpg"))
    assert f"left out: {count} images of val, which neither trains nor tests" in printed


def test_a_published_title_does_not_stand_for_other_images(weights, crops, tmp_path):
    found, printed = records(weights, tmp_path, "DATASETS.ROOT", crops, config="lowshot/eman_table5_imagenet")
    assert {r["dataset"] for r in found} == {"garden_val"}
    assert "DATASETS.TITLE is ImageNet, which has 50000 images of 1000 classes" in printed


def test_a_split_keeps_its_share_of_every_class_apart(weights, crops, tmp_path):
    found, _ = records(weights, tmp_path, "--train", crops / "train", "--split", "0.75")
    whole = sum(1 for _ in (crops / "train").rglob("*.jpg"))
    assert found[0]["dataset"] == "garden_train_test"
    assert abs(found[0]["data"]["images"] - whole / 4) <= 2
    assert found[0]["data"]["classes"] == 3


def test_options_of_own_images_that_contradict_are_one_line(weights, crops):
    arguments = ["knn", "--config", "lowshot/own_images", "--weights", weights]
    for more, said in (
        (["--split", "0.5"], "expected --train FOLDER with --val or --split"),
        (["--train", crops, "--val", crops, "--split", "0.5"], "found both"),
        (["--train", crops / "train"], "expected --val FOLDER or --split 0.8"),
        (["--train", crops, "--split", "0.5"], f"expected no --split with {crops}, which has its own train/ and val/"),
    ):
        done = run_tool("lowshot", *arguments, *more)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_a_flat_folder_of_photographs_is_pretrained_on(tmp_path):
    folder = tmp_path / "photographs"
    folder.mkdir()
    for number, one in enumerate(own_set.make(8, 0)):
        one.image.resize((64, 48)).save(folder / f"{number}.jpg")
    Image.new("L", (40, 50)).save(folder / "grey.png")
    small = ["DATA.VIEWS", "byol", "DATA.WORKERS", "0", "SOLVER.BATCH_SIZE", "4", "SOLVER.STEPS", "1"]
    run = ["--config", "smoke/momentum2_digits", "--train", folder, "OUTPUT_DIR", tmp_path / "run"]
    done = run_tool("pretrain", *run, *small)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"9 images of {folder}, without labels" in done.stdout
    assert (tmp_path / "run" / "backbone.safetensors").is_file()
    done = run_tool("pretrain", *run, "OUTPUT_DIR", tmp_path / "other", *small, "METHOD.NAME", "supervised")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    done = run_tool("pretrain", *run, "OUTPUT_DIR", tmp_path / "third", "SOLVER.BATCH_SIZE", "4")  # the digits' recipe
    assert "choose a recipe for images: DATA.VIEWS byol, " in done.stderr


TINY = [
    *("MODEL.ARCH", "resnet10", "MODEL.WIDTH", "4", "HEAD.HIDDEN", "16", "HEAD.OUTPUT", "8", "DATA.IMAGE_SIZE", "32"),
    *("SOLVER.BATCH_SIZE", "8", "SOLVER.STEPS", "50", "DATA.WORKERS", "0", "RUN.DEVICE", "cpu"),
]


@pytest.fixture(scope="module")
def detection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    made = own_set.make(24, 0)
    own_set.write_coco(made, folder / "coco")
    own_set.write_yolo(made, folder / "yolo")
    return folder


@pytest.mark.parametrize("form", ["coco/annotations/instances_train.json", "yolo"])
def test_a_detection_set_pretrains_on_its_images_that_train(form: str, detection, tmp_path):
    given = ["--train", detection / form, "--stop-after", "1", "OUTPUT_DIR", tmp_path / "run", *TINY]
    done = run_tool("pretrain", "--config", "pretrain/own_small", *given)
    assert done.returncode == 0, done.stdout + done.stderr
    trained = [one.name for one in own_set.make(24, 0) if one.split == "train"]
    assert f"{len(trained)} images of {detection / form}, without labels" in done.stdout
    settings = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    listed = Path(settings["DATA"]["FILE_LIST"]).read_text().splitlines()
    assert {Path(line.rpartition(" ")[0]).stem for line in listed} == set(trained)


@pytest.mark.parametrize(
    ("train", "overrides", "message"),
    [
        ("nowhere", [], "found '{}', where there is no folder or file either"),
        ("classes", [], "expected every class once in {}/classes.txt"),
        ("yolo", ["METHOD.NAME", "supervised"], "expected folders of classes for METHOD.NAME supervised, found boxes"),
    ],
)
def test_a_detection_set_that_cannot_pretrain_is_one_line(train, overrides, message, detection, tmp_path):
    broken = tmp_path / "classes"
    broken.mkdir()
    (broken / "classes.txt").write_text("a\na\n")
    Image.new("RGB", (9, 9)).save(broken / "0.png")
    (broken / "0.txt").write_text("0 .5 .5 1 1\n")
    place = detection / train if train == "yolo" else tmp_path / train
    given = ["--train", place, "OUTPUT_DIR", tmp_path / "run", *TINY, *overrides]
    done = run_tool("pretrain", "--config", "pretrain/own_small", *given)
    assert done.returncode == 2
    assert message.format(place) in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()
