"""Semantic segmentation from settings: the network, its training batches, its predictions as label PNGs."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fvcore.common.config import CfgNode
from PIL import Image
from safetensors.torch import load_file, save_file
from torch.utils.data import ConcatDataset, DataLoader, Dataset

from momentum_transfer.core import samplers
from momentum_transfer.core.distributed import barrier, rank, world_size
from momentum_transfer.core.files import atomic_path, sha256_of_text
from momentum_transfer.core.log import say, track
from momentum_transfer.core.samplers import Batches, Place, RepeatedPasses
from momentum_transfer.images.reading import upright_size
from momentum_transfer.transfer import any_backbone
from momentum_transfer.transfer.data.semantic_datasets import IGNORE, SemanticData, label_file
from momentum_transfer.transfer.predictions import results_path
from momentum_transfer.transfer.tasks.task import Task
from momentum_transfer.transfer.torchvision_engine.backbone import BottomUp, SingleScale, dilate
from momentum_transfer.transfer.torchvision_engine.data import AnnotatedImage, Mapper, output_size, read_image, resize
from momentum_transfer.transfer.torchvision_engine.detection_run import mapper_of, predict_each
from momentum_transfer.transfer.torchvision_engine.detectors import Detector
from momentum_transfer.transfer.torchvision_engine.models import freeze_at, resnet_of
from momentum_transfer.transfer.torchvision_engine.segmentors import (
    ASPP,
    LAST_MAP,
    DeepLabHead,
    LinearHead,
    LinearSegmentor,
    Segmentor,
)
from momentum_transfer.transfer.torchvision_engine.structures import Sample

#: How often a crop is drawn again because one class fills too much of it.
CROP_TRIES = 10


class SemanticMapper:
    """An image and its labels to a sample.

    Args:
        mapper: sizes, channel order and flips. crop: (height, width) of training crops, None for whole images.
        largest_class: fraction of a crop that one class may fill, 1 for no limit.
    """

    def __init__(self, mapper: Mapper, crop: tuple[int, int] | None, largest_class: float = 1.0) -> None:
        self.mapper, self.crop, self.largest_class = mapper, crop, largest_class

    def train(self, entry: AnnotatedImage, labels: np.ndarray, random: np.random.Generator) -> Sample:
        """Resized, cropped and flipped at random. labels: uint8 [H, W]."""
        size = output_size(entry.height, entry.width, self.mapper.draw_edge(random), self.mapper.long_edge)
        image = resize(read_image(entry), size, flip=False)
        small = np.asarray(Image.fromarray(labels).resize((size[1], size[0]), Image.Resampling.NEAREST))
        if self.crop is not None:
            window = self._window(small, self.crop, random)
            image, small = image[window], small[window]
        if self.mapper.draw_flip(random):
            image, small = image[:, ::-1], small[:, ::-1]
        sample = self.mapper.sample(entry, image, None)
        sample.labels = torch.from_numpy(np.array(small)).long()  # a copy: Pillow lends read-only memory
        return sample

    def _window(self, labels: np.ndarray, crop: tuple[int, int], random: np.random.Generator) -> tuple[slice, slice]:
        height, width = (min(want, have) for want, have in zip(crop, labels.shape, strict=True))
        for _ in range(CROP_TRIES):
            top = int(random.integers(labels.shape[0] - height + 1))
            left = int(random.integers(labels.shape[1] - width + 1))
            window = slice(top, top + height), slice(left, left + width)
            values, counts = np.unique(labels[window], return_counts=True)
            counts = counts[values != IGNORE]
            if self.largest_class >= 1.0 or (len(counts) > 1 and counts.max() < counts.sum() * self.largest_class):
                break
        return window


def images_of(data: SemanticData) -> list[AnnotatedImage]:
    """The images with their sizes, numbered in order."""
    found = []
    for number, (file, _) in enumerate(data.pairs):
        width, height = upright_size(file)
        found.append(AnnotatedImage(file, number, height, width))
    return found


class _TrainingSamples(Dataset[Sample]):
    """Samples at places, each a pure function of the seed and its position in the order."""

    def __init__(self, data: SemanticData, mapper: SemanticMapper, seed: int) -> None:
        self.data, self.mapper, self.seed, self.images = data, mapper, seed, images_of(data)

    def __getitem__(self, place: Place) -> Sample:
        position, index = place
        random = np.random.default_rng((self.seed, position))
        return self.mapper.train(self.images[index], self.data.labels(index), random)

    def __len__(self) -> int:
        return len(self.images)


def write_labels(labels: torch.Tensor, path: Path) -> None:
    """Write classes [H, W] as a label PNG."""
    with atomic_path(path) as temporary:
        Image.fromarray(labels.cpu().numpy().astype(np.uint8)).save(temporary)


def _repeats_itself(cfg: CfgNode) -> bool:
    """Whether a training image is the same every time: no crop, no flip, one size, a frozen backbone."""
    i = cfg.INPUT
    same = not i.CROP.ENABLED and i.RANDOM_FLIP == "none" and len(set(i.MIN_SIZE_TRAIN)) == 1
    return bool(same and cfg.MODEL.BACKBONE.FROZEN)


def _key_of(cfg: CfgNode, network: LinearSegmentor, data: SemanticData) -> str:
    """Name of a set's features: a hash of the backbone's tensors, of what is done to images, and of the files."""
    digest = hashlib.sha256()
    for name, tensor in sorted(network.backbone.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    resnet = cfg.MODEL.RESNETS
    files = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for pair in data.pairs for path in pair]
    settings: dict[str, Any] = {
        "backbone": digest.hexdigest(),
        "input": [list(cfg.INPUT.MIN_SIZE_TRAIN)[:1], cfg.INPUT.MAX_SIZE_TRAIN, cfg.INPUT.FORMAT],
        "pixels": [list(cfg.MODEL.PIXEL_MEAN), list(cfg.MODEL.PIXEL_STD), cfg.MODEL.BACKBONE.SQUARE],
        "maps": [cfg.MODEL.BACKBONE.ARCH, network.levels, network.blocks],
        "dilation": [resnet.RES4_DILATION, resnet.RES5_DILATION, list(resnet.RES5_MULTI_GRID)],
        "files": files,
    }
    return sha256_of_text(json.dumps(settings, sort_keys=True))[:24]


class _CachedFeatures(Dataset[Sample]):
    """A training set whose samples hold features and labels instead of images."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count

    def __getitem__(self, place: Place) -> Sample:
        _, index = place
        held = load_file(_file_of(self.folder, index))
        height, width = held["labels"].shape
        nothing = torch.empty(3, 0, 0, dtype=torch.uint8)
        return Sample(nothing, index, height, width, labels=held["labels"].long(), features=held["features"])

    def __len__(self) -> int:
        return self.count


def _file_of(folder: Path, index: int) -> Path:
    return folder / f"{index:06d}.safetensors"


def _cached_features(
    cfg: CfgNode, network: LinearSegmentor, data: SemanticData, mapper: SemanticMapper
) -> _CachedFeatures | None:
    """The features of a training set, computed where they are missing; the processes split the work.

    None if they would need more than MODEL.SEM_SEG_HEAD.CACHE_GB.
    """
    settings = cfg.MODEL.SEM_SEG_HEAD
    root = Path(settings.CACHE) if settings.CACHE else Path(cfg.OUTPUT_DIR) / "dense_features"
    images, network = images_of(data), network.eval()
    random = np.random.default_rng(0)  # decides nothing: images repeat themselves
    first = mapper.train(images[0], data.labels(0), random)
    needed = network.features(first.image).numel() * 4 * len(images) / 1e9
    if needed > settings.CACHE_GB:
        say(f"{data.name}: dense features would need about {needed:.1f} GB, more than MODEL.SEM_SEG_HEAD.CACHE_GB "
            f"{settings.CACHE_GB:g}; they are computed anew for every batch")  # fmt: skip
        network.train()
        return None
    folder = root / _key_of(cfg, network, data)
    folder.mkdir(parents=True, exist_ok=True)
    missing = [index for index in range(len(images)) if not _file_of(folder, index).is_file()]
    if not missing:
        say(f"{data.name}: dense features of {len(images)} images from {folder}")
    own = [index for index in missing if index % world_size() == rank()]  # each process lists them at its own time
    for index in track(own, f"{data.name}: dense features"):
        sample = mapper.train(images[index], data.labels(index), random)
        if sample.labels is None:
            raise ValueError("a training sample needs labels")
        held = {"features": network.features(sample.image).float().cpu().contiguous()}
        held["labels"] = sample.labels.to(torch.uint8)
        with atomic_path(_file_of(folder, index)) as temporary:
            save_file(held, temporary)
    barrier()
    network.train()
    return _CachedFeatures(folder, len(images))


def unsupported(cfg: CfgNode) -> str | None:
    """Why the torchvision engine cannot run a semantic config, or None."""
    head, crop = cfg.MODEL.SEM_SEG_HEAD, cfg.INPUT.CROP
    if head.NAME == "LinearHead":
        return next(_linear_problems(cfg), None)
    stride = any_backbone.output_stride(cfg)
    checks = (
        (head.NAME == "DeepLabV3Head", "MODEL.SEM_SEG_HEAD.NAME is not DeepLabV3Head or LinearHead"),
        (head.IGNORE_VALUE == IGNORE, f"MODEL.SEM_SEG_HEAD.IGNORE_VALUE is not {IGNORE}"),
        (list(head.IN_FEATURES) == ["res5"], "MODEL.SEM_SEG_HEAD.IN_FEATURES is not [res5]"),
        (not head.USE_DEPTHWISE_SEPARABLE_CONV, "depthwise separable ASPP"),
        (head.ASPP_CHANNELS == head.CONVS_DIM, "ASPP_CHANNELS and CONVS_DIM differ"),
        (stride == head.COMMON_STRIDE, f"MODEL.SEM_SEG_HEAD.COMMON_STRIDE is not the dilated backbone's {stride}"),
        (head.LOSS_TYPE in ("cross_entropy", "hard_pixel_mining"), "MODEL.SEM_SEG_HEAD.LOSS_TYPE"),
        (not crop.ENABLED or crop.TYPE == "absolute", "INPUT.CROP.TYPE is not absolute"),
        (not crop.ENABLED or all(s % stride == 0 for s in crop.SIZE), f"INPUT.CROP.SIZE is no multiple of {stride}"),
    )
    return next((reason for fine, reason in checks if not fine), None)


def _linear_problems(cfg: CfgNode) -> Iterator[str]:
    """What a linear probe cannot be made of."""
    head, crop = cfg.MODEL.SEM_SEG_HEAD, cfg.INPUT.CROP
    if not cfg.MODEL.BACKBONE.FROZEN:
        yield "MODEL.SEM_SEG_HEAD.NAME LinearHead probes a frozen backbone; set MODEL.BACKBONE.FROZEN True"
    if head.IGNORE_VALUE != IGNORE:
        yield f"MODEL.SEM_SEG_HEAD.IGNORE_VALUE is not {IGNORE}"
    if head.LOSS_TYPE != "cross_entropy":
        yield "MODEL.SEM_SEG_HEAD.LOSS_TYPE of a LinearHead is not cross_entropy"
    if head.NORM not in ("", "BN", "SyncBN"):
        yield "MODEL.SEM_SEG_HEAD.NORM of a LinearHead is none of BN, SyncBN and the empty name"
    known = ("last", "res2", "res3", "res4", "res5")
    if not head.IN_FEATURES or any(name not in known for name in head.IN_FEATURES):
        yield f"MODEL.SEM_SEG_HEAD.IN_FEATURES are not some of {', '.join(known)}"
    if head.BLOCKS > 1 and not (cfg.MODEL.BACKBONE.ARCH and any_backbone.is_plain(cfg)):
        yield "MODEL.SEM_SEG_HEAD.BLOCKS above 1 needs a plain ViT; name maps in IN_FEATURES"
    if crop.ENABLED and crop.TYPE != "absolute":
        yield "INPUT.CROP.TYPE is not absolute"


def _backbone(cfg: CfgNode) -> SingleScale:
    """Maps without a pyramid: of a network of timm, or of a ResNet whose last stages may be dilated."""
    if cfg.MODEL.BACKBONE.ARCH:
        network = any_backbone.build_network(cfg)
        return SingleScale(network, max(network.strides.values()), cfg.MODEL.BACKBONE.SQUARE)
    resnets, resnet = cfg.MODEL.RESNETS, resnet_of(cfg)
    if resnets.RES4_DILATION > 1:
        dilate(resnet.layer3, [resnets.RES4_DILATION])
    if resnets.RES5_DILATION > 1:
        dilate(resnet.layer4, [resnets.RES5_DILATION * grid for grid in resnets.RES5_MULTI_GRID])
    return SingleScale(BottomUp(resnet, freeze_at=freeze_at(cfg)))


def _linear(cfg: CfgNode) -> LinearSegmentor:
    head, backbone = cfg.MODEL.SEM_SEG_HEAD, _backbone(cfg)
    widths = list(backbone.channels.values())
    channels = sum(widths[-1] if name == LAST_MAP else backbone.channels[name] for name in head.IN_FEATURES)
    linear = LinearHead(channels * head.BLOCKS, head.NUM_CLASSES, head.NORM, head.IGNORE_VALUE, head.LOSS_WEIGHT)
    backbone.size_divisibility = max(backbone.strides.values())
    pixels = {"pixel_mean": cfg.MODEL.PIXEL_MEAN, "pixel_std": cfg.MODEL.PIXEL_STD}
    return LinearSegmentor(backbone, linear, head.IN_FEATURES, head.BLOCKS, **pixels)


def build(cfg: CfgNode) -> Segmentor | LinearSegmentor:
    """The network of a config, freshly initialised, on the CPU, in training mode."""
    if cfg.MODEL.SEM_SEG_HEAD.NAME == "LinearHead":
        return _linear(cfg)
    head, backbone = cfg.MODEL.SEM_SEG_HEAD, _backbone(cfg)
    crop = cfg.INPUT.CROP
    pool = (crop.SIZE[0] // head.COMMON_STRIDE, crop.SIZE[1] // head.COMMON_STRIDE) if crop.ENABLED else None
    pooling = {"norm": head.NORM, "pool": pool, "dropout": head.ASPP_DROPOUT}
    aspp = ASPP(backbone.channels["res5"], head.ASPP_CHANNELS, head.ASPP_DILATIONS, **pooling)
    hard = head.LOSS_TYPE == "hard_pixel_mining"
    losses = {"ignore": head.IGNORE_VALUE, "hard_pixels": hard, "weight": head.LOSS_WEIGHT}
    deeplab = DeepLabHead(aspp, head.CONVS_DIM, head.NUM_CLASSES, stride=head.COMMON_STRIDE, **losses)
    return Segmentor(backbone, deeplab, cfg.MODEL.PIXEL_MEAN, cfg.MODEL.PIXEL_STD)


class _Joined(ConcatDataset[Sample]):
    """Several training sets as one: an index runs through all of them."""

    def __getitem__(self, place: Place) -> Sample:
        position, index = place
        for part, end in zip(self.datasets, self.cumulative_sizes, strict=True):
            if index < end:
                return part[(position, index - end + len(part))]  # type: ignore[arg-type]  # parts take places
        raise IndexError(index)


def training_loader(
    cfg: CfgNode, task: Task[SemanticData], seed: int, start: int, network: Any = None
) -> DataLoader[Any]:
    """Endless batches of a task's training sets from iteration ``start`` on.

    Of a linear ``network`` whose images repeat themselves they hold features instead of images.
    """
    crop = cfg.INPUT.CROP
    size = (int(crop.SIZE[0]), int(crop.SIZE[1])) if crop.ENABLED else None
    cropping = SemanticMapper(mapper_of(cfg, train=True), size, crop.SINGLE_CATEGORY_MAX_AREA)
    sets: list[Dataset[Sample]] = []
    for one in task.train:
        held = None
        if isinstance(network, LinearSegmentor) and _repeats_itself(cfg):
            held = _cached_features(cfg, network, one, cropping)
        sets.append(held or _TrainingSamples(one, cropping, seed))
    samples = _Joined(sets)
    order, size = RepeatedPasses(torch.ones(len(samples)), seed), cfg.SOLVER.IMS_PER_BATCH // world_size()
    batches = Batches(order, size, rank=rank(), world_size=world_size(), start=start)
    return samplers.training_loader(samples, batches, workers=cfg.DATALOADER.NUM_WORKERS, collate=list)


def predict(cfg: CfgNode, segmentor: Detector, data: SemanticData, out_dir: Path) -> tuple[Path, tuple[()], float]:
    """Write one label PNG an image of a test set; the folder, nothing to be scored by boxes, seconds per image."""
    folder = results_path(out_dir, data.name).with_suffix("")

    def keep(sample: Sample, labels: torch.Tensor) -> None:
        write_labels(labels, label_file(folder, sample.image_id))

    seconds = predict_each(segmentor, images_of(data), cfg, keep)
    barrier()
    return folder, (), seconds
