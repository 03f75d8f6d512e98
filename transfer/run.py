"""One transfer experiment: check the data, fine-tune and predict in an engine, score outside it, keep records."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fvcore.common.config import CfgNode

from momentum_transfer.core import records as items
from momentum_transfer.core import records as results
from momentum_transfer.core.devices import choose_device
from momentum_transfer.core.distributed import any_rank, barrier, is_main, process_group, world_size
from momentum_transfer.core.errors import InputError, counted
from momentum_transfer.core.files import weights_name, write_text
from momentum_transfer.core.log import say, table
from momentum_transfer.core.run_lock import alone_in
from momentum_transfer.core.settings import dump, keep
from momentum_transfer.transfer import any_backbone
from momentum_transfer.transfer.config import check_settings, decisive, identity
from momentum_transfer.transfer.cost import cost_of, estimate
from momentum_transfer.transfer.detector_run import CLAIM, classes_of, has_checkpoint, write_classes
from momentum_transfer.transfer.engine import Engine
from momentum_transfer.transfer.engines import choose_engine
from momentum_transfer.transfer.error_analysis.analysis import write_analysis
from momentum_transfer.transfer.initial_weights import NONE, InitialWeights, check_trained, read_initial, read_trained
from momentum_transfer.transfer.predictions import Predictions
from momentum_transfer.transfer.tasks import Task, open_task
from momentum_transfer.transfer.torchvision_engine.capabilities import unsupported

#: Iterations from which on a few timed steps are a small part of the run.
WORTH_AN_ESTIMATE = 50
NO_ESTIMATE = "how long this takes shows in the progress: only detectors of the torchvision engine are timed beforehand"


@dataclass(frozen=True)
class Request:
    """What the command line asks for. results: where records go (None: OUTPUT_DIR/results.jsonl)."""

    weights: str
    results: Path | None = None
    resume: bool = False
    eval_only: bool = False
    forbid_overlap: bool = False


def run(cfg: CfgNode, request: Request) -> None:
    """All trials of a config. What a results file holds already is not done again."""
    check_settings(cfg)
    engine, why = choose_engine(cfg.ENGINE, cfg)
    say(why)
    if request.eval_only and request.weights.lower() == "none":
        raise InputError("expected a trained detector (model_final.pth) with --eval-only, found --weights none")
    for change in any_backbone.changes(cfg):
        say(f"{cfg.MODEL.BACKBONE.ARCH}: {change}")
    initial = read_initial(request.weights, cfg)  # before the data: a wrong file is refused at once
    if request.eval_only and not initial.detector:
        raise InputError(
            f"expected a trained detector (model_final.pth) with --eval-only, found the backbone {initial.name}; give "
            "what a fine-tuning left"
        )
    if not (request.eval_only or request.resume):  # before the data, which may take minutes
        for trial in range(cfg.TRIALS):
            if not _is_done(cfg, request, engine, initial, trial):
                _refuse_to_overwrite(_folder(cfg, trial))
    task = open_task(cfg, training=not request.eval_only)
    network = functools.cache(lambda: _network(cfg))  # counted once for all trials, and only if one is left to do
    with process_group(choose_device(cfg.MODEL.DEVICE, "MODEL.DEVICE")), alone_in(cfg.OUTPUT_DIR):
        task.check(cfg, forbid_overlap=request.forbid_overlap)  # its pictures belong to the run that holds the folder
        for trial in range(cfg.TRIALS):
            _trial(cfg, request, engine, task, initial, trial, _folder(cfg, trial), network)
            barrier()


def _folder(cfg: CfgNode, trial: int) -> Path:
    return Path(cfg.OUTPUT_DIR) / f"trial_{trial}" if cfg.TRIALS > 1 else Path(cfg.OUTPUT_DIR)


def _is_done(cfg: CfgNode, request: Request, engine: Engine, initial: InitialWeights, trial: int) -> bool:
    """Whether the results hold a trial's records."""
    wanted = {"trial": trial, "config": identity(cfg), "sha256": initial.sha256, "engine": engine.name}
    return results.done(_results(cfg, request), **wanted, finetuned=not request.eval_only)


def _results(cfg: CfgNode, request: Request) -> Path:
    return request.results or Path(cfg.OUTPUT_DIR) / "results.jsonl"


def _refuse_to_overwrite(folder: Path) -> None:
    if (folder / CLAIM).is_file() and has_checkpoint(folder):
        raise InputError(f"{folder} holds a training already; go on with --resume, or choose another OUTPUT_DIR")


def _claim(folder: Path, cfg: CfgNode, weights: str, seed: int, resume: bool) -> None:
    """A folder belongs to one training: the same initial weights, seed and settings, in whatever engine.

    A training that diverged or was killed before its first checkpoint has left nothing to go on with: any may begin.

    Raises:
        InputError: it holds another training, or the same one and nothing was said of going on.
    """
    file = folder / CLAIM
    now = {"initial weights": weights, "seed": seed, "training settings": identity(cfg, evaluation=False)}
    if not is_main():  # torchrun ends the others if the first process refuses
        return
    if not resume:
        _refuse_to_overwrite(folder)
    if not file.is_file() or not has_checkpoint(folder):
        if file.is_file():  # a best detector that the new training might not reach, and lines of Detectron2
            for name in ("model_best.pth", "model_best.json", "metrics.json"):
                (folder / name).unlink(missing_ok=True)
        write_text(file, json.dumps(now, indent=1))
        return
    try:
        before = json.loads(file.read_text(encoding="utf-8", errors="replace"))
    except (ValueError, RecursionError):
        before = None
    if not isinstance(before, dict):
        raise InputError(f"expected {file} as a training wrote it, found it damaged; choose another OUTPUT_DIR")
    for key, value in now.items():
        if before.get(key) != value:
            raise InputError(
                f"cannot resume {folder}: its training began with {key} {str(before.get(key))[:12]}, this command has "
                f"{str(value)[:12]}; use the same, or another OUTPUT_DIR"
            )


def _trial(
    cfg: CfgNode,
    request: Request,
    engine: Engine,
    task: Task[Any],
    initial: InitialWeights,
    trial: int,
    folder: Path,
    network: Callable[[], dict[str, Any]],
) -> None:
    file = _results(cfg, request)
    # The first process decides for all: it appends the records, and the others may read earlier or later.
    is_done = is_main() and _is_done(cfg, request, engine, initial, trial)
    if any_rank(is_done, choose_device(cfg.MODEL.DEVICE, "MODEL.DEVICE")):
        say(f"trial {trial}: its records are in {file} already")
        return
    folder.mkdir(parents=True, exist_ok=True)
    seed = cfg.SEED + trial
    if not request.eval_only:
        _claim(folder, cfg, initial.sha256, seed, request.resume)
    if is_main():
        write_text(folder / "config.yaml", dump(cfg))
        if not request.eval_only:
            write_classes(folder, classes_of(task.train[0], engine.name))
    if is_main():
        write_text(folder / "network.json", json.dumps(network(), indent=1))
    detector = initial
    if request.eval_only:
        check_trained(detector, InitialWeights(NONE))
    else:

        def main_score(predictions: Predictions) -> float:
            _, metrics, _ = next(task.scores(predictions))
            return next(iter(metrics.values()))

        if not request.resume and world_size() == 1 and cfg.SOLVER.MAX_ITER >= WORTH_AN_ESTIMATE:
            found = estimate(cfg, task, initial)
            say(f"{found.line()}" + f"; trial {trial + 1} of {cfg.TRIALS}" * (cfg.TRIALS > 1) if found else NO_ESTIMATE)
        finetuned = engine.finetune(cfg, task, initial, seed, folder, resume=request.resume, score=main_score)
        detector = read_trained(finetuned.weights)
        check_trained(detector, initial)
        if finetuned.seconds_per_step == finetuned.seconds_per_step:
            say(f"{finetuned.seconds_per_step:.3f} s per iteration")
    for predictions in engine.predict(cfg, task, detector, folder):
        if is_main():
            details = {**network(), "finetuned": not request.eval_only}
            if predictions.dataset in task.overlap:
                details["overlap"] = task.overlap[predictions.dataset]
            _record(cfg, task, predictions, initial, trial, seed, file, folder, details)


def _network(cfg: CfgNode) -> dict[str, Any]:
    """What the network is made of and needs: said, and returned for ``network.json`` and the records."""
    found: dict[str, Any] = {}
    if cfg.MODEL.BACKBONE.ARCH:
        found["architecture"] = str(any_backbone.detector_architecture(cfg))
        found["changes"] = any_backbone.changes(cfg)
    if unsupported(cfg) is None:  # what Detectron2 alone builds is not counted
        cost = cost_of(cfg)
        say(f"network: {cost}")
        found |= cost.as_record()
    return found


def _record(
    cfg: CfgNode,
    task: Task[Any],
    predictions: Predictions,
    initial: InitialWeights,
    trial: int,
    seed: int,
    file: Path,
    folder: Path,
    details: dict[str, Any],
) -> None:
    say(f"{predictions.dataset}: {predictions.seconds_per_image:.3f} s per image")
    records = []
    checkpoint = {**initial.checkpoint, "name": weights_name(initial.name), "sha256": initial.sha256}
    for name, metrics, outcomes in task.scores(predictions):
        kept = items.write_items(file.parent, f"{name}-{predictions.dataset}-{checkpoint['name']}-t{trial}", outcomes)
        table(f"{predictions.dataset}, {name}", list(metrics), [[f"{value:.2f}" for value in metrics.values()]])
        for metric, value in metrics.items():
            records.append(
                results.make_record(
                    name, metric, value, checkpoint=checkpoint, network=initial.network, trial=trial, seed=seed,
                    protocol=cfg.PROTOCOL, config=identity(cfg), engine=predictions.engine, dataset=predictions.dataset,
                    items=kept, data=task.size(predictions.dataset), **details,
                )
            )  # fmt: skip
    for name, found in task.analyses(predictions):
        write_analysis(folder / f"errors_{name}.json", found)
    for path in task.draw(predictions, folder / "visuals", cfg.TEST.VISUALS):
        say(f"wrote {path}")
    keep(file.parent, identity(cfg), decisive(cfg))
    results.append(file, records)
    say(f"{counted(len(records), 'record')} appended to {file}")
