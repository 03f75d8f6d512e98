"""timm's plain networks by project: what their entry points fix, so that a file's shapes can be given their name.

Where a file shares nothing with any row of a table, its first row stands for it, with all options spelled out.
"""

from __future__ import annotations

from typing import NamedTuple


class Named(NamedTuple):
    """One of timm's plain networks: its name and what its entry point fixes."""

    name: str
    width: int
    depth: int
    heads: int
    patch: int
    side: int
    ratio: float = 4.0


VIT = (
    Named("vit_base_patch16_224", 768, 12, 12, 16, 224), Named("vit_base_patch16_384", 768, 12, 12, 16, 384),
    Named("vit_base_patch32_224", 768, 12, 12, 32, 224), Named("vit_base_patch8_224", 768, 12, 12, 8, 224),
    Named("vit_tiny_patch16_224", 192, 12, 3, 16, 224), Named("vit_tiny_patch16_384", 192, 12, 3, 16, 384),
    Named("vit_small_patch16_224", 384, 12, 6, 16, 224), Named("vit_small_patch16_384", 384, 12, 6, 16, 384),
    Named("vit_small_patch32_224", 384, 12, 6, 32, 224), Named("vit_small_patch8_224", 384, 12, 6, 8, 224),
    Named("vit_large_patch16_224", 1024, 24, 16, 16, 224), Named("vit_large_patch16_384", 1024, 24, 16, 16, 384),
    Named("vit_large_patch14_224", 1024, 24, 16, 14, 224), Named("vit_large_patch32_224", 1024, 24, 16, 32, 224),
    Named("vit_huge_patch14_224", 1280, 32, 16, 14, 224),
    Named("vit_giant_patch14_224", 1408, 40, 16, 14, 224, 48 / 11),
    Named("vit_gigantic_patch14_224", 1664, 48, 16, 14, 224, 64 / 13),
)  # fmt: skip
SELF_SUPERVISED = (
    Named("vit_base_patch16_224.dino", 768, 12, 12, 16, 224), Named("vit_base_patch8_224.dino", 768, 12, 12, 8, 224),
    Named("deit_tiny_patch16_224", 192, 12, 3, 16, 224),
    Named("vit_small_patch16_224.dino", 384, 12, 6, 16, 224), Named("vit_small_patch8_224.dino", 384, 12, 6, 8, 224),
    Named("vit_large_patch16_224.mae", 1024, 24, 16, 16, 224), Named("vit_huge_patch14_224.mae", 1280, 32, 16, 14, 224),
)  # fmt: skip
DISTILLED = (
    Named("deit_base_distilled_patch16_224", 768, 12, 12, 16, 224),
    Named("deit_tiny_distilled_patch16_224", 192, 12, 3, 16, 224),
    Named("deit_small_distilled_patch16_224", 384, 12, 6, 16, 224),
)
DEIT3 = (
    Named("deit3_base_patch16_224", 768, 12, 12, 16, 224), Named("deit3_small_patch16_224", 384, 12, 6, 16, 224),
    Named("deit3_medium_patch16_224", 512, 12, 8, 16, 224), Named("deit3_large_patch16_224", 1024, 24, 16, 16, 224),
    Named("deit3_huge_patch14_224", 1280, 32, 16, 14, 224),
)  # fmt: skip
NO_CLASS_TOKEN = (
    Named("vit_huge_patch14_gap_224.in1k_ijepa", 1280, 32, 16, 14, 224),
    Named("vit_huge_patch16_gap_448.in1k_ijepa", 1280, 32, 16, 16, 448),
    Named("vit_giant_patch16_gap_224.in22k_ijepa", 1408, 40, 16, 16, 224, 48 / 11),
)
DINOV2 = (
    Named("vit_base_patch14_dinov2", 768, 12, 12, 14, 518), Named("vit_small_patch14_dinov2", 384, 12, 6, 14, 518),
    Named("vit_large_patch14_dinov2", 1024, 24, 16, 14, 518),
)  # fmt: skip
DINOV2_GATED = (Named("vit_giant_patch14_dinov2", 1536, 40, 24, 14, 518, 2.66667 * 2),)
CLIP = (
    Named("vit_base_patch16_clip_224", 768, 12, 12, 16, 224), Named("vit_base_patch16_clip_384", 768, 12, 12, 16, 384),
    Named("vit_base_patch32_clip_224", 768, 12, 12, 32, 224), Named("vit_base_patch32_clip_256", 768, 12, 12, 32, 256),
    Named("vit_large_patch14_clip_224", 1024, 24, 16, 14, 224),
    Named("vit_large_patch14_clip_336", 1024, 24, 16, 14, 336),
    Named("vit_huge_patch14_clip_224", 1280, 32, 16, 14, 224),
    Named("vit_giant_patch14_clip_224", 1408, 40, 16, 14, 224, 48 / 11),
    Named("vit_gigantic_patch14_clip_224", 1664, 48, 16, 14, 224, 64 / 13),
    Named("vit_medium_patch16_clip_224", 512, 12, 8, 16, 224),
    Named("vit_medium_patch32_clip_224", 512, 12, 8, 32, 224),
    Named("vit_betwixt_patch32_clip_224", 640, 12, 10, 32, 224),
    Named("vit_xsmall_patch16_clip_224", 256, 10, 4, 16, 224),
)  # fmt: skip
_QUICK = ("base_patch16_clip_224", "base_patch32_clip_224", "large_patch14_clip_224", "large_patch14_clip_336",
          "huge_patch14_clip_224", "gigantic_patch14_clip_224")  # fmt: skip
#: OpenAI's activation, x * sigmoid(1.702 x).
CLIP_QUICK_GELU = tuple(
    row._replace(name=row.name.replace("clip", "clip_quickgelu")) for row in CLIP if row.name.endswith(_QUICK)
)
SIGLIP = (
    Named("vit_base_patch16_siglip_224", 768, 12, 12, 16, 224),
    Named("vit_base_patch16_siglip_256", 768, 12, 12, 16, 256),
    Named("vit_base_patch16_siglip_384", 768, 12, 12, 16, 384),
    Named("vit_base_patch16_siglip_512", 768, 12, 12, 16, 512),
    Named("vit_base_patch32_siglip_256", 768, 12, 12, 32, 256),
    Named("vit_large_patch16_siglip_256", 1024, 24, 16, 16, 256),
    Named("vit_large_patch16_siglip_384", 1024, 24, 16, 16, 384),
    Named("vit_large_patch16_siglip_512", 1024, 24, 16, 16, 512),
    Named("vit_so400m_patch14_siglip_224", 1152, 27, 16, 14, 224, 3.7362),
    Named("vit_so400m_patch14_siglip_378", 1152, 27, 16, 14, 378, 3.7362),
    Named("vit_so400m_patch16_siglip_256", 1152, 27, 16, 16, 256, 3.7362),
    Named("vit_so400m_patch16_siglip_384", 1152, 27, 16, 16, 384, 3.7362),
    Named("vit_so400m_patch16_siglip_512", 1152, 27, 16, 16, 512, 3.7362),
)  # fmt: skip
DINOV3 = (
    Named("vit_base_patch16_dinov3", 768, 12, 12, 16, 256), Named("vit_small_patch16_dinov3", 384, 12, 6, 16, 256),
    Named("vit_large_patch16_dinov3", 1024, 24, 16, 16, 256),
)  # fmt: skip
DINOV3_GATED = (
    Named("vit_huge_plus_patch16_dinov3", 1280, 32, 20, 16, 256),
    Named("vit_small_plus_patch16_dinov3", 384, 12, 6, 16, 256),
    Named("vit_7b_patch16_dinov3", 4096, 40, 32, 16, 256, 2.0),
)
