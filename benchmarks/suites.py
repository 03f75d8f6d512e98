"""A suite of thousands of tasks from plan to page on stand-ins for Slurm and Ray; a results file of a million lines.

python benchmarks/suites.py [--checkpoints 1000] [--tasks 10]      (evaluate --on slurm from plan to page)
python benchmarks/suites.py --on ray                               (the same with --on ray)
python benchmarks/suites.py --records 1000000                      (report on a results file)

It reports the time on this machine, by the clock and of its processors, and the most memory that a process took. The
stand-in's sbatch answers with a number, and its squeue lets every job end well at once, with a state file and a record
each; no task's process runs. That of Ray is a module of its name, whose actor lives in the driver's process.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

from momentum_transfer.core.command import at_least, run_tool
from momentum_transfer.core.log import say
from momentum_transfer.core.records import make_record

SBATCH = """#!{python} -ES
import os
path = os.path.join(os.path.dirname(__file__), "number")
number = int(open(path).read()) + 1 if os.path.exists(path) else 1
open(path, "w").write(str(number))
print("Submitted batch job", number)
"""

SQUEUE = """#!{python} -ES
import json, os
output, line = {output!r}, {line!r}
with open(os.path.join(output, "results.jsonl"), "w") as records:
    for task in json.load(open(os.path.join(output, "plan.json")))["tasks"]:
        folder = os.path.join(output, task["folder"])
        os.makedirs(folder, exist_ok=True)
        state = dict(key=task["key"], exit_code=0, seconds=3.6, gpus=1, attempts=1)
        json.dump(state, open(os.path.join(folder, "suite_state.json"), "w"))
        record = json.loads(line)
        record.update(task=task["task"], value=50.0 + hash(task["weights"]) % 1000 / 100)
        record["checkpoint"] = dict(name=task["weights"], sha256=task["weights"])
        records.write(json.dumps(record) + "\\n")
"""

#: What the executor asks of Ray; ``wait`` lets every task end well.
RAY = """
import subprocess
class exceptions:
    class RayError(Exception): pass
    GetTimeoutError = ActorUnavailableError = TaskCancelledError = RayTaskError = RayError
class Made:
    def __init__(self, what): self.what = what
    def options(self, **words): return self
    def remote(self, *words): return Actor(self.what(*words)) if isinstance(self.what, type) else object()
class Actor:
    def __init__(self, inner): self.inner = inner
    def __getattr__(self, name): return Call(self.inner, name)
class Call:
    def __init__(self, inner, name): self.call = getattr(inner, name)
    def remote(self, *words): return self.call(*words)
actors = {{}}
class Named(Made):
    def options(self, name="", **words): self.name = name; return self
    def remote(self, *words): return actors.setdefault(self.name, super().remote(*words))
def init(*words, **more): pass
def nodes(): return [{{"Alive": True, "Resources": {{"CPU": 8.0, "GPU": 1.0}}}}]
def remote(what): return Named(what) if isinstance(what, type) else Made(what)
def get(value, timeout=0): return value
def get_actor(name): return actors[name]
def kill(actor): pass
def wait(refs, **more):
    subprocess.run([{squeue!r}], check=True)
    return list(refs), []
"""


def main(args: argparse.Namespace) -> None:
    """Run the one or the other, and say what it took."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.records:
            command = ["tools/report.py", str(_results(folder, args.records)), "--out", str(folder / "page.html")]
            what, environment = f"report on {args.records} records", dict(os.environ)
        else:
            command, environment = _suite(folder, args.checkpoints, args.tasks, args.on)
            what = f"evaluate --on {args.on} of {args.checkpoints * args.tasks} tasks"
        seconds, of_processors, mebibytes = _measured(command, environment)
    say(f"{what}: {seconds:.1f} s, {of_processors:.1f} s of processors, {mebibytes:.0f} MiB")


def _measured(command: Sequence[str], environment: Mapping[str, str]) -> tuple[float, float, float]:
    """Seconds of a tool by the clock and of processors, and the MiB of its largest process."""
    began = time.perf_counter()
    subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def _suite(folder: Path, checkpoints: int, tasks: int, on: str) -> tuple[list[str], dict[str, str]]:
    """The command that evaluates a suite whose second half of tasks each need one of the first, and its environment."""
    (folder / "tool.py").write_text("", encoding="utf-8")
    entries = [
        {"name": f"task{index}", "command": f"{folder}/tool.py {{weights}} {{results}} {index}", "gpu_hours": 0.001}
        | ({"needs": f"task{index - tasks // 2}"} if index >= (tasks + 1) // 2 and tasks > 1 else {})
        for index in range(tasks)
    ]
    (folder / "suite.yaml").write_text(json.dumps({"name": "many", "tasks": entries}), encoding="utf-8")  # is YAML
    weights = [folder / f"net{index:04}.pt" for index in range(checkpoints)]
    for path in weights:
        path.write_text(path.name, encoding="utf-8")
    output, programs = folder / "out", folder / "bin"
    programs.mkdir()
    line = json.dumps(_record("net", 0))
    for name, text in {
        "sbatch": SBATCH.format(python=sys.executable),
        "squeue": SQUEUE.format(python=sys.executable, output=str(output), line=line),
        "srun": "#!/bin/sh\n", "sacct": "#!/bin/sh\nexit 1\n", "sinfo": "#!/bin/sh\necho '8|(null)'\n",
        "scontrol": "#!/bin/sh\necho 'MaxArraySize = 1001'\n",
    }.items():  # fmt: skip
        (programs / name).write_text(text, encoding="utf-8")
        (programs / name).chmod(0o755)
    command = ["tools/evaluate.py", "--suite", str(folder / "suite.yaml"), "--output", str(output), "--on", on]
    (programs / "ray.py").write_text(RAY.format(squeue=str(programs / "squeue")), encoding="utf-8")
    path = os.pathsep.join(filter(None, [str(programs), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": path}
    return [*command, "--gpus", "1", "--weights", *map(str, weights)], environment


def _results(folder: Path, count: int) -> Path:
    """A results file: 100 checkpoints, ten trials each, as many tasks as it takes."""
    path = folder / "results.jsonl"
    with open(path, "w", encoding="utf-8") as stream:
        for index in range(count):
            record = _record(f"net{index % 100}", index // 100 % 10)
            record["task"], record["value"] = f"task{index // 1000}", 50.0 + index * 7919 % 1000 / 100
            stream.write(json.dumps(record, sort_keys=True) + "\n")
    return path


def _record(name: str, trial: int) -> dict[str, object]:
    return make_record(
        "task", "top1", 50.0, checkpoint={"name": name, "sha256": name}, network="teacher", trial=trial, seed=trial,
        protocol="many", config="0" * 12, engine="torch", dataset="imagenet",
    )  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=at_least(1), default=1000)
    parser.add_argument("--tasks", type=at_least(1), default=10, help="for each checkpoint")
    parser.add_argument("--on", choices=["slurm", "ray"], default="slurm", help="the engine that has a stand-in")
    parser.add_argument("--records", type=at_least(1), help="report on a file of N records instead of a suite")
    return parser


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
