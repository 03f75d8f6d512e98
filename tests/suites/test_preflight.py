"""Before a suite starts every checkpoint is read once, and all that its tasks would refuse is shown together."""

import json
import socket
from dataclasses import replace

import pytest
import torch
import yaml

from momentum_transfer.backbones import read
from momentum_transfer.backbones.build import build_backbone
from momentum_transfer.backbones.resnet import Architecture
from momentum_transfer.core.errors import InputError, refusals
from momentum_transfer.suites.planning import _hours_by_step, expected, plan, select
from momentum_transfer.suites.preflight import Shared, preflight
from momentum_transfer.suites.suite import load_suite
from momentum_transfer.suites.task import Task
from momentum_transfer.tools.evaluate import TOOLS
from momentum_transfer.transfer.config import load
from momentum_transfer.transfer.run import disk_space
from momentum_transfer.transfer.torchvision_engine.engine import build
from tests.tools.in_process import run_tool

TRANSFER = "tools/transfer.py --weights {converted} --results {results} OUTPUT_DIR {folder} --config configs/smoke/"
PROBE = "tools/lowshot.py {} --config configs/smoke/lowshot_digits.yaml --weights {{weights}} --results {{results}} "
TASKS = {
    "knn": PROBE.format("knn"),
    "convert": "tools/convert.py {weights} {converted}",
    "mask": TRANSFER + "mask_rcnn_digits.yaml",
    "classes": TRANSFER + "retinanet_digits.yaml MODEL.RETINANET.NUM_CLASSES 7",
    "absent": TRANSFER + "retinanet_digits.yaml DATASETS.TRAIN \"['coco_2017_train']\" DATASETS.ROOT {folder}",
    "key": TRANSFER + "retinanet_digits.yaml SOLVER.MAX_ITERS 7",
    "option": PROBE.format("svm") + "--networks teacher",
    "layer": PROBE.format("knn") + "FEATURES.POOL cls",
}


@pytest.fixture
def suite(tmp_path):
    """A suite of which all but knn and convert refuse a ResNet-10 of width 16."""
    needs = {name: "convert" for name, command in TASKS.items() if "{converted}" in command and name != "convert"}
    tasks = [{"name": name, "command": c, "needs": needs.get(name, [])} for name, c in TASKS.items()]
    path = tmp_path / "suite.yaml"
    path.write_text(yaml.safe_dump({"name": "s", "tasks": tasks}), encoding="utf-8")
    return path


@pytest.fixture
def checkpoint(tmp_path):
    network = build_backbone(Architecture("resnet10", 16))
    path = tmp_path / "r10.pth"
    torch.save(network.state_dict(), path)
    return path


def evaluate(suite, checkpoint, *words):
    output = suite.parent / "out"
    ended = run_tool("evaluate", "--suite", suite, "--weights", checkpoint, "--output", output, "--gpus", 0, *words)
    return ended, " ".join(ended.stdout.split())


def test_all_refusals_of_a_plan_come_together_before_anything_starts(suite, checkpoint, monkeypatch):
    opened, true = [], read.read_tree
    monkeypatch.setattr(read, "read_tree", lambda *args, **options: opened.append(args) or true(*args, **options))
    ended, text = evaluate(suite, checkpoint)
    assert ended.returncode == 2
    assert len(opened) == 1  # for a plan of eight tasks
    assert "6 tasks refused (the table above)" in ended.stderr
    assert "--skip mask classes absent key option layer" in ended.stderr
    assert text.index("refused before anything starts") < text.index("unknown config key SOLVER.MAX_ITERS")
    assert not (suite.parent / "out").exists()


def test_each_refusal_says_what_it_is_about(suite, checkpoint):
    jobs = plan(load_suite(suite), [str(checkpoint)], suite.parent / "out")
    found = preflight(jobs, TOOLS, Shared())
    seen = {(what, job.task.name): reason for (what, reason), jobs in found.items() for job in jobs}
    reasons = {
        ("weights", "mask"): "expected backbone.bottom_up.stem.conv1.weight of shape (32, 3, 7, 7), found (16,",
        ("weights", "classes"): "expected backbone.bottom_up.stem.conv1.weight of shape",
        ("data", "classes"): "MODEL.RETINANET.NUM_CLASSES is 7, but digit_scenes_train has 10 classes",
        ("weights", "absent"): "expected backbone.bottom_up.stem.conv1.weight of shape",
        ("data", "absent"): "expected the images of dataset 'coco_2017_train' in",
        ("settings", "key"): "unknown config key SOLVER.MAX_ITERS",
        ("settings", "option"): "unrecognized arguments: --networks teacher; correct the command of option",
        ("weights", "layer"): "cls",
    }
    assert seen.keys() == reasons.keys()
    assert not [key for key, reason in reasons.items() if reason not in seen[key]]


def test_few_shot_stages_of_one_set_have_each_their_own_classes(tmp_path):
    tool = "tools/transfer.py --weights none --results {results} OUTPUT_DIR {folder} --config "
    tasks = [
        {"name": name, "command": f"{tool}smoke/few_shot_digits{end}"} for name, end in (("base", ""), ("all", "_tfa"))
    ]
    path = tmp_path / "suite.yaml"
    path.write_text(yaml.safe_dump({"name": "s", "weights": ["scratch"], "tasks": tasks}), encoding="utf-8")
    ended = run_tool("evaluate", "--suite", path, "--output", tmp_path / "out", "--gpus", 0, "--dry-run")
    assert "looked through 2 commands of 2" in ended.stdout + ended.stderr
    for classes in (7, 10):
        assert f"has {classes} classes" not in ended.stdout + ended.stderr


def test_a_dry_run_shows_the_plan_and_its_refusals_and_what_is_left_passes(suite, checkpoint):
    ended, text = evaluate(suite, checkpoint, "--dry-run")
    assert ended.returncode == 2
    assert text.index("8 of 8 tasks to do") < text.index("looked through 8 commands of 8")
    ended, text = evaluate(suite, checkpoint, "--dry-run", "--tasks", "k*", "c*", "--skip", "key", "classes")
    assert ended.returncode == 0, ended.stderr
    assert "looked through 2 commands of 2" in text


def test_what_only_this_machine_lacks_stops_no_plan_for_another(suite, checkpoint):
    words = ("--dry-run", "--tasks", "absent", "--slurm")
    ended, _ = evaluate(suite, checkpoint, *words)
    assert ended.returncode == 2  # the weights are wrong everywhere
    task = TASKS["absent"].replace("{converted}", "none")
    content = {"name": "s", "tasks": [{"name": "absent", "command": task}]}
    suite.write_text(yaml.safe_dump(content), encoding="utf-8")
    assert evaluate(suite, checkpoint, "--dry-run")[0].returncode == 2
    ended, _ = evaluate(suite, checkpoint, *words)
    assert ended.returncode == 0
    assert "refused here for data; tasks run elsewhere and go on" in ended.stderr


def test_what_is_submitted_is_cancelled_whatever_the_plan_refuses(suite, checkpoint):
    ended, text = evaluate(suite, checkpoint, "--slurm", "--cancel")
    assert (ended.returncode, "cancelled: 0 tasks" in text) == (0, True)


def test_the_folder_of_a_pretraining_that_failed_refuses_nothing(tmp_path):
    knn = "tools/lowshot.py knn --config smoke/lowshot_digits --weights {weights} --results {results}"
    content = {
        "name": "s",
        "pretrain": {"config": "configs/smoke/momentum2_digits.yaml", "variants": {"a": {}}},
        "tasks": [{"name": "knn", "command": knn}],
    }
    path = tmp_path / "suite.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    suite = load_suite(path)
    jobs = plan(suite, list(suite.weights), tmp_path / "out")
    folder = tmp_path / "out/pretrained/a_seed0"
    folder.mkdir(parents=True)
    (folder / "log.txt").write_text("error: refused")
    assert preflight(jobs, TOOLS, Shared()) == {}
    ended = replace(jobs[0], folder=tmp_path / "ended")
    ended.folder.mkdir()
    ended.end(1.0, exit_code=0)
    (reason,) = preflight([replace(jobs[1], needs=(ended,))], TOOLS, Shared())  # it ended well: its checkpoint was lost
    assert reason[0] == "weights"
    assert "pretrained/a_seed0" in reason[1]


def test_unreadable_weights_are_refused_for_each_task_with_one_reason(suite):
    broken = suite.parent / "broken.pth"
    broken.write_bytes(b"no checkpoint")
    ended, text = evaluate(suite, broken, "--tasks", "knn", "mask")
    assert ended.returncode == 2
    assert "knn, convert, mask" in text
    assert text.count("broken.pth") == 1


def test_a_disk_that_cannot_hold_the_checkpoints_is_refused(suite, tmp_path, monkeypatch):
    command = TASKS["mask"].replace("{converted}", "none") + " --trials 2"
    suite.write_text(yaml.safe_dump({"name": "s", "tasks": [{"name": "mask", "command": command}]}))
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 2**20}))
    ended, text = evaluate(suite, "pixels", "--dry-run")
    cfg = load("smoke/mask_rcnn_digits", ["TRIALS", "2"])
    numbers = sum(tensor.numel() for tensor in build(cfg).state_dict().values())
    assert disk_space(cfg) == 2 * 3 * 4 * numbers
    assert (ended.returncode, "GiB free at" in text) == (2, True)


def test_features_count_once_a_checkpoint_and_not_again_when_they_are_there(suite, checkpoint, tmp_path, monkeypatch):
    task = TASKS["knn"] + f"FEATURES.CACHE {tmp_path}/cache"
    suite.write_text(
        yaml.safe_dump({"name": "s", "tasks": [{"name": f"t{n}", "command": task} for n in (1, 2)]}), encoding="utf-8"
    )
    jobs = plan(load_suite(suite), [str(checkpoint)], tmp_path / "out")
    shared = Shared()
    preflight(jobs, TOOLS, shared)
    ((place, what), size), *more = shared.space.items()
    (images,) = shared.data.values()
    assert (place, size, more) == (tmp_path / "cache", 4 * 128 * (len(images.train) + len(images.test)), [])
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": size - 1}))
    ((about, reason),) = preflight(jobs, TOOLS, Shared())
    assert about == "disk"
    assert "choose another --output or FEATURES.CACHE" in reason
    (place / "1").mkdir(parents=True)
    (place / "1/about.json").write_text(f'{{"weights": "{what.split()[0]}"}}')
    assert preflight(jobs, TOOLS, Shared()) == {}


def test_a_plan_keeps_shapes_and_no_values(checkpoint):
    found = Shared().backbone(str(checkpoint))
    assert {value.device.type for value in found.state.values()} == {"meta"}


def test_a_missing_package_is_a_refusal_and_any_other_missing_module_a_bug():
    def missing(name):
        raise ModuleNotFoundError(name=name)

    def wrong():
        raise InputError("expected a, found b")

    checks = {"weights": wrong, "engine": lambda: missing("lvis"), "data": lambda: None}
    (first, second) = refusals(checks)
    assert first == ("weights", "expected a, found b")
    assert second[0] == "engine"
    assert "momentum-transfer[lvis]" in second[1]
    with pytest.raises(ModuleNotFoundError):
        list(refusals({"engine": lambda: missing("nobody_has_this")}))


def test_tasks_and_skip_take_patterns_needs_and_close_names(caplog):
    tasks = [Task("convert", "t"), Task("mask_1x", "t", ("convert",)), Task("mask_2x", "t", ("convert",)),
             Task("knn", "t"), Task("after", "t", ("knn",))]  # fmt: skip

    def names(*arguments):
        return [task.name for task in select(tasks, *arguments)]

    assert names() == ["convert", "mask_1x", "mask_2x", "knn", "after"]
    with caplog.at_level("INFO", "momentum_transfer"):
        assert names(["mask_2*"]) == ["convert", "mask_2x"]
    assert "taken too, because others need them: convert" in caplog.text
    assert names([], ["k*"]) == ["convert", "mask_1x", "mask_2x"]
    assert names(["after", "mask*"], ["convert"]) == ["knn", "after"]
    with pytest.raises(InputError, match=r"--tasks of the suite's tasks, found 'maks\*'; the nearest names are mask_"):
        names(["maks*"])
    with pytest.raises(InputError, match="leave a task, found none"):
        names(["after"], ["knn"])


def test_hours_follow_this_machines_step_of_a_training_that_has_not_ended(suite, checkpoint):
    (convert, job) = plan(_only(suite, "mask"), [str(checkpoint)], suite.parent / "out")
    assert expected([convert, job], 0)[job.title].source == ""
    job.begin(gpus=2)
    folder = job.folder / "trial_0"
    folder.mkdir()
    (folder / "config.yaml").write_text("{SOLVER: {MAX_ITER: 3600}, TRIALS: 2}")
    lines = [{"step": 1, "seconds": 9.0}, {"step": 20, "seconds": 0.5}, {"step": 40, "seconds": 0.25}, {"step": 60}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = expected([convert, job], 0)[job.title]
    assert (found.hours, found.gpu_hours, found.source) == (1.0, 2.0, "measured step")
    state = json.loads((job.folder / "suite_state.json").read_text())
    assert state["host"] == socket.gethostname()
    (job.folder / "suite_state.json").write_text(json.dumps({**state, "host": "elsewhere"}))
    assert expected([convert, job], 0)[job.title].source == ""


def test_hours_of_a_pretraining_follow_its_epochs():
    lines = [{"step": 50, "epoch": 0.25, "seconds": 0.36}, {"step": 100, "epoch": 0.5, "seconds": 0.36}, {"step": 100}]
    settings = {"STEPS": 0, "EPOCHS": 10}
    assert _hours_by_step(lines, {"SOLVER": settings}) == pytest.approx(2000 * 0.36 / 3600)
    assert _hours_by_step(lines, {"SOLVER": {**settings, "STEPS": 500}}) == pytest.approx(500 * 0.36 / 3600)


def _only(path, *names):
    suite = load_suite(path)
    return type(suite)(suite.name, select(suite.tasks, names), suite.path)
