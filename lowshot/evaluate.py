"""Any ``nn.Module`` through the few-label evaluations in one call, as ``tools/lowshot.py`` does it with checkpoints."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from momentum_transfer.backbones import module_network
from momentum_transfer.backbones.module_network import ModuleBackbone
from momentum_transfer.backbones.network_input import NetworkInput
from momentum_transfer.backbones.resnet import ResNet
from momentum_transfer.backbones.source import SourceBackbone, of_network
from momentum_transfer.backbones.timm_network import TimmBackbone
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.ranges import Choice
from momentum_transfer.core.records import read
from momentum_transfer.core.settings import load_config
from momentum_transfer.lowshot.config import EVALUATIONS, get_cfg
from momentum_transfer.lowshot.run import Request, run


def evaluate(
    module: nn.Module,
    data: str = "smoke/lowshot_digits",
    *,
    evaluations: Sequence[str] = ("knn", "svm", "linear"),
    root: str | Path = "",
    name: str = "",
    input: NetworkInput | Mapping[str, Any] | None = None,
    pool: str = "pooled",
    settings: Mapping[str, Any] | None = None,
    output: str | Path | None = None,
) -> list[dict[str, Any]]:
    """Records of how good a network is: kNN, low-shot SVM, a linear classifier, or whatever is asked for.

    The protocol of a module: ``module(images [N, 3, H, W])`` gives features [N, D], or a map [N, C, h, w], or a dict of
    maps (:mod:`momentum_transfer.backbones.module_network`). It is not changed: a copy is evaluated, in eval mode;
    finetune and fixmatch train copies.

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
        output: folder of records, items per image and trained heads; evaluated there already is left out. None: none
            of it is kept.

    Returns:
        The records of this network and these settings, as in ``results.jsonl``: task, metric, value in percent, ….

    Raises:
        InputError: unknown names, settings that contradict each other, a module that gives something else.
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
        for asked in evaluations:
            run(cfg, Request(asked, source.name, source=source))
        file = folder / "results.jsonl"
        lines = read(file)[0] if file.is_file() else []
        return [line for line in lines if line["checkpoint"]["sha256"] == source.sha256]


def _source(module: nn.Module, name: str, spec: NetworkInput | Mapping[str, Any] | None, size: int) -> SourceBackbone:
    """The module as what is evaluated; ``size``: of images, where neither it nor ``spec`` says one."""
    if spec is None and isinstance(module, (ResNet, TimmBackbone, ModuleBackbone)):
        source = of_network(module)
    else:
        said = spec if spec is not None else getattr(module, "input", None)
        spec = NetworkInput(size) if said is None else module_network.input_of(said, "input", size)
        architecture = module_network.of_module(module, name or type(module).__name__, spec)
        source = of_network(ModuleBackbone(module, architecture))
    source.name = name or source.name
    return source
