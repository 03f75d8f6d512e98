"""Networks of timm by name and options: ``timm:vit_small_patch16_224?img_size=96``, checked and made by timm.

Also timm's plain networks by project, with what their entry points fix, so that a file's shapes can be given a name.
"""

import difflib
import re
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from torch import nn

from momentum_transfer.core.errors import InputError, extra, first_line, shown

TIMM = "timm:"
#: What an architecture's text may not ask of timm: they make another kind of network, or read files.
_OURS = ("num_classes", "in_chans", "features_only", "out_indices", "checkpoint_path", "cache_dir", "scriptable",
         "exportable", "no_jit", "feature_cls", "output_fmt", "device", "dtype")  # fmt: skip
#: Sides of images in pixels: a typing error beyond it would ask for more position embeddings than memory holds.
_LARGEST = 10_000


@dataclass(frozen=True)
class TimmArchitecture:
    """A network of timm.

    Args:
        name: with or without the tag of published weights (``resnet50.a1_in1k``), which decide its normalisation.
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
            raise InputError(f"expected img_size in pixels, 1 to {_LARGEST}, found {size!r} in {self}; correct it")

    def __str__(self) -> str:
        """The text that ``parse_architecture`` reads back."""
        query = "&".join(f"{key}={str(value).replace(' ', '')}" for key, value in self.options)
        return f"{TIMM}{self.name}{'?' if query else ''}{query}"


def check_name(name: str) -> None:
    """Raise InputError for an unknown name or tag of timm, naming the nearest, or if timm is missing."""
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
    """Up to three names: those that hold the word (at the beginning and the shortest first), else similar ones."""
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
    side: int | None
    ratio: float


#: Size in a name -> width, depth, heads, ratio of the MLP's width.
_SIZES: dict[str, tuple[int, int, int, float]] = {
    "tiny": (192, 12, 3, 4), "xsmall": (256, 10, 4, 4), "small": (384, 12, 6, 4), "medium": (512, 12, 8, 4),
    "betwixt": (640, 12, 10, 4), "base": (768, 12, 12, 4), "large": (1024, 24, 16, 4),
    "so400m": (1152, 27, 16, 3.7362), "huge": (1280, 32, 16, 4), "giant": (1408, 40, 16, 48 / 11),
    "gigantic": (1664, 48, 16, 64 / 13), "giant_dinov2": (1536, 40, 24, 2.66667 * 2),
    "small_plus": (384, 12, 6, 4), "huge_plus": (1280, 32, 20, 4), "7b": (4096, 40, 32, 2),
}  # fmt: skip
#: Kind of network -> timm's names; for a file like none of them the first, with all options.
_NAMES = {
    "vit": "vit_base_patch16_224 vit_base_patch16_384 vit_base_patch32_224 vit_base_patch8_224 vit_tiny_patch16_224 "
           "vit_tiny_patch16_384 vit_small_patch16_224 vit_small_patch16_384 vit_small_patch32_224 "
           "vit_small_patch8_224 vit_large_patch16_224 vit_large_patch16_384 vit_large_patch14_224 "
           "vit_large_patch32_224 vit_huge_patch14_224 vit_giant_patch14_224 vit_gigantic_patch14_224",
    "self-supervised": "vit_base_patch16_224.dino vit_base_patch8_224.dino deit_tiny_patch16_224 "
                       "vit_small_patch16_224.dino vit_small_patch8_224.dino vit_large_patch16_224.mae "
                       "vit_huge_patch14_224.mae",
    "distilled": "deit_base_distilled_patch16_224 deit_tiny_distilled_patch16_224 deit_small_distilled_patch16_224",
    "deit3": "deit3_base_patch16_224 deit3_small_patch16_224 deit3_medium_patch16_224 deit3_large_patch16_224 "
             "deit3_huge_patch14_224",
    "no class token": "vit_huge_patch14_gap_224.in1k_ijepa vit_huge_patch16_gap_448.in1k_ijepa "
                      "vit_giant_patch16_gap_224.in22k_ijepa",
    "dinov2": "vit_base_patch14_dinov2 vit_small_patch14_dinov2 vit_large_patch14_dinov2",
    "dinov2 gated": "vit_giant_patch14_dinov2",
    "clip": "vit_base_patch16_clip_224 vit_base_patch16_clip_384 vit_base_patch32_clip_224 vit_base_patch32_clip_256 "
            "vit_large_patch14_clip_224 vit_large_patch14_clip_336 vit_huge_patch14_clip_224 "
            "vit_giant_patch14_clip_224 vit_gigantic_patch14_clip_224 vit_medium_patch16_clip_224 "
            "vit_medium_patch32_clip_224 vit_betwixt_patch32_clip_224 vit_xsmall_patch16_clip_224",
    # OpenAI's activation, x * sigmoid(1.702 x)
    "clip quick_gelu": "vit_base_patch16_clip_quickgelu_224 vit_base_patch32_clip_quickgelu_224 "
                       "vit_large_patch14_clip_quickgelu_224 vit_large_patch14_clip_quickgelu_336 "
                       "vit_huge_patch14_clip_quickgelu_224 vit_gigantic_patch14_clip_quickgelu_224",
    "siglip": "vit_base_patch16_siglip_224 vit_base_patch16_siglip_256 vit_base_patch16_siglip_384 "
              "vit_base_patch16_siglip_512 vit_base_patch32_siglip_256 vit_large_patch16_siglip_256 "
              "vit_large_patch16_siglip_384 vit_large_patch16_siglip_512 vit_so400m_patch14_siglip_224 "
              "vit_so400m_patch14_siglip_378 vit_so400m_patch16_siglip_256 vit_so400m_patch16_siglip_384 "
              "vit_so400m_patch16_siglip_512",
    "dinov3": "vit_base_patch16_dinov3 vit_small_patch16_dinov3 vit_large_patch16_dinov3",
    "dinov3 gated": "vit_huge_plus_patch16_dinov3 vit_small_plus_patch16_dinov3 vit_7b_patch16_dinov3",
}  # fmt: skip


@cache
def named(kind: str) -> tuple[Named, ...]:
    """timm's plain networks of a kind, a key of ``_NAMES``."""
    return tuple(map(_row, _NAMES[kind].split()))


def _row(name: str) -> Named:
    parts = re.fullmatch(r"[a-z0-9]+?_(\w+?)(?:_distilled)?_patch(\d+)(\D*?(dinov[23])?)_?(\d{3})?(?:\.\w+)?", name)
    assert parts is not None
    size, patch, _, project, side = parts.groups()
    width, depth, heads, ratio = _SIZES.get(f"{size}_{project}", _SIZES[size])
    pixels = int(side) if side else 518 if project == "dinov2" else 256
    return Named(name, width, depth, heads, int(patch), pixels, ratio)


#: Far beyond the largest networks that there are: pixels or channels of an option, and blocks, by their options' names.
_MOST_WIDTH, _MOST_BLOCKS = 16_384, 1_000
_DEPTHS = ("depth", "depths", "layers", "num_blocks")


def create(architecture: TimmArchitecture, **source: Any) -> Any:
    """timm's network without its classifier; ``img_size`` of one that takes any size is left out. ``source``: where its
    weights come from, as ``timm.create_model`` takes it."""
    options = dict(architecture.options)
    _check_sizes(options, architecture)
    norm_eps, final_norm_eps = (options.pop(key, None) for key in ("norm_eps", "final_norm_eps"))
    network = _create_with(architecture, options, source)
    _check_patches(network, architecture)
    _set_epsilons(network, norm_eps, final_norm_eps)
    return network


def _check_sizes(options: dict[str, Any], architecture: TimmArchitecture) -> None:
    """InputError for untrusted options that would build for hours or fill any memory, and for drop rates that are no
    probability, which timm takes."""
    for key, value in options.items():
        if key.endswith(("drop_rate", "drop_path_rate")) and not (type(value) in (int, float) and 0 <= value < 1):
            raise InputError(f"expected {key} from 0 to below 1, found {shown(value)} in {architecture!s:.80}")
        numbers = [number for number in (value if isinstance(value, tuple) else (value,)) if isinstance(number, int)]
        most = _MOST_BLOCKS if key in _DEPTHS else _MOST_WIDTH
        if numbers and (max(map(abs, numbers)) > most or (key in _DEPTHS and sum(numbers) > most)):
            raise InputError(f"expected options up to {most}, found {key} {shown(value)} in {architecture!s:.80}")


def _set_epsilons(network: Any, norm_eps: float | None, final_norm_eps: float | None) -> None:
    """Of all LayerNorms and of the last: options of ours, for other projects' classes differ from timm's networks."""
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


def _create_with(architecture: TimmArchitecture, options: dict[str, Any], source: dict[str, Any]) -> Any:
    timm = extra("timm", "networks of timm")
    try:
        return timm.create_model(architecture.name, num_classes=0, **source, **options)
    except (TypeError, ValueError, LookupError, ArithmeticError, AssertionError, RuntimeError) as error:
        named = re.search(r"(?:unexpected|multiple values for) keyword argument(?:\(s\): \[)? ?'(\w+)'", str(error))
        refused = named[1] if isinstance(error, TypeError) and named and named[1] in options else ""
        if refused == "img_size":  # the network takes any size
            return _create_with(architecture, {k: v for k, v in options.items() if k != "img_size"}, source)
        if refused:
            text = f"expected options that timm leaves open, found {refused} in {architecture}; leave it out"
            raise InputError(text) from error
        if not options:
            raise
        found = f"{architecture}: timm says {first_line(error)}; correct them"
        raise InputError(f"expected options that fit together, found {found}") from error


def _check_patches(network: Any, architecture: TimmArchitecture) -> None:
    embed = getattr(network, "patch_embed", None)
    size, patch = getattr(embed, "img_size", None), getattr(embed, "patch_size", None)
    if size is None or patch is None:
        return
    pairs = [*map(extra("timm.layers", "networks of timm").to_2tuple, (size, patch))]
    if any(s % p for s, p in zip(*pairs, strict=True)):
        side, p = (int(pair[0]) for pair in pairs)
        sides = " or ".join(str(n * p) for n in (side // p, side // p + 1) if n)
        raise InputError(
            f"expected img_size divisible by the patch of {p} px, found {side} in {architecture}; use {sides}"
        )
