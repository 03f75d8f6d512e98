"""Builders of the methods: the one place where settings become modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from fvcore.common.config import CfgNode

from momentum_transfer.backbones.batch_statistics import has_batch_norm
from momentum_transfer.backbones.build import AnyArchitecture, Backbone, build_backbone, named_architecture
from momentum_transfer.backbones.resnet import Architecture
from momentum_transfer.core import distributed
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.optimization import scale_to_batch
from momentum_transfer.pretrain.config import check_settings
from momentum_transfer.pretrain.heads import mlp, simsiam_projector
from momentum_transfer.pretrain.methods.byol import BYOL
from momentum_transfer.pretrain.methods.method import Branch, Method, TeacherRule
from momentum_transfer.pretrain.methods.moco import MoCo
from momentum_transfer.pretrain.methods.momentum2 import Momentum2Teacher
from momentum_transfer.pretrain.methods.random import RandomBackbone
from momentum_transfer.pretrain.methods.simsiam import SimSiam
from momentum_transfer.pretrain.methods.supervised import Classifier, Supervised
from momentum_transfer.pretrain.norms import FOLLOWS_STUDENT, Norm

#: Normalisations that a network without batch normalisation can be trained with: of its heads' batches or statistics.
WITHOUT_BN = ("BN", "SyncBN", "ShuffleBN", "EMAN")


def architecture_of(cfg: CfgNode) -> AnyArchitecture:
    """The backbone that the settings name."""
    return named_architecture(cfg.MODEL.ARCH, cfg.MODEL.WIDTH, cfg.MODEL.STEM)


def _backbone(cfg: CfgNode, norm: Norm) -> Backbone:
    """The backbone with that normalisation in the place of its batch normalisation.

    Raises:
        InputError: it has none, and ``norm`` is not one that the heads alone can have.
    """
    architecture = architecture_of(cfg)
    if norm.name not in WITHOUT_BN and not isinstance(architecture, Architecture):
        with torch.device("meta"):
            replaceable = has_batch_norm(build_backbone(architecture))
        if not replaceable:
            raise InputError(
                f"expected a network with batch normalisation for {norm.name}, found {architecture}, which has none to "
                f"put it in the place of; take NORM.STUDENT and NORM.TEACHER of {', '.join(WITHOUT_BN)}, which then "
                "normalise in the heads alone, or another network"
            )
    return build_backbone(architecture, norm)


def scaled_teacher_momentum(cfg: CfgNode) -> float:
    """m_base at this batch size: the equivalence rule of Momentum^2 Teacher 4.2, at most 1."""
    base = cfg.TEACHER.MOMENTUM_BASE
    if not cfg.TEACHER.SCALE_MOMENTUM:
        return base
    return min(scale_to_batch(base, cfg.SOLVER.BATCH_SIZE, cfg.SOLVER.BASE_BATCH_SIZE), 1.0)


def _rule(cfg: CfgNode) -> TeacherRule:
    own = cfg.NORM.STATISTICS_MOMENTUM
    return TeacherRule(
        norm=cfg.NORM.TEACHER,
        momentum_base=scaled_teacher_momentum(cfg),
        momentum_schedule=cfg.TEACHER.MOMENTUM_SCHEDULE,
        moves=cfg.TEACHER.MOVES,
        statistics_momentum=None if own < 0 else own,
        alpha_base=cfg.NORM.ALPHA_BASE,
        alpha_schedule=cfg.NORM.ALPHA_SCHEDULE,
        policy=cfg.NORM.POLICY,
        groups=virtual_processes(cfg),
    )


def virtual_processes(cfg: CfgNode) -> int:
    """Virtual processes of NORM.GROUP images within one process's micro-batch; 1 where NORM.GROUP is 0.

    Raises:
        InputError: the micro-batch does not divide into such groups.
    """
    size, processes = cfg.NORM.GROUP, distributed.world_size()
    micro = cfg.SOLVER.BATCH_SIZE // (processes * cfg.SOLVER.ACCUMULATE)
    if size == 0:
        return 1
    if micro % size:
        raise InputError(
            f"expected NORM.GROUP to divide the {micro} images of a process's micro-batch (SOLVER.BATCH_SIZE "
            f"{cfg.SOLVER.BATCH_SIZE} over {processes} processes x SOLVER.ACCUMULATE {cfg.SOLVER.ACCUMULATE}), found "
            f"{size}, the images per BN of the protocol; use fewer processes or micro-batches, or another NORM.GROUP, "
            "which is another protocol"
        )
    return micro // size


def _branch(cfg: CfgNode, norm: Norm, predictor: bool) -> Branch:
    backbone = _backbone(cfg, norm)
    head = cfg.HEAD
    head_norm = norm.for_vectors if head.PROJECTOR_NORM else None
    projector = mlp(backbone.num_features, head.HIDDEN, head.OUTPUT, head_norm)
    hidden = head.PREDICTOR_HIDDEN or head.HIDDEN
    return Branch(backbone, projector, mlp(head.OUTPUT, hidden, head.OUTPUT, norm.for_vectors) if predictor else None)


def _student_norm(cfg: CfgNode) -> Norm:
    return Norm(cfg.NORM.STUDENT, cfg.NORM.STUDENT_MOMENTUM, groups=virtual_processes(cfg))


def _branches(cfg: CfgNode, student_predictor: bool, teacher_predictor: bool) -> tuple[Branch, Branch]:
    student = _student_norm(cfg)
    # A student of SyncBN has one set of statistics, whatever the groups; who follows it takes them.
    joined = cfg.NORM.TEACHER in FOLLOWS_STUDENT and cfg.NORM.STUDENT == "SyncBN"
    groups = 1 if joined else student.groups
    teacher = Norm(cfg.NORM.TEACHER, cfg.NORM.STUDENT_MOMENTUM, cfg.NORM.PROXY_MOMENTUM, groups)
    return _branch(cfg, student, student_predictor), _branch(cfg, teacher, teacher_predictor)


def _momentum2(cfg: CfgNode, num_classes: int) -> Method:
    return Momentum2Teacher(*_branches(cfg, True, False), _rule(cfg))


def _byol(cfg: CfgNode, num_classes: int) -> Method:
    return BYOL(*_branches(cfg, True, False), _rule(cfg))


def _moco(cfg: CfgNode, num_classes: int) -> Method:
    moco = cfg.MOCO
    return MoCo(
        *_branches(cfg, moco.PREDICTOR, moco.TEACHER_PREDICTOR),
        _rule(cfg),
        dim=cfg.HEAD.OUTPUT,
        queue_size=moco.QUEUE,
        temperature=moco.TEMPERATURE,
        symmetric=moco.SYMMETRIC,
    )


def _student_alpha(cfg: CfgNode) -> dict[str, Any]:
    norm = cfg.NORM
    return {"alpha_base": norm.ALPHA_BASE, "alpha_schedule": norm.ALPHA_SCHEDULE, "policy": norm.POLICY}


def _simsiam(cfg: CfgNode, num_classes: int) -> Method:
    norm = _student_norm(cfg)
    backbone = _backbone(cfg, norm)
    head = cfg.HEAD
    projector = simsiam_projector(backbone.num_features, head.HIDDEN, head.OUTPUT, norm.for_vectors)
    predictor = mlp(head.OUTPUT, head.PREDICTOR_HIDDEN or head.HIDDEN, head.OUTPUT, norm.for_vectors)
    return SimSiam(Branch(backbone, projector, predictor), **_student_alpha(cfg))


def _supervised(cfg: CfgNode, num_classes: int) -> Method:
    backbone = _backbone(cfg, _student_norm(cfg))
    return Supervised(Classifier(backbone, num_classes), **_student_alpha(cfg))


def _random(cfg: CfgNode, num_classes: int) -> Method:
    return RandomBackbone(_backbone(cfg, Norm(cfg.NORM.STUDENT, cfg.NORM.STUDENT_MOMENTUM)))


METHODS: dict[str, Callable[[CfgNode, int], Method]] = {
    "momentum2": _momentum2,
    "byol": _byol,
    "moco": _moco,
    "simsiam": _simsiam,
    "supervised": _supervised,
    "random": _random,
}


def build_method(cfg: CfgNode, num_classes: int) -> Method:
    """The method that METHOD.NAME names, freshly initialised.

    Args:
        cfg: settings of ``config.get_cfg``.
        num_classes: classes of the data; only the supervised baseline uses it.

    Raises:
        InputError: an unknown name, or settings that contradict each other.
    """
    check_settings(cfg)
    return METHODS[cfg.METHOD.NAME](cfg, num_classes)
