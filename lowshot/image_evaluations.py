"""Registry of the evaluators that train on images (linear, finetune, fixmatch): scores, one trial at a time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fvcore.common.config import CfgNode
from torch import Tensor

from momentum_transfer.backbones.read import SourceBackbone
from momentum_transfer.core import distributed
from momentum_transfer.core.devices import choose_device
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import sha256_of_text
from momentum_transfer.lowshot import image_settings, inputs
from momentum_transfer.lowshot.evaluations import Wanted
from momentum_transfer.lowshot.features.extract import compute
from momentum_transfer.lowshot.features.feature_set import FeatureSet, check_vary
from momentum_transfer.lowshot.features.pooling import StageFeatures
from momentum_transfer.lowshot.finetune import evaluate_finetune
from momentum_transfer.lowshot.fixmatch import check_backbone
from momentum_transfer.lowshot.fixmatch_run import evaluate_fixmatch
from momentum_transfer.lowshot.identity import about_network, settings_hash
from momentum_transfer.lowshot.labelled_data import LabelledData
from momentum_transfer.lowshot.linear import FeatureBatches, check_frozen, evaluate_linear, from_cache, from_images
from momentum_transfer.lowshot.score import Score
from momentum_transfer.lowshot.weak_labels import check_weak_batches
from momentum_transfer.verdicts.hits import label_hash

ImageEvaluation = Callable[[CfgNode, SourceBackbone | None, inputs.Images, Wanted], Iterator[list[Score]]]


def percent(fraction: float) -> str:
    """0.01 -> "/1%"; everything -> ""."""
    return "" if fraction == 1 else f"/{100 * fraction:g}%"


def run_folder(cfg: CfgNode, source: SourceBackbone | None, task: str, trial: int, rows: np.ndarray) -> Path:
    """Where one trial's checkpoints are; other weights, settings or labelled ``rows`` give another folder."""
    weights = f"{source.sha256} {source.network}" if source else inputs.SCRATCH
    if about := about_network(inputs.architecture_of(cfg, source)):
        weights += f" {sorted(about.items())}"
    key = sha256_of_text(f"{weights} {settings_hash(cfg)} {rows.tolist()}")[:12]
    return Path(cfg.OUTPUT_DIR) / "trials" / f"{task.replace('/', '_').replace('%', '')}_{key}_{trial}"


@dataclass(frozen=True)
class Trial:
    """One repetition: another part of the labels and another start.

    Attributes:
        rows: [n] labelled rows of the training set.
        folder: its checkpoints.
        test_set: hash of the test images in their order.
    """

    task: str
    protocol: str
    index: int
    seed: int
    rows: np.ndarray
    folder: Path
    test_set: str

    def scores(
        self, values: dict[str, float], hits: dict[str, np.ndarray], network: str | None = None, **details: object
    ) -> list[Score]:
        """Fractions by metric -> scores in percent, with ``hits`` [N] of the test images."""
        known = {"images": len(self.rows), **details}
        origin: dict[str, Any] = {"network": network, "trial": self.index, "seed": self.seed, "details": known}
        origin["test_set"] = self.test_set
        return [
            Score(self.task, metric, 100 * value, self.protocol, items=hits[metric], **origin)
            for metric, value in values.items()
        ]

    def shares(self, values: dict[str, float], network: str, **details: object) -> list[Score]:
        """Fractions by metric that are no means over the test images -> scores in percent."""
        known = {"images": len(self.rows), **details}
        return [
            Score(self.task, metric, 100 * value, self.protocol, network=network, trial=self.index, seed=self.seed,
                  details=known)
            for metric, value in values.items()
        ]  # fmt: skip


def _trials(
    cfg: CfgNode,
    name: str,
    protocol: str,
    batch: int,
    data: LabelledData,
    source: SourceBackbone | None,
    wanted: Wanted,
) -> Iterator[Trial]:
    """Every trial that is still to be run of the node ``name`` (LINEAR, FINETUNE, FIXMATCH).

    Args:
        batch: labelled images of one step.
    """
    node, task = cfg[name], name.lower() + percent(cfg[name].FRACTION)
    test_set = label_hash(np.asarray(data.test.labels))
    for index in range(node.TRIALS):
        seed = cfg.SEED + index
        rows = data.labelled_rows(node.FRACTION, node.SPLIT_FILE, seed)
        if name != "FIXMATCH":  # where labelled images come round many times among the unlabelled ones, as published
            image_settings.check_batch(f"{name}.BATCH_SIZE", batch, len(rows), distributed.world_size())
        if wanted(task, protocol, index):
            folder = run_folder(cfg, source, task, index, rows)
            yield Trial(task, protocol, index, seed, rows, folder, test_set)


def linear(cfg: CfgNode, source: SourceBackbone | None, images: inputs.Images, wanted: Wanted) -> Iterator[list[Score]]:
    """Linear evaluation, see lowshot/linear.py."""
    node, preset = cfg.LINEAR, image_settings.linear_preset(cfg.LINEAR)
    if node.CACHED and source is None:
        raise InputError("expected --weights CHECKPOINT under LINEAR.CACHED, found scratch: it has nothing to cache")
    batch, data = node.BATCH_SIZE or preset.batch_size, inputs.labelled_data(cfg, images, node.WORKERS)
    backbone = inputs.backbone_builder(cfg, source)()
    network = StageFeatures(backbone, cfg.FEATURES.LAYER, cfg.FEATURES.POOL).to(choose_device())
    original = {name: tensor.clone() for name, tensor in network.backbone.state_dict().items()}
    features: FeatureBatches | None = None
    protocol = node.PRESET + ("/cached" if node.CACHED else "")
    for trial in _trials(cfg, "LINEAR", protocol, batch, data, source, wanted):
        if features is None:
            features = _linear_features(cfg, source, images, network, data)
        found = evaluate_linear(features, trial.rows, preset, trial.seed, trial.folder, choose_device(), batch)
        check_frozen(network.backbone, original)
        yield trial.scores({"top1": found.top1, "top5": found.top5}, found.hits, learning_rate=found.learning_rate)


def _linear_features(
    cfg: CfgNode, source: SourceBackbone | None, images: inputs.Images, network: StageFeatures, data: LabelledData
) -> FeatureBatches:
    size = cfg.FEATURES.BATCH_SIZE
    if cfg.LINEAR.CACHED:
        sets = inputs.feature_sets(cfg, source, images)
        check_vary(*sets)
        return from_cache(*sets, batch=size)

    def features_of(batch: Tensor) -> Tensor:
        return compute(network, batch, cfg.FEATURES.PRECISION, choose_device())

    rows = np.linspace(0, len(data.train) - 1, min(len(data.train), 16)).astype(int)
    some = features_of(torch.stack([data.plain(data.train[int(row)][0]) for row in rows])).cpu().numpy()
    check_vary(FeatureSet(some, data.train.labels[rows], "the training images that were tried", ""))
    return from_images(data, features_of, some.shape[1], size)


def finetune(
    cfg: CfgNode, source: SourceBackbone | None, images: inputs.Images, wanted: Wanted
) -> Iterator[list[Score]]:
    """Fine-tuning on the labelled images, see lowshot/finetune.py."""
    node, preset = cfg.FINETUNE, image_settings.finetune_preset(cfg.FINETUNE)
    batch, data = node.BATCH_SIZE or preset.batch_size, inputs.labelled_data(cfg, images, node.WORKERS)
    for trial in _trials(cfg, "FINETUNE", node.PRESET, batch, data, source, wanted):
        build = inputs.backbone_builder(cfg, source, trial.seed)
        found = evaluate_finetune(
            data, build, trial.rows, node.FRACTION, preset, trial.seed, trial.folder, choose_device(), batch
        )
        yield trial.scores({"top1": found.top1, "top5": found.top5}, found.hits, learning_rate=found.learning_rate)


def fixmatch(
    cfg: CfgNode, source: SourceBackbone | None, images: inputs.Images, wanted: Wanted
) -> Iterator[list[Score]]:
    """FixMatch and its teachers, see lowshot/fixmatch.py; the student is the result, the teacher stands beside it."""
    node, setting = cfg.FIXMATCH, image_settings.fixmatch_setting(cfg.FIXMATCH, pretrained=source is not None)
    data = inputs.labelled_data(cfg, images, node.WORKERS)
    check_backbone(setting.preset, inputs.backbone_builder(cfg, source)(), cfg.INPUT.IMAGE_SIZE)
    check_weak_batches(setting.weak_batches, len(data.test))
    views = images.weak_and_strong(setting.preset.strong_levels)
    protocol = image_settings.fixmatch_protocol(node)
    for trial in _trials(cfg, "FIXMATCH", protocol, setting.batch_size, data, source, wanted):
        build = inputs.backbone_builder(cfg, source, trial.seed)
        found = evaluate_fixmatch(data, views, build, trial.rows, setting, trial.seed, trial.folder, choose_device())
        numbers = {"coverage": found.coverage, "pseudo_accuracy": found.pseudo_accuracy}
        shown = {name: round(100 * value, 3) if value == value else None for name, value in numbers.items()}
        scores = [
            score
            for name, values in found.networks.items()
            for score in trial.scores(values, found.hits[name], name, **shown)
        ]
        labeller = list(found.networks)[-1]
        scores += trial.shares(found.pseudo_labels, labeller, **shown)
        yield scores + [
            score
            for way, hits in found.weak_hits.items()
            for score in replace(trial, task=f"{trial.task}/{way}").scores(
                {"top1": hits.mean()}, {"top1": hits}, "student"
            )
        ]


#: Evaluations that train on images.
ON_IMAGES: dict[str, ImageEvaluation] = {"linear": linear, "finetune": finetune, "fixmatch": fixmatch}

#: Those whose scores name the network that training made; the checkpoint's is then recorded as ``start_network``.
SCORES_OWN_NETWORKS = ("fixmatch",)
