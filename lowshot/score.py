"""Score: one number of one evaluation, with its task, metric, protocol and trial.

What records say an evaluation was of and under which settings; what differs in none of it is one experiment.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from fvcore.common.config import CfgNode

from momentum_transfer.backbones.build import AnyArchitecture, own_input
from momentum_transfer.backbones.resnet import Architecture
from momentum_transfer.backbones.source import SourceBackbone
from momentum_transfer.core import records as results
from momentum_transfer.core.files import sha256_of, sha256_of_text
from momentum_transfer.core.ranges import NOTHING
from momentum_transfer.core.settings import config_hash
from momentum_transfer.lowshot import inputs
from momentum_transfer.lowshot.config import SETTINGS


@dataclass(frozen=True)
class Score:
    """What an evaluator returns: ``value`` in percent where the metric is a fraction.

    Attributes:
        task: what was asked, for example ``knn/k=20`` or ``svm/k=4``.
        metric: ``top1``, ``top5``, ``mAP``, ``recall``, ``mean_per_class``.
        protocol: the preset by name.
        engine: what computed it, for example ``torch`` or ``scikit-learn``.
        trial: which repetition (a draw, a seed); the spread of the report is taken over it.
        details: what else a reader needs, such as the cost that was chosen.
        items: [N] of which ``value`` is the mean: whether each test image was a hit, or its average precision.
        test_set: hash of the test images in their order.
        network: that was scored, where training makes several of the checkpoint's one: FixMatch's student and teacher.
    """

    task: str
    metric: str
    value: float
    protocol: str
    engine: str = "torch"
    trial: int = 0
    seed: int | None = None
    details: dict[str, Any] = field(default_factory=dict)
    network: str | None = None
    items: np.ndarray | None = field(default=None, compare=False, repr=False)
    test_set: str = ""


@dataclass(frozen=True)
class Subject:
    """What is evaluated, as records name it.

    Attributes:
        checkpoint: name and SHA-256.
        config: hash of the settings.
        data: numbers of ``images`` and ``classes`` that test: what alone shows which set it is.
        settings: of which ``config`` is the hash, and what ``about`` says.
        features: what the features are, where they are not those that the network pools by itself: an end of the
            protocol's name, such as "/cls".
        about: of another network than a ResNet: its architecture, and how its images were prepared.
        drawings: test images that show one digit, and are therefore one item to verdicts.
        overlap: test images that are among the training images; None where nothing trains.
    """

    checkpoint: dict[str, str]
    network: str
    dataset: str
    config: str
    data: dict[str, int]
    settings: CfgNode
    features: str = ""
    about: dict[str, str] = field(default_factory=dict)
    drawings: int = 1
    overlap: int | None = None

    def record(self, score: Score, items: dict[str, str] | None = None) -> dict[str, Any]:
        """The line of the results file, with the items file where there is one."""
        network, details = self.network, {**self.about, **score.details}
        if score.network is not None:  # the checkpoint's network is then only where training began
            network, details["start_network"] = score.network, self.network
        if items is not None:
            details["items"] = items
        if self.overlap is not None:
            details["overlap"] = self.overlap
        return results.make_record(
            score.task,
            score.metric,
            score.value,
            checkpoint=self.checkpoint,
            network=network,
            dataset=self.dataset,
            config=self.config,
            protocol=score.protocol + self.features,
            engine=score.engine,
            trial=score.trial,
            seed=score.seed,
            data=self.data,
            **details,
        )


def _checkpoint_of(source: SourceBackbone | None, weights: str) -> tuple[dict[str, str], str]:
    """What records say about the weights: the checkpoint's name and hash, and its network."""
    if source is None:
        return {"name": weights, "sha256": sha256_of_text(weights)}, ""
    return source.checkpoint, source.network


def decisive(cfg: CfgNode) -> CfgNode:
    """The settings with the defaults of those that decide no number."""
    same = cfg.clone()
    same.defrost()
    free = [setting for setting in SETTINGS.values() if setting.decides == NOTHING]
    same.merge_from_list([word for setting in free for word in (setting.key, setting.default)])
    return same


def settings_hash(cfg: CfgNode) -> str:
    """Hash of the `decisive` settings and of the lists that they name: an edited list is another experiment."""
    lists = [cfg.DATASETS.TRAIN_LIST, cfg.DATASETS.TEST_LIST]
    lists += [cfg[name].SPLIT_FILE for name in ("LINEAR", "FINETUNE", "FIXMATCH")]
    contents = [sha256_of(Path(file)) for file in lists if file and Path(file).is_file()]
    whole = config_hash(decisive(cfg))
    return sha256_of_text(" ".join([whole, *contents]))[:12] if contents else whole


def about_network(architecture: AnyArchitecture) -> dict[str, str]:
    """What records say of another network than a ResNet, and what makes its scores others: itself, its images."""
    if isinstance(architecture, Architecture):
        return {}
    own = own_input(architecture)
    return {"architecture": str(architecture), **({} if own is None else {"input": str(own)})}


def subject_of(
    cfg: CfgNode, command: str, weights: str, source: SourceBackbone | None, counts: dict[str, int]
) -> Subject:
    """What records say of an evaluation of ``weights`` by ``command``."""
    checkpoint, network = _checkpoint_of(source, weights)
    about = {} if weights == inputs.PIXELS else about_network(inputs.architecture_of(cfg, source))
    settings, whole = settings_hash(cfg), decisive(cfg)
    whole.NETWORK = CfgNode(about)
    pooled = cfg.FEATURES.POOL == "pooled" or command in ("finetune", "fixmatch")
    return Subject(
        checkpoint,
        network,
        inputs.title(cfg, **counts),
        sha256_of_text(f"{settings} {sorted(about.items())}")[:12] if about else settings,
        counts,
        whole,
        "" if pooled else f"/{cfg.FEATURES.POOL}",
        about,
        cfg.DATASETS.DRAWINGS if cfg.DATASETS.NAME == "digits" else 1,
    )
