"""Settings that follow from custom data and the machine, each with its reason: class count, sizes, batch, schedule.

These are this project's rules of thumb for 20 to 5000 images; they come from no paper.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from fvcore.common.config import CfgNode

from momentum_transfer.core.machine import available_memory
from momentum_transfer.images.reading import upright_size
from momentum_transfer.transfer.config import NETWORKS
from momentum_transfer.transfer.data.annotations import DetectionData
from momentum_transfer.transfer.data.semantic_datasets import SemanticData

#: Side in pixels that a small box (the tenth percentile of all boxes) gets when the images are resized.
SMALL_BOX = 24
#: Smallest shorter side of resized images, in pixels.
LEAST_SIDE = 256
#: Largest shorter side of resized images on a device, in pixels.
MOST_SIDE = {"cpu": 480, "cuda": 800}
#: Images seen during training: min(VIEWS + VIEWS_PER_IMAGE × images, MOST_VIEWS), times GPU_VIEWS on a GPU.
VIEWS = 1000
#: Views for each annotated image of the set.
VIEWS_PER_IMAGE = 8
#: At most this many views, before GPU_VIEWS.
MOST_VIEWS = 12_000
#: Factor of the number of views on a GPU.
GPU_VIEWS = 4
#: Images of a batch on a device; fewer where the memory or the set is smaller.
BATCH = {"cpu": 4, "cuda": 8}
#: Learning rate = min(RATE × batch size, 1) × the highest rate. At a quarter of this a few hundred iterations of 4
#: images hardly learn (docs/tutorial.md has the figures).
RATE = 1 / 4
#: Highest learning rate of detectors: Detectron2's for 16 images. Segmenters take their config's.
HIGHEST_RATE = 0.02
#: Fraction of the free memory that training may use.
FRACTION_OF_MEMORY = 0.7
#: Estimate of the memory that training uses: this many bytes, and BYTES_A_PIXEL for each pixel of a batch.
FIXED_BYTES = 1.5e9
#: See FIXED_BYTES.
BYTES_A_PIXEL = 7000


@dataclass(frozen=True)
class FittedSetting:
    """A setting and the reason for its value."""

    key: str
    value: Any
    why: str

    @property
    def words(self) -> list[str]:
        """As KEY VALUE on a command line."""
        return [self.key, str(self.value) if isinstance(self.value, str) else repr(self.value)]


@dataclass(frozen=True)
class Machine:
    """device: "cpu" or "cuda". free: bytes of memory."""

    device: str
    free: float


def this_machine(device_name: str) -> Machine:
    """The device of MODEL.DEVICE and its free memory; 4 GB on a system that does not say.

    Under torchrun that of rank 0, so that all processes fit the same settings.
    """
    import torch

    from momentum_transfer.core.devices import choose_device
    from momentum_transfer.core.distributed import broadcast, process_group

    device = choose_device(device_name, "MODEL.DEVICE")
    kind = "cuda" if device.type == "cuda" else "cpu"
    free = torch.cuda.mem_get_info(device)[0] if kind == "cuda" else available_memory() or 4e9
    with process_group(device):
        return Machine(kind, float(broadcast(torch.tensor(int(free), device=device))))


def settings_of_data(cfg: CfgNode, sets: Sequence[DetectionData]) -> list[FittedSetting]:
    """Class count and masks, which no config can know of a custom set."""
    classes, name = len(sets[0].classes), NETWORKS[cfg.MODEL.META_ARCHITECTURE][1]
    found = [FittedSetting(f"MODEL.{name}.NUM_CLASSES", classes, "classes of the set")]
    if NETWORKS[cfg.MODEL.META_ARCHITECTURE][0] != "detection":
        return found
    segmentations = [entry.get("segmentation") for data in sets for entry in data.load()["annotations"]]
    if cfg.MODEL.MASK_ON and (cfg.SEMI.TEACHER or not all(segmentations)):
        why = "a teacher's labels are boxes" if cfg.SEMI.TEACHER else "the set has boxes only"
        found.append(FittedSetting("MODEL.MASK_ON", False, why))
    elif cfg.MODEL.MASK_ON and any(isinstance(one, dict) for one in segmentations):
        found.append(FittedSetting("INPUT.MASK_FORMAT", "bitmask", "masks are run lengths"))
    return found


def fit(
    cfg: CfgNode, sets: Sequence[DetectionData], machine: Machine, given: Collection[str] = ()
) -> list[FittedSetting]:
    """Sizes, anchors, batch and schedule of a config with FIT_TO_DATA.

    Args:
        sets: the training sets. given: keys that were set by hand, whose values in ``cfg`` stay; rate and schedule
            follow from a given SOLVER.IMS_PER_BATCH, the warm-up from a given SOLVER.MAX_ITER.
    """
    count = len({(data.name, entry["image_id"]) for data in sets for entry in data.load()["annotations"]})
    side, aspect, small, why_side = _side(sets, machine)
    batch, side, why_batch = _batch(count, side, aspect, machine, _given(cfg, given, "IMS_PER_BATCH"))
    smallest = 32 if small * side >= 22 else 16 if small * side >= 11 else 8
    sizes = [max(side - 64, 128), max(side - 32, 128), side]
    settings = [
        *_sizes(sizes, side, aspect, why_side),
        FittedSetting("SOLVER.IMS_PER_BATCH", batch, why_batch),
        *_schedule(cfg, count, batch, machine, given, HIGHEST_RATE),
    ]
    if cfg.SEMI.TEACHER:
        run = _given(cfg, given, "MAX_ITER") or next(one.value for one in settings if one.key == "SOLVER.MAX_ITER")
        settings += _teacher(batch, run)
    if cfg.MODEL.META_ARCHITECTURE == "GeneralizedRCNN" and len(cfg.MODEL.ANCHOR_GENERATOR.SIZES) == 5:
        anchors = [[smallest * 2**level] for level in range(5)]
        why = f"a small box has {small * side:.0f} px at that size"
        settings.append(FittedSetting("MODEL.ANCHOR_GENERATOR.SIZES", anchors, why))
    return settings


def fit_segmenter(
    cfg: CfgNode, sets: Sequence[SemanticData], machine: Machine, given: Collection[str] = ()
) -> list[FittedSetting]:
    """Sizes, crop, batch and schedule of a segmenter, from the images' own sizes and their number.

    As in `fit` the rate is a quarter of the config's for each image of a batch, at most the config's. Batches have two
    images or more, and images are seen whole: no window of one size fits into images of many shapes.

    Args:
        sets: the training sets. given: see `fit`; a crop that was set by hand stays.
    """
    shapes = [upright_size(image) for data in sets for image, _ in data.pairs]
    native, most = int(np.median([min(shape) for shape in shapes])), MOST_SIDE[machine.device]
    aspect = _aspect(shapes)
    side = int(np.clip(native, LEAST_SIDE, most)) // 32 * 32
    batch, side, why_batch = _batch(len(shapes), side, aspect, machine, _given(cfg, given, "IMS_PER_BATCH"), least=2)
    one_size = len(set(cfg.INPUT.MIN_SIZE_TRAIN)) == 1  # a linear probe keeps its features
    sizes = [side] if one_size else [max(side - 64, 128), max(side - 32, 128), side]
    why_side = f"{native} px is the files' median shorter side; {LEAST_SIDE} to {most} on {machine.device}"
    settings = _sizes(sizes, side, aspect, why_side)
    if cfg.INPUT.CROP.ENABLED and not {"INPUT.CROP.ENABLED", "INPUT.CROP.SIZE"} & set(given):
        settings.append(FittedSetting("INPUT.CROP.ENABLED", False, "images are seen whole"))
    settings.append(FittedSetting("SOLVER.IMS_PER_BATCH", batch, why_batch))
    return settings + _schedule(cfg, len(shapes), batch, machine, given, cfg.SOLVER.BASE_LR)


def _sizes(sizes: list[int], side: int, aspect: float, why: str) -> list[FittedSetting]:
    longest = int(side * aspect)
    return [
        FittedSetting("INPUT.MIN_SIZE_TRAIN", sizes, why),
        FittedSetting("INPUT.MIN_SIZE_TEST", side, "as in training"),
        FittedSetting("INPUT.MAX_SIZE_TRAIN", longest, f"images up to {aspect:.2f} times as long as wide"),
        FittedSetting("INPUT.MAX_SIZE_TEST", longest, "as in training"),
    ]


def _aspect(shapes: Sequence[tuple[int, int]]) -> float:
    """Largest aspect ratio of images, without the longest twentieth."""
    return float(np.clip(np.quantile([max(shape) / min(shape) for shape in shapes], 0.95), 5 / 3, 4))


def _given(cfg: CfgNode, given: Collection[str], name: str) -> int | None:
    """A SOLVER setting that was set by hand, or None."""
    return int(cfg.SOLVER[name]) if f"SOLVER.{name}" in given else None


def _schedule(
    cfg: CfgNode, count: int, batch: int, machine: Machine, given: Collection[str], highest: float
) -> list[FittedSetting]:
    """Learning rate, iterations and warm-up from the batch size and the number of annotated images."""
    views = min(VIEWS + VIEWS_PER_IMAGE * count, MOST_VIEWS) * (GPU_VIEWS if machine.device == "cuda" else 1)
    steps = max(views // batch, 1)
    run = _given(cfg, given, "MAX_ITER") or steps
    rate = float(f"{min(RATE * batch, 1) * highest * cfg.FIT_RATE:.4g}")
    why_rate = f"{RATE * highest:g} an image of a batch of {batch}, at most {highest:g}"
    why_rate += f", x {cfg.FIT_RATE:g}" if cfg.FIT_RATE != 1 else ""
    what = "images with objects" if NETWORKS[cfg.MODEL.META_ARCHITECTURE][0] == "detection" else "images"
    why_steps = f"{views} views of {count} {what}, {views / max(count, 1):.0f} of each, {batch} at a time"
    return [
        FittedSetting("SOLVER.BASE_LR", rate, why_rate),
        FittedSetting("SOLVER.MAX_ITER", steps, why_steps),
        FittedSetting("SOLVER.WARMUP_ITERS", min(100, max(run // 10, 1)), "a tenth of the run, at most 100"),
        FittedSetting("SOLVER.CHECKPOINT_PERIOD", max(run // 4, 50), "four times"),
        FittedSetting("TEST.PRECISE_BN.NUM_ITER", min(50, max(-(-count // batch), 10)), "one pass, 10 to 50"),
    ]


def _teacher(batch: int, run: int) -> list[FittedSetting]:
    """A mean teacher that labels as many images as have labels, and averages over a fraction of a short run."""
    return [
        FittedSetting("SEMI.IMS_PER_BATCH", batch, "as many as with labels"),
        FittedSetting("SEMI.BURN_IN", run // 3, "a third of the run"),
        FittedSetting("SEMI.EMA", round(min(1 - 5 / run, 0.9996), 4), "over a fifth of the run, at most .9996"),
        FittedSetting("SEMI.STRONG_LABELLED", True, "few images need both views"),
    ]


def _side(sets: Sequence[DetectionData], machine: Machine) -> tuple[int, float, float, str]:
    """Shorter side, longest aspect, a small box as a fraction of the shorter side, and the reason."""
    images = [(data.name, image) for data in sets for image in data.load()["images"]]
    sizes = [(image["width"], image["height"]) for _, image in images]
    shapes = {(name, image["id"]): size for (name, image), size in zip(images, sizes, strict=True)}
    fractions = [
        (entry["bbox"][2] * entry["bbox"][3]) ** 0.5 / min(shapes[data.name, entry["image_id"]])
        for data in sets
        for entry in data.load()["annotations"]
        if entry["bbox"][2] > 0 and entry["bbox"][3] > 0
    ]
    small = float(np.quantile(fractions, 0.1)) if fractions else 0.1
    most = MOST_SIDE[machine.device]
    side = int(np.clip(SMALL_BOX / small, LEAST_SIDE, most)) // 32 * 32
    aspect, native = _aspect(sizes), int(np.median([min(size) for size in sizes]))
    why = (
        f"small boxes are {100 * small:.0f} % of the shorter side ({native} px in the files) and get "
        f"{SMALL_BOX} px; {LEAST_SIDE} to {most} on {machine.device}"
    )
    return side, aspect, small, why


def _batch(
    count: int, side: int, aspect: float, machine: Machine, given: int | None, least: int = 1
) -> tuple[int, int, str]:
    """Batch and shorter side that fit into the memory: the batch is halved, down to the least, then the side shrinks.

    A given batch stays.
    """
    batch, room = given or BATCH[machine.device], FRACTION_OF_MEMORY * machine.free
    least = given or least
    while batch > max(count, least):
        batch //= 2
    whole = batch
    while FIXED_BYTES + BYTES_A_PIXEL * batch * side * side * aspect > room and (batch > least or side > 128):
        batch, side = (batch // 2, side) if batch > least else (batch, side - 32)
    short = " (less than usual)" if batch < whole else ""
    return batch, side, f"{machine.device}, {machine.free / 2**30:.1f} GiB free{short}"
