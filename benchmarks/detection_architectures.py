"""Any backbone under detectors and the linear segmentation probe: trained briefly on digits, refused, how long.

python benchmarks/detection_architectures.py [--architecture convnext …] [--steps 2] [--parity]

Every architecture at random weights: Mask R-CNN and RetinaNet train a few iterations and predict, a linear segmentation
probe is fitted twice, the second time on cached features. CPU seconds; "refused" with the reason. --parity: instead the
largest differences between the torchvision engine and Detectron2 (needs Detectron2); masks are the fraction of pixels.
"""

import argparse
import importlib.util
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch

from momentum_transfer.core.command import run_tool
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.log import say, table
from momentum_transfer.transfer import config
from momentum_transfer.transfer.config import check_settings
from momentum_transfer.transfer.detector_run import choose_engine
from momentum_transfer.transfer.experiment import Experiment
from momentum_transfer.transfer.initial_weights import InitialWeights, read_trained
from momentum_transfer.transfer.tasks import open_task

ARCHITECTURES = {
    "convnext": "timm:convnext_atto",
    "convnextv2": "timm:convnextv2_atto",
    "swin": "timm:swin_tiny_patch4_window7_224",
    "swinv2": "timm:swinv2_tiny_window8_256",
    "regnet": "timm:regnety_002",
    "efficientnet": "timm:efficientnet_b0",
    "resnext": "timm:resnext26ts",
    "mobilenet": "timm:mobilenetv3_small_100",
    "maxvit": "timm:maxvit_rmlp_pico_rw_256?img_size=128",
    "vit": "timm:vit_small_patch16_224",
    "vit-registers": "timm:vit_small_patch14_reg4_dinov2",
    "dinov3": "timm:vit_small_patch16_dinov3",
    "siglip": "timm:vit_base_patch16_siglip_224?depth=4",
    "vitdet": "timm:vit_small_patch16_224",
    "hiera": "timm:hiera_tiny_224?img_size=128",
}
#: What an architecture needs beside its name.
SETTINGS = {
    "maxvit": "MODEL.BACKBONE.SQUARE 128 INPUT.MAX_SIZE_TRAIN 128 INPUT.MAX_SIZE_TEST 128",
    "hiera": "MODEL.BACKBONE.SQUARE 128 INPUT.MAX_SIZE_TRAIN 128 INPUT.MAX_SIZE_TEST 128",
    "vitdet": "MODEL.VIT.FORM vitdet MODEL.VIT.WINDOW 4 MODEL.VIT.RELATIVE_POSITIONS True",
}
DETECTORS = {"Mask R-CNN": "smoke/mask_rcnn_digits", "RetinaNet": "smoke/retinanet_digits"}
PROBE = "smoke/linear_segmentation_digits"
#: Every candidate is a detection, so that random weights give something to compare.
KEEP_ALL = """MODEL.ROI_HEADS.SCORE_THRESH_TEST 0.0 MODEL.RETINANET.SCORE_THRESH_TEST 0.0
TEST.DETECTIONS_PER_IMAGE 40"""


def settings(file: str, name: str, folder: str, steps: int, *more: str) -> Any:
    """A smoke config on another network."""
    short = ["SOLVER.MAX_ITER", str(steps), "SOLVER.STEPS", "()", "SOLVER.IMS_PER_BATCH", "4", "TEST.VISUALS", "0"]
    network = ["MODEL.BACKBONE.ARCH", ARCHITECTURES[name], "MODEL.FPN.NORM", "LN", "TEST.PRECISE_BN.ENABLED", "False"]
    return config.load(file, [*short, *network, "OUTPUT_DIR", folder, *SETTINGS.get(name, "").split(), *more])


def run(cfg: Any, folder: Path, predict: bool) -> float:
    """Train, and predict on the test images; CPU seconds."""
    check_settings(cfg)
    engine, _ = choose_engine("torchvision", cfg)
    task = open_task(cfg)
    begun = time.process_time()
    finetuned = engine.finetune(Experiment(cfg, task, InitialWeights("none")), 0, folder)
    if predict:
        engine.predict(Experiment(cfg, task, read_trained(finetuned.weights)), folder)
    return time.process_time() - begun


def cells(name: str, steps: int, probe_steps: int) -> tuple[list[str], list[str]]:
    """The row of an architecture, and what was refused and why."""
    found, reasons = [], []
    with tempfile.TemporaryDirectory() as root:
        for title, file in DETECTORS.items():
            try:
                folder = f"{root}/{title}"
                found.append(f"done, {run(settings(file, name, folder, steps), Path(folder), True):.1f} s")
            except InputError as error:
                found.append("refused")
                reasons.append(f"{name}, {title}: {error}")
        try:
            given = ["MODEL.SEM_SEG_HEAD.CACHE", f"{root}/features"]
            if name == "vitdet":
                given += ["MODEL.VIT.FORM", "network", "MODEL.VIT.WINDOW", "0", "MODEL.VIT.RELATIVE_POSITIONS", "False"]
            cfg = settings(PROBE, name, f"{root}/probe", probe_steps, *given)
            first, second = (run(cfg, Path(root) / f"head{number}", False) for number in (1, 2))
            found.append(f"done, {first:.1f} s, then {second:.1f} s: {first / second:.1f}×")
        except InputError as error:
            found.append("refused")
            reasons.append(f"{name}, segmentation: {error}")
    return found, reasons


def differences(name: str, file: str) -> dict[str, float]:
    """Largest differences between the engines at random weights."""
    from benchmarks import engine_parity as parity
    from benchmarks.parity import samples_of

    cfg = settings(file, name, "unused", 1, *KEEP_ALL.split())
    check_settings(cfg)
    samples = samples_of(cfg, 128)
    ours, detectron2 = parity.random_pair(cfg, samples)
    return parity.prediction_differences(ours, detectron2, samples)


def main(args: argparse.Namespace) -> None:
    """One row an architecture."""
    if args.parity and importlib.util.find_spec("detectron2") is None:
        raise InputError("parity needs Detectron2, which is not installed; see its own installation page")
    rows: list[tuple[str, ...]] = []
    reasons: list[str] = []
    for name in args.architecture:
        if args.parity:
            for title, file in DETECTORS.items():
                try:
                    found = differences(name, file)
                    row = [f"{found[key]:.1e}" if found.get(key) else "0" if key in found else "" for key in _COMPARED]
                except InputError as error:
                    row, reasons = ["refused"] * len(_COMPARED), [*reasons, f"{name}, {title}: {error}"]
                rows.append((name, title, *row))
        else:
            found_here, why = cells(name, args.steps, args.probe_steps)
            rows.append((name, *found_here))
            reasons += why
        say(" · ".join(rows[-1]))
    columns = ["detector", *_COMPARED] if args.parity else [*DETECTORS, "linear segmentation: two heads"]
    table("any backbone", ["architecture", *columns], rows)
    for reason in reasons:
        say(reason)


_COMPARED = ("boxes", "scores", "masks")

if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architecture", nargs="+", choices=ARCHITECTURES, default=list(ARCHITECTURES), metavar="NAME")
    parser.add_argument("--steps", type=int, default=2, help="iterations of a detector (default: %(default)s)")
    parser.add_argument("--probe-steps", type=int, default=20, help="iterations of a segmentation head")
    parser.add_argument("--parity", action="store_true", help="compare the engines")
    sys.exit(run_tool(parser, main))
