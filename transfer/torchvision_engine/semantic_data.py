"""Images with one class per pixel: samples for training, dense features kept on disk, predictions as label PNGs."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fvcore.common.config import CfgNode
from PIL import Image
from safetensors.torch import load_file, save_file
from torch.utils.data import Dataset

from momentum_transfer.core.distributed import barrier, rank, world_size
from momentum_transfer.core.files import atomic_path, sha256_of_text
from momentum_transfer.core.log import say, track
from momentum_transfer.core.samplers import Place
from momentum_transfer.images.reading import upright_size
from momentum_transfer.transfer.data.semantic_datasets import IGNORE, SemanticData, label_file
from momentum_transfer.transfer.torchvision_engine.data import AnnotatedImage, Mapper, output_size, read_image, resize
from momentum_transfer.transfer.torchvision_engine.detection_run import predict_each
from momentum_transfer.transfer.torchvision_engine.detectors import Detector
from momentum_transfer.transfer.torchvision_engine.segmentors import LinearSegmentor
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
            window = self._window(small, random)
            image, small = image[window], small[window]
        if self.mapper.draw_flip(random):
            image, small = image[:, ::-1], small[:, ::-1]
        sample = self.mapper.sample(entry, image, None)
        sample.labels = torch.from_numpy(np.array(small)).long()  # a copy: Pillow lends read-only memory
        return sample

    def _window(self, labels: np.ndarray, random: np.random.Generator) -> tuple[slice, slice]:
        if self.crop is None:
            return slice(None), slice(None)
        height, width = (min(want, have) for want, have in zip(self.crop, labels.shape, strict=True))
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


class SemanticTrainingSamples(Dataset[Sample]):
    """Samples at places, each a pure function of the seed and its position in the order."""

    def __init__(self, data: SemanticData, mapper: SemanticMapper, seed: int) -> None:
        self.data, self.mapper, self.seed, self.images = data, mapper, seed, images_of(data)

    def __getitem__(self, place: Place) -> Sample:
        position, index = place
        random = np.random.default_rng((self.seed, position))
        return self.mapper.train(self.images[index], self.data.labels(index), random)

    def __len__(self) -> int:
        return len(self.images)


def predict_labels(model: Detector, data: SemanticData, cfg: CfgNode, folder: Path) -> float:
    """Write one label PNG an image to ``folder``; seconds per image. Several processes share the images."""

    def keep(sample: Sample, labels: torch.Tensor) -> None:
        write_labels(labels, label_file(folder, sample.image_id))

    seconds = predict_each(model, images_of(data), cfg, keep)
    barrier()
    return seconds


def write_labels(labels: torch.Tensor, path: Path) -> None:
    """Write classes [H, W] as a label PNG."""
    with atomic_path(path) as temporary:
        Image.fromarray(labels.cpu().numpy().astype(np.uint8)).save(temporary)


def repeats_itself(cfg: CfgNode) -> bool:
    """Whether a training image is the same every time: no crop, no flip, one size, a frozen backbone."""
    i = cfg.INPUT
    same = not i.CROP.ENABLED and i.RANDOM_FLIP == "none" and len(set(i.MIN_SIZE_TRAIN)) == 1
    return bool(same and cfg.MODEL.BACKBONE.FROZEN)


def key_of(cfg: CfgNode, network: LinearSegmentor, data: SemanticData) -> str:
    """Name of a set's features: a hash of the backbone's tensors, of what is done to images, and of the files."""
    digest = hashlib.sha256()
    for name, tensor in sorted(network.backbone.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    files = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for pair in data.pairs for path in pair]
    settings: dict[str, Any] = {
        "backbone": digest.hexdigest(),
        "input": [list(cfg.INPUT.MIN_SIZE_TRAIN)[:1], cfg.INPUT.MAX_SIZE_TRAIN, cfg.INPUT.FORMAT],
        "pixels": [list(cfg.MODEL.PIXEL_MEAN), list(cfg.MODEL.PIXEL_STD), cfg.MODEL.BACKBONE.SQUARE],
        "maps": [cfg.MODEL.BACKBONE.ARCH, network.levels, network.blocks],
        "files": files,
    }
    return sha256_of_text(json.dumps(settings, sort_keys=True))[:24]


class CachedFeatures(Dataset[Sample]):
    """A training set whose samples hold features and labels instead of images."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count

    def __getitem__(self, place: Place) -> Sample:
        _, index = place
        held = load_file(file_of(self.folder, index))
        height, width = held["labels"].shape
        nothing = torch.empty(3, 0, 0, dtype=torch.uint8)
        return Sample(nothing, index, height, width, labels=held["labels"].long(), features=held["features"])

    def __len__(self) -> int:
        return self.count


def file_of(folder: Path, index: int) -> Path:
    return folder / f"{index:06d}.safetensors"


def cached_features(
    cfg: CfgNode, network: LinearSegmentor, data: SemanticData, mapper: SemanticMapper
) -> CachedFeatures | None:
    """The features of a training set, computed where they are not there yet; a killed run goes on where it was.

    Processes share the images. None where they would need more than MODEL.SEM_SEG_HEAD.CACHE_GB.
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
    folder = root / key_of(cfg, network, data)
    folder.mkdir(parents=True, exist_ok=True)
    missing = [index for index in range(len(images)) if not file_of(folder, index).is_file()]
    if not missing:
        say(f"{data.name}: dense features of {len(images)} images from {folder}")
    for index in track(missing[rank() :: world_size()], f"{data.name}: dense features"):
        sample = mapper.train(images[index], data.labels(index), random)
        if sample.labels is None:
            raise ValueError("a training sample needs labels")
        held = {"features": network.features(sample.image).float().cpu().contiguous()}
        held["labels"] = sample.labels.to(torch.uint8)
        with atomic_path(file_of(folder, index)) as temporary:
            save_file(held, temporary)
    barrier()
    network.train()
    return CachedFeatures(folder, len(images))
