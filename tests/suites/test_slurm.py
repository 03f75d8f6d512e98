"""The Slurm runner on stand-ins for Slurm's programs; on a real cluster of one node it is tested in tests/cluster."""

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.suites.attempt import Attempt, full_command, node_lock
from momentum_transfer.suites.executors import Setup, run_on
from momentum_transfer.suites.planning import plan
from momentum_transfer.suites.slurm import Array, Place, Slurm, _refusal, arrays, largest_node, squeue
from momentum_transfer.suites.suite import load_suite
from momentum_transfer.suites.task import Job
from tests.suites.slurm_stand_ins import make_stand_ins
from tests.suites.suite_files import words, write_suite, write_weights
from tests.tools.in_process import run_tool

ROOT = Path(__file__).resolve().parents[2]

submitit = pytest.importorskip(
    "submitit", reason="submitit is the extra 'slurm': pip install 'momentum-transfer[slurm]'"
)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the stand-ins, first on the PATH; jobs settle at once."""
    folder = make_stand_ins(tmp_path / "slurm bin")
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setattr("momentum_transfer.suites.executors.SETTLE", 0.0)
    return folder


def jobs_of(folder: Path, *tasks: dict, count: int = 1) -> list[Job]:
    return plan(load_suite(write_suite(folder, *tasks)), write_weights(folder)[:count], folder / "out")


def run_slurm(jobs, output, *, gpus=0, options=(), at_once=None):
    return run_on(Slurm(Setup(output, "", dict(options), at_once)), jobs, output, gpus=gpus, poll=0.1)


def test_submission_files_ask_for_what_the_task_needs(tmp_path: Path, slurm: Path):
    jobs = jobs_of(tmp_path, {"cpus": 3, "minutes": 90, "word": "fail"}, {"needs": "task0", "distributed": True})
    outcomes = run_slurm(jobs, tmp_path / "out", gpus=8, options={"partition": "gpu", "mem": "64G", "nice": "5"})
    first, second = ((slurm / f"{number}.sh").read_text(encoding="utf-8") for number in (101, 102))
    for line in (
        *("cpus-per-task=3", "time=90", "gpus-per-node=1", "partition=gpu", "mem=64G", "nice=5", f"chdir={ROOT}"),
        *("requeue", "signal=USR2@120", "open-mode=append"),
    ):
        assert first.count(f"#SBATCH --{line}\n") == 1
    assert "dependency" not in first
    for line in ("gpus-per-node=8", "dependency=afterok:101", "kill-on-invalid-dep=yes", "time=720", "cpus-per-task=6"):
        assert f"#SBATCH --{line}\n" in second  # six: the largest node has no eight
    assert [outcome.status for outcome in outcomes] == ["failed", "not run"]


def test_a_task_on_two_nodes_asks_for_them_and_its_attempts_meet_at_the_first(tmp_path: Path, slurm: Path):
    (job,) = jobs_of(tmp_path, {"distributed": True, "nodes": 2})
    (slurm / "srun").write_text("#!/bin/sh\nexit 0\n", encoding="utf-8")  # no node runs anything
    run_slurm([job], tmp_path / "out", gpus=4, options={"partition": "gpu"})
    script = (slurm / "101.sh").read_text(encoding="utf-8")
    for line in ("nodes=2", "ntasks-per-node=1", "gpus-per-node=4"):
        assert script.count(f"#SBATCH --{line}\n") == 1
    first, second = (full_command(job, 4, node, "10.0.0.7:2000")[3:] for node in (0, 1))
    meeting = ["--nproc-per-node=4", "--nnodes=2", "--node-rank=0", "--master-addr=10.0.0.7", "--master-port=2000"]
    assert first[:5] == meeting
    assert [word for word in second if word not in first] == ["--node-rank=1"]
    with pytest.raises(InputError, match="expected one node, found nodes: 2 without distributed: true"):
        jobs_of(tmp_path, {"nodes": 2})


def test_needs_run_first_failures_are_told_and_checkpoints_are_arrays(tmp_path: Path, slurm: Path):
    tasks = ({}, {"needs": "task0"}, {"word": "fail"}, {"needs": "task2"})
    jobs = jobs_of(tmp_path, *tasks, count=2)
    outcomes = run_slurm(jobs, tmp_path / "out", at_once=1)
    assert [outcome.status for outcome in outcomes] == ["done", "done", "failed", "not run"] * 2
    assert outcomes[2].note == "exit code 3: boom: no such thing"
    assert sorted(words(tmp_path / "out")) == ["word0", "word0", "word1", "word1"]
    scripts = [(slurm / f"{number}.sh").read_text(encoding="utf-8") for number in range(101, 105)]
    assert not (slurm / "105.sh").exists()
    assert all("#SBATCH --array='0-1%1'\n" in text or "#SBATCH --array=0-1%1\n" in text for text in scripts)
    assert "gpus" not in scripts[0]
    assert "#SBATCH --dependency=aftercorr:101\n" in scripts[1]
    again = run_slurm(jobs_of(tmp_path, {}, {"needs": "task0"}), tmp_path / "out")
    assert [outcome.status for outcome in again] == ["done before", "done before"]


def test_a_job_that_is_still_queued_is_found_again_and_not_submitted_twice(tmp_path: Path, slurm: Path):
    (job,) = jobs_of(tmp_path, {})
    submitted = {"number": "777", "on": "Slurm", "jobs": [["other: task", "x"], [job.title, job.key]]}
    (tmp_path / "out").mkdir()
    (tmp_path / "out/submitted.jsonl").write_text(json.dumps(submitted) + "\n", encoding="utf-8")
    (slurm / "777_1.state").write_text("PENDING|BeginTime", encoding="utf-8")

    def end() -> None:
        job.end(7.0, exit_code=0)
        job.results.touch()
        (slurm / "777_1.state").write_text("COMPLETED|None", encoding="utf-8")

    timer = threading.Timer(1.0, end)
    timer.start()
    (outcome,) = run_slurm([job], tmp_path / "out")
    timer.join()
    assert (outcome.status, outcome.seconds) == ("done", 7.0)
    assert not list(slurm.glob("*.sh"))  # sbatch was given nothing
    job.forget_end()
    changed = json.dumps({"number": "778", "on": "Slurm", "jobs": [[job.title, "another key"]]})
    (tmp_path / "out/submitted.jsonl").write_text(changed + "\n", encoding="utf-8")
    (slurm / "778.state").write_text("RUNNING|None", encoding="utf-8")
    with pytest.raises(InputError, match=r"found Slurm job 778 there with another command.*--cancel"):
        run_slurm([job], tmp_path / "out")


@pytest.mark.parametrize(
    ("state", "status", "note"),
    [
        ("CANCELLED|None", "cancelled", "Slurm job 101 was cancelled"),
        ("NODE_FAIL|None", "failed", "Slurm job 101 ended as NODE_FAIL"),
        ("PENDING|DependencyNeverSatisfied", "cancelled", "Slurm job 101 was cancelled"),
        ("", "failed", "Slurm job 101 is gone from the queue"),
    ],
)
def test_a_job_that_ends_without_a_word_is_told_by_its_state(tmp_path, slurm, state: str, status: str, note: str):
    (job,) = jobs_of(tmp_path, {})
    sbatch = f'#!/bin/sh\ncd "$(dirname "$0")"\necho \'{state}\' > 101.state\n' if state else "#!/bin/sh\n"
    (slurm / "sbatch").write_text(sbatch + "echo Submitted batch job 101\n", encoding="utf-8")
    (outcome,) = run_slurm([job], tmp_path / "out")
    assert outcome.status == status
    assert note in outcome.note


def test_a_refusal_of_sbatch_is_one_line(tmp_path: Path, slurm: Path):
    refusal = "#!/bin/sh\necho 'sbatch: error: invalid partition specified: x' >&2\nexit 1\n"
    (slurm / "sbatch").write_text(refusal, encoding="utf-8")
    with pytest.raises(InputError, match=r"expected sbatch to take momentum2: task0, found: .*invalid partition"):
        run_slurm(jobs_of(tmp_path, {}), tmp_path / "out")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "sbatch: error: no partition\nsbatch: error: Batch job submission failed\nbye",
            "sbatch: error: Batch job sub",
        ),
        ("\n first \n  the last \n\n", "the last$"),
        ("", "^Command 'sbatch' returned non-zero"),
        ("x" * 400, f"^{'x' * 300}$"),
    ],
)
def test_what_sbatch_says_last_is_told(said: str, told: str):
    assert re.search(told, _refusal(subprocess.CalledProcessError(1, "sbatch", stderr=said)))
    assert _refusal(ValueError("\n")) == "no word"


def test_what_the_programs_of_slurm_say_is_read(slurm: Path):
    assert largest_node() == (6, 2)
    (slurm / "12_3.state").write_text("PENDING|(Resources)", encoding="utf-8")
    assert squeue()["12_3"].reason == "Resources"
    (slurm / "squeue").write_text("#!/bin/sh\necho 'slurm_load_jobs error: x' >&2; exit 1\n", encoding="utf-8")
    with pytest.raises(InputError, match="expected an answer of squeue, found: slurm_load_jobs error: x; is Slurm up"):
        squeue()


def test_arrays_follow_their_needs_in_order_and_no_array_is_too_long(tmp_path: Path):
    def of(count: int, needs: list[Job] | None = None, name: str = "task") -> list[Job]:
        task = load_suite(write_suite(tmp_path, {"name": name})).tasks[0]
        return [
            Job(f"{name}{index}", task, (), tmp_path, (needs[index],) if needs else (), "", tmp_path)
            for index in range(count)
        ]

    first = of(5)
    second = of(5, first, "second")
    made = arrays([*first, *second], {}, longest=3)
    assert [len(array.jobs) for array in made] == [3, 2, 3, 2]
    for number, array in enumerate(made):
        array.number = str(number)
    assert [array.dependency() for array in made] == ["", "", "aftercorr:0", "aftercorr:1"]
    assert (made[3].jobs.index(second[4]), made[1].jobs.index(first[4])) == (1, 1)
    # three checkpoints of each of two runs: job k of each array follows run k
    runs = of(2)
    made = arrays([*runs, *of(6, [runs[0]] * 3 + [runs[1]] * 3, "second")], {}, longest=100)
    assert [len(array.jobs) for array in made] == [2, 2, 2, 2]
    # needs of which one is done, or an earlier call's: those that would stand elsewhere are alone
    found = {first[0].title: Place(Array([first[0]], number="9_7"))}
    made = arrays([*first[2:], *second], found, longest=100)
    for number, array in enumerate(made):
        array.number = str(number)
    whose = {tuple(job.weights for job in array.jobs): array.dependency() for array in made[1:]}
    assert whose == {
        ("second0",): "afterok:9_7", ("second1",): "", ("second2", "second3", "second4"): "aftercorr:0"
    }  # fmt: skip


#: Writes how often it began; sleeps until SIGTERM the first time, which it answers by saving.
WAITING = """
import pathlib, signal, sys, time
count = pathlib.Path(sys.argv[1]).with_name("count")
begun = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(begun))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
while begun == 1: time.sleep(0.05)
open(sys.argv[1], "a").write("done\\n")
"""


def test_a_stop_by_signal_is_no_end_and_the_next_attempt_goes_on(tmp_path: Path):
    (job,) = jobs_of(tmp_path, {})
    (tmp_path / "tool.py").write_text(WAITING, encoding="utf-8")
    job.results.parent.mkdir()

    def signal_when_begun() -> None:
        while not job.results.with_name("count").exists():
            time.sleep(0.05)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=signal_when_begun).start()
    with pytest.raises(SystemExit) as stopped:
        Attempt(job, 0)()
    assert stopped.value.code == 143
    state = job.state()
    assert state["stopped"] == "SIGTERM"
    assert "exit_code" not in state
    Attempt(job, 0)()
    assert job.state()["exit_code"] == 0
    assert job.state()["attempts"] == 2
    assert job.state()["seconds"] > state["seconds"] > 0
    Attempt(job, 0)()  # a second job that waited for the first finds it done
    assert words(tmp_path / "out") == ["done"]


def test_a_task_that_will_take_longer_than_its_minutes_is_named_before_it_is_submitted(tmp_path: Path, slurm: Path):
    suite = write_suite(tmp_path, {"gpu_hours": 3.0, "minutes": 60}, {"gpu_hours": 0.9, "minutes": 60})
    words_ = ("--suite", suite, "--weights", write_weights(tmp_path)[0], "--output", tmp_path / "out", "--dry-run")
    told = "momentum2: task0: 3.0 hours are expected (suite), 60 minutes at a time"
    assert told in run_tool("evaluate", *words_, "--slurm").stderr
    for more in (("--slurm", "--sbatch", "time=240"), ()):
        assert "hours are expected (" not in run_tool("evaluate", *words_, *more).stderr


@pytest.mark.parametrize("alive", [True, False])
def test_a_failure_in_which_another_node_is_lost_is_no_end(tmp_path: Path, monkeypatch, alive: bool):
    (job,) = jobs_of(tmp_path, {"nodes": 2, "distributed": True})
    job.results.parent.mkdir()
    job.folder.mkdir(parents=True)
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    lock = job.folder / node_lock(1)
    lock.write_text(f"{other.pid} {os.uname().nodename}")
    code = "raise SystemExit(1)" if alive else f"import os; os.kill({other.pid}, 9); raise SystemExit(1)"
    monkeypatch.setattr("momentum_transfer.suites.attempt.full_command", lambda *_, **__: [sys.executable, "-c", code])
    with pytest.raises(RuntimeError if alive else SystemExit):
        Attempt(job, 0, node=0)()
    other.kill()
    other.wait()
    assert (job.state().get("exit_code"), job.state().get("stopped")) == ((1, None) if alive else (None, "SIGTERM"))


def test_two_attempts_at_once_are_one(tmp_path: Path, monkeypatch):
    (job,) = jobs_of(tmp_path, {"word": "once"})  # sleeps
    job.results.parent.mkdir()
    code = (
        "import pickle, sys; from momentum_transfer.suites.attempt import Attempt\n"
        "Attempt(pickle.loads(bytes.fromhex(sys.argv[1])), 0)()"
    )
    process = subprocess.Popen([sys.executable, "-c", code, pickle.dumps(job).hex()], cwd=ROOT)
    while not (tmp_path / "out/sleeping").exists():
        time.sleep(0.05)
    before = job.state()
    monkeypatch.setattr("momentum_transfer.suites.attempt._PATIENCE", 0.0)
    with pytest.raises(InputError, match="expected to be alone"):
        Attempt(job, 0)()
    assert job.state() == before
    process.terminate()
    assert process.wait() != 0
    assert job.state()["stopped"] == "SIGTERM"


def test_ten_thousand_tasks_are_ten_arrays(tmp_path: Path):
    suite = load_suite(write_suite(tmp_path, *({"needs": f"task{i - 5}"} if i >= 5 else {} for i in range(10))))
    jobs: list[Job] = []
    for index in range(1000):
        made: dict[str, Job] = {}
        for task in suite.tasks:
            needs = tuple(made[need] for need in task.needs)
            made[task.name] = Job(f"net{index}", task, (), tmp_path, needs, "", tmp_path)
        jobs += made.values()
    found = arrays(jobs, {}, longest=1000)
    assert [len(array.jobs) for array in found] == [1000] * 10
    for number, array in enumerate(found):
        array.number = str(number)
    assert [array.dependency() for array in found[5:]] == [f"aftercorr:{number}" for number in range(5)]
    assert found[9].jobs[7].title == "net7: task9"
