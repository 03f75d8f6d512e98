"""ViTDet's network (arXiv 2203.16527) from a plain ViT of timm: whether it is the same function, and its tensors.

Detectron2's ViT has absolute position embeddings and blocks of norm, attention, norm, MLP; no CLS token, registers,
final norm, LayerScale, rotary positions or gates. LayerScale folds into the layer before it without a difference:
W' = diag(γ) W, b' = γ ⊙ b in ``attn.proj`` and ``mlp.fc2``. Prefix tokens take part in attention: a network without
them is another function, made only where it is asked for by name.

Also timm's resampling of position embeddings to another image size, only where that is asked for.
"""

from collections.abc import Iterator, Mapping
from math import isqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from momentum_transfer.backbones.build import build_backbone
from momentum_transfer.backbones.timm_layouts import Converted
from momentum_transfer.backbones.timm_network import TimmArchitecture, TimmBackbone, build_timm
from momentum_transfer.core.errors import InputError, extra

#: Parts of a block and of its attention and MLP that there may be; more is another function.
_BLOCK = {"norm1", "attn", "ls1", "drop_path1", "norm2", "mlp", "ls2", "drop_path2"}
_ATTENTION = {"qkv", "q_norm", "k_norm", "attn_drop", "norm", "proj", "proj_drop"}
_MLP = {"fc1", "act", "drop1", "norm", "fc2", "drop2"}


class VitShape(NamedTuple):
    """The parts of a plain ViT.

    Attributes:
        width: channels. depth: blocks. heads: of the attention. hidden: channels inside the MLP.
        patch, grid: pixels along a patch; patches along a side of the position embeddings.
        qkv_bias: whether queries, keys and values have one. eps: of the norms.
        prefix: tokens before the patches (CLS, registers).
    """

    width: int
    depth: int
    heads: int
    hidden: int
    patch: int
    grid: int
    qkv_bias: bool
    eps: float
    prefix: int


def describe(network: TimmBackbone) -> VitShape:
    """The shape of a plain ViT; InputError if ViTDet's network would compute something else (RoPE, gates, …)."""
    reason = next(_differences(network), None)
    if reason:
        raise InputError(
            f"expected a ViT that Detectron2's own can compute, found {reason} in {network.architecture}; use "
            ".safetensors and MODEL.VIT.FORM network, which runs timm's network in both engines"
        )
    inner = network.network
    block = inner.blocks[0]
    side = round(_positions(inner) ** 0.5)
    return VitShape(
        inner.embed_dim, len(inner.blocks), block.attn.num_heads, block.mlp.fc1.out_features, network.patch_size, side,
        block.attn.qkv.bias is not None, float(block.norm1.eps), int(inner.num_prefix_tokens),
    )  # fmt: skip


def _positions(inner: Any) -> int:
    """Position embeddings of patches alone."""
    beside = 0 if getattr(inner, "no_embed_class", False) else inner.num_prefix_tokens
    return int(inner.pos_embed.shape[1]) - int(beside)


def _differences(network: TimmBackbone) -> Iterator[str]:
    """Everything in the network that Detectron2's ViT lacks, except prefix tokens, LayerScale and the final norm."""
    inner = network.network
    if getattr(inner, "rope", None) is not None:
        yield "rotary position embeddings (RoPE)"
    if not network.plain or not hasattr(inner, "blocks") or not hasattr(inner, "patch_embed"):
        yield "no plain ViT"
        return
    if getattr(inner, "pos_embed", None) is None:
        yield "no absolute position embeddings"
        return
    if round(_positions(inner) ** 0.5) ** 2 != _positions(inner):
        yield "position embeddings that are no square"
    if not _identity(getattr(inner, "norm_pre", None)):
        yield "a norm before the blocks"
    if not isinstance(getattr(inner.patch_embed, "proj", None), nn.Conv2d):
        yield "patches that are not one convolution"
    elif inner.patch_embed.proj.bias is None:
        yield "a patch projection without bias"
    for block in inner.blocks:
        yield from _block_differences(block)


def _block_differences(block: Any) -> Iterator[str]:
    parts = {name for name, child in block.named_children() if not _identity(child)}
    attention, mlp = getattr(block, "attn", None), getattr(block, "mlp", None)
    if attention is None or mlp is None or parts - _BLOCK:
        yield f"blocks of other parts ({', '.join(sorted(parts - _BLOCK)) or type(block).__name__})"
        return
    kind = type(mlp).__name__
    if {name for name, _ in mlp.named_children()} - _MLP or kind != "Mlp" or not _identity(getattr(mlp, "norm", None)):
        yield f"another MLP than two layers ({kind})"
        return
    if not isinstance(mlp.act, nn.GELU) or getattr(mlp.act, "approximate", "none") != "none":
        yield f"another activation than GELU ({type(mlp.act).__name__})"
    further = {name for name, child in attention.named_children() if not _identity(child)} - _ATTENTION
    normed = [part for part in ("q_norm", "k_norm", "norm") if not _identity(getattr(attention, part, None))]
    if further or not isinstance(getattr(attention, "qkv", None), nn.Linear) or normed:
        yield f"another attention ({', '.join([*sorted(further), *normed]) or type(attention).__name__})"
    if any(getattr(attention, part, None) is not None for part in ("gate", "relative_position_bias_table")):
        yield "an attention with gates or position biases"
    if not isinstance(block.norm1, nn.LayerNorm):
        yield f"another norm than LayerNorm ({type(block.norm1).__name__})"


def _identity(module: nn.Module | None) -> bool:
    return module is None or isinstance(module, nn.Identity)


def to_vitdet(state: Mapping[str, Tensor], shape: VitShape, patch: int = 16) -> dict[str, Tensor]:
    """A ViT's tensors for ViTDet's network: LayerScale folded, no prefix tokens, no final norm, patches resampled.

    Returns:
        ``patch_embed.proj.…``, ``pos_embed`` [1, grid², C] and ``blocks.i.{norm1, attn.{qkv,proj}, norm2,
        mlp.{fc1,fc2}}.…``: the names of timm and Detectron2.
    """
    tensors = {"pos_embed": state["pos_embed"][:, -shape.grid * shape.grid :]}
    for name, tensor in state.items():
        if name.startswith("patch_embed.proj."):
            tensors[name] = resample_patches(tensor, patch) if tensor.dim() == 4 else tensor
        elif name.startswith("blocks.") and ".ls1." not in name and ".ls2." not in name:
            tensors[name] = _scaled(name, tensor, state)
    return tensors


def _scaled(name: str, tensor: Tensor, state: Mapping[str, Tensor]) -> Tensor:
    for inside, scale in ((".attn.proj.", ".ls1.gamma"), (".mlp.fc2.", ".ls2.gamma")):
        block, found, _ = name.partition(inside)
        if found and (gamma := state.get(block + scale)) is not None:
            return gamma.view(-1, *[1] * (tensor.dim() - 1)) * tensor
    return tensor


def resample_patches(weight: Tensor, patch: int) -> Tensor:
    """A patch projection [C, 3, p, p] for patches of another size, by the pseudo-inverse of their resizing.

    FlexiViT (arXiv 2212.08013, section 3.4): the projection of a resized patch is then that of the patch itself.
    """
    if tuple(weight.shape[-2:]) == (patch, patch):
        return weight
    from timm.layers.patch_embed import resample_patch_embed

    resampled: Tensor = resample_patch_embed(weight, [patch, patch])
    return resampled.to(weight.dtype)


def for_detectron2(
    state: Mapping[str, Tensor], architecture: TimmArchitecture, without_prefix: bool = False
) -> dict[str, Tensor]:
    """A plain ViT's tensors as Detectron2's ViT names them under its simple feature pyramid, ``backbone.net.…``.

    The function is that of the last block: Detectron2's ViT has no final norm. Other patches than 16 px are resampled.
    ``without_prefix``: CLS tokens and registers may go, although the result is another function.

    Raises:
        InputError: the function would differ, and why.
    """
    with torch.device("meta"):
        network = build_timm(architecture)
    shape = describe(network)
    if shape.prefix and not without_prefix:
        advice = "write .safetensors, or declare the other function by --without-prefix"
        found = f"{shape.prefix} in {architecture}, which take part in attention; {advice}"
        raise InputError(f"expected a ViT without prefix tokens for Detectron2's .pkl, found {found}")
    return {f"backbone.net.{name}": tensor for name, tensor in to_vitdet(state, shape).items()}


#: Tensors that the image size or the window gives their shape.
POSITIONS = ("pos_embed", "relative_position_bias_table")


def resize_positions(converted: Converted, architecture: TimmArchitecture) -> None:
    """Resample ``pos_embed`` of a ViT and the bias tables of a Swin to the shapes of ``architecture`` as timm does, and
    note it. Tensors of the right shape keep their bits."""
    layers = extra("timm.layers", "networks of timm")
    with torch.device("meta"):
        network = build_backbone(architecture).network
    positions, expected = converted.tensors.get("pos_embed"), getattr(network, "pos_embed", None)
    if positions is not None and expected is not None and positions.shape != expected.shape:
        converted.tensors["pos_embed"] = _resampled(positions, network, converted, layers)
    tables = {name: table for name, table in network.named_parameters() if name.endswith(POSITIONS[1])}
    for name, table in tables.items():
        held = converted.tensors.get(name)
        if held is not None and table.shape != held.shape:
            window = network.get_submodule(name.rpartition(".")[0]).window_size
            resized = layers.resize_rel_pos_bias_table(held.float(), window, tuple(table.shape))
            converted.notes.append(f"{name} resized from {list(held.shape)} to {list(table.shape)}, as asked")
            converted.tensors[name] = resized.to(held.dtype)


def _resampled(positions: Tensor, network: Any, converted: Converted, layers: Any) -> Tensor:
    grid = tuple(network.patch_embed.grid_size)
    prefix = network.pos_embed.shape[1] - grid[0] * grid[1]
    side = isqrt(max(0, positions.shape[1] - prefix))
    if side < 1 or side**2 != positions.shape[1] - prefix or positions.shape[-1] != network.pos_embed.shape[-1]:
        return positions  # no square grid of this network: the key report says so
    converted.notes.append(
        f"position embeddings resampled from {side} x {side} to {grid[0]} x {grid[1]} patches, as asked"
    )
    resized = layers.resample_abs_pos_embed(
        positions.float(), new_size=list(grid), old_size=[side, side], num_prefix_tokens=prefix
    )
    return resized.to(positions.dtype)
