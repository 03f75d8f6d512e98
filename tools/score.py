"""Score predictions against ground truth, outside any engine, and append the scores to a results file.

python tools/score.py coco instances_val2017.json predictions.json --iou-type segm
python tools/score.py lvis lvis_v1_val.json predictions.json --max-dets 300
python tools/score.py voc voc_2007_test.json predictions.json --interpolation 11-point
python tools/score.py semantic gtFine/val predictions/ --classes 19
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[1])

from pretrain.console import run_tool, say, table
from pretrain.errors import InputError
from pretrain.files import sha256_of, sha256_of_text
from transfer import results
from transfer.scores import coco, lvis, semantic, voc


def main(args: argparse.Namespace) -> None:
    """Score, print, append what the results file does not hold yet."""
    task, settings = _settings(args)
    score = {"coco": coco, "lvis": lvis, "voc": voc, "semantic": semantic}[args.task].evaluate
    scores = score(args.ground_truth, args.predictions, **settings)
    values = [f"{value:.2f}" for value in scores.metrics.values()]
    table(f"{task} of {args.predictions}", list(scores.metrics), [values])
    if args.per_class:
        table("per class", ("class", "IoU" if task == "semantic" else "AP"),
              [(name, f"{value:.2f}") for name, value in scores.per_class.items()])  # fmt: skip
    file = Path(args.results or Path(args.predictions).parent / "results.jsonl")
    origin = _origin(args, settings)
    known = {**origin, "sha256": origin["checkpoint"]["sha256"], "task": task}
    del known["checkpoint"]
    new = {name: value for name, value in scores.metrics.items() if not results.done(file, metric=name, **known)}
    results.append(file, [results.make_record(task, name, value, **origin, **settings) for name, value in new.items()])
    say(f"{len(new)} records appended to {file}" if new else f"these scores are in {file} already")


def _settings(args: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """The task as records name it, and the arguments of its evaluate function."""
    if args.task == "semantic":
        settings = {"classes": _classes(args.classes), "absent_classes": args.absent_classes}
        return "semantic", settings | {"ignore_label": args.ignore_label}
    if args.task == "voc":
        return "voc/bbox", {"interpolation": args.interpolation}
    settings = {"iou_type": args.iou_type, "area_from": args.area_from}
    if args.max_dets is not None:
        settings["max_dets"] = args.max_dets
    return f"{args.task}/{args.iou_type}", settings


def _classes(text: str | None) -> int | list[str] | None:
    if text is None or text.isdigit():
        return None if text is None else int(text)
    if not Path(text).is_file():
        raise InputError(f"expected --classes as a number or a file with one name a line, found {text}")
    return [line.strip() for line in Path(text).read_text(encoding="utf-8").splitlines() if line.strip()]


def _origin(args: argparse.Namespace, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Where the scores come from. Without a checkpoint file the predictions themselves are hashed."""
    weights = Path(args.checkpoint) if args.checkpoint else None
    hashed = weights if weights is not None and weights.is_file() else Path(args.predictions)
    files = sorted(path for path in hashed.rglob("*") if path.is_file()) if hashed.is_dir() else [hashed]
    digest = sha256_of(hashed) if hashed.is_file() else sha256_of_text("".join(map(sha256_of, files)))
    return {
        "checkpoint": {"name": args.checkpoint or Path(args.predictions).stem, "sha256": digest},
        "dataset": args.dataset or Path(args.ground_truth).stem,
        "config": sha256_of_text(repr(sorted(settings.items())))[:12],
        "protocol": args.protocol,
        "network": args.network,
        "engine": args.engine,
        "trial": args.trial,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("coco", "lvis", "voc", "semantic"))
    parser.add_argument("ground_truth", metavar="GT", help="annotation JSON; semantic: folder or list of label PNGs")
    parser.add_argument("predictions", metavar="PREDICTIONS", help="COCO result JSON; semantic: folder or list of PNGs")
    parser.add_argument("--iou-type", choices=("bbox", "segm"), default="bbox", help="coco and lvis: boxes or masks")
    parser.add_argument("--max-dets", type=int, help="coco: per image and class (100); lvis: per image (300)")
    parser.add_argument("--area-from", choices=("file", "mask"), default="file",
                        help="segm: a detection's size from its bbox where there is one (pycocotools), or from its "
                        "mask (Detectron2)")  # fmt: skip
    parser.add_argument("--interpolation", choices=("11-point", "area"), default="11-point",
                        help="voc: 11-point for 2007, area for 2010 and later")  # fmt: skip
    parser.add_argument("--classes", help="semantic: number of classes, or a file with one name a line")
    parser.add_argument("--ignore-label", type=int, default=255, help="semantic: label that is left out")
    parser.add_argument("--absent-classes", choices=("ground-truth", "union"), default="ground-truth",
                        help="semantic: mIoU over the classes of the ground truth, or also of predictions")  # fmt: skip
    parser.add_argument("--per-class", action="store_true", help="print a score per class too")
    parser.add_argument("--results", metavar="FILE", help="default: results.jsonl beside the predictions")
    for option, help_text in {
        "--checkpoint": "file or name of the weights that made the predictions, for the records",
        "--network": "teacher or student, for the records",
        "--dataset": "for the records; default: the ground truth's name",
        "--protocol": "name of the preset, for the records",
        "--engine": "what made the predictions, for the records",
    }.items():
        parser.add_argument(option, default="", help=help_text)
    parser.add_argument("--trial", type=int, default=0, help="which repetition, for the records")
    sys.exit(run_tool(parser, main))
