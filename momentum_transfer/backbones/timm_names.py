"""Names of timm's networks, with their options: ``timm:vit_small_patch16_224?img_size=96``."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

from momentum_transfer.errors import InputError
from momentum_transfer.extras import extra

TIMM = "timm:"
#: What an architecture's text may not ask of timm: they make another kind of network, or read files.
_OURS = ("num_classes", "in_chans", "features_only", "out_indices", "checkpoint_path", "cache_dir", "scriptable",
         "exportable", "no_jit", "feature_cls", "output_fmt", "device", "dtype")  # fmt: skip


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
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise InputError(f"expected img_size as a side in pixels, found {size!r} in {self}; correct it")

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
    bare, _, tag = name.partition(".")
    if timm.is_model(bare):
        tags = [full.partition(".")[2] for full in timm.list_models(f"{bare}.*", pretrained=True)]
        if not tag or tag in tags:
            return
        raise InputError(f"expected a tag of {', '.join(tags) or 'none'} of timm's {bare}, found {tag!r}; correct it")
    names = timm.list_models()
    near = difflib.get_close_matches(bare, names, n=3, cutoff=0.5) or [n for n in names if n.startswith(bare[:3])][:3]
    nearest = f"; the nearest are {', '.join(near)}" if near else ""
    raise InputError(f"expected the name of one of timm's {len(names)} networks, found {bare!r}{nearest}")
