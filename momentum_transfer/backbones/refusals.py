"""Refusals: files that hold no backbone that can be read, recognised before any family rule, each with its reason."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from momentum_transfer.backbones.safe_load.unpickler import JAX_REASON
from momentum_transfer.core.errors import InputError


class Named(Protocol):
    """A tensor of the file: ``momentum_transfer.backbones.read.Entry``."""

    @property
    def name(self) -> str: ...


_OTHER_MODELS = (
    ("torchvision's vision transformer", r"^(conv_proj|encoder\.pos_embedding)(\.|$)"),
    ("a detector",
     r"(^|\.)(roi_heads?|rpn|rpn_head|proposal_generator|bbox_head|mask_head|fpn_lateral\d|fcos_head|retina_cls"
     r"|head\.(classification|regression)_head|backbone\.fpn|fpn_convs)(\.|$)"),
    ("a segmenter", r"(^|\.)(decode_head|auxiliary_head|aux_classifier|classifier\.\d+\.convs)\."),
)  # fmt: skip


#: The backbone of a detector of Detectron2 or of this project, which can be taken out.
_OWN_DETECTOR = ("backbone.bottom_up.", "backbone.net.", "sem_seg_head.")
#: ViTDet's network, in both engines: blocks, of which no norm of timm's follows the last.
_VITDET = re.compile(r"^backbone\.net\.blocks\.0\.")
_FINAL_NORM = re.compile(r"^backbone\.net\.(fc_)?norm\.")

#: Suffix or end of a file's name -> what wrote it. Their kernels are stored in another order, under other names.
_OTHER_FORMATS = {
    ".npz": "JAX weights in numpy's archive (ViT's, MLP-Mixer's, SigLIP's releases)",
    ".msgpack": "Flax weights", ".h5": "TensorFlow or Keras weights", ".keras": "Keras weights",
    ".pb": "a TensorFlow graph", ".index": "a TensorFlow checkpoint", ".tflite": "TensorFlow Lite weights",
    ".onnx": "an ONNX program", ".gguf": "quantised weights (GGUF)", ".mlmodel": "a Core ML program",
}  # fmt: skip


def refuse_other_formats(path: Path) -> None:
    """Raise for the files of JAX, Flax, TensorFlow and of exported programs, known by their names.

    Raises:
        InputError: the file is one of them.
    """
    kind = next((what for end, what in _OTHER_FORMATS.items() if path.name.lower().endswith(end)), "")
    if re.search(r"\.data-\d+-of-\d+$", path.name):
        kind = "a TensorFlow checkpoint"
    if kind and path.is_file():
        raise InputError(
            f"expected torch weights, found {kind}: {path}; take the torch file of the same network, timm's or "
            "transformers' (model.safetensors)"
        )


def refuse_other_models(tree: Any, tables: Mapping[str, Sequence[Named]], path: Path) -> None:
    """Raise for torchvision's vision transformers, detectors, segmenters and JAX weights.

    Raises:
        InputError: the file is one of them.
    """
    for entries in tables.values():
        if any(entry.name.startswith(_OWN_DETECTOR) for entry in entries):
            continue
        for kind, pattern in _OTHER_MODELS:
            match = next((entry.name for entry in entries if re.search(pattern, entry.name)), None)
            if match is not None:
                raise InputError(
                    f"expected a backbone, found {kind} ({match}) in {path}; give the backbone's own checkpoint"
                )
    jax_name = next(_haiku_names(tree), None)
    if jax_name is not None:
        raise InputError(f"expected torch weights, found Haiku's ({jax_name}) in {path}. {JAX_REASON}")


def refuse_vitdet(tables: Mapping[str, Sequence[Named]], path: Path) -> None:
    """Raise for detectors on ViTDet's network, of which no ViT of timm can be made again.

    Raises:
        InputError: the file is one of them.
    """
    for entries in tables.values():
        names = [entry.name for entry in entries]
        if any(map(_VITDET.match, names)) and not any(map(_FINAL_NORM.match, names)):
            raise InputError(
                "expected a backbone, found ViTDet's network in a detector, without the tokens and the final norm of "
                f"the ViT that it was made of, in {path}; go on with the whole detector, transfer --weights {path.name}"
            )


def _haiku_names(node: Any, depth: int = 0) -> Iterator[str]:
    """Haiku separates module names with ``/~/`` or ``/`` and calls kernels ``w``."""
    if depth > 6:
        return
    if isinstance(node, (list, tuple)):
        for value in node:
            yield from _haiku_names(value, depth + 1)
    elif isinstance(node, Mapping):
        for key, value in node.items():
            if isinstance(key, str) and ("/~/" in key or (isinstance(value, Mapping) and "/" in key and "w" in value)):
                yield key
            else:
                yield from _haiku_names(value, depth + 1)


def refuse_values(state: Mapping[str, Tensor], path: Path) -> None:
    """Raise for weights that are not finite floating-point numbers, convolutions and linear layers of one value,
    negative variances, and counters not integer.

    Raises:
        InputError: naming the first such tensor.
    """
    for name, tensor in state.items():
        if name.endswith("num_batches_tracked"):
            if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
                raise InputError(
                    f"expected an integer counter, found {tensor.dtype} in {name} of {path}; the weights were cast "
                    "with their counters: cast only the floating-point tensors, or leave the counters out"
                )
        elif not tensor.is_floating_point():
            kind = "complex" if tensor.is_complex() else "integer"
            raise InputError(
                f"expected floating-point weights, found {kind} ones ({name} is {tensor.dtype}) in {path}; "
                "give the weights before quantisation"
            )
        elif not bool(torch.isfinite(tensor).all()):
            raise InputError(
                f"expected finite weights, found NaN or Inf in {name} of {path}; the training diverged, take an "
                "earlier checkpoint"
            )
        elif is_constant(name, tensor):
            raise InputError(
                f"expected trained weights, found {float(tensor.flatten()[0]):g} in all {tensor.numel():,} places of "
                f"{name} of {path}; nothing was copied into it: take the original file, or write it anew"
            )
        elif name.endswith("running_var") and bool((tensor < 0).any()):
            raise InputError(
                f"expected variances of at least 0, found {float(tensor.min()):.3g} in {name} of {path}; the file is "
                "damaged, take the original"
            )


def is_constant(name: str, tensor: Tensor) -> bool:
    """Whether the weights of a convolution or a linear layer are all one value.

    No network of timm begins so: scales, position biases and norms do, which are other names or vectors.
    """
    matrix = name.endswith("weight") and tensor.dim() > 1 and tensor.numel() > 1
    return matrix and bool((tensor == tensor.flatten()[0]).all())
