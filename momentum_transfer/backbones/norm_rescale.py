"""NormRescale: give LARS-trained weights the norms of SGD-trained ones, so that SGD fine-tuning suits them.

Huang et al., "Revisiting the Critical Factors of Augmentation-Invariant Representation Learning" (RCF, arXiv
2208.00275), section 4.1, equation 3: ``w* = ||w_S|| · w_L / ||w_L||`` with the 2-norm, for each weight tensor of the
backbone. The paper says "for any weight of the LARS-trained model", and gives the missing weight decay of the BatchNorm
parameters as the cause; so the default scope ``conv+bn`` is every learned tensor. Running statistics are measured, not
learned: scaling them is the further scope ``all``. The method is for fine-tuning, where BatchNorm takes batch
statistics; in eval mode the stored ones no longer fit the weights: compute them again (precise BN) before.

Synthetic LARS: larger weights of a ResNet, and nothing else about it (RCF, section 4.1 and appendix B.4: LARS leaves
weights about 10 times as large as SGD does). One checkpoint's weights are multiplied by c:

- convolutions: the BatchNorm behind each divides c out, so the network computes the same function, but SGD turns a
  weight at 1/c² of the rate (the gradient is 1/c of what it was, the weight c times as large).
- gamma and beta of the BatchNorms: every feature is c times as large. The next convolution's BatchNorm divides that
  out too, but not a head without one.

The stored statistics follow (means grow with a convolution's input and weights, variances with the square), so that
``eval()`` computes what it computed before, up to BatchNorm's eps.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from momentum_transfer.backbones.read import load_backbone
from momentum_transfer.backbones.resnet import Architecture
from momentum_transfer.backbones.source import SourceBackbone
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.log import say

SCOPES = ("conv", "bn", "conv+bn", "all")
DEFAULT_SCOPE = "conv+bn"
#: Median norm of the 3x3 convolutions over that of He initialisation, above which weights look LARS-trained: weight
#: decay keeps SGD-trained norms near or below 1, and LARS-trained ones are about 10 times higher (RCF, section B.4).
_LARS_RATIO = 1.5


def in_scope(name: str, tensor: Tensor, scope: str) -> bool:
    """Whether a torchvision-named tensor is rescaled: convolutions; BatchNorm weight and bias; running statistics."""
    if scope not in SCOPES:
        raise InputError(f"expected a scope of {', '.join(SCOPES)}, found {scope!r}")
    if not tensor.is_floating_point():
        return False  # num_batches_tracked is a count
    if tensor.dim() == 4:
        return scope != "bn"
    if name.endswith(("running_mean", "running_var")):
        return scope == "all"
    return scope != "conv"


def norms(state: Mapping[str, Tensor], scope: str = "all") -> dict[str, float]:
    """2-norm of each tensor in ``scope``, computed in float64."""
    return {name: _norm(tensor) for name, tensor in state.items() if in_scope(name, tensor, scope)}


def _norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64))


def rescale_to_anchor(
    state: Mapping[str, Tensor], anchor: Mapping[str, Tensor], scope: str = DEFAULT_SCOPE
) -> dict[str, Tensor]:
    """Equation 3, tensor by tensor; tensors outside ``scope`` are the same objects as before.

    Raises:
        InputError: another architecture, or a norm of zero on either side; the message names the tensor.
    """
    _same_architecture(state, anchor, scope)
    result = dict(state)
    for name, tensor in state.items():
        if in_scope(name, tensor, scope):
            norm = _nonzero(name, anchor[name], "anchor")
            result[name] = _scaled(name, tensor, norm / _nonzero(name, tensor, "checkpoint"))
    return result


def _same_architecture(state: Mapping[str, Tensor], anchor: Mapping[str, Tensor], scope: str) -> None:
    """Both ways: a shallower checkpoint finds all its names in a deeper anchor, whose norms are still not its own."""
    shapes, others = ({name: list(tensor.shape) for name, tensor in side.items() if in_scope(name, tensor, scope)}
                      for side in (state, anchor))  # fmt: skip
    for name in [*shapes, *others]:
        if shapes.get(name) != others.get(name):
            found, expected = (f"shape {side[name]}" if name in side else "no such tensor" for side in (others, shapes))
            both = f"{found} for {name} where the checkpoint has {expected}"
            raise InputError(
                f"expected an anchor of the same architecture, found {both}; take another, or --constant 0.1"
            )


def rescale_by_constant(state: Mapping[str, Tensor], factor: float, scope: str = DEFAULT_SCOPE) -> dict[str, Tensor]:
    """RCF's "Constant" (table 8): every tensor in ``scope`` times ``factor``, 0.1 in the paper."""
    if not (math.isfinite(factor) and factor > 0):
        raise InputError(f"expected a positive factor for --constant, found {factor}; the paper's is 0.1")
    result = dict(state)
    for name, tensor in state.items():
        if in_scope(name, tensor, scope):
            _nonzero(name, tensor, "checkpoint")
            result[name] = _scaled(name, tensor, factor)
    return result


def _nonzero(name: str, tensor: Tensor, owner: str) -> float:
    if (norm := _norm(tensor)) == 0.0:
        raise InputError(
            f"expected a norm above zero, found zero for {name} of the {owner}; it has no direction to rescale "
            "(an untrained network?); take another checkpoint or a narrower --scope"
        )
    return norm


def _scaled(name: str, tensor: Tensor, factor: float) -> Tensor:
    scaled = _times(name, tensor, factor)
    if _norm(scaled) == 0.0:
        found = f"{name} vanishing in {tensor.dtype} at factor {factor:.3g}"
        raise InputError(f"expected weights above zero, found {found}; convert to float32 first, or raise the factor")
    return scaled


def _times(name: str, tensor: Tensor, factor: float) -> Tensor:
    scaled = (tensor.double() * factor).to(tensor.dtype)
    if not bool(torch.isfinite(scaled).all()):
        raise InputError(f"expected finite weights, found {name} overflowing {tensor.dtype} at factor {factor:.3g}")
    return scaled


def apply(
    source: SourceBackbone, anchor: str | Path | None, constant: float | None, scope: str = DEFAULT_SCOPE, *,
    trust_pickle: bool = False,
) -> str:  # fmt: skip
    """Rescale ``source.state`` by an anchor (any source) or a constant; returns what was done, for the metadata."""
    before = source.state
    if anchor is not None:
        other = load_backbone(str(anchor), trust_pickle=trust_pickle)
        source.state = rescale_to_anchor(before, other.state, scope)
        text = f"anchor {other.name} sha256 {other.sha256} network {other.network} scope {scope}"
    elif constant is not None:
        source.state = rescale_by_constant(before, constant, scope)
        text = f"constant {constant} scope {scope}"
    else:
        return ""
    after = norms(source.state, scope)
    factors = [after[name] / norm for name, norm in norms(before, scope).items()]
    spread = f"{min(factors):.3g} to {max(factors):.3g}, median {median(factors):.3g}"
    say(f"NormRescale: {len(factors)} tensors, factors {spread}; for fine-tuning: running statistics no longer fit")
    return text


def he_ratio(state: Mapping[str, Tensor]) -> float:
    """Median over the 3x3 convolutions of ``||w||`` over its expectation under He initialisation (fan-out).

    He initialisation has variance ``2 / (9 C_out)`` for ``9 C_in C_out`` numbers, so the norm is about sqrt(2 C_in).
    """
    kernels = [tensor for tensor in state.values() if tensor.dim() == 4 and tensor.shape[2:] == (3, 3)]
    return median(_norm(tensor) / math.sqrt(2 * tensor.shape[1]) for tensor in kernels) if kernels else 0.0


def lars_warning(state: Mapping[str, Tensor]) -> str:
    """A sentence if the norms look LARS-trained, else ""."""
    if (ratio := he_ratio(state)) <= _LARS_RATIO:
        return ""
    return (
        f"the 3x3 convolutions have {ratio:.1f} times the norm of a fresh network, as LARS-trained weights do; "
        "fine-tuning them with SGD loses much of their transfer (RCF table 3): consider --norm-rescale ANCHOR or "
        "--constant 0.1"
    )


LARS_SCOPES = ("conv", "bn", "conv+bn")


def scale_weights(state: Mapping[str, Tensor], factor: float, scope: str = "conv+bn") -> dict[str, Tensor]:
    """The learned weights in ``scope`` of a ResNet times ``factor``, and the running statistics as they follow."""
    if not (math.isfinite(factor) and factor > 0):
        raise InputError(f"expected a positive factor for --scale, found {factor}; LARS-trained weights look like 10")
    if scope not in LARS_SCOPES:
        raise InputError(f"expected a scope of {', '.join(LARS_SCOPES)} for --scale, found {scope!r}; correct it")
    powers = {name: _power(name, tensor, scope) for name, tensor in state.items()}
    return {name: _times(name, state[name], factor**power) if power else state[name] for name, power in powers.items()}


def _power(name: str, tensor: Tensor, scope: str) -> int:
    """The power of the factor by which a tensor grows."""
    if not tensor.is_floating_point():
        return 0
    if not name.endswith(("running_mean", "running_var")):
        return int(in_scope(name, tensor, scope))
    # The first BatchNorm's convolution sees the image itself, which has no scale to follow.
    seen = ("conv" in scope) + ("bn" in scope and not name.startswith("bn1."))
    return 2 * seen if name.endswith("running_var") else seen


def apply_lars(source: SourceBackbone, factor: float | None, scope: str = "conv+bn") -> str:
    """Scale ``source.state`` by ``factor``, if any; returns what was done, for the metadata."""
    if factor is None:
        return ""
    if not isinstance(source.architecture, Architecture):
        advice = "whose layers are followed by other normalisations; --constant multiplies weights alone"
        raise InputError(f"expected a ResNet for --scale, found {source.architecture}, {advice}")
    source.state = scale_weights(source.state, factor, scope)
    return f"scale {factor:g} scope {scope}, statistics follow"
