"""Steps, micro-batches and scaled rates from config, data set and number of processes, checked before any work."""

from dataclasses import dataclass

from fvcore.common.config import CfgNode

from momentum_transfer.core.errors import InputError, counted
from momentum_transfer.core.optimization import learning_rate, scale_to_batch
from momentum_transfer.images.subsets import stretched_epochs
from momentum_transfer.pretrain.config import WITH_TEACHER, norms, norms_of_own_batch
from momentum_transfer.pretrain.methods import scaled_teacher_momentum

#: The longest warm-up without a warning, as a fraction of the run: the papers have 10 of 100 epochs.
_LONGEST_WARMUP = 0.1


@dataclass(frozen=True)
class PretrainingPlan:
    """The numbers of one run."""

    steps: int
    steps_per_epoch: int  # whole batches; the rest of an epoch is left out
    micro_batch: int  # images of one forward on one process
    accumulate: int  # micro-batches a step
    base_lr: float  # after warm-up, scaled to the batch
    warmup: int  # steps
    momentum_base: float  # of the teacher, scaled to the batch under the equivalence rule


def make_plan(cfg: CfgNode, images: int, full_images: int, processes: int) -> PretrainingPlan:
    """The plan for ``images`` (of a data set of ``full_images`` before subsets) on ``processes`` processes.

    InputError for a batch that does not divide into processes and micro-batches, fewer images than a batch, or a
    normalisation that would not be what its name says (BN of one image, ShuffleBN of a single group).
    """
    solver = cfg.SOLVER
    batch = solver.BATCH_SIZE
    micro, rest = divmod(batch, processes * solver.ACCUMULATE)
    if rest or micro == 0:
        raise InputError(
            f"expected SOLVER.BATCH_SIZE divisible by processes x SOLVER.ACCUMULATE = {processes} x "
            f"{solver.ACCUMULATE}, found {batch}; change one of them"
        )
    _check_batch_statistics(cfg, micro, processes)
    per_epoch = images // batch
    if per_epoch == 0:
        raise InputError(f"expected at least a batch of {batch} images, found {images}; lower SOLVER.BATCH_SIZE")
    epochs = solver.EPOCHS
    if cfg.DATA.STRETCH_EPOCHS:
        epochs = stretched_epochs(epochs, full_images, images, batch)
    steps = solver.STEPS or epochs * per_epoch
    stretch = 1.0 if solver.STEPS else epochs / solver.EPOCHS  # of the warm-up too
    return PretrainingPlan(
        steps=steps,
        steps_per_epoch=per_epoch,
        micro_batch=micro,
        accumulate=solver.ACCUMULATE,
        base_lr=scale_to_batch(solver.BASE_LR, batch, solver.BASE_BATCH_SIZE),
        warmup=min(round(solver.WARMUP_EPOCHS * per_epoch * stretch), steps - 1),
        momentum_base=scaled_teacher_momentum(cfg),
    )


def _check_batch_statistics(cfg: CfgNode, micro: int, processes: int) -> None:
    """Raises InputError if BN would see a single image (no variance over images) or ShuffleBN would be plain BN."""
    alone = norms(cfg) - {"GN", "IN"} - ({"SyncBN"} if processes > 1 else set())
    if 1 in (micro, cfg.NORM.GROUP_SIZE) and alone and cfg.METHOD.NAME != "random":
        raise InputError(
            f"expected at least two images for each forward of {' and '.join(sorted(alone))}, found one: "
            f"SOLVER.BATCH_SIZE {cfg.SOLVER.BATCH_SIZE} over {processes} processes x SOLVER.ACCUMULATE "
            f"{cfg.SOLVER.ACCUMULATE}, NORM.GROUP_SIZE {cfg.NORM.GROUP_SIZE}; raise them, or normalise with GN"
        )
    if "ShuffleBN" in norms(cfg) and processes == 1 and cfg.NORM.GROUP_SIZE in (0, micro):
        sizes = [size for size in range(2, micro) if micro % size == 0]
        advice = (
            f"take NORM.GROUP_SIZE {min(sizes, key=lambda size: abs(size - 32))} (MoCo's are 32)"
            if sizes
            else ("raise SOLVER.BATCH_SIZE to a multiple of 4")
        )
        raise InputError(
            "expected several processes, or NORM.GROUP_SIZE images of a virtual one, to shuffle between under "
            f"NORM.TEACHER ShuffleBN, found one process that normalises its {micro} images together: that is plain BN, "
            f"whose statistics leak which key is the query's; {advice}"
        )


def learning_rate_at(plan: PretrainingPlan, cfg: CfgNode, step: int) -> float:
    """The learning rate of a step under the settings' schedule."""
    return learning_rate(
        step,
        total=plan.steps,
        base=plan.base_lr,
        warmup=plan.warmup,
        warmup_factor=cfg.SOLVER.WARMUP_FACTOR,
        schedule=cfg.SOLVER.SCHEDULE,
        milestones=cfg.SOLVER.MILESTONES,
        gamma=cfg.SOLVER.GAMMA,
    )


def describe(plan: PretrainingPlan, cfg: CfgNode, processes: int) -> list[str]:
    """The plan in lines for the log, with the scaling that was applied."""
    solver, factor = cfg.SOLVER, cfg.SOLVER.BATCH_SIZE / cfg.SOLVER.BASE_BATCH_SIZE
    cut = ", cut to the run" if plan.warmup < round(solver.WARMUP_EPOCHS * plan.steps_per_epoch) else ""
    lines = [
        f"{counted(plan.steps, 'step')} of {counted(solver.BATCH_SIZE, 'image')} ({plan.micro_batch} x "
        f"{counted(processes, 'process')} x {counted(plan.accumulate, 'micro-batch')}), "
        f"{counted(plan.steps_per_epoch, 'step')} an epoch",
        f"learning rate {plan.base_lr:g} = {solver.BASE_LR:g} x {factor:g} (linear scaling from a batch of "
        f"{solver.BASE_BATCH_SIZE}), {counted(plan.warmup, 'step')} of warm-up{cut}",
    ]
    if cfg.METHOD.NAME in WITH_TEACHER:
        rule = "equivalence rule" if cfg.TEACHER.SCALE_MOMENTUM else "not scaled"
        lines.append(f"teacher momentum {plan.momentum_base:g} ({rule}), {cfg.TEACHER.MOMENTUM_SCHEDULE}")
    return lines


def concerns(plan: PretrainingPlan, cfg: CfgNode, processes: int, preset: CfgNode | None = None) -> list[str]:
    """Warnings before a run, a line each: BN or SyncBN of other images than in its config, a long warm-up.

    ``preset``: the config before what the command line changed; None if there is no file.
    """
    lines, solver = [], cfg.SOLVER
    seen, pinned = cfg.NORM.GROUP_SIZE or plan.micro_batch, preset.NORM.GROUP_SIZE if preset else 0
    expected = pinned or solver.BATCH_SIZE  # without NORM.GROUP_SIZE the config means one process
    if (by_process := norms_of_own_batch(cfg)) and seen != expected:
        lines.append(
            f"another protocol: {' and '.join(by_process)} of {expected} images in "
            f"{'the config, as its paper had' if pinned else 'one process'}, of {seen} in this run (NORM.GROUP_SIZE "
            f"{cfg.NORM.GROUP_SIZE}, {counted(processes, 'process')} x {counted(solver.ACCUMULATE, 'micro-batch')} of "
            f"{plan.micro_batch}); NORM.GROUP_SIZE sets how many, whatever the number of processes"
        )
    if plan.warmup / plan.steps > _LONGEST_WARMUP:
        lines.append(
            f"{plan.warmup} of {plan.steps} steps are warm-up ({plan.warmup / plan.steps:.0%}; usual: at most "
            f"{_LONGEST_WARMUP:.0%}), so that the rate is low for much of the run; lower SOLVER.WARMUP_EPOCHS to "
            f"{int(_LONGEST_WARMUP * plan.steps) / plan.steps_per_epoch:.3g}, or train longer"
        )
    parts = preset.SOLVER.ACCUMULATE if preset else 1
    if "SyncBN" in norms(cfg) and cfg.METHOD.NAME != "random" and parts != solver.ACCUMULATE:
        lines.append(
            f"another protocol: SyncBN of {solver.BATCH_SIZE // parts} images in the config, of "
            f"{solver.BATCH_SIZE // solver.ACCUMULATE} in this run (SOLVER.ACCUMULATE {solver.ACCUMULATE}: it joins "
            "processes, not the micro-batches of a step); use more processes instead of micro-batches"
        )
    return lines
