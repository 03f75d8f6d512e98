"""Ray as an executor: one Ray task a task of the suite, with its CPUs and GPUs, after those that it needs.

An actor of its own holds the tasks of a submission, so that they outlive the call that submitted them; Ray starts it
again elsewhere if its node dies, and it submits what has not ended. A task whose node dies is tried again on another.
"""

import contextlib
import hashlib
import multiprocessing
import os
import re
import signal
import socket
import time
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from momentum_transfer.core.command import Stopped
from momentum_transfer.core.errors import AGAIN, InputError, extra, one_line
from momentum_transfer.core.log import say
from momentum_transfer.core.shipped import workplace
from momentum_transfer.suites.attempt import Attempt
from momentum_transfer.suites.executors import Seen, Setup, task_numbers
from momentum_transfer.suites.task import Job

NAMESPACE = "momentum-transfer"
#: How often a task may lose its node, or be asked to leave it, and go on.
_RETRIES = 1000
#: Seconds that Ray may take to answer: to start an actor of thousands of tasks, and to bring one back.
_PATIENCE = 120.0


class Ray:
    """A Ray cluster, asked by a process of our own, because Ray ends the one that is connected when its head is gone.

    ``executors.Executor`` says what the methods do.
    """

    name = "Ray"

    def __init__(self, setup: Setup) -> None:
        extra("ray", "Ray")
        self._output = setup.output
        spawn = multiprocessing.get_context("spawn")
        self._line, end = spawn.Pipe()
        spawn.Process(target=_serve, args=(end, setup), daemon=True).start()
        end.close()
        self._ask("connect")

    def gpus(self) -> int:
        return int(self._ask("largest", "GPU"))

    def submit(self, attempts: Sequence[Attempt], earlier: Mapping[str, str]) -> Iterator[tuple[str, list[Attempt]]]:
        mine: dict[str, Attempt] = {}
        for attempt in attempts:  # what needs a task of an earlier actor comes later
            if all(need.title in mine or need.done() for need in attempt.job.needs):
                mine[attempt.job.title] = attempt
        if not mine:
            return
        most, asked = max(1, int(self._ask("largest", "CPU"))), max(one.job.task.cpus for one in mine.values())
        if asked > most:  # it would wait for ever
            say(f"no node has the {asked} CPUs that the suite asks for; asking for {most}")
        number = hashlib.sha256(f"{self._output.resolve()} {time.time_ns()}".encode()).hexdigest()[:12]
        yield number, list(mine.values())  # before it is submitted: no call that is killed leaves tasks unknown
        self._ask("submit", number, list(mine.values()), min(asked, most))

    def look(self, numbers: Collection[str]) -> Mapping[str, Seen]:
        seen: Mapping[str, Seen] = self._ask("look", list(numbers))
        return seen

    def cancel(self, numbers: Iterable[str]) -> None:
        self._ask("cancel", list(numbers))

    def _ask(self, what: str, *words: Any) -> Any:
        """Stopped where Ray is gone: what runs saves and ends, and no other cluster knows of it."""
        try:
            self._line.send((what, words))
            answer = self._line.recv()
        except (EOFError, OSError):
            answer = ConnectionError("it has ended the process that was connected")
        if isinstance(answer, ConnectionError):
            raise Stopped(f"Ray gave no answer ({one_line(answer)}); if its head is gone, begin one again; {AGAIN}", 1)
        if isinstance(answer, Exception):
            raise answer
        return answer


def _serve(line: Connection, setup: Setup) -> None:
    """Answer what ``Ray`` asks, in a process of its own, until it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C means the process that asks
    with open(os.devnull, "wb") as nowhere:  # for what Ray writes when it ends this one
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    # Larger arguments, by default of 100 kB, are lost with this process, and the actor could not begin again.
    os.environ.setdefault("RAY_max_direct_call_object_size", str(8 << 20))
    cluster = Cluster(setup)
    with contextlib.suppress(EOFError):
        while True:
            line.send(cluster.answer(*line.recv()))


class Cluster:
    """The process that is connected to Ray."""

    def __init__(self, setup: Setup) -> None:
        self.ray, self.setup = extra("ray", "Ray"), setup

    def answer(self, what: str, words: Sequence[Any]) -> Any:
        """What a method returns, or its error: ConnectionError where Ray is gone, RuntimeError for a fault of ours."""
        errors = self.ray.exceptions
        try:
            return getattr(self, what)(*words)
        except InputError as error:
            return error
        except (errors.GetTimeoutError, errors.ActorUnavailableError):  # whose node died, and which comes back
            return InputError("expected an answer of Ray, found none yet.")
        except Exception as error:  # nothing else crosses to the process that asks
            ours = isinstance(error, errors.RayTaskError)  # a RayError too, of the actor's code
            gone = isinstance(error, (errors.RayError, ConnectionError)) and not ours
            return ConnectionError(one_line(error)) if gone else RuntimeError(traceback.format_exc())

    def connect(self) -> None:
        address = self.setup.address or os.environ.get("RAY_ADDRESS", "auto")
        try:
            if at := re.fullmatch(r"(?:ray://)?\[?([^/\]]+)\]?:(\d+)", address):  # for which Ray would wait for minutes
                socket.create_connection((at[1], int(at[2])), timeout=20).close()
            self.ray.init(address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
        except (OSError, RuntimeError, ValueError, self.ray.exceptions.RayError) as error:
            raise InputError(f"expected a Ray cluster at {address}, found {one_line(error)}; begin one with ray start "
                             "--head, or give --on ray:HOST:PORT") from error  # fmt: skip

    def largest(self, resource: str) -> float:
        """The most that a node has of it."""
        return max((node["Resources"].get(resource, 0.0) for node in self.ray.nodes() if node["Alive"]), default=0.0)

    def submit(self, number: str, attempts: Sequence[Attempt], cpus: int) -> None:
        keeper = self.ray.remote(Keeper).options(name=number, lifetime="detached", max_restarts=-1, num_cpus=0)
        keeper.remote(attempts, str(workplace()), cpus)

    def look(self, numbers: Sequence[str]) -> dict[str, Seen]:
        seen: dict[str, Seen] = {}
        for keeper in dict.fromkeys(number.partition("_")[0] for number in numbers):
            try:
                actor = self.ray.get_actor(keeper)
                states = self.ray.get(actor.states.remote(), timeout=_PATIENCE)
            except ValueError:  # no such actor: all its tasks have ended, or its cluster has
                continue
            for name, (state, alive) in zip(task_numbers(keeper, len(states)), states, strict=True):
                seen[name] = Seen(state, alive=alive)
            if not any(alive for _, alive in states):
                self.ray.kill(actor)
        return seen

    def cancel(self, numbers: Sequence[str]) -> None:
        for number in numbers:
            keeper, _, index = number.partition("_")
            with contextlib.suppress(ValueError):
                self.ray.get(self.ray.get_actor(keeper).cancel.remote(int(index or 0)), timeout=_PATIENCE)


class Keeper:
    """The actor that holds the tasks of one submission, needs first; made again after the loss of its node, it goes on.

    ``place``: the folder that tasks run in; ``cpus``: the most that one may ask for.
    """

    def __init__(self, attempts: Sequence[Attempt], place: str, cpus: int) -> None:
        import ray

        self.ray, self.jobs = ray, [attempt.job for attempt in attempts]
        os.chdir(place)
        self.refs: dict[str, Any] = {}
        for attempt in attempts:
            job = attempt.job
            if not job.ended() and all(need.title in self.refs or need.done() for need in job.needs):
                needs = [self.refs[need.title] for need in job.needs if need.title in self.refs]
                several = job.task.nodes > 1
                options = {"num_cpus": 0} if several else _asked(attempt, cpus)
                task = ray.remote(run_on_nodes if several else run_attempt)
                task = task.options(name=job.title, max_retries=_RETRIES, **options)
                self.refs[job.title] = task.remote(attempt, place, cpus, *needs)

    def states(self) -> list[tuple[str, bool]]:
        """(state, whether it is still to come) of every task."""
        refs = list(self.refs.values())
        ready = set(self.ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)[0]) if refs else set()
        return [self._state(job, ready) for job in self.jobs]

    def _state(self, job: Job, ready: set[Any]) -> tuple[str, bool]:
        ref = self.refs.get(job.title)
        if ref is None:
            return "ENDED", False
        if ref not in ready:
            return ("RUNNING" if "began" in job.state() else "PENDING"), True
        try:
            self.ray.get(ref)
        except self.ray.exceptions.TaskCancelledError:
            return "CANCELLED", False
        except self.ray.exceptions.RayError as error:
            return one_line(getattr(error, "cause", None) or error), False
        return "ENDED", False

    def cancel(self, index: int) -> None:
        """Interrupt a task, which lets it save; one that has not begun is taken from the queue."""
        if ref := self.refs.get(self.jobs[index].title):
            self.ray.cancel(ref)


def run_attempt(attempt: Attempt, place: str, _cpus: int, *_needs: None) -> None:
    """The Ray task of one attempt, begun once what it needs has ended well."""
    os.chdir(place)
    attempt()


def run_on_nodes(attempt: Attempt, place: str, cpus: int, *_needs: None) -> None:
    """The Ray task of a task on several nodes, which takes no CPU: one attempt on each, begun together.

    After the loss of a node all of them are begun again.
    """
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    nodes, asked = attempt.job.task.nodes, _asked(attempt, cpus)
    bundle = {"CPU": asked["num_cpus"], **({"GPU": asked["num_gpus"]} if asked["num_gpus"] else {})}
    while True:
        group = placement_group([bundle] * nodes, strategy="STRICT_SPREAD")
        ray.get(group.ready())
        refs = []
        for node in range(nodes):
            where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=node)
            task = ray.remote(run_attempt).options(max_retries=0, scheduling_strategy=where, **asked)
            attempt.node = node
            refs.append(task.remote(attempt, place, cpus))
        try:
            ray.get(refs)
            return
        except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError):
            say(f"{attempt.job.title}: a node is gone; beginning again on {nodes} nodes")
        finally:
            for ref in refs:
                ray.cancel(ref)
            remove_placement_group(group)


def _asked(attempt: Attempt, cpus: int) -> dict[str, int]:
    """CPUs and GPUs of a node that an attempt takes."""
    return {"num_cpus": min(cpus, attempt.job.task.cpus), "num_gpus": attempt.job.gpus(attempt.gpus)}
