"""Executors: engines that run a suite's tasks elsewhere, how they are found, and the wait until all tasks have ended.

An executor only starts attempts (``attempt.py``). How a task ended stands in its folder, what was submitted in OUTPUT,
and the executor is asked whether a task is still to come. So a call that finds tasks of an earlier one waits for them.
``slurm.py`` and ``on_ray.py`` are two; a package adds another by an entry point of the group ``ENTRY_POINTS``:

    [project.entry-points."momentum_transfer.executors"]
    lsf = "my_package.lsf:Lsf"
"""

import collections
import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Protocol

from momentum_transfer.core.command import Stopped, StopSignal, stop_signals
from momentum_transfer.core.errors import AGAIN, InputError, counted, missing_package, one_line
from momentum_transfer.core.files import append_whole
from momentum_transfer.core.log import PLAIN_INTERVAL, say, warn
from momentum_transfer.suites.attempt import Attempt, Outcome, done_before, last_lines, last_word, noted
from momentum_transfer.suites.task import Job

ENTRY_POINTS = "momentum_transfer.executors"
_OWN = {"slurm": "momentum_transfer.suites.slurm:Slurm", "ray": "momentum_transfer.suites.on_ray:Ray"}
#: What was submitted, a line a submission, in OUTPUT: {"number", "on", "jobs": [[title, key], …]}.
SUBMITTED = "submitted.jsonl"
#: Wait this many seconds after a task has left its engine for its end to appear: shared file systems lag.
SETTLE = 5.0


@dataclass(frozen=True)
class Seen:
    """Where a task is."""

    state: str  # as its engine calls it: PENDING where it is queued, CANCELLED…
    reason: str = ""
    alive: bool = True  # queued, running or coming back by itself
    advice: str = ""  # what the user may do


@dataclass(frozen=True)
class Setup:
    """What an executor is made with."""

    output: Path  # the suite's folder
    address: str = ""  # what the user wrote behind ``NAME:``
    options: Mapping[str, str] = field(default_factory=dict)  # of ``--sbatch``
    at_once: int | None = None  # tasks of one submission that may run at a time; None: as many as there is room for


class Executor(Protocol):
    """An engine, made with a ``Setup``; every method raises InputError where it does not answer, which is asked again.

    A submission has a ``number``; its one task has the same, of several task k has ``NUMBER_k``.
    """

    @property
    def name(self) -> str:
        """What messages call it."""

    def gpus(self) -> int:
        """GPUs of its largest node."""

    def submit(self, attempts: Sequence[Attempt], earlier: Mapping[str, str]) -> Iterator[tuple[str, list[Attempt]]]:
        """Submit attempts, needs first, and yield (number, attempts) after each submission, which is then noted.

        An attempt is called, in a process of its own, once ``attempt.job.needs`` ended well; it raises where its task
        failed. Those that are not yielded are offered again: an engine without dependencies takes an attempt when all
        its ``job.needs`` are ``done()``. ``earlier``: the numbers of tasks that still run, by title.
        """

    def look(self, numbers: Collection[str]) -> Mapping[str, Seen]:
        """The states of tasks by number; those that it knows no more may be missing."""

    def cancel(self, numbers: Iterable[str]) -> None:
        """Let tasks save and end (SIGTERM), and start those that have not begun no more."""


def executor_class(on: str) -> type:
    """The class of ``NAME`` or ``NAME:ADDRESS``; InputError lists those found, or says what to install."""
    found = {name: EntryPoint(name, value, ENTRY_POINTS) for name, value in _OWN.items()}
    found = {**found, **{point.name: point for point in entry_points(group=ENTRY_POINTS) if point.name not in found}}
    name = on.partition(":")[0]
    if name not in found:
        raise InputError(f"expected --on {', '.join(['local', *found])} or NAME:ADDRESS, found {on!r}; another package "
                         f"adds one by an entry point of the group {ENTRY_POINTS}")  # fmt: skip
    try:
        return found[name].load()
    except (ImportError, AttributeError, SyntaxError) as error:
        missing = missing_package(getattr(error, "name", "") or "")
        raise InputError(missing or f"expected the executor {name} in {found[name].value}, found {one_line(error)}; "
                         "install its package again") from error  # fmt: skip


def submitted(output: Path, on: str = "") -> dict[str, tuple[str, str]]:
    """Title -> (number, key) of the last submission of each task, to any engine or to the one called ``on``."""
    if not (output / SUBMITTED).is_file():
        return {}
    numbers: dict[str, tuple[str, str]] = {}
    for line in (output / SUBMITTED).read_bytes().splitlines():
        try:
            entry = json.loads(line)
            jobs = [(str(title), str(key)) for title, key in entry["jobs"]]
            number, engine = str(entry["number"]), str(entry["on"])
        except (ValueError, TypeError, KeyError, RecursionError):  # the half line of a killed call, or a damaged one
            continue
        if on in ("", engine):
            for (title, key), one in zip(jobs, task_numbers(number, len(jobs)), strict=True):
                numbers[title] = (one, key)
    return numbers


def task_numbers(number: str, count: int) -> list[str]:
    """The numbers of the ``count`` tasks of a submission."""
    return [number] if count == 1 else [f"{number}_{index}" for index in range(count)]


def run_on(executor: Executor, jobs: Sequence[Job], output: Path, *, gpus: int, poll: float = 15.0) -> list[Outcome]:
    """Run jobs on an engine: submit those that are neither done nor found there, and wait for all.

    Args:
        gpus: of a node, for tasks that are distributed; others take one.
        poll: longest pause between two looks, in seconds.

    Raises:
        InputError: the engine refuses a job, or a job with other settings is at work in a folder.
        Stopped: Ctrl-C or SIGTERM; the submitted jobs go on.
    """
    outcomes = done_before(jobs)
    to_do = [job for job in jobs if job.title not in outcomes]
    run = _Run(executor, output, gpus, poll)
    with stop_signals("the submitted jobs go on") as stop:
        run.find(to_do, stop)
        seen = run.wait(to_do, stop)
    for job in to_do:
        outcomes[job.title] = _outcome(job, executor.name, run.numbers.get(job.title, ""), seen, outcomes)
    return [outcomes[job.title] for job in jobs]


def cancel(executor: Executor, jobs: Sequence[Job], output: Path) -> int:
    """Cancel the tasks that an earlier call submitted and that are still to come; returns how many."""
    run = _Run(executor, output)
    run.find(jobs, StopSignal(), same=False)
    executor.cancel(run.numbers.values())
    return len(run.numbers)


@dataclass
class _Run:
    """One call of ``run_on``."""

    executor: Executor
    output: Path
    gpus: int = 0
    poll: float = 0.0
    numbers: dict[str, str] = field(default_factory=dict)  # of all submitted jobs, by title
    said: tuple[str, float] = ("", -PLAIN_INTERVAL)  # the last line on where the tasks are, and when
    warned: set[str] = field(default_factory=set)  # reasons for which a job may never start

    def find(self, jobs: Sequence[Job], stop: StopSignal, same: bool = True) -> None:
        """Take the ``numbers`` of jobs of an earlier call that are still queued or running.

        InputError if, with ``same``, such a job has other settings.
        """
        before = submitted(self.output, self.executor.name)
        known = [(job, *before[job.title]) for job in jobs if job.title in before]
        self.numbers = {job.title: number for job, number, _ in known}
        seen = self._look(self.numbers, stop)
        for job, number, key in known:
            if number not in seen or not seen[number].alive or job.ended():
                del self.numbers[job.title]
            elif same and key != job.key:
                raise InputError(f"expected no job at work in {job.folder}, found {self.executor.name} job {number} "
                                 "there with another command, weights or config; wait for its end, or end it by the "
                                 "same command with --cancel")  # fmt: skip
        if found := list(self.numbers.values()):
            more = f" and {len(found) - 5} more" if len(found) > 5 else ""
            say(f"{counted(len(found), 'task')} still in the queue or running: {', '.join(found[:5])}{more}")

    def wait(self, jobs: Sequence[Job], stop: StopSignal) -> dict[str, Seen]:
        """Submit jobs, as far as they are taken, until all have ended; returns their last states by title."""
        last: dict[str, Seen] = {}
        waiting = {job.title: job for job in jobs if job.title in self.numbers}
        left = [job for job in jobs if job.title not in waiting]
        for job in left:
            job.forget_end()
        doubted: dict[str, float] = {}
        began = time.monotonic()
        while waiting or left:
            left = self._submit(left, waiting, stop)
            answer = self._look(waiting, stop)
            for title, job in list(waiting.items()):
                seen = answer.get(self.numbers[title])
                last[title] = seen or last.get(title, Seen(""))
                if seen is not None and seen.alive:
                    doubted.pop(title, None)
                elif job.ended() or time.monotonic() - doubted.setdefault(title, time.monotonic()) >= SETTLE:
                    del waiting[title]
            self._show([*waiting, *(job.title for job in left)], answer, len(jobs))
            next_look = time.monotonic() + min(self.poll, max(1.0, (time.monotonic() - began) / 20))
            while waiting and time.monotonic() < next_look:
                _refuse_stop(stop, "waiting")
                time.sleep(0.1)
        return last

    def _submit(self, left: list[Job], waiting: dict[str, Job], stop: StopSignal) -> list[Job]:
        """Offer jobs to the engine, note what it takes and add it to ``waiting``; returns the rest that may still run.

        A job stays no longer when one of its needs ended otherwise than well.
        """
        may, offered = set(waiting), list[Attempt]()
        for job in left:
            if all(need.title in may or need.done() for need in job.needs):
                may.add(job.title)
                offered.append(Attempt(job, self.gpus))
        if not offered:
            return []
        _refuse_stop(stop, "submitting")
        for number, attempts in self.executor.submit(offered, {title: self.numbers[title] for title in waiting}):
            jobs = [attempt.job for attempt in attempts]
            entry = {"number": number, "on": self.executor.name, "jobs": [[job.title, job.key] for job in jobs]}
            with open(self.output / SUBMITTED, "ab", buffering=0) as stream:
                append_whole(stream, (json.dumps(entry) + "\n").encode(), self.output / SUBMITTED)
            own = task_numbers(number, len(jobs))
            for job, one in zip(jobs, own, strict=True):
                self.numbers[job.title], waiting[job.title] = one, job
            more = f" and {len(jobs) - 1} more: submitted as jobs {own[0]} to {own[-1]}"
            say(jobs[0].title + (more if len(jobs) > 1 else f": submitted as job {number}"))
            _refuse_stop(stop, "submitting")
        rest = [attempt.job for attempt in offered if attempt.job.title not in waiting]
        if rest and not waiting:
            raise InputError(f"expected {self.executor.name} to take {rest[0].title}, found that it takes none of "
                             f"{counted(len(rest), 'task')}; mend its submit()")  # fmt: skip
        return rest

    def _look(self, titles: Collection[str], stop: StopSignal) -> Mapping[str, Seen]:
        """The states of jobs by number; an engine that does not answer, as after the loss of a node, is asked again."""
        silent = False
        while titles:
            try:
                return self.executor.look([self.numbers[title] for title in titles])
            except InputError as error:
                if not silent:
                    warn(f"{error} Asking again.")
                silent = True
                time.sleep(5.0)
                _refuse_stop(stop, "waiting")
        return {}

    def _show(self, titles: Collection[str], answer: Mapping[str, Seen], total: int) -> None:
        """Log how many tasks are where, when that changes, and warn of those that may never start."""
        here = {title: answer.get(self.numbers[title], Seen("LEAVING")) if title in self.numbers
                else Seen("PENDING", "needs") for title in titles}  # fmt: skip
        pending = {title: one for title, one in here.items() if one.state == "PENDING"}
        others = collections.Counter(one.state.lower() for one in here.values() if one.state != "PENDING")
        parts = [f"{total - len(titles)} of {total} ended", *(f"{count} {state}" for state, count in others.items())]
        if pending:
            reasons = collections.Counter(one.reason or "no reason yet" for one in pending.values()).most_common()
            parts += [f"{len(pending)} queued ({', '.join(f'{reason} {count}' for reason, count in reasons)})"]
        line, now = f"{self.executor.name}: {', '.join(parts)}", time.monotonic()
        if line != self.said[0] and (now - self.said[1] >= PLAIN_INTERVAL or not titles):
            self.said = line, now
            say(line)
        for title, one in pending.items():
            if one.advice and one.reason not in self.warned:
                self.warned.add(one.reason)
                warn(f"{title}: job {self.numbers[title]} is queued and may stay so: {one.reason}: {one.advice}")


def _refuse_stop(stop: StopSignal, doing: str) -> None:
    if stop:
        raise Stopped(f"stopped {doing}, the submitted jobs go on; {AGAIN}", stop.exit_code)


def _outcome(job: Job, name: str, number: str, states: Mapping[str, Seen], outcomes: Mapping[str, Outcome]) -> Outcome:
    """How a job ended: by its own folder, else by the last state that its engine gave."""
    if failed := [need for need in job.needs if not outcomes[need.title].well]:
        return Outcome(job, "not run", note=f"{failed[0].task.name} did not end well")
    state, word = job.state(), states[job.title].state
    if job.ended():
        return noted(job, "done" if state["exit_code"] == 0 else "failed")
    if word.startswith("CANCELLED"):
        return noted(job, "cancelled", f"{name} job {number} was cancelled; the same command submits it again")
    how = f"ended as {word}" if word else "is gone from the queue"
    stopped = f", stopped by {state['stopped']}" if "stopped" in state else ""
    last = last_word(last_lines(job.log))
    return noted(job, "failed", f"{name} job {number} {how}{stopped}; its last line: {last}")
