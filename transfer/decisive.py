"""What each setting decides: nothing, the scores only, or the training; identity, claims and resumption go by it."""

from __future__ import annotations

from fvcore.common.config import CfgNode

from momentum_transfer.core.settings import config_hash, keys_of, value_of
from momentum_transfer.transfer.data.detection_datasets import content_name

NOTHING, SCORES, TRAINING = "nothing", "scores", "training"
#: Key or section -> what it decides; the longest prefix counts, and what is not named decides the training.
DECIDES = {
    "OUTPUT_DIR": NOTHING,
    "TRIALS": NOTHING,
    "ENGINE": NOTHING,
    "FIT_TO_DATA": NOTHING,
    "FIT_RATE": NOTHING,
    "DATASETS.ROOT": NOTHING,
    "DATALOADER.NUM_WORKERS": NOTHING,
    "MODEL.DEVICE": NOTHING,
    "MODEL.WEIGHTS": NOTHING,  # records and claims have the weights' own hash
    "MODEL.SEM_SEG_HEAD.CACHE": NOTHING,
    "MODEL.SEM_SEG_HEAD.CACHE_GB": NOTHING,
    "SOLVER.CHECKPOINT_PERIOD": NOTHING,
    "TEST.VISUALS": NOTHING,
    "PROTOCOL": SCORES,
    "DATASETS.TEST": SCORES,
    "TEST": SCORES,
    "TEST.PRECISE_BN": TRAINING,  # of the detector that a training leaves
}


def decides(key: str) -> str:
    """What the setting of a dotted key decides."""
    while key and key not in DECIDES:
        key = key.rpartition(".")[0]
    return DECIDES.get(key, TRAINING)


def decisive(cfg: CfgNode, evaluation: bool = True) -> CfgNode:
    """The settings that decide the training and, with ``evaluation``, the scores.

    A set of images from `open_own` is named by its content, wherever its file is.
    """
    kept = cfg.clone()
    kept.defrost()
    for split in ("TRAIN", "TEST"):
        kept.DATASETS[split] = type(cfg.DATASETS[split])(content_name(name) for name in cfg.DATASETS[split])
    for key in list(keys_of(kept)):
        if decides(key) == NOTHING or (decides(key) == SCORES and not evaluation):
            section, _, name = key.rpartition(".")
            del (value_of(kept, section) if section else kept)[name]
    return kept


def identity(cfg: CfgNode, evaluation: bool = True) -> str:
    """Hash of the `decisive` settings: twelve hex digits."""
    return config_hash(decisive(cfg, evaluation))
