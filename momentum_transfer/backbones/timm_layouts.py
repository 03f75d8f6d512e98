"""Layouts of networks that timm has: one table a code base, from its names to timm's, and how a table is applied.

A rule's target may end in ``[q]``, ``[k]``, ``[v]`` or in ``[1]``, ``[2]``: parts of one tensor, stacked in that order.
What a table cannot say (a shape, a sum of two tensors) is the layout's ``finish``. The tests compare the result with
each project's own class.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

Tensors = dict[str, Tensor]


@dataclass
class Converted:
    """Tensors under timm's names.

    Attributes:
        tensors: timm name -> tensor.
        sources: timm name -> the file's inner names that it was made of.
        dropped: inner name -> why it is no part of the backbone.
        doubled: inner names whose place was taken already.
        notes: what was done to the values, in words.
    """

    tensors: Tensors = field(default_factory=dict)
    sources: dict[str, tuple[str, ...]] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    doubled: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def replace(self, olds: tuple[str, ...], news: Tensors) -> None:
        """Replace the tensors ``olds`` by ``news``, each made of all of them."""
        made_of = tuple(dict.fromkeys(name for old in olds for name in self.sources.pop(old)))
        for old in olds:
            del self.tensors[old]
        self.tensors.update(news)
        self.sources.update(dict.fromkeys(news, made_of))

    def rename(self, new: Callable[[str], str]) -> None:
        """Give every tensor the name ``new(name)``."""
        self.tensors = {new(name): tensor for name, tensor in self.tensors.items()}
        self.sources = {new(name): source for name, source in self.sources.items()}


@dataclass(frozen=True)
class Layout:
    """How one code base names a network's tensors.

    Attributes:
        evidence: each of these patterns must match a name for the layout to be recognised; none of ``against`` may.
        names: pattern of a whole name -> timm's name.
        drops: pattern -> why the tensor is no part of the backbone.
        finish: what remains to be done under timm's names.
    """

    name: str
    evidence: tuple[str, ...]
    names: Mapping[str, str] = field(default_factory=lambda: {"(.+)": r"\1"})
    drops: Mapping[str, str] = field(default_factory=dict)
    against: tuple[str, ...] = ()
    finish: Callable[[Converted], None] | None = None

    def recognises(self, names: list[str]) -> bool:
        """Whether the inner names are this layout's."""
        return all(any(re.search(p, name) for name in names) for p in self.evidence) and not any(
            re.search(p, name) for name in names for p in self.against
        )

    def convert(self, inside: Mapping[str, Tensor]) -> Converted:
        """Tensors under the names of the file to tensors under timm's; names that no rule knows are left out."""
        converted = Converted()
        pieces: dict[str, dict[str, tuple[str, Tensor]]] = {}
        for name, tensor in inside.items():
            reason = next((why for pattern, why in self.drops.items() if re.search(pattern, name)), None)
            if reason is not None:
                converted.dropped[name] = reason
                continue
            whole, piece = self._target(name)
            if piece:
                taken, _ = pieces.setdefault(whole, {}).setdefault(piece, (name, tensor))
                if taken != name:
                    converted.doubled.append(name)
            elif whole in converted.tensors:
                converted.doubled.append(name)
            elif whole:
                converted.tensors[whole], converted.sources[whole] = tensor, (name,)
        for whole, parts in pieces.items():
            _stack(converted, whole, parts)
        if self.finish is not None:
            self.finish(converted)
        return converted

    def _target(self, name: str) -> tuple[str, str]:
        """timm's name, "" for none, and which part of that tensor it is, "" for all of it. Both may hold brackets."""
        for pattern, target in self.names.items():
            match = re.fullmatch(pattern, name)
            if match:
                whole, _, piece = target.partition("[")
                return match.expand(whole), match.expand(piece)[:1]
        return "", ""


def _stack(converted: Converted, whole: str, parts: Mapping[str, tuple[str, Tensor]]) -> None:
    """Parts to one tensor; where one is missing or of another shape, they are left out and so unexpected."""
    order = [parts[piece] for piece in sorted(parts, key="12qkv".index)]
    same = len({tuple(tensor.shape) for _, tensor in order}) == 1
    if "".join(sorted(parts)) in ("12", "kqv") and same and whole not in converted.tensors:
        converted.tensors[whole] = torch.cat([tensor for _, tensor in order])
        converted.sources[whole] = tuple(name for name, _ in order)


_MASK = "mask token of the pretraining"
_HEAD = "classification or projection head"
_BUFFER = "fixed by the network's size, not learned"
_SAME = {"(.+)": r"\1"}


def _ranks(converted: Converted) -> None:
    """Tokens [C] and position embeddings [N, C] as timm's [1, 1, C] and [1, N, C]."""
    for name in ("cls_token", "pos_embed", "reg_token", "attn_pool.latent"):
        tensor = converted.tensors.get(name)
        while tensor is not None and 0 < tensor.dim() < 3:
            converted.tensors[name] = tensor = tensor[None]


def _registers(converted: Converted) -> None:
    """timm's networks with registers add no position to the class token: it is added to the token itself, once."""
    cls, positions = converted.tensors.get("cls_token"), converted.tensors.get("pos_embed")
    if "reg_token" not in converted.tensors or cls is None or positions is None or positions.dim() != 3:
        return
    if positions.shape[-1] != cls.shape[-1] or positions.shape[1] < 2:
        return
    both = {"cls_token": cls + positions[:, :1], "pos_embed": positions[:, 1:].contiguous()}
    converted.replace(("cls_token", "pos_embed"), both)
    converted.notes.append("the class token's position embedding is added to the token, as timm's network wants it")


def _dinov3_biases(converted: Converted) -> None:
    """timm keeps the biases of q and v only: k's is masked in the project's own forward, whatever it holds."""
    for name in [
        name for name in converted.tensors if name.endswith("attn.qkv.bias") and len(converted.tensors[name]) % 3 == 0
    ]:
        q, _, v = converted.tensors[name].chunk(3)
        stem = name.removesuffix("qkv.bias")
        converted.replace((name,), {f"{stem}q_bias": q, f"{stem}v_bias": v})
    converted.notes.append("biases of q and v are kept, k's is fixed at 0")


def _attention_pool(converted: Converted) -> None:
    """SigLIP's pooling head: torch's fused in_proj as timm's q and kv."""
    for kind in ("weight", "bias"):
        fused = converted.tensors.get(f"attn_pool.in_proj_{kind}")
        if fused is not None and len(fused) % 3 == 0:
            third = len(fused) // 3
            split = {f"attn_pool.q.{kind}": fused[:third], f"attn_pool.kv.{kind}": fused[third:]}
            converted.replace((f"attn_pool.in_proj_{kind}",), split)
    _ranks(converted)


def _flat_grn(converted: Converted) -> None:
    """ConvNeXt V2's response normalisation [1, 1, 1, C] as timm's [C]."""
    for name, tensor in converted.tensors.items():
        if ".grn." in name:
            converted.tensors[name] = tensor.flatten()


def _downsampling_first(converted: Converted) -> None:
    """Swin's patch merging, at the end of a stage in the releases, to the start of the next, as in timm."""
    converted.rename(lambda name: re.sub(r"^(layers\.)(\d+)(?=\.downsample\.)", _number_up, name))


def _counted_from_one(converted: Converted) -> None:
    """torchvision numbers stages, and layers in a block, from 1: layer1 to layer4, conv1 to conv3."""
    converted.rename(lambda name: re.sub(r"\b(layer|conv|bn)\.(\d+)", _number_up, name))


def _number_up(found: re.Match[str]) -> str:
    return f"{found[1]}{int(found[2]) + 1}"


def _plain_or_gated(converted: Converted) -> None:
    """transformers calls the first layer of both kinds of MLP up_proj: timm's fc1, or fc1_x beside a gate."""
    gated = any(".mlp.fc1_g." in name for name in converted.tensors)
    converted.rename(lambda name: name.replace(".mlp.up.", ".mlp.fc1_x." if gated else ".mlp.fc1."))


#: A block of transformers' ViTs: published files and version 4 in memory, then version 5 in memory.
_HF_ATTENTION = {
    r"encoder\.layer\.(\d+)\.attention\.attention\.(query|key|value)\.(\w+)": r"blocks.\1.attn.qkv.\3[\2]",
    r"encoder\.layer\.(\d+)\.attention\.output\.dense\.(\w+)": r"blocks.\1.attn.proj.\2",
    r"(?:encoder\.layer|layers)\.(\d+)\.attention\.([qkv])_proj\.(\w+)": r"blocks.\1.attn.qkv.\3[\2]",
    r"(?:encoder\.layer|layers)\.(\d+)\.attention\.o_proj\.(\w+)": r"blocks.\1.attn.proj.\2",
}
_HF_EMBEDDINGS = {
    r"embeddings\.cls_token": "cls_token",
    r"embeddings\.position_embeddings": "pos_embed",
    r"embeddings\.register_tokens": "reg_token",
    r"embeddings\.patch_embeddings\.projection\.(\w+)": r"patch_embed.proj.\1",
    r"layernorm\.(\w+)": r"norm.\1",
}
_HF_TOWER = {
    r"embeddings\.class_embedding": "cls_token",
    r"embeddings\.patch_embedding\.(\w+)": r"patch_embed.proj.\1",
    r"embeddings\.position_embedding\.weight": "pos_embed",
    r"pre_layrnorm\.(\w+)": r"norm_pre.\1",
    r"encoder\.layers\.(\d+)\.self_attn\.([qkv])_proj\.(\w+)": r"blocks.\1.attn.qkv.\3[\2]",
    r"encoder\.layers\.(\d+)\.self_attn\.out_proj\.(\w+)": r"blocks.\1.attn.proj.\2",
    r"encoder\.layers\.(\d+)\.layer_norm([12])\.(\w+)": r"blocks.\1.norm\2.\3",
    r"encoder\.layers\.(\d+)\.mlp\.fc([12])\.(\w+)": r"blocks.\1.mlp.fc\2.\3",
    r"post_layernorm\.(\w+)": r"norm.\1",
    r"head\.probe": "attn_pool.latent",
    r"head\.attention\.in_proj_(\w+)": r"attn_pool.in_proj_\1",
    r"head\.attention\.out_proj\.(\w+)": r"attn_pool.proj.\1",
    r"head\.layernorm\.(\w+)": r"attn_pool.norm.\1",
    r"head\.mlp\.fc([12])\.(\w+)": r"attn_pool.mlp.fc\1.\2",
}
_SWIN_BLOCK, _OUR_SWIN_BLOCK = r"encoder\.layers\.(\d+)\.blocks\.(\d+)\.", r"layers.\1.blocks.\2."
_HF_SWIN = {
    r"embeddings\.patch_embeddings\.projection\.(\w+)": r"patch_embed.proj.\1",
    r"embeddings\.norm\.(\w+)": r"patch_embed.norm.\1",
    rf"{_SWIN_BLOCK}attention\.output\.dense\.(\w+)": rf"{_OUR_SWIN_BLOCK}attn.proj.\3",
    rf"{_SWIN_BLOCK}attention\.o_proj\.(\w+)": rf"{_OUR_SWIN_BLOCK}attn.proj.\3",
    rf"{_SWIN_BLOCK}attention\.(?:self|relative_position_bias)\.relative_position_bias_table":
        rf"{_OUR_SWIN_BLOCK}attn.relative_position_bias_table",
    rf"{_SWIN_BLOCK}layernorm_before\.(\w+)": rf"{_OUR_SWIN_BLOCK}norm1.\3",
    rf"{_SWIN_BLOCK}layernorm_after\.(\w+)": rf"{_OUR_SWIN_BLOCK}norm2.\3",
    rf"{_SWIN_BLOCK}intermediate\.dense\.(\w+)": rf"{_OUR_SWIN_BLOCK}mlp.fc1.\3",
    rf"{_SWIN_BLOCK}output\.dense\.(\w+)": rf"{_OUR_SWIN_BLOCK}mlp.fc2.\3",
    rf"{_SWIN_BLOCK}mlp\.fc([12])\.(\w+)": rf"{_OUR_SWIN_BLOCK}mlp.fc\3.\4",
    r"encoder\.layers\.(\d+)\.downsample\.(norm|reduction)\.(\w+)": r"layers.\1.downsample.\2.\3",
    r"layernorm\.(\w+)": r"norm.\1",
}  # fmt: skip
_SWIN_SELF = rf"{_SWIN_BLOCK}attention\.self\."
_SWIN_BUFFERS = {r"\.relative_position_index$": _BUFFER, r"\.attn_mask$": _BUFFER, r"\.relative_coords_table$": _BUFFER}
_DINOV3_BLOCK = r"(?:model\.)?stages\.(\d+)\.layers\.(\d+)\."
_RESNET_BLOCK = r"encoder\.stages\.(\d+)\.layers\.(\d+)\."
_CONVNEXT_BLOCK, _OUR_CONVNEXT_BLOCK = r"encoder\.stages\.(\d+)\.layers\.(\d+)\.", r"stages.\1.blocks.\2."

LAYOUTS: tuple[Layout, ...] = (
    Layout("clip", (r"^class_embedding$", r"^transformer\.resblocks\."),
           {r"class_embedding": "cls_token", r"positional_embedding": "pos_embed",
           r"conv1\.(\w+)": r"patch_embed.proj.\1", r"ln_pre\.(\w+)": r"norm_pre.\1", r"ln_post\.(\w+)": r"norm.\1",
           r"transformer\.resblocks\.(\d+)\.ln_([12])\.(\w+)": r"blocks.\1.norm\2.\3",
           r"transformer\.resblocks\.(\d+)\.attn\.in_proj_(\w+)": r"blocks.\1.attn.qkv.\2",
           r"transformer\.resblocks\.(\d+)\.attn\.out_proj\.(\w+)": r"blocks.\1.attn.proj.\2",
           r"transformer\.resblocks\.(\d+)\.mlp\.c_fc\.(\w+)": r"blocks.\1.mlp.fc1.\2",
           r"transformer\.resblocks\.(\d+)\.mlp\.c_proj\.(\w+)": r"blocks.\1.mlp.fc2.\2",
           r"transformer\.resblocks\.(\d+)\.ls_([12])\.gamma": r"blocks.\1.ls\2.gamma"},
           {r"^proj$": "projection to the text's space"}, finish=_ranks),
    Layout("dinov3", (r"^storage_tokens$", r"^blocks\.\d"),
           {r"storage_tokens": "reg_token", r"blocks\.(\d+)\.ls([12])\.gamma": r"blocks.\1.gamma_\2",
           r"blocks\.(\d+)\.mlp\.w1\.(\w+)": r"blocks.\1.mlp.fc1_g.\2",
           r"blocks\.(\d+)\.mlp\.w2\.(\w+)": r"blocks.\1.mlp.fc1_x.\2",
           r"blocks\.(\d+)\.mlp\.w3\.(\w+)": r"blocks.\1.mlp.fc2.\2", **_SAME}, {r"^mask_token$": _MASK,
           r"(^|\.)rope_embed\.periods$": "RoPE's periods, fixed", r"\.bias_mask$": "mask of k's bias, fixed",
           r"^local_cls_norm\.": "norm of the local crops' class token"}, finish=_dinov3_biases),
    Layout("dinov2",
           (r"^(mask_token|masked_embed|register_tokens|blocks\.0\.0\.norm1\.weight|blocks\.0\.mlp\.w12\.weight)$",
           r"^blocks\.0\."), {r"register_tokens": "reg_token",
           r"blocks\.(?:\d+\.)?(\d+)\.mlp\.w12\.(\w+)": r"blocks.\1.mlp.fc1.\2",
           r"blocks\.(?:\d+\.)?(\d+)\.mlp\.w3\.(\w+)": r"blocks.\1.mlp.fc2.\2",
           r"blocks\.(?:\d+\.)?(\d+)\.([a-z].*)": r"blocks.\1.\2", **_SAME}, {r"^(mask_token|masked_embed)$": _MASK},
           against=(r"^decoder_", r"gamma_1$"), finish=_registers),
    Layout("transformers-dinov3", (r"^(model\.)?layer\.\d+\.layer_scale1\.lambda1$", r"^embeddings\."),
           {r"embeddings\.cls_token": "cls_token", r"embeddings\.register_tokens": "reg_token",
           r"embeddings\.patch_embeddings\.(\w+)": r"patch_embed.proj.\1", r"norm\.(\w+)": r"norm.\1",
           r"(?:model\.)?layer\.(\d+)\.norm([12])\.(\w+)": r"blocks.\1.norm\2.\3",
           r"(?:model\.)?layer\.(\d+)\.attention\.([qkv])_proj\.weight": r"blocks.\1.attn.qkv.weight[\2]",
           r"(?:model\.)?layer\.(\d+)\.attention\.([qv])_proj\.bias": r"blocks.\1.attn.\2_bias",
           r"(?:model\.)?layer\.(\d+)\.attention\.o_proj\.(\w+)": r"blocks.\1.attn.proj.\2",
           r"(?:model\.)?layer\.(\d+)\.layer_scale([12])\.lambda1": r"blocks.\1.gamma_\2",
           r"(?:model\.)?layer\.(\d+)\.mlp\.gate_proj\.(\w+)": r"blocks.\1.mlp.fc1_g.\2",
           r"(?:model\.)?layer\.(\d+)\.mlp\.up_proj\.(\w+)": r"blocks.\1.mlp.up.\2",
           r"(?:model\.)?layer\.(\d+)\.mlp\.down_proj\.(\w+)": r"blocks.\1.mlp.fc2.\2"},
           {r"^embeddings\.mask_token$": _MASK, r"^rope_embeddings\.": "RoPE's periods, fixed"},
           finish=_plain_or_gated),
    Layout(
        "transformers-dinov2", (r"^encoder\.layer\.\d+\.layer_scale1\.lambda1$", r"^embeddings\."),
        {**_HF_EMBEDDINGS, **_HF_ATTENTION,
         r"encoder\.layer\.(\d+)\.norm([12])\.(\w+)": r"blocks.\1.norm\2.\3",
         r"encoder\.layer\.(\d+)\.layer_scale([12])\.lambda1": r"blocks.\1.ls\2.gamma",
         r"encoder\.layer\.(\d+)\.mlp\.fc([12])\.(\w+)": r"blocks.\1.mlp.fc\2.\3",
         r"encoder\.layer\.(\d+)\.mlp\.weights_in\.(\w+)": r"blocks.\1.mlp.fc1.\2",
         r"encoder\.layer\.(\d+)\.mlp\.(?:weights_out|down_proj)\.(\w+)": r"blocks.\1.mlp.fc2.\2",
         # gate and value of version 5, in the order of the fused tensor
         r"encoder\.layer\.(\d+)\.mlp\.gate_proj\.(\w+)": r"blocks.\1.mlp.fc1.\2[1]",
         r"encoder\.layer\.(\d+)\.mlp\.up_proj\.(\w+)": r"blocks.\1.mlp.fc1.\2[2]"},
        {r"^embeddings\.mask_token$": _MASK}, finish=_registers,
    ),
    Layout("transformers-swinv2", (r"\.continuous_position_bias_mlp\.",),
           {**_HF_SWIN, rf"{_SWIN_SELF}(query|key|value)\.weight": rf"{_OUR_SWIN_BLOCK}attn.qkv.weight[\3]",
           rf"{_SWIN_SELF}query\.bias": rf"{_OUR_SWIN_BLOCK}attn.q_bias",
           rf"{_SWIN_SELF}value\.bias": rf"{_OUR_SWIN_BLOCK}attn.v_bias",
           rf"{_SWIN_SELF}logit_scale": rf"{_OUR_SWIN_BLOCK}attn.logit_scale",
           rf"{_SWIN_SELF}continuous_position_bias_mlp\.(.+)": rf"{_OUR_SWIN_BLOCK}attn.cpb_mlp.\3"}, _SWIN_BUFFERS,
           finish=_downsampling_first),
    Layout("transformers-swin", (r"^encoder\.layers\.0\.blocks\.0\.attention\.", r"^embeddings\."),
           {**_HF_SWIN, rf"{_SWIN_SELF}(query|key|value)\.(\w+)": rf"{_OUR_SWIN_BLOCK}attn.qkv.\4[\3]",
           rf"{_SWIN_BLOCK}attention\.([qkv])_proj\.(\w+)": rf"{_OUR_SWIN_BLOCK}attn.qkv.\4[\3]"}, _SWIN_BUFFERS,
           against=(r"\.continuous_position_bias_mlp\.",), finish=_downsampling_first),
    Layout("transformers-vit", (r"\.layernorm_before\.", r"^embeddings\.patch_embeddings\.projection\."),
           {**_HF_EMBEDDINGS, **_HF_ATTENTION,
           r"(?:encoder\.layer|layers)\.(\d+)\.layernorm_before\.(\w+)": r"blocks.\1.norm1.\2",
           r"(?:encoder\.layer|layers)\.(\d+)\.layernorm_after\.(\w+)": r"blocks.\1.norm2.\2",
           r"encoder\.layer\.(\d+)\.intermediate\.dense\.(\w+)": r"blocks.\1.mlp.fc1.\2",
           r"encoder\.layer\.(\d+)\.output\.dense\.(\w+)": r"blocks.\1.mlp.fc2.\2",
           r"layers\.(\d+)\.mlp\.fc([12])\.(\w+)": r"blocks.\1.mlp.fc\2.\3"},
           {r"^pooler\.": "pooler, a dense layer after the class token", r"^embeddings\.mask_token$": _MASK},
           against=(r"\.blocks\.",)),
    Layout("transformers-clip", (r"^embeddings\.class_embedding$", r"^encoder\.layers\.\d+\.self_attn\."), _HF_TOWER,
           {r"^embeddings\.position_ids$": _BUFFER}, finish=_ranks),
    Layout("transformers-siglip", (r"^embeddings\.patch_embedding\.", r"^encoder\.layers\.\d+\.self_attn\."), _HF_TOWER,
           {r"^embeddings\.position_ids$": _BUFFER}, against=(r"^embeddings\.class_embedding$",),
           finish=_attention_pool),
    Layout("transformers-convnext", (r"^embeddings\.patch_embeddings\.weight$",
           r"^encoder\.stages\.\d+\.layers\.\d+\.dwconv\."), {r"embeddings\.patch_embeddings\.(\w+)": r"stem.0.\1",
           r"embeddings\.layernorm\.(\w+)": r"stem.1.\1",
           r"encoder\.stages\.(\d+)\.downsampling_layer\.(\d)\.(\w+)": r"stages.\1.downsample.\2.\3",
           rf"{_CONVNEXT_BLOCK}layer_scale_parameter": rf"{_OUR_CONVNEXT_BLOCK}gamma",
           rf"{_CONVNEXT_BLOCK}dwconv\.(\w+)": rf"{_OUR_CONVNEXT_BLOCK}conv_dw.\3",
           rf"{_CONVNEXT_BLOCK}layernorm\.(\w+)": rf"{_OUR_CONVNEXT_BLOCK}norm.\3",
           rf"{_CONVNEXT_BLOCK}pwconv([12])\.(\w+)": rf"{_OUR_CONVNEXT_BLOCK}mlp.fc\3.\4",
           rf"{_CONVNEXT_BLOCK}grn\.(\w+)": rf"{_OUR_CONVNEXT_BLOCK}mlp.grn.\3", r"layernorm\.(\w+)": r"head.norm.\1"},
           finish=_flat_grn),
    # its stem is the first of the downsamplings
    Layout("transformers-dinov3-convnext", (r"\.depthwise_conv\.", r"\.pointwise_conv1\."),
           {r"(?:model\.)?stages\.0\.downsample_layers\.(\d)\.(\w+)": r"stem.\1.\2",
           r"layer_norm\.(\w+)": r"head.norm.\1",
           r"(?:model\.)?stages\.(\d+)\.downsample_layers\.(\d)\.(\w+)": r"stages.\1.downsample.\2.\3",
           rf"{_DINOV3_BLOCK}gamma": rf"{_OUR_CONVNEXT_BLOCK}gamma",
           rf"{_DINOV3_BLOCK}depthwise_conv\.(\w+)": rf"{_OUR_CONVNEXT_BLOCK}conv_dw.\3",
           rf"{_DINOV3_BLOCK}layer_norm\.(\w+)": rf"{_OUR_CONVNEXT_BLOCK}norm.\3",
           rf"{_DINOV3_BLOCK}pointwise_conv([12])\.(\w+)": rf"{_OUR_CONVNEXT_BLOCK}mlp.fc\3.\4"}),
    Layout("convnext-release", (r"^downsample_layers\.0\.0\.weight$", r"^stages\.0\.0\.dwconv\."),
           {r"downsample_layers\.0\.(\d)\.(\w+)": r"stem.\1.\2",
           r"downsample_layers\.(\d+)\.(\d)\.(\w+)": r"stages.\1.downsample.\2.\3",
           r"stages\.(\d+)\.(\d+)\.dwconv\.(\w+)": r"stages.\1.blocks.\2.conv_dw.\3",
           r"stages\.(\d+)\.(\d+)\.norm\.(\w+)": r"stages.\1.blocks.\2.norm.\3",
           r"stages\.(\d+)\.(\d+)\.pwconv([12])\.(\w+)": r"stages.\1.blocks.\2.mlp.fc\3.\4",
           r"stages\.(\d+)\.(\d+)\.gamma": r"stages.\1.blocks.\2.gamma",
           r"stages\.(\d+)\.(\d+)\.grn\.gamma": r"stages.\1.blocks.\2.mlp.grn.weight",
           r"stages\.(\d+)\.(\d+)\.grn\.beta": r"stages.\1.blocks.\2.mlp.grn.bias", r"norm\.(\w+)": r"head.norm.\1"},
           {r"^head\.": _HEAD, r"^norms\.": "norms of the single stages, of which the last one's is norm"},
           finish=_flat_grn),
    Layout("swin-release", (r"^layers\.0\.downsample\.reduction\.weight$",
           r"^layers\.0\.blocks\.0\.attn\.qkv\.weight$"), _SAME, {**_SWIN_BUFFERS, r"^head\.": _HEAD,
           r"^(mask_token|decoder\.)": _MASK}, finish=_downsampling_first),
    Layout("transformers-resnet", (r"^embedder\.embedder\.convolution\.weight$",),
           {r"embedder\.embedder\.convolution\.(\w+)": r"conv1.\1",
           r"embedder\.embedder\.normalization\.(\w+)": r"bn1.\1",
           rf"{_RESNET_BLOCK}layer\.([012])\.convolution\.(\w+)": r"layer.\1.\2.conv.\3.\4",
           rf"{_RESNET_BLOCK}layer\.([012])\.normalization\.(\w+)": r"layer.\1.\2.bn.\3.\4",
           rf"{_RESNET_BLOCK}shortcut\.convolution\.(\w+)": r"layer.\1.\2.downsample.0.\3",
           rf"{_RESNET_BLOCK}shortcut\.normalization\.(\w+)": r"layer.\1.\2.downsample.1.\3"},
           finish=_counted_from_one),
    Layout("timm", (), _SAME, _SWIN_BUFFERS),
)  # fmt: skip


def layout_of(names: Iterable[str]) -> Layout:
    """The layout that the inner names are in; timm's own where no other is recognised."""
    held = list(names)
    return next(layout for layout in LAYOUTS if layout.recognises(held))


def is_openai_order(names: list[str]) -> bool:
    """Whether CLIP's blocks hold their attention before their first norm, as OpenAI's class has it; open_clip's do not.

    OpenAI's networks have QuickGELU, and nothing else in a file says so; sorted names, as in safetensors, say nothing.
    """
    block = "transformer.resblocks.0."
    order = [names.index(name) for name in (f"{block}attn.in_proj_weight", f"{block}ln_1.weight", "ln_post.weight")
             if name in names]  # fmt: skip
    return len(order) == 3 and order == sorted(order) and "class_embedding" in names
