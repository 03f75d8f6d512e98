"""The cluster of the tests marked ``slurm``: brought up once, taken down at the end; skipped without Slurm."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.cluster.one_node import Cluster, missing, one_node

ROOT = Path(__file__).resolve().parents[2]
TASK = "tests/cluster/counting_task.py {folder} {results} {weights}"


@pytest.fixture(scope="session")
def cluster():
    if reason := missing():
        pytest.skip(reason)
    pytest.importorskip("submitit", reason="submitit is the extra 'slurm': pip install 'momentum-transfer[slurm]'")
    with one_node(cpus=8) as made:
        yield made


class Evaluation:
    """``evaluate --slurm`` of a suite in a folder, as often as it is called."""

    def __init__(self, cluster: Cluster, folder: Path, tasks: list[dict], weights: tuple[str, ...] = ("pixels",)):
        self.cluster, self.folder, self.output = cluster, folder, folder / "out"
        suite = folder / "suite.yaml"
        suite.write_text(yaml.safe_dump({"name": "slurm", "tasks": tasks}), encoding="utf-8")
        self.command = [sys.executable, "tools/evaluate.py", "--suite", str(suite), "--weights", *weights]
        self.command += ["--output", str(self.output), "--slurm"]

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.command, *words], cwd=ROOT, env=self.cluster.environment, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, *words: str) -> tuple[int, str]:
        return ended(self.start(*words))

    def state(self, task: str, weights: str = "pixels") -> dict:
        path = self.output / weights / task / "suite_state.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def log(self, task: str, weights: str = "pixels") -> str:
        path = self.output / weights / task / "log.txt"
        return path.read_text() if path.exists() else ""

    def records(self) -> Counter:
        path = self.output / "results.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return Counter((r["task"], r["checkpoint"]["name"]) for r in map(json.loads, lines))

    def submissions(self) -> list[dict]:
        return [json.loads(line) for line in (self.output / "submitted.jsonl").read_text().splitlines()]

    def hasten(self) -> bool:
        """Let jobs that were put back begin now: Slurm keeps them for two minutes, in which their credentials end."""
        listed = self.cluster.run("squeue", "--noheader", "--states=PENDING", "--format=%i %r")
        held = [line.split()[0] for line in listed.splitlines() if line.split()[1] == "BeginTime"]
        for number in held:
            self.cluster.run("scontrol", "update", f"jobid={number}", "starttime=now", check=False)
        return bool(held)

    def wait_for(self, condition: Callable[[], object], seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.cluster.run("squeue", "--states=all", check=False)
            time.sleep(0.1)


def ended(process: subprocess.Popen[str], seconds: float = 280.0) -> tuple[int, str]:
    """The exit code and all output of a process; killed where it takes longer."""
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    print(said)
    return process.returncode, said


@pytest.fixture
def evaluation(cluster: Cluster, tmp_path: Path):
    """``evaluation(task, …)``: tasks as (name, count, changes…)."""

    def make(*tasks: dict, weights: tuple[str, ...] = ("pixels",)) -> Evaluation:
        made = [
            {"command": f"{TASK} {task['name']} {task.pop('count', 10)} {task.pop('word', '')}", "cpus": 1, **task}
            for task in tasks
        ]
        return Evaluation(cluster, tmp_path, made, weights)

    yield make
    cluster.run("scancel", f"--user={os.getuid()}", check=False)
