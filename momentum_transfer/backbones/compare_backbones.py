"""A comparison of backbones as records and as plots: RCF figures 3a (weight norms) and 3b (CKA)."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from momentum_transfer.backbones.build import Backbone
from momentum_transfer.backbones.similarity import MIN_BATCH, block_names, cka_of_networks, stage_ends, weight_norms
from momentum_transfer.backbones.source import SourceBackbone
from momentum_transfer.core import records as results
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import atomic_path, write_text
from momentum_transfer.core.log import track
from momentum_transfer.images.datasets import build_dataset
from momentum_transfer.images.reading import read_rgb
from momentum_transfer.images.views import eval_transform

_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff"}


class ImageBatches:
    """Equal batches of images, in an order fixed by ``seed``; iterating again gives the same ones.

    Args:
        images: a folder, searched for image files at any depth, or "digits" for the embedded held-out ones.
        batch_size: images a batch; an incomplete last batch is left out, so that all weigh the same.
        count: at most this many images; 0: all.
    """

    def __init__(
        self, images: str, image_size: int, batch_size: int, count: int = 0, seed: int = 0,
        device: str | torch.device = "cpu",
    ) -> None:  # fmt: skip
        for option, value, least in (("image-size", image_size, 1), ("batch-size", batch_size, MIN_BATCH),
                                     ("count", count, 0)):  # fmt: skip
            if value < least:
                raise InputError(f"expected --{option} of at least {least}, found {value}; correct it")
        folder = Path(images)
        self._items: Any
        if folder.is_dir():
            self._items = sorted(path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES)
            self._transform = eval_transform("imagefolder", image_size)
        elif images == "digits":
            self._items = build_dataset("digits", split="val", image_size=image_size)
            self._transform = eval_transform("digits", image_size)
        else:
            raise InputError(f"expected --images as a folder or the word digits, found {images}; check the path")
        self.name, self.image_size, self.batch_size, self.seed, self.device = (
            images, image_size, batch_size, seed, device)  # fmt: skip
        order = torch.randperm(len(self._items), generator=torch.Generator().manual_seed(seed))
        self._order = order[: count or None].tolist()
        if len(self) < 1:
            found = f"{len(self._order)}; give more or a smaller --batch-size"
            raise InputError(f"expected at least one batch of {batch_size} images in {images}, found {found}")

    def __len__(self) -> int:
        return len(self._order) // self.batch_size

    def __iter__(self) -> Iterator[Tensor]:
        for start in range(0, len(self) * self.batch_size, self.batch_size):
            items = [self._items[index] for index in self._order[start : start + self.batch_size]]
            images = [self._transform(read_rgb(item) if isinstance(item, Path) else item[0]) for item in items]
            yield torch.stack(images).to(self.device)


@dataclass(frozen=True)
class Comparison:
    """One backbone beside the reference: CKA [blocks of the reference, blocks of the other] on ``batches``."""

    reference: SourceBackbone
    other: SourceBackbone
    reference_blocks: list[str]
    other_blocks: list[str]
    cka: Tensor
    batches: ImageBatches
    protocol: str

    @property
    def count(self) -> int:
        """Images compared."""
        return len(self.batches) * self.batches.batch_size

    def stages(self) -> dict[str, float]:
        """CKA of stem, res2 to res5 (their last blocks) and avgpool, as far as both networks have them."""
        rows, columns = self.reference_blocks, self.other_blocks
        ends, others = stage_ends(rows), stage_ends(columns)
        both = [name for name in ends if name in others]
        return {name: float(self.cka[rows.index(ends[name]), columns.index(others[name])]) for name in both}


def compare(
    reference: SourceBackbone, other: SourceBackbone, batches: ImageBatches, *, batch_statistics: bool = False
) -> Comparison:
    """CKA of two backbones on the same images; with ``batch_statistics`` under BatchNorm's batch statistics, as
    fine-tuning begins, instead of the stored ones."""
    networks: list[Backbone] = [source.build().to(batches.device) for source in (reference, other)]
    for network in networks:
        network.train(batch_statistics)
    first, second = networks
    cka = cka_of_networks(first, second, track(batches, f"CKA of {other.name} with {reference.name}", len(batches)))
    protocol = f"linear, unbiased mini-batch HSIC, {'batch' if batch_statistics else 'stored'} statistics"
    return Comparison(reference, other, block_names(first), block_names(second), cka.cpu(), batches, protocol)


def records(comparison: Comparison) -> list[dict[str, Any]]:
    """CKA a stage, in percent, as records of the other backbone."""
    other, reference, batches = comparison.other, comparison.reference, comparison.batches
    about: dict[str, Any] = {
        "protocol": comparison.protocol, "engine": "torch", "dataset": batches.name, "seed": batches.seed,
        "images": comparison.count, "image_size": batches.image_size, "batch_size": batches.batch_size,
        "reference": {**_named(reference), "network": reference.network},
    }  # fmt: skip
    return [
        results.make_record("cka", name, 100 * value, checkpoint=_named(other), network=other.network, **about)
        for name, value in comparison.stages().items()
    ]


def add_records(file: Path, lines: list[dict[str, Any]]) -> int:
    """Append what ``file`` does not hold yet; the number of new records."""
    identity = ("task", "metric", "checkpoint", "network", "protocol", "dataset", "seed", "images", "image_size",
                "batch_size", "reference")  # fmt: skip
    known = results.read(file)[0] if file.is_file() else []
    held = [{key: record.get(key) for key in identity} for record in known]
    new = [line for line in lines if {key: line.get(key) for key in identity} not in held]
    results.append(file, new)
    return len(new)


def norm_records(source: SourceBackbone) -> list[dict[str, Any]]:
    """2-norm of every convolution, as records."""
    about: dict[str, Any] = {"checkpoint": _named(source), "network": source.network, "engine": "torch"}
    norms = weight_norms(source.state)
    return [results.make_record("weight_norm", name, value, **about) for name, value in norms.items()]


def _named(source: SourceBackbone) -> dict[str, str]:
    return {"name": source.name, "sha256": source.sha256}


def write_matrix(path: Path, comparison: Comparison) -> None:
    """The whole CKA matrix as JSON: ``rows`` (reference), ``columns`` (other), ``cka``."""
    tree = {
        "reference": comparison.reference.metadata, "other": comparison.other.metadata,
        "images": comparison.batches.name, "count": comparison.count, "protocol": comparison.protocol,
        "image_size": comparison.batches.image_size, "batch_size": comparison.batches.batch_size,
        "seed": comparison.batches.seed, "rows": comparison.reference_blocks, "columns": comparison.other_blocks,
        "cka": comparison.cka.tolist(),
    }  # fmt: skip
    write_text(path, json.dumps(tree, indent=1) + "\n")


def plot(folder: Path, labels: list[str], sources: list[SourceBackbone], comparisons: list[Comparison]) -> list[Path]:
    """Write norms.png (figure 3a), cka.png (figure 3b) and one heat map a pair; ``labels`` are of ``sources``, and
    ``comparisons`` of the first source with each of the others, in order."""
    figure, axes = _figure(7, 4)
    for order, (label, source) in enumerate(zip(labels, sources, strict=True)):
        values = list(weight_norms(source.state, kernel=3).values())
        width = 1.5 + 2 * (len(labels) - 1 - order)  # the first stays visible below a rescaled one of equal norms
        axes.plot(range(1, len(values) + 1), values, linewidth=width, label=label)
    axes.set(xlabel="3×3 convolution, in network order", ylabel="2-norm of the weight", ylim=(0, None))
    axes.legend(frameon=False)
    paths = [_save(figure, folder / "norms.png")]

    figure, axes = _figure(7, 4)
    for label, comparison in zip(labels[1:], comparisons, strict=True):
        stages = comparison.stages()
        axes.plot(list(stages), list(stages.values()), marker="o", markersize=4, label=f"{label} vs. {labels[0]}")
    axes.set(ylabel="linear CKA", ylim=(0, 1.05))
    axes.legend(frameon=False)
    paths.append(_save(figure, folder / "cka.png"))

    for number, (label, comparison) in enumerate(zip(labels[1:], comparisons, strict=True), start=1):
        paths.append(_save(_heat_map(comparison, labels[0], label), folder / f"cka_blocks_{number}.png"))
    return paths


def _heat_map(comparison: Comparison, row_label: str, column_label: str) -> Any:
    rows, columns = comparison.reference_blocks, comparison.other_blocks
    figure, axes = _figure(2.5 + 0.3 * len(columns), 1.5 + 0.3 * len(rows))
    image = axes.imshow(comparison.cka.numpy(), vmin=0, vmax=1, origin="lower", cmap="magma")
    axes.set_xticks(range(len(columns)), columns, rotation=90)
    axes.set_yticks(range(len(rows)), rows)
    axes.set(xlabel=column_label, ylabel=row_label)
    figure.colorbar(image, ax=axes, label="linear CKA")
    return figure


def _figure(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # no pyplot: nothing global, no display

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _save(figure: Any, path: Path) -> Path:
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150)
    return path
