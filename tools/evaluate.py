"""Run a suite of evaluations on checkpoints, side by side; skips what is done, goes on after a failed task.

    python tools/evaluate.py --weights outputs/momentum2 outputs/random --suite configs/suites/quick.yaml
    python tools/evaluate.py --weights CKPT --suite configs/suites/full.yaml --dry-run
    python tools/evaluate.py --weights CKPT --suite configs/suites/full.yaml --slurm --gpus 8 --partition gpu

Records of all tasks go to OUTPUT/results.jsonl, the page to OUTPUT/report.html. Exit code 1 when a task failed.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from pretrain.console import run_tool, say, table
from transfer.suite import PIXELS, ROOT, Job, load_suite, plan
from transfer.suite_run import Outcome, full_command, run_local
from transfer.suite_slurm import run_slurm

#: What a task may leave in its folder for the report to show.
SHOWN = ("metrics.jsonl", "visuals", "trial_0", "conversion.json")


def main(args: argparse.Namespace) -> None:
    """Plan, run (or with --dry-run only show), tell how each task ended, report."""
    suite = load_suite(args.suite)
    output = _from_root(args.output or f"outputs/{suite.name}")
    weights = [word if word == PIXELS else str(_from_root(word)) for word in args.weights]
    os.chdir(ROOT)  # tasks run there, so that their commands can be typed again
    jobs = plan(suite, weights, output)
    if (left_out := len(suite.tasks) * len(set(weights)) - len(jobs)) > 0:
        say(f"{left_out} task(s) need converted weights and do not apply to {PIXELS}")
    gpus = args.gpus if args.gpus is not None else _gpus()
    if args.dry_run:
        show_plan(jobs, gpus)
        return
    output.mkdir(parents=True, exist_ok=True)
    if args.slurm:
        options = {"slurm_partition": args.partition} if args.partition else {}
        outcomes = run_slurm(jobs, output, gpus=gpus, options=options)
    else:
        outcomes = run_local(jobs, parallel=args.jobs, gpus=gpus)
    show_outcomes(outcomes)
    reported = report(output, jobs, weights)
    if not reported or not all(outcome.well for outcome in outcomes):
        raise SystemExit(1)


def show_plan(jobs: Sequence[Job], gpus: int) -> None:
    """Every job with its state, its command and its expected cost; measured times replace the suite's guess."""
    rows, total = [], 0.0
    for job in jobs:
        state, measured = job.state(), 0.0
        if state.get("exit_code") == 0 and "seconds" in state:
            measured = float(state["seconds"]) * max(1, gpus if job.task.distributed else 1) / 3600
        hours = 0.0 if job.done() else measured or job.task.gpu_hours
        total += hours
        rows.append([job.title, "done" if job.done() else "to do", f"{hours:.2f}", " ".join(job.task.needs)])
    table("plan", ["task", "state", "GPU hours", "after"], rows)
    for job in jobs:
        say(f"{job.title}\n  $ {' '.join(['python', *full_command(job, gpus)[1:]])}")
    say(f"{sum(not job.done() for job in jobs)} of {len(jobs)} tasks to do, {total:.1f} GPU hours expected")


def show_outcomes(outcomes: Sequence[Outcome]) -> None:
    """How each task ended, and the failures again with where to look."""
    table("tasks", ["task", "ended", "seconds"], [[o.job.title, o.status, f"{o.seconds:.0f}"] for o in outcomes])
    for outcome in outcomes:
        if not outcome.well:
            say(f"{outcome.status}: {outcome.job.title}, {outcome.note}; see {outcome.job.log}")


def report(output: Path, jobs: Sequence[Job], weights: Sequence[str]) -> bool:
    """Make the page of all records so far; whether that worked."""
    records = output / "results.jsonl"
    if not records.is_file():
        say(f"no task has written a record to {records}: no report")
        return False
    runs = [word for word in weights if Path(word).is_dir()]
    runs += sorted({str(job.folder.parent) for job in jobs if any((job.folder / name).exists() for name in SHOWN)})
    command = ["tools/report.py", str(records), "--runs", *runs, "--out", str(output / "report.html")]
    return subprocess.run([sys.executable, *command], cwd=ROOT, check=False).returncode == 0


def _from_root(path: str) -> Path:
    return Path(os.path.relpath(path, ROOT))


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"expected a count, found {text}")
    return number


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", nargs="+", required=True, metavar="CKPT", help="checkpoints, run folders, pixels")
    parser.add_argument(
        "--suite", required=True, metavar="YAML", help="configs/suites/full.yaml, quick.yaml, smoke.yaml"
    )
    parser.add_argument("--output", metavar="DIR", help="where everything goes (default: outputs/NAME OF THE SUITE)")
    parser.add_argument("--dry-run", action="store_true", help="print the plan with the expected GPU hours")
    parser.add_argument("--jobs", type=_count, default=1, help="tasks at a time on this machine (default: 1)")
    parser.add_argument("--gpus", type=_count, help="GPUs to use, for each job on Slurm (default: those found)")
    parser.add_argument("--slurm", action="store_true", help="one Slurm job a task (needs submitit)")
    parser.add_argument("--partition", help="Slurm partition")
    sys.exit(run_tool(parser, main))
