"""Suites: plans from YAML, refusals, what is done stays done, a failure stops only what needs it, kill and resume."""

import itertools
import os
import signal
import sys
import threading
import time
from pathlib import Path
from unittest import mock

import pytest

import momentum_transfer.lowshot.config
import momentum_transfer.pretrain.config
import momentum_transfer.transfer.config
from momentum_transfer.core.command import Stopped
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import weights_name
from momentum_transfer.core.log import never_silent, speaking
from momentum_transfer.core.settings import load_config
from momentum_transfer.lowshot.evaluations import ON_FEATURES, ON_IMAGES
from momentum_transfer.report.reference import load_tables, published
from momentum_transfer.report.tables import DETECTION
from momentum_transfer.suites.attempt import full_command, last_lines, last_word, start
from momentum_transfer.suites.local import run_local
from momentum_transfer.suites.planning import plan
from momentum_transfer.suites.suite import load_suite
from momentum_transfer.suites.task import PRETRAIN, read_task
from tests.suites.suite_files import words, write_suite, write_weights

with mock.patch.object(sys, "path", list(sys.path)):  # a tool replaces its first entry
    from momentum_transfer.tools import noise

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("visible", "expected"), [(None, "1"), ("2,3", "3"), ("GPU-a,GPU-b", "GPU-b")])
def test_a_task_sees_one_of_the_gpus_that_its_suite_sees(visible, expected, tmp_path: Path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    (job,) = plan(load_suite(write_suite(tmp_path, {})), write_weights(tmp_path)[:1], tmp_path / "out")
    with mock.patch("momentum_transfer.suites.attempt._logged") as logged:
        start(job, 1, device=1)
    assert logged.call_args.args[3]["CUDA_VISIBLE_DEVICES"] == expected


@pytest.fixture
def weights(tmp_path: Path) -> list[str]:
    return write_weights(tmp_path)


def test_every_task_runs_for_every_checkpoint_in_order(tmp_path: Path, weights):
    output = tmp_path / "out"
    jobs = plan(load_suite(write_suite(tmp_path, {}, {"needs": ["task0"]})), weights, output)
    assert [job.title for job in jobs] == ["momentum2: task0", "momentum2: task1", "random: task0", "random: task1"]
    assert [outcome.status for outcome in run_local(jobs)] == ["done"] * 4
    assert words(output) == ["word0", "word1", "word0", "word1"]
    assert jobs[0].log.read_text(encoding="utf-8").startswith("$ ")


def test_what_is_done_is_skipped_and_a_changed_checkpoint_is_not(tmp_path: Path, weights):
    output, path = tmp_path / "out", write_suite(tmp_path, {})
    run_local(plan(load_suite(path), weights, output))
    Path(weights[1]).write_text("other weights", encoding="utf-8")
    outcomes = run_local(plan(load_suite(path), weights, output))
    assert [outcome.status for outcome in outcomes] == ["done before", "done"]
    assert len(words(output)) == 3


def test_a_changed_config_file_or_its_base_runs_again(tmp_path: Path, weights):
    base, config = tmp_path / "base.yaml", tmp_path / "config.yaml"
    base.write_text("A: 1\n", encoding="utf-8")
    config.write_text("_BASE_: base.yaml\n", encoding="utf-8")
    path = write_suite(tmp_path, {"command": f"{tmp_path / 'tool.py'} {{results}} word --config {config}"})
    keys = []
    for text in ("A: 1\n", "A: 1\n", "A: 2\n"):
        base.write_text(text, encoding="utf-8")
        keys.append(plan(load_suite(path), weights[:1], tmp_path / "out")[0].key)
    assert keys[0] == keys[1] != keys[2]


def test_deleted_records_are_made_again(tmp_path: Path, weights):
    output, path = tmp_path / "out", write_suite(tmp_path, {}, {})
    run_local(plan(load_suite(path), weights, output))
    (output / "results.jsonl").unlink()
    assert [o.status for o in run_local(plan(load_suite(path), weights, output))] == ["done"] * 4
    assert words(output) == ["word0", "word1"] * 2  # the first to write them does not make the others done


def test_a_failing_task_stops_only_what_needs_it(tmp_path: Path, weights):
    path = write_suite(tmp_path, {"word": "fail"}, {"needs": "task0"}, {})
    outcomes = run_local(plan(load_suite(path), weights, tmp_path / "out"))
    assert [outcome.status for outcome in outcomes] == ["failed", "not run", "done"] * 2
    assert outcomes[0].note == "exit code 3: boom: no such thing"
    assert outcomes[1].note == "task0 did not end well"
    assert words(tmp_path / "out") == ["word2", "word2"]


def test_a_failed_task_is_tried_again(tmp_path: Path, weights):
    path = write_suite(tmp_path, {"word": "fail"})
    for _ in range(2):
        assert run_local(plan(load_suite(path), weights[:1], tmp_path / "out"))[0].status == "failed"
    assert plan(load_suite(path), weights[:1], tmp_path / "out")[0].log.read_text().count("boom") == 2


def test_parallel_jobs_run_at_the_same_time_and_respect_needs(tmp_path: Path, weights):
    output = tmp_path / "out"
    jobs = plan(load_suite(write_suite(tmp_path, {}, {"needs": "task0"}, {})), weights, output)
    assert all(outcome.well for outcome in run_local(jobs, parallel=3))
    ends = {job.title: (job.folder / "suite_state.json").stat().st_mtime_ns for job in jobs}
    assert ends["momentum2: task0"] < ends["momentum2: task1"]
    assert sorted(words(output)) == ["word0", "word0", "word1", "word1", "word2", "word2"]


def test_a_suite_says_how_many_tasks_have_ended_while_nothing_else_is_said(tmp_path: Path, weights, capsys):
    path = write_suite(tmp_path, {}, {"needs": "task0"})
    with speaking(), never_silent(every=0.02):
        run_local(plan(load_suite(path), weights[:1], tmp_path / "out"))
    said = capsys.readouterr().out
    assert "0 of 2 tasks ended, 1 running (0 s so far)" in said
    assert "1 of 2 tasks ended, 1 running (0 s so far)" in said
    assert "( so far)" not in said


def test_stopped_by_a_signal_ends_the_running_task_and_goes_on_later(tmp_path: Path, weights):
    output, path = tmp_path / "out", write_suite(tmp_path, {}, {"word": "sleep"})
    output.mkdir()

    def kill_when_sleeping() -> None:
        for _ in range(200):
            if (output / "sleeping").exists():
                os.kill(os.getpid(), signal.SIGTERM)
                return
            time.sleep(0.05)

    threading.Thread(target=kill_when_sleeping).start()
    began = time.monotonic()
    with pytest.raises(Stopped, match="run the same command again") as stopped:
        run_local(plan(load_suite(path), weights[:1], output))
    assert stopped.value.exit_code == 143
    assert time.monotonic() - began < 15  # the task, which sleeps for 30 s, was ended
    jobs = plan(load_suite(path), weights[:1], output)
    assert [job.done() for job in jobs] == [True, False]


def test_distributed_tasks_run_under_torchrun_only_on_several_gpus(tmp_path: Path, weights):
    (job,) = plan(load_suite(write_suite(tmp_path, {"distributed": True})), weights[:1], tmp_path / "out")
    assert full_command(job, 1)[:2] == [sys.executable, job.command[0]]
    assert full_command(job, 8)[1:5] == ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=8"]


def test_pixels_leave_out_what_needs_converted_weights(tmp_path: Path):
    path = write_suite(
        tmp_path,
        {"command": f"{tmp_path / 'tool.py'} {{weights}} {{converted}}"},
        {"needs": "task0"},
        {"command": f"{tmp_path / 'tool.py'} {{results}} {{weights}}"},
    )
    for word in ("pixels", "scratch"):
        assert [job.title for job in plan(load_suite(path), [word], tmp_path / "out")] == [f"{word}: task2"]


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"gpu_hour": 1.0}, "unknown key 'gpu_hour'; did you mean 'gpu_hours'"),
        ({"needs": ["later"]}, "needs 'later', which is no task before it"),
        ({"command": "tools/nowhere.py"}, "begins with 'tools/nowhere.py', which is no file"),
        ({"command": "tools/lowshot.py {weight}"}, "unknown place {weight}; expected one of weights"),
        ({"name": "a/b"}, "expected a name of letters"),
    ],
)
def test_a_wrong_task_is_refused_by_name(tmp_path: Path, task: dict, message: str):
    with pytest.raises(InputError, match=message):
        load_suite(write_suite(tmp_path, task))


def test_two_tasks_of_one_name_are_refused(tmp_path: Path):
    with pytest.raises(InputError, match="task 2: expected a new name"):
        load_suite(write_suite(tmp_path, {"name": "same"}, {"name": "same"}))


@pytest.mark.parametrize("text", ["tasks: []", "[1]", "tasks: {a: 1}", "a: [1"])
def test_a_file_that_is_no_suite_is_refused(tmp_path: Path, text: str):
    path = tmp_path / "suite.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"suite\.yaml"):
        load_suite(path)


def test_a_missing_suite_names_its_neighbours_that_ship_or_are_in_its_folder(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text("tasks: []\n", encoding="utf-8")
    with pytest.raises(InputError, match=rf"the nearest names are {tmp_path}/mine\.yaml, "):
        load_suite(tmp_path / "mien.yaml")
    with pytest.raises(InputError, match="suite not found: smokes; the nearest names are smoke, "):
        load_suite("smokes")


def test_missing_weights_and_equal_names_are_refused(tmp_path: Path, weights):
    path = write_suite(tmp_path, {})
    with pytest.raises(InputError, match="checkpoint"):
        plan(load_suite(path), [str(tmp_path / "nowhere.pt")], tmp_path / "out")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "momentum2.pt").write_text("x", encoding="utf-8")
    with pytest.raises(InputError, match="are both called momentum2"):
        plan(load_suite(path), [weights[0], str(tmp_path / "other" / "momentum2.pt")], tmp_path / "out")


def test_a_checkpoint_at_random_goes_through_every_task_under_its_own_name(tmp_path: Path, weights):
    path = write_suite(tmp_path, {"command": f"{tmp_path / 'tool.py'} {{weights}} {{converted}}"})
    random = f"random-of:{weights[0]}"
    given, at_random = plan(load_suite(path), [weights[0], random], tmp_path / "out")
    assert at_random.command[1] == random
    assert weights_name(at_random.command[2]) == at_random.weights == f"random-of-{given.weights}"
    Path(weights[0]).write_text("another", encoding="utf-8")
    assert plan(load_suite(path), [random], tmp_path / "out")[0].key != at_random.key
    with pytest.raises(InputError, match="checkpoint not found"):
        plan(load_suite(path), ["random-of:nowhere.pt"], tmp_path / "out")
    for wrong in (f"random-of:{random}", "random-of:pixels"):
        with pytest.raises(InputError, match="expected random-of:CHECKPOINT"):
            plan(load_suite(path), [wrong], tmp_path / "out")


def test_a_missing_config_file_is_refused_before_anything_runs(tmp_path: Path, weights):
    path = write_suite(tmp_path, {"command": f"{tmp_path / 'tool.py'} --config configs/nowhere.yaml"})
    with pytest.raises(InputError, match=r"config file not found: configs/nowhere\.yaml"):
        plan(load_suite(path), weights, tmp_path / "out")


def test_last_line_of_a_log_is_the_last_that_says_something(tmp_path: Path):
    log = tmp_path / "log.txt"
    log.write_text("a\nb  \n\n", encoding="utf-8")
    assert last_word(last_lines(log)) == "b"
    assert last_word(last_lines(tmp_path / "none")) == "no output"


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "suites").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_suites_name_files_that_are_there(path: Path, tmp_path: Path, weights):
    shipped = load_suite(path)
    jobs = plan(shipped, weights, tmp_path / "out")
    runs = shipped.sweep.runs() if shipped.sweep else []
    made = sum(len(shipped.sweep.checkpoints(run, tmp_path)) for run in runs)
    assert len(jobs) == (2 + made) * len(shipped.tasks) + len(runs)
    assert shipped.name == path.stem


def test_converted_weights_keep_the_checkpoints_name_in_results(tmp_path: Path, weights):
    path = write_suite(tmp_path, {"command": f"{tmp_path / 'tool.py'} {{weights}} {{converted}}"})
    for job in plan(load_suite(path), weights, tmp_path / "out"):
        assert weights_name(job.command[1]) == weights_name(job.command[2]) == job.weights


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "suites").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_commands_are_words_that_the_tools_know(path: Path, tmp_path: Path, weights):
    """Every option of a suite's command stands in the help of its tool."""
    for job in plan(load_suite(path), weights[:1], tmp_path / "out"):
        source = (ROOT / job.command[0]).read_text(encoding="utf-8")
        for option in (word for word in job.command if word.startswith("--")):
            assert f'"{option}"' in source, f"{job.title}: {job.command[0]} has no {option}"


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "suites").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_configs_load_with_the_settings_of_their_command(path: Path, tmp_path: Path, weights):
    """Every --config loads with the KEY VALUE words after the options, in the room of its tool."""
    loaders = {
        "tools/lowshot.py": lambda *given: load_config(momentum_transfer.lowshot.config.get_cfg(), *given),
        "tools/noise.py": lambda *given: load_config(momentum_transfer.lowshot.config.get_cfg(), *given),
        "tools/transfer.py": momentum_transfer.transfer.config.load,
        "tools/pretrain.py": lambda *given: load_config(momentum_transfer.pretrain.config.get_cfg(), *given),
    }
    suite = load_suite(path)
    choices = [[name] for name in suite.presets] or [[]]
    others = tuple(f"_seed{seed}" for seed in (suite.sweep.seeds[1:] if suite.sweep else ()))
    for job in itertools.chain(*(plan(suite, weights[:1], tmp_path / "out", choice) for choice in choices)):
        if job.command[0] == "tools/convert.py" or job.weights.endswith(others):
            continue  # what differs by the seed alone
        if job.command[0].startswith("studies/"):  # their own arguments: tests/studies/
            assert (ROOT / job.command[0]).is_file()
            continue
        first = job.command.index("--resume") + 1 if job.task.name == PRETRAIN else None
        first = job.command.index("OUTPUT_DIR") if first is None and "OUTPUT_DIR" in job.command else first
        overrides = [] if first is None else list(job.command[first:])
        if job.command[0] == "tools/noise.py":
            overrides = noise.parser().parse_args(job.command[1:]).overrides
        cfg = loaders[job.command[0]](job.command[job.command.index("--config") + 1], overrides)
        assert "OUTPUT_DIR" not in overrides or Path(cfg.OUTPUT_DIR).is_relative_to(job.folder)
        if job.command[0] == "tools/lowshot.py":
            assert job.command[1] in (*ON_FEATURES, *ON_IMAGES)


def test_the_full_suite_has_every_kind_of_evaluation(tmp_path: Path, weights):
    """Low-shot, linear, FixMatch, detectors, LVIS, VOC and segmentation; and every dense task that the papers print."""
    jobs = plan(load_suite(ROOT / "configs" / "suites" / "full.yaml"), weights[:1], tmp_path / "out", ["m2"])
    assert {job.command[1] for job in jobs if job.command[0] == "tools/lowshot.py"} == {
        "retrieval", "svm", "linear", "finetune", "fixmatch"
    }  # fmt: skip
    protocols = {
        momentum_transfer.transfer.config.load(job.command[job.command.index("--config") + 1]).PROTOCOL
        for job in jobs
        if job.command[0] == "tools/transfer.py"
    }
    few = ("fsdet", "fsdet_voc", "soft_teacher", "unbiased_teacher")  # few labels are a question of their own
    tables = [table for table in load_tables() if table.paper not in few]
    dense = {item.protocol for item in published(tables) if item.task.split("/")[0] in (*DETECTION, "semantic")}
    assert dense
    assert dense <= protocols
    assert "lvis_v1_mask_rcnn_fpn_2x" in protocols


def test_a_task_that_says_nothing_more_asks_for_eight_cores_and_twelve_hours_of_a_cluster():
    task = read_task({"name": "a", "command": "tools/lowshot.py knn"}, "here", ())
    assert (task.cpus, task.minutes, task.needs, task.gpu_hours, task.distributed) == (8, 12 * 60, (), 0, False)
    assert f"{task.cpus} by default" in (ROOT / "docs/cluster.md").read_text(encoding="utf-8")


def test_a_variant_in_the_folder_does_not_hide_a_suite_that_ships(tmp_path: Path, monkeypatch):
    (tmp_path / "mine.yaml").write_text("_VARIANTS_: {quick: {SEED: 5}}\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert load_suite("quick").name == "quick"
