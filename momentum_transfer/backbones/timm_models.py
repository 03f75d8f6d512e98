"""Names of timm's networks, with their options: ``timm:vit_small_patch16_224?img_size=96``.

timm's plain networks by project: what their entry points fix, so that a file's shapes can be given their name.

Where a file shares nothing with any row of a table, its first row stands for it, with all options spelled out.

timm's own networks from the text of an architecture: options to timm's constructors, their refusals to one line.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from momentum_transfer.core.errors import InputError, extra, first_line, shown

TIMM = "timm:"
#: What an architecture's text may not ask of timm: they make another kind of network, or read files.
_OURS = ("num_classes", "in_chans", "features_only", "out_indices", "checkpoint_path", "cache_dir", "scriptable",
         "exportable", "no_jit", "feature_cls", "output_fmt", "device", "dtype")  # fmt: skip
#: Sides of images in pixels; a slip of the hand beyond it would ask for more position embeddings than memory holds.
_LARGEST = 10_000


@dataclass(frozen=True)
class TimmArchitecture:
    """A network of timm.

    Args:
        name: as timm knows it, with or without the tag of its published weights (``resnet50.a1_in1k``);
            the tag says which size, mean and standard deviation are its own.
        options: of its constructor, in the order of the text.
    """

    name: str
    options: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        for key, value in self.options:
            if key in _OURS or key.startswith("pretrained"):
                raise InputError(f"expected options of the network itself, found {key} in {self}; leave it out")
            if not isinstance(value, (int, float, str, tuple)):
                raise InputError(f"expected numbers or words as options, found {key}={value!r} in {self}; correct it")
        size = dict(self.options).get("img_size", 1)
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= _LARGEST:
            raise InputError(
                f"expected img_size as a side in pixels, 1 to {_LARGEST}, found {size!r} in {self}; correct it"
            )

    def __str__(self) -> str:
        """The text that ``parse_architecture`` reads back."""
        query = "&".join(f"{key}={str(value).replace(' ', '')}" for key, value in self.options)
        return f"{TIMM}{self.name}{'?' if query else ''}{query}"


def check_name(name: str) -> None:
    """Refuse what timm has no network of, naming the nearest.

    Raises:
        InputError: an unknown name or tag, or timm missing.
    """
    timm = extra("timm", "networks of timm")
    bare, dot, tag = name.partition(".")
    if timm.is_model(bare):
        tags = [full.partition(".")[2] for full in timm.list_models(f"{bare}.*", pretrained=True)]
        if not dot or tag in tags:
            return
        raise InputError(f"expected a tag of {', '.join(tags) or 'none'} of timm's {bare}, found {tag!r}; correct it")
    names = timm.list_models()
    near = _nearest(bare, names)
    advice = f"the nearest are {', '.join(near)}" if near else "timm.list_models() gives them all"
    raise InputError(f"expected the name of one of timm's {len(names)} networks, found {bare!r}; {advice}")


def _nearest(word: str, names: list[str]) -> list[str]:
    """Up to three names: those that begin with the word or hold it, the shortest first, else those spelled like it."""
    word = re.sub(r"[^a-z0-9]+", "_", word.lower()).strip("_")
    holding = sorted((name for name in names if word and word in name),
                     key=lambda name: (not name.startswith(word), len(name), name))  # fmt: skip
    return [*dict.fromkeys([*holding[:3], *difflib.get_close_matches(word, names, n=3, cutoff=0.5)])][:3]


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


#: Options of ours beside the constructor's: epsilons of all LayerNorms and of the last one.
_EPSILONS = ("norm_eps", "final_norm_eps")
#: Far beyond the largest networks that there are: pixels or channels of an option, and blocks, by their options' names.
MOST_WIDTH, MOST_BLOCKS = 16_384, 1_000
_DEPTHS = ("depth", "depths", "layers", "num_blocks")


def create(architecture: TimmArchitecture, **source: Any) -> Any:
    """timm's network without its classifier; a convolutional one takes any size, so that only its images change.

    Args:
        source: where its weights come from, as ``timm.create_model`` takes it.

    Raises:
        InputError: timm is missing, or the network does not take the options.
    """
    options = dict(architecture.options)
    _check_sizes(options, architecture)
    epsilons = {key: options.pop(key) for key in _EPSILONS if key in options}
    try:
        network = _create_with(architecture, options, source)
    except _NoSuchOption as error:
        if error.name != "img_size":
            raise
        del options["img_size"]
        network = _create_with(architecture, options, source)
    _check_patches(network, architecture)
    _set_epsilons(network, **epsilons)
    return network


def _check_sizes(options: dict[str, Any], architecture: TimmArchitecture) -> None:
    """InputError for options that would build for hours, or fill any memory: they may be a stranger's.

    Rates of drop path are checked too: timm builds with any, and then scales by what is no probability.
    """
    for key, value in options.items():
        if key.endswith(("drop_rate", "drop_path_rate")) and not (_is_number(value) and 0 <= value < 1):
            raise InputError(
                f"expected {key} from 0 to below 1, found {shown(value)} in {architecture!s:.80}; correct it"
            )
        numbers = [number for number in (value if isinstance(value, tuple) else (value,)) if isinstance(number, int)]
        most = MOST_BLOCKS if key in _DEPTHS else MOST_WIDTH
        if numbers and (max(map(abs, numbers)) > most or (key in _DEPTHS and sum(numbers) > most)):
            raise InputError(f"expected options up to {most}, found {key} {shown(value)} in {architecture!s:.80}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _set_epsilons(network: Any, norm_eps: float | None = None, final_norm_eps: float | None = None) -> None:
    """Epsilons of the LayerNorms, which other projects' classes choose otherwise than timm's entry points."""
    for name, value in (("norm_eps", norm_eps), ("final_norm_eps", final_norm_eps)):
        if value is not None and not (isinstance(value, (int, float)) and 0 < value < 1):  # False for NaN
            raise InputError(f"expected {name} between 0 and 1, found {shown(value)}; correct it")
    for module in network.modules():
        if norm_eps is not None and isinstance(module, nn.LayerNorm):
            module.eps = float(norm_eps)
    for name in ("norm", "fc_norm", "head.norm"):
        parent, _, child = name.rpartition(".")
        final = getattr(getattr(network, parent, None) if parent else network, child, None)
        if final_norm_eps is not None and isinstance(final, nn.LayerNorm):
            final.eps = float(final_norm_eps)


class _NoSuchOption(InputError):
    """An option that a network's constructor does not take."""

    def __init__(self, name: str, architecture: TimmArchitecture) -> None:
        super().__init__(f"expected options that timm leaves open, found {name} in {architecture}; leave it out")
        self.name = name


#: What timm's constructors raise for values that they cannot build with; not OSError, which is of files and the Hub.
_OF_OPTIONS = (TypeError, ValueError, LookupError, ArithmeticError, AssertionError, RuntimeError)


def _create_with(architecture: TimmArchitecture, options: dict[str, Any], source: dict[str, Any]) -> Any:
    timm = extra("timm", "networks of timm")
    try:
        return timm.create_model(architecture.name, num_classes=0, **source, **options)
    except _OF_OPTIONS as error:
        told = re.search(r"(?:unexpected|multiple values for) keyword argument(?:\(s\): \[)? ?'(\w+)'", str(error))
        if isinstance(error, TypeError) and told and told[1] in options:
            raise _NoSuchOption(told[1], architecture) from error
        if not options:
            raise
        raise InputError(
            f"expected options that fit together, found {architecture}: timm says {first_line(error)}; correct them"
        ) from error


def _check_patches(network: Any, architecture: TimmArchitecture) -> None:
    embed = getattr(network, "patch_embed", None)
    size, patch = getattr(embed, "img_size", None), getattr(embed, "patch_size", None)
    if size is not None and patch is not None and any(s % p for s, p in zip(_pair(size), _pair(patch), strict=True)):
        side, p = _pair(size)[0], _pair(patch)[0]
        raise InputError(
            f"expected img_size divisible by the patch of {p} px, found {side} in {architecture}; "
            f"use {' or '.join(str(n * p) for n in (side // p, side // p + 1) if n)}"
        )


def _pair(value: Any) -> tuple[int, int]:
    return (int(value), int(value)) if isinstance(value, (int, float)) else (int(value[0]), int(value[1]))
