"""What network the tensors under a prefix are: their layout, their names here, and the architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from momentum_transfer.backbones.build import AnyArchitecture
from momentum_transfer.backbones.containers import Entry
from momentum_transfer.backbones.families import Family
from momentum_transfer.backbones.layouts import to_torchvision_name
from momentum_transfer.backbones.model_config import clues_of
from momentum_transfer.backbones.resnet import Architecture
from momentum_transfer.backbones.shapes import COUNTER, expected_shapes, infer_architecture
from momentum_transfer.backbones.timm_inference import infer_timm
from momentum_transfer.backbones.timm_layout_tables import TORCHVISION, layout_of
from momentum_transfer.backbones.timm_layouts import Converted
from momentum_transfer.backbones.timm_network import TimmArchitecture
from momentum_transfer.errors import InputError


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
    """Tensors under torchvision's or timm's names, and the architecture; None with the reason in ``problem``."""

    architecture: AnyArchitecture | None = None
    problem: str = ""


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
    return _timm(layout.name, rule, made, hints)


def _resnet(made: Converted, hints: Hints) -> Understood:
    understood = Understood(**vars(made))
    try:
        understood.architecture = infer_architecture(_shapes(made))
    except InputError as error:
        understood.problem = str(error)
        return understood
    if isinstance(hints.asked, Architecture) and hints.asked != understood.architecture:
        raise InputError(f"expected {hints.asked} as --arch says, found a {understood.architecture}; correct --arch")
    return understood


def _timm(layout: str, rule: Family, made: Converted, hints: Hints) -> Understood:
    understood = Understood(**vars(made))
    shapes = _shapes(made)
    if hints.asked is not None:
        if isinstance(hints.asked, Architecture):
            raise InputError(f"expected a {hints.asked} as --arch says, found names of {layout}; correct --arch")
        understood.architecture = hints.asked
        return understood
    if hints.told is not None and _fits(shapes, hints.told):
        understood.architecture = hints.told
        return understood
    classifier = any(name.startswith(("head.weight", "head.fc.weight")) for name in shapes)
    try:
        understood.architecture = infer_timm(shapes, clues_of(layout, rule.name, classifier, shapes, hints.config))
    except InputError as error:
        understood.problem = str(error)
    except (KeyError, IndexError, ZeroDivisionError, ValueError) as error:
        understood.problem = f"expected the tensors of a whole network, found names of {layout} without some ({error})"
    return understood


def _shapes(made: Converted) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in made.tensors.items()}


def _fits(shapes: Mapping[str, tuple[int, ...]], architecture: AnyArchitecture) -> bool:
    try:
        expected = expected_shapes(architecture)
    except InputError:
        return False
    return all(shapes.get(name) == shape for name, shape in expected.items() if not name.endswith(COUNTER))
