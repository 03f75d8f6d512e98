"""What network the tensors under a prefix are: their layout, their names here, and the architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isqrt
from typing import Any

from torch import Tensor

from momentum_transfer.backbones.build import AnyArchitecture
from momentum_transfer.backbones.containers import Entry
from momentum_transfer.backbones.families import Family
from momentum_transfer.backbones.layouts import COUNTER, expected_shapes, infer_architecture, to_torchvision_name
from momentum_transfer.backbones.model_config import clues_of
from momentum_transfer.backbones.resnet import Architecture
from momentum_transfer.backbones.timm_inference import Clues, UnknownNetwork, infer_timm
from momentum_transfer.backbones.timm_layout_tables import TORCHVISION, is_openai_order, layout_of
from momentum_transfer.backbones.timm_layouts import Converted
from momentum_transfer.backbones.timm_models import TimmArchitecture
from momentum_transfer.backbones.vitdet import resize_positions
from momentum_transfer.core.errors import InputError


@dataclass(frozen=True)
class Hints:
    """What is known of a network beside its tensors.

    Attributes:
        asked: the architecture that the user named.
        told: the one that the file's metadata or the config beside it names; it counts where the tensors fit it.
        config: transformers' model config beside the file.
        resize_positions: resample position embeddings to the size that ``asked`` has.
    """

    asked: AnyArchitecture | None = None
    told: TimmArchitecture | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    resize_positions: bool = False


NO_HINTS = Hints()


@dataclass
class Understood(Converted):
    """Tensors under torchvision's or timm's names, and the architecture; None with the reason in ``problem``.

    Attributes:
        looks_like: what the tensors are by themselves, where another architecture was asked for.
    """

    architecture: AnyArchitecture | None = None
    problem: str = ""
    looks_like: str = ""


def understand(rule: Family, inside: Mapping[str, Entry], hints: Hints) -> Understood | None:
    """Read the tensors under a prefix.

    Args:
        rule: the family, which says what layouts its files are in.
        inside: names without the prefix -> entries.

    Returns:
        None where the names are in a layout that the family does not have.
    """
    tensors = {name: entry.tensor for name, entry in inside.items()}
    if rule.layout in ("numbered", "detectron2"):
        made = Converted()
        for source, tensor in tensors.items():
            name = to_torchvision_name(source, rule.layout)
            if made.sources.setdefault(name, (source,)) == (source,):
                made.tensors[name] = tensor
            else:
                made.doubled.append(source)
        return _resnet(made, hints)
    layout = layout_of(tensors)
    if rule.layout and layout.name not in rule.layout.split():
        return None
    made = layout.convert(tensors)
    if layout.name in (TORCHVISION, "transformers-resnet") and not isinstance(hints.asked, TimmArchitecture):
        found = _resnet(made, hints)
        known = found.architecture is not None and _fits(_shapes(made), found.architecture)
        if known or hints.told is None or not _fits(_shapes(made), hints.told):
            return found
    return _timm(layout.name, rule, made, tensors, hints)


def _resnet(made: Converted, hints: Hints) -> Understood:
    understood = Understood(**vars(made))
    try:
        understood.architecture = infer_architecture(_shapes(made))
    except InputError as error:
        understood.problem = str(error)
        return understood
    if isinstance(hints.asked, Architecture) and hints.asked != understood.architecture:
        understood.problem = f"expected a {hints.asked} as --arch says, found a {understood.architecture}"
        understood.architecture = None
    return understood


def _timm(layout: str, rule: Family, made: Converted, inside: Mapping[str, Tensor], hints: Hints) -> Understood:
    understood = Understood(**vars(made))
    shapes = _shapes(made)
    clues = replace(
        clues_of(layout, rule.name, _has_classifier(shapes), shapes, hints.config), **_fixed_by_buffers(inside)
    )
    if isinstance(hints.asked, Architecture):
        understood.problem = f"expected a {hints.asked} as --arch says, found names of {layout}"
        return understood
    if hints.asked is not None:
        understood.architecture = hints.asked
        if hints.resize_positions and isinstance(hints.asked, TimmArchitecture):
            resize_positions(understood, hints.asked)
        understood.looks_like = _inferred(shapes, clues)
        return understood
    if hints.told is not None and _fits(shapes, hints.told):
        understood.architecture = hints.told
        return understood
    try:
        understood.architecture = infer_timm(shapes, clues)
        understood.notes.append(f"architecture: {understood.architecture}, by its tensors{_assumed(layout, clues)}")
    except UnknownNetwork:
        pass  # what the file holds is said by the one who looked at all families
    except InputError as error:
        understood.problem = str(error)
    except (KeyError, IndexError, ZeroDivisionError, ValueError) as error:
        understood.problem = f"expected the tensors of a whole network, found names of {layout} without some ({error})"
    return understood


def _assumed(layout: str, clues: Clues) -> str:
    """What no tensor tells and was taken by rule, in words."""
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


def _has_classifier(shapes: Mapping[str, tuple[int, ...]]) -> bool:
    return any(name in shapes for name in ("head.weight", "head.fc.weight", "head_dist.weight"))


def _fixed_by_buffers(inside: Mapping[str, Tensor]) -> dict[str, Any]:
    """What tensors that are no part of the backbone tell of it: Swin's buffers, the order of CLIP's blocks."""
    found: dict[str, Any] = {}
    tables = [tensor for name, tensor in inside.items() if name.endswith("relative_coords_table") and tensor.dim() == 4]
    patch = inside.get("patch_embed.proj.weight")
    if tables and patch is not None:
        windows = [(table.shape[1] + 1) // 2 for table in tables]
        stages = len({name.split(".")[1] for name in inside if name.startswith("layers.")})
        found["window"], found["side"] = max(windows), windows[-1] * patch.shape[-1] * 2 ** (stages - 1)
        found["scaled_window"] = any(float(table.max()) > 1.1 for table in tables)  # log2(8 + 1) / log2(8) otherwise
    mask = inside.get("layers.0.blocks.1.attn_mask")
    if mask is not None and mask.dim() == 3 and patch is not None:
        found["side"] = isqrt(mask.shape[0]) * isqrt(mask.shape[1]) * patch.shape[-1]
    if is_openai_order(list(inside)):
        found["activation"] = "quick_gelu"
    return found


def _shapes(made: Converted) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in made.tensors.items()}


def _fits(shapes: Mapping[str, tuple[int, ...]], architecture: AnyArchitecture) -> bool:
    try:
        expected = expected_shapes(architecture)
    except InputError:
        return False
    return all(shapes.get(name) == shape for name, shape in expected.items() if not name.endswith(COUNTER))
