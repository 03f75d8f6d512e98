"""linear, finetune and fixmatch by name: settings, weights and images in, scores out, one trial at a time."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from fvcore.common.config import CfgNode

from lowshot import inputs, presets
from lowshot.augment import WeakAndStrong
from lowshot.devices import device
from lowshot.evaluations import Wanted
from lowshot.features import StageFeatures, compute
from lowshot.finetune import evaluate_finetune
from lowshot.fixmatch_run import FixMatchSetting, evaluate_fixmatch
from lowshot.linear import FeatureBatches, check_frozen, evaluate_linear, from_cache, from_images
from lowshot.score import Score
from pretrain.config import config_hash
from pretrain.errors import InputError
from pretrain.files import sha256_of_text
from pretrain.sources import SourceBackbone

ImageEvaluation = Callable[[CfgNode, SourceBackbone | None, Wanted], Iterator[list[Score]]]


def percent(fraction: float) -> str:
    """0.01 -> "/1%"; everything -> ""."""
    return "" if fraction == 1 else f"/{100 * fraction:g}%"


def run_folder(cfg: CfgNode, source: SourceBackbone | None, task: str, trial: int) -> Path:
    """Where one trial's checkpoints are; another weight or setting gives another folder."""
    weights = f"{source.sha256} {source.network}" if source else inputs.SCRATCH
    key = sha256_of_text(f"{weights} {config_hash(cfg)}")[:12]
    return Path(cfg.OUTPUT_DIR) / "trials" / f"{task.replace('/', '_').replace('%', '')}_{key}_{trial}"


def _check_ranges(name: str, node: CfgNode) -> None:
    """Raise :class:`InputError` for settings of the node ``name`` that no run can have."""
    if node.TRIALS < 1:
        raise InputError(f"expected {name}.TRIALS of at least 1, found {node.TRIALS}")
    for key in ("EPOCHS", "BATCH_SIZE", "STEPS", "UNLABELLED_RATIO", "WEIGHT", "BN_MOMENTUM", "THRESHOLD", "MOMENTUM"):
        if key in node and node[key] < 0:
            raise InputError(f"expected {name}.{key} of at least 0 (0 is the preset's), found {node[key]}")
    for key in ("THRESHOLD", "MOMENTUM", "BN_MOMENTUM", "STATISTICS_MOMENTUM"):
        if key in node and node[key] > 1:
            raise InputError(f"expected {name}.{key} of at most 1, found {node[key]}")
    wrong = [rate for rate in node.LEARNING_RATES if not isinstance(rate, int | float) or rate <= 0]
    if wrong:
        raise InputError(f"expected positive numbers in {name}.LEARNING_RATES, found {wrong[0]!r}")


def _schedule(schedule: presets.Schedule, epochs: float) -> presets.Schedule:
    return replace(schedule, epochs=epochs) if epochs else schedule


def _trials(cfg: CfgNode, node: CfgNode, task: str, protocol: str, wanted: Wanted) -> Iterator[tuple[int, int]]:
    """(trial, seed) of every trial that is still to be run."""
    for trial in range(node.TRIALS):
        if wanted(task, protocol, trial):
            yield trial, cfg.SEED + trial


def _scores(
    task: str, protocol: str, trial: int, seed: int, values: dict[str, float], **details: object
) -> list[Score]:
    return [
        Score(task, metric, 100 * value, protocol, trial=trial, seed=seed, details=details)
        for metric, value in values.items()
    ]


def linear(cfg: CfgNode, source: SourceBackbone | None, wanted: Wanted) -> Iterator[list[Score]]:
    """Linear evaluation, see lowshot/linear.py."""
    node = cfg.LINEAR
    _check_ranges("LINEAR", node)
    presets.chosen("LINEAR.PRESET", node.PRESET, presets.LINEAR)
    preset = presets.LINEAR[node.PRESET]
    preset = replace(
        preset,
        learning_rates=tuple(node.LEARNING_RATES) or preset.learning_rates,
        schedule=_schedule(preset.schedule, node.EPOCHS),
    )
    task, protocol = f"linear{percent(node.FRACTION)}", node.PRESET + ("/cached" if node.CACHED else "")
    data = inputs.labelled_data(cfg, node.WORKERS)
    network = StageFeatures(inputs.backbone_builder(cfg, source)()).to(device())
    original = {name: tensor.clone() for name, tensor in network.backbone.state_dict().items()}
    features: FeatureBatches | None = None
    for trial, seed in _trials(cfg, node, task, protocol, wanted):
        if features is None:
            features = _linear_features(cfg, source, network)
        rows = data.labelled_rows(node.FRACTION, node.SPLIT_FILE, seed)
        found = evaluate_linear(
            features, rows, preset, seed, run_folder(cfg, source, task, trial), device(), node.BATCH_SIZE or None
        )
        check_frozen(network.backbone, original)
        values = {"top1": found.top1, "top5": found.top5}
        yield _scores(task, protocol, trial, seed, values, learning_rate=found.learning_rate, images=len(rows))


def _linear_features(cfg: CfgNode, source: SourceBackbone | None, network: StageFeatures) -> FeatureBatches:
    batch = cfg.FEATURES.BATCH_SIZE
    if cfg.LINEAR.CACHED:
        if source is None:
            raise InputError("LINEAR.CACHED needs --weights CHECKPOINT, found none")
        return from_cache(*inputs.feature_sets(cfg, source), batch=batch)
    data = inputs.labelled_data(cfg, cfg.LINEAR.WORKERS)
    dim = int(network.backbone.num_features)  # type: ignore[arg-type]
    return from_images(data, lambda images: compute(network, images, cfg.FEATURES.PRECISION, device()), dim, batch)


def finetune(cfg: CfgNode, source: SourceBackbone | None, wanted: Wanted) -> Iterator[list[Score]]:
    """Fine-tuning on the labelled images, see lowshot/finetune.py."""
    node = cfg.FINETUNE
    _check_ranges("FINETUNE", node)
    presets.chosen("FINETUNE.PRESET", node.PRESET, presets.FINETUNE)
    preset = presets.FINETUNE[node.PRESET]
    preset = replace(
        preset,
        learning_rates=tuple(node.LEARNING_RATES) or preset.learning_rates,
        epochs=(node.EPOCHS, node.EPOCHS) if node.EPOCHS else preset.epochs,
    )
    task, data = f"finetune{percent(node.FRACTION)}", inputs.labelled_data(cfg, node.WORKERS)
    build = inputs.backbone_builder(cfg, source)
    for trial, seed in _trials(cfg, node, task, node.PRESET, wanted):
        rows = data.labelled_rows(node.FRACTION, node.SPLIT_FILE, seed)
        folder = run_folder(cfg, source, task, trial)
        found = evaluate_finetune(
            data, build, rows, node.FRACTION, preset, seed, folder, device(), node.BATCH_SIZE or None
        )
        values = {"top1": found.top1, "top5": found.top5}
        yield _scores(task, node.PRESET, trial, seed, values, learning_rate=found.learning_rate, images=len(rows))


def fixmatch(cfg: CfgNode, source: SourceBackbone | None, wanted: Wanted) -> Iterator[list[Score]]:
    """FixMatch and its teachers, see lowshot/fixmatch.py."""
    node = cfg.FIXMATCH
    _check_ranges("FIXMATCH", node)
    presets.chosen("FIXMATCH.PRESET", node.PRESET, presets.FIXMATCH)
    presets.chosen("FIXMATCH.SCHEDULE", node.SCHEDULE, presets.FIXMATCH_SCHEDULES)
    given = {
        "unlabelled_ratio": node.UNLABELLED_RATIO,
        "weight": node.WEIGHT,
        "threshold": node.THRESHOLD,
        "momentum": node.MOMENTUM,
        "bn_momentum": node.BN_MOMENTUM,
    }
    preset = replace(presets.FIXMATCH[node.PRESET], **{key: value for key, value in given.items() if value})
    if node.STATISTICS_MOMENTUM >= 0:
        preset = replace(preset, statistics_momentum=node.STATISTICS_MOMENTUM)
    rates = node.LEARNING_RATES or [preset.pretrained_rate if source else preset.learning_rate]
    if len(rates) > 1:
        raise InputError(f"expected one value in FIXMATCH.LEARNING_RATES, found {rates}; nothing is searched here")
    schedule = presets.FIXMATCH_SCHEDULES[node.SCHEDULE][node.FRACTION > 0.01]
    batch = node.BATCH_SIZE or preset.batch_size
    setting = FixMatchSetting(preset, _schedule(schedule, node.EPOCHS), rates[0], batch, node.STEPS or None)
    task, protocol = f"fixmatch{percent(node.FRACTION)}", f"{node.PRESET}-{node.SCHEDULE}"
    data, build = inputs.labelled_data(cfg, node.WORKERS), inputs.backbone_builder(cfg, source)
    views = WeakAndStrong(cfg.DATASETS.NAME, cfg.INPUT.IMAGE_SIZE)
    for trial, seed in _trials(cfg, node, task, protocol, wanted):
        rows = data.labelled_rows(node.FRACTION, node.SPLIT_FILE, seed)
        folder = run_folder(cfg, source, task, trial)
        found = evaluate_fixmatch(data, views, build, rows, setting, seed, folder, device())
        values = {"top1": found.top1, "top5": found.top5}
        numbers = {"coverage": found.coverage, "pseudo_accuracy": found.pseudo_accuracy}
        shown = {name: round(100 * value, 3) if value == value else None for name, value in numbers.items()}
        yield _scores(task, protocol, trial, seed, values, images=len(rows), **shown)


#: Evaluations that train on images.
ON_IMAGES: dict[str, ImageEvaluation] = {"linear": linear, "finetune": finetune, "fixmatch": fixmatch}
