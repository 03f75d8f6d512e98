"""Run a suite of evaluations on several checkpoints, here or on Slurm; what is done is skipped.

    python tools/evaluate.py --weights outputs/momentum2 outputs/random --suite configs/suites/quick.yaml
    python tools/evaluate.py --weights CKPT --suite configs/suites/full.yaml --dry-run       (--preset m2: as Momentum²)
    python tools/evaluate.py --suite configs/suites/study_batch.yaml     (a sweep: it pretrains first)
    python tools/evaluate.py --plan --detect 0.3 --sigma 0.2        (how many seeds show a difference of 0.3 points?)
    python tools/evaluate.py --weights CKPT --suite configs/suites/full.yaml --slurm --gpus 8 --sbatch partition=gpu

Records of all tasks go to OUTPUT/results.jsonl, the page to OUTPUT/report.html. Exit code 1 if a task failed. The same
command resumes a stopped or killed suite. --slurm (--on slurm) submits one job a task through submitit (pip install
".[slurm]"), waits for all, and makes the page; run again, it finds the jobs still queued. Preempted, requeued and
timed-out jobs resume (docs/cluster.md); tools/status.py shows where the tasks are. --on ray does so on a Ray cluster.

    python tools/evaluate.py --weights CKPT --suite full --shard 2/4       (one of four processes that share OUTPUT)
    python tools/evaluate.py --weights CKPT --suite full --export k8s      (a manifest of such shards, in OUTPUT)
"""

import argparse
import contextlib
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

if not __package__:  # python tools/NAME.py
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from momentum_transfer.core.command import above_0, at_least, own_file, run_tool
from momentum_transfer.core.errors import InputError, counted
from momentum_transfer.core.files import RANDOM_OF, given_name, is_hub_name, is_made, write_text
from momentum_transfer.core.log import say, silent, table, warn
from momentum_transfer.core.loggers import suite_run
from momentum_transfer.core.shipped import started, typed, workplace
from momentum_transfer.core.urls import check_store, copy_out
from momentum_transfer.suites.attempt import Outcome, alone
from momentum_transfer.suites.executors import Executor, Setup, cancel, executor_class, run_on
from momentum_transfer.suites.local import KINDS, export, read_shard, run_local
from momentum_transfer.suites.planning import LISTED, Expected, expected, plan, read_measured, select, show_plan
from momentum_transfer.suites.preflight import Shared, preflight, refuse
from momentum_transfer.suites.progress import write_plan
from momentum_transfer.suites.slurm import OURS, Slurm
from momentum_transfer.suites.suite import Suite, load_suite
from momentum_transfer.suites.task import NO_FILES, PRETRAIN, Job
from momentum_transfer.tools import convert, lowshot, transfer

#: Tools whose commands are checked before a suite starts.
TOOLS = {"convert": convert, "lowshot": lowshot, "transfer": transfer}
#: Files of a task that the report shows.
_SHOWN = ("suite_state.json", "metrics.jsonl", "visuals", "trial_0", "conversion.json")


def main(args: argparse.Namespace) -> None:
    if args.plan or args.detect is not None or args.sigma is not None:
        _show_seeds(args)
        return
    if not args.suite:
        raise InputError("expected --suite YAML, found none; for example --suite configs/suites/quick.yaml")
    suite = load_suite(args.suite)
    suite = replace(suite, tasks=select(suite.tasks, args.tasks, args.skip))
    shard = None if args.shard is None else read_shard(args.shard, os.environ)
    output = _from_root(args.output or f"outputs/{suite.name}")
    weights = [_weights_from_root(name) for name in args.weights or suite.weights]
    place = Path.cwd()
    os.chdir(workplace())  # tasks run there, so that their commands can be typed again
    names = ", ".join([*(["its own pretrainings"] if suite.sweep else []), *map(given_name, weights)])
    say(f"suite {suite.name}: {len(suite.tasks)} tasks for each of {names or 'no checkpoint'}; output in {output}")
    if args.copy_to and not args.export:
        check_store(args.copy_to)
    engine = _engine(args, output)
    shared = Shared()
    jobs = plan(suite, weights, output, args.preset, shared.backbone)
    if args.cancel and engine is not None:
        say(f"cancelled: {counted(cancel(engine, jobs, output), 'task')}")
        return
    _check_pretrainings(suite)
    for name in (name for name in NO_FILES if name in weights):
        if (left_out := len(suite.tasks) - sum(job.weights == name for job in jobs)) > 0:
            say(f"left out for {name}, because they need converted weights: {counted(left_out, 'task')}")
    gpus = _gpus(args, engine)
    costs = expected(jobs, gpus, read_measured(args.measured) if args.measured else None)
    if args.dry_run:
        show_plan(jobs, costs, gpus, args.price)
    found = preflight(jobs, TOOLS, shared)
    if isinstance(engine, Slurm) and "time" not in engine.setup.options:
        _warn_of_limits([(job, costs[job.title]) for job in jobs])
    # --export: as many shards as --jobs says, or as tasks may begin side by side, on all their nodes.
    shards = args.jobs or max(sum(not job.needs for job in jobs), *(job.task.nodes for job in jobs))
    shards = shard.count if shard else shards
    apart = shard is not None or bool(args.export)
    if several := [job for job in jobs if apart and job.task.nodes > shards and not job.done()]:
        found["nodes", f"expected a shard for each node, found {shards}; begin more"] = several
    refuse(found, elsewhere=engine is not None or bool(args.export))
    if args.dry_run:
        return
    if args.export:
        _export(args, output, place, jobs, gpus, shards)
        return
    with alone(output) if shard is None else contextlib.nullcontext() as lock, suite_run(output):
        suite.write_description(output)
        write_plan(output, jobs, costs)
        if engine is not None:
            outcomes = run_on(engine, jobs, output, gpus=gpus)
        else:
            outcomes = run_local(jobs, parallel=args.jobs or 1, gpus=gpus, lock=lock, shard=shard)
        _show_outcomes(outcomes)
        reported = _report(args, output, jobs, weights)
    if not reported or not all(outcome.well for outcome in outcomes):
        raise SystemExit(1)


def _warn_of_limits(plan: Sequence[tuple[Job, Expected]]) -> None:
    """Name a task that is expected to take longer than Slurm will let it run at a time."""
    long = [(job, cost) for job, cost in plan if 60 * cost.hours > job.task.minutes]
    for job, cost in long[:1]:
        others = f" (and {counted(len(long) - 1, 'other task')})" if long[1:] else ""
        hours = f"{cost.hours:.1f} hours are expected ({cost.source}), {job.task.minutes} minutes at a time"
        warn(f"{job.title}{others}: {hours}; it saves before each limit; or raise minutes:, or --sbatch time=")


def _engine(args: argparse.Namespace, output: Path) -> Executor | None:
    """The engine of --on, or of --slurm; None for this machine. InputError for options that do not go together."""
    on = args.on if args.on is not None else "slurm" if args.slurm else "local"
    if args.slurm and on != "slurm":
        raise InputError(f"expected --slurm or --on {on}, found both; leave one out")
    options = _sbatch_options(args, on)
    if args.export and args.shard is not None:
        raise InputError("expected --export, which numbers its shards, or --shard, found both; leave one out")
    if on == "local":
        if args.cancel:
            reason = "expected --cancel with --on ENGINE, found it without; Ctrl-C ends a suite on this machine"
            raise InputError(reason)
        return None
    if args.export or args.shard is not None:
        apart = "--export" if args.export else "--shard"
        raise InputError(f"expected {apart} for processes of this machine, found it with --on {on}; leave it out")
    engine: Executor = executor_class(on)(Setup(output, on.partition(":")[2], options, args.jobs))
    return engine


def _export(args: argparse.Namespace, output: Path, place: Path, jobs: Sequence[Job], gpus: int, count: int) -> None:
    """Write the script or manifest of ``count`` shards."""
    words = [word for before, word in itertools.pairwise(sys.argv)
             if not word.startswith(("--export", "--jobs")) and before not in ("--export", "--jobs")]  # fmt: skip
    suffix, how = KINDS[args.export]
    path = output / f"shards{suffix}"
    write_text(path, export(args.export, typed([sys.argv[0], *words]), place, jobs, gpus, count))
    say(f"wrote {path}, {counted(count, 'shard')}: {how}")


def _show_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Print how each task ended (of many: how many of each kind), and the failures with their logs."""
    kinds: dict[tuple[str, str], list[float]] = {}
    for o in outcomes:
        name = o.job.title if len(outcomes) <= LISTED else o.job.task.name
        kinds.setdefault((name, o.status), []).append(o.seconds)
    rows = [[name if len(each) == 1 else f"{name}, {len(each)} checkpoints", how, f"{sum(each):.0f}"]
            for (name, how), each in kinds.items()]  # fmt: skip
    table("tasks", ["task", "ended", "seconds"], rows)
    failures = [outcome for outcome in outcomes if not outcome.well]
    for outcome in failures[:LISTED]:
        say(f"{outcome.status}: {outcome.job.title}, {outcome.note}; see {outcome.job.log}")
    if len(failures) > LISTED:
        say(f"… and {len(failures) - LISTED} more that did not end well: momentum-transfer status shows them")


def _check_pretrainings(suite: Suite) -> None:
    """Check all settings of a sweep's pretrainings before the first takes days; InputError names the run."""
    if suite.sweep is None or suite.sweep.command != "tools/pretrain.py":
        return
    from momentum_transfer.core.settings import load_config
    from momentum_transfer.pretrain.config import check_settings, get_cfg

    last = suite.sweep.exports.get("last", 0)
    for run in suite.sweep.runs():
        place = run.command.index("--config") + 1
        overrides = [*run.command[place + 2 :], "RUN.DEVICE", "cpu"]  # the node that plans often has no GPU
        try:
            cfg = load_config(get_cfg(), run.command[place], overrides)
            check_settings(cfg)
        except InputError as error:
            raise InputError(f"{run.name}: {error}") from error
        if not cfg.SOLVER.STEPS and last > cfg.SOLVER.EPOCHS:
            raise InputError(f"{run.name}: expected the last of exports within SOLVER.EPOCHS {cfg.SOLVER.EPOCHS}, "
                             f"found {last}; lower it, or train longer")  # fmt: skip


def _report(args: argparse.Namespace, output: Path, jobs: Sequence[Job], weights: Sequence[str]) -> bool:
    """Make the page of all records so far, and copy it; returns whether that worked. One shard at a time does so."""
    records = output / "results.jsonl"
    with contextlib.ExitStack() as held, silent():
        if args.shard is not None:
            try:
                held.enter_context(alone(output, patience=0.0))
            except InputError:
                return True  # another shard is making the page
        if records.is_file():
            shown = [job for job in jobs if any((job.folder / name).exists() for name in _SHOWN)]
            runs = sorted({str(job.folder if job.task.name == PRETRAIN else job.folder.parent) for job in shown})
            runs += [name for name in weights if Path(name).is_dir()]  # last: of two folders of a name the first counts
            command = ["tools/report.py", str(records), "--runs", *runs, "--out", str(output / "report.html")]
            made = subprocess.run([sys.executable, *started(command)], cwd=workplace(), check=False).returncode == 0
        else:
            say(f"no task has written a record to {records}: no report")
            made = False
        if args.copy_to:
            copy_out(output, args.copy_to)
    return made


def _from_root(path: str) -> Path:
    """The path as seen from where tasks run (`workplace`): relative inside, absolute outside."""
    whole, root = Path(os.path.abspath(path)), workplace()
    return whole.relative_to(root) if whole.is_relative_to(root) else whole


def _gpus(args: argparse.Namespace, engine: Executor | None) -> int:
    """--gpus, or those of the engine or this machine; InputError for more than it has where tasks are to run here."""
    elsewhere = engine is not None or args.dry_run or args.export
    if args.gpus is not None and (elsewhere or not args.gpus):
        return int(args.gpus)
    import torch

    found = torch.cuda.device_count() if engine is None else engine.gpus()
    if args.gpus is not None and args.gpus > found:
        raise InputError(f"expected --gpus of at most the {found} of this machine, found {args.gpus}; leave it out")
    return found if args.gpus is None else int(args.gpus)


def _weights_from_root(name: str) -> str:
    """An item of --weights with its path as seen from where tasks run; names that are no paths stay."""
    if name.startswith(RANDOM_OF):
        return RANDOM_OF + _weights_from_root(name.removeprefix(RANDOM_OF))
    return name if name in NO_FILES or is_hub_name(name) or is_made(name) else str(_from_root(name))


def _sbatch_options(args: argparse.Namespace, on: str) -> dict[str, str]:
    """The options of --sbatch by key; InputError without --slurm, or for a malformed, reserved or repeated key."""
    if args.sbatch and on != "slurm":
        raise InputError(f"expected --sbatch together with --slurm, found {args.sbatch[0]!r} without it; add --slurm")
    options: dict[str, str] = {}
    for word in args.sbatch:
        found = re.fullmatch(r"-*([a-z][a-z-]*)=(.*\S.*)", word)
        if found is None or not word.isprintable():
            raise InputError(f"expected --sbatch KEY=VALUE, found {word!r}; for example partition=gpu")
        if found[1] in OURS:
            raise InputError(f"expected --sbatch of other options than {', '.join(OURS)}, found {word!r}; leave it out")
        if found[1] in options:
            raise InputError(f"expected each option of --sbatch once, found {found[1]} twice; take one out")
        options[found[1]] = found[2]
    return options


def _show_seeds(args: argparse.Namespace) -> None:
    """Print how many seeds find a difference of --detect points in 80 % of cases, where scores spread by --sigma."""
    from momentum_transfer.verdicts.power import MOST_TRIALS, detectable, trials_needed

    asked = {"--plan": args.plan or None, "--detect": args.detect, "--sigma": args.sigma}
    if missing := [name for name, value in asked.items() if value is None]:
        raise InputError(f"expected --plan with --detect POINTS and --sigma POINTS, found no {missing[0]}; add it")
    needed = [trials_needed(args.detect, args.sigma, paired) or f"more than {MOST_TRIALS}" for paired in (False, True)]
    say(f"to show a difference of {args.detect:g} points in 80 % of cases (two-sided 5 %) where scores spread by "
        f"{args.sigma:g} over seeds: {needed[0]} seeds of each checkpoint, compared by Welch's t; or {needed[1]} "
        f"shared trials, where differences trial by trial spread by {args.sigma:g}")  # fmt: skip
    rows = []
    for n in (2, 3, 5, 10, 20):
        welch, paired_t = args.sigma * (2 / n) ** 0.5, args.sigma / n**0.5
        rows.append([n, f"{detectable(welch, 2 * n - 2):.2f}", f"{detectable(paired_t, n - 1):.2f}"])
    table("detectable difference, points", ["seeds", "unpaired", "in pairs"], rows)
    say("several measures at once need more: Holm's correction divides 5 % among them")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     allow_abbrev=False)  # fmt: skip  # --export repeats the words
    add = parser.add_argument
    add("--weights", nargs="+", default=[], metavar="CKPT",
        help="checkpoints, run folders, random-of:CKPT, pixels; none if a suite pretrains")  # fmt: skip
    add("--suite", metavar="YAML", help="configs/suites/full.yaml, quick.yaml, smoke.yaml")
    add("--tasks", nargs="+", default=[], metavar="NAME", help="these alone, and what they need: knn 'mask_rcnn_*'")
    add("--skip", nargs="+", default=[], metavar="NAME", help="all but these, and what needs them")
    add("--preset", nargs="+", default=[], metavar="[CKPT=]NAME",
        help="another paper's settings than the checkpoint's own, for all or one (suites with presets)")  # fmt: skip
    add("--copy-to", metavar="URL", help="copy records and page there at the end: s3://…, whatever fsspec writes")
    add("--output", type=own_file, metavar="DIR", help="where everything goes (default: outputs/NAME OF THE SUITE)")
    add("--dry-run", action="store_true", help="print the plan with the expected hours and money")
    add("--measured", nargs="+", default=[], metavar="RECORDS", help="records of earlier runs whose hours count")
    add("--price", type=above_0, metavar="MONEY", help="of a GPU hour: the plan shows costs")
    add("--plan", action="store_true", help="say how many seeds --detect needs at --sigma, and stop")
    add("--detect", type=above_0, metavar="POINTS", help="true difference that is to be shown")
    add("--sigma", type=above_0, metavar="POINTS", help="standard deviation of a score over seeds")
    add("--jobs", type=at_least(1),
        help="tasks at a time: here (default: 1), or of each array of Slurm's jobs; shards of --export")  # fmt: skip
    add("--gpus", type=at_least(0), help="GPUs to use, of an engine those of a node (default: those found)")
    add("--on", metavar="ENGINE", help="local, slurm, ray[:ADDRESS], or an engine of another package")
    add("--slurm", action="store_true", help="one Slurm job a task, through submitit: --on slurm")
    add("--cancel", action="store_true", help="with --on: let the submitted tasks save and end")
    add("--shard", nargs="?", const="", metavar="K/N",
        help="be one of N processes that share OUTPUT (without K/N: the index of an array job)")  # fmt: skip
    add("--export", choices=list(KINDS), help="write such shards as commands, a manifest or a script into OUTPUT")
    add("--sbatch", nargs="+", default=[], metavar="KEY=VALUE", help="options of sbatch: partition=gpu account=a")
    return parser


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
