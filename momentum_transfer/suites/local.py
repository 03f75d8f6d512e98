"""Run the jobs of a suite as processes of this machine: alone, or as one of several shards that share its folder.

``evaluate … --shard K/N`` is one process of an LSF array, of an indexed Job of Kubernetes, or of a machine reached by
ssh; ``export`` writes what starts them all.

A job is taken by a file ``.claim.N`` in its folder, which only one process of all machines can create, whatever locks
the file system has. The next number is free once its owner is gone: a process of this machine that has ended, or one
elsewhere whose job's lock is not renewed any more. So shards take over what a killed one leaves.

A job on several nodes has a claim for each, and takes as many shards, which meet as ``attempt.py`` says.
"""

import contextlib
import json
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from momentum_transfer.core import run_lock
from momentum_transfer.core.command import Stopped, StopSignal, stop_signals
from momentum_transfer.core.errors import AGAIN, InputError, shown
from momentum_transfer.core.log import duration, say, standing
from momentum_transfer.suites.attempt import Outcome, alone, done_before, node_lock, note_end, noted, start, start_part
from momentum_transfer.suites.task import Job

_CLAIM = ".claim"
#: Seconds between two looks at jobs that others run.
_LOOK = 0.5


@dataclass(frozen=True)
class Shard:
    """Shard ``number``, from 1, of ``count``."""

    number: int
    count: int


def run_local(
    jobs: Sequence[Job], *, parallel: int = 1, gpus: int = 0, lock: int | None = None, shard: Shard | None = None
) -> list[Outcome]:
    """Run jobs as processes of this machine, at most ``parallel`` at a time, each on its own GPU where there are GPUs.

    A job that another process (of a shard, or an engine's) has taken is waited for. A ``shard`` begins at its own part
    of the jobs, goes on with what is left of the others', and repeats no job that failed.

    Args:
        lock: descriptor of the suite's lock, which the tasks inherit.

    Raises:
        Stopped: Ctrl-C or SIGTERM came; the running tasks got it too and had time to save.
    """
    run = _Run(jobs, parallel, gpus, lock, shard, done_before(jobs))
    for title in run.outcomes:
        say(f"{title}: done before")
    for job in (job for job in jobs if job.title not in run.outcomes):
        if job.state().get("exit_code") == 0 and not job.done():  # its records are gone
            job.forget_end()
    first = (shard.number - 1) * len(jobs) // shard.count if shard else 0
    run.waiting = [job for job in (*jobs[first:], *jobs[:first]) if job.title not in run.outcomes]
    with stop_signals("waiting for the running tasks to save") as stop, standing(run.say_stand):
        try:
            run.to_the_end(stop)
        finally:
            run.end_running()
    return [run.outcomes[job.title] for job in jobs]


@dataclass
class _Run:
    """One call of ``run_local``: the outcomes by title, and the task of each slot."""

    jobs: Sequence[Job]
    parallel: int
    gpus: int
    lock: int | None
    shard: Shard | None
    outcomes: dict[str, Outcome]
    waiting: list[Job] = field(default_factory=list)
    running: dict[int, "_Running"] = field(default_factory=dict)

    def say_stand(self) -> None:
        seconds = ", ".join(sorted(duration(time.monotonic() - task.began) for task in list(self.running.values())))
        running = f"{len(self.running)} running ({seconds} so far)" if seconds else "others run here or elsewhere"
        say(f"{len(self.outcomes)} of {len(self.jobs)} tasks ended, {running}")

    def to_the_end(self, stop: StopSignal) -> None:
        """Start jobs as slots are free until all have ended."""
        next_look = 0.0
        while self.waiting or self.running:
            if stop:
                raise Stopped(f"stopped; {AGAIN}", stop.exit_code)
            for slot in [slot for slot, task in self.running.items() if task.process.poll() is not None]:
                task = self.running.pop(slot)
                if outcome := task.outcome():
                    self.outcomes[task.job.title] = outcome
                else:
                    self.waiting.insert(0, task.job)
                next_look = 0.0
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + _LOOK
                for task in self.running.values():
                    if task.node is not None and self._in_vain(task):
                        task.process.terminate()
                for slot in range(self.parallel):
                    if slot not in self.running and not self._start_next(slot):
                        break  # there is nothing to start
            time.sleep(0.05)

    def _start_next(self, slot: int) -> bool:
        """Start the next job that may be; those that cannot run any more get their outcome on the way."""
        for job in sorted(self.waiting, key=self._turn):
            needs = [self.outcomes.get(need.title) for need in job.needs]
            if failed := [need.job.task.name for need in needs if need is not None and not need.well]:
                self._leave(Outcome(job, "not run", note=f"{failed[0]} did not end well"))
            elif None not in needs and not self._ended_elsewhere(job) and self._start(job, slot):
                return True
        return False

    def _start(self, job: Job, slot: int) -> bool:
        """Start a job, or be a node of one on several, unless others have it, or have just ended it."""
        several = self.shard is not None and job.task.nodes > 1
        with contextlib.ExitStack() as held:
            node = next((node for node in range(job.task.nodes if several else 1) if _claim(job, held, node)), None)
            if node is None:
                return False
            locks: tuple[int, ...] = () if self.lock is None else (self.lock,)
            if not several:
                try:
                    locks += (held.enter_context(alone(job.folder, patience=0.0, name=node_lock(0))),)
                except InputError:  # an engine's attempt, or a task of a killed run that still saves
                    return False
            if self._ended_elsewhere(job):
                return False
            if several:
                say(f"{job.title}: node {node} of {job.task.nodes}, which begins when all are there")
                process, spent = start_part(job, self.gpus, node), 0.0
            else:
                say(f"{job.title}: running, output in {job.log}")
                device = slot % self.gpus if self.parallel > 1 and self.gpus else None
                process, spent = start(job, min(self.gpus, 1) if self.parallel > 1 else self.gpus, device, locks)
            part = node if several else None
            self.running[slot] = _Running(job, process, time.monotonic(), spent, held.pop_all(), part)
            self.waiting.remove(job)
            return True

    def _turn(self, job: Job) -> int:
        """0 for a job on several nodes that lacks some, 2 for one that has none yet, 1 for all others."""
        if self.shard is None or job.task.nodes == 1:
            return 1
        return 0 if 0 < sum(_claimed(job, node) for node in range(job.task.nodes)) < job.task.nodes else 2

    def _in_vain(self, task: "_Running") -> bool:
        """Whether a node waits for a first that is gone, or for others while an earlier job of the plan does too."""
        if task.node:
            return not _claimed(task.job)
        earlier = [job for job in self.jobs[: self.jobs.index(task.job)] if job.title not in self.outcomes]
        return self._turn(task.job) == 0 and any(self._turn(job) == 0 for job in earlier)

    def _leave(self, outcome: Outcome) -> None:
        self.outcomes[outcome.job.title] = outcome
        self.waiting.remove(outcome.job)

    def _ended_elsewhere(self, job: Job) -> bool:
        """Whether another process has run the job to its end, which is then its outcome here."""
        outcome = noted(job, "done" if job.done() else "failed")
        if not outcome.well and not (self.shard and job.state().get("exit_code", 0)):
            return False
        if "no space left" in outcome.note.lower():  # on the disk of that node, or then
            return False
        self._leave(outcome)
        say(f"{job.title}: {outcome.status} elsewhere")
        return True

    def end_running(self) -> None:
        """Ask the running tasks to stop, give them time to save, then insist."""
        with contextlib.ExitStack() as ends:  # of each, whatever becomes of the others
            for task in self.running.values():
                task.process.terminate()
                ends.callback(task.end)


@dataclass(frozen=True)
class _Running:
    """A task's process, or that of its part on a ``node``; its claim is held."""

    job: Job
    process: subprocess.Popen[bytes]
    began: float  # by the monotonic clock
    spent: float  # seconds of earlier attempts
    held: contextlib.ExitStack
    node: int | None = None

    def end(self) -> None:
        code = None
        try:
            self.process.wait(timeout=120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            code = -signal.SIGTERM  # our kill says nothing of the task, which goes on next time
        self.outcome(code)

    def outcome(self, code: int | None = None) -> Outcome | None:
        """Note and log how it ended, by its exit code; None for a node's part, whose end is in the job's folder."""
        with self.held:
            if self.node is not None:
                return None
            code = self.process.returncode if code is None else code
            return note_end(self.job, code, time.monotonic() - self.began, self.spent)


def _claim(job: Job, held: contextlib.ExitStack, node: int = 0) -> bool:
    """Claim a job, or a node's part in it, until ``held`` is closed; False where another has it."""
    job.folder.mkdir(parents=True, exist_ok=True)
    older = _claims(job, node)
    if _claimed(job, node):
        return False
    claim = job.folder / f"{_CLAIM}{node or ''}.{max(older, default=0) + 1}"
    try:
        with open(claim, "x", encoding="utf-8") as stream:
            held.callback(claim.unlink, missing_ok=True)  # also where the disk is full
            stream.write(run_lock.signature())
    except FileExistsError:
        return False
    for path in older.values():  # of those that are gone
        path.unlink(missing_ok=True)
    return True


def _claims(job: Job, node: int) -> dict[int, Path]:
    paths = job.folder.glob(f"{_CLAIM}{node or ''}.*")
    return {int(path.suffix[1:]): path for path in paths if path.suffix[1:].isdecimal()}


def _claimed(job: Job, node: int = 0) -> bool:
    """Whether the process that made the last claim is at work, as far as can be seen from here."""
    found = _claims(job, node)
    return bool(found) and run_lock.alive(found[max(found)], job.folder / node_lock(node))


#: Variables of array jobs: of the index, of how many there are, of the first index, else that index itself.
#: Kubernetes does not say how many completions an indexed Job has; the manifest that is written here does.
_ARRAYS = (
    ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN", 1),
    ("LSB_JOBINDEX", "LSB_JOBINDEX_END", "", 1),
    ("JOB_COMPLETION_INDEX", "JOB_COMPLETIONS", "", 0),
)


def read_shard(text: str, environment: Mapping[str, str]) -> Shard:
    """``K/N``, or by the variables of an array job where the text is empty; InputError if K is not of 1 to N."""
    text = text or _of_array(environment)
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise InputError(f"expected --shard K/N with K from 1 to N, found {shown(text)}; the first of three is 1/3")
    return Shard(int(found[1]), int(found[2]))


def _of_array(environment: Mapping[str, str]) -> str:
    for index, count, first, otherwise in _ARRAYS:
        if index in environment:
            values = environment[index], environment.get(count, ""), environment.get(first, str(otherwise))
            if not all(value.isascii() and value.isdecimal() for value in values):
                raise InputError(f"expected numbers in {index} and {count}, found {values[0]!r} and {values[1]!r}; "
                                 "give --shard K/N")  # fmt: skip
            return f"{int(values[0]) - int(values[2]) + 1}/{values[1]}"
    listed = " or ".join(f"{index} with {count}" for index, count, _, _ in _ARRAYS)
    raise InputError(f"expected --shard K/N, or {listed} in the environment, found none; give --shard K/N")


#: What --export takes -> the file's suffix, and how it is started.
KINDS = {
    "commands": (".sh", "a line is a shard: give each to a machine (ssh), or to an array job (LSF)"),
    "k8s": (".yaml", "set image and volume, then kubectl apply -f"),
    "slurm": (".sbatch", "sbatch, from a machine of the cluster"),
}


def export(kind: str, command: str, place: Path, jobs: Sequence[Job], gpus: int, count: int) -> str:
    """The script or manifest that runs a plan in ``count`` shards, each with what its largest task needs.

    Args:
        kind: one of ``KINDS``.
        command: of evaluate, as typed in the folder ``place``.
        gpus: of a node, for tasks that are distributed; others take one.
    """
    cpus = max(job.task.cpus for job in jobs)
    minutes, gpus = max(job.task.minutes for job in jobs), max(job.gpus(gpus) for job in jobs)
    begin = f"cd {shlex.quote(str(place))} && exec {command} --shard"
    if kind == "commands":
        return "".join(f"({begin} {number}/{count})\n" for number in range(1, count + 1))
    if kind == "slurm":
        options = [f"array=1-{count}", f"cpus-per-task={cpus}", f"time={minutes}", "requeue", "signal=B:TERM@120"]
        options += [f"gpus-per-node={gpus}"] if gpus else []
        return "#!/bin/sh\n" + "".join(f"#SBATCH --{option}\n" for option in options) + begin + "\n"
    needs = {"cpu": cpus, **({"nvidia.com/gpu": gpus} if gpus else {})}
    return _K8S.format(count=count, script=json.dumps(begin), needs=json.dumps(needs), place=json.dumps(str(place)))


#: A shard that fails has logged why and repeats nothing; one whose node goes away is started again.
_K8S = """\
apiVersion: batch/v1
kind: Job
metadata: {{name: momentum-transfer}}
spec:
  completionMode: Indexed
  completions: {count}
  parallelism: {count}
  backoffLimitPerIndex: 5
  podFailurePolicy:
    rules:
      - {{action: Ignore, onPodConditions: [{{type: DisruptionTarget}}]}}
      - {{action: FailIndex, onExitCodes: {{operator: In, values: [1, 2]}}}}
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 150
      containers:
        - name: shard
          image: momentum-transfer
          command: [sh, -c, {script}]
          env: [{{name: JOB_COMPLETIONS, value: "{count}"}}]
          resources: {{requests: {needs}, limits: {needs}}}
          volumeMounts: [{{name: work, mountPath: {place}}}, {{name: memory, mountPath: /dev/shm}}]
      volumes:
        - {{name: work, persistentVolumeClaim: {{claimName: momentum-transfer}}}}
        - {{name: memory, emptyDir: {{medium: Memory}}}}
"""
