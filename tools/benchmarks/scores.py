"""Scores beside the public evaluators: same files, one core, one run; seconds, ratio, peak memory, largest difference.

python tools/benchmark.py scores boxes|masks|lvis|all [--images N]

Every contender runs in a process of its own, on one core, and is timed in seconds of that core, so that other work on
the machine does not count. Reading the JSON is timed apart; "evaluate" is all that follows: indexing, matching,
accumulating, summarising. Peak memory is that of the whole process; for ours, with the files given by path.
"""

import argparse
import contextlib
import importlib.util
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

import numpy as np

from momentum_transfer.console import say, table

HEIGHT, WIDTH = 480, 640

#: What each contender imports, before it is timed. A missing one does not take part.
MODULES = {
    "ours": "transfer.scores.lvis",
    "faster-coco-eval": "faster_coco_eval",
    "pycocotools": "pycocotools.cocoeval",
    "lvis-api": "lvis",
}

Tables = tuple[np.ndarray, np.ndarray]  # precision, recall
Contender = Callable[[Any, Any, Any], Tables]


def synthesise(images: int, classes: int, detections: int, segm: bool, federated: bool) -> tuple[Any, Any]:
    """Ground truth and results: ~7 objects of a few classes an image, long-tailed; 60 % of detections near one."""
    random = np.random.default_rng(0)
    frequency = 1 / np.arange(1, classes + 1)
    frequency /= frequency.sum()
    truth: dict[str, list[dict[str, Any]]] = {
        "images": [{"id": i, "height": HEIGHT, "width": WIDTH} for i in range(images)],
        "categories": [{"id": k + 1, "name": str(k), "frequency": "fcr"[min(2, k // 400)]} for k in range(classes)],
        "annotations": [],
    }
    results: list[dict[str, Any]] = []
    for image in truth["images"]:
        present = random.choice(classes, size=3 + 5 * federated, p=frequency) + 1
        count = random.poisson(7.3)
        boxes, labels = _boxes(random, count), random.choice(present, count)
        for box, label in zip(boxes.tolist(), labels.tolist(), strict=True):
            annotation = _entry(image["id"], label, box, segm) | {"iscrowd": int(random.random() < 0.01)}
            annotation |= {"id": len(truth["annotations"]) + 1, "area": box[2] * box[3] * 0.6, "bbox": box}
            truth["annotations"].append(annotation)
        if federated:
            image["neg_category_ids"] = sorted(set((random.choice(classes, 20) + 1).tolist()) - set(labels.tolist()))
            image["not_exhaustive_category_ids"] = labels[:1].tolist()
        found, guesses = _boxes(random, detections), random.choice(classes, detections, p=frequency) + 1
        if count:
            source = random.integers(0, count, detections)
            near = random.random(detections) < 0.6
            moved = boxes[source] + random.normal(0, 0.12, (detections, 4)) * boxes[source][:, [2, 3, 2, 3]]
            moved[:, 2:] = moved[:, 2:].clip(4)
            moved[:, :2] = moved[:, :2].clip(0)
            found, guesses = np.where(near[:, None], moved, found), np.where(near, labels[source], guesses)
        scores = random.beta(1, 4, detections).round(4)
        for box, label, score in zip(found.round(2).tolist(), guesses.tolist(), scores.tolist(), strict=True):
            results.append(_entry(image["id"], label, box, segm) | {"score": score})
    return truth, results


def _boxes(random: np.random.Generator, count: int) -> np.ndarray:
    side = np.exp(random.normal(4, 1, (count, 2))).clip(4, 400)
    return np.concatenate((random.random((count, 2)) * ([WIDTH, HEIGHT] - side), side), axis=1).round(2)


def _entry(image: int, label: int, box: list[float], segm: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {"image_id": image, "category_id": label}
    if not segm:
        return entry | {"bbox": box}
    from pycocotools import mask

    angles = np.linspace(0, 2 * np.pi, 16, endpoint=False)
    outline = np.stack((box[0] + box[2] * (0.5 + 0.5 * np.cos(angles)), box[1] + box[3] * (0.5 + 0.5 * np.sin(angles))))
    code = mask.frPyObjects([outline.T.ravel().tolist()], HEIGHT, WIDTH)[0]
    return entry | {"segmentation": {"size": code["size"], "counts": code["counts"].decode()}}


def ours_coco(truth: Any, results: Any, iou_type: Any) -> Tables:
    """transfer.scores.coco."""
    from transfer.scores import coco

    scores = coco.evaluate(truth, results, iou_type)
    return scores.precision, scores.recall


def ours_lvis(truth: Any, results: Any, iou_type: Any) -> Tables:
    """transfer.scores.lvis."""
    from transfer.scores import lvis

    scores = lvis.evaluate(truth, results, iou_type)
    return scores.precision, scores.recall


def pycocotools(truth: Any, results: Any, iou_type: str) -> Tables:
    """COCOeval as its examples run it."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    index = COCO()
    index.dataset = truth
    index.createIndex()
    return _run(COCOeval(index, index.loadRes(results), iou_type))


def faster_coco_eval(truth: Any, results: Any, iou_type: str) -> Tables:
    """The C++ evaluator of the same interface."""
    from faster_coco_eval import COCO, COCOeval_faster

    index = COCO(truth)
    return _run(COCOeval_faster(index, index.loadRes(results), iou_type, print_function=lambda *_: None))


def _run(evaluation: Any) -> Tables:
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return evaluation.eval["precision"], evaluation.eval["recall"]


def lvis_api(truth: Any, results: Any, iou_type: str) -> Tables:
    """LVISEval; this process gives NumPy 2 the ``np.float`` that its last release uses."""
    setattr(np, "float", float)  # noqa: B010 (as an attribute, linters would undo it)
    from lvis import LVIS, LVISEval, LVISResults

    class Loaded(LVIS):
        """LVIS reads its file itself; here reading has been timed already."""

        def _load_json(self, annotation_path: Any) -> Any:
            return annotation_path

    index: Any = Loaded(truth)
    evaluation = LVISEval(index, LVISResults(index, results), iou_type)
    evaluation.run()
    return evaluation.eval["precision"], evaluation.eval["recall"]


COCO_CONTENDERS: dict[str, Contender] = {
    "ours": ours_coco,
    "faster-coco-eval": faster_coco_eval,
    "pycocotools": pycocotools,
}
#: Name → iou type, images, classes, detections per image, contenders; ours is the first, the reference the last.
WORKLOADS: dict[str, tuple[str, int, int, int, dict[str, Contender]]] = {
    "boxes": ("bbox", 5000, 80, 100, COCO_CONTENDERS),
    "masks": ("segm", 5000, 80, 100, COCO_CONTENDERS),
    "lvis": ("bbox", 1000, 1203, 300, {"ours": ours_lvis, "lvis-api": lvis_api}),
}


def contend(workload: str, name: str, folder: Path, by_path: bool) -> None:
    """Child process: time one contender and leave its tables and figures in ``folder``."""
    files = folder / "ground_truth.json", folder / "results.json"
    iou_type, *_, contenders = WORKLOADS[workload]
    importlib.import_module(MODULES[name])
    begun = time.process_time()
    truth, results = files if by_path else (json.loads(file.read_text()) for file in files)
    loaded = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):  # the references talk
        precision, recall = contenders[name](truth, results, iou_type)
    done = time.process_time()
    np.savez(folder / f"{name}.npz", precision=precision, recall=recall)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
    print(json.dumps({"load": loaded - begun, "evaluate": done - loaded, "peak": peak}))


def _measure(workload: str, name: str, folder: Path, by_path: bool = False) -> dict[str, float]:
    command = [sys.executable, __file__, workload, "--contender", name, "--folder", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        command + ["--by-path"] * by_path, env=environment, text=True, stdout=subprocess.PIPE, check=True
    )
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def compete(workload: str, images: int | None) -> None:
    """Run all contenders of a workload on the same files and print them side by side."""
    iou_type, default_images, classes, detections, contenders = WORKLOADS[workload]
    images = images or default_images
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        inputs = synthesise(images, classes, detections, iou_type == "segm", federated=workload == "lvis")
        for file, content in zip(("ground_truth.json", "results.json"), inputs, strict=True):
            (folder / file).write_text(json.dumps(content))
        title = f"{workload}: {images} images, {classes} classes, {len(inputs[1])} detections"
        del inputs
        present = [c for c in contenders if importlib.util.find_spec(MODULES[c].split(".")[0])]
        figures = {contender: _measure(workload, contender, folder) for contender in present}
        # As users run it: what is read is dropped once it is in columns.
        figures["ours"]["peak"] = _measure(workload, "ours", folder, by_path=True)["peak"]
        rows = [_row(contender, figures, folder) for contender in present]
    table(title, ("", "load s", "evaluate s", "× ours", "peak MiB", "× ours", "largest difference"), rows)
    for missing in sorted(set(contenders) - set(present)):
        say(f"{missing} is not installed and did not take part")


def _row(contender: str, figures: dict[str, dict[str, float]], folder: Path) -> tuple[str, ...]:
    own, best = figures[contender], figures["ours"]
    with np.load(folder / f"{contender}.npz") as theirs, np.load(folder / "ours.npz") as mine:
        difference = max(
            float(np.abs(mine[name] - theirs[name].reshape(mine[name].shape)).max()) for name in ("precision", "recall")
        )
    return (
        contender, f"{own['load']:.2f}", f"{own['evaluate']:.2f}", f"{own['evaluate'] / best['evaluate']:.1f}",
        f"{own['peak']:.0f}", f"{own['peak'] / best['peak']:.1f}", f"{difference:.1e}" if difference else "0",
    )  # fmt: skip


def main() -> None:
    """Pin this process and its children to one core; run what was asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=(*WORKLOADS, "all"))
    parser.add_argument("--images", type=int, help="instead of 5000 (lvis: 1000)")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--by-path", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.contender:
        contend(args.workload, args.contender, args.folder, args.by_path)
        return
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for workload in WORKLOADS if args.workload == "all" else (args.workload,):
        compete(workload, args.images)


if __name__ == "__main__":
    main()
