"""Settings of linear, finetune and fixmatch, turned into the plain values that the evaluators take.

Ranges are in ``lowshot/ranges.py``; here is what contradicts each other, or the images.
"""

from dataclasses import replace
from typing import Any

from fvcore.common.config import CfgNode

from momentum_transfer.core import distributed
from momentum_transfer.core.errors import InputError
from momentum_transfer.lowshot import presets
from momentum_transfer.lowshot.fixmatch import check_preset, grouped
from momentum_transfer.lowshot.fixmatch_run import FixMatchSetting


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
