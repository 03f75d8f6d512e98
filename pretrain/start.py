"""Starts a pretraining from weights: reads them, compares them with the network, gives them to student and teacher."""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from fvcore.common.config import CfgNode
from torch import Tensor, nn

from momentum_transfer.backbones.build import AnyArchitecture, build_backbone, named_architecture
from momentum_transfer.backbones.norms.batch_norm import AnyShapeBatchNorm
from momentum_transfer.backbones.read import load_backbone
from momentum_transfer.backbones.resnet import Architecture
from momentum_transfer.backbones.source import SourceBackbone
from momentum_transfer.backbones.teacher import copy_student
from momentum_transfer.backbones.timm_models import TimmArchitecture
from momentum_transfer.backbones.trainable import (
    check_part,
    keep_statistics,
    layers_of,
    rate_factors,
    train_only,
    use_batch_statistics,
)
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.settings import with_values
from momentum_transfer.pretrain.methods.method import Method, StudentTeacher
from momentum_transfer.pretrain.pipeline import EvaluationImages


@dataclass(frozen=True)
class Start:
    """The weights that a run starts from, and the settings with their digest."""

    cfg: CfgNode
    source: SourceBackbone

    @cached_property
    def network(self) -> nn.Module:
        """A plain copy of the backbone, for statistics of new images."""
        return self.source.build()

    def check(self, images: EvaluationImages, device: torch.device) -> None:
        """InputError for images that are all one, or features of them that are not finite or all the same."""
        count = len(images)
        some = torch.stack([images[int(row)][0] for row in np.linspace(0, count - 1, min(count, 16))])
        if len(some) > 1 and bool((some == some[0]).all()):
            raise InputError(f"expected images that differ, found the same {len(some)} times; check them for copies")
        network = self.source.build()
        self._keep(network)
        use_batch_statistics(network.to(device).eval())
        with torch.no_grad():
            features = network(some.to(device)).float()
        if not bool(features.isfinite().all()):
            raise InputError(f"expected finite features, found NaN or infinite ones of {self.source.name}; give "
                             "weights whose training did not diverge")  # fmt: skip
        if len(some) > 1 and bool(((features - features[0]).abs() <= 1e-6 * features[0].abs().max()).all()):
            raise InputError(f"expected features that differ between images, found the same for all {len(some)} of "
                             f"{self.source.name}; its training collapsed or diverged, give other weights")  # fmt: skip

    def give(self, method: Method) -> None:
        """Load the backbone's weights and statistics into the student, and let the teacher begin as its copy.

        Virtual processes all begin with the weights' statistics. Heads stay as they are.
        """
        student = method.backbone("student")
        own, given = student.state_dict(), self.network.state_dict()
        student.load_state_dict({name: given.get(name, value) for name, value in own.items()})
        with torch.no_grad():
            for layer in student.modules():
                if isinstance(layer, AnyShapeBatchNorm) and layer.groups > 1:
                    layer.group_mean.copy_(layer.running_mean.repeat(layer.groups))
                    layer.group_var.copy_(layer.running_var.repeat(layer.groups))
        if isinstance(method, StudentTeacher):
            copy_student(method.student, method.teacher)

    def freeze(self, method: Method) -> None:
        """Freeze what MODEL.TRAINABLE leaves out, and the statistics where NORM.WEIGHTS_STATISTICS says so.

        A teacher keeps the statistics of the same layers as the student.
        """
        student = method.backbone("student")
        self._keep(student)
        if "teacher" in method.networks():
            teacher = method.backbone("teacher")
            for name, layer in student.named_modules():
                if "train" in layer.__dict__:  # as `keep_statistics` marks it, torch's own SyncBatchNorm too
                    keep_statistics(teacher.get_submodule(name))

    def _keep(self, backbone: nn.Module) -> None:
        train_only(backbone, self.cfg.MODEL.TRAINABLE)
        if self.cfg.NORM.WEIGHTS_STATISTICS == "frozen":
            keep_statistics(backbone)

    def factors(self) -> dict[str, float]:
        """Factors of the learning rate by SOLVER.LAYER_DECAY, by names within the method."""
        found = rate_factors(self.network, self.cfg.SOLVER.LAYER_DECAY)
        return {f"student.backbone.{name}": factor for name, factor in found.items()}


def read_start(cfg: CfgNode, preset: CfgNode | None = None) -> Start | None:
    """The weights of MODEL.WEIGHTS, compared with MODEL.ARCH and the digest; None where a run starts at random.

    Under RUN.MINUTES the network is that of the weights, unless MODEL.ARCH differs from ``preset``, the config's own.

    InputError for no such weights, another network, another digest, or a part or rates that the network does not have.
    """
    model = cfg.MODEL
    if not model.WEIGHTS:
        if model.WEIGHTS_SHA256:
            raise InputError("expected --weights of the digest MODEL.WEIGHTS_SHA256, found none; give both or neither")
        return None
    asked = named_architecture(model.ARCH, model.WIDTH, model.STEM)
    follows = cfg.RUN.MINUTES and preset is not None and asked == named_architecture(
        preset.MODEL.ARCH, preset.MODEL.WIDTH, preset.MODEL.STEM)  # fmt: skip
    named = asked if isinstance(asked, TimmArchitecture) and not follows else None
    source = load_backbone(model.WEIGHTS, architecture=named)
    found = source.architecture
    if isinstance(found, Architecture) and found.style != "pytorch":
        raise InputError(f"expected weights of torchvision's style to go on with, found {found}; give other weights")
    if follows:
        asked = found
    same = found == asked
    if isinstance(found, TimmArchitecture) and isinstance(asked, TimmArchitecture):
        same = found.name.partition(".")[0] == asked.name.partition(".")[0]
    if not same:
        settings = " ".join(f"{key} {value}" for key, value in _settings_of(found).items())
        raise InputError(f"expected the weights of {asked}, found those of {found} in {model.WEIGHTS}; set {settings}, "
                         "or give other weights")  # fmt: skip
    if model.WEIGHTS_SHA256 not in ("", source.sha256):
        raise InputError(f"expected weights with the digest {model.WEIGHTS_SHA256[:12]}… (MODEL.WEIGHTS_SHA256), found "
                         f"{source.sha256[:12]}… in {model.WEIGHTS}; give those that the run began with")  # fmt: skip
    with torch.device("meta"):
        network = build_backbone(asked)
    for name, tensor in network.state_dict().items():
        given = source.state.get(name)
        if given is None or given.shape != tensor.shape:
            shape = "none" if given is None else list(given.shape)
            raise InputError(f"expected {name} of shape {list(tensor.shape)}, found {shape} in {source.name}; let "
                             "MODEL.ARCH be the network of the weights, ?img_size=N included")  # fmt: skip
    check_part(network, model.TRAINABLE)
    if cfg.SOLVER.LAYER_DECAY != 1.0:
        layers_of(network)
    return Start(with_values(cfg, {"MODEL.WEIGHTS_SHA256": source.sha256, **_settings_of(asked)}), source)


def _settings_of(network: AnyArchitecture) -> dict[str, Any]:
    if not isinstance(network, Architecture):
        return {"MODEL.ARCH": str(network)}
    return {"MODEL.ARCH": network.name, "MODEL.WIDTH": network.width, "MODEL.STEM": network.stem}


@torch.no_grad()
def estimate_statistics(network: nn.Module, batches: Iterable[Tensor], count: int) -> None:
    """Set running statistics to those over ``count`` batches of images by fvcore's precise BN."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # fvcore's losses use torch.jit.script
        from fvcore.nn import update_bn_stats
    network.train()
    update_bn_stats(network, batches, count)
    network.eval()
