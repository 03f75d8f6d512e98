"""What test_two_processes.py runs in two processes: trainings, whole, stopped and resumed, and a scored one."""

import contextlib
import os
import signal
from pathlib import Path

from momentum_transfer.core import distributed
from momentum_transfer.core.command import Stopped
from momentum_transfer.transfer.run import Request, run
from momentum_transfer.transfer.torchvision_engine import train
from momentum_transfer.transfer.torchvision_engine.engine import TorchvisionEngine
from tests.transfer.torchvision_engine.test_semantic import labels_config
from tests.transfer.torchvision_engine.tiny import shapes_config, train_tiny

#: Settings of the trainings that the test repeats in one process.
STEPS = ["SOLVER.MAX_ITER", "2", "SOLVER.STEPS", "()", "SOLVER.WARMUP_ITERS", "0", "SOLVER.BASE_LR", "0.01"]
STEPS += ["SOLVER.IMS_PER_BATCH", "4", "SOLVER.CHECKPOINT_PERIOD", "1"]
#: Moving averages, proposals drawn at random, images of three sizes: all that a process has for itself.
RESUMED = [*STEPS, "INPUT.RANDOM_FLIP", "horizontal", "INPUT.MIN_SIZE_TRAIN", "[48, 64]"]
FROZEN = ["MODEL.RESNETS.NORM", "FrozenBN", "MODEL.SEM_SEG_HEAD.NORM", "GN", "MODEL.SEM_SEG_HEAD.LOSS_TYPE",
          "cross_entropy", "MODEL.SEM_SEG_HEAD.ASPP_CHANNELS", "32", "MODEL.SEM_SEG_HEAD.CONVS_DIM", "32"]  # fmt: skip


def stop_the_second_process() -> None:
    """SIGTERM reaches only one process, at the end of its first iteration."""
    original = train.Log.add

    def add(self: train.Log, step: int, *rest: object, **times: object) -> None:
        original(self, step, *rest, **times)  # type: ignore[arg-type]
        if distributed.rank() == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        train.Log.add = original  # type: ignore[method-assign]

    train.Log.add = add  # type: ignore[method-assign]


def main(folder: Path) -> None:
    engine = TorchvisionEngine()
    for name in ("mask_rcnn", "retinanet"):
        cfg = shapes_config(name, folder, *RESUMED)
        train_tiny(engine, cfg, 3, folder / name / "whole")
        stop_the_second_process()
        with contextlib.suppress(Stopped):
            train_tiny(engine, cfg, 3, folder / name / "parts")
        train_tiny(engine, cfg, 3, folder / name / "parts", resume=True)
    train_tiny(engine, labels_config("stride16", folder / "labels", *STEPS, *FROZEN), 0, folder / "joined")
    out = str(folder / "scored")
    scored = [*STEPS, "ENGINE", "torchvision", "MODEL.ROI_HEADS.SCORE_THRESH_TEST", "0.0", "OUTPUT_DIR", out]
    run(shapes_config("mask_rcnn", folder, *scored), Request("none"))
