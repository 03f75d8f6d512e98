"""Semi-supervised fine-tuning: backbone and classifier on the labelled images (presets in lowshot/presets.py).

The backbone and the new classifier have learning rates of their own. Several backbone rates are searched on held-out
labelled images, then the best is used on all. Under ``recompute`` the BN statistics are then computed again with fixed
weights (precise BN, arXiv 2105.07576), as Momentum² Teacher section 4.6 does.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from fvcore.nn.precise_bn import get_bn_modules, update_bn_stats
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from momentum_transfer.backbones.build import Backbone
from momentum_transfer.core import distributed
from momentum_transfer.core.log import say
from momentum_transfer.lowshot.classifier import Classifier, Run, accuracy, fit, in_order, shared_over_processes
from momentum_transfer.lowshot.labelled_data import LabelledData, Stream, search_split, steps_of
from momentum_transfer.lowshot.presets import FinetunePreset

#: Batches over which the BN statistics are computed again, at most.
PRECISE_BN_BATCHES = 200


@dataclass(frozen=True)
class FinetuneResult:
    """Fractions on the test set, and the backbone's learning rate (for the preset's batch size) that was used.

    ``hits``: top1 and top5 to [N] bool, whether each test image was right.
    """

    top1: float
    top5: float
    learning_rate: float
    hits: dict[str, np.ndarray]


def evaluate_finetune(
    data: LabelledData,
    build: Callable[[], Backbone],
    rows: np.ndarray,
    fraction: float,
    preset: FinetunePreset,
    seed: int,
    folder: Path,
    device: torch.device,
    batch_size: int | None = None,
) -> FinetuneResult:
    """Search the backbone's learning rate where the preset has several, train on ``rows``, score the test set.

    Args:
        build: a fresh copy of the pretrained backbone.
        rows: labelled rows. fraction: of labels, which chooses the classifier's rate and the number of epochs.
        batch_size: other than the preset's; both learning rates are scaled with it.
    """
    batch = batch_size or preset.batch_size
    rates = preset.learning_rates
    best = rates[0]
    if len(rates) > 1:
        fitted, held = search_split(data.train.labels, rows, seed)
        found = []
        for rate in rates:
            model = _train(
                data, build, fitted, fraction, preset, rate, batch, seed, folder / f"search_{rate:g}", device
            )
            found.append(float(accuracy(model, data.held_out(held, batch), device)["top1"]))
        best = rates[int(np.argmax(found))]
    model = _train(data, build, rows, fraction, preset, best, batch, seed, folder / "final", device)
    kept: dict[str, list[Tensor]] = {}
    on_test = accuracy(model, data.testing(batch), device, kept)
    return FinetuneResult(float(on_test["top1"]), float(on_test["top5"]), best, in_order(kept))


def _train(
    data: LabelledData,
    build: Callable[[], Backbone],
    rows: np.ndarray,
    fraction: float,
    preset: FinetunePreset,
    rate: float,
    batch: int,
    seed: int,
    folder: Path,
    device: torch.device,
) -> Classifier:
    model = Classifier(build(), data.num_classes, seed).to(device)
    model.requires_grad_(True)
    schedule, scale = preset.schedule(fraction), batch / preset.batch_size
    run = Run(
        modules={"model": model},
        groups=[
            {"params": list(model.backbone.parameters()), "lr": rate * scale},
            {"params": list(model.fc.parameters()), "lr": preset.rate_of_head(rate, fraction) * scale},
        ],
        schedule=schedule,
        total=steps_of(schedule.epochs, len(rows), batch),
        folder=folder,
        metrics=folder,
        nesterov=preset.nesterov,
        weight_decay=preset.weight_decay,
    )
    outer = shared_over_processes(model, device)

    def loss_of(inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, float]]:
        images, labels = inputs[0].to(device), inputs[1].to(device)
        return cross_entropy(outer(images), labels), {}

    def batches(start: int) -> Iterable[tuple[Tensor, Tensor]]:
        return data.training(Stream(rows, batch, run.total, seed, start))

    model.train()
    fit(run, batches, loss_of, f"fine-tuning, backbone rate {rate:g}")
    if preset.recompute:
        count = min(PRECISE_BN_BATCHES, max(1, len(rows) // batch), run.total)
        recompute_statistics(model, (images.to(device) for images, _ in batches(run.total - count)), count)
    return model.eval()


def recompute_statistics(model: nn.Module, images: Iterable[Tensor], count: int) -> None:
    """Precise BN over ``count`` batches, one in memory at a time; under torchrun over those of all processes.

    A network without batch normalisation stays as it is.

    Batch size and ``count`` are to be the same on every process.
    """
    if not get_bn_modules(model.train()):
        say("the network has no batch normalisation: no statistics to compute again")
        model.eval()
        return
    with torch.no_grad():
        update_bn_stats(model, images, count)
        for layer in get_bn_modules(model):
            _share(layer.get_buffer("running_mean"), layer.get_buffer("running_var"))
    model.eval()


def _share(mean: Tensor, var: Tensor) -> None:
    """Those of the images of all processes, in place: the means of E[x] and of E[x²] are averaged.

    Args:
        mean, var: [C] of one layer; the variance is that of the population (divided by n).
    """
    if not distributed.is_distributed():
        return
    both = distributed.all_reduce_mean(torch.stack([mean, var + mean.square()]))
    mean.copy_(both[0])
    var.copy_((both[1] - both[0].square()).clamp_min(0))
