"""Builders of the methods: the one place where settings become modules."""

from collections.abc import Callable

import torch
from fvcore.common.config import CfgNode

from momentum_transfer.backbones.batch_statistics import has_batch_norm
from momentum_transfer.backbones.build import Backbone, build_backbone, named_architecture
from momentum_transfer.backbones.norms import FOLLOWS_STUDENT, Norm
from momentum_transfer.backbones.resnet import Architecture
from momentum_transfer.core import distributed
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.optimization import scale_to_batch
from momentum_transfer.pretrain.config import check_settings
from momentum_transfer.pretrain.heads import mlp, simsiam_projector
from momentum_transfer.pretrain.methods.baselines import Classifier, RandomBackbone, Supervised
from momentum_transfer.pretrain.methods.byol import BYOL
from momentum_transfer.pretrain.methods.method import Branch, Method, TeacherRule
from momentum_transfer.pretrain.methods.moco import MoCo
from momentum_transfer.pretrain.methods.momentum2 import Momentum2Teacher
from momentum_transfer.pretrain.methods.simsiam import SimSiam

#: Normalisations for networks without batch normalisation: the heads alone have them.
_WITHOUT_BN = ("BN", "SyncBN", "ShuffleBN", "EMAN")


def _backbone(cfg: CfgNode, norm: Norm) -> Backbone:
    """The backbone with ``norm`` instead of its BatchNorm; InputError if it has none and ``norm`` needs one."""
    architecture = named_architecture(cfg.MODEL.ARCH, cfg.MODEL.WIDTH, cfg.MODEL.STEM)
    if norm.name not in _WITHOUT_BN and not isinstance(architecture, Architecture):
        with torch.device("meta"):
            replaceable = has_batch_norm(build_backbone(architecture))
        if not replaceable:
            raise InputError(
                f"expected a network with batch normalisation to replace by {norm.name}, found {architecture}, which "
                f"has none; take NORM.STUDENT and NORM.TEACHER of {', '.join(_WITHOUT_BN)}, which then normalise in "
                "the heads alone, or another network"
            )
    return build_backbone(architecture, norm)


def scaled_teacher_momentum(cfg: CfgNode) -> float:
    """m_base at this batch size: the equivalence rule of Momentum^2 Teacher 4.2, at most 1."""
    base = cfg.TEACHER.MOMENTUM_BASE
    if not cfg.TEACHER.SCALE_MOMENTUM:
        return base
    return min(scale_to_batch(base, cfg.SOLVER.BATCH_SIZE, cfg.SOLVER.BASE_BATCH_SIZE), 1.0)


def _rule(cfg: CfgNode) -> TeacherRule:
    norm, teacher, own = cfg.NORM, cfg.TEACHER, cfg.NORM.STATISTICS_MOMENTUM
    return TeacherRule(
        norm=norm.TEACHER, momentum_base=scaled_teacher_momentum(cfg), momentum_schedule=teacher.MOMENTUM_SCHEDULE,
        moves=teacher.MOVES, statistics_momentum=None if own < 0 else own, alpha_base=norm.ALPHA_BASE,
        alpha_schedule=norm.ALPHA_SCHEDULE, policy=norm.POLICY, groups=virtual_processes(cfg),
    )  # fmt: skip


def virtual_processes(cfg: CfgNode) -> int:
    """Groups of NORM.GROUP_SIZE images in one process's micro-batch; 1 where it is 0. InputError if they do not fit."""
    size, processes = cfg.NORM.GROUP_SIZE, distributed.world_size()
    micro = cfg.SOLVER.BATCH_SIZE // (processes * cfg.SOLVER.ACCUMULATE)
    if size == 0:
        return 1
    if micro % size:
        raise InputError(
            f"expected NORM.GROUP_SIZE to divide the {micro} images of a process's micro-batch (SOLVER.BATCH_SIZE "
            f"{cfg.SOLVER.BATCH_SIZE} over {processes} processes x SOLVER.ACCUMULATE {cfg.SOLVER.ACCUMULATE}), found "
            f"{size}, the images per BN of the protocol; use fewer processes or micro-batches, or another "
            "NORM.GROUP_SIZE, which is another protocol"
        )
    return micro // size


def _student_norm(cfg: CfgNode) -> Norm:
    eager = cfg.NORM.HISTORY == "eager"
    return Norm(cfg.NORM.STUDENT, cfg.NORM.STUDENT_MOMENTUM, groups=virtual_processes(cfg), eager=eager)


def _predictor(cfg: CfgNode, norm: Norm) -> torch.nn.Module:
    head = cfg.HEAD
    return mlp(head.OUTPUT, head.PREDICTOR_HIDDEN or head.HIDDEN, head.OUTPUT, norm.for_vectors)


def _branch(cfg: CfgNode, norm: Norm, predictor: bool) -> Branch:
    backbone, head = _backbone(cfg, norm), cfg.HEAD
    head_norm = norm.for_vectors if head.PROJECTOR_NORM else None
    projector = mlp(backbone.num_features, head.HIDDEN, head.OUTPUT, head_norm)
    return Branch(backbone, projector, _predictor(cfg, norm) if predictor else None)


def _branches(cfg: CfgNode, student_predictor: bool, teacher_predictor: bool) -> tuple[Branch, Branch]:
    student = _student_norm(cfg)
    # A student of SyncBN has one set of statistics, whatever the groups; a teacher that follows it takes them.
    joined = cfg.NORM.TEACHER in FOLLOWS_STUDENT and cfg.NORM.STUDENT == "SyncBN"
    groups = 1 if joined else student.groups
    teacher = Norm(cfg.NORM.TEACHER, cfg.NORM.STUDENT_MOMENTUM, cfg.NORM.PROXY_MOMENTUM, groups, student.eager)
    return _branch(cfg, student, student_predictor), _branch(cfg, teacher, teacher_predictor)


def _moco(cfg: CfgNode) -> Method:
    moco = cfg.MOCO
    branches = _branches(cfg, moco.PREDICTOR, moco.TEACHER_PREDICTOR)
    options = {"queue_size": moco.QUEUE, "temperature": moco.TEMPERATURE, "symmetric": moco.SYMMETRIC}
    return MoCo(*branches, _rule(cfg), dim=cfg.HEAD.OUTPUT, **options)


def _simsiam(cfg: CfgNode) -> Method:
    norm, head = _student_norm(cfg), cfg.HEAD
    backbone = _backbone(cfg, norm)
    projector = simsiam_projector(backbone.num_features, head.HIDDEN, head.OUTPUT, norm.for_vectors)
    student = Branch(backbone, projector, _predictor(cfg, norm))
    return SimSiam(student, cfg.NORM.ALPHA_BASE, cfg.NORM.ALPHA_SCHEDULE, cfg.NORM.POLICY)


def _supervised(cfg: CfgNode, num_classes: int) -> Method:
    student = Classifier(_backbone(cfg, _student_norm(cfg)), num_classes)
    return Supervised(student, cfg.NORM.ALPHA_BASE, cfg.NORM.ALPHA_SCHEDULE, cfg.NORM.POLICY)


def _random(cfg: CfgNode) -> Method:
    name = "BN" if cfg.NORM.STUDENT == "MomentumBN" else cfg.NORM.STUDENT  # whose history only training commits
    return RandomBackbone(_backbone(cfg, Norm(name, cfg.NORM.STUDENT_MOMENTUM)))


METHODS: dict[str, Callable[[CfgNode, int], Method]] = {
    "momentum2": lambda cfg, _: Momentum2Teacher(*_branches(cfg, True, False), _rule(cfg)),
    "byol": lambda cfg, _: BYOL(*_branches(cfg, True, False), _rule(cfg)),
    "moco": lambda cfg, _: _moco(cfg),
    "simsiam": lambda cfg, _: _simsiam(cfg),
    "supervised": _supervised,
    "random": lambda cfg, _: _random(cfg),
}


def build_method(cfg: CfgNode, num_classes: int) -> Method:
    """The method that METHOD.NAME names, freshly initialised.

    Args:
        num_classes: classes of the data; only the supervised baseline uses it.

    Raises:
        InputError: an unknown name, or settings that contradict each other.
    """
    check_settings(cfg)
    return METHODS[cfg.METHOD.NAME](cfg, num_classes)
