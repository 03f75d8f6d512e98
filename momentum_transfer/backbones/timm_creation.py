"""timm's own networks from the text of an architecture: options to timm's constructors, their refusals to one line."""

from __future__ import annotations

import re
from typing import Any

from torch import nn

from momentum_transfer.backbones.timm_names import TimmArchitecture
from momentum_transfer.core.errors import InputError, first_line, shown
from momentum_transfer.core.extras import extra

#: Options of ours beside the constructor's: epsilons of all LayerNorms and of the last one.
_EPSILONS = ("norm_eps", "final_norm_eps")
#: Far beyond the largest networks that there are: pixels or channels of an option, and blocks, by their options' names.
MOST_WIDTH, MOST_BLOCKS = 16_384, 1_000
_DEPTHS = ("depth", "depths", "layers", "num_blocks")


def create(architecture: TimmArchitecture, **source: Any) -> Any:
    """timm's network without its classifier; a convolutional one takes any size, so that only its images change.

    Args:
        source: where its weights come from, as ``timm.create_model`` takes it.

    Raises:
        InputError: timm is missing, or the network does not take the options.
    """
    options = dict(architecture.options)
    _check_sizes(options, architecture)
    epsilons = {key: options.pop(key) for key in _EPSILONS if key in options}
    try:
        network = _create_with(architecture, options, source)
    except _NoSuchOption as error:
        if error.name != "img_size":
            raise
        del options["img_size"]
        network = _create_with(architecture, options, source)
    _check_patches(network, architecture)
    _set_epsilons(network, **epsilons)
    return network


def _check_sizes(options: dict[str, Any], architecture: TimmArchitecture) -> None:
    """InputError for options that would build for hours, or fill any memory: they may be a stranger's.

    Rates of drop path are checked too: timm builds with any, and then scales by what is no probability.
    """
    for key, value in options.items():
        if key.endswith(("drop_rate", "drop_path_rate")) and not (_is_number(value) and 0 <= value < 1):
            raise InputError(
                f"expected {key} from 0 to below 1, found {shown(value)} in {architecture!s:.80}; correct it"
            )
        numbers = [number for number in (value if isinstance(value, tuple) else (value,)) if isinstance(number, int)]
        most = MOST_BLOCKS if key in _DEPTHS else MOST_WIDTH
        if numbers and (max(map(abs, numbers)) > most or (key in _DEPTHS and sum(numbers) > most)):
            raise InputError(f"expected options up to {most}, found {key} {shown(value)} in {architecture!s:.80}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _set_epsilons(network: Any, norm_eps: float | None = None, final_norm_eps: float | None = None) -> None:
    """Epsilons of the LayerNorms, which other projects' classes choose otherwise than timm's entry points."""
    for name, value in (("norm_eps", norm_eps), ("final_norm_eps", final_norm_eps)):
        if value is not None and not (isinstance(value, (int, float)) and 0 < value < 1):  # False for NaN
            raise InputError(f"expected {name} between 0 and 1, found {shown(value)}; correct it")
    for module in network.modules():
        if norm_eps is not None and isinstance(module, nn.LayerNorm):
            module.eps = float(norm_eps)
    for name in ("norm", "fc_norm", "head.norm"):
        parent, _, child = name.rpartition(".")
        final = getattr(getattr(network, parent, None) if parent else network, child, None)
        if final_norm_eps is not None and isinstance(final, nn.LayerNorm):
            final.eps = float(final_norm_eps)


class _NoSuchOption(InputError):
    """An option that a network's constructor does not take."""

    def __init__(self, name: str, architecture: TimmArchitecture) -> None:
        super().__init__(f"expected options that timm leaves open, found {name} in {architecture}; leave it out")
        self.name = name


#: What timm's constructors raise for values that they cannot build with; not OSError, which is of files and the Hub.
_OF_OPTIONS = (TypeError, ValueError, LookupError, ArithmeticError, AssertionError, RuntimeError)


def _create_with(architecture: TimmArchitecture, options: dict[str, Any], source: dict[str, Any]) -> Any:
    timm = extra("timm", "networks of timm")
    try:
        return timm.create_model(architecture.name, num_classes=0, **source, **options)
    except _OF_OPTIONS as error:
        told = re.search(r"(?:unexpected|multiple values for) keyword argument(?:\(s\): \[)? ?'(\w+)'", str(error))
        if isinstance(error, TypeError) and told and told[1] in options:
            raise _NoSuchOption(told[1], architecture) from error
        if not options:
            raise
        raise InputError(
            f"expected options that fit together, found {architecture}: timm says {first_line(error)}; correct them"
        ) from error


def _check_patches(network: Any, architecture: TimmArchitecture) -> None:
    embed = getattr(network, "patch_embed", None)
    size, patch = getattr(embed, "img_size", None), getattr(embed, "patch_size", None)
    if size is not None and patch is not None and any(s % p for s, p in zip(_pair(size), _pair(patch), strict=True)):
        side, p = _pair(size)[0], _pair(patch)[0]
        raise InputError(
            f"expected img_size divisible by the patch of {p} px, found {side} in {architecture}; "
            f"use {' or '.join(str(n * p) for n in (side // p, side // p + 1) if n)}"
        )


def _pair(value: Any) -> tuple[int, int]:
    return (int(value), int(value)) if isinstance(value, (int, float)) else (int(value[0]), int(value[1]))
