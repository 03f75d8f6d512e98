"""The metrics of a training: a JSON object a line in ``metrics.jsonl``, TensorBoard, Weights & Biases and MLflow.

TensorBoard writes ``tensorboard/`` in the run's folder wherever it is installed (extra ``tensorboard``). Weights &
Biases (extra ``wandb``) and MLflow (extra ``mlflow``) are switched on by their environment variables ``WANDB_PROJECT``
and ``MLFLOW_TRACKING_URI``; their others hold too, such as ``WANDB_MODE=offline``. A resumed training continues the
same run of each. ``step`` is the number of steps done.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from momentum_transfer.core import records
from momentum_transfer.core.errors import InputError, extra, one_line
from momentum_transfer.core.files import append_whole, naming, write_text
from momentum_transfer.core.log import warn
from momentum_transfer.core.settings import flat
from momentum_transfer.core.untrusted import read_mapping

#: Environment variables that switch Weights & Biases and MLflow on; the suite's MLflow run, whose children tasks are.
_PROJECT, _STORE, _PARENT = "WANDB_PROJECT", "MLFLOW_TRACKING_URI", "MOMENTUM_TRANSFER_MLFLOW_PARENT"
_EXPERIMENT = "MLFLOW_EXPERIMENT_NAME"
#: Those by which a task on another machine is a child of the suite's run.
OF_THE_SUITE = (_STORE, _PARENT, _EXPERIMENT)
#: Hold the identifiers of a folder's runs, so that a resumed training continues them.
_WANDB_RUN, _MLFLOW_RUN = "wandb_run.txt", "mlflow_run.txt"
#: What MLflow's names of metrics may not hold.
_OUTSIDE_NAMES = re.compile(r"[^\w\-. :/]", re.ASCII)


def _known_run(file: Path, first_step: int) -> str | None:
    return file.read_text(encoding="utf-8").strip() if first_step and file.is_file() else None


class _TensorBoard:
    def __init__(self, folder: Path, first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=first_step + 1)  # that one too

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self, *, failed: bool = False) -> None:
        self._writer.close()


class _WeightsAndBiases:
    def __init__(self, folder: Path, first_step: int) -> None:
        wandb = extra("wandb", f"{_PROJECT} is set")
        known = _known_run(folder / _WANDB_RUN, first_step)
        try:
            self._run = wandb.init(
                project=os.environ[_PROJECT], name=os.environ.get("WANDB_NAME", folder.resolve().name), dir=str(folder),
                id=known, resume="allow" if known else None, config=_settings(folder),
            )  # fmt: skip
        except wandb.errors.Error as error:
            raise InputError(
                f"{_PROJECT} is set, but Weights & Biases cannot be reached: {one_line(error, 200)}; unset it, or keep "
                "the metrics on this machine with WANDB_MODE=offline"
            ) from error
        # A separate axis: W&B's own step may only grow, and a resumed training repeats steps.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        write_text(folder / _WANDB_RUN, f"{self._run.id}\n")

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({"step": step, **metrics})

    def close(self, *, failed: bool = False) -> None:
        self._run.finish()


class _MLflow:
    """A run in MLflow's store. What the store does not take is sent again at the end: the training goes on."""

    def __init__(self, folder: Path, first_step: int) -> None:
        mlflow = extra("mlflow", f"{_STORE} is set")
        self._folder, self._entities, self._lost = folder, mlflow.entities, False
        self._waiting: list[Any] = []
        kept = folder / _MLFLOW_RUN
        try:
            self.client = mlflow.MlflowClient()
            if known := _known_run(kept, first_step):
                self.id = known
                self.client.update_run(self.id, status="RUNNING")
            else:
                self.id = self._begin()
                write_text(kept, f"{self.id}\n")
        except mlflow.exceptions.MlflowException as error:
            raise InputError(
                f"{_STORE} is set, but MLflow's run cannot begin or go on: {one_line(error, 200)}; unset it, keep the "
                f"metrics on this machine with {_STORE}=sqlite:///mlflow.db, or remove {kept} to begin another run"
            ) from error

    def _begin(self) -> str:
        """A new run with the folder's settings as parameters, a hundred a request as MLflow's REST API allows."""
        name, parent = os.environ.get(_EXPERIMENT, "momentum-transfer"), os.environ.get(_PARENT)
        found = self.client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self.client.create_experiment(name)
        tags = {"mlflow.parentRunId": parent} if parent else {}
        title = "/".join(self._folder.resolve().parts[-2:])  # CHECKPOINT/TASK of a suite
        run: str = self.client.create_run(experiment, tags=tags, run_name=title).info.run_id
        settings = [self._entities.Param(key, str(value)[:500]) for key, value in flat(_settings(self._folder))]
        for start in range(0, len(settings), 100):
            self.client.log_batch(run, params=settings[start : start + 100])
        return run

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            key = _OUTSIDE_NAMES.sub("_", name)
            self._waiting.append(self._entities.Metric(key, value, int(1000 * time.time()), step))
        if not self._lost:
            self._send()

    def _send(self, *files: Path) -> None:
        try:
            while self._waiting:  # a thousand is the most of a request
                self.client.log_batch(self.id, metrics=self._waiting[:1000])
                del self._waiting[:1000]
            for file in files:
                self.client.log_artifact(self.id, str(file))
        except Exception as error:  # of whichever store it is
            self._lost = True
            warn(f"MLflow: {one_line(error, 200)}; nothing is lost: metrics and records are in {self._folder} too")

    def logged(self, otherwise: int) -> int:
        """How many of a suite's records the run holds; ``otherwise`` where the store does not answer."""
        try:
            return int(self.client.get_run(self.id).data.metrics.get("records", 0))
        except Exception:  # `_send` will say it
            return otherwise

    def close(self, *, failed: bool = False, files: Sequence[str] = ("config.yaml", "metrics.jsonl")) -> None:
        self._send(*(self._folder / name for name in files if (self._folder / name).is_file()))
        with contextlib.suppress(Exception):  # `_send` has said it
            self.client.set_terminated(self.id, "FAILED" if failed else "FINISHED")


@contextlib.contextmanager
def suite_run(folder: Path) -> Iterator[None]:
    """Where MLflow is switched on: one run for a suite's folder, whose children the runs of tasks in the block are.

    At the end it gets the new records as metrics, repetitions as steps, with ``results.jsonl`` and the page. The same
    suite, run again, goes on in it; so do its shards.
    """
    if not os.environ.get(_STORE):
        yield
        return
    with _in_turn(folder):
        run, results = _MLflow(folder, first_step=1), folder / "results.jsonl"
        logged = run.logged(0)
    os.environ[_PARENT] = run.id
    failed = True
    try:
        yield
        failed = False
    finally:
        os.environ.pop(_PARENT, None)
        with _in_turn(folder):
            found = records.read(results)[0] if results.is_file() else []
            for record in found[run.logged(logged) :]:
                about = record["checkpoint"].get("name"), record.get("network"), record["task"], record.get("protocol")
                name = "/".join(str(one) for one in (*about, record["metric"]) if one)
                value = math.nan if record["value"] is None else record["value"]
                run.write(int(record.get("trial") or 0), {name: value})
            run.write(0, {"records": len(found)})
            run.close(failed=failed, files=(results.name, "report.html"))


@contextlib.contextmanager
def _in_turn(folder: Path) -> Iterator[None]:
    """One shard of a suite at a time, where the file system has locks."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".mlflow.lock", "a", encoding="utf-8") as stream:
        with contextlib.suppress(OSError):
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _settings(folder: Path) -> dict[str, Any]:
    try:
        return read_mapping(folder / "config.yaml")
    except InputError:
        return {}


#: Receives metrics by ``write(step, metrics)``; ``close()`` writes what is left, of a ``failed`` run too.
Logger = _TensorBoard | _WeightsAndBiases | _MLflow


def open_loggers(folder: str | Path, first_step: int = 0) -> list[Logger]:
    """The loggers of a run in ``folder``, for rank 0 only; what was logged after ``first_step`` is dropped.

    Raises InputError if Weights & Biases or MLflow is asked for and not installed, not logged in, or not reachable.
    """
    opened: list[Logger] = []
    if os.environ.get(_PROJECT):
        opened.append(_WeightsAndBiases(Path(folder), first_step))
    if os.environ.get(_STORE):
        opened.append(_MLflow(Path(folder), first_step))
    with contextlib.suppress(ImportError):
        opened.append(_TensorBoard(Path(folder), first_step))
    return opened


class Metrics:
    """Writes metrics to ``folder`` and the loggers, on rank 0 only; lines after ``first_step`` are removed."""

    def __init__(self, folder: str | Path, first_step: int = 0) -> None:
        from momentum_transfer.core import distributed  # here, because it imports torch, which takes seconds

        self.path = Path(folder) / "metrics.jsonl"
        self._stream: Any = None
        self._loggers: list[Logger] = []
        if not distributed.is_main():
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            write_text(self.path, "".join(f"{json.dumps(line)}\n" for line in read(self.path, before=first_step)))
        self._stream = open(self.path, "ab", buffering=0)  # noqa: SIM115  closed by __exit__
        with naming(self.path.parent):
            self._loggers = open_loggers(folder, first_step)

    def write(self, step: int, metrics: dict[str, float]) -> None:
        """Write the metrics after ``step`` steps as one whole line or none (OSError), NaN and infinities as null."""
        if self._stream is None:
            return
        line = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        append_whole(self._stream, (json.dumps({"step": step, **line}) + "\n").encode(), self.path)
        with naming(self.path.parent):
            for logger in self._loggers:
                logger.write(step, metrics)

    def __enter__(self) -> Metrics:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._stream is not None:
            self._stream.close()
        # Report what ended the block, not that the loggers meet the same full disk.
        with contextlib.suppress(OSError) if error is not None else naming(self.path.parent):
            for logger in self._loggers:
                logger.close(failed=error is not None)


def read(path: str | Path, before: int | None = None) -> list[dict[str, Any]]:
    """The whole lines of a metrics file, of steps up to ``before`` if given; a cut last line is left out."""
    lines = []
    for text in Path(path).read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):  # ValueError: no JSON, or a number of 5000 digits
            continue
        step = line.get("step", 0) if isinstance(line, dict) else None
        if isinstance(step, (int, float)) and (before is None or step <= before):
            lines.append(line)
    return lines
