"""Images with one class per pixel: to samples for training, and predictions to label PNGs."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

from momentum_transfer.core.distributed import barrier, rank, world_size
from momentum_transfer.core.files import atomic_path
from momentum_transfer.core.log import ProgressLine
from momentum_transfer.core.samplers import Place, ordered_loader
from momentum_transfer.images.reading import upright_size
from momentum_transfer.transfer.data.semantic_datasets import IGNORE, SemanticData, label_file
from momentum_transfer.transfer.torchvision_engine.data import Mapper, Picture, output_size, read_image, resize
from momentum_transfer.transfer.torchvision_engine.detectors import Detector
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
