"""The whole chain on embedded data: pretrain, convert, detect, probe, report; in minutes on two cores.

    python tools/quickstart.py [--output outputs/quickstart] [--fresh] [--jobs N] [--dry-run]

It runs the commands that you would type, and prints each: for a Momentum² Teacher backbone, and for the same
architecture at random initialisation with calibrated BN statistics. Where there are two cores, two commands run side by
side, each line of theirs after its title. A killed quickstart goes on where it was.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from momentum_transfer.console import Stopped, run_tool, say
from momentum_transfer.errors import InputError
from momentum_transfer.files import sha256_of_text, write_text
from momentum_transfer.run_lock import alone
from momentum_transfer.shipped import started, typed, workplace

BACKBONES = ("momentum2_digits", "random_digits")
LOWSHOT = "configs/smoke/lowshot_digits.yaml"
_AGAIN = "the finished steps are kept; run the same command again to go on"


@dataclass(frozen=True)
class Step:
    """One command of the chain, and the titles of those whose files it reads."""

    title: str
    command: list[str]
    needs: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """What a finished step is remembered by: its command."""
        return sha256_of_text(json.dumps(self.command))[:12]


def steps(output: Path) -> list[Step]:
    """Every command of the chain in an order that may be kept as it is; the long ones early. Each resumes by itself."""
    results = ["--results", f"{output}/results.jsonl"]
    chain: list[Step] = []
    for name in BACKBONES:
        run = f"{output}/{name}"
        weights = f"{run}/backbone.pkl"
        pretrain = ["tools/pretrain.py", "--config", f"configs/smoke/{name}.yaml", "--resume", "OUTPUT_DIR", run]
        convert = ["tools/convert.py", run, weights, "--report", f"{run}/conversion.json"]
        detect = ["tools/transfer.py", "--config", "configs/smoke/mask_rcnn_digits.yaml", "--weights", weights]
        detect += ["--engine", "torchvision", "--resume", *results, "OUTPUT_DIR", f"{run}/mask_rcnn"]
        trained, converted = f"{name}: pretrain", f"{name}: convert to Detectron2 weights"
        chain += [
            Step(trained, pretrain),
            Step(converted, convert, (trained,)),
            Step(f"{name}: fine-tune Mask R-CNN", detect, (converted,)),
            *_probes(name, ["--config", LOWSHOT, "--weights", run, *results], (trained,)),
        ]
    chain += _probes("raw pixels", ["--config", LOWSHOT, "--weights", "pixels", *results], ())
    runs = [f"{output}/{name}" for name in BACKBONES]
    report = ["tools/report.py", f"{output}/results.jsonl", "--runs", *runs, "--out", f"{output}/report.html"]
    return [*chain, Step("report", report, tuple(step.title for step in chain))]


def _probes(name: str, arguments: list[str], needs: tuple[str, ...]) -> list[Step]:
    nearest = Step(f"{name}: kNN", ["tools/lowshot.py", "knn", *arguments], needs)
    return [nearest, Step(f"{name}: low-shot SVM", ["tools/lowshot.py", "svm", *arguments], (nearest.title,))]


def run_chain(chain: list[Step], output: Path, jobs: int) -> None:
    """Run what is not yet done, at most ``jobs`` steps at a time; remember each finished one for a second call.

    Raises:
        InputError: a step failed; those beside it are ended, after they saved.
        Stopped: by a signal, which the steps got too.
    """
    memory = output / "quickstart.json"
    finished = _finished(memory)
    done = {step.title for step in chain if step.key in finished and step.title != "report"}
    for title in (step.title for step in chain if step.title in done):
        say(f"{title}: done before")
    waiting, running = [step for step in chain if step.title not in done], list[_Running]()
    try:
        while waiting or running:
            for step in [step for step in waiting if done.issuperset(step.needs)][: jobs - len(running)]:
                waiting.remove(step)
                say(f"[{len(chain) - len(waiting)}/{len(chain)}] {step.title}\n  $ {typed(step.command)}")
                running.append(_Running(step, jobs))
            time.sleep(0.05)
            for ended in [one for one in running if one.process.poll() is not None]:
                running.remove(ended)
                finished[ended.step.key] = ended.seconds()
                write_text(memory, json.dumps(finished, indent=1))
                done.add(ended.step.title)
    except KeyboardInterrupt:  # the terminal sent it to the steps too, which save and leave
        _wait(running)
        raise Stopped(f"stopped during {', '.join(one.step.title for one in running)}; {_AGAIN}", 130) from None
    finally:
        for one in running:
            one.process.terminate()
        _wait(running)


class _Running:
    """A step's process; a thread says its lines, each after the title."""

    def __init__(self, step: Step, jobs: int) -> None:
        self.step, self._began = step, time.monotonic()
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        environment.setdefault("OMP_NUM_THREADS", str(max(1, _cores() // jobs)))
        self.process = subprocess.Popen(
            [sys.executable, *started(step.command)], cwd=workplace(), env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        )  # fmt: skip
        self.lines = threading.Thread(target=self._say_lines, daemon=True)
        self.lines.start()

    def _say_lines(self) -> None:
        for line in self.process.stdout or ():
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


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _finished(memory: Path) -> dict[str, float]:
    try:
        loaded = json.loads(memory.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"cannot read {memory}: {error}; start over with --fresh") from error
    if not isinstance(loaded, dict) or not all(isinstance(value, (int, float)) for value in loaded.values()):
        raise InputError(f"expected seconds by step in {memory}, found something else; start over with --fresh")
    return {str(key): float(value) for key, value in loaded.items()}


def main(args: argparse.Namespace) -> None:
    """Run, or with --dry-run only print, the chain."""
    if args.jobs < 1:
        raise InputError(f"expected --jobs of at least 1, found {args.jobs}")
    output = Path(os.path.relpath(args.output, workplace()))  # where the steps run
    if args.dry_run:
        for step in steps(output):
            say(typed(step.command))
        return
    os.chdir(workplace())
    if args.fresh and output.exists():
        with alone(output):  # not that of a quickstart which is under way
            pass
        shutil.rmtree(output)
    begun = time.monotonic()
    with alone(output):
        run_chain(steps(output), output, args.jobs)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / (2**20 if sys.platform != "darwin" else 2**30)
    say(f"quickstart took {time.monotonic() - begun:.0f} s; the largest process held {peak:.2f} GiB")
    say(f"report: {(output / 'report.html').resolve()}  (Markdown beside it; numbers in results.jsonl)")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--output", default="outputs/quickstart", help="where everything goes (default: %(default)s)")
    made.add_argument("--fresh", action="store_true", help="delete the output folder first")
    jobs = min(2, _cores())
    made.add_argument("--jobs", type=int, default=jobs, metavar="N", help="steps side by side (here: %(default)s)")
    made.add_argument("--dry-run", action="store_true", help="print the commands only")
    return made


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
