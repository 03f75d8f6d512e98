"""Similarity of two backbones as records and as plots: RCF figures 3a (norms of weights) and 3b (linear CKA by block).

CKA: Kornblith et al., "Similarity of Neural Network Representations Revisited" (arXiv 1905.00414), linear kernel:
``CKA = HSIC(K, L) / sqrt(HSIC(K, K) · HSIC(L, L))``, K = X X^T, L = Y Y^T. Estimated from mini-batches as in Nguyen et
al., "Do Wide and Deep Networks Learn the Same Things?" (arXiv 2010.15327), equations 3 and 4: each HSIC is the mean
over batches of the unbiased estimator of Song et al. (JMLR 2012), so memory does not grow with the number of images.
The ratio of unbiased estimates is consistent, and may leave [0, 1] slightly. The biased estimator that most code uses
tends to 1 where features outnumber images.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from momentum_transfer.backbones.build import Backbone
from momentum_transfer.backbones.network_input import IMAGENET_MEAN, IMAGENET_STD
from momentum_transfer.backbones.resnet import ResNet
from momentum_transfer.backbones.source import SourceBackbone
from momentum_transfer.backbones.timm_network import TimmBackbone
from momentum_transfer.core import records as results
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import atomic_path, write_text
from momentum_transfer.core.log import track
from momentum_transfer.images.datasets import build_dataset
from momentum_transfer.images.reading import read_rgb
from momentum_transfer.images.views import eval_transform

#: Fewer images leave the unbiased estimator undefined (it divides by n - 3).
MIN_BATCH = 4


def unbiased_hsic(first: Tensor, second: Tensor) -> Tensor:
    """Unbiased HSIC [A, B] of every pair of Gram matrices [A, n, n] and [B, n, n] of the same n samples; can be < 0
    (Song et al. 2012, equation 5)."""
    n = first.shape[-1]
    if n < MIN_BATCH:
        raise InputError(f"expected at least {MIN_BATCH} images a batch for the unbiased HSIC, found {n}; give more")
    eye = torch.eye(n, dtype=torch.bool, device=first.device)
    k, l_ = first.masked_fill(eye, 0.0), second.masked_fill(eye, 0.0)  # the diagonals are what biases HSIC
    k_rows, l_rows = k.sum(-1), l_.sum(-1)  # [A, n], [B, n]
    trace = torch.einsum("anm,bnm->ab", k, l_)
    totals = k_rows.sum(-1)[:, None] * l_rows.sum(-1)[None, :]
    return (trace + totals / ((n - 1) * (n - 2)) - 2 / (n - 2) * k_rows @ l_rows.T) / (n * (n - 3))


class MinibatchCKA:
    """Linear CKA between every layer of one network and every layer of another, fed batches of one size."""

    def __init__(self) -> None:
        self._cross = self._first = self._second = torch.zeros(())

    def update(self, first: Iterable[Tensor], second: Iterable[Tensor]) -> None:
        """Add a batch: features [n, …] of the layers of both networks, for the same n images."""
        k, l_ = _grams(first), _grams(second)
        self._cross = self._cross + unbiased_hsic(k, l_)
        self._first = self._first + torch.cat([unbiased_hsic(gram[None], gram[None])[0] for gram in k])
        self._second = self._second + torch.cat([unbiased_hsic(gram[None], gram[None])[0] for gram in l_])

    def compute(self) -> Tensor:
        """CKA [layers of the first, layers of the second]; NaN where the features of a layer do not vary."""
        if not self._cross.dim():
            raise InputError("expected at least one batch of images, found none; give more images or a smaller batch")
        scale = self._first.clamp_min(0).sqrt()[:, None] * self._second.clamp_min(0).sqrt()[None, :]
        return torch.where(scale > 0, self._cross / scale, torch.nan)


def _grams(layers: Iterable[Tensor]) -> Tensor:
    """Linear Gram matrices [layers, n, n] in float64, one layer at a time.

    The features' mean over the batch is subtracted first: HSIC does not see it, and large means would cost digits.
    """
    flat = (features.flatten(1).double() for features in layers)
    return torch.stack([(x - x.mean(0)) @ (x - x.mean(0)).T for x in flat])


def block_outputs(network: Backbone, images: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Outputs of a network's blocks for images [N, 3, H, W], by name.

    Yields:
        of a ResNet ("stem", [N, C, H', W']) before pooling, ("res2.0", …), … of every residual block; of another
        hierarchical network ("res2", …), … of every stage; of a plain ViT ("block.0", [N, T, C]), … the tokens of every
        block after its final norm; last ("avgpool", [N, C]), the features as the network pools them.
    """
    if isinstance(network, ResNet):
        yield from _residual_blocks(network, images)
    elif isinstance(network, TimmBackbone) and network.plain:
        for number, (prefix, patches) in enumerate(network.tokens(images, network.depth)):
            yield f"block.{number}", torch.cat([prefix, patches.flatten(2).transpose(1, 2)], dim=1)
        yield "avgpool", network(images)
    elif network.strides:
        stages = network.stages(images)
        yield from ((name, stages[name]) for name in network.strides)
        yield "avgpool", stages["pooled"]
    else:
        yield "avgpool", network(images)


def _residual_blocks(network: ResNet, images: Tensor) -> Iterator[tuple[str, Tensor]]:
    x = network.relu(network.bn1(network.conv1(images)))
    yield "stem", x
    x = network.maxpool(x)
    for name, stage in network.named_stages():
        for index, block in enumerate(stage):
            x = block(x)
            yield f"{name}.{index}", x
    yield "avgpool", network.avgpool(x).flatten(1)


def stage_ends(names: Sequence[str]) -> dict[str, str]:
    """stem, res2 to res5 (of a plain ViT: block) and avgpool -> the last block of each: common to all depths."""
    return {name.split(".")[0]: name for name in names}


@torch.no_grad()
def cka_of_networks(
    first: Backbone, second: Backbone, batches: Iterable[Tensor]
) -> tuple[list[str], list[str], Tensor]:  # fmt: skip
    """The blocks of both networks, by ``block_outputs``, and their CKA [blocks of first, blocks of second].

    Args:
        first, second: of any depths and widths.
        batches: images [n, 3, H, W] normalised by ImageNet's statistics, the same number n each time; a network with
            statistics of its own sees them normalised by those.
    """
    cka = MinibatchCKA()
    names: tuple[dict[str, None], dict[str, None]] = ({}, {})  # sets that keep their order

    def features(network: Backbone, images: Tensor, seen: dict[str, None]) -> Iterator[Tensor]:
        for name, output in block_outputs(network, _normalised(images, network)):
            seen[name] = None
            yield output

    for images in batches:
        cka.update(*(features(network, images, seen) for network, seen in zip((first, second), names, strict=True)))
    return list(names[0]), list(names[1]), cka.compute()


def _normalised(images: Tensor, network: Backbone) -> Tensor:
    mean, std = network.input.mean, network.input.std
    if (mean, std) == (IMAGENET_MEAN, IMAGENET_STD):
        return images
    was, is_, by, now = (images.new_tensor(values).view(1, 3, 1, 1)
                         for values in (IMAGENET_MEAN, mean, IMAGENET_STD, std))  # fmt: skip
    return (images * by + was - is_) / now


def weight_norms(state: Mapping[str, Tensor], kernel: int | None = None) -> dict[str, float]:
    """2-norm of each convolution, in network order; with ``kernel`` only those of this side (RCF figure 3a: 3)."""
    return {
        name.removesuffix(".weight"): float(torch.linalg.vector_norm(tensor, dtype=torch.float64))
        for name, tensor in state.items()
        if tensor.dim() == 4 and (kernel is None or tensor.shape[2:] == (kernel, kernel))
    }


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
    first, second = (source.build().to(batches.device).train(batch_statistics) for source in (reference, other))
    title = f"CKA of {other.name} with {reference.name}"
    rows, columns, cka = cka_of_networks(first, second, track(batches, title, len(batches)))
    protocol = f"linear, unbiased mini-batch HSIC, {'batch' if batch_statistics else 'stored'} statistics"
    return Comparison(reference, other, rows, columns, cka.cpu(), batches, protocol)


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
                "batch_size", "reference", "config")  # fmt: skip
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
