"""The Slurm runner: the submission files that submitit makes for sbatch, and the whole path on stand-ins for Slurm."""

import json
import threading
from pathlib import Path

import pytest

from momentum_transfer.suites.job import Job
from momentum_transfer.suites.plan import plan
from momentum_transfer.suites.slurm import run_slurm
from momentum_transfer.suites.suite import load_suite
from tests.momentum_transfer.suites.suite_files import words, write_suite, write_weights

ROOT = Path(__file__).resolve().parents[3]

submitit = pytest.importorskip(
    "submitit", reason="submitit is the extra 'slurm': pip install 'momentum-transfer[slurm]'"
)

#: Takes a job as Slurm does: copies the script, answers with a number, and runs it once what it depends on ended well.
SBATCH = """#!/bin/sh
cd "$(dirname "$0")"
number=$(( $(ls *.state 2>/dev/null | wc -l) + 101 ))
cp "$1" "$number.sh"
echo PENDING > "$number.state"
(
  for other in $(sed -n 's/^#SBATCH --dependency=afterok://p' "$number.sh" | tr ':' ' '); do
    while grep -qE 'PENDING|RUNNING' "$other.state"; do sleep 0.05; done
    grep -q COMPLETED "$other.state" || { echo CANCELLED > "$number.state"; exit; }
  done
  echo RUNNING > "$number.state"
  export SLURM_JOB_ID=$number SLURM_NTASKS=1 SLURM_JOB_NUM_NODES=1 SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0
  bin=$PWD
  cd "$(sed -n 's/^#SBATCH --chdir=//p' "$number.sh")"
  if sh "$bin/$number.sh"; then echo COMPLETED; else echo FAILED; fi > "$bin/$number.state.new"
  mv "$bin/$number.state.new" "$bin/$number.state"
) < /dev/null > "$number.out" 2>&1 &
echo "Submitted batch job $number"
"""

SRUN = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do
  case $1 in --output|--error) shift 2 ;; *) shift ;; esac
done
exec "$@"
"""

SACCT = """#!/bin/sh
cd "$(dirname "$0")"
echo "JobID|State|NodeList"
for state in *.state; do echo "${state%.state}|$(cat "$state")|here"; done
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of stand-ins for sbatch, srun and sacct, first on the PATH."""
    folder = tmp_path / "slurm bin"
    folder.mkdir()
    for name, text in (("sbatch", SBATCH), ("srun", SRUN), ("sacct", SACCT)):
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return folder


def jobs_of(folder: Path, *tasks: dict) -> list[Job]:
    return plan(load_suite(write_suite(folder, *tasks)), write_weights(folder)[:1], folder / "out")


def test_submission_files_ask_for_what_the_task_needs(tmp_path: Path, slurm: Path):
    jobs = jobs_of(tmp_path, {"cpus": 3, "minutes": 90, "word": "fail"}, {"needs": "task0", "distributed": True})
    outcomes = run_slurm(jobs, tmp_path / "out", gpus=8, options={"partition": "gpu", "mem": "64G"}, poll=0.1)
    first, second = ((slurm / f"{number}.sh").read_text(encoding="utf-8") for number in (101, 102))
    for line in ("cpus-per-task=3", "time=90", "gpus-per-node=1", "partition=gpu", "mem=64G", f"chdir={ROOT}"):
        assert f"#SBATCH --{line}\n" in first
    assert "dependency" not in first
    for line in ("gpus-per-node=8", "dependency=afterok:101", "kill-on-invalid-dep=yes", "time=720"):
        assert f"#SBATCH --{line}\n" in second
    assert [outcome.status for outcome in outcomes] == ["failed", "not run"]


def test_needs_run_first_and_failures_are_told(tmp_path: Path, slurm: Path):
    tasks = ({}, {"needs": "task0"}, {"word": "fail"}, {"needs": "task2"})
    outcomes = run_slurm(jobs_of(tmp_path, *tasks), tmp_path / "out", gpus=0, options={}, poll=0.1)
    assert [outcome.status for outcome in outcomes] == ["done", "done", "failed", "not run"]
    assert outcomes[2].note == "exit code 3: boom: no such thing"
    assert words(tmp_path / "out") == ["word0", "word1"]
    assert "gpus" not in (slurm / "101.sh").read_text(encoding="utf-8")
    again = run_slurm(jobs_of(tmp_path, {}, {"needs": "task0"}), tmp_path / "out", gpus=0, options={}, poll=0.1)
    assert [outcome.status for outcome in again] == ["done before", "done before"]


def test_a_job_that_is_still_queued_is_found_again_and_not_submitted_twice(tmp_path: Path, slurm: Path):
    (job,) = jobs_of(tmp_path, {})
    job.remember()  # as an earlier call, now gone, left it; submitit remembers the numbers of other tests
    (job.folder / "slurm_job.txt").write_text(f"{job.key} 777\n", encoding="utf-8")
    (slurm / "777.state").write_text("RUNNING", encoding="utf-8")

    def end() -> None:
        job.remember(exit_code=0, seconds=7.0)
        (slurm / "777.state").write_text("COMPLETED", encoding="utf-8")

    timer = threading.Timer(1.0, end)
    timer.start()
    (outcome,) = run_slurm([job], tmp_path / "out", gpus=0, options={}, poll=0.1)
    timer.join()
    assert (outcome.status, outcome.seconds) == ("done", 7.0)
    assert not list(slurm.glob("*.sh"))  # sbatch was given nothing


def test_the_local_executor_runs_the_same_path(tmp_path: Path):
    tasks = ({}, {"needs": "task0"}, {"word": "fail"}, {"needs": "task2"})
    jobs = jobs_of(tmp_path, *tasks)
    outcomes = run_slurm(jobs, tmp_path / "out", gpus=0, options={}, cluster="local", poll=0.1)
    assert [outcome.status for outcome in outcomes] == ["done", "done", "failed", "not run"]
    assert json.loads((jobs[0].folder / "suite_state.json").read_text())["exit_code"] == 0
