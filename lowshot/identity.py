"""Scores of evaluations, and their identity in records: checkpoint, data set and settings hash.

Evaluations of equal identity are one experiment.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from fvcore.common.config import CfgNode

from momentum_transfer.backbones.build import AnyArchitecture, own_input
from momentum_transfer.backbones.resnet import Architecture
from momentum_transfer.backbones.source import SourceBackbone
from momentum_transfer.core.files import sha256_of, sha256_of_text
from momentum_transfer.core.ranges import NOTHING
from momentum_transfer.core.records import make_record
from momentum_transfer.core.settings import config_hash
from momentum_transfer.lowshot import inputs
from momentum_transfer.lowshot.config import SETTINGS


@dataclass(frozen=True)
class Score:
    """One number of one evaluation: ``value`` in percent if the metric is a fraction.

    ``items`` [N] are what ``value`` is the mean of: whether each test image was a hit, or its average precision.
    """

    task: str  # for example knn/k=20 or svm/k=4
    metric: str  # top1, top5, mAP, recall, mean_per_class
    value: float
    protocol: str  # the preset by name
    engine: str = "torch"  # what computed it
    trial: int = 0  # which repetition (other sampled images, another seed); the report's spread is over trials
    seed: int | None = None
    details: dict[str, Any] = field(default_factory=dict)  # what else a reader needs, such as the cost that was chosen
    network: str | None = None  # that was scored, if training makes several: FixMatch's student and teacher
    items: np.ndarray | None = field(default=None, compare=False, repr=False)
    test_set: str = ""  # hash of the test images in their order


@dataclass(frozen=True)
class Subject:
    """What is evaluated, as records name it."""

    checkpoint: dict[str, str]  # name and SHA-256
    network: str
    dataset: str
    config: str  # hash of ``settings`` and ``about``
    data: dict[str, int]  # numbers of ``images`` and ``classes`` that test, which identify the set
    settings: CfgNode
    features: str = ""  # end of the protocol's name, such as "/cls", for features other than those the network pools
    about: dict[str, str] = field(default_factory=dict)  # architecture and input of another network than a ResNet
    renderings: int = 1  # test images that show one digit, and are therefore one item to verdicts
    groups: np.ndarray | None = field(default=None, compare=False, repr=False)  # of the test images, see image_groups
    overlap: int | None = None  # test images that are among the training images; None if nothing trains

    def record(self, score: Score, items: dict[str, str] | None = None) -> dict[str, Any]:
        """The line of the results file, with the items file where there is one."""
        network, details = self.network, {**self.about, **score.details}
        if score.network is not None:  # the checkpoint's network is then only where training began
            network, details["start_network"] = score.network, self.network
        if items is not None:
            details["items"] = items
        if self.overlap is not None:
            details["overlap"] = self.overlap
        return make_record(
            score.task, score.metric, score.value, checkpoint=self.checkpoint, network=network, dataset=self.dataset,
            config=self.config, protocol=score.protocol + self.features, engine=score.engine, trial=score.trial,
            seed=score.seed, data=self.data, **details,
        )  # fmt: skip


def decisive(cfg: CfgNode) -> CfgNode:
    """A copy of the settings in which every setting without effect on results is reset to its default."""
    same = cfg.clone()
    same.defrost()
    free = [setting for setting in SETTINGS.values() if setting.decides == NOTHING]
    same.merge_from_list([word for setting in free for word in (setting.key, setting.default)])
    if same.FINETUNE.TRAINABLE == "all":
        del same.FINETUNE["TRAINABLE"]  # so that it is no part of the name of settings without it
    return same


def settings_hash(cfg: CfgNode) -> str:
    """Hash of the `decisive` settings and of the lists that they name: an edited list is another experiment."""
    lists = [cfg.DATASETS.TRAIN_LIST, cfg.DATASETS.TEST_LIST]
    lists += [cfg[name].SPLIT_FILE for name in ("LINEAR", "FINETUNE", "FIXMATCH")]
    contents = [sha256_of(Path(file)) for file in lists if file and Path(file).is_file()]
    whole = config_hash(decisive(cfg))
    return sha256_of_text(" ".join([whole, *contents]))[:12] if contents else whole


def about_network(architecture: AnyArchitecture) -> dict[str, str]:
    """What identifies another network than a plain ResNet in records: its architecture and its input."""
    if isinstance(architecture, Architecture) and architecture.style == "pytorch":
        return {}
    own = own_input(architecture)
    return {"architecture": str(architecture), **({} if own is None else {"input": str(own)})}


def subject_of(
    cfg: CfgNode, command: str, weights: str, source: SourceBackbone | None, counts: dict[str, int]
) -> Subject:
    """What records say of an evaluation of ``weights`` by ``command``."""
    checkpoint = {"name": weights, "sha256": sha256_of_text(weights)} if source is None else source.checkpoint
    about = {} if weights == inputs.PIXELS else about_network(inputs.architecture_of(cfg, source))
    settings, whole = settings_hash(cfg), decisive(cfg)
    whole.NETWORK = CfgNode(about)
    pooled = cfg.FEATURES.POOL == "pooled" or command in ("finetune", "fixmatch")
    return Subject(
        checkpoint,
        network="" if source is None else source.network,
        dataset=inputs.title(cfg, **counts),
        config=sha256_of_text(f"{settings} {sorted(about.items())}")[:12] if about else settings,
        data=counts,
        settings=whole,
        features="" if pooled else f"/{cfg.FEATURES.POOL}",
        about=about,
        # the part of a split that tests has one of each digit, as what trains
        renderings=cfg.DATASETS.RENDERINGS if cfg.DATASETS.NAME == "digits" and not cfg.DATASETS.SPLIT else 1,
    )
