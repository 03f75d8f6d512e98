"""Choosing weights from the command line; the commands run in the test's own process."""

import json
import time
from pathlib import Path
from types import SimpleNamespace

import PIL.Image
import pytest
import torch

from momentum_transfer.backbones.build import metadata_of
from momentum_transfer.backbones.convert import write
from momentum_transfer.backbones.resnet import Architecture, build_resnet
from momentum_transfer.core.records import read
from momentum_transfer.images.datasets import build_dataset
from momentum_transfer.report.page import build
from momentum_transfer.suites import chain
from momentum_transfer.suites.choose import stages
from momentum_transfer.transfer.data.digit_scenes import RECIPES, ensure_scenes
from tests.tools.in_process import run_tool


@pytest.fixture
def weights(tmp_path: Path) -> list[Path]:
    architecture = Architecture("resnet10", 4)
    for name in ("first", "second"):
        torch.manual_seed(len(name))
        write(tmp_path / f"{name}.safetensors", build_resnet(architecture).state_dict(), architecture, {})
    return [tmp_path / "first.safetensors", tmp_path / "second.safetensors"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Fourteen images of each of two digits, in class folders."""
    data, counts = build_dataset("digits"), [0, 0]
    for k in range(len(data)):
        image, label = data[k]
        if label < 2 and counts[label] < 14:
            counts[label] += 1
            path = tmp_path / "mine" / f"digit {label}" / f"{k}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            image.resize((16, 16)).save(path)
    return tmp_path / "mine"


@pytest.fixture
def started(monkeypatch) -> list[str]:
    """Titles of the steps that were started; each runs in this process."""
    titles: list[str] = []

    class InProcess:
        def __init__(self, step: chain.Step, jobs: int) -> None:
            self.step, self.began = step, time.monotonic()
            titles.append(step.title)
            self.ended = run_tool(Path(step.command[0]).stem, *step.command[1:])
            nothing = lambda *_: None  # noqa: E731
            self.process = SimpleNamespace(exitcode=self.ended.returncode, terminate=nothing, join=nothing)
            self.command = SimpleNamespace(peak_gib=lambda: 0.0)
            self.lines = SimpleNamespace(join=nothing)

        def seconds(self) -> float:
            assert self.ended.returncode == 0, self.ended.stderr
            return time.monotonic() - self.began

    monkeypatch.setattr(chain, "_Running", InProcess)
    return titles


def choose(*words: object):
    return run_tool("choose", "--image-size", 16, "--workers", 0, "--resamples", 100, *words)


@pytest.mark.slow
def test_class_folders_end_in_a_verdict_and_a_stopped_choice_goes_on(weights, folder, tmp_path, started):
    words = ["--weights", weights[0], "--train", folder, "--split", 0.5, "--out", tmp_path / "out", "--minutes"]
    ended = choose(*words, 0.001, "--dry-run")
    assert ended.returncode == 2
    assert "expected --minutes of at least 1 for 2 starts" in ended.stderr
    words.append("9")
    ended = choose(*words, "--dry-run")
    assert ended.returncode == 0, ended.stderr
    assert not started
    assert "plan for mine" in ended.stdout
    ended = choose(*words)
    assert ended.returncode == 0, ended.stderr
    assert started[2 * 3] == "first: finetuned, timed"
    assert len(started) == 1 + 2 * 4
    assert "finetuned, 2 of 2: " in ended.stdout
    assert "a random start of its architecture" in ended.stdout
    records, _ = read(tmp_path / "out/results.jsonl")
    tuned = [line for line in records if (line["task"], line["metric"]) == ("finetune", "top1")]
    assert {line["checkpoint"]["name"] for line in tuned} == {"first", "random-of-first"}
    assert {line["task"].split("/")[0] for line in records} == {"knn", "svm", "linear", "finetune"}
    page = (tmp_path / "out/choice.md").read_text(encoding="utf-8")
    assert "Which weights for mine?" in page
    verdict = next(
        line for line in ended.stdout.splitlines() if line.startswith("first, the only candidate: accuracy ")
    )
    assert verdict in page
    done = tmp_path / "out/done.json"
    kept = json.loads(done.read_text())
    last = list(kept)[-1]
    done.write_text(json.dumps({key: value for key, value in kept.items() if key != last}))
    assert choose(*words).returncode == 0
    assert started[9:] == ["random-of-first: finetuned"]
    assert read(tmp_path / "out/results.jsonl")[0] == records
    other = choose("--weights", weights[1], *words[2:])
    assert (other.returncode, other.stderr.count("\n")) == (2, 1)
    assert "holds another choice: its candidates was" in other.stderr


def test_a_screen_ranks_without_training_and_says_what_it_left_out(weights, folder, tmp_path, started):
    words = [
        "--weights",
        *weights,
        tmp_path / "absent.pth",
        "--train",
        folder,
        "--split",
        0.5,
        "--out",
        tmp_path / "out",
    ]
    ended = choose(*words, "--screen")
    assert ended.returncode == 0, ended.stderr
    assert not started
    assert "ranking 2 candidates by 14 images without training: about " in ended.stdout
    for text in (ended.stdout, (tmp_path / "out/choice.md").read_text(encoding="utf-8")):
        assert "Ranked without training by logme: " in text
        assert "absent.pth is left out, because it cannot be used: checkpoint file not found" in text
    page = (tmp_path / "out/choice.html").read_text(encoding="utf-8")
    assert page.count('<tr class="ours">') == 2
    assert "transrate" in page
    assert choose(*words, "--screen", "--measure", "linear").returncode == 0


def test_probes_are_asked_for_alone_and_follow_the_screen(weights, folder, tmp_path, started, monkeypatch):
    monkeypatch.setattr("momentum_transfer.suites.choose.recommend.make_report", lambda *_, **__: build([]))
    words = ["--weights", *weights, "--train", folder, "--split", 0.5, "--out", tmp_path / "out", "--screen"]
    monkeypatch.setattr("momentum_transfer.suites.choose.run.run_chain", lambda steps, *_: started.extend(steps))
    ended = choose(*words, "--probes-only")
    assert ended.returncode == 0, ended.stderr
    assert [step.title for step in started] == [
        f"{name}: {command}" for command in ("knn", "svm", "linear") for name in ("first", "second", "random-of-first")
    ]
    assert set(json.loads((tmp_path / "out/plan.json").read_text())["alive"]["images"]) == {"first", "second"}
    ended = choose(*words, "--probes-only", "--minutes", 3)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "expected --probes-only or --minutes, found both" in ended.stderr


def test_wrong_words_are_one_line(weights, folder, tmp_path, started):
    words = {"--weights": weights, "--train": [folder], "--split": [0.5], "--out": [tmp_path / "out"]}
    one_class = tmp_path / "single"
    (one_class / "only").mkdir(parents=True)
    PIL.Image.new("RGB", (8, 8)).save(one_class / "only" / "a.png")
    for changes, message in {
        ("--minutes", 0): "expected --minutes above 0, found 0",
        ("--trials", 0): "expected --trials of at least 1, found 0",
        ("--split", 2): "expected a training fraction between 0 and 1",
        ("--train", tmp_path / "absent"): "expected images at",
        ("--weights", tmp_path / "absent.pth"): "absent.pth",
        ("--weights", weights[0], weights[0]): "expected weights of different names, found first twice",
        ("--train", one_class): "expected boxes (COCO, VOC, YOLO), or folders of two classes or more",
    }.items():
        given = {**words, changes[0]: changes[1:]}
        ended = choose(*(word for option, values in given.items() for word in (option, *values)))
        assert (ended.returncode, ended.stderr.count("\n")) == (2, 1), (changes, ended.stderr)
        assert message in ended.stderr
    assert not started


def test_detectors_get_words_that_their_settings_take(weights, tmp_path, started, monkeypatch):
    """Up to the first command; training detectors takes minutes (see the slow test)."""
    scenes = small_scenes(tmp_path / "scenes", 6)
    seen: list[chain.Step] = []

    def run_chain(steps, memory: Path, jobs: int) -> None:
        seen.extend(steps)
        memory.parent.mkdir(parents=True, exist_ok=True)
        memory.write_text(json.dumps({step.key: 1.0 for step in seen}))

    monkeypatch.setattr("momentum_transfer.suites.choose.run.run_chain", run_chain)
    monkeypatch.setattr("momentum_transfer.suites.choose.run.measured", lambda *_: stages.Times(1.0, 0.1))
    monkeypatch.setattr("momentum_transfer.suites.choose.recommend.write_page", lambda *_, **__: (tmp_path, ()))
    words = ["--weights", *weights, tmp_path / "absent.pth", "--train", scenes, "--split", 0.5, "--minutes", 90]
    ended = choose(*words, "--out", tmp_path / "out")
    assert ended.returncode == 0, ended.stderr
    assert "absent.pth is left out" in ended.stderr
    seen = [step for step in seen if step.title.endswith(", timed")]
    assert [step.title for step in seen] == [
        "first: detector, frozen, timed", "first: detector, finetuned, timed",
    ]  # fmt: skip
    from momentum_transfer.transfer.own_settings import load_for

    for step in seen:
        words = step.command
        cfg, _ = load_for(
            words[words.index("--config") + 1], words[words.index("DATASETS.TRAIN") :], weights=str(weights[0])
        )
        assert (cfg.SOLVER.MAX_ITER, cfg.MODEL.RESNETS.DEPTH, cfg.MODEL.MASK_ON) == (5, 10, False)
        assert ("frozen" in step.title) == cfg.MODEL.BACKBONE.FROZEN
    lists = (tmp_path / "out/images/train.txt").read_text().splitlines()
    assert all(Path(line.rpartition(" ")[0]).is_file() for line in lists)


def small_scenes(folder: Path, count: int) -> Path:
    """The first digit scenes as a COCO set of boxes."""
    source = ensure_scenes(RECIPES["digit_scenes"])
    content = json.loads((source / "annotations/train.json").read_text())
    content["images"] = content["images"][:count]
    kept = {image["id"] for image in content["images"]}
    content["annotations"] = [{key: value for key, value in entry.items() if key != "segmentation"}
                              for entry in content["annotations"] if entry["image_id"] in kept]  # fmt: skip
    folder.mkdir()
    for image in content["images"]:
        PIL.Image.open(source / "train" / image["file_name"]).save(folder / image["file_name"])
    (folder / "labels.json").write_text(json.dumps(content))
    return folder


def test_a_network_that_the_detectors_do_not_train_is_left_out_of_their_choice(tmp_path):
    caffe = Architecture("resnet50", 4, style="caffe")
    files = []
    for name, architecture in (
        ("zoo", caffe),
        ("one", Architecture("resnet50", 4)),
        ("two", Architecture("resnet10", 4)),
    ):
        state = build_resnet(architecture).state_dict()
        files.append(tmp_path / f"{name}.safetensors")
        write(files[-1], state, architecture, metadata_of(architecture))
    words = ["--train", small_scenes(tmp_path / "scenes", 12), "--split", 0.5, "--out", tmp_path / "out", "--dry-run"]
    left_out = "expected a network that the detectors here train, found resnet50?width=4&style=caffe"
    ended = choose("--weights", *files, "--minutes", 60, *words)
    assert left_out in ended.stderr
    assert ended.returncode == 0, ended.stderr
    assert left_out not in choose("--weights", *files, "--screen", *words).stderr


@pytest.mark.slow
@pytest.mark.timeout(1200)  # eight commands, four of them detectors
def test_a_detection_set_ends_in_a_verdict(weights, tmp_path, monkeypatch):
    """With the shortest trainings: else they fill the minutes."""
    monkeypatch.setattr(stages, "_PLANNED", 0.0)
    scenes = small_scenes(tmp_path / "scenes", 12)
    ended = choose(
        "--weights", weights[0], "--train", scenes, "--split", 0.5, "--minutes", 12, "--out", tmp_path / "out",
        "INPUT.MIN_SIZE_TRAIN", "[64]", "INPUT.MIN_SIZE_TEST", 64, "SOLVER.IMS_PER_BATCH", 2,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "first, the only candidate: box AP" in ended.stdout
    records, _ = read(tmp_path / "out/results.jsonl")
    assert {line["protocol"] for line in records if line["task"] == "coco/bbox"} == {"own_small", "own_small_frozen"}
