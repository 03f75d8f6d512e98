"""The weights to choose from: read once, named as results name them, each with a random start of its architecture."""

from __future__ import annotations

import os
from collections.abc import Sequence

from momentum_transfer.backbones.hub_names import is_hub_name
from momentum_transfer.backbones.read import SourceBackbone, load_backbone
from momentum_transfer.backbones.resnet import Architecture
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import RANDOM_OF, is_made, weights_name
from momentum_transfer.core.log import warn
from momentum_transfer.suites.choose.plan import Candidate

#: Side of the images that features are of, in pixels, unless the networks take another one.
IMAGE_SIZE = 224


def read_candidates(
    weights: Sequence[str], image_size: int | None = None
) -> tuple[tuple[Candidate, ...], dict[str, SourceBackbone], int, list[str]]:
    """Every candidate, a backbone of each architecture by its text, the size of images for all of them, and what of
    ``weights`` is left out because it cannot be read, with the reason.

    Args:
        weights: checkpoints, run folders or names on the Hub. image_size: None takes the networks' own where timm says
            one, else 224.

    Raises:
        InputError: fewer than two of several can be read, two have one name, or networks of different fixed sizes.
    """
    if given := [one for one in weights if one.startswith(RANDOM_OF)]:
        raise InputError(
            f"expected checkpoints, found {given[0]}; leave it out: a random start of each runs beside them"
        )
    read, left_out = _read(weights)
    weights, sources = [one for one, _ in read], [source for _, source in read]
    texts = [_text(source) for source in sources]
    places = [one if is_hub_name(one) or is_made(one) else os.path.abspath(one) for one in weights]
    starts: dict[str, str] = {}  # architecture -> name of the network at random, after the first that has it
    for text, place in zip(texts, places, strict=True):
        starts.setdefault(text, weights_name(RANDOM_OF + place))
    candidates = tuple(
        Candidate(source.name, place, source.sha256, text, starts[text])
        for place, source, text in zip(places, sources, texts, strict=True)
    )
    names = [one.name for one in candidates] + list(starts.values())
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"expected weights of different names, found {twice[0]} twice; rename a folder, or link to it")
    return candidates, dict(zip(texts, sources, strict=True)), image_size or _size(sources), left_out


def _read(weights: Sequence[str]) -> tuple[list[tuple[str, SourceBackbone]], list[str]]:
    """Those that can be read, and what is said of the others."""
    found, left_out = [], []
    for one in weights:
        try:
            found.append((one, load_backbone(one)))
        except InputError as error:
            if len(weights) == 1:
                raise
            left_out.append(f"{one} is left out, because it cannot be read: {error}")
            warn(left_out[-1])
    if left_out and len(found) < 2:
        raise InputError(f"expected at least two weights to choose from, found {len(found)}; {'; '.join(left_out)}")
    return found, left_out


def _text(source: SourceBackbone) -> str:
    """The architecture as `parse_architecture` reads it."""
    found = source.architecture
    if not isinstance(found, Architecture):
        return str(found)
    options = [f"width={found.width}"] * (found.width != 64) + [f"stem={found.stem}"] * (found.stem != "imagenet")
    return found.name + (f"?{'&'.join(options)}" if options else "")


def _size(sources: Sequence[SourceBackbone]) -> int:
    """The sides that timm says for its networks; 224 where there are only ResNets."""
    sides = {source.build().input.size if not isinstance(source.architecture, Architecture) else IMAGE_SIZE
             for source in sources}  # fmt: skip
    if len(sides) > 1:
        raise InputError(f"expected networks of one image size, found {sorted(sides)}; give --image-size")
    return int(sides.pop())
