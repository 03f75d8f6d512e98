"""The configs that ship and their headers: the comment lines at the left of a file, or those right above a variant."""

import functools
from pathlib import Path

from momentum_transfer.core.shipped import find_config, listing_of, shipped_configs, short_name


@functools.cache
def configs_of(room: str) -> list[Path]:
    """The configs of a folder that can be run, variants too: no ``base…``, nor the recipe of no paper, own_small."""
    names = [
        name
        for name in _shipped()
        if name.startswith(f"{room}/") and not name.startswith((f"{room}/base", "pretrain/own_small"))
    ]
    assert names
    return [find_config(name) for name in names]


@functools.cache
def _shipped() -> list[str]:
    return shipped_configs()


@functools.cache
def header(config: Path) -> str:
    listing = listing_of(config)
    lines = (listing or config).read_text(encoding="utf-8").splitlines()
    if listing is None:
        return "\n".join(line for line in lines if line.startswith("#"))
    end = begin = next(i for i, line in enumerate(lines) if line.startswith(f"  {config.stem}:"))
    while lines[begin - 1].startswith("  #"):
        begin -= 1
    return "\n".join(line[2:] for line in lines[begin:end])


def spelling(config: Path) -> str:
    """How a header's command names the config: by its file, or a variant by its short name."""
    name = short_name(config)
    return name if listing_of(config) else f"configs/{name}.yaml"
