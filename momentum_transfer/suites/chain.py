"""Chains of commands: what waits for what, several side by side, finished ones remembered, lines with their titles."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from momentum_transfer.core.command import Stopped
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import sha256_of_text, write_text
from momentum_transfer.core.log import say
from momentum_transfer.core.machine import available_cores
from momentum_transfer.core.shipped import started, typed, workplace
from momentum_transfer.core.untrusted import read_json
from momentum_transfer.suites.local import WarmCommand

_AGAIN = "the finished steps are kept; run the same command again to go on"


@dataclass(frozen=True)
class Step:
    """One command of the chain, and the titles of those whose files it reads.

    always: run again in every call, like the report of all others.
    """

    title: str
    command: list[str]
    needs: tuple[str, ...] = ()
    always: bool = False

    @property
    def key(self) -> str:
        """What a finished step is remembered by: its command."""
        return sha256_of_text(json.dumps(self.command))[:12]


def run_chain(chain: list[Step], memory: Path, jobs: int) -> float:
    """Run what is not yet done, at most ``jobs`` steps at a time; remember each finished one for a second call.

    Args:
        memory: JSON file of the finished steps, seconds by key. A step that is ``always`` runs in every call.

    Returns:
        The most memory that a process held, GiB.

    Raises:
        InputError: a step failed; those beside it are ended, after they saved.
        Stopped: by a signal, which the steps got too.
    """
    finished = _finished(memory)
    done = {step.title for step in chain if step.key in finished and not step.always}
    for title in (step.title for step in chain if step.title in done):
        say(f"{title}: done before")
    waiting, running, peak = [step for step in chain if step.title not in done], list[_Running](), 0.0
    try:
        while waiting or running:
            for step in [step for step in waiting if done.issuperset(step.needs)][: jobs - len(running)]:
                waiting.remove(step)
                say(f"[{len(chain) - len(waiting)}/{len(chain)}] {step.title}")
                say(f"  $ {typed(step.command)}")
                running.append(_Running(step, jobs))
            time.sleep(0.05)
            for ended in [one for one in running if one.process.poll() is not None]:
                running.remove(ended)
                finished[ended.step.key] = ended.seconds()
                peak = max(peak, ended.process.peak_gib())
                write_text(memory, json.dumps(finished, indent=1))
                done.add(ended.step.title)
    except KeyboardInterrupt:  # the terminal sent it to the steps too, which save and leave
        _wait(running)
        raise Stopped(f"stopped during {', '.join(one.step.title for one in running)}; {_AGAIN}", 130) from None
    finally:
        for one in running:
            one.process.terminate()
        _wait(running)
    return peak


class _Running:
    """A step's process; a thread says its lines, each after the title."""

    def __init__(self, step: Step, jobs: int) -> None:
        self.step, self._began = step, time.monotonic()
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        environment.setdefault("OMP_NUM_THREADS", str(max(1, available_cores() // jobs)))
        self.process = WarmCommand(started(step.command), workplace(), environment)
        self.lines = threading.Thread(target=self._say_lines, daemon=True)
        self.lines.start()

    def _say_lines(self) -> None:
        for line in self.process.stdout:
            say(f"{self.step.title} | {line.rstrip()}")

    def seconds(self) -> float:
        """How long the process, which has ended, took; raises where it did not end well."""
        self.lines.join()
        code, taken = self.process.returncode, round(time.monotonic() - self._began, 1)
        if code in (130, 143):
            raise Stopped(f"stopped during {self.step.title}; {_AGAIN}", code)
        if code:
            raise InputError(f"the step {self.step.title} ended with exit code {code} (see above); {_AGAIN}")
        say(f"{self.step.title}: {taken} s")
        return taken


def _wait(running: list[_Running]) -> None:
    for one in running:
        one.process.wait()
        one.lines.join()


def _finished(memory: Path) -> dict[str, float]:
    if not memory.is_file():
        return {}
    loaded = read_json(memory, "seconds by step")
    if not isinstance(loaded, dict) or not all(
        isinstance(value, (int, float)) and 0 <= value < 1e15 for value in loaded.values()
    ):
        raise InputError(f"expected seconds by step in {memory}, found something else; remove it to start over")
    return {str(key): float(value) for key, value in loaded.items()}
