"""Linear evaluation: a classifier on the frozen backbone (presets in lowshot/presets.py).

Several learning rates are searched with one pass: as the backbone is frozen, one classifier for each is trained side by
side on the same features; the one best on held-out labelled images is trained again on all labelled images. The run
ends by comparing the backbone's tensors with those it began with, bit for bit.

``cached``: the classifier sees stored features of unaugmented images, in seconds instead of hours; the protocol is then
called ``<preset>/cached``, since the numbers are others.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from momentum_transfer.core.errors import InputError
from momentum_transfer.lowshot.classifier import Run, accuracy, fit, in_order, linear_head, shared_over_processes
from momentum_transfer.lowshot.features.feature_set import FeatureSet
from momentum_transfer.lowshot.labelled_data import LabelledData, Stream, search_split, steps_of
from momentum_transfer.lowshot.presets import LinearPreset


class Heads(nn.Module):
    """Independent linear classifiers on the same features: [N, D] -> logits [heads, N, classes]."""

    def __init__(self, count: int, features: int, classes: int, normalized: bool, seed: int) -> None:
        super().__init__()
        heads = [linear_head(features, classes, seed) for _ in range(count)]
        self.heads = nn.ModuleList(
            nn.Sequential(head, nn.BatchNorm1d(classes)) if normalized else head for head in heads
        )

    def forward(self, features: Tensor) -> Tensor:
        return torch.stack([head(features) for head in self.heads])


Batches = Callable[[np.ndarray], Iterable[tuple[Tensor, Tensor]]]


@dataclass(frozen=True)
class FeatureBatches:
    """Where the classifiers' inputs come from.

    Attributes:
        dim: D.
        labels: [N] of the training set.
        training: stream -> (features [b, D], labels [b]) of its steps.
        held_out: rows of the training set -> (features, labels), each once. testing: the same for the test set.
        dealt: the processes share the test set; else each has all of it.
    """

    dim: int
    num_classes: int
    labels: np.ndarray
    training: Callable[[Stream], Iterable[tuple[Tensor, Tensor]]]
    held_out: Batches
    testing: Callable[[], Iterable[tuple[Tensor, Tensor]]]
    dealt: bool = True


def from_images(data: LabelledData, network: Callable[[Tensor], Tensor], dim: int, batch: int) -> FeatureBatches:
    """Features computed from augmented images as they are needed.

    Args:
        network: images -> features [N, D] on the device; frozen.
        batch: images at a time in evaluation.
    """

    def computed(batches: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels in batches:
            with torch.no_grad():
                features = network(images)
            yield features, labels.to(features.device)

    return FeatureBatches(
        dim,
        data.num_classes,
        np.asarray(data.train.labels),
        lambda stream: computed(data.training(stream)),
        lambda rows: computed(data.held_out(rows, batch)),
        lambda: computed(data.testing(batch)),
    )


def from_cache(train: FeatureSet, test: FeatureSet, batch: int) -> FeatureBatches:
    """Stored features, read from the memory map as they are needed."""

    def read(source: FeatureSet, rows: np.ndarray | list[int]) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(source.features[rows].astype(np.float32)), torch.from_numpy(source.labels[rows])

    def pieces(source: FeatureSet, rows: np.ndarray) -> Iterator[tuple[Tensor, Tensor]]:
        for begin in range(0, len(rows), batch):
            yield read(source, rows[begin : begin + batch])

    return FeatureBatches(
        train.features.shape[1],
        train.num_classes,
        train.labels,
        lambda stream: (read(train, [row for _, row in places]) for places in stream),
        lambda rows: pieces(train, rows),
        lambda: pieces(test, np.arange(len(test))),
        dealt=False,
    )


@dataclass(frozen=True)
class LinearResult:
    """Fractions on the test set, and the learning rate (for the preset's batch size) that was used.

    ``hits``: top1 and top5 to [N] bool, whether each test image was right.
    """

    top1: float
    top5: float
    learning_rate: float
    hits: dict[str, np.ndarray]


def evaluate_linear(
    source: FeatureBatches,
    rows: np.ndarray,
    preset: LinearPreset,
    seed: int,
    folder: Path,
    device: torch.device,
    batch_size: int | None = None,
) -> LinearResult:
    """Search the learning rate where the preset has several, train on all labelled ``rows``, score the test set.

    Args:
        batch_size: other than the preset's; the learning rate is scaled with it.
        folder: checkpoints of this evaluation; a killed one goes on from there.
    """
    batch = batch_size or preset.batch_size
    rates = preset.learning_rates
    best = rates[0]
    if len(rates) > 1:
        fitted, held = search_split(source.labels, rows, seed)
        heads = _train(source, fitted, preset, rates, batch, seed, folder / "search", device)
        on_held = accuracy(heads, source.held_out(held), device)["top1"]
        best = rates[int(on_held.argmax())]
    heads = _train(source, rows, preset, (best,), batch, seed, folder / "final", device)
    kept: dict[str, list[Tensor]] = {}
    found = accuracy(heads, source.testing(), device, kept)
    return LinearResult(float(found["top1"][0]), float(found["top5"][0]), best, in_order(kept, source.dealt))


def _train(
    source: FeatureBatches,
    rows: np.ndarray,
    preset: LinearPreset,
    rates: tuple[float, ...],
    batch: int,
    seed: int,
    folder: Path,
    device: torch.device,
) -> Heads:
    heads = Heads(len(rates), source.dim, source.num_classes, preset.normalized, seed).to(device)
    scale = batch / preset.batch_size
    run = Run(
        modules={"heads": heads},
        groups=[
            {"params": list(head.parameters()), "lr": rate * scale}
            for head, rate in zip(heads.heads, rates, strict=True)
        ],
        schedule=preset.schedule,
        total=steps_of(preset.schedule.epochs, len(rows), batch),
        folder=folder,
        metrics=folder,
        nesterov=preset.nesterov,
        optimizer_name=preset.optimizer,
    )
    outer = shared_over_processes(heads, device)

    def loss_of(inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, float]]:
        features, labels = inputs[0].to(device), inputs[1].to(device)
        logits = outer(features)
        # the sum over classifiers: each one's gradient is that of its own mean loss
        losses = torch.stack([cross_entropy(each, labels) for each in logits])
        return losses.sum(), {"loss_of_each": float(losses.detach().mean())}

    heads.train()
    fit(run, lambda start: source.training(Stream(rows, batch, run.total, seed, start)), loss_of, "linear classifier")
    return heads.eval()


def check_frozen(backbone: nn.Module, original: dict[str, Tensor]) -> None:
    """Raise unless every tensor of the backbone is bit-equal to the checkpoint's.

    Raises:
        InputError: a tensor has moved; it is named, and the scores are not to be used.
    """
    for name, tensor in backbone.state_dict().items():
        if name in original and not torch.equal(tensor.cpu(), original[name].cpu().to(tensor.dtype)):
            raise InputError(f"the frozen backbone has changed during linear evaluation: {name}; its scores are void")
