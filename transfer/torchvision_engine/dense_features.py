"""Dense features of a frozen backbone, kept on disk: the first head computes them, every later one reads them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fvcore.common.config import CfgNode
from safetensors.torch import load_file, save_file
from torch.utils.data import Dataset

from momentum_transfer.core.distributed import barrier, rank, world_size
from momentum_transfer.core.files import atomic_path, sha256_of_text
from momentum_transfer.core.log import say, track
from momentum_transfer.core.samplers import Place
from momentum_transfer.transfer.data.semantic_datasets import SemanticData
from momentum_transfer.transfer.torchvision_engine.linear_segmentation import LinearSegmentor
from momentum_transfer.transfer.torchvision_engine.semantic_data import SemanticMapper, pictures_of
from momentum_transfer.transfer.torchvision_engine.structures import Sample


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
