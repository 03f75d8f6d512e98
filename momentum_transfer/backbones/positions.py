"""Position embeddings resampled to another image size, only where that is asked for; timm's own resampling."""

from __future__ import annotations

from math import isqrt
from typing import Any

import torch
from torch import Tensor

from momentum_transfer.backbones.build import build_backbone
from momentum_transfer.backbones.timm_layouts import Converted
from momentum_transfer.backbones.timm_network import TimmArchitecture
from momentum_transfer.core.extras import extra

#: Tensors that the image size or the window gives their shape.
POSITIONS = ("pos_embed", "relative_position_bias_table")


def resize_positions(made: Converted, architecture: TimmArchitecture) -> None:
    """Resample ``pos_embed`` of a ViT and the bias tables of a Swin to the shapes of ``architecture``, and note it.

    Bicubic with antialiasing, tokens without a place untouched (``resample_abs_pos_embed``); bias tables by their
    distances (``resize_rel_pos_bias_table``). Tensors of the right shape keep their bits.
    """
    layers = extra("timm.layers", "networks of timm")
    with torch.device("meta"):
        network = build_backbone(architecture).network
    positions, wanted = made.tensors.get("pos_embed"), getattr(network, "pos_embed", None)
    if positions is not None and wanted is not None and positions.shape != wanted.shape:
        made.tensors["pos_embed"] = _resampled(positions, network, made, layers)
    for name in [name for name in made.tensors if name.endswith(POSITIONS[1])]:
        attention = _module(network, name.rpartition(".")[0])
        table = getattr(attention, POSITIONS[1], None)
        if table is not None and table.shape != made.tensors[name].shape:
            resized = layers.resize_rel_pos_bias_table(
                made.tensors[name].float(), new_window_size=attention.window_size, new_bias_shape=tuple(table.shape)
            )
            made.notes.append(f"{name} resized from {list(made.tensors[name].shape)} to {list(table.shape)}, as asked")
            made.tensors[name] = resized.to(made.tensors[name].dtype)


def _resampled(positions: Tensor, network: Any, made: Converted, layers: Any) -> Tensor:
    grid = tuple(network.patch_embed.grid_size)
    prefix = network.pos_embed.shape[1] - grid[0] * grid[1]
    side = isqrt(max(0, positions.shape[1] - prefix))
    if side < 1 or side**2 != positions.shape[1] - prefix or positions.shape[-1] != network.pos_embed.shape[-1]:
        return positions  # no square grid of this network: the key report says so
    made.notes.append(f"position embeddings resampled from {side} x {side} to {grid[0]} x {grid[1]} patches, as asked")
    resized = layers.resample_abs_pos_embed(
        positions.float(), new_size=list(grid), old_size=[side, side], num_prefix_tokens=prefix
    )
    return resized.to(positions.dtype)


def _module(network: Any, name: str) -> Any:
    try:
        return network.get_submodule(name)
    except AttributeError:
        return None
