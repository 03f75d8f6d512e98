"""A method in one line, and its step in another, for your own training loop.

    method = build_method("momentum2", arch="resnet18")
    optimizer = torch.optim.SGD(method.parameters(), lr=0.05, momentum=0.9)
    for step, (view1, view2) in enumerate(batches):
        train_step(method, optimizer, view1, view2, progress=step / steps)

The loop of ``tools/pretrain.py`` adds what a long run needs: resuming, mixed precision, micro-batches, processes.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from momentum_transfer.backbones.norms.momentum_batch_norm import forget_pending
from momentum_transfer.core.errors import ConfigNotFound, InputError
from momentum_transfer.core.ranges import UNIT
from momentum_transfer.core.settings import load_config
from momentum_transfer.pretrain import methods
from momentum_transfer.pretrain.config import get_cfg, norms
from momentum_transfer.pretrain.methods.method import Method, StudentTeacher

#: name -> the config whose settings it takes: the paper's at ResNet-50 on ImageNet
PRESETS = {
    "momentum2": "pretrain/momentum2_r50_100e",
    "byol": "pretrain/byol_r50_lars_200e",
    "byol_eman": "pretrain/byol_eman_r50_200e",
    "moco": "pretrain/mocov2_r50_200e",
    "moco_eman": "pretrain/moco_eman_r50_200e",
    "mocov2plus": "pretrain/mocov2plus_r50_200e",
    "s_mocov2plus": "pretrain/s_mocov2plus_r50_200e",
    "simsiam": "pretrain/simsiam_r50_100e",
}


def build_method(
    name: str = "momentum2",
    *,
    arch: str = "resnet50",
    width: int = 64,
    stem: str = "imagenet",
    settings: Mapping[str, Any] | None = None,
) -> Method:
    """A pretraining method with the settings of its paper, freshly initialised.

    Args:
        name: a key of ``PRESETS``, or a config by name or path, such as ``smoke/moco_eman_digits``.
        arch, width, stem: of the presets' backbone, see :class:`momentum_transfer.backbones.resnet.Architecture`;
            ``arch`` may be ``timm:NAME``. A config brings its own.
        settings: instead of the paper's: ``{"HEAD.HIDDEN": 512, "NORM.TEACHER": "EMAN"}``. BN of a preset normalises
            the whole batch, of any size, unless NORM.GROUP_SIZE is given; ShuffleBN divides it as the paper's was.

    Returns:
        The module: ``method(view1, view2)["loss"]``, ``method.backbone("teacher")`` after training.

    Raises:
        InputError: an unknown name or setting, or settings that contradict each other.
    """
    backbone = {"MODEL.ARCH": arch, "MODEL.WIDTH": width, "MODEL.STEM": stem} if name in PRESETS else {}
    try:
        overrides = [word for key, value in {**backbone, **(settings or {})}.items() for word in (key, value)]
        cfg = load_config(get_cfg(), PRESETS.get(name, name), overrides)
    except ConfigNotFound as error:
        raise InputError(f"expected a method of {', '.join(PRESETS)}, or a config, found {name!r}: {error}") from error
    if cfg.METHOD.NAME == "supervised":
        raise InputError("expected a method without labels, found supervised; use a classifier and cross-entropy")
    if name in PRESETS and "NORM.GROUP_SIZE" not in (settings or {}) and "ShuffleBN" not in norms(cfg):
        cfg.defrost()
        cfg.NORM.GROUP_SIZE = 0
    return methods.build_method(cfg, num_classes=0)


def train_step(
    method: Method, optimizer: Optimizer, view1: Tensor, view2: Tensor, *, progress: float
) -> dict[str, float]:
    """One optimizer step in the order of the papers: the teacher moves before or after it, statistics once.

    Args:
        view1, view2: two views [N, 3, H, W] of the same images.
        progress: fraction of the run that is done, k/K of the momentum schedules, from 0 to 1.

    Returns:
        The loss, the metrics that the method watches, and the momenta of this step.

    Raises:
        InputError: a view or the loss is not finite, or progress is outside 0 … 1. Of a loss the teacher has moved
            then, and plain BN's running statistics and MoCo's queue have seen the batch; the next step can follow.
    """
    UNIT.require("progress", progress, "it is the fraction of the run that is done")
    if not bool(view1.isfinite().all() and view2.isfinite().all()):
        raise InputError("expected finite views, found NaN or infinity; check the images and their normalisation")
    method.train()
    moves = method.rule.moves if isinstance(method, StudentTeacher) else "after"
    momenta = method.begin_step(progress)  # Momentum BN's alpha
    if moves == "before":
        momenta |= method.update_teacher(progress)
    outputs = method(view1, view2)
    loss = outputs["loss"]
    if not bool(loss.isfinite()):
        forget_pending(method)
        raise InputError(f"expected a finite loss, found {float(loss)}; lower the learning rate or check the views")
    loss.backward()
    method.commit_statistics()  # Momentum BN: the history moves once a step
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if moves == "after":
        momenta |= method.update_teacher(progress)
    return {**{key: float(value.detach()) for key, value in outputs.items()}, **momenta}
