"""Registry of the evaluators that train on images (linear, finetune, fixmatch): scores, one trial at a time.

Settings of linear, finetune and fixmatch, turned into the plain values that the evaluators take.

Ranges are in ``lowshot/config.py``; here is what contradicts each other, or the images.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fvcore.common.config import CfgNode
from torch import Tensor

from momentum_transfer.backbones.source import SourceBackbone
from momentum_transfer.core import distributed
from momentum_transfer.core.devices import choose_device
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import sha256_of_text
from momentum_transfer.lowshot import inputs, presets
from momentum_transfer.lowshot.evaluations import Wanted
from momentum_transfer.lowshot.features.extract import StageFeatures, compute
from momentum_transfer.lowshot.features.feature_set import FeatureSet, check_vary
from momentum_transfer.lowshot.finetune import evaluate_finetune
from momentum_transfer.lowshot.fixmatch import check_backbone, check_preset, grouped
from momentum_transfer.lowshot.fixmatch_run import FixMatchSetting, check_weak_batches, evaluate_fixmatch
from momentum_transfer.lowshot.labelled_data import LabelledData
from momentum_transfer.lowshot.linear import FeatureBatches, check_frozen, evaluate_linear, from_cache, from_images
from momentum_transfer.lowshot.score import Score, about_network, settings_hash
from momentum_transfer.verdicts.outcomes import label_hash


def check_batch(name: str, batch: int, images: int, processes: int) -> None:
    """Raise :class:`InputError` for a batch that the images cannot fill, or of which a process gets fewer than two.

    One image has no batch statistics, and a batch that holds an image twice is not the batch of any protocol.

    Args:
        name: of the setting. images: how many there are to fill it with.
    """
    if batch > images:
        raise InputError(f"expected {name} of at most {images} (the images to train on), found {batch}; set it lower")
    if batch < 2 * processes or batch % processes:
        raise InputError(
            f"expected {name} of at least two images a process, the same number on each of {processes}, found {batch}"
        )


def linear_preset(node: CfgNode) -> presets.LinearPreset:
    """What LINEAR asks for."""
    preset = presets.LINEAR[node.PRESET]
    rates = tuple(node.LEARNING_RATES) or preset.learning_rates
    return replace(preset, learning_rates=rates, schedule=_lasting(preset.schedule, node.EPOCHS))


def finetune_preset(node: CfgNode) -> presets.FinetunePreset:
    """What FINETUNE asks for."""
    preset = presets.FINETUNE[node.PRESET]
    rates = tuple(node.LEARNING_RATES) or preset.learning_rates
    return replace(preset, learning_rates=rates, epochs=(node.EPOCHS, node.EPOCHS) if node.EPOCHS else preset.epochs)


def fixmatch_setting(node: CfgNode, pretrained: bool) -> FixMatchSetting:
    """What FIXMATCH asks for.

    Args:
        pretrained: whether the student starts from a checkpoint; the learning rate is then another.
    """
    numbers = ("UNLABELLED_RATIO", "WEIGHT", "THRESHOLD", "MOMENTUM", "BN_MOMENTUM")
    preset = replace(presets.FIXMATCH[node.PRESET], **{key.lower(): node[key] for key in numbers if node[key]})
    preset = replace(preset, **_norms(node))
    if node.STRONG_LEVELS:
        preset = replace(preset, strong_levels=node.STRONG_LEVELS)
    if node.STATISTICS_MOMENTUM >= 0:
        if preset.teacher != "EMAN":
            raise InputError(f"expected no FIXMATCH.STATISTICS_MOMENTUM, which is EMAN's, for teacher {preset.teacher}")
        preset = replace(preset, statistics_momentum=node.STATISTICS_MOMENTUM)
    if node.BN_MOMENTUM and preset.student in ("GN", "IN"):
        raise InputError(f"expected no FIXMATCH.BN_MOMENTUM for student {preset.student}, which keeps no statistics")
    preset = replace(preset, teacher_groups=_teacher_groups(node, preset))
    if preset.teacher == "ShuffleBN" and distributed.world_size() * preset.teacher_groups == 1:
        raise InputError(
            "expected several processes, or FIXMATCH.TEACHER_GROUP weak views of a virtual one, to shuffle between "
            "under teacher ShuffleBN, found one process that normalises all together, which is plain BN; take "
            "FIXMATCH.TEACHER_GROUP 40, what one of EMAN's 8 GPUs labels, or another divisor"
        )
    check_preset(preset, pretrained)
    rates = node.LEARNING_RATES or [preset.pretrained_rate if pretrained else preset.learning_rate]
    if len(rates) > 1:
        raise InputError(f"expected one value in FIXMATCH.LEARNING_RATES, found {rates}; nothing is searched here")
    schedule = _lasting(presets.FIXMATCH_SCHEDULES[node.SCHEDULE][node.FRACTION > 0.01], node.EPOCHS)
    return FixMatchSetting(
        preset, schedule, rates[0], node.BATCH_SIZE or preset.batch_size, node.STEPS or None, node.EVAL_EVERY,
        tuple(node.WEAK_BATCHES),
    )  # fmt: skip


def _teacher_groups(node: CfgNode, preset: presets.FixMatchPreset) -> int:
    """Virtual processes of FIXMATCH.TEACHER_GROUP weak views within one process's; 1 where it is 0."""
    size = node.TEACHER_GROUP
    if size == 0:
        return 1
    weak = (node.BATCH_SIZE or preset.batch_size) * preset.unlabelled_ratio // distributed.world_size()
    if preset.teacher is None or weak % size:
        found = "a preset without teacher" if preset.teacher is None else str(size)
        raise InputError(
            f"expected FIXMATCH.TEACHER_GROUP to divide the {weak} weak views that a teacher labels in a step (of one "
            f"process), found {found}; change it, FIXMATCH.BATCH_SIZE or FIXMATCH.PRESET"
        )
    return int(weak // size)


def _norms(node: CfgNode) -> dict[str, Any]:
    """FIXMATCH.STUDENT_NORM and TEACHER_NORM, where they are set."""
    if node.TEACHER_NORM and presets.FIXMATCH[node.PRESET].teacher is None:
        raise InputError(
            f"expected a preset with a teacher under FIXMATCH.TEACHER_NORM, found FIXMATCH.PRESET {node.PRESET}; "
            "take ema-bn or eman"
        )
    given = {"student": node.STUDENT_NORM, "teacher": node.TEACHER_NORM}
    return {key: norm for key, norm in given.items() if norm}


def fixmatch_protocol(node: CfgNode) -> str:
    """The preset and the schedule, for example "eman-1x"; normalisations and levels other than its own are named."""
    preset, given = presets.FIXMATCH[node.PRESET], _norms(node)
    if node.STRONG_LEVELS:
        given["strong_levels"] = node.STRONG_LEVELS
    if node.TEACHER_GROUP and grouped(given.get("teacher", preset.teacher)):
        given["teacher_group"] = node.TEACHER_GROUP
    changed = [f"{key}={norm}" for key, norm in given.items() if norm != getattr(preset, key, None)]
    return "/".join([f"{node.PRESET}-{node.SCHEDULE}", *changed])


def _lasting(schedule: presets.Schedule, epochs: float) -> presets.Schedule:
    """The schedule stretched to ``epochs`` (0: as it is); milestones and warm-up keep their share."""
    if not epochs:
        return schedule
    return replace(schedule, epochs=epochs, warmup=schedule.warmup * epochs / schedule.epochs)


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
            check_batch(f"{name}.BATCH_SIZE", batch, len(rows), distributed.world_size())
        if wanted(task, protocol, index):
            folder = run_folder(cfg, source, task, index, rows)
            yield Trial(task, protocol, index, seed, rows, folder, test_set)


def linear(cfg: CfgNode, source: SourceBackbone | None, images: inputs.Images, wanted: Wanted) -> Iterator[list[Score]]:
    """Linear evaluation, see lowshot/linear.py."""
    node, preset = cfg.LINEAR, linear_preset(cfg.LINEAR)
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
    node, preset = cfg.FINETUNE, finetune_preset(cfg.FINETUNE)
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
    node, setting = cfg.FIXMATCH, fixmatch_setting(cfg.FIXMATCH, pretrained=source is not None)
    data = inputs.labelled_data(cfg, images, node.WORKERS)
    check_backbone(setting.preset, inputs.backbone_builder(cfg, source)(), cfg.INPUT.IMAGE_SIZE)
    check_weak_batches(setting.weak_batches, len(data.test))
    views = images.weak_and_strong(setting.preset.strong_levels)
    protocol = fixmatch_protocol(node)
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
