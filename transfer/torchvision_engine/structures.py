"""Data structures of detectors: samples with their targets and masks, and detections."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.ops import roi_align

from momentum_transfer.transfer.data.annotations import decode_mask
from momentum_transfer.transfer.torchvision_engine import boxes as box_ops


def polygons_to_bitmap(polygons: Sequence[np.ndarray], height: int, width: int) -> np.ndarray:
    """Union of polygons (each x0 y0 x1 y1 …) as bool [height, width], by pycocotools."""
    if not polygons:
        return np.zeros((height, width), dtype=bool)
    return decode_mask([p.tolist() for p in polygons], height, width)


class BitMasks:
    """Masks of G objects as bitmaps: bool [G, H, W]."""

    def __init__(self, bitmaps: Tensor) -> None:
        self.bitmaps = bitmaps.to(torch.bool)

    def __len__(self) -> int:
        return len(self.bitmaps)

    def select(self, index: Tensor) -> "BitMasks":
        """The masks at ``index`` (int64 [M], repeats allowed)."""
        return BitMasks(self.bitmaps[index.to(self.bitmaps.device)])

    def nonempty(self) -> Tensor:
        """Bool [G]: at least one pixel is set."""
        return self.bitmaps.flatten(1).any(dim=1)

    def crop_and_resize(self, boxes: Tensor, objects: Tensor, size: int) -> Tensor:
        """Aligned RoIAlign of bitmap ``objects[i]`` within box i, set from one half on; on the boxes' device."""
        used, places = torch.unique(objects, return_inverse=True)  # a bitmap is large: once an object, not once a box
        bitmaps = self.select(used).bitmaps.to(boxes.device).to(torch.float32)[:, None]
        rois = torch.cat((places.to(boxes)[:, None], boxes), dim=1)
        return roi_align(bitmaps, rois.float(), (size, size), 1.0, 0, True).squeeze(1) >= 0.5


class PolygonMasks:
    """Masks as polygons: for each object a list of float64 arrays x0 y0 x1 y1 …."""

    def __init__(self, polygons: Sequence[Sequence[np.ndarray]]) -> None:
        self.polygons = [[np.asarray(p, dtype=np.float64) for p in instance] for instance in polygons]

    def __len__(self) -> int:
        return len(self.polygons)

    def select(self, index: Tensor) -> "PolygonMasks":
        return PolygonMasks([self.polygons[i] for i in index.tolist()])

    def nonempty(self) -> Tensor:
        """Bool [G]: there is at least one polygon."""
        return torch.tensor([len(instance) > 0 for instance in self.polygons], dtype=torch.bool)

    def crop_and_resize(self, boxes: Tensor, objects: Tensor, size: int) -> Tensor:
        """The polygons of object ``objects[i]``, shifted and scaled so that box i fills the target, then rasterised."""
        pairs = zip(objects.tolist(), boxes.cpu().numpy(), strict=True)
        crops = [_rasterize(self.polygons[place], box, size) for place, box in pairs]
        if not crops:
            return torch.zeros(0, size, size, dtype=torch.bool, device=boxes.device)
        return torch.from_numpy(np.stack(crops)).to(boxes.device)


def _rasterize(polygons: Sequence[np.ndarray], box: np.ndarray, size: int) -> np.ndarray:
    width, height = box[2] - box[0], box[3] - box[1]
    scale = np.array([size / max(width, 0.1), size / max(height, 0.1)])  # a box may be very thin
    moved = [((p.reshape(-1, 2) - box[:2]) * scale).reshape(-1) for p in polygons]
    return polygons_to_bitmap(moved, size, size)


@dataclass
class Target:
    """Ground truth of one image, in pixels of the resized image.

    boxes: float32 [G, 4], x1 y1 x2 y2. classes: int64 [G] from 0 to the number of classes − 1.
    masks: G masks, or None if the task has none.
    background: a teacher's scores of background [R] for boxes [R, 4] of the image.
    """

    boxes: Tensor
    classes: Tensor
    masks: BitMasks | PolygonMasks | None = None
    background: Callable[[Tensor], Tensor] | None = None

    def to(self, device: torch.device) -> "Target":
        """Boxes and classes on ``device``; masks stay where they are and are cropped there."""
        return Target(self.boxes.to(device), self.classes.to(device), self.masks, self.background)


@dataclass
class Sample:
    """One image on its way into a detector.

    image: uint8 or float [3, H, W] in the channel order of INPUT.FORMAT, resized, not normalised.
    height, width: size of the original image, to which predictions are scaled back.
    labels: int64 [H, W], for semantic segmentation.
    features: float [C, h, w] of a frozen backbone, instead of the image, whose size is then that of the labels.
    strong: another view of the image, uint8 [3, H, W], for a teacher to label the image; its target is not trained on.
    pseudo: the target is a teacher's.
    """

    image: Tensor
    image_id: int
    height: int
    width: int
    file_name: str = ""
    target: Target | None = None
    labels: Tensor | None = None
    features: Tensor | None = None
    strong: Tensor | None = None
    pseudo: bool = False


@dataclass
class Detections:
    """Detections of one image, best score first.

    boxes: float32 [D, 4]. scores: float32 [D]. classes: int64 [D].
    masks: probabilities [D, 1, M, M] inside the detector, bool [D, H, W] after ``rescale``, None without masks.
    """

    boxes: Tensor
    scores: Tensor
    classes: Tensor
    masks: Tensor | None = None

    def select(self, keep: Tensor) -> "Detections":
        masks = None if self.masks is None else self.masks[keep]
        return Detections(self.boxes[keep], self.scores[keep], self.classes[keep], masks)

    def __len__(self) -> int:
        return len(self.scores)


@dataclass
class Proposals:
    """Candidate boxes of one image, and what they are to become (training only).

    boxes: float32 [R, 4]. classes: int64 [R], the number of classes meaning background, −1 ignored.
    matched: int64 [R], which ground-truth object a proposal was matched with. matched_boxes: its box [R, 4].
    """

    boxes: Tensor
    image_size: tuple[int, int]
    classes: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    matched: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    matched_boxes: Tensor = field(default_factory=lambda: torch.empty(0, 4))


def paste(masks: Tensor, boxes: Tensor, image_size: tuple[int, int]) -> Tensor:
    """Mask probabilities [D, M, M] put into their boxes [D, 4] → bool [D, height, width], by bilinear interpolation.

    One mask at a time, and only in the window its box covers: fastest on a CPU, and a GPU's memory stays small.
    """
    height, width = image_size
    pasted = torch.zeros(len(masks), height, width, dtype=torch.bool, device=masks.device)
    for index, (mask, box) in enumerate(zip(masks, boxes, strict=True)):
        x0, y0 = (int(v) for v in (box[:2].floor() - 1).clamp(min=0))
        x1, y1 = min(int(box[2].ceil()) + 1, width), min(int(box[3].ceil()) + 1, height)
        if x1 <= x0 or y1 <= y0:
            continue
        x = torch.arange(x0, x1, device=masks.device, dtype=torch.float32) + 0.5
        y = torch.arange(y0, y1, device=masks.device, dtype=torch.float32) + 0.5
        x = (x - box[0]) / (box[2] - box[0]) * 2 - 1
        y = (y - box[1]) / (box[3] - box[1]) * 2 - 1
        grid = torch.stack((x[None, :].expand(len(y), -1), y[:, None].expand(-1, len(x))), dim=2)
        window = F.grid_sample(mask[None, None], grid[None].to(mask.dtype), align_corners=False)[0, 0]
        pasted[index, y0:y1, x0:x1] = window >= 0.5
    return pasted


def rescale(detections: Detections, image_size: tuple[int, int], height: int, width: int) -> Detections:
    """Detections in an image of ``image_size`` (height, width) carried over to the original of ``height`` × ``width``.

    Boxes are scaled, clipped and dropped where empty; mask probabilities become bool [D, height, width].
    """
    scale_x, scale_y = width / image_size[1], height / image_size[0]
    boxes = detections.boxes.clone()
    boxes[:, 0::2] *= scale_x
    boxes[:, 1::2] *= scale_y
    boxes = box_ops.clip(boxes, (height, width))
    kept = Detections(boxes, detections.scores, detections.classes, detections.masks).select(box_ops.nonempty(boxes))
    if kept.masks is not None:
        kept.masks = paste(kept.masks[:, 0], kept.boxes, (height, width))
    return kept


#: Feature maps [N, C, H, W] by name.
Maps = dict[str, Tensor]
#: (height, width) of each image.
Sizes = Sequence[tuple[int, int]]
#: What detectors give: detections of each image (none in training), and losses by name (in training only).
Output = tuple[list[Detections], dict[str, Tensor]]
