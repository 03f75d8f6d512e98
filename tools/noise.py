"""How noisy are this network's batch statistics at batch n? The same image among other companions, another output.

    python tools/noise.py --weights outputs/momentum2_digits --config configs/smoke/lowshot_digits.yaml
    python tools/noise.py --weights moco_v2_800ep.pth.tar --config configs/lowshot/own_images.yaml DATASETS.ROOT IMAGES

Each of --views training images, as one random view, goes through the network with --companions random sets of n − 1
others; printed is the cosine distance between the outputs of one view, in % of the mean distance between images, for
batch statistics that weigh alpha beside the running ones (1: plain BN; 0, and EMAN: the running ones alone). The output
is the projector's where the weights are a run of tools/pretrain.py, else the pooled features. There is nothing
published to compare it with: it says how much of a target a teacher's companions make (Momentum² Teacher 3.1).
"""

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:  # python tools/NAME.py
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from momentum_transfer.core.command import at_least, run_tool
from momentum_transfer.core.errors import InputError, counted
from momentum_transfer.core.log import say, table

if TYPE_CHECKING:
    from fvcore.common.config import CfgNode
    from torch import Tensor
    from torch.nn import Module

    from momentum_transfer.lowshot.inputs import Images

#: What a record says was measured.
METRIC = "target_noise"

#: The task without batch statistics.
RUNNING = "noise/running"


def main(args: argparse.Namespace) -> None:
    """Load, measure every n and alpha, print, record."""
    from momentum_transfer.core.settings import load_config
    from momentum_transfer.lowshot.config import check_settings, get_cfg

    cfg = load_config(get_cfg(), args.config, args.overrides)
    check_settings(cfg)
    if bad := [alpha for alpha in args.alpha if not 0 <= alpha <= 1]:
        raise InputError(f"expected --alpha between 0 and 1, found {bad[0]:g}; correct it")
    say(f"noise of the batch statistics of {args.weights} on {cfg.DATASETS.NAME} {cfg.DATASETS.TRAIN}")
    from momentum_transfer.backbones.batch_statistics import check_sizes
    from momentum_transfer.backbones.read import load_backbone
    from momentum_transfer.core.devices import choose_device
    from momentum_transfer.lowshot import inputs
    from momentum_transfer.pretrain.resume import load_embedding

    source = load_backbone(args.weights, network=args.network, architecture=args.arch)
    network = load_embedding(args.weights, source.network)
    images = inputs.Images(cfg)
    count = min(args.views, len(images.train))
    for n in args.n:
        check_sizes(count, n, args.companions)
    began = time.perf_counter()
    views = _views(cfg, images, count).to(choose_device())
    found = _measured((source.build() if network is None else network).to(views.device), views, args)
    seconds = time.perf_counter() - began
    output = "pooled" if network is None else "embedding"
    alphas = [f"alpha={alpha:g}" for alpha in args.alpha]
    rows = [[f"n={n}", *(f"{found[f'noise/n={n}/{alpha}']:.2f}" for alpha in alphas)] for n in args.n]
    table(f"{source.name} {source.network}, {output}: % of the distance between images", ["batch", *alphas], rows)
    say(f"running statistics alone (evaluation, EMAN): {found[RUNNING]:.2f} %; {count} views, {args.companions} sets "
        f"of companions, {seconds:.1f} s")  # fmt: skip
    about = {
        "checkpoint": {"name": source.name, "sha256": source.sha256},
        "network": source.network,
        "protocol": f"{output}/{args.companions} companions",
        "dataset": inputs.title(cfg, count, len(images.train.classes)),
        "images": count,
        "seconds": round(seconds, 1),
    }
    _record(Path(args.results or Path(cfg.OUTPUT_DIR) / "results.jsonl"), found, {**about, "seed": args.seed})


def _measured(network: "Module", views: "Tensor", args: argparse.Namespace) -> dict[str, float]:
    """Task -> noise in % of the distance between images."""
    from momentum_transfer.backbones.batch_statistics import statistics_noise

    def percent(n: int, alpha: float) -> float:
        return 100 * statistics_noise(network, views, n, alpha, args.companions, args.seed).relative

    running = percent(args.n[0], 0.0)  # whatever n is
    found = {
        f"noise/n={n}/alpha={alpha:g}": percent(n, alpha) if alpha else running for n in args.n for alpha in args.alpha
    }
    return {**found, RUNNING: running}


def _record(file: Path, found: dict[str, float], about: dict[str, Any]) -> None:
    """Append what the file does not hold yet."""
    from momentum_transfer.backbones.comparison import add_records
    from momentum_transfer.core.records import make_record

    lines = [make_record(task, METRIC, value, **about) for task, value in found.items()]
    new = add_records(file, lines)
    say(
        f"{counted(new, 'record')} appended to {file}"
        + (f", {len(lines) - new} were there" if new < len(lines) else "")
    )


def _views(cfg: "CfgNode", images: "Images", count: int) -> "Tensor":
    """One random view of each of ``count`` training images, the same every time."""
    import numpy as np
    import torch

    from momentum_transfer.lowshot.augment import SeededView

    view = SeededView(images.weak, cfg.SEED)
    rows = np.random.default_rng(cfg.SEED).permutation(len(images.train))[:count]
    return torch.stack([view(images.train[int(row)][0]) for row in rows])


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--weights", required=True, help="checkpoint of any known family, run folder, hf:…, timm:NAME")
    made.add_argument("--config", required=True, help="of the images: configs/lowshot/…, configs/smoke/lowshot_…")
    made.add_argument(
        "--n",
        type=at_least(2, "a number of images"),
        nargs="+",
        default=[8, 16, 32, 64, 128],
        help="images that share statistics",
    )
    made.add_argument("--alpha", type=float, nargs="+", default=[1.0, 0.5, 0.1, 0.0], help="weight of the batch")
    made.add_argument(
        "--views", type=at_least(2, "a number of images"), default=512, help="images measured (default: %(default)s)"
    )
    made.add_argument("--companions", type=int, default=4, help="random sets for each (default: %(default)s)")
    made.add_argument("--seed", type=int, default=0, help="of the companions (default: %(default)s)")
    made.add_argument("--network", choices=("teacher", "student"))
    made.add_argument("--arch", metavar="TEXT", help="architecture of a checkpoint that does not tell it")
    made.add_argument("--results", type=Path, metavar="FILE", help="default: OUTPUT_DIR/results.jsonl")
    made.add_argument("overrides", nargs="*", metavar="KEY VALUE", help="settings that override the file's")
    return made


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
