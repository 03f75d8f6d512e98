"""A teacher that labels images for its student: mean-teacher detection.

"Unbiased Teacher" (arXiv 2102.09480): the student first trains on labels alone (burn-in); the teacher starts as its
copy and is the moving average of its parameters from then on. In every step the teacher's detections on the weak views
of images without labels, above a score, are what the student is to find on the strong views; their class losses count,
their box losses do not. How the teacher normalises is a choice of ``backbones/norms``, as in FixMatch (EMAN, arXiv
2101.08482; Momentum² Teacher, arXiv 2101.07525). Unlike in the published code an image on which nothing reaches the
score gives no loss, rather than that of a background.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from fvcore.common.config import CfgNode
from PIL import Image
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from momentum_transfer.backbones.batch_statistics import has_batch_norm, replace_batch_norm
from momentum_transfer.backbones.norms import OWN_BATCH, Norm, commit_pair, pair_norms, set_alpha, use_fused_sync
from momentum_transfer.backbones.teacher import copy_student, update_teacher
from momentum_transfer.core.distributed import is_distributed, is_main, world_size
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import atomic_path
from momentum_transfer.core.log import warn
from momentum_transfer.transfer.torchvision_engine.boxes import pairwise_iou
from momentum_transfer.transfer.torchvision_engine.detectors import Detector
from momentum_transfer.transfer.torchvision_engine.structures import Detections, Sample, Target
from momentum_transfer.transfer.visuals import beside, draw

#: Steps without a single label after which the user is told.
PATIENCE = 100


class MeanTeacher:
    """The teacher of a detector in training.

    Args:
        student: in training mode. semi: the section SEMI of the settings.

    Attributes:
        network: the teacher. begun: whether the burn-in is over. numbers: how the last step's labels were, an image:
            ``pseudo_boxes``, ``pseudo_images`` (the fraction with a box) and, where the truth is known,
            ``pseudo_right`` (boxes of the right class at an IoU of .5 or more) and ``true_boxes``.
    """

    def __init__(self, student: Detector, semi: CfgNode) -> None:
        self.student, self.semi, self.begun = student, semi, False
        self.network = deepcopy(student).requires_grad_(False)
        own = "BN" if has_batch_norm(student) else "none"
        self.norm = own if semi.TEACHER_NORM == "student" else semi.TEACHER_NORM
        if own == "none" and self.norm != "none":
            raise InputError(
                f"expected a student with BN layers for SEMI.TEACHER_NORM {self.norm}, found none that trains; set "
                "MODEL.RESNETS.NORM BN, or SEMI.TEACHER_NORM student"
            )
        images = semi.IMS_PER_BATCH // world_size()
        if semi.TEACHER_GROUP and images % semi.TEACHER_GROUP:
            raise InputError(
                f"expected SEMI.TEACHER_GROUP to divide a process's {images} unlabelled images, found "
                f"{semi.TEACHER_GROUP}; raise SEMI.IMS_PER_BATCH, or set it 0"
            )
        groups = images // semi.TEACHER_GROUP if semi.TEACHER_GROUP and self.norm in OWN_BATCH else 1
        if semi.TEACHER_NORM in ("BN", "SyncBN", "MomentumBN") or groups > 1:
            replace_batch_norm(self.network, Norm(self.norm, groups=groups))
            _affine_as_in(student, self.network)
            self.network.to(student.device)
        if student.device.type == "cuda" and is_distributed():
            use_fused_sync(self.network)
        self.histories = pair_norms(self.network)
        set_alpha(self.histories, semi.ALPHA)
        self.numbers: dict[str, float] = {}
        self._maps: dict[str, Tensor] = {}
        if semi.SOFT_BACKGROUND:
            self.network.backbone.register_forward_hook(lambda _, images, maps: self._maps.update(maps))
        self._factor, self._steps, self._labelled, self._highest = 0.0, 0, 0, 0.0

    def result(self) -> Detector:
        """The teacher, or before the end of the burn-in a copy of the student."""
        if not self.begun:
            copy_student(self.student, self.network)
        return self.network

    def label(self, samples: Sequence[Sample], step: int) -> list[Sample]:
        """The labelled samples, then the strong views of those that the teacher has labelled now."""
        known, others = [s for s in samples if s.strong is None], [s for s in samples if s.strong is not None]
        self.numbers = {}
        if not others:
            return known
        if not self.begun:
            copy_student(self.student, self.network)
            self.begun = True
        self._normalise_own_batches()
        every = self._detect(others)
        self._highest = max([self._highest, *(float(one.scores.max()) for one in every if len(one))])
        found = [one.select(one.scores >= self.semi.THRESHOLD) for one in every]
        self._factor = sum(len(one) > 0 for one in found) / len(others)
        self._count(others, found, step)
        for place, (sample, one) in enumerate(zip(others, found, strict=True)):
            if len(one):
                assert sample.strong is not None
                soft = partial(self._background, place) if self.semi.SOFT_BACKGROUND else None
                target = Target(one.boxes, one.classes, background=soft)
                known.append(replace(sample, image=sample.strong, strong=None, target=target, pseudo=True))
        return known

    @torch.no_grad()
    def _background(self, place: int, boxes: Tensor) -> Tensor:
        """Scores of background for boxes [R, 4] in an image of the last ``_detect``; BN in a box head as at test."""
        self.network.eval()
        maps = {name: x[place : place + 1] for name, x in self._maps.items()}
        scores: Tensor = self.network.class_scores(maps, boxes)[:, -1]  # type: ignore[operator]  # of a Faster R-CNN
        return scores

    @torch.no_grad()
    def _detect(self, samples: Sequence[Sample]) -> list[Detections]:
        """Detections on the weak views, in pixels of these."""
        own = [replace(s, height=s.image.shape[-2], width=s.image.shape[-1]) for s in samples]
        found: list[Detections] = self.network(own)
        return found

    def _normalise_own_batches(self) -> None:
        """Let the BN layers use their batch's statistics, if the norm does; a frozen backbone's stay as they are."""
        self.network.eval()
        own = self.norm in OWN_BATCH or self.norm == "SyncBN"
        for layer, twin in zip(_batch_norms(self.network), _batch_norms(self.student), strict=True):
            layer.train(own and twin.training)

    def _count(self, samples: Sequence[Sample], found: Sequence[Detections], step: int) -> None:
        boxes = sum(len(one) for one in found)
        self.numbers = {"pseudo_boxes": boxes / len(found), "pseudo_images": self._factor}
        if not self.semi.UNLABELLED:
            pairs = [(one, s.target) for one, s in zip(found, samples, strict=True) if s.target is not None]
            self.numbers["pseudo_right"] = sum(right_boxes(one, target) for one, target in pairs) / len(found)
            self.numbers["true_boxes"] = sum(len(target.boxes) for _, target in pairs) / len(found)
        self._steps, self._labelled = self._steps + 1, self._labelled + boxes
        if self._steps == PATIENCE and not self._labelled and is_main():
            warn(
                f"the teacher has labelled nothing in {PATIENCE} steps, up to iteration {step + 1}: expected scores "
                f"from SEMI.THRESHOLD {self.semi.THRESHOLD:g} on, found {self._highest:.2f} at most; lower "
                "SEMI.THRESHOLD, or lengthen SEMI.BURN_IN"
            )

    def weighted(self, losses: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The losses that count: those on a teacher's boxes as means over all images that it looked at."""
        weight = self.semi.WEIGHT * self._factor
        counted = {name for name in losses if not name.endswith("_pseudo") or self.semi.BOX_LOSS or "cls" in name}
        return {
            name: value * weight if name.endswith("_pseudo") else value
            for name, value in losses.items()
            if name in counted
        }

    def follow(self) -> None:
        """Move towards the student, after its step."""
        if self.begun:
            update_teacher(self.student, self.network, 1 - self.semi.EMA, self.norm)
            commit_pair(self.histories)

    def draw(self, samples: Sequence[Sample], folder: Path, names: Sequence[str], bgr: bool) -> list[Path]:
        """Write the teacher's boxes as ``teacher_<stem>.png``, beside the truth where that is known.

        BN uses its running statistics: this may be called on one process of several.
        """
        self.network.eval()
        written, classes = [], dict(enumerate(names))
        folder.mkdir(parents=True, exist_ok=True)
        for sample, found in zip(samples, self._detect(samples), strict=True):
            kept = found.select(found.scores >= self.semi.THRESHOLD)
            pixels = sample.image.flip(0) if bgr else sample.image
            image = Image.fromarray(np.ascontiguousarray(pixels.permute(1, 2, 0).numpy()))
            shown = [(f"teacher, scores from {self.semi.THRESHOLD:g}", draw(image, _entries(kept), classes))]
            if sample.target is not None and not self.semi.UNLABELLED:
                shown.insert(0, ("annotated, not shown to it", draw(image, _entries(sample.target), classes)))
            written.append(folder / f"teacher_{Path(sample.file_name).stem}.png")
            with atomic_path(written[-1]) as temporary:
                beside(*shown).save(temporary)
        return written


def _batch_norms(network: nn.Module) -> list[nn.Module]:
    return [module for module in network.modules() if isinstance(module, _BatchNorm)]


def _affine_as_in(student: nn.Module, network: nn.Module) -> None:
    """Where the student's BN has no scale and shift of its own (one a level, a common one), nor has the teacher's."""
    for name, layer in student.named_modules():
        if isinstance(layer, _BatchNorm) and not layer.affine:
            twin = network.get_submodule(name)
            for part in ("weight", "bias"):
                value = twin.get_parameter(part).data
                delattr(twin, part)
                twin.register_buffer(part, value, persistent=False)


def right_boxes(found: Detections, truth: Target) -> int:
    """How many detections, by falling score, meet a free object of their class with an IoU of at least .5."""
    if not len(found) or not len(truth.boxes):
        return 0
    overlaps = pairwise_iou(truth.boxes, found.boxes.cpu()).numpy()
    overlaps[truth.classes.numpy()[:, None] != found.classes.cpu().numpy()[None]] = 0
    right = 0
    for column in range(len(found)):
        best = int(overlaps[:, column].argmax())
        if overlaps[best, column] >= 0.5:
            overlaps[best] = 0
            right += 1
    return right


def rates(means: Mapping[str, float]) -> dict[str, float]:
    """Precision and recall in percent of a teacher's boxes, from ``MeanTeacher.numbers``; NaN without boxes."""
    if "pseudo_right" not in means:
        return {}
    right, nothing = 100 * means["pseudo_right"], float("nan")
    precision, recall = (right / count if count else nothing for count in (means["pseudo_boxes"], means["true_boxes"]))
    return {"pseudo_precision": precision, "pseudo_recall": recall}


def _entries(found: Detections | Target) -> list[dict[str, object]]:
    """As COCO's entries, for drawing."""
    scores = [{"score": one} for one in found.scores.tolist()] if isinstance(found, Detections) else None
    rows = zip(found.boxes.tolist(), found.classes.tolist(), scores or [{}] * len(found.boxes), strict=True)
    return [{"bbox": [x, y, x2 - x, y2 - y], "category_id": label, **score} for (x, y, x2, y2), label, score in rows]
