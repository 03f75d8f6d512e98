"""Score predictions against ground truth, outside any engine, and append the scores to a results file.

python tools/score.py coco instances_val2017.json predictions.json --iou-type segm
python tools/score.py lvis lvis_v1_val.json predictions.json --max-dets 300
python tools/score.py voc voc_2007_test.json predictions.json --interpolation 11-point
python tools/score.py semantic gtFine/val predictions/ --classes 19
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

if not __package__:  # python tools/NAME.py
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from momentum_transfer.core import records
from momentum_transfer.core.command import run_tool
from momentum_transfer.core.errors import InputError, counted
from momentum_transfer.core.files import sha256_of, sha256_of_text
from momentum_transfer.core.log import say, table
from momentum_transfer.core.untrusted import read_lines

#: The options of each task, with their defaults.
_COCO = {"iou_type": "bbox", "area_from": "file", "max_dets": None}
_OPTIONS: dict[str, dict[str, Any]] = {
    "coco": _COCO,
    "lvis": _COCO,
    "voc": {"interpolation": "11-point"},
    "semantic": {"classes": None, "ignore_label": 255, "absent_classes": "ground-truth"},
}


def main(args: argparse.Namespace) -> None:
    task, settings = _settings(args)
    file = _target(args)
    scores_of_task = import_module(f"momentum_transfer.transfer.scores.{args.task}")  # alone: another imports scipy
    scores = scores_of_task.evaluate(args.ground_truth, args.predictions, **settings)
    values = [f"{value:.2f}" for value in scores.metrics.values()]
    table(f"{task} of {args.predictions}", list(scores.metrics), [values])
    if args.per_class:
        table("per class", ("class", "IoU" if task == "semantic" else "AP"),
              [(name, f"{value:.2f}") for name, value in scores.per_class.items()])  # fmt: skip
    if args.errors:
        _write_errors(args, scores, settings)
    origin = _origin(args, settings)
    known = {**origin, "sha256": origin["checkpoint"]["sha256"], "task": task}
    del known["checkpoint"]
    new = {name: value for name, value in scores.metrics.items() if not records.done(file, metric=name, **known)}
    if new:
        title = f"{task}-{origin['dataset']}-{origin['checkpoint']['name']}-t{args.trial}"
        settings["items"] = records.write_items(file.parent, title, scores.items)
    records.append(file, [records.make_record(task, name, value, **origin, **settings) for name, value in new.items()])
    say(f"{counted(len(new), 'record')} appended to {file}" if new else f"these scores are in {file} already")


def _write_errors(args: argparse.Namespace, scores: Any, settings: Mapping[str, Any]) -> None:
    """Analyse the errors, for the report and as a table."""
    from momentum_transfer.transfer.error_analysis.analysis import analyse, write_analysis

    limit = settings.get("max_dets", 300) if args.task == "lvis" else 300
    analysis = analyse(args.task, args.ground_truth, args.predictions, settings.get("iou_type", "bbox"), limit,
                       scores.per_class)  # fmt: skip
    write_analysis(args.errors, analysis)
    rows = [(name, entry["number"], "–" if entry["cost"] is None else f"{entry['cost']:.2f}")
            for name, entry in analysis["kinds"].items()]  # fmt: skip
    table("errors at IoU 0.5", ("kind", "number", "points of AP50"), rows)
    say(f"wrote {args.errors}")


def _settings(args: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """The task as records name it, and the arguments of its evaluate function."""
    options = _OPTIONS[args.task]
    if args.errors and args.task == "semantic":
        raise InputError("expected --errors with coco, lvis or voc, found semantic, whose errors are no detections")
    for option in {name for others in _OPTIONS.values() for name in others} - options.keys():
        if getattr(args, option) is not None:
            raise InputError(f"expected only {_flags(options)} with {args.task}, found {_flags([option])}")
    settings = {
        name: default if getattr(args, name) is None else getattr(args, name) for name, default in options.items()
    }
    if args.task == "semantic":
        return "semantic", settings | {"classes": _classes(args.classes)}
    if args.task == "voc":
        return "voc/bbox", settings
    if args.area_from is not None and settings["iou_type"] == "bbox":
        raise InputError("expected --area-from with --iou-type segm only: the size of a box is its own")
    if settings["max_dets"] is None:
        del settings["max_dets"]
    return f"{args.task}/{settings['iou_type']}", settings


def _flags(names: Iterable[str]) -> str:
    return ", ".join("--" + name.replace("_", "-") for name in names)


def _classes(text: str | None) -> int | list[str] | None:
    if text is None:
        return None
    with contextlib.suppress(ValueError):
        return int(text)
    return [line for line in read_lines(Path(text), "--classes as a number or a file with one name a line,") if line]


def _target(args: argparse.Namespace) -> Path:
    """The results file; checked before any compute that it can be written."""
    file = Path(args.results or Path(args.predictions).parent / "results.jsonl")
    existing = next((path for path in (file, *file.absolute().parents) if path.exists()), file)
    if file.is_dir() or (existing != file and not existing.is_dir()):
        raise InputError(f"expected --results as a file in a folder, found {file}, but {existing} is "
                         f"{'a folder' if existing.is_dir() else 'a file'}")  # fmt: skip
    if existing == file and any(file.samefile(path) for path in (args.ground_truth, args.predictions)
                                if Path(path).exists()):  # fmt: skip
        raise InputError(f"expected --results as a file of its own, found {file}, which is to be scored")
    if not os.access(existing, os.W_OK):
        raise InputError(f"expected --results where you may write, found {file}")
    return file


def _origin(args: argparse.Namespace, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Where the scores come from, by content; without a checkpoint file the predictions stand for the weights."""
    if args.task == "semantic":
        from momentum_transfer.transfer.scores import semantic

        files = zip(*semantic.pairs(args.ground_truth, args.predictions), strict=True)
        truth, predictions = map(_hash_of_files, (args.ground_truth, args.predictions), files)
    else:
        truth, predictions = sha256_of(args.ground_truth), sha256_of(args.predictions)
    weights = Path(args.checkpoint) if args.checkpoint else None
    digest = sha256_of(weights) if weights is not None and weights.is_file() else predictions
    return {
        "checkpoint": {"name": args.checkpoint or Path(args.predictions).stem, "sha256": digest},
        "predictions_sha256": predictions,
        "ground_truth_sha256": truth,
        "dataset": args.dataset or Path(args.ground_truth).stem,
        "config": sha256_of_text(repr(sorted(settings.items())))[:12],
        "protocol": args.protocol,
        "network": args.network,
        "engine": args.engine,
        "trial": args.trial,
    }


def _hash_of_files(side: str, files: Iterable[Path]) -> str:
    """Hash names, relative to the folder or list, and contents, so that a moved copy is the same."""
    start = side if Path(side).is_dir() else Path(side).parent
    return sha256_of_text("".join(f"{os.path.relpath(file, start)}\0{sha256_of(file)}\n" for file in files))


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("task", choices=("coco", "lvis", "voc", "semantic"))
    add("ground_truth", metavar="GT", help="annotation JSON; semantic: folder or list of label PNGs")
    add("predictions", metavar="PREDICTIONS", help="COCO result JSON; semantic: folder or list of PNGs")
    add("--iou-type", choices=("bbox", "segm"), help="coco and lvis: boxes (default) or masks")
    add("--max-dets", type=int, help="coco: per image and class (100); lvis: per image (300)")
    add("--area-from", choices=("file", "mask"),
                        help="segm: a detection's size from its bbox where there is one (pycocotools; default), "
                        "or from its mask (Detectron2)")  # fmt: skip
    add("--interpolation", choices=("11-point", "area"),
                        help="voc: 11-point (default) for 2007, area for 2010 and later")  # fmt: skip
    add("--classes", help="semantic: number of classes, or a file with one name a line")
    add("--ignore-label", type=int, help="semantic: label that is left out (255)")
    add("--absent-classes", choices=("ground-truth", "union"),
                        help="semantic: mIoU over classes of the ground truth (default), or of either")  # fmt: skip
    add("--per-class", action="store_true", help="print a score per class too")
    add("--errors", type=Path, metavar="FILE.json",
        help="coco, lvis, voc: which errors were made, for report --runs (name it errors_NAME.json)")  # fmt: skip
    add("--results", metavar="FILE", help="default: results.jsonl beside the predictions")
    for option, help_text in {
        "--checkpoint": "file or name of the weights that made the predictions, for the records",
        "--network": "teacher or student, for the records",
        "--dataset": "for the records; default: the ground truth's name",
        "--protocol": "name of the preset, for the records",
        "--engine": "what made the predictions, for the records",
    }.items():
        add(option, default="", help=help_text)
    add("--trial", type=int, default=0, help="which repetition, for the records")
    return parser


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
