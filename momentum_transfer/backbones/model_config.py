"""The model config (``config.json``) that transformers and timm write beside their weights: what no tensor shows."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from momentum_transfer.backbones.build import architecture_in
from momentum_transfer.backbones.network_input import NetworkInput
from momentum_transfer.backbones.timm_inference import Clues, Shapes
from momentum_transfer.backbones.timm_models import TimmArchitecture, check_name
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.untrusted import MOST_BYTES, read_text

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

#: Options that detectors add and that change no tensor: images of any size, and what is dropped in training.
_OF_TRAINING = ("dynamic_img_size", "drop_path_rate")


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
    return TimmArchitecture(network.name, tuple(item for item in network.options if item[0] not in _OF_TRAINING))


def clues_of(layout: str, family: str, classifier: bool, shapes: Shapes, config: Mapping[str, Any]) -> Clues:
    """What layout, family and config say of a network; a config of another width belongs to another file."""
    config = config["vision_config"] if isinstance(config.get("vision_config"), dict) else config
    eps, final_eps, activation = _DEFAULTS.get(layout, (None, None, ""))
    if not layout.startswith("transformers") or not _same_width(config, shapes):
        return Clues(layout, family, classifier, eps=eps, final_eps=final_eps, activation=activation)
    stated = _number(config, "layer_norm_eps")
    if stated is not None and "convnext" in layout:
        final_eps = stated
    elif stated is not None:
        eps = stated
    heads = config.get("num_attention_heads", config.get("num_heads"))
    temperature, side, window = (_number(config, key) for key in ("rope_theta", "image_size", "window_size"))
    return Clues(
        layout, family, classifier, heads=tuple(heads) if isinstance(heads, list) else heads, eps=eps,
        final_eps=final_eps, activation=_ACTIVATIONS.get(str(config.get("hidden_act", "")), activation),
        side=None if side is None else int(side), window=None if window is None else int(window),
        rope_temperature=temperature,
    )  # fmt: skip


def _same_width(config: Mapping[str, Any], shapes: Shapes) -> bool:
    first = shapes.get("patch_embed.proj.weight") or shapes.get("stem.0.weight") or (0,)
    sizes = config.get("hidden_sizes")
    stated = config.get("embed_dim") or config.get("hidden_size") or (sizes[0] if isinstance(sizes, list) else None)
    return stated == first[0]


def _number(config: Mapping[str, Any], key: str) -> float | None:
    value = config.get(key)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
