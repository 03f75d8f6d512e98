"""The few-label evaluations as functions: of arrays (no settings, no files), and of any ``nn.Module``.

The evaluators are those of ``tools/lowshot.py``, so that equal features give equal numbers. All scores are percentages.
Every function raises InputError, which says what was expected, for arguments that do not fit.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from momentum_transfer.backbones import module_network
from momentum_transfer.backbones.module_network import ModuleBackbone
from momentum_transfer.backbones.network_input import NetworkInput
from momentum_transfer.backbones.resnet import ResNet
from momentum_transfer.backbones.source import SourceBackbone, of_network
from momentum_transfer.backbones.timm_network import TimmBackbone
from momentum_transfer.core.devices import choose_device
from momentum_transfer.core.errors import InputError, shown
from momentum_transfer.core.neighbours import search
from momentum_transfer.core.ranges import COUNT, POSITIVE, Choice
from momentum_transfer.core.records import read
from momentum_transfer.core.settings import load_config
from momentum_transfer.images.content import report_overlap, shared_rows
from momentum_transfer.lowshot import knn as nearest
from momentum_transfer.lowshot.classifier import Setup
from momentum_transfer.lowshot.config import EVALUATIONS, SETTINGS, get_cfg
from momentum_transfer.lowshot.features.extract import compute
from momentum_transfer.lowshot.features.feature_set import FeatureSet, check, check_pair, check_vary
from momentum_transfer.lowshot.linear import evaluate_linear, from_cache
from momentum_transfer.lowshot.presets import LINEAR
from momentum_transfer.lowshot.run import Request, run
from momentum_transfer.lowshot.svm import lowshot_svm


def extract_features(
    network: Callable[[Tensor], Tensor], images: np.ndarray | Tensor | Iterable[Any], *,
    batch_size: int = 256, precision: str = "fp32", device: str | torch.device | None = None,
) -> np.ndarray:  # fmt: skip
    """Frozen features [N, D] float32 of images.

    Args:
        network: images [n, 3, H, W] -> features [n, D]. A module is moved to the device; it runs in eval mode and gets
            its own mode back.
        images: [N, 3, H, W] normalised as the network wants them, or batches of such: a DataLoader, whose labels, if
            it has any, are ignored.
        precision: fp32 or bf16 (autocast).
        device: the default is the GPU if there is one.
    """
    SETTINGS["FEATURES.PRECISION"].rule.require("precision", precision)
    COUNT.require("batch_size", batch_size)
    if not callable(network):
        raise InputError(f"expected a network to call with images, found {shown(network)}; give a module")
    if not isinstance(images, Iterable):
        raise InputError(f"expected images [N, 3, H, W] or batches of them, found {shown(images)}; give an array")
    where = torch.device(device) if device is not None else choose_device()
    if isinstance(images, (np.ndarray, Tensor)):
        images = torch.as_tensor(images, dtype=torch.float32).split(batch_size)
    module = network if isinstance(network, nn.Module) else nn.Identity()
    training = module.training
    module.to(where).eval()
    try:
        features = [compute(network, _images(batch), precision, where).cpu().numpy() for batch in images]
    finally:
        module.train(training)
    if not features or features[0].ndim != 2 or not sum(map(len, features)):
        shape = features[0].shape if features else ()
        raise InputError(f"expected features [n, D] of at least one image, found {shape}; check network and images")
    return np.concatenate(features)


def _images(batch: Any) -> Tensor:
    images = batch[0] if isinstance(batch, (tuple, list)) else batch
    images = torch.as_tensor(images, dtype=torch.float32)
    if images.dim() != 4:
        raise InputError(f"expected batches of images [n, 3, H, W], found a tensor of shape {tuple(images.shape)}")
    return images


def knn(
    train: np.ndarray, train_labels: np.ndarray, test: np.ndarray, test_labels: np.ndarray, *,
    k: int = 20, temperature: float | None = None,
) -> dict[str, float]:  # fmt: skip
    """k nearest neighbours by cosine similarity (:mod:`momentum_transfer.lowshot.knn`).

    Args:
        train, test: features [N, D] and [M, D], with class indices [N] and [M].
        temperature: None for a majority vote; else a vote weighs exp(similarity / temperature), .07 in DINO.

    Returns:
        top1, top5 and the mean over classes of top1.
    """
    pair = _pair(train, train_labels, test, test_labels, "knn")
    neighbours = search(pair[0].features, pair[1].features, k, device=choose_device())
    return nearest.accuracies(neighbours, pair[0].labels, pair[1].labels, nearest.Preset(k, temperature))[0]


def svm(
    train: np.ndarray, train_labels: np.ndarray, test: np.ndarray, test_labels: np.ndarray, *,
    shots: Sequence[int] = (1, 2, 4, 8, 16), trials: int = 5, **settings: Any,
) -> dict[int, list[float]]:  # fmt: skip
    """Low-shot linear SVMs (``lowshot/svm/lowshot_svm.py``) on k random images of every class, ``trials`` times.

    Args:
        train, test: features [N, D] and [M, D].
        train_labels, test_labels: class indices [N] and [M]; or 0 and 1 [N, K] and [M, K], scored by mAP as VOC07 is.
        shots: every k.
        settings: further ones of ``lowshot_svm.LowShot``, such as ``select_c`` or ``seed``.

    Returns:
        k -> top-1 accuracy (mAP for several labels an image) of every trial.
    """
    pair = _pair(train, train_labels, test, test_labels)
    kind = {"protocol": "voc07"} if pair[0].multi_label else {}
    COUNT.require("trials", trials)
    setup = lowshot_svm.LowShot(shots=tuple(shots), trials=trials, **{"device": choose_device(), **kind, **settings})
    found: dict[int, list[float]] = {k: [] for k in shots}
    for scores in lowshot_svm.scores(setup, *pair, wanted=lambda *_: True):
        for score in scores:
            if score.metric in ("top1", "mAP"):
                found[score.details["shots"]].append(score.value)
    return found


def linear(
    train: np.ndarray, train_labels: np.ndarray, test: np.ndarray, test_labels: np.ndarray, *,
    preset: str = "m2", epochs: float | None = None, learning_rates: Sequence[float] | None = None,
    batch_size: int | None = None, seed: int = 0,
) -> dict[str, float]:  # fmt: skip
    """A linear classifier trained by SGD on stored features (``lowshot/linear.py``, protocol ``<preset>/cached``).

    Args:
        train, test: features [N, D] and [M, D], with class indices [N] and [M].
        preset: a name of :data:`momentum_transfer.lowshot.presets.LINEAR`, such as m2, rcf-sgd, rcf-lars or eman.
        epochs, learning_rates, batch_size: instead of the preset's; several rates are searched on held-out images.

    Returns:
        top1, top5 and the learning rate that was used.
    """
    pair = _pair(train, train_labels, test, test_labels, "linear")
    Choice(tuple(LINEAR)).require("preset", preset)
    chosen = LINEAR[preset]
    if epochs is not None:
        POSITIVE.require("epochs", float(epochs))
        chosen = replace(chosen, schedule=replace(chosen.schedule, epochs=epochs))
    if learning_rates is not None:
        chosen = replace(chosen, learning_rates=tuple(map(float, learning_rates)))
        for rate in chosen.learning_rates:
            POSITIVE.require("learning_rates", rate)
        if not chosen.learning_rates:
            raise InputError("expected learning_rates, found an empty list; leave it out for the preset's")
    if batch_size is not None:
        COUNT.require("batch_size", batch_size)
    size = min(batch_size or chosen.batch_size, len(pair[0]))
    with TemporaryDirectory() as folder:
        setup = Setup(np.arange(len(pair[0])), size, seed, Path(folder), choose_device())
        found = evaluate_linear(from_cache(*pair, size), chosen, setup)
    return {"top1": 100 * found.top1, "top5": 100 * found.top5, "learning_rate": found.learning_rate}


def _pair(
    train: np.ndarray, train_labels: np.ndarray, test: np.ndarray, test_labels: np.ndarray, single: str = ""
) -> tuple[FeatureSet, FeatureSet]:
    """Both sides, checked; ``single``: what takes one class an image only."""

    def side(name: str, features: np.ndarray, labels: np.ndarray) -> FeatureSet:
        labels = np.asarray(labels)
        if labels.dtype.kind not in "iub":
            raise InputError(f"expected the labels of {name} as whole numbers, found {labels.dtype}")
        data = FeatureSet(np.asarray(features, dtype=np.float32), labels.astype(np.int64), name, "")
        check(data)
        return data

    pair = side("train", train, train_labels), side("test", test, test_labels)
    check_pair(*pair)
    if single and pair[0].multi_label:
        raise InputError(f"expected one class an image for {single}, found multi-hot labels; use svm")
    check_vary(*pair)
    report_overlap(shared_rows(pair[0].features, pair[1].features))
    return pair


def evaluate(
    module: nn.Module, data: str = "smoke/lowshot_digits", *,
    evaluations: Sequence[str] = ("knn", "svm", "linear"), root: str | Path = "", name: str = "",
    input: NetworkInput | Mapping[str, Any] | None = None, pool: str = "pooled",
    settings: Mapping[str, Any] | None = None, output: str | Path | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Records of how good a network is: kNN, low-shot SVM, a linear classifier, or other evaluations.

    ``module(images [N, 3, H, W])`` gives features [N, D], or a map [N, C, h, w], or a dict of maps
    (:mod:`momentum_transfer.backbones.module_network`). It is not changed: a copy is evaluated, in eval mode; finetune
    and fixmatch train copies.

    Args:
        module: any, or a backbone of this project, such as ``mt.load`` gives.
        data: a config of ``configs/lowshot`` or ``configs/smoke`` by name or path: data set, sizes, presets.
        evaluations: of ``momentum_transfer.lowshot.config.EVALUATIONS``.
        root: folder of the data set's images, where it has one.
        name: what records call it; by default its class.
        input: size, mean, std, interpolation and crop of its images; by default what the module's attribute ``input``
            says, else the settings' size with ImageNet's statistics.
        pool: FEATURES.POOL, for a ViT of timm: cls, patch_mean, cls+patch_mean, last-N-blocks.
        settings: others of ``lowshot/config.py`` by key: ``{"SVM.SHOTS": [1, 4], "DATASETS.TRAIN": "train"}``.
        output: folder of records, items per image and trained heads; what it holds already is not evaluated again.
            None: nothing is kept.

    Returns:
        The records of this network, these settings and these evaluations, as in ``results.jsonl``: task, metric, value
        in percent, ….
    """
    if not isinstance(module, nn.Module):
        raise InputError(
            f"expected a torch.nn.Module, found a {type(module).__name__}; mt.load makes one of a checkpoint"
        )
    for asked in evaluations:
        Choice(EVALUATIONS).require("evaluations", asked)
    with TemporaryDirectory() as scratch:
        folder = Path(scratch if output is None else output)
        words: dict[str, Any] = {"OUTPUT_DIR": str(folder), "FEATURES.POOL": pool}
        words |= {"FEATURES.CACHE": scratch} if output is None else {}
        words |= {"DATASETS.ROOT": str(root)} if root else {}
        cfg = load_config(get_cfg(), data, [word for pair in {**words, **(settings or {})}.items() for word in pair])
        source = _source(module, name, input, cfg.INPUT.IMAGE_SIZE)
        asked_for: list[dict[str, Any]] = []
        for asked in evaluations:
            run(cfg, request := Request(asked, source.name, source=source))
            tasks = ("knn", asked) if asked == "retrieval" else (asked,)
            asked_for += [{**request.identities[0], "task": task} for task in tasks]
        file = folder / "results.jsonl"
        lines = read(file)[0] if file.is_file() else []
        return [line for line in lines if any(_is_of(line, identity) for identity in asked_for)]


def _is_of(record: Mapping[str, Any], identity: Mapping[str, Any]) -> bool:
    """Whether a record is of an evaluation: its weights, settings, data set, and the first word of its task."""
    own = {**record, "sha256": record["checkpoint"].get("sha256"), "task": record["task"].partition("/")[0]}
    return all(own.get(key) == value for key, value in identity.items())


def _source(module: nn.Module, name: str, spec: NetworkInput | Mapping[str, Any] | None, size: int) -> SourceBackbone:
    """The module as a backbone; ``size`` of images if neither the module nor ``spec`` has one."""
    if spec is None and isinstance(module, (ResNet, TimmBackbone, ModuleBackbone)):
        source = of_network(module)
    else:
        given = spec if spec is not None else getattr(module, "input", None)
        spec = NetworkInput(size) if given is None else module_network.input_of(given, "input", size)
        architecture = module_network.of_module(module, name or type(module).__name__, spec)
        source = of_network(ModuleBackbone(module, architecture))
    source.name = name or source.name
    return source
