"""Converts a checkpoint file of any known family to weights for Detectron2 or torchvision, rescaled if asked.

The settings that Detectron2 needs for a converted .pkl are printed, and written beside it as a YAML to merge: its model
zoo's configurations are for weights in BGR with a standard deviation of 1 and the stride in the first 1x1 convolution.
They load every tensor of a converted .pkl without a warning, and compute other features from it.
"""

from pathlib import Path
from typing import Any

import torch
import yaml

from momentum_transfer.backbones import convert, norm_rescale, vitdet
from momentum_transfer.backbones.build import build_backbone, own_input
from momentum_transfer.backbones.model_config import input_in, read_model_config
from momentum_transfer.backbones.network_input import NetworkInput
from momentum_transfer.backbones.read import load_backbone
from momentum_transfer.backbones.resnet import DEPTHS, Architecture
from momentum_transfer.backbones.source import CoverageError, SourceBackbone
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import write_text
from momentum_transfer.core.log import say, warn

_HEADER = "# Settings of Detectron2 for weights of momentum-transfer convert"
_FUNCTION = "call momentum_transfer.add_momentum_transfer_config(cfg) before you merge"


def _check_settings_file(path: Path) -> None:
    """Raise InputError, before anything is computed, where the settings cannot be written."""
    convert.check_target(path)
    if path.exists() and not path.read_bytes().startswith(_HEADER.encode()):
        what = f"no file {path}, or one of an earlier conversion: Detectron2's settings go there"
        raise InputError(f"expected {what}; found another; choose another output name")


def _write_settings(path: Path, source: SourceBackbone) -> None:
    """Write the settings for ``source``, and print them with what no setting can say."""
    if isinstance(source.architecture, Architecture) and source.architecture.stem != "imagenet":
        warn(
            f"no detector builds the {source.architecture.stem} stem of {source.architecture} (3x3, stride 1): "
            "Detectron2 would leave its first convolution at random; no settings are written"
        )
        path.unlink(missing_ok=True)  # an earlier conversion's, of other weights
        return
    tree = settings(source)
    text = yaml.safe_dump(tree, sort_keys=False, default_flow_style=None)
    write_text(path, f"{_HEADER}: {source.architecture}; merge it last.\n{text}")
    say(f"wrote {path}: merge it into Detectron2's configuration, whose defaults are for other weights:")
    say("  " + " ".join(_overrides(tree)))
    for note in _notes(source):
        say(f"  {note}")


def settings(source: SourceBackbone) -> dict[str, Any]:
    """The settings as Detectron2's configuration nests them; those of a ViT need this project's keys there."""
    architecture = source.architecture
    # A ResNet asks for no input, but timm's config beside it may.
    images = own_input(architecture) or input_in(read_model_config(source.path)) or NetworkInput()
    mean, std = images.pixels
    caffe = isinstance(architecture, Architecture) and architecture.style == "caffe"
    model: dict[str, Any] = {"PIXEL_MEAN": mean[::-1] if caffe else mean, "PIXEL_STD": [1.0] * 3 if caffe else std}
    if isinstance(architecture, Architecture):
        block, _ = DEPTHS[architecture.name]
        width = architecture.width
        model["RESNETS"] = {
            "DEPTH": int(architecture.name.removeprefix("resnet")), "STRIDE_IN_1X1": caffe, "STEM_OUT_CHANNELS": width,
            "RES2_OUT_CHANNELS": width * block.expansion, "NUM_GROUPS": 1, "WIDTH_PER_GROUP": width,
        }  # fmt: skip
    else:
        model |= {"BACKBONE": {"ARCH": str(architecture), "FREEZE_AT": 0}, "VIT": {"FORM": "vitdet"}}
    return {"VERSION": 2, "INPUT": {"FORMAT": "BGR" if caffe else "RGB"}, "MODEL": model}


def _overrides(tree: dict[str, Any], prefix: str = "") -> list[str]:
    """KEY VALUE for the command line of Detectron2's train_net, without VERSION."""
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

    A .pkl gets the settings that Detectron2 needs for it beside it: OUT.yaml.

    Args:
        checkpoint, network, family, trust_pickle, architecture, resize_positions: as for ``read.load_backbone``.
        out: the suffix chooses the format: .pkl (Detectron2, a ResNet or a plain ViT), .pth or .safetensors
            (torchvision's names or timm's).
        anchor: NormRescale: give every weight the norm that it has in this checkpoint (RCF, equation 3).
        constant: multiply every weight by this instead (RCF, table 8).
        scale: multiply every weight of a ResNet by this, and its BatchNorm statistics as they follow.
        scope: which tensors are rescaled, one of ``norm_rescale.SCOPES``; with ``scale`` of ``LARS_SCOPES``.
        without_prefix: leave CLS tokens and registers of a ViT out of a .pkl, which is then another function.

    Raises:
        InputError: as ``load_backbone`` and ``convert.write``; :class:`CoverageError` carries the report of the keys.
    """
    out = Path(out)
    convert.check_suffix(out)
    convert.check_target(out)
    if out.suffix == ".pkl":
        _check_settings_file(out.with_suffix(".yaml"))
    if sum(each is not None for each in (anchor, constant, scale)) > 1:
        raise InputError("expected one of anchor, constant and scale, found several; convert twice")
    title = f"keys of {checkpoint}"
    try:
        source = load_backbone(
            checkpoint, architecture, network=network, family=family, trust_pickle=trust_pickle,
            resize_positions=resize_positions,
        )  # fmt: skip
    except CoverageError as error:
        error.report.show(title)
        raise
    source.report.show(title)
    scaling = norm_rescale.apply_lars(source, scale, scope)
    rescaling = norm_rescale.apply(source, anchor, constant, scope, trust_pickle=trust_pickle)
    if not rescaling and not scaling and (warning := norm_rescale.lars_warning(source.state)):
        warn(warning)
    metadata = convert.architecture_metadata(source, rescaling) | ({"scaled": scaling} if scaling else {})
    convert.write(out, source.state, source.architecture, metadata, without_prefix=without_prefix)
    rescaled = (f", NormRescale {rescaling}" if rescaling else "") + (f", {scaling}" if scaling else "")
    say(f"wrote {out}: {source.architecture}, network {source.network}{rescaled}")
    if out.suffix == ".pkl":
        _write_settings(out.with_suffix(".yaml"), source)
    return source
