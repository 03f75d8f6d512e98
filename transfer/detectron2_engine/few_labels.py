"""Detectron2's detectors with few labels or shots: on the other engine's batches, with its teacher and last layers."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from momentum_transfer.core.distributed import is_main
from momentum_transfer.transfer.torchvision_engine.detectors import LastLayers
from momentum_transfer.transfer.torchvision_engine.mean_teacher import MeanTeacher, rates
from momentum_transfer.transfer.torchvision_engine.region_heads import region_cross_entropy
from momentum_transfer.transfer.torchvision_engine.structures import BitMasks, Detections, Sample

_LAST_LAYERS: Any = LastLayers
MakeBatches = Callable[[int], Iterable[list[Sample]]]


def d2_input(sample: Sample) -> dict[str, Any]:
    """A sample in Detectron2's form, with what it has of a target."""
    from detectron2.structures import BitMasks as D2BitMasks
    from detectron2.structures import Boxes, Instances, PolygonMasks

    given: dict[str, Any] = {"image": sample.image, "height": sample.height, "width": sample.width}
    if sample.target is not None:
        given["instances"] = instances = Instances(tuple(sample.image.shape[1:]))
        instances.gt_boxes = Boxes(sample.target.boxes.clone())
        instances.gt_classes = sample.target.classes.clone()
        if isinstance(masks := sample.target.masks, BitMasks):
            instances.gt_masks = D2BitMasks(masks.bitmaps)
        elif masks is not None:
            instances.gt_masks = PolygonMasks(masks.polygons)
    return given


def as_detections(found: Any) -> Detections:
    """Detectron2's Instances as this project's detections."""
    masks = found.pred_masks if found.has("pred_masks") else None
    return Detections(found.pred_boxes.tensor, found.scores, found.pred_classes, masks)


class Batches:
    """A training's batches from ``start`` on; without one their first ``images``, labelled as at test, for BN."""

    start: int | None = None

    def __init__(self, make: MakeBatches, images: int) -> None:
        self.make, self.images = make, images

    def __iter__(self) -> Iterator[list[Sample]]:
        for batch in self.make(self.start or 0):
            yield batch[: self.images] if self.start is None else batch


@functools.cache
def on_samples(kind: Any) -> Any:
    """A class of Detectron2's detectors that takes samples too."""

    class OnSamples(_LAST_LAYERS, kind):
        """Detectron2's detector on samples, as ``torchvision_engine.detectors.Detector`` is; on dicts as ever."""

        teacher: Any = None  # a MeanTeacher
        held, step = False, 0

        def forward(self, samples: Any) -> Any:
            if isinstance(samples[0], dict):
                return super().forward(samples)
            if not self.training:
                return [as_detections(one["instances"]) for one in super().forward([d2_input(s) for s in samples])]
            if self.teacher is None:
                return super().forward([d2_input(s) for s in samples])
            return self.teacher.weighted(self._with_pseudo(self.teacher.label(samples, self.step)))

        def _with_pseudo(self, samples: Sequence[Sample]) -> dict[str, Tensor]:
            """One batch for the backbone; losses of the labelled images, then ``…_pseudo`` of those after them."""
            given, labelled = [d2_input(s) for s in samples], sum(not s.pseudo for s in samples)
            if labelled == len(samples):
                losses = super().forward(given)  # and zeros: Detectron2 gathers all names from every process
                zeros = {f"{name}_pseudo": loss.new_zeros(()) for name, loss in losses.items()}
                return losses | (zeros if self.teacher.begun else {})
            images, instances = self.preprocess_image(given), [x["instances"].to(self.device) for x in given]
            features = self.backbone(images.tensor)
            losses = self._behind_backbone(images, features, instances, slice(labelled))
            dense = hasattr(self, "loss_normalizer")
            self.held = dense
            for predictor in () if dense else box_predictors(self):
                predictor.background = [s.target.background for s in samples[labelled:] if s.target]
            pseudo = self._behind_backbone(images, features, instances, slice(labelled, None))
            self.held, images_each = False, labelled / (len(samples) - labelled)
            return losses | {f"{name}_pseudo": loss * (images_each if dense else 1.0) for name, loss in pseudo.items()}

        def _behind_backbone(self, images: Any, features: Any, instances: Any, part: slice) -> Any:
            from detectron2.structures import ImageList

            images, instances = ImageList(images.tensor[part], images.image_sizes[part]), instances[part]
            features = {name: x[part] for name, x in features.items()}
            if hasattr(self, "roi_heads"):
                proposals, losses = self.proposal_generator(images, features, instances)
                return self.roi_heads(images, features, proposals, instances)[1] | losses
            maps = [features[name] for name in self.head_in_features]
            return self.forward_training(images, maps, self.head(maps), instances)

        def class_scores(self, features: Any, boxes: Tensor) -> Tensor:
            from detectron2.structures import Boxes

            heads = self.roi_heads
            pooled = heads.box_pooler([features[name] for name in heads.box_in_features], [Boxes(boxes)])
            return torch.softmax(heads.box_predictor(heads.box_head(pooled))[0], 1)

        def _ema_update(self, name: str, *value: Any) -> Any:
            """The labelled images' moving count of foreground divides the losses on a teacher's labels too."""
            return getattr(self, name) if self.held else super()._ema_update(name, *value)

    return OnSamples


@functools.cache
def _weighted(kind: Any) -> Any:
    class Weighted(kind):
        """Detectron2's box predictor with a focal class loss, and with ``background`` once weights of such regions."""

        background: Sequence[Any] = ()

        def losses(self, predictions: Any, proposals: Any) -> dict[str, Tensor]:
            found: dict[str, Tensor] = super().losses(predictions, proposals)
            classes = torch.cat([one.gt_classes for one in proposals])
            weights = [of(one.proposal_boxes.tensor) for of, one in zip(self.background, proposals, strict=False) if of]
            self.background = ()
            if len(classes) and (self.focal_gamma or weights):
                found["loss_cls"] = region_cross_entropy(predictions[0], classes, self.focal_gamma, weights)
            return found

    return Weighted


def box_predictors(model: Any) -> list[Any]:
    """Those of a two-stage detector, one a stage of a cascade."""
    predictor = model.roi_heads.box_predictor
    return list(predictor) if isinstance(predictor, nn.ModuleList) else [predictor]


class FewLabels:
    """Lets ``model`` take samples, in place, and is what its training has besides by ``semi``, the section SEMI."""

    def __init__(self, model: Any, semi: Any) -> None:
        self.model, self.semi = model, semi
        if not isinstance(model, LastLayers):
            model.__class__ = on_samples(model.__class__)
        for one in box_predictors(model) if hasattr(model, "roi_heads") else ():
            one.__class__, one.focal_gamma = _weighted(one.__class__), semi.FOCAL_GAMMA
        if semi.TEACHER:
            model.teacher = MeanTeacher(model.train(), semi)

    def after_step(self, step: int, last: bool) -> None:
        """Move the teacher and log its labels; at the end the model is what SEMI.RESULT names."""
        from detectron2.utils.events import get_event_storage

        if (teacher := self.model.teacher) is None:
            return
        self.model.step = step + 1
        teacher.follow()
        shown = {name: value for name, value in rates(teacher.numbers).items() if value == value}
        get_event_storage().put_scalars(**teacher.numbers, **shown)
        if last and self.semi.RESULT == "teacher":
            state, own = teacher.result().state_dict(), self.model.state_dict()
            self.model.load_state_dict({name: value for name, value in state.items() if name in own}, strict=False)

    def state_dict(self) -> dict[str, Any]:
        """The teacher, the count that dense losses are divided by, and the random state."""
        teacher, device = self.model.teacher, self.model.device
        state = {"random": torch.get_rng_state(), "count": getattr(self.model, "loss_normalizer", None)}
        state |= {"random_cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {}
        return state | ({"teacher": teacher.network.state_dict(), "begun": teacher.begun} if teacher else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state_dict``; of several processes the first alone with its random state."""
        if (teacher := self.model.teacher) is not None:
            teacher.network.load_state_dict(state["teacher"])
            teacher.begun = state["begun"]
        if state["count"] is not None:
            self.model.loss_normalizer = state["count"]
        if is_main():
            torch.set_rng_state(state["random"].cpu())
            if "random_cuda" in state:
                torch.cuda.set_rng_state(state["random_cuda"].cpu(), self.model.device)
