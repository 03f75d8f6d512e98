"""The evaluations by name: settings, and features or images, in; scores out, one unit of work at a time.

Settings stop here: evaluators take plain arguments and presets.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from fvcore.common.config import CfgNode
from torch import Tensor

from momentum_transfer.backbones.read import SourceBackbone
from momentum_transfer.backbones.trainable import ALL, check_part, train_only, use_batch_statistics
from momentum_transfer.core import distributed
from momentum_transfer.core.devices import choose_device
from momentum_transfer.core.errors import InputError, counted
from momentum_transfer.core.files import sha256_of_text
from momentum_transfer.core.neighbours import search
from momentum_transfer.images.content import fingerprint
from momentum_transfer.lowshot import diagnostics, inputs, knn, presets
from momentum_transfer.lowshot.classifier import Setup
from momentum_transfer.lowshot.features.extract import StageFeatures, compute
from momentum_transfer.lowshot.features.feature_set import FeatureSet, check, check_vary
from momentum_transfer.lowshot.finetune import evaluate_finetune, recompute_statistics
from momentum_transfer.lowshot.fixmatch import check_backbone, check_preset, evaluate_fixmatch, grouped
from momentum_transfer.lowshot.identity import Score, about_network, settings_hash
from momentum_transfer.lowshot.labelled_data import LabelledData
from momentum_transfer.lowshot.linear import FeatureBatches, check_frozen, evaluate_linear, from_cache, from_images
from momentum_transfer.lowshot.svm import lowshot_svm as svm
from momentum_transfer.verdicts.outcomes import label_hash

Wanted = Callable[[str, str, int], bool]
"""(task, protocol, trial) -> whether that score is still to be computed."""

_OnFeatures = Callable[[CfgNode, FeatureSet, FeatureSet, Wanted], Iterator[list[Score]]]
"""Yields the scores of one unit of work (a trial, a preset) together, so that they are recorded together."""
_OnImages = Callable[[CfgNode, SourceBackbone | None, inputs.Images, Wanted], Iterator[list[Score]]]


def _check_knn(cfg: CfgNode, labels: np.ndarray, name: str) -> None:
    """Presets that exist, images that have one class and are enough of them."""
    if labels.ndim == 2:
        raise InputError(f"expected one class an image for knn, found multi-hot labels in {name}; use retrieval")
    if not cfg.KNN.PRESETS:
        raise InputError(
            "expected at least one of eman, dino, majority-K, weighted-K in KNN.PRESETS, found none; correct the config"
        )
    _check_retrieval(cfg, labels, name)


def _check_retrieval(cfg: CfgNode, labels: np.ndarray, name: str) -> None:
    """Retrieval scores kNN's presets too, where images have one class."""
    for chosen in cfg.KNN.PRESETS:
        k = knn.preset(chosen).k
        if labels.ndim == 1 and k > len(labels):
            raise InputError(
                f"KNN preset {chosen} asks for {k} neighbours, {name} has {counted(len(labels), 'image')}; leave it out"
            )


def _evaluate_neighbours(
    command: str, cfg: CfgNode, train: FeatureSet, test: FeatureSet, wanted: Wanted
) -> Iterator[list[Score]]:
    """kNN with every preset of KNN.PRESETS; under "retrieval" that too, from the same search."""
    CHECKS[command](cfg, train.labels, train.name)
    presets_of_knn = [] if train.multi_label else cfg.KNN.PRESETS
    names = [name for name in presets_of_knn if wanted(f"knn/k={knn.preset(name).k}", name, 0)]
    top = min(cfg.RETRIEVAL.TOP, len(train)) if command == "retrieval" and wanted("retrieval", "eman", 0) else 0
    most = max([top, *(knn.preset(name).k for name in names)])
    if not most:
        return
    check_vary(train, test)
    node = cfg.SEARCH
    neighbours = search(
        train.features, test.features, most, precision=node.PRECISION, query_chunk=node.QUERY_CHUNK,
        database_chunk=node.DATABASE_CHUNK, device=choose_device(),
    )  # fmt: skip
    yield from knn.knn_scores(neighbours, train, test, names)
    if top:
        yield knn.retrieval_scores(neighbours, train, test, top)


def _evaluate_svm(cfg: CfgNode, train: FeatureSet, test: FeatureSet, wanted: Wanted) -> Iterator[list[Score]]:
    """Low-shot SVMs, see lowshot/svm/lowshot_svm.py."""
    check_vary(train, test)
    yield from svm.scores(_low_shot(cfg), train, test, wanted)


def _low_shot(cfg: CfgNode) -> svm.LowShot:
    node = cfg.SVM
    return svm.LowShot(
        protocol=node.PRESET, shots=tuple(node.SHOTS), trials=node.TRIALS, costs=tuple(node.COSTS),
        select_c=node.SELECT_C, held_out_per_class=node.HELD_OUT_PER_CLASS, class_weights=node.CLASS_WEIGHTS,
        voc_shots=node.VOC_SHOTS, solver=node.SOLVER, device=choose_device(), seed=cfg.SEED,
    )  # fmt: skip


def evaluate_diagnostics(
    cfg: CfgNode, train: FeatureSet, test: FeatureSet, wanted: Wanted,
    views: tuple[FeatureSet, FeatureSet] | None = None,
) -> Iterator[list[Score]]:  # fmt: skip
    """Label-free diagnostics of the test images; alignment where there are features of two views of them."""
    if wanted("diagnostics", "test", 0):
        yield diagnostics.scores(test, None if views is None else (views[0].features, views[1].features))


def percent(fraction: float) -> str:
    """0.01 -> "/1%"; everything -> ""."""
    return "" if fraction == 1 else f"/{100 * fraction:g}%"


def _check_batch(name: str, batch: int, images: int, processes: int) -> None:
    """InputError for a batch (of the setting ``name``) that the images cannot fill, or of one image a process.

    One image has no batch statistics, and a batch that holds an image twice is not the batch of any protocol.
    """
    if batch > images:
        raise InputError(f"expected {name} of at most {images} (the images to train on), found {batch}; set it lower")
    if batch < 2 * processes or batch % processes:
        raise InputError(
            f"expected {name} of at least two images a process, the same number on each of {processes}, found {batch}"
        )


def _run_folder(
    cfg: CfgNode, source: SourceBackbone | None, task: str, trial: int, rows: np.ndarray, images: dict[str, str]
) -> Path:
    """Where one trial's checkpoints are; other weights, settings, training ``images`` or labelled ``rows``: another."""
    weights = f"{source.sha256} {source.network}" if source else inputs.SCRATCH
    if about := about_network(inputs.architecture_of(cfg, source)):
        weights += f" {sorted(about.items())}"
    key = sha256_of_text(f"{weights} {settings_hash(cfg)} {rows.tolist()} {sorted(images.items())}")[:12]
    return Path(cfg.OUTPUT_DIR) / "trials" / f"{task.replace('/', '_').replace('%', '')}_{key}_{trial}"


@dataclass(frozen=True)
class _Trial:
    """One repetition: another part of the labels and another start. ``test_set``: hash of the test images in order."""

    task: str
    protocol: str
    index: int
    setup: Setup
    test_set: str

    def scores(
        self, values: dict[str, float], hits: dict[str, np.ndarray] | None = None, network: str | None = None,
        **details: float | None,
    ) -> list[Score]:  # fmt: skip
        """Fractions by metric -> scores in percent; ``hits`` [N] of the test images, where they are means of such."""
        about = {"images": len(self.setup.rows), **details}
        return [
            Score(self.task, metric, 100 * value, self.protocol, trial=self.index, seed=self.setup.seed, details=about,
                  network=network, items=None if hits is None else hits[metric], test_set=self.test_set)
            for metric, value in values.items()
        ]  # fmt: skip


def _trials(
    cfg: CfgNode, name: str, protocol: str, *, preset_batch: int, data: LabelledData, source: SourceBackbone | None,
    wanted: Wanted,
) -> Iterator[_Trial]:  # fmt: skip
    """Every trial of the node ``name`` (LINEAR, FINETUNE, FIXMATCH) that is wanted."""
    node, task = cfg[name], name.lower() + percent(cfg[name].FRACTION)
    test_set = label_hash(np.asarray(data.test.labels))
    batch = node.BATCH_SIZE or preset_batch
    images = fingerprint(data.train)
    for index in range(node.TRIALS):
        seed = cfg.SEED + index
        rows = data.labelled_rows(node.FRACTION, node.SPLIT_FILE, seed)
        if name != "FIXMATCH":  # where labelled images repeat many times among the unlabelled ones, as published
            _check_batch(f"{name}.BATCH_SIZE", batch, len(rows), distributed.world_size())
        folder = _run_folder(cfg, source, task, index, rows, images)
        if wanted(task, protocol, index):
            yield _Trial(task, protocol, index, Setup(rows, batch, seed, folder, choose_device()), test_set)


#: Training images that give a random network's BN its statistics, at most.
_CALIBRATED = 4096


def _linear(
    cfg: CfgNode, source: SourceBackbone | None, images: inputs.Images, wanted: Wanted
) -> Iterator[list[Score]]:
    """Linear evaluation, see lowshot/linear.py."""
    node, preset = cfg.LINEAR, presets.linear_preset(cfg.LINEAR)
    if node.CACHED and source is None:
        raise InputError("expected --weights CHECKPOINT under LINEAR.CACHED, found scratch: it has nothing to cache")
    data = images.labelled(node.WORKERS)
    frozen: tuple[StageFeatures, dict[str, Tensor], FeatureBatches] | None = None
    protocol = node.PRESET + ("/cached" if node.CACHED else "")
    for trial in _trials(
        cfg, "LINEAR", protocol, preset_batch=preset.batch_size, data=data, source=source, wanted=wanted
    ):
        if frozen is None or source is None:  # from scratch every trial has a network of its own
            network = _frozen(cfg, source, data, trial.setup.seed)
            original = {name: tensor.clone() for name, tensor in network.backbone.state_dict().items()}
            frozen = network, original, _linear_features(cfg, source, images, network, data)
        network, original, features = frozen
        found = evaluate_linear(features, preset, trial.setup)
        check_frozen(network.backbone, original)
        yield trial.scores({"top1": found.top1, "top5": found.top5}, found.hits, learning_rate=found.learning_rate)


def _frozen(cfg: CfgNode, source: SourceBackbone | None, data: LabelledData, seed: int) -> StageFeatures:
    """The network that a linear classifier stands on; a random one with BN statistics of the training images."""
    backbone = inputs.backbone_builder(cfg, source, seed)()
    network = StageFeatures(backbone, cfg.FEATURES.LAYER, cfg.FEATURES.POOL).to(choose_device())
    if source is None:  # mean 0 and variance 1 belong to no network
        processes, size = distributed.world_size(), cfg.FEATURES.BATCH_SIZE
        each = max(min(len(data.train), _CALIBRATED) // processes, 1)  # as many batches on every process
        each -= each % size == 1 and each > 1  # BN has no statistics of one image where its map has one place
        rows = np.linspace(0, len(data.train) - 1, each * processes).astype(int)
        batches = (batch.to(choose_device()) for batch, _ in data.held_out(rows, size))
        recompute_statistics(network.backbone, batches, -(-each // size))
    return network


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

    return from_images(data, features_of, _check_some(data, features_of), size)


def _check_some(data: LabelledData, features_of: Callable[[Tensor], Tensor]) -> int:
    """D of the features [n, D] of 16 training images; InputError where they are not finite, or all the same."""
    rows = np.linspace(0, len(data.train) - 1, min(len(data.train), 16)).astype(int)
    some = features_of(torch.stack([data.plain(data.train[int(row)][0]) for row in rows])).cpu().numpy()
    tried = FeatureSet(some, data.train.labels[rows], "the training images that were tried", "")
    check(tried)
    check_vary(tried)
    return int(some.shape[1])


def _check_start(cfg: CfgNode, source: SourceBackbone | None, data: LabelledData, part: str = ALL) -> None:
    """The same of the network that a training of ``part`` starts from."""
    backbone = inputs.backbone_builder(cfg, source)()
    train_only(backbone, part)
    network = StageFeatures(backbone).to(choose_device())
    use_batch_statistics(network)
    _check_some(data, lambda batch: compute(network, batch, "fp32", choose_device()))


def _finetune(
    cfg: CfgNode, source: SourceBackbone | None, images: inputs.Images, wanted: Wanted
) -> Iterator[list[Score]]:
    """Fine-tuning on the labelled images, see lowshot/finetune.py."""
    node, preset, part = cfg.FINETUNE, presets.finetune_preset(cfg.FINETUNE), cfg.FINETUNE.TRAINABLE
    data = images.labelled(node.WORKERS)
    protocol = node.PRESET + (f"/{part}" if part != "all" else "")
    _check_start(cfg, source, data, part)
    for trial in _trials(
        cfg, "FINETUNE", protocol, preset_batch=preset.batch_size, data=data, source=source, wanted=wanted
    ):
        build = inputs.backbone_builder(cfg, source, trial.setup.seed)
        found = evaluate_finetune(data, build, node.FRACTION, preset, trial.setup, part)
        about = {"trained_parameters": found.trained} if part != "all" else {}
        values = {"top1": found.top1, "top5": found.top5}
        yield trial.scores(values, found.hits, None, learning_rate=found.learning_rate, **about)


def _fixmatch(
    cfg: CfgNode, source: SourceBackbone | None, images: inputs.Images, wanted: Wanted
) -> Iterator[list[Score]]:
    """FixMatch and its teachers, see lowshot/fixmatch.py; the student is the result, the teacher stands beside it."""
    node, setting = cfg.FIXMATCH, _fixmatch_setting(cfg, source)
    data = images.labelled(node.WORKERS)
    if max(setting.weak_batches, default=0) > len(data.test):
        raise InputError(
            f"expected FIXMATCH.WEAK_BATCHES of at most {len(data.test)} (the images that test), found "
            f"{max(setting.weak_batches)}; lower it"
        )
    views = images.weak_and_strong(setting.preset.strong_levels)
    _check_start(cfg, source, data)
    for trial in _trials(
        cfg,
        "FIXMATCH",
        _fixmatch_protocol(node),
        preset_batch=setting.preset.batch_size,
        data=data,
        source=source,
        wanted=wanted,
    ):
        build = inputs.backbone_builder(cfg, source, trial.setup.seed)
        found = evaluate_fixmatch(data, views, build, setting, trial.setup)
        numbers = {"coverage": found.coverage, "pseudo_accuracy": found.pseudo_accuracy}
        details = {name: round(100 * value, 3) if value == value else None for name, value in numbers.items()}
        scores = []
        for network, values in found.networks.items():
            scores += trial.scores(values, found.hits[network], network, **details)
        scores += trial.scores(found.pseudo_labels, None, list(found.networks)[-1], **details)
        for way, hits in found.weak_hits.items():
            weak = replace(trial, task=f"{trial.task}/{way}")
            scores += weak.scores({"top1": hits.mean()}, {"top1": hits}, "student")
        yield scores


def _fixmatch_setting(cfg: CfgNode, source: SourceBackbone | None) -> presets.FixMatchSetting:
    """The preset with the settings' changes; InputError where the network cannot have its normalisations."""
    setting = presets.fixmatch_setting(cfg.FIXMATCH, pretrained=source is not None)
    check_preset(setting.preset, pretrained=source is not None)
    check_backbone(setting.preset, inputs.backbone_builder(cfg, source)(), cfg.INPUT.IMAGE_SIZE)
    return setting


def check_network(cfg: CfgNode, command: str, source: SourceBackbone | None) -> None:
    """InputError where an evaluation cannot take a network (None: one of random weights), built without its values."""
    with torch.device("meta"):
        if command == "fixmatch":
            _fixmatch_setting(cfg, source)
        elif command == "finetune":
            check_part(inputs.backbone_builder(cfg, source)(), cfg.FINETUNE.TRAINABLE)
        elif source is not None:
            StageFeatures(source.build(), cfg.FEATURES.LAYER, cfg.FEATURES.POOL)


def _fixmatch_protocol(node: CfgNode) -> str:
    """The preset and the schedule, for example "eman-1x"; normalisations and levels other than its own are named."""
    preset, given = presets.FIXMATCH[node.PRESET], presets.fixmatch_norms(node)
    if node.STRONG_LEVELS:
        given["strong_levels"] = node.STRONG_LEVELS
    if node.TEACHER_GROUP and grouped(given.get("teacher", preset.teacher)):
        given["teacher_group"] = node.TEACHER_GROUP
    changed = [f"{key}={norm}" for key, norm in given.items() if norm != getattr(preset, key, None)]
    return "/".join([f"{node.PRESET}-{node.SCHEDULE}", *changed])


#: Evaluations of frozen features, and what some of them ask of settings and labels before features are computed.
ON_FEATURES: dict[str, _OnFeatures] = {
    "knn": partial(_evaluate_neighbours, "knn"),
    "retrieval": partial(_evaluate_neighbours, "retrieval"),
    "svm": _evaluate_svm,
    "diagnostics": evaluate_diagnostics,
}
CHECKS: dict[str, Callable[[CfgNode, np.ndarray, str], None]] = {
    "knn": _check_knn,
    "retrieval": _check_retrieval,
    "svm": lambda cfg, labels, name: svm.check(_low_shot(cfg), labels, name),
}

#: Evaluations that train on images.
ON_IMAGES: dict[str, _OnImages] = {"linear": _linear, "finetune": _finetune, "fixmatch": _fixmatch}

#: Those whose scores name the network that training made; the checkpoint's is then recorded as ``start_network``.
SCORES_OWN_NETWORKS = ("fixmatch",)
