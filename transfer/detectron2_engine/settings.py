"""Detectron2's own configuration from ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fvcore.common.config import CfgNode

from momentum_transfer.core.devices import choose_device
from momentum_transfer.transfer.config import add_own_keys
from momentum_transfer.transfer.data.datasets import short_name

#: What ENGINE says in a configuration that this project trains; else it is Detectron2's own trainer that follows it.
ENGINE = "detectron2"


def detectron2_config(cfg: CfgNode, seed: int, out_dir: Path) -> Any:
    """Detectron2's configuration with our settings merged into it."""
    from detectron2.config import get_cfg

    theirs = add_own_keys(get_cfg())
    theirs.merge_from_other_cfg(cfg)
    theirs.ENGINE = ENGINE
    theirs.OUTPUT_DIR, theirs.SEED = str(out_dir), seed
    theirs.MODEL.WEIGHTS = ""
    theirs.DATASETS.TRAIN = tuple(data_name(short_name(name)) for name in cfg.DATASETS.TRAIN)
    theirs.MODEL.DEVICE = str(choose_device(cfg.MODEL.DEVICE, "MODEL.DEVICE"))
    theirs.freeze()
    return theirs


def data_name(dataset: str) -> str:
    """A data set's name in Detectron2's catalogue, which has sets of the same names with paths of its own."""
    return f"momentum-transfer/{dataset}"
