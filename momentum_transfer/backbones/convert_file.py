"""From a checkpoint file of any known family to weights for Detectron2 or torchvision, rescaled if asked.

Settings that Detectron2 needs for a converted backbone: printed, and written beside it as a YAML to merge.

The configurations of Detectron2's model zoo are for weights in BGR with a standard deviation of 1 and the stride in the
first 1x1 convolution. They load every tensor of a converted .pkl without a word, and compute other features from it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import yaml

from momentum_transfer.backbones import convert, norm_rescale, vitdet
from momentum_transfer.backbones import norm_rescale as synthetic_lars
from momentum_transfer.backbones.build import build_backbone, own_input
from momentum_transfer.backbones.model_config import input_in, read_model_config
from momentum_transfer.backbones.network_input import NetworkInput
from momentum_transfer.backbones.read import CoverageError, SourceBackbone, load_backbone
from momentum_transfer.backbones.resnet import DEPTHS, Architecture
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import write_text
from momentum_transfer.core.log import say, warn

_HEADER = "# Settings of Detectron2 for weights of momentum-transfer convert"
_FUNCTION = "call momentum_transfer.add_momentum_transfer_config(cfg) before you merge"


def beside(weights: Path) -> Path:
    """Where the settings of a .pkl are: OUT.pkl → OUT.yaml."""
    return weights.with_suffix(".yaml")


def check_target(weights: Path) -> None:
    """Raise where the settings cannot be written beside ``weights``, before anything is computed.

    Raises:
        InputError: as ``convert.check_target``; or a file of that name is there that no conversion has written.
    """
    path = beside(weights)
    convert.check_target(path)
    if path.exists() and not path.read_bytes().startswith(_HEADER.encode()):
        raise InputError(
            f"expected no file {path}, or one of an earlier conversion: Detectron2's settings go there; found another; "
            "choose another output name"
        )


def write(weights: Path, source: SourceBackbone) -> None:
    """Write the settings for ``source``, converted to ``weights``, and print them with what no setting can say."""
    if isinstance(source.architecture, Architecture) and source.architecture.stem != "imagenet":
        warn(
            f"no detector builds the {source.architecture.stem} stem of {source.architecture} (3x3, stride 1): "
            "Detectron2 would leave its first convolution at random; no settings are written"
        )
        beside(weights).unlink(missing_ok=True)  # an earlier conversion's, of other weights
        return
    found = settings(source)
    text = yaml.safe_dump(found, sort_keys=False, default_flow_style=None)
    write_text(beside(weights), f"{_HEADER}: {source.architecture}; merge it last.\n{text}")
    say(f"wrote {beside(weights)}: merge it into Detectron2's configuration, whose defaults are for other weights:")
    say("  " + " ".join(_overrides(found)))
    for note in _notes(source):
        say(f"  {note}")


def settings(source: SourceBackbone) -> dict[str, Any]:
    """The settings as Detectron2's configuration nests them; those of a ViT need this project's keys there."""
    architecture = source.architecture
    # A ResNet does not tell its input, but timm's config beside it may.
    images = own_input(architecture) or input_in(read_model_config(source.path)) or NetworkInput()
    mean, std = images.pixels
    found: dict[str, Any] = {"VERSION": 2, "INPUT": {"FORMAT": "RGB"}, "MODEL": {"PIXEL_MEAN": mean, "PIXEL_STD": std}}
    if isinstance(architecture, Architecture):
        block, _ = DEPTHS[architecture.name]
        found["MODEL"]["RESNETS"] = {
            "DEPTH": int(architecture.name.removeprefix("resnet")),
            "STRIDE_IN_1X1": False,
            "STEM_OUT_CHANNELS": architecture.width,
            "RES2_OUT_CHANNELS": architecture.width * block.expansion,
            "NUM_GROUPS": 1,
            "WIDTH_PER_GROUP": architecture.width,
        }
    else:
        found["MODEL"]["BACKBONE"] = {"ARCH": str(architecture), "FREEZE_AT": 0}
        found["MODEL"]["VIT"] = {"FORM": "vitdet"}
    return found


def _overrides(tree: dict[str, Any], prefix: str = "") -> list[str]:
    """KEY VALUE words for the command line of Detectron2's train_net; VERSION is none of them."""
    words: list[str] = []
    for key, value in tree.items():
        if isinstance(value, dict):
            words += _overrides(value, f"{prefix}{key}.")
        elif key != "VERSION":
            words += [f"{prefix}{key}", f"'{value}'" if isinstance(value, list) else str(value)]
    return words


def _notes(source: SourceBackbone) -> list[str]:
    """What a user of Detectron2 must know beside the settings."""
    architecture = source.architecture
    if isinstance(architecture, Architecture):
        block, _ = DEPTHS[architecture.name]
        if block.expansion > 1:
            return []
        alone = architecture.name != "resnet10" and architecture.width == 64
        lacks = "no C4 head for" if alone else "no"
        return [f"Detectron2 itself builds {lacks} {architecture}: {_FUNCTION}"]
    with torch.device("meta"):
        shape = vitdet.describe(build_backbone(architecture))
    return [
        f"these keys are this project's: {_FUNCTION}",
        "in a LazyConfig of ViTDet: model.pixel_mean, model.pixel_std and model.input_format as above, and backbone.net"
        f" with embed_dim={shape.width}, depth={shape.depth}, num_heads={shape.heads}, patch_size=16, "
        f"pretrain_img_size={16 * shape.grid}, pretrain_use_cls_token=False",
    ]


def convert_file(
    checkpoint: str | Path,
    out: str | Path,
    *,
    network: str | None = None,
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
        checkpoint, network, family, trust_pickle, architecture, resize_positions: as for
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
        check_target(out)
    if sum(each is not None for each in (anchor, constant, scale)) > 1:
        raise InputError("expected one of anchor, constant and scale, found several; convert twice")
    source = _read(
        checkpoint, architecture, network=network, family=family, trust_pickle=trust_pickle,
        resize_positions=resize_positions,
    )  # fmt: skip
    other = None if anchor is None else str(anchor)
    scaling = synthetic_lars.apply_lars(source, scale, scope)
    rescaling = norm_rescale.apply(source, other, constant, scope, trust_pickle=trust_pickle)
    if not rescaling and not scaling and (warning := norm_rescale.lars_warning(source.state)):
        warn(warning)
    metadata = convert.architecture_metadata(source, rescaling) | ({"scaled": scaling} if scaling else {})
    convert.write(out, source.state, source.architecture, metadata, without_prefix=without_prefix)
    rescaled = (f", NormRescale {rescaling}" if rescaling else "") + (f", {scaling}" if scaling else "")
    say(f"wrote {out}: {_shape(source)}, network {source.network}{rescaled}")
    if out.suffix == ".pkl":
        write(out, source)
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
