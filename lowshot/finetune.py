"""Semi-supervised fine-tuning: backbone and classifier on the labelled images (presets in lowshot/presets.py).

The backbone and the new classifier have learning rates of their own. Several backbone rates are searched on held-out
labelled images, then the best is used on all. Under ``recompute`` the BN statistics are then computed again with fixed
weights (precise BN, arXiv 2105.07576), as Momentum² Teacher section 4.6 does.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import torch
from fvcore.nn.precise_bn import get_bn_modules, update_bn_stats
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from momentum_transfer.backbones.build import Backbone
from momentum_transfer.backbones.trainable import describe_trained, train_only
from momentum_transfer.core import distributed
from momentum_transfer.core.log import say
from momentum_transfer.lowshot.classifier import Classifier, Result, Run, Setup, accuracy, fit, shared_over_processes
from momentum_transfer.lowshot.labelled_data import LabelledData, Stream, search_split, steps_of
from momentum_transfer.lowshot.presets import FinetunePreset

#: Batches over which the BN statistics are computed again, at most.
_PRECISE_BN_BATCHES = 200


def evaluate_finetune(
    data: LabelledData, build: Callable[[], Backbone], fraction: float, preset: FinetunePreset, setup: Setup,
    part: str = "all",
) -> Result:  # fmt: skip
    """Search the backbone's learning rate if the preset has several, train on all labelled rows, score the test set.

    ``build`` gives a fresh copy of the pretrained backbone, of which ``part`` is trained (``backbones.trainable``);
    ``fraction`` of the labels chooses the classifier's rate and the number of epochs.
    """
    best = preset.learning_rates[0]
    if len(preset.learning_rates) > 1:
        fitted, held = search_split(data.train.labels, setup.rows, setup.seed)
        found = []
        for rate in preset.learning_rates:
            search = replace(setup, rows=fitted, folder=setup.folder / f"search_{rate:g}")
            model = _train(data, build, fraction, preset, rate, search, part=part)
            on_held, _ = accuracy(model, data.held_out(held, setup.batch_size), setup.device)
            found.append(float(on_held["top1"]))
        best = preset.learning_rates[int(np.argmax(found))]
    model = _train(data, build, fraction, preset, best, replace(setup, folder=setup.folder / "final"), part=part)
    on_test, hits = accuracy(model, data.testing(setup.batch_size), setup.device)
    trained = sum(p.numel() for p in model.backbone.parameters() if p.requires_grad)
    return Result(float(on_test["top1"]), float(on_test["top5"]), best, hits, trained)


def _train(
    data: LabelledData, build: Callable[[], Backbone], fraction: float, preset: FinetunePreset, rate: float,
    setup: Setup, *, part: str,
) -> Classifier:  # fmt: skip
    model = Classifier(build(), data.num_classes, setup.seed).to(setup.device)
    model.requires_grad_(True)
    train_only(model.backbone, part, setup.seed)
    trained = [parameter for parameter in model.backbone.parameters() if parameter.requires_grad]
    if part != "all":
        say(f"backbone, {part}: {describe_trained(model.backbone.parameters())}")
    schedule, scale = preset.schedule(fraction), setup.batch_size / preset.batch_size
    run = Run(
        modules={"model": model},
        groups=[
            *([{"params": trained, "lr": rate * scale}] if trained else []),
            {"params": list(model.fc.parameters()), "lr": preset.rate_of_head(rate, fraction) * scale},
        ],
        schedule=schedule,
        total=steps_of(schedule.epochs, len(setup.rows), setup.batch_size),
        folder=setup.folder,
        metrics=setup.folder,
        nesterov=preset.nesterov,
        weight_decay=preset.weight_decay,
    )
    outer = shared_over_processes(model, setup.device)

    def loss_of(inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, float]]:
        images, labels = inputs[0].to(setup.device), inputs[1].to(setup.device)
        return cross_entropy(outer(images), labels), {}

    def batches(start: int) -> Iterable[tuple[Tensor, Tensor]]:
        return data.training(Stream(setup.rows, setup.batch_size, run.total, setup.seed, start))

    model.train()
    fit(run, batches, loss_of, f"fine-tuning, backbone rate {rate:g}")
    if preset.recompute:
        count = min(_PRECISE_BN_BATCHES, max(1, len(setup.rows) // setup.batch_size), run.total)
        recompute_statistics(model, (images.to(setup.device) for images, _ in batches(run.total - count)), count)
    return model.eval()


def recompute_statistics(model: nn.Module, images: Iterable[Tensor], count: int) -> None:
    """Precise BN over ``count`` batches, one in memory at a time; under torchrun over those of all processes.

    Batch size and ``count`` must be the same on every process. A network without batch normalisation stays as it is.
    """
    layers = get_bn_modules(model.train())
    if layers:
        with torch.no_grad():
            update_bn_stats(model, images, count)
            for layer in layers if distributed.is_distributed() else ():  # the means of E[x] and of E[x²]
                mean, var = layer.get_buffer("running_mean"), layer.get_buffer("running_var")
                both = distributed.all_reduce_mean(torch.stack([mean, var + mean.square()]))
                mean.copy_(both[0])
                var.copy_((both[1] - both[0].square()).clamp_min(0))
    else:
        say("no batch normalisation whose statistics are trained: none to compute again")
    model.eval()
