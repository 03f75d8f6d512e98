"""Detectors as networks: images in, losses or detections out; and their weights under Detectron2's names.

What one engine trains the other one reads. The modules carry Detectron2's names already, except inside a ResNet, where
they are torchvision's; inside any other network they are timm's in both engines.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from momentum_transfer.backbones.build import detectron2_names
from momentum_transfer.backbones.trainable import UPDATES, merged_state, train_only, untrained_names
from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.initial_weights import InitialWeights, match_backbone, match_detector
from momentum_transfer.transfer.torchvision_engine.backbone import FPN, BottomUp, SimplePyramid, SingleScale
from momentum_transfer.transfer.torchvision_engine.dense import RetinaNet
from momentum_transfer.transfer.torchvision_engine.fcos import FCOS
from momentum_transfer.transfer.torchvision_engine.rpn import RPN
from momentum_transfer.transfer.torchvision_engine.structures import (
    Detections,
    Maps,
    Output,
    Sample,
    Sizes,
    Target,
    rescale,
)

#: Own names of parameters of the last layers: classes, boxes, masks, centre-ness.
LAST_LAYERS = re.compile(r"\b(cls_score|bbox_pred|mask_head\.predictor|ctrness)\.")


class LastLayers(nn.Module):
    """A detector of either engine, of which the last layers alone may train (TFA, arXiv 2003.06957, section 3)."""

    last_layers_only = False

    def train_last_layers(self) -> Any:
        """Freeze all but the last layers; frozen norms keep their statistics."""
        self.last_layers_only = True
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(LAST_LAYERS.search(name) is not None)
        return self.train(self.training)

    def train(self, mode: bool = True) -> Any:
        """See ``nn.Module.train``; the frozen backbone and norms of ``train_last_layers`` stay as at test."""
        super().train(mode)
        if self.last_layers_only:
            norms = (module for module in self.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm))
            for module in (self.get_submodule("backbone"), *norms):
                module.eval()
        return self


class Detector(LastLayers):
    """Images in; losses out in training, detections in the original images' pixels otherwise.

    Args:
        backbone: gives named feature maps. pixel_mean, pixel_std: in the channel order of the images.
    """

    def __init__(
        self, backbone: FPN | SimplePyramid | SingleScale, pixel_mean: Sequence[float], pixel_std: Sequence[float]
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.pixel_mean: Tensor
        self.pixel_std: Tensor
        self.register_buffer("pixel_mean", torch.tensor(pixel_mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("pixel_std", torch.tensor(pixel_std).view(-1, 1, 1), persistent=False)

    @property
    def device(self) -> torch.device:
        return self.pixel_mean.device

    def batch(self, images: Sequence[Tensor]) -> tuple[Tensor, list[tuple[int, int]]]:
        """Images normalised, padded with zeros at the right and bottom and stacked; and their own (height, width)."""
        normalised = [(x.to(self.device) - self.pixel_mean) / self.pixel_std for x in images]
        sizes = [(x.shape[-2], x.shape[-1]) for x in normalised]
        step = self.backbone.size_divisibility
        height, width = (-(-max(s) // step) * step for s in zip(*sizes, strict=True))
        if square := self.backbone.square:
            if max(height, width) > square:
                raise InputError(
                    f"expected images within MODEL.BACKBONE.SQUARE {square}, found {width} × {height}; lower "
                    "INPUT.MAX_SIZE_TRAIN and MAX_SIZE_TEST"
                )
            height = width = square
        stacked = normalised[0].new_zeros(len(normalised), 3, height, width)
        for index, (x, (h, w)) in enumerate(zip(normalised, sizes, strict=True)):
            stacked[index, :, :h, :w] = x
        return stacked, sizes

    def run(self, features: Maps, sizes: Sizes, targets: Sequence[Target] | None) -> Output:
        """Everything behind the backbone."""
        raise NotImplementedError

    def forward(self, samples: Sequence[Sample]) -> dict[str, Tensor] | list[Detections]:
        """Losses by name in training; in evaluation the detections of each sample."""
        x, sizes = self.batch([sample.image for sample in samples])
        targets = None
        if self.training:
            targets = [sample.target.to(self.device) for sample in samples if sample.target is not None]
            if len(targets) != len(samples):
                raise ValueError("every sample needs a target in training")
        features = self.backbone(x)
        labelled = len(samples) - sum(sample.pseudo for sample in samples)
        if targets is not None and labelled < len(samples):
            return self._with_pseudo(features, sizes, targets, labelled)
        detections, losses = self.run(features, sizes, targets)
        if self.training:
            return losses
        return [
            rescale(found, size, sample.height, sample.width)
            for found, size, sample in zip(detections, sizes, samples, strict=True)
        ]

    def _with_pseudo(self, features: Maps, sizes: Sizes, targets: Sequence[Target], labelled: int) -> dict[str, Tensor]:
        """Losses of the ``labelled`` first images, and as ``…_pseudo`` of those after them, whose targets a teacher
        made. The backbone has seen all of them in one batch, with the same BN statistics, as FixMatch does."""
        _, losses = self.run({name: x[:labelled] for name, x in features.items()}, sizes[:labelled], targets[:labelled])
        rest = {name: x[labelled:] for name, x in features.items()}
        pseudo = self.run_pseudo(rest, sizes[labelled:], targets[labelled:], labelled)
        return losses | {f"{name}_pseudo": loss for name, loss in pseudo.items()}

    def run_pseudo(self, features: Maps, sizes: Sizes, targets: Sequence[Target], labelled: int) -> dict[str, Tensor]:
        """``run`` on a teacher's targets: mean losses of an image."""
        return self.run(features, sizes, targets)[1]


class RCNN(Detector):
    """Two stages: region proposals, then RoI heads."""

    def __init__(
        self, backbone: FPN | SimplePyramid | SingleScale, rpn: RPN, roi_heads: nn.Module, **pixels: Sequence[float]
    ) -> None:
        super().__init__(backbone, **pixels)
        self.proposal_generator, self.roi_heads = rpn, roi_heads

    def run(self, features: Maps, sizes: Sizes, targets: Sequence[Target] | None) -> Output:
        proposals, proposal_losses = self.proposal_generator(features, sizes, targets)
        detections, losses = self.roi_heads(features, proposals, targets)
        return detections, losses | proposal_losses

    def class_scores(self, features: Maps, boxes: Tensor) -> Tensor:
        """Probabilities [R, classes + 1] of boxes [R, 4] in one image, of which ``features`` are."""
        heads: Any = self.roi_heads
        pooled = heads.box_pooler([features[name] for name in heads.levels], [boxes])
        return torch.softmax(heads.box_predictor(heads.box_head(pooled))[0], 1)


class OneStage(Detector):
    """RetinaNet and FCOS. ``heads.head`` holds the parameters, named ``head`` in Detectron2's files."""

    def __init__(self, backbone: FPN | SimplePyramid, heads: RetinaNet | FCOS, **pixels: Sequence[float]) -> None:
        super().__init__(backbone, **pixels)
        self.heads = heads

    def run(self, features: Maps, sizes: Sizes, targets: Sequence[Target] | None) -> Output:
        return self.heads(features, sizes, targets)

    def run_pseudo(self, features: Maps, sizes: Sizes, targets: Sequence[Target], labelled: int) -> dict[str, Tensor]:
        """The labelled images' moving count of foreground divides these losses too, image for image."""
        count = self.heads.loss_normalizer
        count.held = True
        try:
            losses = self.run(features, sizes, targets)[1]
        finally:
            count.held = False
        return {name: loss * (labelled / len(targets)) for name, loss in losses.items()}


#: State of a training, and of a teacher's normalisation, that Detectron2's files do not hold.
_OWN = ("loss_normalizer.value", ".alpha", ".pending_mean", ".pending_var", ".pending_count", ".group_mean",
        ".group_var", *UPDATES)  # fmt: skip
#: Tensors with rows for classes, Detectron2's names.
_CLASS_ROWS = re.compile(
    r"roi_heads\.box_predictor\.(\d+\.)?(cls_score|bbox_pred)\.|roi_heads\.mask_head\.predictor\.|head\.cls_score\."
)


def names(detector: Detector) -> dict[str, str]:
    """Own name → Detectron2's name, for every tensor that its files hold."""
    bottom_up, pyramid = getattr(detector.backbone, "bottom_up", None), hasattr(detector.backbone, "top_block")
    resnet = detectron2_names(bottom_up.architecture) if isinstance(bottom_up, BottomUp) else None
    # Without a pyramid the network is Detectron2's backbone itself, not its ``bottom_up``; res5 of C4 is a head's.
    outside_it = "backbone.bottom_up." if pyramid else "backbone."
    prefixes = {"backbone.bottom_up.": ("", outside_it), "roi_heads.res5.": ("layer4.", "roi_heads.")}
    found = {}
    for name in detector.state_dict():
        if name.endswith(_OWN):
            continue
        found[name] = re.sub(r"^heads\.head\.", "head.", name)
        if resnet is None:
            found[name] = found[name] if pyramid else found[name].replace(".bottom_up.", ".", 1)
            continue
        for prefix, (inside, outside) in prefixes.items():
            # The table lacks the extra norm of C4 heads, which keeps its name.
            if name.startswith(prefix) and (key := inside + name[len(prefix) :]) in resnet:
                found[name] = outside + resnet[key]
    return found


def export_state(detector: Detector) -> dict[str, Tensor]:
    """The detector's tensors under Detectron2's names."""
    state = merged_state(detector)
    return {d2_name: state[own].detach().cpu() for own, d2_name in names(detector).items()}


def export_trained(detector: Detector) -> dict[str, Tensor]:
    """`export_state` without what MODEL.BACKBONE.TRAINABLE leaves as the weights have it."""
    state, untrained = detector.state_dict(), untrained_names(detector)
    return {d2_name: state[own].detach().cpu() for own, d2_name in names(detector).items() if own not in untrained}


def train_backbone_only(detector: Detector, part: str, seed: int) -> None:
    """Let only ``part`` of the backbone be trained, see `train_only`; neck and heads are."""
    backbone = detector.backbone
    train_only(backbone.net if isinstance(backbone, SimplePyramid) else backbone.bottom_up, part, seed)


def own_state(detector: Detector) -> dict[str, Tensor]:
    """What a resumed training needs beside ``export_state``."""
    return {name: value.detach().cpu() for name, value in detector.state_dict().items() if name.endswith(_OWN)}


def load_detector(detector: Detector, state: Mapping[str, Tensor], source: str) -> None:
    """Load a whole detector, Detectron2's names; InputError if it is another one (``match_detector``)."""
    _load(detector, match_detector(_shapes(detector), state, source))


def load_backbone(
    detector: Detector, state: Mapping[str, Tensor], source: str, architecture: str = ""
) -> tuple[list[str], list[str]]:
    """Load a pretrained backbone into a fresh detector; InputError unless it is covered wholly (``match_backbone``).

    Returns the Detectron2 names of the detector's tensors that were loaded, and of those that stay new.
    """
    found, new = match_backbone(_shapes(detector), state, source, architecture)
    _load(detector, found)
    return list(found), new


def with_class_rows(fresh: Mapping[str, Tensor], initial: InitialWeights) -> dict[str, Tensor]:
    """A state for a ``fresh`` detector, Detectron2's names, of more classes than ``initial`` knows.

    Layers with rows for classes take each source's rows at its places, and background from ``initial``; other rows stay
    as they are initialised, all else is ``initial``'s. InputError for a source of another number of classes.
    """
    fresh = {name: value.cpu() for name, value in fresh.items() if _CLASS_ROWS.match(name)}
    state = {name: value for name, value in initial.detector.items() if not _CLASS_ROWS.match(name)} | fresh
    count = len(initial.places or ()) + len(initial.rest)
    for source, places in ((initial.detector, initial.places), (initial.novel, initial.rest)):
        for name in fresh.keys() & source.keys() if places else ():
            state[name] = _placed(name, source[name], state[name], places or (), count, source is initial.detector)
    return state


def _placed(name: str, source: Tensor, into: Tensor, places: Sequence[int], count: int, background: bool) -> Tensor:
    """``into`` with the rows of ``source`` at ``places`` of ``count`` classes."""
    if len(source) == len(into):
        return source if background else into  # of no class in particular
    extra = int(name.startswith("roi_heads.") and ".cls_score." in name)
    rows = len(into) // (count + extra)
    if len(source) != (expected := rows * (len(places) + extra)):
        rows_expected = f"expected {expected} rows for {len(places)} classes in {name}, found {len(source)}"
        raise InputError(f"{rows_expected}; give the detectors of the stages base and novel of these data")
    lead = rows if name.startswith("head.") else 1  # a dense head has its rows anchor by anchor
    found = into.clone().reshape(lead, count + extra, -1)
    given = source.reshape(lead, len(places) + extra, -1)
    found[:, list(places)] = given[:, : len(places)]
    if background and extra:
        found[:, -1] = given[:, -1]
    return found.reshape(into.shape)


def check_fits(detector: Detector, initial: InitialWeights) -> None:
    """InputError unless the weights are this detector's, or its backbone's; it may be on the device meta."""
    if initial.detector:
        match_detector(_shapes(detector), initial.detector, initial.name)
    elif initial.backbone:
        match_backbone(_shapes(detector), initial.backbone, initial.name, initial.architecture)


def _shapes(detector: Detector) -> dict[str, torch.Size]:
    state = detector.state_dict()
    return {d2_name: state[own].shape for own, d2_name in names(detector).items()}


def _load(detector: Detector, found: Mapping[str, Tensor]) -> None:
    own = {d2_name: name for name, d2_name in names(detector).items()}
    detector.load_state_dict({own[name]: value for name, value in found.items()}, strict=False)
