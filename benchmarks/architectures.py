"""One row an architecture of timm: random weights on the embedded digits through every evaluation, with its seconds.

python benchmarks/architectures.py [--networks timm:NAME …] [--groups probes …] [--out TABLE.json]

It shows that a network is built, read, evaluated and scored, and what is refused and why; random weights on small
images say nothing about the architectures themselves. Under the table stands the reason of every refusal.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch

from momentum_transfer.backbones.build import build_backbone, parse_architecture
from momentum_transfer.core.command import run_tool
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import write_text
from momentum_transfer.core.log import say, table
from momentum_transfer.core.ranges import Choice
from momentum_transfer.lowshot.library import evaluate

#: what it is -> the smallest of its kind in timm, or one at few pixels
NETWORKS = {
    "ResNet": "resnet18",
    "ResNeXt": "timm:resnext26ts?img_size=32",
    "RegNet": "timm:regnety_002?img_size=32",
    "EfficientNet": "timm:efficientnet_b0?img_size=32",
    "MobileNet V3": "timm:mobilenetv3_small_050?img_size=32",
    "ConvNeXt": "timm:convnext_atto?img_size=32",
    "ConvNeXt V2": "timm:convnextv2_atto?img_size=32",
    "Swin": "timm:swin_tiny_patch4_window7_224?img_size=32&window_size=4",
    "Swin V2": "timm:swinv2_tiny_window8_256?img_size=64",
    "MaxViT": "timm:maxvit_rmlp_pico_rw_256?img_size=64",
    "Hiera": "timm:hiera_tiny_224?img_size=64",
    "ViT-S/16": "timm:vit_small_patch16_224?img_size=32",
    "ViT-S/14, registers": "timm:vit_small_patch14_reg4_dinov2?img_size=28",
    "DINOv3's ViT-S/16": "timm:vit_small_patch16_dinov3?img_size=32",
    "SigLIP's ViT-B/16": "timm:vit_base_patch16_siglip_224?img_size=32&depth=4",
    "MLP-Mixer": "timm:mixer_s32_224?img_size=64",
}

#: one draw, a few epochs on stored features: seconds
QUICK = {"KNN.PRESETS": ["eman"], "SVM.SHOTS": [4], "SVM.DRAWS": 1, "LINEAR.CACHED": True, "LINEAR.TRIALS": 1,
         "LINEAR.LEARNING_RATES": [1.0], "LINEAR.EPOCHS": 5, "INPUT.IMAGE_SIZE": 32}  # fmt: skip


def probes(text: str) -> dict[str, str]:
    """kNN, low-shot SVM and linear classifier: top-1 in percent."""
    scores = {line["task"].split("/")[0]: line["value"]
              for line in evaluate(_backbone(text), settings=QUICK) if line["metric"] == "top1"}  # fmt: skip
    return {"kNN": f"{scores['knn']:.1f}", "SVM k=4": f"{scores['svm']:.1f}", "linear": f"{scores['linear']:.1f}"}


def tokens(text: str) -> dict[str, str]:
    """kNN of CLS token and mean patch; refused of networks without."""
    (line,) = (line for line in evaluate(_backbone(text), evaluations=["knn"], pool="cls+patch_mean", settings=QUICK)
               if line["metric"] == "top1")  # fmt: skip
    return {"kNN cls+patch": f"{line['value']:.1f}"}


#: name -> (its columns, text of an architecture -> value by column); a further group adds its own
GROUPS: dict[str, tuple[tuple[str, ...], Callable[[str], dict[str, str]]]] = {
    "probes": (("kNN", "SVM k=4", "linear"), probes),
    "tokens": (("kNN cls+patch",), tokens),
}


def _backbone(text: str) -> Any:
    torch.manual_seed(0)
    return build_backbone(parse_architecture(text)).eval()


def row(title: str, text: str, groups: list[str]) -> dict[str, Any]:
    """What it is, each group's values and seconds, and the reasons of what was refused."""
    backbone = _backbone(text)
    maps = f"1 of stride {backbone.patch_size}" if backbone.plain else " ".join(map(str, backbone.strides.values()))
    found: dict[str, Any] = {
        "network": title,
        "architecture": text,
        "parameters": sum(parameter.numel() for parameter in backbone.parameters()),
        "maps": maps,
        "values": {},
        "seconds": {},
        "refused": {},
    }
    for group in groups:
        columns, measure = GROUPS[group]
        begun = time.perf_counter()
        try:
            found["values"] |= measure(text)
        except InputError as error:
            found["refused"][group] = str(error)
            found["values"] |= dict.fromkeys(columns, "refused")
        found["seconds"][group] = round(time.perf_counter() - begun, 1)
    return found


def main(args: argparse.Namespace) -> None:
    """A row a network, then the reasons of refusals."""
    for group in args.groups:
        Choice(GROUPS).require("--groups", group)
    chosen = {text: text for text in args.networks} or NETWORKS
    rows = []
    for title, text in chosen.items():
        rows.append(row(title, text, args.groups))
        say(f"{title}: {rows[-1]['values']}")
    columns = [column for group in args.groups for column in GROUPS[group][0]]
    table("random weights on the embedded digits", ("network", "M", "maps", *columns, *(f"s {g}" for g in args.groups)),
          [(one["network"], f"{one['parameters'] / 1e6:.1f}", one["maps"], *(one["values"][c] for c in columns),
            *(f"{one['seconds'][group]:.0f}" for group in args.groups)) for one in rows])  # fmt: skip
    for one in rows:
        for group, reason in one["refused"].items():
            say(f"{one['network']}, {group}: {reason}")
    if args.out:
        write_text(args.out, json.dumps(rows, indent=1) + "\n")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--networks", nargs="+", default=[], metavar="TEXT", help="instead of the list: resnet18, timm:…"
    )
    parser.add_argument("--groups", nargs="+", default=list(GROUPS), metavar="GROUP", help=f"of {', '.join(GROUPS)}")
    parser.add_argument("--out", metavar="FILE.json", help="the rows as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
