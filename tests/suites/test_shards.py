"""Shards of a suite: whose turn it is, what a killed one leaves, and the scripts that start them."""

import contextlib
import errno
import io
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml

from momentum_transfer.core import log, run_lock
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.log import never_silent
from momentum_transfer.suites import local, task
from momentum_transfer.suites.attempt import JOB_LOCK, alone
from momentum_transfer.suites.local import Shard, export, read_shard, run_local
from momentum_transfer.suites.planning import plan
from momentum_transfer.suites.suite import load_suite
from momentum_transfer.suites.task import Job
from tests.suites.counting import counting_suite, counts, records_of
from tests.suites.suite_files import words, write_suite, write_weights
from tests.tools.in_process import run_tool

ROOT = Path(__file__).resolve().parents[2]

#: A shard that can be killed: suite, output, number, count.
SHARD = """
import sys
from momentum_transfer.suites.local import Shard, run_local
from momentum_transfer.suites.planning import plan
from momentum_transfer.suites.suite import load_suite
suite, output, number, count = sys.argv[1:]
run_local(plan(load_suite(suite), ["pixels"], output), shard=Shard(int(number), int(count)))
"""


def jobs_of(folder: Path, *tasks: dict) -> list[Job]:
    return plan(load_suite(write_suite(folder, *tasks)), write_weights(folder)[:1], folder / "out")


@pytest.mark.slow
def test_three_shards_of_which_one_is_killed_have_the_records_of_one_process(tmp_path: Path):
    suite, output = counting_suite(tmp_path, 24, 3), tmp_path / "out"
    run_local(plan(load_suite(suite), ["pixels"], tmp_path / "alone"), parallel=8)
    command = [sys.executable, "-c", SHARD, str(suite), str(output)]
    shards = [subprocess.Popen([*command, str(k), "3"], cwd=ROOT, stdout=subprocess.DEVNULL) for k in (1, 2, 3)]
    deadline = time.monotonic() + 120
    while not list(output.glob("pixels/*/trace")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    shards[1].kill()
    assert [shard.wait(timeout=120) for shard in shards] == [0, -signal.SIGKILL, 0]
    assert records_of(output) == records_of(tmp_path / "alone")
    assert all(counts(output, f"task{index}")[-3:] == [0, 1, 2] for index in range(24))
    assert not list(output.glob("pixels/*/.claim.*"))


def test_a_shard_begins_at_its_part_and_repeats_no_failure(tmp_path: Path):
    jobs = jobs_of(tmp_path, {}, {"word": "fail"}, {}, {"needs": "task1"})
    outcomes = run_local(jobs, shard=Shard(2, 2))
    assert [outcome.status for outcome in outcomes] == ["done", "failed", "done", "not run"]
    assert words(tmp_path / "out") == ["word2", "word0"]
    assert [outcome.status for outcome in run_local(jobs, shard=Shard(1, 2))][1:] == [
        "failed",
        "done before",
        "not run",
    ]
    assert jobs[1].state()["attempts"] == 1
    run_local(jobs)  # alone, as ever
    assert jobs[1].state()["attempts"] == 2


def test_a_task_that_its_runner_had_to_kill_while_stopping_goes_on_in_the_next_shard(tmp_path: Path):
    class Saving:  # does not end within the patience of a stop
        returncode = None

        def wait(self, timeout: float | None = None) -> None:
            if self.returncode is None:
                raise subprocess.TimeoutExpired("task", timeout)

        def kill(self) -> None:
            self.returncode = -signal.SIGKILL

    (job,) = jobs_of(tmp_path, {})
    job.folder.mkdir(parents=True)
    local._Running(job, Saving(), time.monotonic() - 5, 0.0, contextlib.ExitStack()).end()
    assert job.state()["stopped"] == "SIGTERM"
    assert [outcome.status for outcome in run_local([job], shard=Shard(2, 2))] == ["done"]


@pytest.mark.parametrize("whose", ["claim", "lock"])
def test_what_another_has_taken_is_waited_for_and_not_done_twice(tmp_path: Path, whose: str, capsys):
    (job,) = jobs_of(tmp_path, {})
    job.folder.mkdir(parents=True)

    def other() -> None:
        if whose == "claim":  # of another machine, whose signs of life count
            (job.folder / ".claim.3").write_text("12 elsewhere 1")
            time.sleep(0.6)
            job.end(5.0, exit_code=0)
        else:
            with alone(job.folder, name=JOB_LOCK):
                time.sleep(0.6)
                job.end(5.0, exit_code=0)
        job.results.touch()

    thread = threading.Thread(target=other)
    thread.start()
    time.sleep(0.2)
    with never_silent(every=0.02):
        (outcome,) = run_local([job], shard=Shard(1, 2))
    thread.join()
    assert "0 of 1 tasks ended, others run here or elsewhere" in capsys.readouterr().out
    assert (outcome.status, outcome.seconds) == ("done", 5.0)
    assert words(tmp_path / "out") == []


def test_a_claim_is_free_again_once_its_owner_is_gone(tmp_path: Path, monkeypatch):
    (job,) = jobs_of(tmp_path, {})
    job.folder.mkdir(parents=True)
    claim = job.folder / ".claim.7"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    claim.write_text(f"{gone.pid} {os.uname().nodename} 1")
    assert not run_lock.alive(claim)
    claim.write_text(run_lock.signature())
    assert run_lock.alive(claim)
    for text, seconds, alive in (("12 elsewhere 1", 10, True), ("12 elsewhere 1", 100, False), ("", 10, True)):
        claim.write_text(text)
        os.utime(claim, (time.time() - seconds,) * 2)
        assert run_lock.alive(claim) == alive
    assert not run_lock.alive(job.folder / ".claim.7") or claim.read_text() == ""
    os.utime(claim, (time.time() - 100,) * 2)
    assert run_local([job])[0].status == "done"
    assert not list(job.folder.glob(".claim.*"))


def test_of_many_that_come_at_once_one_has_the_job_without_any_locks(tmp_path: Path):
    (job,) = jobs_of(tmp_path, {})
    for _ in range(20):
        barrier, taken = threading.Barrier(8), []
        stacks = [contextlib.ExitStack() for _ in range(8)]

        def take(stack, barrier=barrier, taken=taken) -> None:
            barrier.wait()
            taken.append(local._claim(job, stack))

        threads = [threading.Thread(target=take, args=(stack,)) for stack in stacks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(taken) == [False] * 7 + [True]
        for stack in stacks:
            stack.close()


@pytest.mark.parametrize("when", ["claim", "begin", "end"])
def test_a_full_disk_ends_a_shard_in_its_error_and_nothing_is_lost_or_done_twice(tmp_path: Path, monkeypatch, when):
    jobs = jobs_of(tmp_path, {}, {}, {})
    full, true = OSError(errno.ENOSPC, "No space left on device", str(jobs[1].folder)), task.write_text

    def write(path: Path, text: str) -> None:
        if path.parent == jobs[1].folder and ("exit_code" in text) == (when == "end"):
            raise full
        true(path, text)

    def sign() -> str:
        raise full

    with monkeypatch.context() as patched:
        if when == "claim":
            job = jobs.pop(1)
            run_local(jobs)
            jobs.insert(1, job)
            patched.setattr(run_lock, "signature", sign)
        else:
            patched.setattr(task, "write_text", write)
        with pytest.raises(OSError, match="No space left"):
            run_local(jobs, parallel=3, shard=Shard(1, 2))
    assert not list((tmp_path / "out").rglob(".claim.*"))
    assert not jobs[1].done()
    assert all(outcome.well for outcome in run_local(jobs, shard=Shard(2, 2)))
    assert {"word0", "word2"} <= set(words(tmp_path / "out"))
    assert words(tmp_path / "out").count("word1") == (2 if when == "end" else 1)  # real tools see their record and skip


def test_what_failed_for_a_full_disk_is_tried_by_the_other_shards(tmp_path: Path):
    (job,) = jobs_of(tmp_path, {"word": "fail"})
    tool = tmp_path / "tool.py"
    script = tool.read_text()
    tool.write_text("raise OSError(28, 'No space left on device')")
    assert run_local([job], shard=Shard(1, 2))[0].note.endswith("No space left on device")
    tool.write_text(script)
    assert run_local([job], shard=Shard(2, 2))[0].note == "exit code 3: boom: no such thing"
    assert job.state()["attempts"] == 2
    assert run_local([job], shard=Shard(1, 2))[0].status == "failed"
    assert job.state()["attempts"] == 2  # no shard repeats that


def test_a_second_driver_on_this_machine_is_refused_and_runs_nothing(tmp_path: Path):
    write_suite(tmp_path, {})
    words_ = ("--suite", tmp_path / "suite.yaml", "--weights", write_weights(tmp_path)[0], "--gpus", "0")
    with alone(tmp_path / "out"):
        ended = run_tool("evaluate", *words_, "--output", tmp_path / "out", "--on", "local")
    assert ended.returncode == 2
    assert f"expected to be alone in {tmp_path / 'out'}, found process {os.getpid()}" in ended.stderr
    assert not (tmp_path / "out/results.jsonl").exists()


def test_while_the_page_is_made_its_process_alone_says_where_the_work_stands(tmp_path: Path, monkeypatch):
    said = []

    def report(*_: object, **__: object) -> subprocess.CompletedProcess:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            log._stands[-1]()
        said.append(out.getvalue())
        return subprocess.CompletedProcess([], 0)

    monkeypatch.setattr(subprocess, "run", report)
    write_suite(tmp_path, {})
    words_ = ("--suite", tmp_path / "suite.yaml", "--weights", write_weights(tmp_path)[0], "--gpus", "0")
    assert run_tool("evaluate", *words_, "--output", tmp_path / "out").returncode == 0
    assert said == [""]


def test_a_task_on_more_nodes_than_there_are_shards_is_refused_before_any_starts(tmp_path: Path):
    write_suite(tmp_path, {}, {"nodes": 3, "distributed": True})
    words_ = ("--suite", tmp_path / "suite.yaml", "--weights", write_weights(tmp_path)[0], "--gpus", "0")
    for more in (("--shard", "1/2"), ("--export", "k8s", "--jobs", "2")):
        ended = run_tool("evaluate", *words_, "--output", tmp_path / "out", *more)
        assert ended.returncode == 2
        assert "expected a shard for each node, found 2; begin more" in " ".join(ended.stdout.split())
        assert "--skip task1" in ended.stderr
    assert not (tmp_path / "out").exists()
    ended = run_tool("evaluate", *words_, "--output", tmp_path / "out", "--export", "commands")
    assert "3 shards" in ended.stdout


def meeting_suite(folder: Path, tenths: int) -> Path:
    """A task on two nodes beside one that counts."""
    path = counting_suite(folder, 1, 3)
    content = yaml.safe_load(path.read_text())
    command = f"tests/suites/meeting_task.py {{folder}}/ranks {tenths}"
    content["tasks"].insert(0, {"name": "ddp", "command": command, "nodes": 2, "distributed": True})
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.slow
def test_a_task_on_two_nodes_is_one_group_of_two_shards(tmp_path: Path):
    suite, output = meeting_suite(tmp_path, 0), tmp_path / "out"
    command = [sys.executable, "-c", SHARD, str(suite), str(output)]
    shards = [subprocess.Popen([*command, str(k), "2"], cwd=ROOT) for k in (1, 2)]
    assert [shard.wait(timeout=120) for shard in shards] == [0, 0]
    assert (output / "pixels/ddp/ranks").read_text() == "01\n"
    assert len(records_of(output)) == 1
    assert not list(output.glob("pixels/*/.claim*"))


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
def test_a_task_that_loses_a_node_goes_on_with_another(tmp_path: Path, lost: int):
    suite, output = meeting_suite(tmp_path, 50), tmp_path / "out"
    command = [sys.executable, "-c", SHARD, str(suite), str(output)]
    shards = [subprocess.Popen([*command, str(k), "3"], cwd=ROOT) for k in (1, 2, 3)]
    pids = {shard.pid: shard for shard in shards}

    def owner(name: str) -> int:
        found = list(output.glob(f"pixels/ddp/{name}.*"))
        return int(found[0].read_text().split()[0] or 0) if found else 0

    deadline = time.monotonic() + 60
    while not (output / "pixels/ddp/log.1.txt").exists() or not owner(".claim") or not owner(".claim1"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(3)  # they have met
    killed = pids[owner(".claim1" if lost else ".claim")]
    killed.kill()
    assert sorted(shard.wait(timeout=180) for shard in shards) == [-signal.SIGKILL, 0, 0]
    assert (output / "pixels/ddp/ranks").read_text() == "01\n"
    assert len(records_of(output)) == 1


def test_shards_join_what_lacks_a_node_and_wait_for_one_task_at_a_time(tmp_path: Path):
    two = {"nodes": 2, "distributed": True}
    jobs = jobs_of(tmp_path, two, {}, two)
    run = local._Run(jobs, 1, 0, None, Shard(1, 2), {})
    assert [job.task.name for job in sorted(jobs, key=run._turn)] == ["task1", "task0", "task2"]
    later = local._Running(jobs[2], None, 0.0, 0.0, contextlib.ExitStack(), 0)
    with contextlib.ExitStack() as claims:
        assert local._claim(jobs[2], claims)
        assert not local._claim(jobs[2], claims)
        assert [job.task.name for job in sorted(jobs, key=run._turn)] == ["task2", "task1", "task0"]
        assert not run._in_vain(later)
        with contextlib.ExitStack() as earlier:
            local._claim(jobs[0], earlier)
            assert run._in_vain(later)  # two that both wait for the other would wait for ever
            local._claim(jobs[0], earlier, 1)
            assert not run._in_vain(later)
        part = local._Running(jobs[0], None, 0.0, 0.0, contextlib.ExitStack(), 1)
        assert run._in_vain(part)  # its first node is gone


@pytest.mark.parametrize(
    ("text", "environment", "shard"),
    [
        ("2/3", {}, (2, 3)),
        ("", {"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_COUNT": "3", "SLURM_ARRAY_TASK_MIN": "5"}, (3, 3)),
        ("", {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "3"}, (3, 3)),
        ("", {"JOB_COMPLETION_INDEX": "0", "JOB_COMPLETIONS": "4"}, (1, 4)),
        ("", {"LSB_JOBINDEX": "4", "LSB_JOBINDEX_END": "4"}, (4, 4)),
    ],
)
def test_a_shard_is_given_or_the_index_of_an_array_job(text: str, environment: dict[str, str], shard):
    found = read_shard(text, environment)
    assert (found.number, found.count) == shard


@pytest.mark.parametrize(
    ("text", "environment", "told"),
    [
        ("4/3", {}, "expected --shard K/N with K from 1 to N, found '4/3'; the first of three is 1/3"),
        ("0/3", {}, "with K from 1 to N, found '0/3'"),
        ("one", {}, "with K from 1 to N, found 'one'"),
        ("", {}, "expected --shard K/N, or SLURM_ARRAY_TASK_ID with SLURM_ARRAY_TASK_COUNT or .* found none"),
        ("", {"JOB_COMPLETION_INDEX": "1"}, "expected numbers in JOB_COMPLETION_INDEX and JOB_COMPLETIONS, found '1'"),
        ("", {"JOB_COMPLETION_INDEX": "4", "JOB_COMPLETIONS": "4"}, "found '5/4'"),
    ],
)
def test_a_number_out_of_range_is_one_line(text: str, environment: dict[str, str], told: str):
    with pytest.raises(InputError, match=told):
        read_shard(text, environment)


def test_scripts_and_manifests_start_the_same_shards(tmp_path: Path):
    jobs = jobs_of(tmp_path, {"cpus": 3, "minutes": 90}, {"cpus": 2, "minutes": 9, "distributed": True})
    command = "python tools/evaluate.py --suite 'a b.yaml'"
    lines = export("commands", command, Path("/a b"), jobs, 4, 2).splitlines()
    assert lines == [f"(cd '/a b' && exec {command} --shard {k}/2)" for k in (1, 2)]
    script = export("slurm", command, Path("/a b"), jobs, 4, 2)
    options = re.findall(r"^#SBATCH --(\S+)$", script, re.MULTILINE)
    assert options == ["array=1-2", "cpus-per-task=3", "time=90", "requeue", "signal=B:TERM@120", "gpus-per-node=4"]
    job = yaml.safe_load(export("k8s", command, Path("/a b"), jobs, 4, 2))
    assert (job["kind"], job["spec"]["completions"], job["spec"]["completionMode"]) == ("Job", 2, "Indexed")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["sh", "-c", f"cd '/a b' && exec {command} --shard"]
    assert container["resources"]["limits"] == {"cpu": 3, "nvidia.com/gpu": 4}
    assert container["env"] == [{"name": "JOB_COMPLETIONS", "value": "2"}]
    assert "gpu" not in export("k8s", command, Path("/a b"), jobs[:1], 0, 2)


def test_what_is_exported_is_this_command_and_shards_meet_no_engine(tmp_path: Path):
    write_suite(tmp_path, {}, {}, {"needs": "task0"})
    weights, output = write_weights(tmp_path)[0], tmp_path / "out"
    words_ = ("--suite", tmp_path / "suite.yaml", "--weights", weights, "--output", output, "--gpus", "0")
    done = run_tool("evaluate", *words_, "--export", "commands")
    assert done.returncode == 0, done.stderr
    assert "2 shards: a line is a shard" in done.stdout
    lines = (output / "shards.sh").read_text().splitlines()
    assert len(lines) == 2
    assert f"--output {output} --gpus 0 --shard 2/2)" in lines[1]
    for more, told in (
        (("--on", "slurm", "--shard", "1/2"), "expected --shard for processes of this machine, found it with --on"),
        (("--cancel",), "expected --cancel with --on ENGINE"),
        (("--slurm", "--on", "ray"), "expected --slurm or --on ray, found both"),
        (("--shard", "3/2"), "expected --shard K/N with K from 1 to N"),
        (("--shard", "1/2", "--export", "k8s"), "expected --export, which numbers its shards, or --shard, found both"),
        (("--exp", "k8s"), "unrecognized arguments: --exp"),
        (("--on", ""), "expected --on local, slurm, ray or NAME:ADDRESS, found ''"),
    ):
        refused = run_tool("evaluate", *words_, *more)
        assert refused.returncode == 2
        assert told in refused.stderr
