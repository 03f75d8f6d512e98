"""Backbones by name: ``resnet50``, ``resnet50?width=128``, ``timm:convnext_tiny``, ``timm:swin_tiny…?img_size=96``."""

import ast
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from momentum_transfer.backbones import resnet
from momentum_transfer.backbones.module_network import ModuleArchitecture, ModuleBackbone
from momentum_transfer.backbones.network_input import NetworkInput
from momentum_transfer.backbones.resnet import DEPTHS, STEMS, STYLES, Architecture, NormLayer, ResNet, to_detectron2
from momentum_transfer.backbones.timm_models import TIMM, TimmArchitecture, check_name
from momentum_transfer.backbones.timm_network import TimmBackbone, build_timm
from momentum_transfer.core.errors import InputError

AnyArchitecture = Architecture | TimmArchitecture | ModuleArchitecture
Backbone = ResNet | TimmBackbone | ModuleBackbone


def parse_architecture(text: str) -> AnyArchitecture:
    """The architecture that a text names: a ResNet's name, or ``timm:NAME``, then ``?key=value&key=value``.

    A ResNet takes ``width``, ``stem`` and ``style``, a timm network ``img_size`` and what else its constructor takes.
    """
    name, mark, query = text.partition("?")
    options = _options(text, query) if mark else {}
    if name.startswith(TIMM):
        check_name(name[len(TIMM) :])
        return TimmArchitecture(name[len(TIMM) :], tuple(options.items()))
    if unknown := [key for key in options if key not in ("width", "stem", "style")]:
        found = f"{unknown[0]} in {text!r}; correct it"
        raise InputError(f"expected the options width, stem and style of a ResNet, found {found}")
    return Architecture(name, **options)


def named_architecture(arch: str, width: int = 64, stem: str = "imagenet") -> AnyArchitecture:
    """The architecture of the settings MODEL.ARCH, MODEL.WIDTH and MODEL.STEM (of a ResNet)."""
    return parse_architecture(arch) if arch.startswith(TIMM) else Architecture(arch, width, stem)


def _options(text: str, query: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in query.split("&"):
        key, equals, value = part.partition("=")
        if not re.fullmatch(r"[a-z_][a-z_0-9]*", key) or not equals or not value or key in found:
            raise InputError(f"expected NAME?key=value&key=value, each key once, found {text!r}; correct {part!r}")
        try:
            found[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[key] = value
    return found


def build_backbone(architecture: AnyArchitecture | str, norm_layer: NormLayer | None = None) -> Any:
    """A freshly initialised backbone: images [N, 3, H, W] -> features [N, num_features].

    Args:
        architecture: or the text that ``parse_architecture`` reads, such as ``timm:convnext_tiny``.
        norm_layer: channels -> normalisation module instead of every BatchNorm; None for the network's own.
    """
    if isinstance(architecture, str):
        architecture = parse_architecture(architecture)
    if isinstance(architecture, TimmArchitecture):
        return build_timm(architecture, norm_layer)
    if isinstance(architecture, ModuleArchitecture):
        return architecture.build(norm_layer)
    return resnet.build_resnet(architecture, nn.BatchNorm2d if norm_layer is None else norm_layer)


@lru_cache(maxsize=32)
def own_input(architecture: AnyArchitecture) -> NetworkInput | None:
    """The input that a network itself asks for; None for a ResNet, whose input settings and data sets choose.
    InputError: options that the network does not take, such as an img_size that it cannot process."""
    if isinstance(architecture, TimmArchitecture):
        with torch.device("meta"):
            network = build_timm(architecture)
        if "img_size" in dict(architecture.options):
            network.check_size()
        return network.input
    if isinstance(architecture, ModuleArchitecture):
        module = architecture.build()
        return module.input if module.says_input else None
    return None


def metadata_of(architecture: AnyArchitecture) -> dict[str, str]:
    """The architecture as metadata of files; ``architecture_in`` reads it back."""
    if not isinstance(architecture, Architecture):
        return {"architecture": str(architecture)}
    described = {"architecture": architecture.name, "width": str(architecture.width), "stem": architecture.stem}
    return described | ({"style": architecture.style} if architecture.style != "pytorch" else {})


def architecture_in(metadata: Mapping[str, str]) -> Architecture | TimmArchitecture | None:
    """The architecture that ``metadata_of`` described; None if metadata say none that is known."""
    text = metadata.get("architecture", "")
    if text.startswith(TIMM):
        found = parse_architecture(text)
        return found if isinstance(found, TimmArchitecture) else None
    style = metadata.get("style", "pytorch")
    known = text in DEPTHS and metadata.get("stem") in STEMS and style in STYLES
    if known and metadata.get("width", "").isdecimal():
        return Architecture(text, int(metadata["width"]), metadata["stem"], style)
    return None


@lru_cache(maxsize=32)
def expected_shapes(architecture: AnyArchitecture) -> Mapping[str, tuple[int, ...]]:
    """torchvision's or timm's name -> shape of every parameter and buffer."""
    with torch.device("meta"):
        return {name: tuple(tensor.shape) for name, tensor in build_backbone(architecture).state_dict().items()}


def detectron2_names(architecture: AnyArchitecture) -> dict[str, str]:
    """torchvision name -> Detectron2 name of every parameter and buffer, one to one; InputError if it is no ResNet."""
    if not isinstance(architecture, Architecture):
        advice = "for which Detectron2 has no names; write OUT.safetensors under timm's names"
        raise InputError(f"expected a ResNet for Detectron2's .pkl, found {architecture}, {advice}")
    return {name: to_detectron2(name) for name in expected_shapes(architecture)}
