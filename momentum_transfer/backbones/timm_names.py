"""Names of timm's networks, with their options: ``timm:vit_small_patch16_224?img_size=96``."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Any

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.extras import extra

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
