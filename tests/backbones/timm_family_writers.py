"""Tiny checkpoints of timm's networks as other projects name and nest them, each made of a live network.

The names are written out here by replacement, independently of the product's tables.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import timm
import torch
from torch import Tensor, nn

State = dict[str, Tensor]


@dataclass
class TimmSample:
    """A checkpoint, its networks, and what reading it must say."""

    tree: Any
    networks: dict[str, nn.Module]
    family: str
    architecture: str
    dropped: tuple[str, ...] = ()
    suffix: str = ".pth"
    default: str = field(default="backbone")


def net(name: str, seed: int = 0, **options: Any) -> nn.Module:
    """A network of timm's whose tensors all differ from their initial values; float tensors only move a little."""
    made = timm.create_model(name, **options)
    return shaken(made, seed)


def shaken(made: nn.Module, seed: int = 0) -> nn.Module:
    """Every tensor of the state dict drawn anew, of a scale that keeps activations of the order of 1."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in made.state_dict().items():
        if not tensor.is_floating_point():
            continue
        noise = torch.randn(tensor.shape, generator=generator)
        if tensor.dim() > 1 and "token" not in name and "pos" not in name:
            tensor.copy_(noise / max(1, tensor[0].numel()) ** 0.5)
        elif name.endswith(("running_var", "norm.weight", "gamma", "lambda1", "logit_scale")):
            tensor.copy_(1 + 0.2 * noise.tanh())
        else:
            tensor.copy_(0.3 * noise)
    return made.eval()


def body(network: nn.Module) -> State:
    """The state dict without the classifier."""
    return {
        name: tensor
        for name, tensor in network.state_dict().items()
        if not name.startswith(("head.weight", "head.bias", "head.fc."))
    }


def under(prefix: str, state: State) -> State:
    return {f"{prefix}{name}": tensor for name, tensor in state.items()}


def renamed(state: State, *pairs: tuple[str, str]) -> State:
    """Names after replacing each pair in order."""
    found = {}
    for name, tensor in state.items():
        for old, new in pairs:
            name = name.replace(old, new)
        found[name] = tensor
    return found


def head() -> State:
    return {"mlp.0.weight": torch.zeros(8, 192), "last_layer.weight_v": torch.zeros(4, 8)}


def vit(seed: int = 0, **options: Any) -> nn.Module:
    return net("vit_tiny_patch16_224", seed, depth=1, img_size=32, **options)


def timm_own() -> TimmSample:
    only = vit()
    return TimmSample(
        dict(only.state_dict()),
        {"backbone": only},
        "named",
        "timm:vit_tiny_patch16_224?depth=1&img_size=32",
        ("head.weight",),
    )


def dino() -> TimmSample:
    student, teacher = vit(0), vit(1)
    tree = {
        "student": under("module.", under("backbone.", body(student)) | under("head.", head())),
        "teacher": under("backbone.", body(teacher)) | under("head.", head()),
        "args": argparse.Namespace(arch="vit_tiny"),
        "epoch": 3,
    }
    text = "timm:deit_tiny_patch16_224?depth=1&img_size=32"
    return TimmSample(tree, {"student": student, "teacher": teacher}, "dino", text, ("head.mlp",), default="teacher")


def ibot() -> TimmSample:
    sample = dino()
    for name in ("student", "teacher"):
        wrapper = "module." if name == "student" else ""
        sample.tree[name][f"{wrapper}backbone.masked_embed"] = torch.zeros(1, 192)
    sample.dropped = ("masked_embed", "head.mlp")
    return sample


def exported_without_a_head() -> TimmSample:
    only = vit()
    return TimmSample(body(only), {"backbone": only}, "named", "timm:deit_tiny_patch16_224?depth=1&img_size=32")


def moco_v3() -> TimmSample:
    """Its ViT-S has 12 heads."""
    student, teacher = (net("vit_small_patch16_224", seed, depth=1, img_size=32, num_heads=12) for seed in (0, 1))
    tree = {
        "arch": "vit_small",
        "state_dict": under("module.base_encoder.", body(student) | under("head.", head()))
        | under("module.momentum_encoder.", body(teacher))
        | under("module.predictor.", head()),
    }
    text = "timm:vit_small_patch16_224.dino?depth=1&img_size=32&num_heads=12"
    return TimmSample(tree, {"student": student, "teacher": teacher}, "mocov3", text, ("predictor",), default="student")


def mae() -> TimmSample:
    only = vit()
    decoder = {
        "mask_token": torch.zeros(1, 1, 8),
        "decoder_pos_embed": torch.zeros(1, 5, 8),
        "decoder_embed.weight": torch.zeros(8, 192),
        "decoder_blocks.0.norm1.weight": torch.zeros(8),
    }
    return TimmSample(
        {"model": body(only) | decoder, "epoch": 1},
        {"backbone": only},
        "mae",
        "timm:deit_tiny_patch16_224?depth=1&img_size=32",
        ("decoder_blocks", "mask_token"),
    )


def mae_finetuned() -> TimmSample:
    """Fine-tuned MAE pools the patches and normalises afterwards."""
    only = vit(global_pool="avg")
    return TimmSample(
        {"model": dict(only.state_dict())},
        {"backbone": only},
        "named",
        "timm:vit_tiny_patch16_224?depth=1&img_size=32&global_pool=avg",
        ("head.weight",),
    )


def ijepa() -> TimmSample:
    student, teacher = (
        net("vit_huge_patch14_gap_224", seed, embed_dim=192, depth=1, num_heads=3, img_size=28) for seed in (0, 1)
    )
    tree = {
        "encoder": under("module.", body(student)),
        "predictor": under("module.", head()),
        "target_encoder": under("module.", body(teacher)),
        "epoch": 5,
    }
    text = "timm:vit_huge_patch14_gap_224.in1k_ijepa?embed_dim=192&depth=1&img_size=28&num_heads=3"
    return TimmSample(
        tree, {"student": student, "teacher": teacher}, "ijepa-msn", text, ("predictor.*",), default="teacher"
    )


def msn() -> TimmSample:
    student, teacher = vit(0), vit(1)
    projector = {"fc.fc1.weight": torch.zeros(8, 192)}
    tree = {
        "encoder": under("module.", body(student) | projector),
        "prototypes": torch.zeros(4, 8),
        "target_encoder": under("module.", body(teacher) | projector),
    }
    return TimmSample(
        tree,
        {"student": student, "teacher": teacher},
        "ijepa-msn",
        "timm:deit_tiny_patch16_224?depth=1&img_size=32",
        ("fc.fc1",),
        default="teacher",
    )


def detector_on_a_vit() -> TimmSample:
    """A finished detector on a simple feature pyramid."""
    only = vit()
    parts = {"backbone.simfp_2.0.weight": torch.zeros(192, 96, 2, 2), "head.cls_score.bias": torch.zeros(8)}
    tree = {"model": under("backbone.net.", body(only)) | parts}
    text = "timm:deit_tiny_patch16_224?depth=1&img_size=32"
    return TimmSample(tree, {"backbone": only}, "timm-detector", text, ("backbone.simfp_2", "head.cls_score"))


def dinov2() -> TimmSample:
    only = net("vit_small_patch14_dinov2", depth=1, img_size=28)
    tree = body(only) | {"mask_token": torch.zeros(1, 384)}
    return TimmSample(
        tree, {"backbone": only}, "dinov2", "timm:vit_small_patch14_dinov2?depth=1&img_size=28", ("mask_token",)
    )


def dinov2_registers() -> TimmSample:
    """The project adds a position embedding to its class token; timm's network has it in the token."""
    only = net("vit_small_patch14_reg4_dinov2", depth=1, img_size=28)
    state = body(only)
    position = torch.randn(1, 1, 384)
    state["pos_embed"] = torch.cat([position, state["pos_embed"]], dim=1)
    state["cls_token"] = state["cls_token"] - position
    tree = renamed(state, ("reg_token", "register_tokens")) | {"mask_token": torch.zeros(1, 384)}
    return TimmSample(
        tree, {"backbone": only}, "dinov2", "timm:vit_small_patch14_reg4_dinov2?depth=1&img_size=28", ("mask_token",)
    )


def dinov2_training() -> TimmSample:
    """SwiGLU, blocks in chunks, student and teacher with their heads."""
    student, teacher = (
        net("vit_giant_patch14_dinov2", seed, embed_dim=384, depth=2, num_heads=6, img_size=28) for seed in (0, 1)
    )
    names = (("mlp.fc1", "mlp.w12"), ("mlp.fc2", "mlp.w3"), ("blocks.0.", "blocks.0.0."), ("blocks.1.", "blocks.1.1."))
    tree: State = {}
    for name, network in (("student", student), ("teacher", teacher)):
        tree |= under(f"{name}.backbone.", renamed(body(network), *names) | {"mask_token": torch.zeros(1, 384)})
        tree |= under(f"{name}.dino_head.", head()) | under(f"{name}.ibot_head.", head())
    text = "timm:vit_giant_patch14_dinov2?embed_dim=384&depth=2&img_size=28&num_heads=6"
    return TimmSample(
        {"model": tree, "iteration": 9},
        {"student": student, "teacher": teacher},
        "dinov2",
        text,
        ("ibot_head", "mask_token"),
        default="teacher",
    )


def dinov3() -> TimmSample:
    only = net("vit_small_plus_patch16_dinov3_qkvb", depth=1, global_pool="token")
    state = renamed(
        body(only),
        ("reg_token", "storage_tokens"),
        ("gamma_1", "ls1.gamma"),
        ("gamma_2", "ls2.gamma"),
        ("mlp.fc1_g", "mlp.w1"),
        ("mlp.fc1_x", "mlp.w2"),
        ("mlp.fc2", "mlp.w3"),
    )
    q, v = state.pop("blocks.0.attn.q_bias"), state.pop("blocks.0.attn.v_bias")
    state["blocks.0.attn.qkv.bias"] = torch.cat([q, torch.full_like(q, 7.0), v])
    state["blocks.0.attn.qkv.bias_mask"] = torch.ones(3 * len(q))
    state |= {"rope_embed.periods": torch.ones(16), "mask_token": torch.zeros(1, 384)}
    return TimmSample(
        state,
        {"backbone": only},
        "dinov3",
        "timm:vit_small_plus_patch16_dinov3_qkvb?depth=1&global_pool=token",
        ("periods", "bias_mask", "mask_token"),
    )


_CLIP = (
    ("patch_embed.proj", "conv1"),
    ("norm_pre", "ln_pre"),
    ("blocks.", "transformer.resblocks."),
    (".norm1", ".ln_1"),
    (".norm2", ".ln_2"),
    ("attn.qkv.", "attn.in_proj_"),
    ("attn.proj", "attn.out_proj"),
    ("mlp.fc1", "mlp.c_fc"),
    ("mlp.fc2", "mlp.c_proj"),
    ("norm.", "ln_post."),
    ("cls_token", "class_embedding"),
    ("pos_embed", "positional_embedding"),
)


def _clip(name: str, *first: str) -> tuple[nn.Module, State]:
    only = net(name, depth=1, img_size=32, embed_dim=192, num_heads=3)
    state = renamed(body(only), *_CLIP)
    state["class_embedding"], state["positional_embedding"] = (
        state["class_embedding"][0, 0],
        state["positional_embedding"][0],
    )
    order = ["class_embedding", "positional_embedding", "proj", "conv1", "ln_pre", *first, "ln_post"]
    state["proj"] = torch.zeros(192, 8)
    state = {key: state[key] for part in order for key in state if key.startswith(part)}
    text = {
        "positional_embedding": torch.zeros(4, 8),
        "text_projection": torch.zeros(8, 8),
        "logit_scale": torch.zeros(()),
        "transformer.resblocks.0.ln_1.weight": torch.zeros(8),
        "token_embedding.weight": torch.zeros(9, 8),
        "ln_final.weight": torch.zeros(8),
    }
    return only, under("visual.", state) | text


def clip_openai() -> TimmSample:
    """OpenAI's blocks define their attention before their first norm, open_clip's the other way round."""
    block = "transformer.resblocks.0."
    only, tree = _clip(
        "vit_base_patch32_clip_quickgelu_224", f"{block}attn", f"{block}ln_1", f"{block}mlp", f"{block}ln_2"
    )
    return TimmSample(
        tree,
        {"backbone": only},
        "clip",
        "timm:vit_base_patch32_clip_quickgelu_224?embed_dim=192&depth=1&img_size=32&num_heads=3",
        ("visual.proj", "token_embedding", "transformer.resblocks"),
    )


def open_clip() -> TimmSample:
    block = "transformer.resblocks.0."
    only, tree = _clip("vit_base_patch32_clip_224", f"{block}ln_1", f"{block}attn", f"{block}ln_2", f"{block}mlp")
    return TimmSample(
        {"state_dict": under("module.", tree), "epoch": 1},
        {"backbone": only},
        "clip",
        "timm:vit_base_patch32_clip_224?embed_dim=192&depth=1&img_size=32&num_heads=3",
        ("visual.proj",),
    )


def open_clip_trunk() -> TimmSample:
    only = net("vit_base_patch16_siglip_224", depth=1, img_size=32, embed_dim=192, num_heads=3)
    tree = under("visual.trunk.", body(only)) | {"text.ln_final.weight": torch.zeros(4), "logit_bias": torch.zeros(())}
    return TimmSample(
        tree,
        {"backbone": only},
        "clip",
        "timm:vit_base_patch16_siglip_224?embed_dim=192&depth=1&img_size=32&num_heads=3",
        ("text.ln_final",),
    )


def swin() -> TimmSample:
    """Its merging is at the end of a stage; masks and indices are buffers."""
    only = net(
        "swin_tiny_patch4_window7_224", embed_dim=32, depths=(2, 1), num_heads=(1, 2), window_size=4, img_size=32
    )
    state = renamed(body(only), ("layers.1.downsample", "layers.0.downsample"))
    state |= {
        "layers.0.blocks.1.attn_mask": torch.zeros(4, 16, 16),
        "head.weight": torch.zeros(3, 64),
        "layers.0.blocks.0.attn.relative_position_index": torch.zeros(16, 16, dtype=torch.int64),
    }
    options = "embed_dim=32&depths=(2,1)&num_heads=(1,2)&window_size=4&patch_size=4&img_size=32"
    text = f"timm:swin_tiny_patch4_window7_224?{options}"
    return TimmSample(
        {"model": state}, {"backbone": only}, "swin", text, ("attn_mask", "relative_position_index", "head.weight")
    )


def swin_v2() -> TimmSample:
    only = net("swinv2_tiny_window8_256", embed_dim=32, depths=(2, 1), num_heads=(1, 2), window_size=4, img_size=32)
    state = renamed(body(only), ("layers.1.downsample", "layers.0.downsample"))
    for stage in (0, 1):
        state[f"layers.{stage}.blocks.0.attn.relative_coords_table"] = torch.zeros(1, 7, 7, 2)
    text = (
        "timm:swinv2_tiny_window8_256?embed_dim=32&depths=(2,1)&num_heads=(1,2)&window_size=4&img_size=32&patch_size=4"
    )
    return TimmSample({"model": state}, {"backbone": only}, "swin", text, ("relative_coords_table",))


_CONVNEXT = (
    ("stem.", "downsample_layers.0."),
    ("conv_dw", "dwconv"),
    ("mlp.fc", "pwconv"),
    ("mlp.grn.weight", "grn.gamma"),
    ("mlp.grn.bias", "grn.beta"),
    ("head.norm.", "norm."),
    (".blocks", ""),
    *((f"stages.{n}.downsample.", f"downsample_layers.{n}.") for n in range(4)),
)


def convnext() -> TimmSample:
    only = net("convnext_tiny", depths=(1, 1, 1, 1), dims=(8, 16, 24, 32))
    tree = renamed(body(only), *_CONVNEXT) | {"head.weight": torch.zeros(3, 32)}
    return TimmSample(
        {"model": tree},
        {"backbone": only},
        "convnext",
        "timm:convnext_tiny?depths=(1,1,1,1)&dims=(8,16,24,32)",
        ("head.weight",),
    )


def convnext_v2() -> TimmSample:
    """timm's smallest ones have 1x1 convolutions where the release has linear layers."""
    only = net("convnextv2_atto")
    tree = renamed(body(only), *_CONVNEXT)
    for name in list(tree):
        if ".pwconv" in name and name.endswith("weight"):
            tree[name] = tree[name].flatten(1)
        elif ".grn." in name:
            tree[name] = tree[name][None, None, None]
    return TimmSample({"model": tree}, {"backbone": only}, "convnext", "timm:convnextv2_atto")


def timm_convnext() -> TimmSample:
    only = net("convnext_tiny", depths=(1, 1, 1, 1), dims=(8, 16, 24, 32))
    return TimmSample(
        dict(only.state_dict()),
        {"backbone": only},
        "named",
        "timm:convnext_tiny?depths=(1,1,1,1)&dims=(8,16,24,32)",
        ("head.fc.weight",),
    )


def timm_training_of_any_network() -> TimmSample:
    """A training checkpoint of timm's names its network; no shape is enough for most of them."""
    student, teacher = (net("test_efficientnet", seed) for seed in (0, 1))
    tree = {
        "arch": "test_efficientnet",
        "state_dict": dict(student.state_dict()),
        "state_dict_ema": dict(teacher.state_dict()),
    }
    return TimmSample(
        tree,
        {"student": student, "teacher": teacher},
        "timm",
        "timm:test_efficientnet",
        ("classifier.weight",),
        default="teacher",
    )


def transformers_vit() -> TimmSample:
    only = vit(qkv_bias=True)
    state = body(only)
    tree: State = {}
    for kind in ("weight", "bias"):
        parts = state.pop(f"blocks.0.attn.qkv.{kind}").chunk(3)
        tree |= {
            f"blocks.0.attention.attention.{name}.{kind}": part
            for name, part in zip(("query", "key", "value"), parts, strict=True)
        }
    tree |= renamed(
        state,
        ("attn.proj", "attention.output.dense"),
        ("norm1", "layernorm_before"),
        ("norm2", "layernorm_after"),
        ("mlp.fc1", "intermediate.dense"),
        ("mlp.fc2", "output.dense"),
        ("patch_embed.proj", "patch_embeddings.projection"),
        ("pos_embed", "position_embeddings"),
    )
    tree = renamed(
        tree,
        ("blocks.", "encoder.layer."),
        ("patch_embeddings", "embeddings.patch_embeddings"),
        ("position_", "embeddings.position_"),
        ("cls_token", "embeddings.cls_token"),
    )
    tree = {("layernorm." + name[5:] if name.startswith("norm.") else name): tensor for name, tensor in tree.items()}
    tree = under("vit.", tree | {"pooler.dense.weight": torch.zeros(3, 192)}) | {
        "classifier.weight": torch.zeros(3, 192)
    }
    for module in only.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-12
    return TimmSample(
        tree,
        {"backbone": only},
        "transformers",
        "timm:vit_tiny_patch16_224?depth=1&img_size=32&norm_eps=1e-12",
        ("pooler", "classifier"),
        ".safetensors",
    )


def lightly_vit() -> TimmSample:
    student, teacher = vit(0), vit(1)
    tree = (
        under("backbone.vit.", body(student))
        | under("backbone_momentum.vit.", body(teacher))
        | under("projection_head.", head())
    )
    return TimmSample(
        {"state_dict": tree},
        {"student": student, "teacher": teacher},
        "lightly",
        "timm:deit_tiny_patch16_224?depth=1&img_size=32",
        ("projection_head",),
        default="student",
    )


TIMM_WRITERS: tuple[Callable[[], TimmSample], ...] = (
    timm_own,
    dino,
    ibot,
    exported_without_a_head,
    moco_v3,
    mae,
    mae_finetuned,
    ijepa,
    msn,
    detector_on_a_vit,
    dinov2,
    dinov2_registers,
    dinov2_training,
    dinov3,
    clip_openai,
    open_clip,
    open_clip_trunk,
    swin,
    swin_v2,
    convnext,
    convnext_v2,
    timm_convnext,
    timm_training_of_any_network,
    transformers_vit,
    lightly_vit,
)
