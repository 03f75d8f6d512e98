"""Agreement of the engines: largest differences between torchvision's and Detectron2's on equal weights and images."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from fvcore.common.config import CfgNode
from fvcore.nn import get_bn_modules
from torch import Tensor, nn

from momentum_transfer.transfer.detectron2_engine.data import detectron2_config
from momentum_transfer.transfer.detectron2_engine.few_labels import d2_input
from momentum_transfer.transfer.detectron2_engine.models import build_model
from momentum_transfer.transfer.torchvision_engine.detectors import RCNN, Detector, load_detector, names
from momentum_transfer.transfer.torchvision_engine.engine import build
from momentum_transfer.transfer.torchvision_engine.segmentors import Segmentor
from momentum_transfer.transfer.torchvision_engine.structures import Sample


def d2_inputs(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Samples in Detectron2's form, with what they have of targets or labels."""
    return [_input(sample) for sample in samples]


def _input(sample: Sample) -> dict[str, Any]:
    return d2_input(sample) | ({} if sample.labels is None else {"sem_seg": sample.labels})


def training_losses(model: nn.Module, samples: Sequence[Sample]) -> dict[str, Tensor]:
    """Losses of a model in training mode; every sample needs a target or labels."""
    from detectron2.utils.events import EventStorage

    if any(sample.target is None and sample.labels is None for sample in samples):
        raise ValueError("every sample needs a target")
    with EventStorage():
        losses: dict[str, Tensor] = model(d2_inputs(samples))
    return losses


def random_pair(cfg: CfgNode, samples: Sequence[Sample], seed: int = 3) -> tuple[Detector, nn.Module]:
    """Our model and Detectron2's of one config, with the same random weights.

    Fresh heads are so flat that scores tie, so every weight is moved a little; BatchNorms take the statistics of
    ``samples`` (which need targets or labels), else a deep random network gives nothing but zeros or infinities.
    """
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        d2_model = build_model(detectron2_config(cfg, seed=0, out_dir=Path(folder))).train()
    for parameter in d2_model.parameters():
        if parameter.dim() > 1:
            parameter.data.add_(torch.randn_like(parameter) * 0.02)
    norms = get_bn_modules(d2_model)
    usual = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        training_losses(d2_model, samples)
    for norm, momentum in zip(norms, usual, strict=True):
        norm.momentum = momentum
    if hasattr(d2_model, "loss_normalizer"):
        del d2_model.loss_normalizer  # the moving average begins anew
    ours = build(cfg)
    load_detector(ours, d2_model.state_dict(), "Detectron2")
    return ours, d2_model


def loss_differences(ours: Detector, d2_model: nn.Module, samples: Sequence[Sample], seed: int = 0) -> dict[str, float]:
    """Largest difference of each loss, and of all ``gradients`` in units of the largest one of their tensor."""
    torch.manual_seed(seed)
    mine: dict[str, Tensor] = ours.train()(samples)
    torch.manual_seed(seed)
    other = training_losses(d2_model.train(), samples)
    if set(mine) != set(other):
        raise ValueError(f"the losses have other names: {sorted(mine)}, {sorted(other)}")
    found = {name: abs(mine[name].item() - value.item()) for name, value in other.items()}
    for model, losses in ((ours, mine), (d2_model, other)):
        model.zero_grad()
        torch.stack(list(losses.values())).sum().backward()
    table, others = names(ours), dict(d2_model.named_parameters())
    found["gradients"] = 0.0
    for name, parameter in ours.named_parameters():
        mine_here, other_here = parameter.grad, others[table[name]].grad
        if mine_here is not None and other_here is not None:
            relative = _largest(mine_here, other_here) / max(float(mine_here.abs().max()), 1e-3)
            found["gradients"] = max(found["gradients"], relative)
        elif mine_here is not other_here:
            found["gradients"] = float("inf")
    return found


@torch.no_grad()
def prediction_differences(ours: Detector, d2_model: nn.Module, samples: Sequence[Sample]) -> dict[str, float]:
    """Largest differences of ``proposals`` (two stages), ``boxes`` (pixels), ``scores``, ``masks`` (fraction).

    Infinite where the two find another number of objects or other classes.
    """
    ours.eval()
    d2_model.eval()
    found: dict[str, float] = {}
    for sample in samples:
        plain = replace(sample, target=None, labels=None)
        for name, value in _of_image(ours, d2_model, plain).items():
            found[name] = max(found.get(name, 0.0), value)
    return found


def _of_image(ours: Detector, d2_model: Any, sample: Sample) -> dict[str, float]:
    given = d2_inputs([sample])
    if isinstance(ours, Segmentor):
        labels, logits = ours([sample])[0], d2_model(given)[0]["sem_seg"]
        return {"masks": _differing(labels, logits.argmax(dim=0))}
    mine, other = ours([sample])[0], d2_model(given)[0]["instances"]
    found = {}
    if isinstance(ours, RCNN):
        x, sizes = ours.batch([sample.image])
        images = d2_model.preprocess_image(given)
        own, _ = ours.proposal_generator(ours.backbone(x), sizes, None)
        its, _ = d2_model.proposal_generator(images, d2_model.backbone(images.tensor), None)
        found["proposals"] = _largest(own[0].boxes, its[0].proposal_boxes.tensor)
    same = len(mine.classes) > 0 and torch.equal(mine.classes, other.pred_classes)
    found["boxes"] = _largest(mine.boxes, other.pred_boxes.tensor) if same else float("inf")
    found["scores"] = _largest(mine.scores, other.scores) if same else float("inf")
    if mine.masks is not None:
        found["masks"] = _differing(mine.masks, other.pred_masks) if same else float("inf")
    return found


def _largest(first: Tensor, second: Tensor) -> float:
    if first.shape != second.shape:
        return float("inf")
    return float((first - second).abs().max()) if first.numel() else 0.0


def _differing(first: Tensor, second: Tensor) -> float:
    """Fraction of the pixels that differ."""
    return float((first != second).float().mean()) if first.shape == second.shape else float("inf")
