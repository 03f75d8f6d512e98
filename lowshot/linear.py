"""Linear evaluation: a classifier on the frozen backbone (presets in lowshot/presets.py).

Several learning rates are searched with one pass: as the backbone is frozen, one classifier for each is trained side by
side on the same features; the one best on held-out labelled images is trained again on all labelled images. The run
ends by comparing the backbone's tensors with those it began with, bit for bit.

``cached``: the classifier sees stored features of unaugmented images, in seconds instead of hours; the protocol is then
called ``<preset>/cached``, since the numbers are others.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from momentum_transfer.core.errors import InputError
from momentum_transfer.lowshot.classifier import Result, Run, Setup, accuracy, fit, linear_head, shared_over_processes
from momentum_transfer.lowshot.features.feature_set import FeatureSet
from momentum_transfer.lowshot.labelled_data import LabelledData, Stream, search_split, steps_of
from momentum_transfer.lowshot.presets import LinearPreset

_Batches = Iterable[tuple[Tensor, Tensor]]


class _Heads(nn.Module):
    """Independent linear classifiers on the same features: [N, D] -> logits [heads, N, classes]."""

    def __init__(self, count: int, features: int, classes: int, normalized: bool, seed: int) -> None:
        super().__init__()
        heads = [linear_head(features, classes, seed) for _ in range(count)]
        self.heads = nn.ModuleList(
            nn.Sequential(head, nn.BatchNorm1d(classes)) if normalized else head for head in heads
        )

    def forward(self, features: Tensor) -> Tensor:
        return torch.stack([head(features) for head in self.heads])


@dataclass(frozen=True)
class FeatureBatches:
    """Where the classifiers' inputs come from."""

    dim: int  # D
    num_classes: int
    labels: np.ndarray  # [N] of the training set
    training: Callable[[Stream], _Batches]  # of its steps: features [b, D], labels [b]
    held_out: Callable[[np.ndarray], _Batches]  # of rows of the training set, each once
    testing: Callable[[], _Batches]  # of the test set
    distributed_test: bool = True  # each process has a part of the test set; else all of it


def from_images(data: LabelledData, network: Callable[[Tensor], Tensor], dim: int, batch: int) -> FeatureBatches:
    """Features of augmented images, computed as they are needed; evaluation takes ``batch`` images at a time."""

    def computed(batches: _Batches) -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels in batches:
            with torch.no_grad():
                features = network(images)
            yield features, labels.to(features.device)

    return FeatureBatches(
        dim, data.num_classes, np.asarray(data.train.labels),
        training=lambda stream: computed(data.training(stream)),
        held_out=lambda rows: computed(data.held_out(rows, batch)),
        testing=lambda: computed(data.testing(batch)),
    )  # fmt: skip


def from_cache(train: FeatureSet, test: FeatureSet, batch: int) -> FeatureBatches:
    """Stored features, read from the memory map as they are needed."""

    def read(source: FeatureSet, rows: np.ndarray | list[int]) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(source.features[rows].astype(np.float32)), torch.from_numpy(source.labels[rows])

    def pieces(source: FeatureSet, rows: np.ndarray) -> Iterator[tuple[Tensor, Tensor]]:
        for begin in range(0, len(rows), batch):
            yield read(source, rows[begin : begin + batch])

    return FeatureBatches(
        train.features.shape[1], train.num_classes, train.labels,
        training=lambda stream: (read(train, [row for _, row in places]) for places in stream),
        held_out=lambda rows: pieces(train, rows),
        testing=lambda: pieces(test, np.arange(len(test))),
        distributed_test=False,
    )  # fmt: skip


def evaluate_linear(source: FeatureBatches, preset: LinearPreset, setup: Setup) -> Result:
    """Search the learning rate if the preset has several, train on all labelled rows, score the test set."""
    rates = preset.learning_rates
    best = rates[0]
    if len(rates) > 1:
        fitted, held = search_split(source.labels, setup.rows, setup.seed)
        heads = _train(source, preset, rates, replace(setup, rows=fitted, folder=setup.folder / "search"))
        on_held, _ = accuracy(heads, source.held_out(held), setup.device, source.distributed_test)
        best = rates[int(on_held["top1"].argmax())]
    heads = _train(source, preset, (best,), replace(setup, folder=setup.folder / "final"))
    on_test, hits = accuracy(heads, source.testing(), setup.device, source.distributed_test)
    top1, top5 = (float(on_test[metric][0]) for metric in ("top1", "top5"))
    return Result(top1, top5, best, {metric: own[0] for metric, own in hits.items()})


def _train(source: FeatureBatches, preset: LinearPreset, rates: tuple[float, ...], setup: Setup) -> _Heads:
    heads = _Heads(len(rates), source.dim, source.num_classes, preset.normalized, setup.seed).to(setup.device)
    scale = setup.batch_size / preset.batch_size
    run = Run(
        modules={"heads": heads},
        groups=[
            {"params": list(head.parameters()), "lr": rate * scale}
            for head, rate in zip(heads.heads, rates, strict=True)
        ],
        schedule=preset.schedule,
        total=steps_of(preset.schedule.epochs, len(setup.rows), setup.batch_size),
        folder=setup.folder,
        metrics=setup.folder,
        nesterov=preset.nesterov,
        optimizer_name=preset.optimizer,
    )
    outer = shared_over_processes(heads, setup.device)

    def loss_of(inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, float]]:
        features, labels = inputs[0].to(setup.device), inputs[1].to(setup.device)
        # the sum over classifiers: each one's gradient is that of its own mean loss
        losses = torch.stack([cross_entropy(logits, labels) for logits in outer(features)])
        return losses.sum(), {"loss_of_each": float(losses.detach().mean())}

    def batches(start: int) -> _Batches:
        return source.training(Stream(setup.rows, setup.batch_size, run.total, setup.seed, start))

    heads.train()
    fit(run, batches, loss_of, "linear classifier")
    return heads.eval()


def check_frozen(backbone: nn.Module, original: dict[str, Tensor]) -> None:
    """Raise InputError, which names the tensor, unless every one of the backbone is bit-equal to the checkpoint's."""
    for name, tensor in backbone.state_dict().items():
        if name in original and not torch.equal(tensor.cpu(), original[name].cpu().to(tensor.dtype)):
            raise InputError(f"the frozen backbone has changed during linear evaluation: {name}; its scores are void")
