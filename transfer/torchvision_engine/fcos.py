"""FCOS (arXiv 2006.09214, the journal version): one point a cell, distances to the four sides, centre-ness."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from fvcore.nn import giou_loss, sigmoid_focal_loss
from torch import Tensor, nn

from momentum_transfer.transfer.torchvision_engine import boxes as box_ops
from momentum_transfer.transfer.torchvision_engine.boxes import AnchorGenerator
from momentum_transfer.transfer.torchvision_engine.dense import DenseHeads, MovingCount, RetinaNetHead, flatten_cells
from momentum_transfer.transfer.torchvision_engine.layers import normal_fill
from momentum_transfer.transfer.torchvision_engine.structures import Maps, Output, Sizes, Target


class FCOSHead(RetinaNetHead):
    """The towers of RetinaNet with one point a cell, and centre-ness on the box tower (section 3.1.3)."""

    def __init__(self, channels: int, num_classes: int, **towers: Any) -> None:
        super().__init__(channels, num_classes, 1, **towers)
        self.ctrness = nn.Conv2d(channels, 1, 3, padding=1)
        normal_fill(self.ctrness, std=0.01)

    def forward(  # type: ignore[override]  # centre-ness besides
        self, features: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Logits [N, H·W, classes], distances [N, H·W, 4] and centre-ness logits [N, H·W, 1] of each level."""
        logits = [flatten_cells(self.cls_score(self.cls_subnet(x)), self.num_classes) for x in features]
        towers = [self.bbox_subnet(x) for x in features]
        distances = [flatten_cells(self.bbox_pred(x), 4) for x in towers]
        return logits, distances, [flatten_cells(self.ctrness(x), 1) for x in towers]


class FCOS(DenseHeads):
    """The heads of FCOS with their losses.

    Args:
        points: generator of one square of a stride around each cell's point.
        radius: of centre sampling, in strides (section 3.1.2).
    """

    def __init__(
        self, levels: Sequence[str], head: FCOSHead, points: AnchorGenerator, *, radius: float, alpha: float,
        gamma: float, **inference: float
    ) -> None:  # fmt: skip
        super().__init__(levels, head.num_classes, **inference)  # type: ignore[arg-type]  # the base's own types
        self.head, self.points = head, points
        self.coder: box_ops.DistanceCoder = box_ops.DistanceCoder()
        self.radius, self.alpha, self.gamma = radius, alpha, gamma
        self.loss_normalizer = MovingCount(300.0)

    def forward(self, features: Maps, image_sizes: Sizes, targets: Sequence[Target] | None) -> Output:
        """Losses ``loss_fcos_cls``, ``loss_fcos_loc``, ``loss_fcos_ctr`` with targets, detections without.

        A detection's score is the geometric mean of class probability and centre-ness (equation 4).
        """
        maps = [features[name] for name in self.levels]
        logits, distances, centreness = self.head(maps)
        points = self.points(maps)
        if targets is not None:
            return [], self._losses(
                points, torch.cat(logits, 1), torch.cat(distances, 1), torch.cat(centreness, 1), targets
            )
        scores = [torch.sqrt(x.sigmoid() * c.sigmoid()) for x, c in zip(logits, centreness, strict=True)]
        return [
            self.detect(points, [s[n] for s in scores], [d[n] for d in distances]) for n in range(len(image_sizes))
        ], {}

    @torch.no_grad()
    def label(self, points: Sequence[Tensor], target: Target) -> tuple[Tensor, Tensor]:
        """Class [R] (``num_classes`` background) and box [R, 4] of every point.

        A point belongs to a box when it lies inside it, near its centre, and when the box's size fits the point's
        level; of several such boxes the smallest takes it (section 3.1.2).
        """
        merged = torch.cat(list(points))
        if not len(target.boxes):
            return merged.new_full((len(merged),), self.num_classes, dtype=torch.int64), torch.zeros_like(merged)
        centres, stride = 0.5 * (merged[:, :2] + merged[:, 2:]), merged[:, 2] - merged[:, 0]
        lower, upper = stride * 4, stride * 8
        lower[: len(points[0])] = 0
        upper[-len(points[-1]) :] = float("inf")
        box_centres = (target.boxes[:, :2] + target.boxes[:, 2:]) / 2
        fits = (centres[None] - box_centres[:, None]).abs().max(dim=2).values < self.radius * stride
        sides = torch.cat((centres[None] - target.boxes[:, None, :2], target.boxes[:, None, 2:] - centres[None]), dim=2)
        reach = sides.max(dim=2).values
        fits &= (sides.min(dim=2).values > 0) & (reach > lower) & (reach < upper)
        quality = fits.float() * (1e8 - box_ops.area(target.boxes)[:, None])
        best, index = quality.max(dim=0)
        classes = target.classes[index]
        classes[best < 1e-5] = self.num_classes
        return classes, target.boxes[torch.where(best < 1e-5, 0, index)]

    def _losses(
        self, points: Sequence[Tensor], logits: Tensor, distances: Tensor, centreness: Tensor, targets: Sequence[Target]
    ) -> dict[str, Tensor]:
        labelled = [self.label(points, target) for target in targets]
        classes, matched = (torch.stack(column) for column in zip(*labelled, strict=True))
        foreground = classes != self.num_classes
        normalizer = self.loss_normalizer.update(int(foreground.sum()))
        wanted = F.one_hot(classes, self.num_classes + 1)[:, :, :-1].to(logits.dtype)
        loss_cls = sigmoid_focal_loss(logits, wanted, alpha=self.alpha, gamma=self.gamma, reduction="sum")
        references = torch.cat(list(points)).expand(len(targets), -1, -1)[foreground]
        predicted = self.coder.decode(distances[foreground], references)
        loss_box = giou_loss(predicted, matched[foreground], reduction="sum")
        target = centreness_targets(self.coder.encode(references, matched[foreground]))
        loss_centre = F.binary_cross_entropy_with_logits(centreness[foreground].squeeze(1), target, reduction="sum")
        return {
            "loss_fcos_cls": loss_cls / normalizer,
            "loss_fcos_loc": loss_box / normalizer,
            "loss_fcos_ctr": loss_centre / normalizer,
        }


def centreness_targets(distances: Tensor) -> Tensor:
    """How central a point lies in its box, from its distances to the sides [R, 4] (equation 3): 1 at the centre."""
    horizontal, vertical = distances[:, [0, 2]], distances[:, [1, 3]]
    ratio = horizontal.amin(dim=1) / horizontal.amax(dim=1)
    return torch.sqrt(ratio * (vertical.amin(dim=1) / vertical.amax(dim=1)))
