"""Extraction of frozen features: one vector an image, computed once and cached under the hash of all inputs.

Under torchrun every process fills its own range of rows, which needs a file system that all of them see. What lies on
disk is described in lowshot/features/cache.py. FEATURES.LAYER and FEATURES.POOL name the map or tokens of a backbone:
DINO (arXiv 2104.14294, appendix F.2) takes the CLS tokens of the last four blocks; DINOv2 (arXiv 2304.07193, appendix
B.3) the CLS token of the last one, with or without the mean of its patches.
"""

import os
import re
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np
import PIL.Image
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset

from momentum_transfer.backbones.build import Backbone
from momentum_transfer.backbones.resnet import ResNet
from momentum_transfer.backbones.timm_network import TimmBackbone
from momentum_transfer.core import distributed
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import sha256_of
from momentum_transfer.core.log import say, track
from momentum_transfer.core.samplers import ordered_loader
from momentum_transfer.images.labelled_images import LabelledImages
from momentum_transfer.images.subsets import Selected
from momentum_transfer.images.tar_shards import ShardImages
from momentum_transfer.lowshot.config import SETTINGS
from momentum_transfer.lowshot.features.cache import About, Entry, crc_of
from momentum_transfer.lowshot.features.feature_set import FeatureSet, check


class Pixels(nn.Module):
    """No backbone at all: the grey values of the image, [N, H·W]. The baseline that needs no weights."""

    def forward(self, images: Tensor) -> Tensor:
        return images.float().mean(dim=1).flatten(1)


def data_hash(dataset: LabelledImages, *, content: bool = False) -> str:
    """Hash of which images a data set lists, in order, with their labels.

    Images in memory count by their content; files by path, size and time of change, so that a replaced one is noticed
    without reading it, or by their ``content``, which reads all of them. InputError for a data set of another kind.
    """
    digest = sha256(np.ascontiguousarray(dataset.labels).tobytes())
    inner = dataset
    while isinstance(inner, Selected):
        digest.update(np.ascontiguousarray(inner.indices).tobytes())
        inner = inner.dataset
    if hasattr(inner, "paths"):
        digest.update(np.ascontiguousarray(inner.paths).tobytes())
        files = (_file_key(os.fsdecode(path), content) for path in inner.paths)
        for key in inner.keys(content) if isinstance(inner, ShardImages) else files:
            digest.update(key)
        return digest.hexdigest()
    for name in ("images", "glyphs"):
        if hasattr(inner, name):
            digest.update(np.ascontiguousarray(getattr(inner, name)).tobytes())
            return digest.hexdigest()
    raise InputError(f"cannot name the images of a {type(inner).__name__}: it has neither paths nor images")


def _file_key(path: str, content: bool) -> bytes:
    try:
        if content:
            return bytes.fromhex(sha256_of(path))
        known = os.stat(path)
    except OSError:  # reading it fails later, or the data set replaces it by another image
        return b"missing"
    return f"{known.st_size} {known.st_mtime_ns}\n".encode()


class _Transformed(Dataset[Tensor]):
    """Index -> transformed image."""

    def __init__(self, dataset: LabelledImages, transform: Callable[[PIL.Image.Image], Tensor]) -> None:
        self.dataset, self.transform = dataset, transform

    def __getitem__(self, index: int) -> Tensor:
        return self.transform(self.dataset[index][0])

    def __len__(self) -> int:
        return len(self.dataset)


def extract(
    network: Callable[[Tensor], Tensor], dataset: LabelledImages, transform: Callable[[PIL.Image.Image], Tensor],
    about: About, cache: Path, *, name: str, batch_size: int = 256, workers: int = 0,
    device: str | torch.device = "cpu",
) -> FeatureSet:  # fmt: skip
    """Features of ``dataset`` from the ``cache``'s folder, or computed and put there.

    ``network``: images [N, 3, H, W] -> features [N, D], in eval mode. ``name``: what messages call this split. Each
    process computes its own rows, from where an earlier run stopped; rows are written first, then the progress.
    """
    SETTINGS["FEATURES.PRECISION"].require(about.precision)
    entry, labels = Entry(cache / about.key), np.asarray(dataset.labels)
    if distributed.any_rank(not entry.complete, torch.device(device)):
        with entry.locked():
            entry.check(about)
            if not entry.complete:
                images = _Transformed(dataset, transform)
                features_of = partial(compute, network, precision=about.precision, device=device)
                rows = entry.open_rows(about, len(images), lambda: int(features_of(images[0][None]).shape[1]))
                own, done, checksum = entry.own_rows(rows)
                if done:
                    say(f"features of {name}: resumed after {done} of {len(own)} images")
                left, pinned = Subset(images, own[done:]), torch.device(device).type == "cuda"
                loader = ordered_loader(left, batch_size, workers=workers, pin_memory=pinned)
                for batch in track(loader, f"features of {name}"):
                    features = features_of(batch).cpu().numpy()
                    rows[own[done] : own[done] + len(batch)] = features
                    checksum = crc_of(features, checksum)
                    done += len(batch)
                    rows.flush()
                    entry.write_progress(own, done, checksum)
                entry.finish(labels)
    entry.check(about)
    result = FeatureSet(entry.read(labels), labels, name, about.weights)
    check(result)
    return result


@torch.no_grad()
def compute(network: Callable[[Tensor], Tensor], images: Tensor, precision: str, device: str | torch.device) -> Tensor:
    """Features [N, D] float32 on the device, under bf16 autocast unless ``precision`` is fp32.

    Images lie channels last, except for a network of timm: its features have the bits of its own forward.
    """
    device = torch.device(device)
    last = getattr(network, "channels_last", not hasattr(network, "forward_features"))
    layout = torch.channels_last if last else torch.contiguous_format
    batch = images.to(device, non_blocking=True, memory_format=layout)
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        return network(batch).float()


class StageFeatures(nn.Module):
    """One vector an image, [N, D], in float32 whatever the precision of the network.

    Args:
        backbone: is frozen here.
        layer: "pooled", or "res2" … "res5": that map averaged over positions.
        pool: "pooled" (as the network pools by itself), and of a network of tokens "cls", "patch_mean",
            "cls+patch_mean" (both, one after the other) or "last-N-blocks": the CLS tokens of the last N blocks, or the
            means of their patches where there is no CLS token, the last block's last. All as the final norm gives them.

    Raises:
        InputError: the network has no such map or token.
    """

    def __init__(self, backbone: Backbone, layer: str = "pooled", pool: str = "pooled") -> None:
        super().__init__()
        SETTINGS["FEATURES.LAYER"].require(layer)
        SETTINGS["FEATURES.POOL"].require(pool)
        _check(backbone, layer, pool)
        self.backbone = backbone.eval().requires_grad_(False)
        self.layer, self.pool = layer, pool
        #: whether maps may be laid out channels last: timm's bits are those of its own layout
        self.channels_last = isinstance(backbone, ResNet)

    def forward(self, images: Tensor) -> Tensor:
        if isinstance(self.backbone, ResNet):
            stage = "res5" if self.layer == "pooled" else self.layer
            return self.backbone.stages(images)[stage].float().mean(dim=(2, 3))
        if self.layer != "pooled":
            return self.backbone.maps(images)[self.layer].float().mean(dim=(2, 3))
        if self.pool == "pooled" or not isinstance(self.backbone, TimmBackbone):
            return self.backbone(images).float()
        last, token = re.fullmatch(r"last-(\d+)-blocks", self.pool), self.backbone.class_token
        cls, mean = (token, not token) if last else ("cls" in self.pool, "patch_mean" in self.pool)
        found = []
        for prefix, patches in self.backbone.tokens(images, int(last[1]) if last else 1):
            if cls:
                found.append(prefix[:, 0].float())
            if mean:
                found.append(patches.float().mean(dim=(2, 3)))
        return torch.cat(found, dim=1)


def _check(backbone: Backbone, layer: str, pool: str) -> None:
    name = backbone.architecture
    if layer != "pooled" and pool != "pooled":
        raise InputError(f"expected FEATURES.LAYER or FEATURES.POOL, found both: {layer} and {pool}; choose one")
    if layer != "pooled" and layer not in backbone.strides:
        known = ", ".join(backbone.strides) or "none"
        raise InputError(f"expected FEATURES.LAYER of a map that {name} has ({known}), found {layer}; take pooled")
    if pool == "pooled":
        return
    if not (isinstance(backbone, TimmBackbone) and backbone.plain):
        raise InputError(
            f"expected FEATURES.POOL pooled for {name}, which has no tokens, found {pool}; FEATURES.LAYER takes maps"
        )
    if "cls" in pool and not backbone.class_token:
        raise InputError(f"expected FEATURES.POOL without cls for {name}, which has no CLS token, found {pool}")
    if (last := re.fullmatch(r"last-(\d+)-blocks", pool)) and int(last[1]) > backbone.depth:
        raise InputError(f"expected at most last-{backbone.depth}-blocks in FEATURES.POOL for {name}, found {pool}")
