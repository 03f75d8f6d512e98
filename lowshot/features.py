"""Frozen features of a data set: computed once, streamed to disk, kept by the hash of all that determines them.

A cache entry is a folder ``<key>/`` with ``features.npy`` [N, D] float32, ``labels.npy`` and ``about.json``. The rows
are written into ``features.partial.npy`` as they come, with a progress file per process beside it, so a killed
extraction goes on where it was; the final name appears only when every row is there. Under torchrun every process
fills its own range of rows, which needs a file system that all of them see.
"""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset

from lowshot.feature_set import FeatureSet, check
from pretrain import distributed
from pretrain.console import say, track
from pretrain.errors import InputError
from pretrain.files import sha256_of_text, write_text

PRECISIONS = ("bf16", "fp32")


@dataclass(frozen=True)
class Source:
    """What produces features: a frozen network and the name under which its results are kept.

    Attributes:
        network: images [N, 3, H, W] -> features [N, D], in eval mode, not changed.
        weights: hash of the weights (of the file, and which network in it); any change of it misses the cache.
        description: for messages, for example "teacher of last.pt".
    """

    network: Callable[[Tensor], Tensor]
    weights: str
    description: str


@dataclass(frozen=True)
class About:
    """All that determines an entry's numbers; its hash is the entry's name."""

    weights: str
    data: str
    transform: str
    layer: str
    precision: str
    format: int = 1

    @property
    def key(self) -> str:
        return sha256_of_text(json.dumps(asdict(self), sort_keys=True))[:24]


class StageFeatures(nn.Module):
    """A stage's map averaged over positions in float32, whatever the precision of the network: [N, C].

    Args:
        backbone: a ``pretrain.backbones.ResNet``.
        layer: "pooled" (the average of res5) or "res2" … "res5".
    """

    LAYERS = ("pooled", "res2", "res3", "res4", "res5")

    def __init__(self, backbone: nn.Module, layer: str = "pooled") -> None:
        super().__init__()
        if layer not in self.LAYERS:
            raise InputError(f"expected FEATURES.LAYER of {', '.join(self.LAYERS)}, found {layer!r}")
        self.backbone = backbone.eval().requires_grad_(False)
        self.stage = "res5" if layer == "pooled" else layer

    def forward(self, images: Tensor) -> Tensor:
        stages: dict[str, Tensor] = self.backbone.stages(images)  # type: ignore[operator]
        return stages[self.stage].float().mean(dim=(2, 3))


class Pixels(nn.Module):
    """No backbone at all: the grey values of the image, [N, H·W]. The baseline that needs no weights."""

    def forward(self, images: Tensor) -> Tensor:
        return images.float().mean(dim=1).flatten(1)


def data_hash(dataset: Any) -> str:
    """Hash of which images a data set lists, in order, with their labels.

    Files count by their path, images in memory by their content; so replacing a file's content under the same name
    goes unnoticed, as reading all of them would cost as much as the extraction.
    """
    digest = sha256(np.ascontiguousarray(dataset.labels).tobytes())
    inner = dataset
    while hasattr(inner, "indices") and hasattr(inner, "dataset"):
        digest.update(np.ascontiguousarray(inner.indices).tobytes())
        inner = inner.dataset
    for name in ("paths", "images", "glyphs"):
        if hasattr(inner, name):
            digest.update(np.ascontiguousarray(getattr(inner, name)).tobytes())
            return digest.hexdigest()
    raise InputError(f"cannot name the images of a {type(inner).__name__}: it has neither paths nor images")


class _Transformed(Dataset[Tensor]):
    """Index -> transformed image; the labels are known without reading images."""

    def __init__(self, dataset: Any, transform: Callable[[PIL.Image.Image], Tensor]) -> None:
        self.dataset, self.transform = dataset, transform

    def __getitem__(self, index: int) -> Tensor:
        return self.transform(self.dataset[index][0])

    def __len__(self) -> int:
        return len(self.dataset)


def extract(
    source: Source,
    dataset: Any,
    transform: Callable[[PIL.Image.Image], Tensor],
    about: About,
    cache: Path,
    *,
    name: str,
    batch_size: int = 256,
    workers: int = 0,
    device: str | torch.device = "cpu",
) -> FeatureSet:
    """Features of ``dataset`` from the cache, or computed and put there.

    Args:
        dataset: ``pretrain.images`` protocol: ``dataset[i] -> (image, label)``, ``.labels``.
        about: what determines the result, see :class:`About`.
        cache: folder of all entries.
        name: what messages call this split.

    Raises:
        InputError: an entry of that key was made with other settings, or the features are not finite.
    """
    if about.precision not in PRECISIONS:
        raise InputError(f"expected FEATURES.PRECISION of {', '.join(PRECISIONS)}, found {about.precision!r}")
    folder = cache / about.key
    _check_entry(folder, about)
    if not (folder / "features.npy").is_file():
        images = _Transformed(dataset, transform)
        rows = _open_partial(folder, about, source, images[0], len(dataset), device)
        _fill(rows, images, source, about, folder, name, batch_size, workers, device)
        _finish(folder, np.asarray(dataset.labels))
    result = FeatureSet(
        np.load(folder / "features.npy", mmap_mode="r"), np.load(folder / "labels.npy"), name, about.weights
    )
    check(result)
    return result


def _fill(
    rows: np.memmap,
    images: _Transformed,
    source: Source,
    about: About,
    folder: Path,
    name: str,
    batch_size: int,
    workers: int,
    device: str | torch.device,
) -> None:
    """Compute this process's range of rows, from where an earlier run has come to; rows first, then the progress."""
    begin, end = _own_range(len(images))
    progress = folder / f"progress.{begin}-{end}"
    position = begin + (int(progress.read_text()) if progress.is_file() else 0)
    if position > begin:
        say(f"features of {name}: going on after {position - begin} of {end - begin} images")
    own = Subset(images, range(position, end))
    loader = DataLoader(own, batch_size, num_workers=workers, pin_memory=torch.cuda.is_available())
    for batch in track(loader, f"features of {name}"):
        features = compute(source.network, batch, about.precision, device).cpu().numpy()
        rows[position : position + len(batch)] = features
        position += len(batch)
        rows.flush()
        write_text(progress, str(position - begin))


@torch.no_grad()
def compute(network: Callable[[Tensor], Tensor], images: Tensor, precision: str, device: str | torch.device) -> Tensor:
    """Features [N, D] float32 on the device; channels-last, under bf16 autocast unless ``precision`` is fp32."""
    device = torch.device(device)
    batch = images.to(device, non_blocking=True, memory_format=torch.channels_last)
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        return network(batch).float()


def _own_range(count: int) -> tuple[int, int]:
    rank, world = distributed.rank(), distributed.world_size()
    return count * rank // world, count * (rank + 1) // world


def _check_entry(folder: Path, about: About) -> None:
    """An entry describes itself; a description that differs means that somebody moved or mixed files."""
    described = folder / "about.json"
    if not described.is_file():
        return
    try:
        found = json.loads(described.read_text())
    except json.JSONDecodeError as error:
        raise InputError(f"{described} is damaged ({error.msg}); delete the folder {folder} and run again") from error
    different = [key for key, value in asdict(about).items() if found.get(key) != value]
    if different:
        raise InputError(
            f"the features in {folder} were made with other settings ({', '.join(different)}); "
            "delete the folder, or choose another FEATURES.CACHE"
        )


def _open_partial(
    folder: Path, about: About, source: Source, example: Tensor, count: int, device: str | torch.device
) -> np.memmap:
    """The unfinished array, made by the first process if it is not there, opened by all."""
    partial = folder / "features.partial.npy"
    if distributed.is_main() and not (partial.is_file() and (folder / "about.json").is_file()):
        folder.mkdir(parents=True, exist_ok=True)
        for stale in folder.glob("progress.*"):
            stale.unlink()
        width = compute(source.network, example[None], about.precision, device).shape[1]
        np.lib.format.open_memmap(partial, mode="w+", dtype=np.float32, shape=(count, width)).flush()
        _reserve(partial)
        write_text(folder / "about.json", json.dumps(asdict(about), indent=1, sort_keys=True))
    distributed.barrier()
    return np.lib.format.open_memmap(partial, mode="r+")


def _reserve(file: Path) -> None:
    """Take the space now, where the system can: a disk that fills up later would kill the process that writes a map."""
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        with open(file, "r+b") as stream:
            os.posix_fallocate(stream.fileno(), 0, file.stat().st_size)
    except OSError as error:
        file.unlink()
        raise OSError(error.errno, error.strerror, str(file)) from error


def _finish(folder: Path, labels: np.ndarray) -> None:
    distributed.barrier()
    if distributed.is_main():
        np.save(folder / "labels.npy", labels)
        (folder / "features.partial.npy").replace(folder / "features.npy")
        for progress in folder.glob("progress.*"):
            progress.unlink()
    distributed.barrier()
