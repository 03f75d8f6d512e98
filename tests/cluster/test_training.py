"""Real trainings on Slurm: put back into the queue they end in the same weights; processes by torchrun and by srun."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from tests.cluster.conftest import ROOT, Evaluation, ended
from tests.cluster.one_node import Cluster

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(900)]

CONFIG = "configs/smoke/momentum2_digits.yaml"
#: Some twenty seconds of one core.
SMALL = {"SOLVER.STEPS": 150, "RUN.CHECKPOINT_EVERY": 1000, "RUN.LOG_EVERY": 10, "DATA.WORKERS": 2}


def words(settings: dict) -> list[str]:
    return [word for key, value in settings.items() for word in (key, str(value))]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """The model of a run's last checkpoint."""
    last = (folder / "checkpoints" / "last").read_text().strip()
    state = torch.load(folder / "checkpoints" / last, weights_only=True)
    assert state["step"] == SMALL["SOLVER.STEPS"]
    return state["model"]


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    command = [sys.executable, "tools/pretrain.py", "--config", CONFIG, "OUTPUT_DIR", str(folder), "SEED", "0"]
    subprocess.run([*command, *words(SMALL)], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return folder


def steps_of(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return json.loads(lines[-1])["step"] if lines else 0


def test_a_sweeps_pretraining_that_is_put_back_ends_in_the_same_weights(cluster, tmp_path, uninterrupted):
    knn = "tools/lowshot.py knn --config configs/smoke/lowshot_digits.yaml --weights {weights} --results {results}"
    suite = Evaluation(cluster, tmp_path, [{"name": "knn", "command": knn, "cpus": 1}], weights=())
    content = yaml.safe_load((tmp_path / "suite.yaml").read_text())
    content["pretrain"] = {"config": CONFIG, "variants": {"m2": {}}, "seeds": [0], "settings": SMALL, "cpus": 1}
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(content))
    suite.command.remove("--weights")
    folder = suite.output / "pretrained" / "m2_seed0"
    waiting = suite.start()
    suite.wait_for(lambda: steps_of(folder) >= 20, 120)
    cluster.run("scontrol", "requeue", suite.submissions()[0]["number"])
    suite.wait_for(suite.hasten)
    code, said = ended(waiting)
    assert code == 0, said
    log = (folder / "log.txt").read_text()
    assert log.count("resumed ") == 1
    assert "SIGTERM received: finishing this step, then saving" in log
    assert_equal(weights(folder), weights(uninterrupted))
    records = [json.loads(line) for line in (suite.output / "results.jsonl").read_text().splitlines()]
    assert records
    assert all(record["hours"] > 0 and record["gpu_hours"] == 0 for record in records)
    page = (suite.output / "report.md").read_text()
    assert "Plan and truth" in page


class Batch:
    """A batch job that runs a pretraining, as a user writes it."""

    def __init__(self, cluster: Cluster, folder: Path, launcher: str, tasks: int, settings: dict) -> None:
        self.cluster, self.folder, self.log = cluster, folder / "run", folder / "job.log"
        training = ["tools/pretrain.py", "--config", CONFIG, "--resume", "OUTPUT_DIR", str(self.folder), "SEED", "0"]
        script = f"#!/bin/bash\nexport OMP_NUM_THREADS=1\nexec {launcher} {' '.join([*training, *words(settings)])}\n"
        (folder / "job.sh").write_text(script)
        self.number = cluster.run(
            "sbatch", "--parsable", f"--ntasks={tasks}", f"--chdir={ROOT}", f"--output={self.log}", "--requeue",
            "--open-mode=append", str(folder / "job.sh"),
        ).strip()  # fmt: skip

    def state(self) -> str:
        line = self.cluster.run("squeue", "--noheader", "--states=all", f"--jobs={self.number}", "--format=%T %r")
        return line.strip()

    def wait_for(self, *states: str, seconds: float = 240.0) -> None:
        deadline = time.monotonic() + seconds
        while self.state().split()[0] not in states:
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.3)

    def requeue(self) -> None:
        self.cluster.run("scontrol", "requeue", self.number)
        while self.state() != "PENDING BeginTime":
            time.sleep(0.2)
        self.cluster.run("scontrol", "update", f"jobid={self.number}", "starttime=now")


@pytest.mark.parametrize(
    ("launcher", "tasks"),
    [
        (f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node=2", 1),
        (f"srun --ntasks=2 {sys.executable}", 2),
    ],
    ids=["torchrun", "srun"],
)
def test_two_processes_train_together_and_go_on_after_a_requeue(cluster, tmp_path, launcher: str, tasks: int):
    batch = Batch(cluster, tmp_path, launcher, tasks, {**SMALL, "DATA.WORKERS": 0})
    while steps_of(batch.folder) < 20:
        assert batch.state().split()[0] in ("PENDING", "RUNNING", "CONFIGURING"), batch.log.read_text()
        time.sleep(0.3)
    batch.requeue()
    batch.wait_for("COMPLETED")
    log = batch.log.read_text()
    assert "32 x 2 processes" in log
    assert log.count("resumed ") == 1
    state = torch.load(batch.folder / "checkpoints" / "step_0000150.pt", weights_only=True)
    assert len(state["processes"]) == 2


def test_another_number_of_processes_goes_on_where_the_norm_allows_and_is_refused_elsewhere(cluster, tmp_path):
    for name, more, allowed in (
        ("bn", {}, False),
        ("gn", {"NORM.STUDENT": "GN", "NORM.TEACHER": "GN"}, True),
    ):
        (tmp_path / name).mkdir()
        settings = {**SMALL, **more, "DATA.WORKERS": 0}
        batch = Batch(cluster, tmp_path / name, f"srun --ntasks=2 {sys.executable}", 2, settings)
        while steps_of(batch.folder) < 20:
            time.sleep(0.3)
        cluster.run("scancel", batch.number)
        batch.wait_for("CANCELLED")
        while not (batch.folder / "checkpoints" / "last").exists():
            time.sleep(0.2)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "tools/pretrain.py", "--config", CONFIG, "--resume", "OUTPUT_DIR", str(batch.folder)]
        done = subprocess.run([*command, "SEED", "0", *words(settings)], cwd=ROOT, env=environment, text=True,
                              capture_output=True, check=False)  # fmt: skip
        if allowed:
            assert done.returncode == 0, done.stderr
            assert "goes on with 1 processes, the checkpoint had 2" in done.stderr
        else:
            assert done.returncode == 2
            assert (
                "expected 2 processes, as the checkpoint had, found 1: BN and MomentumBN would normalise" in done.stderr
            )
            assert "a process's 64 images instead of 32" in done.stderr
