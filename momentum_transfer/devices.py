"""The device that a config asks for."""

from __future__ import annotations

import torch
from fvcore.common.config import CfgNode

from momentum_transfer.console import say
from momentum_transfer.distributed import local_rank


def device_of(cfg: CfgNode) -> torch.device:
    """MODEL.DEVICE, or the CPU (said aloud) where ``cuda`` is asked for and absent.

    Under torchrun ``cuda`` is this process's own GPU, which also becomes the current one: collectives of NCCL, and all
    of Detectron2, run there.
    """
    if cfg.MODEL.DEVICE.startswith("cuda") and not torch.cuda.is_available():
        say("MODEL.DEVICE is cuda, but there is no CUDA device: running on the CPU")
        return torch.device("cpu")
    if cfg.MODEL.DEVICE != "cuda":
        return torch.device(cfg.MODEL.DEVICE)
    torch.cuda.set_device(local_rank())
    return torch.device("cuda", local_rank())
