"""The timm network whose tensors a file holds, from timm names and shapes: its name, size and options.

Rules, where shapes leave a choice:
- several names have these shapes: that of the file's own project (DINOv2 for its layout, …), within it the one that
  agrees in most of width, MLP, patch, depth and image size, in this order; what differs is spelled out as an option;
- a plain ViT with a classifier is timm's own name of it; without one, or out of a self-supervised project, the name
  tagged with DINO's or MAE's weights: the same network, and ImageNet's mean and standard deviation;
- the number of heads, which no shape shows: the model config beside the file, else that of the project's networks of
  that width (MoCo v3's ViT-S has 12: its paper, section 5), else it is asked for;
- the image size of a network without position embeddings: that of its name; of Swin: the last stage is one window.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import isqrt
from typing import Any

from momentum_transfer.backbones.timm_models import Named, TimmArchitecture, named
from momentum_transfer.core.errors import InputError

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Clues:
    """What is known of a network beside its tensors' shapes.

    Attributes:
        classifier: whether the file has one.
        heads: of a plain network, or of each stage.
        eps, final_eps: of all LayerNorms, of the last one; None if timm's own of the name is right.
        activation: timm's name of it; "" where timm's own of the name is right.
        side: of the images in pixels.
        window, scaled_window: of Swin; whether a Swin V2 was fine-tuned with larger windows than it was trained with.
        rope_temperature: RoPE's base.
    """

    layout: str
    family: str = ""
    classifier: bool = False
    heads: int | tuple[int, ...] | None = None
    eps: float | None = None
    final_eps: float | None = None
    activation: str = ""
    side: int | None = None
    window: int | None = None
    scaled_window: bool = False
    rope_temperature: float | None = None


class UnknownNetwork(InputError):
    """The tensor names match no architecture that can be inferred."""


def infer_timm(shapes: Shapes, clues: Clues) -> TimmArchitecture:
    """The timm network of tensors, timm name -> shape; InputError asks for ``--arch`` where they leave it open."""
    if "stages.0.blocks.0.conv_dw.weight" in shapes and "head.norm.weight" in shapes and "stem.1.weight" in shapes:
        return _convnext(shapes, clues)
    if "layers.0.blocks.0.attn.logit_scale" in shapes:
        return _swin_v2(shapes, clues)
    if "layers.0.blocks.0.attn.relative_position_bias_table" in shapes:
        return _swin(shapes, clues)
    if "blocks.0.attn.qkv.weight" in shapes and len(shapes.get("patch_embed.proj.weight", ())) == 4:
        return _dinov3(shapes, clues) if "blocks.0.gamma_1" in shapes else _vit(shapes, clues)
    raise UnknownNetwork(
        f"cannot infer the architecture from the tensors {', '.join(list(shapes)[:2])}, … (known: ResNet, ViT, Swin, "
        "ConvNeXt); pass --arch timm:NAME"
    )


def _depth(shapes: Shapes, prefix: str = "blocks") -> int:
    return len({name.split(".")[prefix.count(".") + 1] for name in shapes if name.startswith(f"{prefix}.")})


#: Heads of ViT-Ti, -S, -B and -L in every project but MoCo v3.
_USUAL_HEADS = {192: 3, 384: 6, 768: 12, 1024: 16}


def _heads(width: int, rows: tuple[Named, ...], clues: Clues, text: str) -> int:
    if isinstance(clues.heads, int):
        return clues.heads
    if clues.family == "mocov3" and width == 384:
        return 12  # "12 heads" of the paper's ViT-S, not timm's 6
    known = next((row.heads for row in rows if row.width == width), _USUAL_HEADS.get(width, 0))
    if known:
        return known
    raise InputError(
        f"expected to know the heads of a ViT of width {width}, found that no tensor shows them; name the network, "
        f"--arch '{text}{'&' if '?' in text else '?'}num_heads=N'"
    )


def _vit(shapes: Shapes, clues: Clues) -> TimmArchitecture:
    width, _, patch, _ = shapes["patch_embed.proj.weight"]
    classes, registers = "cls_token" in shapes, shapes.get("reg_token", (1, 0))[1]
    gated = shapes["blocks.0.mlp.fc1.weight"][0] == 2 * shapes["blocks.0.mlp.fc2.weight"][1]
    rows, fixed = _project(shapes, clues, classes, registers, gated)
    options: dict[str, Any] = {}
    positions = shapes.get("pos_embed", (1, 0, 0))[1]
    prefix = 0 if fixed.get("no_embed_class") else int(classes) + ("dist_token" in shapes) + registers
    side = isqrt(max(0, positions - prefix))
    if side**2 != positions - prefix and isqrt(positions) ** 2 == positions:
        options["no_embed_class"] = True
        prefix, side = 0, isqrt(positions)
    if side**2 != positions - prefix or side == 0:
        found = f"{positions} of a ViT with {prefix} more tokens; name the network, --arch timm:NAME"
        raise InputError(f"expected position embeddings of a square grid, found {found}")
    if "blocks.0.ls1.gamma" in shapes and not fixed.get("layer_scale"):
        options["init_values"] = 1e-05
    if registers and registers != fixed.get("registers", 0):
        options["reg_tokens"] = registers
    if "blocks.0.attn.q_norm.weight" in shapes:
        options["qk_norm"] = True
    if "blocks.0.attn.qkv.bias" not in shapes:
        options["qkv_bias"] = False
    if "norm_pre.weight" in shapes and not fixed.get("pre_norm"):
        options["pre_norm"] = True
    if "fc_norm.weight" in shapes:
        options["global_pool"] = "avg"
    ratio = shapes["blocks.0.mlp.fc1.weight"][0] / width
    return _named(rows, Named("", width, _depth(shapes), 0, patch, side * patch, ratio), clues, options)


def _project(
    shapes: Shapes, clues: Clues, classes: bool, registers: int, gated: bool
) -> tuple[tuple[Named, ...], dict[str, Any]]:
    """The table of names, and what its networks fix beside widths: LayerScale, norms, tokens."""
    layer_scale = "blocks.0.ls1.gamma" in shapes
    if "attn_pool.latent" in shapes:
        return named("siglip"), {}
    if "norm_pre.weight" in shapes and classes:
        kind = "clip quick_gelu" if clues.activation == "quick_gelu" else "clip"
        return named(kind), {"pre_norm": True}
    patch_of_dinov2 = shapes["patch_embed.proj.weight"][-1] == 14 and classes
    if layer_scale and (gated or registers or clues.layout.endswith("dinov2") or patch_of_dinov2):
        rows = named("dinov2 gated" if gated else "dinov2")
        if registers:
            rows = tuple(row._replace(name=row.name.replace("_dinov2", "_reg4_dinov2")) for row in rows)
        return rows, {"layer_scale": True, "no_embed_class": bool(registers), "registers": 4}
    if not classes:
        return named("no class token"), {}
    if "dist_token" in shapes:
        return named("distilled"), {}
    if layer_scale and shapes["pos_embed"][1] == isqrt(shapes["pos_embed"][1]) ** 2:
        return named("deit3"), {"layer_scale": True, "no_embed_class": True}
    own = (clues.classifier and clues.family in ("named", "timm")) or clues.layout == "transformers-vit"
    return named("vit") if own else named("self-supervised") + named("vit"), {}


def _dinov3(shapes: Shapes, clues: Clues) -> TimmArchitecture:
    """DINOv3 in timm's Eva class; timm's own names pool the patches, the project and transformers the class token."""
    if "reg_token" not in shapes or "pos_embed" in shapes:
        raise InputError("expected DINOv3's names, found those of another EVA of timm's; name it, --arch timm:NAME")
    width, _, patch, _ = shapes["patch_embed.proj.weight"]
    gated = "blocks.0.mlp.fc1_g.weight" in shapes
    rows = named("dinov3 gated" if gated else "dinov3")
    if "blocks.0.attn.q_bias" in shapes:
        rows = tuple(row._replace(name=f"{row.name}_qkvb") for row in rows if "7b" not in row.name)
    if gated and clues.activation not in ("", "silu"):
        raise InputError(f"expected SwiGLU (silu), found {clues.activation} in the model config; timm has none")
    options: dict[str, Any] = {}
    if (registers := shapes["reg_token"][1]) != 4:
        options["num_reg_tokens"] = registers
    if clues.rope_temperature not in (None, 100.0):
        options["rope_temperature"] = clues.rope_temperature
    if clues.layout != "timm":
        options["global_pool"] = "token"
    first = "blocks.0.mlp.fc1_x.weight" if gated else "blocks.0.mlp.fc1.weight"
    ratio = shapes[first][0] / width
    return _named(rows, Named("", width, _depth(shapes), 0, patch, None, ratio), clues, options)


def _named(rows: tuple[Named, ...], held: Named, clues: Clues, options: dict[str, Any]) -> TimmArchitecture:
    """The row that agrees in most measures with what the file holds, width first, with the others spelled out."""
    width, side, hidden = held.width, held.side, round(held.width * held.ratio)

    row = max(rows, key=lambda row: (row.width == width, int(row.width * row.ratio) == hidden, row.patch == held.patch,
                                     row.depth == held.depth, row.side == side))  # fmt: skip
    measures = (("embed_dim", width, row.width), ("depth", held.depth, row.depth),
                ("patch_size", held.patch, row.patch))  # fmt: skip
    spelled: dict[str, Any] = {key: value for key, value, own in measures if value != own}
    if hidden != int(width * row.ratio):
        spelled["mlp_ratio"] = next(r for r in (held.ratio, (hidden + 0.5) / width) if int(width * r) == hidden)
    if side is not None and side != row.side:
        spelled["img_size"] = side
    text = str(TimmArchitecture(row.name, tuple({**spelled, **options}.items())))
    heads = _heads(width, rows, clues, text)
    if heads != row.heads:
        spelled["num_heads"] = heads
    return TimmArchitecture(row.name, tuple({**spelled, **options, **_values(row.name, clues)}.items()))


def _values(name: str, clues: Clues) -> dict[str, Any]:
    """Options that no tensor shows: what the layout's own class computes where timm's of that name differs."""
    options: dict[str, Any] = {}
    own = 1e-5 if re.search(r"clip|dinov3|swin", name) else 1e-6
    if clues.eps is not None and clues.eps != own:
        options["norm_eps"] = clues.eps
    if clues.final_eps is not None and clues.final_eps != (clues.eps or own):
        options["final_norm_eps"] = clues.final_eps
    usual = "quick_gelu" if "quickgelu" in name else "silu" if "giant_patch14_dinov2" in name else "gelu"
    gated = re.search(r"_plus_|_7b_|giant_patch14(_reg4)?_dinov2", name)
    if clues.activation and clues.activation != usual and not gated:
        options["act_layer"] = clues.activation
    return options


_CONVNEXT: Mapping[tuple[tuple[int, ...], int], str] = {
    ((2, 2, 6, 2), 40): "atto", ((2, 2, 6, 2), 48): "femto", ((2, 2, 6, 2), 64): "pico", ((2, 2, 8, 2), 80): "nano",
    ((3, 3, 9, 3), 96): "tiny", ((3, 3, 27, 3), 96): "small", ((3, 3, 27, 3), 128): "base",
    ((3, 3, 27, 3), 192): "large", ((3, 3, 27, 3), 256): "xlarge", ((3, 4, 30, 3), 384): "xxlarge",
    ((3, 3, 27, 3), 352): "huge",
}  # fmt: skip
#: ConvNeXts of timm whose MLPs are 1x1 convolutions.
_CONVOLUTIONAL_MLP = ("atto", "femto", "pico", "nano")


def _convnext(shapes: Shapes, clues: Clues) -> TimmArchitecture:
    stages = _depth(shapes, "stages")
    depths = tuple(_depth(shapes, f"stages.{stage}.blocks") for stage in range(stages))
    dims = tuple(shapes[f"stages.{stage}.blocks.0.conv_dw.weight"][0] for stage in range(stages))
    grn = "stages.0.blocks.0.mlp.grn.weight" in shapes
    second = grn or "stages.0.blocks.0.gamma" not in shapes  # timm leaves LayerScale out under V2's names alone
    options: dict[str, Any] = {}
    size = _CONVNEXT.get((depths, dims[0]), "") if dims == tuple(dims[0] * 2**stage for stage in range(stages)) else ""
    if size in (("xlarge", "xxlarge") if second else ("huge",)):
        size = ""
    if not size:
        size, options = "tiny", {"depths": depths, "dims": dims}
    name = f"convnext{'v2' if second else ''}_{size}"
    if second and not grn:
        options["use_grn"] = False
    if len(shapes["stages.0.blocks.0.mlp.fc1.weight"]) == 4 and size not in _CONVOLUTIONAL_MLP:
        options["conv_mlp"] = True
    if "head.pre_logits.fc.weight" in shapes:
        options["head_hidden_size"] = shapes["head.pre_logits.fc.weight"][0]
    if shapes["stem.0.weight"][-1] != 4:
        options["patch_size"] = shapes["stem.0.weight"][-1]
    return TimmArchitecture(name, tuple({**options, **_values(name, clues)}.items()))


_SWIN_NAMES: Mapping[tuple[tuple[int, ...], int], str] = {
    ((2, 2, 6, 2), 96): "tiny", ((2, 2, 18, 2), 96): "small", ((2, 2, 18, 2), 128): "base",
    ((2, 2, 18, 2), 192): "large",
}  # fmt: skip


def _swin_measures(shapes: Shapes, head_of: str, axis: int) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
    stages = _depth(shapes, "layers")
    depths = tuple(_depth(shapes, f"layers.{stage}.blocks") for stage in range(stages))
    heads = tuple(shapes[f"layers.{stage}.blocks.0.attn.{head_of}"][axis] for stage in range(stages))
    return depths, shapes["patch_embed.proj.weight"][0], heads


def _swin(shapes: Shapes, clues: Clues) -> TimmArchitecture:
    depths, width, heads = _swin_measures(shapes, "relative_position_bias_table", 1)
    tables = [shapes[f"layers.{stage}.blocks.0.attn.relative_position_bias_table"][0] for stage in range(len(depths))]
    window, patch = (isqrt(max(tables)) + 1) // 2, shapes["patch_embed.proj.weight"][-1]
    size = _SWIN_NAMES.get((depths, width), "")
    usual = tuple(width // 32 * 2**stage for stage in range(len(depths)))
    side = clues.side or patch * 2 ** (len(depths) - 1) * ((isqrt(tables[-1]) + 1) // 2)
    if size and heads == usual and patch == 4 and window in (7, 12) and (window == 7 or size in ("base", "large")):
        name = f"swin_{size}_patch4_window{window}_{32 * window}"
        options: dict[str, Any] = {}
    else:
        name = "swin_tiny_patch4_window7_224"
        options = {"embed_dim": width, "depths": depths, "num_heads": heads, "window_size": window, "patch_size": patch}
    if side != (384 if name.endswith("384") else 224):
        options["img_size"] = side
    return TimmArchitecture(name, tuple({**options, **_values(name, clues)}.items()))


def _swin_v2(shapes: Shapes, clues: Clues) -> TimmArchitecture:
    """Swin V2's tensors do not depend on the window: it comes from the release's buffers or a model config."""
    depths, width, heads = _swin_measures(shapes, "logit_scale", 0)
    if clues.scaled_window:
        found = "one fine-tuned with a larger one; name it, such as --arch timm:swinv2_base_window12to16_192to256"
        raise InputError(f"expected a Swin V2 with the window of its training, found {found}")
    if clues.window is None:
        found = "that no tensor of this file shows it; name it, such as --arch timm:swinv2_tiny_window8_256"
        raise InputError(f"expected to know the window of a Swin V2, found {found}")
    size, window = _SWIN_NAMES.get((depths, width), ""), clues.window
    side = clues.side or shapes["patch_embed.proj.weight"][-1] * 2 ** (len(depths) - 1) * window
    name = f"swinv2_{size}_window{window}_{side}"
    options: dict[str, Any] = {}
    large = size in ("base", "large") and (window, side) == (12, 192)
    if not large and not (size not in ("", "large") and (window, side) in ((8, 256), (16, 256))):
        name = "swinv2_tiny_window8_256"
        options = {"embed_dim": width, "depths": depths, "num_heads": heads, "window_size": window, "img_size": side,
                   "patch_size": shapes["patch_embed.proj.weight"][-1]}  # fmt: skip
    return TimmArchitecture(name, tuple({**options, **_values(name, clues)}.items()))
