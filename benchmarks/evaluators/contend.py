"""One evaluator of ``benchmarks/scores.py`` in a process of its own, from two files to its tables.

Prints its version, CPU seconds until the files are read and until the summary is there, and the process's peak memory;
imports come before the clock. Leaves ``precision`` and ``recall`` (or the summary alone) in an .npz file.
"""

import argparse
import contextlib
import importlib
import importlib.metadata
import io
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)

import numpy as np

#: Distribution and what is imported before the clock starts.
MODULES = {
    "ours": ("momentum-transfer", "momentum_transfer.transfer.scores.lvis"),
    "ours-numpy": ("momentum-transfer", "momentum_transfer.transfer.scores.lvis"),
    "hotcoco": ("hotcoco", "hotcoco"),
    "ultrafast-pycocotools": ("ultrafast-pycocotools", "ultrafast_pycocotools"),
    "vernier": ("vernier", "vernier.instance"),
    "faster-coco-eval": ("faster-coco-eval", "faster_coco_eval"),
    "pycocotools": ("pycocotools", "pycocotools.cocoeval"),
    "lvis-api": ("lvis", "lvis"),
}

Result = dict[str, np.ndarray]  # precision and recall, or percent: the summary
Evaluator = Callable[[str, str, Any, bool, Callable[[], None]], Result]


def ours(truth: str, results: str, iou_type: Any, federated: bool, read: Callable[[], None]) -> Result:
    """momentum_transfer.transfer.scores; its files are read when the tables begin."""
    from momentum_transfer.transfer.scores import coco, lvis

    module: Any = lvis if federated else coco
    tabulate = module.tabulate

    def begin(*args: Any) -> Any:
        read()
        return tabulate(*args)

    module.tabulate = begin
    scores = module.evaluate(truth, results, iou_type)
    return {
        "precision": scores.precision, "recall": scores.recall, "percent": np.array(list(scores.metrics.values()))
    }  # fmt: skip


def ours_numpy(*args: Any) -> Result:
    """momentum_transfer.transfer.scores where numba is not installed."""
    sys.modules["numba"] = None  # type: ignore[assignment]  # importing it fails
    return ours(*args)


def hotcoco(truth: str, results: str, iou_type: Any, federated: bool, read: Callable[[], None]) -> Result:
    """hotcoco's COCOeval, its LVISResults for LVIS."""
    import hotcoco as module

    index = module.COCO(truth)
    detections = module.LVISResults(index, results) if federated else index.load_res(results)
    read()
    return _run(module.COCOeval(index, detections, iou_type, **_style(federated)))


def ultrafast(truth: str, results: str, iou_type: Any, federated: bool, read: Callable[[], None]) -> Result:
    """ultrafast-pycocotools' COCOeval."""
    import ultrafast_pycocotools as module

    index = module.COCO(truth)
    detections = index.loadRes(results)
    read()
    return _run(module.COCOeval(index, detections, iou_type, **_style(federated)))


def vernier(truth: str, results: str, iou_type: Any, federated: bool, read: Callable[[], None]) -> Result:
    """vernier's own interface in its strict mode; it reads the results while it evaluates, and gives the summary."""
    import vernier.instance as module

    content = Path(truth).read_bytes()
    index = module.CocoDataset.from_lvis_json(content) if federated else module.CocoDataset.from_json(content)
    detections = Path(results).read_bytes()
    read()
    kind = module.Bbox() if iou_type == "bbox" else module.Segm()
    summary = module.Evaluator(iou=kind, parity_mode="strict").evaluate(index, detections, num_threads=1)
    return {"percent": np.array(summary.stats) * 100}


def faster_coco_eval(truth: str, results: str, iou_type: Any, _: bool, read: Callable[[], None]) -> Result:
    """The C++ evaluator of pycocotools' interface."""
    from faster_coco_eval import COCO, COCOeval_faster

    index = COCO(truth)
    detections = index.loadRes(results)
    read()
    return _run(COCOeval_faster(index, detections, iou_type, print_function=lambda *_: None))


def pycocotools(truth: str, results: str, iou_type: Any, _: bool, read: Callable[[], None]) -> Result:
    """COCOeval as its examples run it."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    index = COCO(truth)
    detections = index.loadRes(results)
    read()
    return _run(COCOeval(index, detections, iou_type))


def lvis_api(truth: str, results: str, iou_type: Any, _: bool, read: Callable[[], None]) -> Result:
    """LVISEval; this process gives NumPy 2 the ``np.float`` that its last release uses."""
    setattr(np, "float", float)  # noqa: B010 (as an attribute, linters would undo it)
    from lvis import LVIS, LVISEval, LVISResults

    index = LVIS(truth)
    detections = LVISResults(index, results)
    read()
    evaluation = LVISEval(index, detections, iou_type)
    evaluation.run()
    return {key: evaluation.eval[key] for key in ("precision", "recall")}


def _style(federated: bool) -> dict[str, Any]:
    return {"lvis_style": True} if federated else {}


def _run(evaluation: Any) -> Result:
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return {key: evaluation.eval[key] for key in ("precision", "recall")}


EVALUATORS: dict[str, Evaluator] = {
    "ours": ours,
    "ours-numpy": ours_numpy,
    "hotcoco": hotcoco,
    "ultrafast-pycocotools": ultrafast,
    "vernier": vernier,
    "faster-coco-eval": faster_coco_eval,
    "pycocotools": pycocotools,
    "lvis-api": lvis_api,
}


def main(args: argparse.Namespace) -> None:
    """Time it."""
    distribution, module = MODULES[args.name]
    importlib.import_module(module)
    times = [time.process_time()]
    with contextlib.redirect_stdout(io.StringIO()):  # the references talk
        result = EVALUATORS[args.name](
            str(args.truth), str(args.results), args.iou_type, args.federated, lambda: times.append(time.process_time())
        )
    times.append(time.process_time())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
    np.savez(args.tables, **result)  # type: ignore[arg-type]  # the stubs take these for its options
    version = "" if args.name.startswith("ours") else importlib.metadata.version(distribution)
    print(json.dumps({"load": times[1] - times[0], "evaluate": times[2] - times[1], "peak": peak, "version": version}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=EVALUATORS)
    for file in ("truth", "results", "tables"):
        parser.add_argument(file, type=Path)
    parser.add_argument("--iou-type", default="bbox")
    parser.add_argument("--federated", action="store_true")
    main(parser.parse_args())
