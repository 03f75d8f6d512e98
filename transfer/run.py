"""One transfer experiment: check the data, fine-tune and predict in an engine, score outside it, keep records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fvcore.common.config import CfgNode

from momentum_transfer import items
from momentum_transfer import records as results
from momentum_transfer.console import say, table
from momentum_transfer.devices import choose_device
from momentum_transfer.distributed import any_rank, barrier, is_main, process_group
from momentum_transfer.errors import InputError
from momentum_transfer.files import weights_name, write_text
from momentum_transfer.settings import config_hash, dump
from momentum_transfer.verdicts.outcomes import Outcomes
from transfer.config import is_semantic
from transfer.data.check_datasets import check_data
from transfer.data.datasets import get_dataset
from transfer.data.semantic_datasets import get_semantic_dataset, write_truth
from transfer.data.semantic_overview import draw_label_predictions
from transfer.engine import Engine, Predictions
from transfer.engines import choose_engine
from transfer.initial_weights import read_initial
from transfer.ranges import check_settings
from transfer.scores import coco, lvis, semantic, voc
from transfer.visuals import draw_detections

#: Settings that decide where things lie and how fast they are read, but no number; "" is the top level.
_FREE = {
    "": ("OUTPUT_DIR", "TRIALS", "ENGINE"),
    "DATASETS": ("ROOT",),
    "DATALOADER": ("NUM_WORKERS",),
    "MODEL": ("DEVICE",),
    "SOLVER": ("CHECKPOINT_PERIOD",),
    "TEST": ("VISUALS",),
}


@dataclass(frozen=True)
class Request:
    """What the command line asks for. results: where records go (None: OUTPUT_DIR/results.jsonl)."""

    weights: str
    results: Path | None = None
    resume: bool = False
    eval_only: bool = False


def run(cfg: CfgNode, request: Request) -> None:
    """All trials of a config. What a results file holds already is not done again."""
    check_settings(cfg)
    engine, why = choose_engine(cfg.ENGINE, cfg)
    say(why)
    if request.eval_only and request.weights.lower() == "none":
        raise InputError("expected a trained detector (model_final.pth) with --eval-only, found --weights none")
    initial = read_initial(request.weights)  # before the data: a wrong file is refused at once
    check_data(cfg)
    checkpoint = {"name": weights_name(initial.name), "sha256": initial.sha256, "network": initial.network}
    with process_group(choose_device(cfg.MODEL.DEVICE, "MODEL.DEVICE")):
        for trial in range(cfg.TRIALS):
            folder = Path(cfg.OUTPUT_DIR) / f"trial_{trial}" if cfg.TRIALS > 1 else Path(cfg.OUTPUT_DIR)
            _trial(cfg, request, engine, checkpoint, trial, folder)
            barrier()


def identity(cfg: CfgNode, evaluation: bool = True) -> str:
    """Hash of the settings that decide numbers; without ``evaluation``, of those that decide the trained weights."""
    same = cfg.clone()
    same.defrost()
    for section, keys in _FREE.items():
        for key in keys:
            del (same[section] if section else same)[key]
    if not evaluation:
        del same["TEST"], same["PROTOCOL"], same["DATASETS"]["TEST"]
    return config_hash(same)


def _claim(folder: Path, cfg: CfgNode, weights: str, seed: int, resume: bool) -> None:
    """A folder belongs to one training: the same initial weights, seed and settings, in whatever engine.

    Raises:
        InputError: it holds another training, or the same one and nothing was said of going on.
    """
    file = folder / "training.json"
    now = {"initial weights": weights, "seed": seed, "training settings": identity(cfg, evaluation=False)}
    if not is_main():  # torchrun ends the others if the first process refuses
        return
    if not file.is_file():
        write_text(file, json.dumps(now, indent=1))
        return
    if not resume:
        raise InputError(f"{folder} holds a training already; go on with --resume, or choose another OUTPUT_DIR")
    before = json.loads(file.read_text(encoding="utf-8"))
    for key, value in now.items():
        if before.get(key) != value:
            raise InputError(
                f"cannot resume {folder}: its training began with {key} {str(before.get(key))[:12]}, this command has "
                f"{str(value)[:12]}; use the same, or another OUTPUT_DIR"
            )


def _trial(
    cfg: CfgNode, request: Request, engine: Engine, checkpoint: Mapping[str, str], trial: int, folder: Path
) -> None:
    file = request.results or Path(cfg.OUTPUT_DIR) / "results.jsonl"
    wanted = {"trial": trial, "config": identity(cfg), "sha256": checkpoint["sha256"], "engine": engine.name}
    wanted["finetuned"] = not request.eval_only
    # The first process decides for all: it appends the records, and the others may read earlier or later.
    if any_rank(is_main() and results.done(file, **wanted), choose_device(cfg.MODEL.DEVICE, "MODEL.DEVICE")):
        say(f"trial {trial}: its records are in {file} already")
        return
    folder.mkdir(parents=True, exist_ok=True)
    seed = cfg.SEED + trial
    if not request.eval_only:
        _claim(folder, cfg, checkpoint["sha256"], seed, request.resume)
    if is_main():
        write_text(folder / "config.yaml", dump(cfg))
    if request.eval_only:
        final = Path(request.weights)
    else:

        def main_score(predictions: Predictions) -> float:
            _, metrics, _ = next(iter(_scores(cfg, predictions)))
            return next(iter(metrics.values()))

        finetuned = engine.finetune(cfg, request.weights, seed, folder, resume=request.resume, score=main_score)
        final = finetuned.weights
        if finetuned.seconds_per_step == finetuned.seconds_per_step:
            say(f"{finetuned.seconds_per_step:.3f} s per iteration")
    for predictions in engine.predict(cfg, final, folder):
        if is_main():
            _record(cfg, predictions, checkpoint, trial, seed, file, folder, finetuned=not request.eval_only)


def _record(
    cfg: CfgNode,
    predictions: Predictions,
    checkpoint: Mapping[str, str],
    trial: int,
    seed: int,
    file: Path,
    folder: Path,
    *,
    finetuned: bool,
) -> None:
    say(f"{predictions.dataset}: {predictions.seconds_per_image:.3f} s per image")
    records = []
    for task, metrics, outcomes in _scores(cfg, predictions):
        name = f"{task}-{predictions.dataset}-{checkpoint['name']}-t{trial}"
        kept = items.write(file.parent, name, outcomes)
        table(f"{predictions.dataset}, {task}", list(metrics), [[f"{value:.2f}" for value in metrics.values()]])
        for metric, value in metrics.items():
            records.append(
                results.make_record(
                    task, metric, value, checkpoint=checkpoint, network=checkpoint["network"], trial=trial, seed=seed,
                    protocol=cfg.PROTOCOL, config=identity(cfg), engine=predictions.engine, dataset=predictions.dataset,
                    finetuned=finetuned, items=kept,
                )
            )  # fmt: skip
    for path in _draw(cfg, predictions, folder / "visuals"):
        say(f"picture: {path}")
    results.append(file, records)
    say(f"{len(records)} records appended to {file}")


def _draw(cfg: CfgNode, predictions: Predictions, folder: Path) -> list[Path]:
    if is_semantic(cfg):
        labelled = get_semantic_dataset(predictions.dataset, cfg.DATASETS.ROOT or None)
        return draw_label_predictions(labelled, predictions.results, folder, cfg.TEST.VISUALS)
    data = get_dataset(predictions.dataset, cfg.DATASETS.ROOT or None)
    return draw_detections(data, predictions.results, folder, cfg.TEST.VISUALS)


def _scores(cfg: CfgNode, predictions: Predictions) -> Iterable[tuple[str, dict[str, float], Outcomes]]:
    if is_semantic(cfg):
        labelled = get_semantic_dataset(predictions.dataset, cfg.DATASETS.ROOT or None)
        truth = predictions.results.with_name(predictions.results.name.replace("results_", "truth_", 1))
        write_truth(labelled, truth)
        found = semantic.evaluate(truth, predictions.results, labelled.classes, cfg.MODEL.SEM_SEG_HEAD.IGNORE_VALUE)
        yield "semantic", found.metrics, found.items
        return
    data = get_dataset(predictions.dataset, cfg.DATASETS.ROOT or None)
    yield from score(data.kind, str(data.annotation_file), predictions, cfg.TEST.DETECTIONS_PER_IMAGE)


def score(
    kind: str, annotation_file: str, predictions: Predictions, max_dets: int
) -> Iterable[tuple[str, dict[str, float], Outcomes]]:
    """Task, metrics (percent) and outcomes per image, for each kind of overlap the predictions hold."""
    found = str(predictions.results)
    # A mask's size is its pixels, though the file holds boxes too: Detectron2's definition of APs, APm and APl.
    for iou_type in predictions.iou_types:
        if kind == "lvis":
            scores: Any = lvis.evaluate(annotation_file, found, iou_type, max_dets, area_from="mask")  # type: ignore[arg-type]
        elif kind == "voc":
            year = "area" if "2012" in predictions.dataset else "11-point"
            scores = voc.evaluate(annotation_file, found, interpolation=year)  # type: ignore[arg-type]
        else:
            scores = coco.evaluate(annotation_file, found, iou_type, area_from="mask")  # type: ignore[arg-type]
        yield f"{kind}/{iou_type}", scores.metrics, scores.items
