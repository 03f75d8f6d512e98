"""Any known checkpoint into a module, with the report of what became of every key."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from torch import Tensor, nn

from momentum_transfer.backbones.key_report import KeyReport
from momentum_transfer.backbones.read import load_backbone
from momentum_transfer.core.errors import InputError


class Loaded(NamedTuple):
    """A network with a checkpoint's weights, and the account of the checkpoint's keys."""

    module: nn.Module
    report: KeyReport


def load(
    path: str | Path,
    into: nn.Module | None = None,
    *,
    which: str | None = None,
    family: str | None = None,
    trust_pickle: bool = False,
    architecture: str | None = None,
) -> Loaded:
    """The backbone of a checkpoint of any known family.

    Args:
        path, which, family, trust_pickle, architecture: as for
            :func:`momentum_transfer.backbones.read.load_backbone`.
        into: a network under torchvision's or timm's names that takes the weights, ``torchvision.models.resnet50()``
            for example; what it has besides the backbone (its classifier ``fc``) stays as it is. Without it a backbone
            of the checkpoint's architecture is made: images [N, 3, H, W] -> features [N, C], in eval mode.

    Raises:
        InputError: as ``load_backbone``; or ``into`` lacks a tensor of the backbone, has it in another shape, or has
            backbone tensors that the checkpoint lacks. Nothing is loaded then.
    """
    source = load_backbone(path, which=which, family=family, trust_pickle=trust_pickle, architecture=architecture)
    if into is None:
        return Loaded(source.build(), source.report)
    _check(into, source.state)
    into.load_state_dict(source.state, strict=False)
    return Loaded(into, source.report)


def _check(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    theirs = module.state_dict()
    parts = {name.split(".")[0] for name in state}
    problems = [f"it lacks {name}" for name in state if name not in theirs]
    problems += [f"{name} is {tuple(theirs[name].shape)}, not {tuple(value.shape)}" for name, value in state.items()
                 if name in theirs and theirs[name].shape != value.shape]  # fmt: skip
    problems += [f"the checkpoint lacks {name}" for name in theirs if name.split(".")[0] in parts and name not in state]
    if problems:
        raise InputError(
            f"expected a network of the checkpoint's architecture under torchvision's names, found {len(problems)} "
            f"differences, the first: {problems[0]}; leave into out, and the right one is made"
        )
