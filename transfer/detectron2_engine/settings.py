"""Detectron2's own configuration from ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fvcore.common.config import CfgNode

from momentum_transfer.devices import choose_device
from transfer.config import add_own_keys
from transfer.data.datasets import short_name
from transfer.torchvision_engine.models import freeze_at

#: Names of Detectron2's whose builder is ours: ResNets of basic blocks, any backbone, FCOS, C4's heads of any depth.
OWN_BUILDERS = {
    "BACKBONE": (
        "build_resnet_backbone",
        "build_resnet_fpn_backbone",
        "build_retinanet_resnet_fpn_backbone",
        "build_fcos_resnet_fpn_backbone",
        "build_resnet_deeplab_backbone",
    ),
    "ROI_HEADS": ("Res5ROIHeads", "Res5ROIHeadsExtraNorm"),
}


def detectron2_config(cfg: CfgNode, seed: int, out_dir: Path) -> Any:
    """Detectron2's configuration with our settings merged into it."""
    from detectron2.config import get_cfg

    theirs = add_own_keys(get_cfg())
    theirs.merge_from_other_cfg(cfg)
    theirs.OUTPUT_DIR, theirs.SEED = str(out_dir), seed
    theirs.MODEL.WEIGHTS = ""
    theirs.DATASETS.TRAIN = tuple(data_name(short_name(name)) for name in cfg.DATASETS.TRAIN)
    theirs.MODEL.DEVICE = str(choose_device(cfg.MODEL.DEVICE, "MODEL.DEVICE"))
    if cfg.MODEL.BACKBONE.FROZEN:
        theirs.MODEL.BACKBONE.FREEZE_AT = freeze_at(cfg)
    for part, names in OWN_BUILDERS.items():
        if theirs.MODEL[part].NAME in names:
            theirs.MODEL[part].NAME = own_name(theirs.MODEL[part].NAME)
    if theirs.MODEL.META_ARCHITECTURE == "FCOS":
        theirs.MODEL.META_ARCHITECTURE = own_name("FCOS")
    theirs.freeze()
    return theirs


def own_name(name: str) -> str:
    """The name of our builder in Detectron2's registries, whose own entry of that name stays what it is."""
    return f"momentum-transfer/{name}"


def data_name(dataset: str) -> str:
    """A data set's name in Detectron2's catalogue, which has sets of the same names with paths of its own."""
    return f"momentum-transfer/{dataset}"
