"""Images with one class per pixel: to samples for training, and predictions to label PNGs.

Dense features of a frozen backbone, kept on disk: the first head computes them, every later one reads them.
"""

from __future__ import annotations

import hashlib
import json
import time
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
from momentum_transfer.core.log import ProgressLine, say, track
from momentum_transfer.core.samplers import Place, ordered_loader
from momentum_transfer.images.reading import upright_size
from momentum_transfer.transfer.data.semantic_datasets import IGNORE, SemanticData, label_file
from momentum_transfer.transfer.torchvision_engine.data import Mapper, Picture, output_size, read_image, resize
from momentum_transfer.transfer.torchvision_engine.detectors import Detector
from momentum_transfer.transfer.torchvision_engine.segmentors import LinearSegmentor
from momentum_transfer.transfer.torchvision_engine.structures import Sample

#: How often a crop is drawn again because one class fills too much of it.
CROP_TRIES = 10


class SemanticMapper:
    """A picture and its labels to a sample.

    Args:
        mapper: sizes, channel order and flips. crop: (height, width) of training crops, None for whole images.
        largest_class: share of a crop that one class may fill, 1 for no limit.
    """

    def __init__(self, mapper: Mapper, crop: tuple[int, int] | None, largest_class: float = 1.0) -> None:
        self.mapper, self.crop, self.largest_class = mapper, crop, largest_class

    def train(self, picture: Picture, labels: np.ndarray, random: np.random.Generator) -> Sample:
        """Resized, cropped and flipped at random. labels: uint8 [H, W]."""
        size = output_size(picture.height, picture.width, self.mapper.draw_edge(random), self.mapper.long_edge)
        image = resize(read_image(picture), size, flip=False)
        small = np.asarray(Image.fromarray(labels).resize((size[1], size[0]), Image.Resampling.NEAREST))
        if self.crop is not None:
            window = self._window(small, random)
            image, small = image[window], small[window]
        if self.mapper.draw_flip(random):
            image, small = image[:, ::-1], small[:, ::-1]
        sample = self.mapper.sample(picture, image, None)
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


def pictures_of(data: SemanticData) -> list[Picture]:
    """The images with their sizes, numbered in order."""
    found = []
    for number, (file, _) in enumerate(data.pairs):
        width, height = upright_size(file)
        found.append(Picture(file, number, height, width, ()))
    return found


class SemanticTrainingSamples(Dataset[Sample]):
    """Samples at places, each a pure function of the seed and its position in the order."""

    def __init__(self, data: SemanticData, mapper: SemanticMapper, seed: int) -> None:
        self.data, self.mapper, self.seed, self.pictures = data, mapper, seed, pictures_of(data)

    def __getitem__(self, place: Place) -> Sample:
        position, index = place
        random = np.random.default_rng((self.seed, position))
        return self.mapper.train(self.pictures[index], self.data.labels(index), random)

    def __len__(self) -> int:
        return len(self.pictures)


class _TestSamples(Dataset[Sample]):
    def __init__(self, pictures: list[Picture], mapper: Mapper) -> None:
        self.pictures, self.mapper = pictures, mapper

    def __getitem__(self, index: int) -> Sample:
        return self.mapper.test(self.pictures[index])

    def __len__(self) -> int:
        return len(self.pictures)


def predict_labels(model: Detector, data: SemanticData, mapper: Mapper, folder: Path, workers: int) -> float:
    """Write one label PNG an image to ``folder``; seconds per image. Several processes share the images."""
    model.eval()
    mine = pictures_of(data)[rank() :: world_size()]
    loader = ordered_loader(_TestSamples(mine, mapper), 1, workers=workers, collate=list)
    begun = time.monotonic()
    with torch.no_grad(), ProgressLine("predict", len(mine)) as progress:
        for samples in loader:
            for sample, labels in zip(samples, model(samples), strict=True):
                with atomic_path(label_file(folder, sample.image_id)) as temporary:
                    Image.fromarray(labels.cpu().numpy().astype(np.uint8)).save(temporary)
            progress.advance(len(samples))
    seconds = (time.monotonic() - begun) / max(len(mine), 1)
    barrier()
    return seconds


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
    """A training set whose samples hold features and labels in the place of images."""

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
    pictures, network = pictures_of(data), network.eval()
    random = np.random.default_rng(0)  # draws nothing that matters: images repeat themselves
    first = mapper.train(pictures[0], data.labels(0), random)
    needed = network.features(first.image).numel() * 4 * len(pictures) / 1e9
    if needed > settings.CACHE_GB:
        say(f"{data.name}: dense features would need about {needed:.1f} GB, more than MODEL.SEM_SEG_HEAD.CACHE_GB "
            f"{settings.CACHE_GB:g}; they are computed anew for every batch")  # fmt: skip
        network.train()
        return None
    folder = root / key_of(cfg, network, data)
    folder.mkdir(parents=True, exist_ok=True)
    missing = [index for index in range(len(pictures)) if not file_of(folder, index).is_file()]
    if not missing:
        say(f"{data.name}: dense features of {len(pictures)} images from {folder}")
    for index in track(missing[rank() :: world_size()], f"{data.name}: dense features"):
        sample = mapper.train(pictures[index], data.labels(index), random)
        if sample.labels is None:
            raise ValueError("a training sample needs labels")
        held = {"features": network.features(sample.image).float().cpu().contiguous()}
        held["labels"] = sample.labels.to(torch.uint8)
        with atomic_path(file_of(folder, index)) as temporary:
            save_file(held, temporary)
    barrier()
    network.train()
    return CachedFeatures(folder, len(pictures))
