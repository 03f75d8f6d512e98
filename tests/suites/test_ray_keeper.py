"""What the executor and its actor ask of Ray, on a stand-in that runs tasks at once; on Ray itself: test_on_ray.py."""

import errno
import re
import sys
import types
from pathlib import Path

import pytest

from momentum_transfer.core.command import Stopped
from momentum_transfer.core.errors import InputError
from momentum_transfer.suites import task
from momentum_transfer.suites.attempt import Attempt
from momentum_transfer.suites.executors import Setup, executor_class, run_on, submitted
from momentum_transfer.suites.on_ray import Cluster, Keeper
from momentum_transfer.suites.planning import plan
from momentum_transfer.suites.suite import load_suite
from momentum_transfer.suites.task import Job
from tests.suites.suite_files import words, write_suite, write_weights


class Ref:
    """The end of a task: its error, or None; a task after one that failed does not run."""

    def __init__(self, call, arguments) -> None:
        self.error = next((one.error for one in arguments if isinstance(one, Ref) and one.error), None)
        if self.error is None:
            try:
                call(*(None if isinstance(one, Ref) else one for one in arguments))
            except Exception as error:
                self.error = error


class StandIn(types.ModuleType):
    """The part of Ray that is used."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.asked: list[dict] = []
        self.actors: dict[str, object] = {}
        base = type("RayError", (Exception,), {})
        names = ("GetTimeoutError", "ActorUnavailableError", "TaskCancelledError", "RayTaskError")
        errors = {name: type(name, (base,), {}) for name in names}
        self.exceptions = types.SimpleNamespace(RayError=base, **errors)

    def init(self, address, **_) -> None:
        if address == "nowhere":
            raise ConnectionError("no cluster there\nat all")

    def nodes(self) -> list[dict]:
        return [
            {"Alive": True, "Resources": {"CPU": 4.0, "GPU": 2.0}},
            {"Alive": False, "Resources": {"CPU": 64.0}},
        ]

    def remote(self, what):
        return Remote(self, what)

    def get(self, ref, timeout=None):
        if isinstance(ref, Ref) and ref.error:
            error = self.exceptions.RayTaskError("a traceback\nof many lines")  # as Ray wraps what a task raised
            error.cause = ref.error
            raise error
        return ref

    def wait(self, refs, **_):
        return list(refs), []

    def get_actor(self, name):
        if name not in self.actors:
            raise ValueError(name)
        return self.actors[name]

    def kill(self, actor) -> None:
        self.actors = {name: one for name, one in self.actors.items() if one is not actor}


class Remote:
    def __init__(self, ray: StandIn, what, **options) -> None:
        self.ray, self.what, self.asked = ray, what, options

    def options(self, **options) -> "Remote":
        return Remote(self.ray, self.what, **options)

    def remote(self, *arguments):
        if not isinstance(self.what, type):
            self.ray.asked.append(self.asked)
            return Ref(self.what, arguments)
        keeper = self.what(*arguments)
        handle = types.SimpleNamespace(
            states=types.SimpleNamespace(remote=keeper.states), cancel=types.SimpleNamespace(remote=keeper.cancel)
        )
        self.ray.actors[self.asked["name"]] = handle
        return handle


class Line:
    """The pipe to the process that is connected, and that process, in this one."""

    def Pipe(self) -> tuple["Line", "Line"]:
        return self, self

    def Process(self, target, args, daemon) -> "Line":
        self.cluster = Cluster(args[1])
        return self

    def start(self) -> None: ...

    def close(self) -> None: ...

    def send(self, request) -> None:
        self.answer = self.cluster.answer(*request)

    def recv(self):
        return self.answer


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    made = StandIn()
    monkeypatch.chdir(Path.cwd())  # the actor goes to its own folder
    monkeypatch.setitem(sys.modules, "ray", made)
    monkeypatch.setattr("momentum_transfer.suites.executors.SETTLE", 0.0)
    processes = types.SimpleNamespace(get_context=lambda _: Line())
    monkeypatch.setattr("momentum_transfer.suites.on_ray.multiprocessing", processes)
    return made


def jobs_of(folder: Path, *tasks: dict) -> list[Job]:
    (folder / "out").mkdir(exist_ok=True)
    return plan(load_suite(write_suite(folder, *tasks)), write_weights(folder)[:1], folder / "out")


def test_tasks_ask_for_what_they_need_and_the_actor_ends_with_them(tmp_path: Path, ray: StandIn, capsys):
    jobs = jobs_of(tmp_path, {"cpus": 3}, {"needs": "task0"}, {"word": "fail"}, {"needs": "task2"})
    engine = executor_class("ray:somewhere")(Setup(tmp_path / "out", "somewhere"))
    assert engine.gpus() == 2
    outcomes = run_on(engine, jobs, tmp_path / "out", gpus=2, poll=0.0)
    assert [outcome.status for outcome in outcomes] == ["done", "done", "failed", "not run"]
    assert [(one["num_cpus"], one["num_gpus"]) for one in ray.asked] == [(3, 1), (4, 1), (4, 1), (4, 1)]
    assert words(tmp_path / "out") == ["word0", "word1"]
    assert "no node has the 8 CPUs that the suite asks for; asking for 4" in capsys.readouterr().out
    assert not ray.actors


def test_an_actor_that_is_made_again_repeats_nothing_that_ended_and_nothing_after_a_failure(tmp_path: Path, ray):
    jobs = jobs_of(tmp_path, {}, {"word": "fail"}, {"needs": "task1"}, {"needs": "task0"})
    attempts = [Attempt(job, 0) for job in jobs]
    for attempt, code in zip(attempts[:2], (0, 3), strict=True):
        attempt.job.folder.mkdir(parents=True)
        attempt.job.end(1.0, exit_code=code)
    jobs[0].results.touch()
    keeper = Keeper(attempts, str(tmp_path), 4)
    assert [state for state, _ in keeper.states()] == ["ENDED"] * 4
    assert words(tmp_path / "out") == ["word3"]


def test_a_submission_is_noted_before_it_is_made_so_that_a_killed_call_leaves_none_unknown(tmp_path, ray, monkeypatch):
    jobs, output, noted = jobs_of(tmp_path, {}), tmp_path / "out", []

    def killed(cluster: Cluster, number: str, *_: object) -> None:
        noted.append(submitted(output, "Ray")[jobs[0].title][0] == number)
        raise ConnectionError("killed")

    with monkeypatch.context() as patched, pytest.raises(Stopped):
        patched.setattr(Cluster, "submit", killed)
        run_on(executor_class("ray")(Setup(output)), jobs, output, gpus=0, poll=0.0)
    assert noted == [True]
    assert run_on(executor_class("ray")(Setup(output)), jobs, output, gpus=0, poll=0.0)[0].well
    assert words(output) == ["word0"]


def test_a_full_disk_on_which_a_task_cannot_begin_is_told(tmp_path: Path, ray, monkeypatch):
    jobs, output = jobs_of(tmp_path, {}), tmp_path / "out"

    def write(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(task, "write_text", write)
    (outcome,) = run_on(executor_class("ray")(Setup(output)), jobs, output, gpus=0, poll=0.0)
    assert outcome.status == "failed"
    assert re.search(r"ended as \[Errno 28\] No space left on device: .*suite_state\.json", outcome.note)


def test_a_task_belongs_to_the_suites_mlflow_run_where_the_worker_knows_none(tmp_path: Path, ray, monkeypatch):
    (job,) = jobs_of(tmp_path, {})
    (tmp_path / "tool.py").write_text(
        "import os, sys; open(sys.argv[1], 'w').write(os.environ['MOMENTUM_TRANSFER_MLFLOW_PARENT'])"
    )
    monkeypatch.setenv("MOMENTUM_TRANSFER_MLFLOW_PARENT", "0123")
    attempt = Attempt(job, 0)
    monkeypatch.delenv("MOMENTUM_TRANSFER_MLFLOW_PARENT")
    Keeper([attempt], str(tmp_path), 4)
    assert words(tmp_path / "out") == ["0123"]


def test_no_cluster_and_one_that_goes_away_are_one_line(tmp_path: Path, ray: StandIn, monkeypatch):
    with pytest.raises(InputError, match=r"expected a Ray cluster at nowhere, found no cluster there at all; begin"):
        executor_class("ray")(Setup(tmp_path, "nowhere"))
    engine = executor_class("ray")(Setup(tmp_path / "out"))

    def fail(error: Exception) -> None:
        def get(*_, **__):
            raise error

        monkeypatch.setattr(ray, "get", get)
        folder = tmp_path / type(error).__name__
        folder.mkdir()
        run_on(engine, jobs_of(folder, {}), folder / "out", gpus=0, poll=0.0)

    for gone in (ray.exceptions.RayError("no head"), ConnectionError("no head")):
        with pytest.raises(Stopped, match=r"Ray gave no answer \(no head\); if its head is gone, begin one again"):
            fail(gone)
    for ours in (ZeroDivisionError(), ray.exceptions.RayTaskError()):  # faults of this project are not taken for Ray's
        with pytest.raises(RuntimeError, match=type(ours).__name__):
            fail(ours)


def test_an_actor_that_is_being_made_again_is_asked_again(tmp_path: Path, ray: StandIn, monkeypatch, caplog):
    engine, true, asked = executor_class("ray")(Setup(tmp_path / "out")), ray.get, []

    def get(ref, timeout=None):
        asked.extend([ref] if isinstance(ref, list) else [])  # the states, not the end of a task
        if isinstance(ref, list) and len(asked) == 1:  # the first look after the submission
            raise ray.exceptions.ActorUnavailableError("restarting")
        return true(ref)

    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr("momentum_transfer.suites.executors.time.sleep", lambda _: None)
    with caplog.at_level("WARNING", "momentum_transfer"):
        (outcome,) = run_on(engine, jobs_of(tmp_path, {}), tmp_path / "out", gpus=0, poll=0.0)
    assert outcome.well
    assert "expected an answer of Ray, found none yet. Asking again." in caplog.text
