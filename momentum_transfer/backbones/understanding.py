"""What network the tensors under a prefix are: their layout, their names here, and the architecture.

Also what stands beside the weights and no tensor shows: the model config (``config.json``) of transformers or timm, and
a detector's ``network.json``.
"""

import contextlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import isqrt
from pathlib import Path
from typing import Any

from torch import Tensor

from momentum_transfer.backbones import resnet
from momentum_transfer.backbones.build import AnyArchitecture, architecture_in, expected_shapes
from momentum_transfer.backbones.containers import Entry
from momentum_transfer.backbones.families import Family
from momentum_transfer.backbones.network_input import NetworkInput
from momentum_transfer.backbones.resnet import COUNTER, Architecture, infer_architecture
from momentum_transfer.backbones.timm_inference import Clues, Shapes, UnknownNetwork, infer_timm
from momentum_transfer.backbones.timm_layouts import Converted, is_openai_order, layout_of
from momentum_transfer.backbones.timm_models import TimmArchitecture, check_name
from momentum_transfer.backbones.vitdet import resize_positions
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.untrusted import MOST_BYTES, read_text


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
#: timm's names of torchvision's ResNets; others have tensors of the same shapes and compute something else.
_PLAIN = re.compile(r"(tv_|gluon_|ssl_|swsl_)?resnet(18|34|50|101|152)(_v1b)?(\.\w+)?")
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
        known = hints.known if hints.known is not None and _fits(_shapes(converted), hints.known) else None
        if known is None or (fits and _is_plain(known)):
            return understood
    return _timm(layout, rule, converted, tensors, hints)


def _is_plain(known: TimmArchitecture) -> bool:
    """Whether it is torchvision's ResNet, with options at most that change no evaluated feature."""
    kept = (key.startswith("drop") or key in ("zero_init_last", "global_pool") for key, _ in known.options)
    return bool(_PLAIN.fullmatch(known.name)) and all(kept)


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


def _inferred(shapes: Shapes, clues: Clues) -> str:
    for infer in (lambda: infer_timm(shapes, clues), lambda: infer_architecture(shapes)):
        with contextlib.suppress(InputError, LookupError, ArithmeticError, ValueError):
            return str(infer())
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


def _fits(shapes: Shapes, architecture: AnyArchitecture) -> bool:
    try:
        expected = expected_shapes(architecture)
    except InputError:
        return False
    return all(shapes.get(name) == shape for name, shape in expected.items() if not name.endswith(COUNTER))


#: transformers' name of an activation -> timm's.
_ACTIVATIONS = {"gelu": "gelu", "quick_gelu": "quick_gelu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh",
                "relu": "relu", "silu": "silu"}  # fmt: skip
#: layout -> (epsilon of all LayerNorms, of the last one, activation) of transformers' classes without a config.
_DEFAULTS: Mapping[str, tuple[float | None, float | None, str]] = {
    "transformers-vit": (1e-12, None, "gelu"),
    "transformers-clip": (1e-5, None, "quick_gelu"),
    "transformers-siglip": (1e-6, None, "gelu_tanh"),
    "transformers-convnext": (None, 1e-12, "gelu"),
}


def read_model_config(file: Path) -> dict[str, Any]:
    """transformers' or timm's config beside a file of weights; empty where there is none."""
    config = _beside(file, "config.json")
    return config if {"model_type", "architecture"} & config.keys() else {}


def _beside(file: Path, name: str) -> dict[str, Any]:
    """The JSON mapping ``name`` in the folder of a file of weights; empty where there is none."""
    beside = file.with_name(name)
    try:
        found = json.loads(read_text(beside, "a JSON file", MOST_BYTES)) if beside.exists() else {}
    except (InputError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def timm_architecture_in(config: Mapping[str, Any]) -> TimmArchitecture | None:
    """The network that timm's own config names; None for any other config."""
    name = config.get("architecture")
    if not isinstance(name, str) or "model_type" in config:
        return None
    details = config.get("pretrained_cfg")
    tag = details.get("tag") if isinstance(details, dict) else None
    arguments = config.get("model_args")
    options = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in (arguments if isinstance(arguments, dict) else {}).items()
        if isinstance(value, (int, float, str, list)) and key not in ("num_classes", "in_chans")
    }
    for full in (f"{name}.{tag}" if tag else name, name):
        try:
            check_name(full)
        except InputError:
            continue
        return TimmArchitecture(full, tuple(options.items()))
    return None


def input_in(config: Mapping[str, Any]) -> NetworkInput | None:
    """The normalisation in timm's config; None for any other config, and for what are no three numbers."""
    details = config.get("pretrained_cfg")
    values = [details.get(key) for key in ("mean", "std")] if isinstance(details, dict) else []
    triples = [v for v in values if isinstance(v, list) and len(v) == 3 and all(type(x) in (int, float) for x in v)]
    if len(triples) != 2 or not all(0 <= x <= 1 for x in (*triples[0], *triples[1])) or 0 in triples[1]:
        return None
    return NetworkInput(mean=tuple(triples[0]), std=tuple(triples[1]))


def detectors_network(file: Path) -> TimmArchitecture | None:
    """The network of timm in a finished detector, by ``network.json`` beside its weights; None without one."""
    described = _beside(file, "network.json")
    try:
        network = architecture_in({"architecture": str(described["architecture"])})
    except (KeyError, InputError):
        return None
    if not isinstance(network, TimmArchitecture):
        return None
    # Detectors add options that change no tensor: images of any size, and what is dropped in training.
    options = (item for item in network.options if item[0] not in ("dynamic_img_size", "drop_path_rate"))
    return TimmArchitecture(network.name, tuple(options))


def clues_of(layout: str, family: str, classifier: bool, shapes: Shapes, config: Mapping[str, Any]) -> Clues:
    """What layout, family and config say of a network; a config of another width belongs to another file."""
    nested = isinstance(config.get("vision_config"), dict)
    config = config["vision_config"] if nested else config
    eps, final_eps, activation = _DEFAULTS.get(layout, (None, None, ""))
    first, sizes = shapes.get("patch_embed.proj.weight") or shapes.get("stem.0.weight"), config.get("hidden_sizes")
    width = config.get("embed_dim") or config.get("hidden_size") or (sizes[0] if isinstance(sizes, list) else None)
    width = width or (768 if nested else None)  # CLIP's and SigLIP's own, which transformers leaves out
    if not layout.startswith("transformers") or first is None or width != first[0]:
        return Clues(layout, family, classifier, eps=eps, final_eps=final_eps, activation=activation)
    stated = _number(config, "layer_norm_eps")
    if stated is not None:
        eps, final_eps = (eps, stated) if "convnext" in layout else (stated, final_eps)
    heads = config.get("num_attention_heads", config.get("num_heads"))
    temperature, side, window = (_number(config, key) for key in ("rope_theta", "image_size", "window_size"))
    return Clues(
        layout, family, classifier, heads=tuple(heads) if isinstance(heads, list) else heads, eps=eps,
        final_eps=final_eps, activation=_ACTIVATIONS.get(str(config.get("hidden_act", "")), activation),
        side=None if side is None else int(side), window=None if window is None else int(window),
        rope_temperature=temperature,
    )  # fmt: skip


def _number(config: Mapping[str, Any], key: str) -> float | None:
    value = config.get(key)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
