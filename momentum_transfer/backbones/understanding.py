"""What network the tensors under a prefix are: their layout, their names here, and the architecture."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import isqrt
from typing import Any

from torch import Tensor

from momentum_transfer.backbones import resnet
from momentum_transfer.backbones.build import AnyArchitecture, expected_shapes
from momentum_transfer.backbones.containers import Entry
from momentum_transfer.backbones.families import Family
from momentum_transfer.backbones.model_config import clues_of
from momentum_transfer.backbones.resnet import COUNTER, Architecture, infer_architecture
from momentum_transfer.backbones.timm_inference import Clues, UnknownNetwork, infer_timm
from momentum_transfer.backbones.timm_layouts import Converted, is_openai_order, layout_of
from momentum_transfer.backbones.timm_models import TimmArchitecture
from momentum_transfer.backbones.vitdet import resize_positions
from momentum_transfer.core.errors import InputError


@dataclass(frozen=True)
class Hints:
    """What is known of a network beside its tensors.

    Attributes:
        asked: the architecture that the user named.
        known: the one that the file's metadata or the config beside it names; it counts where the tensors fit it.
        config: transformers' model config beside the file.
        resize_positions: resample position embeddings to the size that ``asked`` has.
        style: of a ResNet, which no tensor shows.
    """

    asked: AnyArchitecture | None = None
    known: TimmArchitecture | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    resize_positions: bool = False
    style: str = "pytorch"


@dataclass
class Understood(Converted):
    """Tensors under torchvision's or timm's names, and the architecture; None with the reason in ``problem``.
    ``looks_like``: what the tensors are by themselves, where another architecture was asked for."""

    architecture: AnyArchitecture | None = None
    problem: str = ""
    looks_like: str = ""


#: Names of torchvision's ResNets, tried before the tables of timm's networks, and those that rule them out.
_TORCHVISION = re.compile(r"(conv1|bn1|layer[1-4])\.")
_OTHERS = re.compile(r"(blocks|layers|stages)\.|class_embedding$")
#: Layouts of ResNets alone: a name there -> torchvision's.
_RESNETS: Mapping[str, Callable[[str], str]] = {
    "numbered": resnet.from_numbered, "detectron2": resnet.from_detectron2, "torchvision": str,
}  # fmt: skip


def understand(rule: Family, inside: Mapping[str, Entry], hints: Hints) -> Understood | None:
    """Read the tensors under a prefix, names without it -> entries; None if no layout of the family has such names."""
    tensors = {name: entry.tensor for name, entry in inside.items()}
    if rule.layout in ("numbered", "detectron2"):
        return _resnet(_renamed(tensors, rule.layout), hints)
    torchvision = any(map(_TORCHVISION.match, tensors)) and not any(map(_OTHERS.match, tensors))
    layout = "torchvision" if torchvision else layout_of(tensors).name
    if rule.layout and layout not in rule.layout.split():
        return None
    converted = _renamed(tensors, layout) if torchvision else layout_of(tensors).convert(tensors)
    if layout in ("torchvision", "transformers-resnet") and not isinstance(hints.asked, TimmArchitecture):
        understood = _resnet(converted, hints)
        fits = understood.architecture is not None and _fits(_shapes(converted), understood.architecture)
        if fits or hints.known is None or not _fits(_shapes(converted), hints.known):
            return understood
    return _timm(layout, rule, converted, tensors, hints)


def _renamed(tensors: Mapping[str, Tensor], layout: str) -> Converted:
    converted = Converted()
    for source, tensor in tensors.items():
        name = _RESNETS[layout](source)
        if converted.sources.setdefault(name, (source,)) == (source,):
            converted.tensors[name] = tensor
        else:
            converted.doubled.append(source)
    return converted


def _resnet(converted: Converted, hints: Hints) -> Understood:
    understood = Understood(**vars(converted))
    try:
        understood.architecture = replace(infer_architecture(_shapes(converted)), style=hints.style)
    except InputError as error:
        understood.problem = str(error)
        return understood
    if isinstance(hints.asked, Architecture) and hints.asked != understood.architecture:
        understood.problem = f"expected a {hints.asked} as --arch says, found a {understood.architecture}"
        understood.architecture = None
    elif hints.style == "caffe" and hints.asked is None:
        understood.notes.append(
            f"architecture: {understood.architecture}, as most of Detectron2's model zoo: BGR values not divided by a "
            f"standard deviation, stride in the 1x1; if its training had torchvision's: --arch "
            f"'{replace(understood.architecture, style='pytorch')}'"
        )
    return understood


def _timm(layout: str, rule: Family, converted: Converted, inside: Mapping[str, Tensor], hints: Hints) -> Understood:
    understood, shapes = Understood(**vars(converted)), _shapes(converted)
    classifier = any(name in shapes for name in ("head.weight", "head.fc.weight", "head_dist.weight"))
    clues = replace(clues_of(layout, rule.name, classifier, shapes, hints.config), **_fixed_by_buffers(inside))
    if isinstance(hints.asked, Architecture):
        understood.problem = f"expected a {hints.asked} as --arch says, found names of {layout}"
        return understood
    if hints.asked is not None:
        understood.architecture = hints.asked
        if hints.resize_positions and isinstance(hints.asked, TimmArchitecture):
            resize_positions(understood, hints.asked)
        understood.looks_like = _inferred(shapes, clues)
        return understood
    if hints.known is not None and _fits(shapes, hints.known):
        understood.architecture = hints.known
        return understood
    try:
        understood.architecture = infer_timm(shapes, clues)
        understood.notes.append(f"architecture: {understood.architecture}, by its tensors{_assumed(layout, clues)}")
    except UnknownNetwork:
        pass  # the message comes from matching, which compares all families
    except InputError as error:
        understood.problem = str(error)
    except (KeyError, IndexError, ZeroDivisionError, ValueError) as error:
        understood.problem = f"expected the tensors of a whole network, found names of {layout} without some ({error})"
    return understood


def _assumed(layout: str, clues: Clues) -> str:
    """What no tensor shows and was chosen by rule, for the note."""
    if layout == "clip" and clues.activation != "quick_gelu":
        return "; GELU, as open_clip's own networks: name one with quickgelu by --arch where its training had it"
    if layout == "transformers-clip" and clues.heads is None:
        return f"; {clues.activation}, transformers' default, as no config.json is beside it"
    if layout.endswith("dinov3"):
        return "; pooled by the class token, as the project does"
    return ""


def _inferred(shapes: Mapping[str, tuple[int, ...]], clues: Clues) -> str:
    for infer in (lambda: infer_timm(shapes, clues), lambda: infer_architecture(shapes)):
        try:
            return str(infer())
        except (InputError, LookupError, ArithmeticError, ValueError):
            continue
    return ""


def _fixed_by_buffers(inside: Mapping[str, Tensor]) -> dict[str, Any]:
    """Clues from tensors that are no part of the backbone: Swin's buffers, the order of CLIP's blocks."""
    clues: dict[str, Any] = {}
    tables = [tensor for name, tensor in inside.items() if name.endswith("relative_coords_table") and tensor.dim() == 4]
    patch = inside.get("patch_embed.proj.weight")
    if tables and patch is not None:
        windows = [(table.shape[1] + 1) // 2 for table in tables]
        stages = len({name.split(".")[1] for name in inside if name.startswith("layers.")})
        clues["window"], clues["side"] = max(windows), windows[-1] * patch.shape[-1] * 2 ** (stages - 1)
        clues["scaled_window"] = any(float(table.max()) > 1.1 for table in tables)  # log2(8 + 1) / log2(8) otherwise
    mask = inside.get("layers.0.blocks.1.attn_mask")
    if mask is not None and mask.dim() == 3 and patch is not None:
        clues["side"] = isqrt(mask.shape[0]) * isqrt(mask.shape[1]) * patch.shape[-1]
    if is_openai_order(list(inside)):
        clues["activation"] = "quick_gelu"
    return clues


def _shapes(converted: Converted) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in converted.tensors.items()}


def _fits(shapes: Mapping[str, tuple[int, ...]], architecture: AnyArchitecture) -> bool:
    try:
        expected = expected_shapes(architecture)
    except InputError:
        return False
    return all(shapes.get(name) == shape for name, shape in expected.items() if not name.endswith(COUNTER))
