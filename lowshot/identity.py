"""What records say an evaluation was of and under which settings; what differs in none of it is one experiment."""

from pathlib import Path

from fvcore.common.config import CfgNode

from lowshot.config import get_cfg
from momentum_transfer.backbones.build import AnyArchitecture, own_input
from momentum_transfer.backbones.read import SourceBackbone
from momentum_transfer.backbones.resnet import Architecture
from momentum_transfer.files import sha256_of, sha256_of_text
from momentum_transfer.settings import config_hash, value_of

#: Settings that came after 2026-11-21, with the defaults under which everything is as before.
LATER: tuple[tuple[str, str, object], ...] = (
    ("DATASETS", "DRAWINGS", 1),
    ("FIXMATCH", "TEACHER_GROUP", 0),
    ("FIXMATCH", "WEAK_BATCHES", []),
)


#: Settings of where and how an evaluation works, which change none of its numbers.
FREE = ("OUTPUT_DIR", "FEATURES.WORKERS", "FEATURES.CACHE",
        *(f"{name}.{key}" for name in ("LINEAR", "FINETUNE", "FIXMATCH") for key in ("WORKERS", "TRIALS")))  # fmt: skip


def checkpoint_of(source: SourceBackbone | None, weights: str) -> tuple[dict[str, str], str]:
    """What records say about the weights: the checkpoint's name and hash, and its network."""
    if source is None:
        return {"name": weights, "sha256": sha256_of_text(weights)}, ""
    checkpoint = {"name": source.name, "sha256": source.sha256}
    if method := source.metadata.get("method", ""):
        checkpoint["method"] = method
    return checkpoint, source.network


def settings_hash(cfg: CfgNode) -> str:
    """Hash of the settings that decide numbers, and of what is in the lists that they name.

    An edited list is another experiment. Free settings count as their defaults, so that records of before keep their
    hashes where these had them.
    """
    lists = [cfg.DATASETS.TRAIN_LIST, cfg.DATASETS.TEST_LIST]
    lists += [cfg[name].SPLIT_FILE for name in ("LINEAR", "FINETUNE", "FIXMATCH")]
    contents = [sha256_of(Path(file)) for file in lists if file and Path(file).is_file()]
    same = cfg.clone()
    same.defrost()
    defaults = get_cfg()
    same.merge_from_list([word for key in FREE for word in (key, value_of(defaults, key))])
    if not same.DATASETS.SPLIT:  # came after 2026-11-21: the records of before keep their hashes
        del same.DATASETS["SPLIT"]
    if same.FEATURES.POOL == "pooled":  # likewise
        del same.FEATURES["POOL"]
    for section, key, default in LATER:  # likewise
        if same[section][key] == default:
            del same[section][key]
    return sha256_of_text(" ".join([config_hash(same), *contents]))[:12] if contents else config_hash(same)


def about_network(architecture: AnyArchitecture) -> dict[str, str]:
    """What records say of another network than a ResNet, and what makes its scores others: itself, its images."""
    if isinstance(architecture, Architecture):
        return {}
    own = own_input(architecture)
    return {"architecture": str(architecture), **({} if own is None else {"input": str(own)})}
