"""From a checkpoint file of any known family to weights for Detectron2 or torchvision, rescaled if asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from momentum_transfer.backbones import convert, detectron2_settings, norm_rescale, synthetic_lars
from momentum_transfer.backbones.read import CoverageError, SourceBackbone, load_backbone
from momentum_transfer.backbones.resnet import Architecture
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.log import say, warn


def convert_file(
    checkpoint: str | Path,
    out: str | Path,
    *,
    which: str | None = None,
    family: str | None = None,
    anchor: str | Path | None = None,
    constant: float | None = None,
    scale: float | None = None,
    scope: str = norm_rescale.DEFAULT_SCOPE,
    trust_pickle: bool = False,
    architecture: str | None = None,
    resize_positions: bool = False,
    without_prefix: bool = False,
) -> SourceBackbone:
    """Read, rescale if asked, write; every key is accounted for, or nothing is written.

    Args:
        checkpoint, which, family, trust_pickle, architecture, resize_positions: as for
            :func:`momentum_transfer.backbones.read.load_backbone`.
        without_prefix: leave CLS tokens and registers of a ViT out of a .pkl, which is then another function.
        out: the suffix chooses the format: .pkl (Detectron2, a ResNet or a plain ViT), .pth or .safetensors
            (torchvision's names or timm's).
        anchor: NormRescale: give every weight the norm that it has in this checkpoint (RCF, equation 3).
        constant: multiply every weight by this instead (RCF, table 8).
        scale: multiply every weight of a ResNet by this, and its BatchNorm statistics as they follow
            (``synthetic_lars``).
        scope: which tensors are rescaled, one of ``norm_rescale.SCOPES``; with ``scale`` of ``synthetic_lars.SCOPES``.

    A .pkl gets the settings that Detectron2 needs for it beside it (``detectron2_settings``): OUT.yaml.

    Returns:
        What was written, with the report of the checkpoint's keys.

    Raises:
        InputError: as ``load_backbone`` and ``convert.write``; :class:`CoverageError` carries the report.
    """
    out = Path(out)
    convert.check_suffix(out)
    convert.check_target(out)
    if out.suffix == ".pkl":
        detectron2_settings.check_target(out)
    if sum(each is not None for each in (anchor, constant, scale)) > 1:
        raise InputError("expected one of anchor, constant and scale, found several; convert twice")
    source = _read(
        checkpoint, architecture, which=which, family=family, trust_pickle=trust_pickle,
        resize_positions=resize_positions,
    )  # fmt: skip
    other = None if anchor is None else str(anchor)
    scaling = synthetic_lars.apply(source, scale, scope)
    rescaling = norm_rescale.apply(source, other, constant, scope, trust_pickle=trust_pickle)
    if not rescaling and not scaling and (warning := norm_rescale.lars_warning(source.state)):
        warn(warning)
    metadata = convert.metadata_of(source, rescaling) | ({"scaled": scaling} if scaling else {})
    convert.write(out, source.state, source.architecture, metadata, without_prefix=without_prefix)
    rescaled = (f", NormRescale {rescaling}" if rescaling else "") + (f", {scaling}" if scaling else "")
    say(f"wrote {out}: {_shape(source)}, network {source.network}{rescaled}")
    if out.suffix == ".pkl":
        detectron2_settings.write(out, source)
    return source


def _read(checkpoint: str | Path, architecture: str | None, **options: Any) -> SourceBackbone:
    """The checkpoint; the report of its keys is printed either way."""
    title = f"keys of {checkpoint}"
    try:
        source = load_backbone(checkpoint, architecture, **options)
    except CoverageError as error:
        error.report.show(title)
        raise
    source.report.show(title)
    return source


def _shape(source: SourceBackbone) -> str:
    arch = source.architecture
    return f"{arch.name}, width {arch.width}, stem {arch.stem}" if isinstance(arch, Architecture) else str(arch)
