"""Checkpoint families whose networks timm has: vision transformers, Swin, ConvNeXt."""

from __future__ import annotations

from momentum_transfer.backbones.family import ONLY, STUDENT, TEACHER, Family, places

_FC = r"(^|\.)fc\."
_HEAD = "classification or projection head"
_MASK = "mask token of the pretraining"
_TEXT = "text tower"
_ANY = ("state_dict", "model", "")
#: What transformers puts before a network's names in its models with a head.
_PREFIXES = ("vit.", "deit.", "ijepa.", "dinov2_with_registers.", "dinov2.", "dinov3_vit.", "dinov3_convnext.",
             "convnextv2.", "convnext.", "swinv2.", "swin.", "resnet.", "vision_model.", "backbone.", "")  # fmt: skip
_KINDS = ("vit", "dinov2", "dinov3", "clip", "siglip", "swin", "swinv2", "convnext", "dinov3-convnext", "resnet")

FAMILIES_OF_TIMM: tuple[Family, ...] = (
    Family(
        "dinov2", "DINOv2, with and without registers",
        {TEACHER: places("teacher.backbone.", "model", "state_dict", ""),
         STUDENT: places("student.backbone.", "model", "state_dict", ""),
         ONLY: (*places("backbone.", "model", "state_dict", ""), *places("", *_ANY))}, TEACHER,
        {r"^(student|teacher)\.(dino_head|ibot_head)\.": _HEAD, r"^(dino_head|ibot_head|head|linear_head)\.": _HEAD},
        (r"(^|\.)(mask_token|register_tokens|blocks\.0\.0\.norm1\.weight|mlp\.w12\.weight)$",), "dinov2",
    ),
    Family(
        "dinov3", "DINOv3 ViTs",
        {TEACHER: places("teacher.backbone.", "model", "state_dict", ""),
         STUDENT: places("student.backbone.", "model", "state_dict", ""),
         ONLY: (*places("backbone.", "teacher", "model", "state_dict", ""), *places("", "teacher", *_ANY))}, TEACHER,
        {r"^((student|teacher)\.)?(dino_head|ibot_head|head|linear_head)\.": _HEAD},
        (r"(^|\.)storage_tokens$",), "dinov3",
    ),
    Family(
        "ijepa-msn", "I-JEPA, MSN",
        {STUDENT: places("", "encoder"), TEACHER: places("", "target_encoder")}, TEACHER,
        {_FC: _HEAD, r"^(head|pred)\.": _HEAD},
        layout="timm", needs=TEACHER,
    ),
    Family(
        "mae", "MAE",
        {ONLY: places("", "model", "state_dict", "")}, ONLY,
        {r"^decoder_": "decoder of the pretraining", r"^mask_token$": _MASK, r"^head\.": _HEAD},
        (r"^decoder_(pos_embed|embed\.weight)$",), "timm",
    ),
    Family(
        "clip", "CLIP's image tower: OpenAI, open_clip (its own towers and timm's)",
        {ONLY: (*places("visual.trunk.", *_ANY), *places("visual.", *_ANY), *places("", *_ANY))}, ONLY,
        {r"^visual\.head\.": "projection to the text's space",
         r"^(text|transformer|token_embedding|ln_final|text_projection|positional_embedding|logit_scale|logit_bias"
         r"|context_length|vocab_size|input_resolution)(\.|$)": _TEXT},
        (r"^(visual\.)?class_embedding$", r"^visual\.trunk\."),
    ),
    Family(
        "transformers", "Hugging Face transformers: ViT, MAE, MSN, I-JEPA, DINOv2, DINOv3, CLIP, SigLIP, Swin, "
        "ConvNeXt, ResNet",
        {ONLY: tuple(place for prefix in _PREFIXES for place in places(prefix, "", "state_dict", "model"))}, ONLY,
        {r"^(vision_model\.|\w+\.)?(classifier|pooler|visual_projection)\.": _HEAD, r"^decoder\.": "decoder",
         r"^(cls|distillation)_classifier\.": _HEAD, r"(^|\.)logit_(scale|bias)$": _TEXT,
         r"^(text_model|text_projection)\.": _TEXT},
        (r"(^|\.)(embeddings\.patch_embedding|embedder\.embedder\.|depthwise_conv\.)",),
        " ".join(f"transformers-{kind}" for kind in _KINDS),
    ),
    Family(
        "swin", "Swin and Swin V2 releases",
        {ONLY: places("", *_ANY)}, ONLY, {r"^head\.": _HEAD}, (r"^layers\.0\.downsample\.",), "swin-release",
    ),
    Family(
        "convnext", "ConvNeXt and ConvNeXt V2 releases",
        {ONLY: places("", *_ANY)}, ONLY, {r"^head\.": _HEAD}, (r"^downsample_layers\.0\.0\.",), "convnext-release",
    ),
    Family(
        # also what DINO, iBOT, MAE, MoCo v3 and DeiT export, and this project
        "named", "timm's own names: timm, exported ViTs of many methods, and this project",
        {ONLY: places("", *_ANY)}, ONLY,
        {r"^(fc|head|head_dist|head_fc|classifier|last_linear)(\.|$)": _HEAD, r"^(mask_token|masked_embed)$": _MASK},
        (), "timm",
    ),
)  # fmt: skip
