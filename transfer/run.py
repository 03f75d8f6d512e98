"""One transfer experiment: check the data, fine-tune and predict in an engine, score outside it, keep records."""

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from fvcore.common.config import CfgNode

from momentum_transfer.backbones.source import SourceBackbone
from momentum_transfer.core import records
from momentum_transfer.core.devices import choose_device
from momentum_transfer.core.distributed import any_rank, barrier, is_main, process_group, world_size
from momentum_transfer.core.errors import InputError, counted
from momentum_transfer.core.errors import refusals as refused
from momentum_transfer.core.files import weights_name, write_text
from momentum_transfer.core.log import say, table
from momentum_transfer.core.run_lock import alone_in
from momentum_transfer.core.settings import dump, keep
from momentum_transfer.transfer import any_backbone
from momentum_transfer.transfer.config import changed, check_settings, decisive, identity, task_name
from momentum_transfer.transfer.cost import cost_of, estimate
from momentum_transfer.transfer.data.annotations import file_stem
from momentum_transfer.transfer.data.few_shot import draw_of
from momentum_transfer.transfer.detector_run import choose_engine, classes_of, few_shot_weights, write_classes
from momentum_transfer.transfer.error_analysis.analysis import write_analysis
from momentum_transfer.transfer.experiment import Engine, Experiment
from momentum_transfer.transfer.initial_weights import (
    CLAIM,
    NONE,
    InitialWeights,
    check_trained,
    has_checkpoint,
    read_initial,
    read_trained,
)
from momentum_transfer.transfer.own_settings import Opened, kept_schedule, timed_schedule
from momentum_transfer.transfer.predictions import Predictions
from momentum_transfer.transfer.tasks import Task, open_task
from momentum_transfer.transfer.tasks.task import check_count
from momentum_transfer.transfer.torchvision_engine.capabilities import unsupported
from momentum_transfer.transfer.torchvision_engine.detectors import Detector, check_fits
from momentum_transfer.transfer.torchvision_engine.engine import build
from momentum_transfer.transfer.torchvision_engine.unlabelled import labels_of
from momentum_transfer.verdicts.outcomes import in_groups

#: Iterations from which on a few timed steps are a small part of the run.
WORTH_AN_ESTIMATE = 50
NO_ESTIMATE = "how long this takes shows in the progress: only detectors of the torchvision engine are timed beforehand"


@dataclass(frozen=True)
class Request:
    """What the command line asks for."""

    weights: str
    results: Path | None = None  # where records go; None: OUTPUT_DIR/results.jsonl
    resume: bool = False
    eval_only: bool = False
    forbid_overlap: bool = False
    minutes: float | None = None  # of training; None: the config's schedule


def run(cfg: CfgNode, request: Request, opened: Opened | None = None) -> None:
    """All trials of a config. What a results file holds already is not done again.

    Args:
        opened: data and weights that were opened to find the settings; they are not read again.
    """
    check_settings(cfg)
    engine, why = choose_engine(cfg.ENGINE, cfg)
    say(why)
    for change in any_backbone.changes(cfg):
        say(f"{cfg.MODEL.BACKBONE.ARCH}: {change}")
    command = _resolve(cfg, request, engine, opened or Opened())
    cfg, task = command.experiment.cfg, command.experiment.task
    with process_group(choose_device(cfg.MODEL.DEVICE, "MODEL.DEVICE")), alone_in(cfg.OUTPUT_DIR):
        task.check(cfg, forbid_overlap=request.forbid_overlap)  # under the lock: it writes images to OUTPUT_DIR
        for trial in range(1 if request.eval_only else cfg.TRIALS):  # one detector is one trial
            command.run_trial(trial)
            barrier()


def refusals(
    cfg: CfgNode, request: Request, source: InitialWeights | SourceBackbone | None, opened: dict[str, Task[Any]],
    space: dict[tuple[Path, str], int],
) -> Iterator[tuple[str, str]]:  # fmt: skip
    """(what, reason) of all that `run` would refuse before its first step; ``source``: None for yet unmade weights.

    ``opened``: data sets by their settings, to which those of ``cfg`` are added, so that a plan reads each once; to
    ``space`` is added `disk_space`, unless something is refused.
    """

    def weights() -> None:
        if source is not None:
            _check_fit(cfg, read_initial(request.weights, cfg, source))

    def data() -> None:
        classes = f"{cfg.FEW_SHOT.NOVEL} {cfg.FEW_SHOT.STAGE}"
        key = f"{task_name(cfg)} {cfg.DATASETS} {classes} {request.eval_only}"
        task = opened[key] = opened.get(key) or open_task(cfg, training=not request.eval_only)
        for one in task.sets():
            check_count(cfg, one)

    engine = functools.partial(choose_engine, cfg.ENGINE, cfg)
    found = list(refused({"settings": lambda: check_settings(cfg), "engine": engine, "weights": weights, "data": data}))
    yield from found
    if not found:
        space[Path(cfg.OUTPUT_DIR), "checkpoints"] = disk_space(cfg)


def _check_fit(cfg: CfgNode, initial: InitialWeights) -> None:
    """InputError unless the weights are those of the config's network."""
    of_fewer_classes = bool(initial.detector and cfg.FEW_SHOT.NOVEL)  # these the data tell
    if unsupported(cfg) is None and not of_fewer_classes:  # what Detectron2 alone builds, it alone can check
        check_fits(_without_memory(cfg), initial)


def _without_memory(cfg: CfgNode) -> Detector:
    with torch.device("meta"):
        return build(cfg)


def disk_space(cfg: CfgNode) -> int:
    """Bytes that all trials of a config leave: the detector, and its last checkpoint with the optimizer's moments."""
    if unsupported(cfg) is not None:
        return 0
    numbers = sum(tensor.numel() for tensor in _without_memory(cfg).state_dict().values())
    return cfg.TRIALS * 4 * numbers * (4 if cfg.SOLVER.OPTIMIZER == "AdamW" else 3)


def _resolve(cfg: CfgNode, request: Request, engine: Engine, opened: Opened) -> "_Command":
    """Read the weights, then open the data, which may take minutes; what can be refused is refused before."""
    if request.eval_only and request.weights.lower() == NONE:
        raise InputError("expected a trained detector (model_final.pth) with --eval-only, found --weights none")
    out = Path(cfg.OUTPUT_DIR)
    if request.eval_only and any(has_checkpoint(one) or (one / CLAIM).is_file() for one in (out, *out.glob("trial_*"))):
        raise InputError(
            f"expected an OUTPUT_DIR of its own for --eval-only, found a training in {out}, whose settings and results "
            f"it would overwrite; choose another, such as OUTPUT_DIR {out}_eval"
        )
    place = (request.results or Path(cfg.OUTPUT_DIR)).parent  # of all runs whose records are read together
    minutes = request.minutes  # None: the schedule is decided
    if minutes is not None and (kept := kept_schedule(cfg, minutes, place, request.resume)) is not None:
        cfg, minutes = kept, None
    if minutes is not None and request.eval_only:
        say("nothing is trained: --minutes times nothing, and keeps no schedule for later trainings")
        minutes = None
    initial = read_initial(request.weights, cfg, opened.weights)
    if request.eval_only and not initial.detector:
        raise InputError(
            f"expected a trained detector (model_final.pth) with --eval-only, found the backbone {initial.name}; give "
            "what a fine-tuning left"
        )
    _check_fit(cfg, initial)
    if not request.eval_only:
        novel = _novel(cfg, request)
        for trial in range(cfg.TRIALS):
            if minutes is not None or not _is_done(cfg, request, engine, initial, trial, novel):
                _refuse_to_overwrite(_folder(cfg, trial), request.resume)
    task = opened.task or open_task(cfg, training=not request.eval_only)
    if not request.eval_only:
        initial = few_shot_weights(initial, cfg, task.train[0].classes, request.weights)
    experiment = Experiment(cfg, task, initial)
    if minutes is not None:
        experiment = replace(experiment, cfg=timed_schedule(experiment, minutes, place))
    if request.eval_only:
        task.train = ()
    return _Command(experiment, engine, request)


def _folder(cfg: CfgNode, trial: int) -> Path:
    return Path(cfg.OUTPUT_DIR) / f"trial_{trial}" if cfg.TRIALS > 1 else Path(cfg.OUTPUT_DIR)


def _results(cfg: CfgNode, request: Request) -> Path:
    return request.results or Path(cfg.OUTPUT_DIR) / "results.jsonl"


def _is_done(
    cfg: CfgNode, request: Request, engine: Engine, initial: InitialWeights, trial: int, novel: dict[str, str]
) -> bool:
    fields = {"trial": trial, "config": identity(cfg), "sha256": initial.sha256, "engine": engine.name}
    return records.done(_results(cfg, request), **fields, **novel, finetuned=not request.eval_only)


def _novel(cfg: CfgNode, request: Request) -> dict[str, str]:
    """What identifies FEW_SHOT.NOVEL_WEIGHTS in records and claims; nothing without them."""
    given = cfg.FEW_SHOT.NOVEL_WEIGHTS
    return {"novel_sha256": read_initial(given, cfg).sha256} if given and not request.eval_only else {}


def _refuse_to_overwrite(folder: Path, resume: bool) -> None:
    if has_checkpoint(folder) and not (folder / CLAIM).is_file():
        raise InputError(f"{folder} holds checkpoints of another program, without {CLAIM}; choose another OUTPUT_DIR")
    if has_checkpoint(folder) and not resume:
        raise InputError(f"{folder} holds a training already; go on with --resume, or choose another OUTPUT_DIR")


def _claim(folder: Path, cfg: CfgNode, weights: str, seed: int, resume: bool, **novel: str) -> None:
    """Claim ``folder`` for this training, in either engine; a folder without checkpoints may be taken over.

    Raises:
        InputError: it holds checkpoints of other weights, seed or settings, of a pretraining or of Detectron2's own
            trainer, or any checkpoints without ``resume``.
    """
    if not is_main():  # torchrun ends the others if rank 0 refuses
        return
    _refuse_to_overwrite(folder, resume)
    file = folder / CLAIM
    now = {"initial weights": weights, "seed": seed, "training settings": identity(cfg, evaluation=False), **novel}
    if not has_checkpoint(folder):
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


@dataclass(frozen=True)
class _Command:
    """An experiment with the engine that runs it and what the command line asks for."""

    experiment: Experiment
    engine: Engine
    request: Request

    @functools.cached_property
    def network(self) -> dict[str, Any]:
        """What the network is made of and needs, for ``network.json`` and the records; counted once for all trials."""
        cfg = self.experiment.cfg
        found: dict[str, Any] = {}
        if cfg.MODEL.BACKBONE.ARCH:
            found["architecture"] = str(any_backbone.detector_architecture(cfg))
            found["changes"] = any_backbone.changes(cfg)
        if unsupported(cfg) is None:  # what Detectron2 alone builds is not counted
            cost = cost_of(cfg)
            say(f"network: {cost}")
            found |= cost.as_record()
        return found

    @functools.cached_property
    def novel(self) -> dict[str, str]:
        """See ``_novel``; read once for all trials."""
        return _novel(self.experiment.cfg, self.request)

    def run_trial(self, trial: int) -> None:
        """Fine-tune unless only to evaluate, predict, and append the records; nothing if they are there already."""
        cfg, request, initial = self.experiment.cfg, self.request, self.experiment.initial
        # Rank 0 decides for all: it appends the records, and the others may read earlier or later.
        is_done = is_main() and _is_done(cfg, request, self.engine, initial, trial, self.novel)
        if any_rank(is_done, choose_device(cfg.MODEL.DEVICE, "MODEL.DEVICE")):
            say(f"trial {trial}: its records are in {_results(cfg, request)} already")
            return
        folder = _folder(cfg, trial)
        folder.mkdir(parents=True, exist_ok=True)
        if not request.eval_only:
            _claim(folder, cfg, initial.sha256, cfg.SEED + trial, request.resume, **self.novel)
        if is_main():
            write_text(folder / "config.yaml", dump(cfg))
            if not request.eval_only:
                write_classes(folder, classes_of(self.experiment.task.train[0], self.engine.name))
            write_text(folder / "network.json", json.dumps(self.network, indent=1))
        if request.eval_only:
            detector = initial
            check_trained(detector, InitialWeights(NONE))
        else:
            detector = self._finetune(trial, folder)
        entries: list[dict[str, Any]] = []  # of all test sets at once: one alone would look like the whole trial
        for predictions in self.engine.predict(replace(self.experiment, initial=detector), folder):
            if is_main():
                entries += self._records(predictions, trial, folder)
        if is_main():
            file = _results(cfg, request)
            keep(file.parent, identity(cfg), decisive(cfg))
            records.append(file, entries)
            say(f"{counted(len(entries), 'record')} appended to {file}")

    def _finetune(self, trial: int, folder: Path) -> InitialWeights:
        cfg, task, resume = self.experiment.cfg, self.experiment.task, self.request.resume
        experiment = replace(self.experiment, task=task.with_shots(draw_of(cfg, trial)))

        def main_score(predictions: Predictions) -> float:
            return next(iter(next(task.evaluate(predictions)).metrics.values()))

        if not resume and world_size() == 1 and cfg.SOLVER.MAX_ITER >= WORTH_AN_ESTIMATE:
            found = estimate(experiment)
            say(f"{found.line()}" + f"; trial {trial + 1} of {cfg.TRIALS}" * (cfg.TRIALS > 1) if found else NO_ESTIMATE)
        finetuned = self.engine.finetune(experiment, cfg.SEED + trial, folder, resume=resume, score=main_score)
        detector = read_trained(finetuned.weights)
        check_trained(detector, experiment.initial)
        if finetuned.seconds_per_step == finetuned.seconds_per_step:
            say(f"{finetuned.seconds_per_step:.3f} s per iteration")
        return detector

    def _records(self, predictions: Predictions, trial: int, folder: Path) -> list[dict[str, Any]]:
        """Score predictions, the records; keep the outcomes of every image, the errors and some drawn images."""
        cfg, task, initial = self.experiment.cfg, self.experiment.task, self.experiment.initial
        dataset, file = predictions.dataset, _results(cfg, self.request)
        say(f"{dataset}: {predictions.seconds_per_image:.3f} s per image")
        checkpoint = {**initial.checkpoint, "name": weights_name(initial.name), "sha256": initial.sha256}
        details = {**self.network, **self.novel, "finetuned": not self.request.eval_only}
        if (draw := draw_of(cfg, trial)) is not None:
            details |= {"draw": draw, "shots": cfg.FEW_SHOT.SHOTS}
        if dataset in task.overlap:
            details["overlap"] = task.overlap[dataset]
        if task.train and changed(cfg, "SEMI"):
            details["labels"] = labels_of(cfg, task.train, task.test, cfg.SEED + trial)
        entries = []
        for found in task.evaluate(predictions):
            stem = f"{found.task}-{dataset}-{checkpoint['name']}-t{trial}"
            items = records.write_items(file.parent, stem, in_groups(found.outcomes, task.groups[dataset]))
            table(f"{dataset}, {found.task}", list(found.metrics), [[f"{v:.2f}" for v in found.metrics.values()]])
            for metric, value in found.metrics.items():
                entries.append(
                    records.make_record(
                        found.task, metric, value, checkpoint=checkpoint, network=initial.network, trial=trial,
                        seed=cfg.SEED + trial, protocol=cfg.PROTOCOL, config=identity(cfg), engine=predictions.engine,
                        dataset=dataset, items=items, data=task.size(dataset), **details,
                    )
                )  # fmt: skip
            if found.errors is not None:
                kind = found.task.split("/")[1]
                write_analysis(folder / f"errors_{file_stem(dataset)}_{kind}.json", found.errors())
        for path in task.draw(predictions, folder / "visuals", cfg.TEST.VISUALS):
            say(f"wrote {path}")
        return entries
