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
from typing import TYPE_CHECKING

sys.path[0] = str(Path(__file__).resolve().parents[1])

from momentum_transfer.console import run_tool, say, table
from momentum_transfer.errors import InputError

if TYPE_CHECKING:
    from fvcore.common.config import CfgNode
    from torch import Tensor

    from lowshot.inputs import Images

#: What a record says was measured.
METRIC = "target_noise"


def main(args: argparse.Namespace) -> None:
    """Load, measure every n and alpha, print, record."""
    from lowshot.config import get_cfg
    from lowshot.ranges import check_settings
    from momentum_transfer.settings import load_config

    cfg = load_config(get_cfg(), args.config, args.overrides)
    check_settings(cfg)
    if bad := [alpha for alpha in args.alpha if not 0 <= alpha <= 1]:
        raise InputError(f"expected --alpha between 0 and 1, found {bad[0]:g}; correct it")
    say(f"noise of the batch statistics of {args.weights} on {cfg.DATASETS.NAME} {cfg.DATASETS.TRAIN}")
    from lowshot import inputs
    from momentum_transfer import records as results
    from momentum_transfer.backbones.read import load_backbone
    from momentum_transfer.backbones.statistics_noise import check_sizes, statistics_noise
    from momentum_transfer.devices import choose_device
    from pretrain.embedding import load_embedding

    source = load_backbone(args.weights, which=args.which, architecture=args.arch)
    network = load_embedding(args.weights, source.network)
    where, output = choose_device(), "pooled" if network is None else "embedding"
    images = inputs.Images(cfg)
    count = min(args.views, len(images.train))
    for n in args.n:
        check_sizes(count, n, args.companions)
    views = _views(cfg, images, count).to(where)
    measured: dict[str, dict[str, float]] = {}
    began = time.perf_counter()
    model = (source.build() if network is None else network).to(where)
    for n in args.n:
        for alpha in args.alpha:
            noise = statistics_noise(model, views, n, alpha, args.companions, args.seed)
            measured.setdefault(f"n={n}", {})[f"alpha={alpha:g}"] = 100 * noise.relative
    running = 100 * statistics_noise(model, views, args.n[0], 0.0, args.companions, args.seed).relative
    seconds = time.perf_counter() - began
    alphas = [f"alpha={alpha:g}" for alpha in args.alpha]
    rows = [[name, *(f"{line[alpha]:.2f}" for alpha in alphas)] for name, line in measured.items()]
    table(f"{source.name} {source.network}, {output}: % of the distance between images", ["batch", *alphas], rows)
    say(f"running statistics alone (evaluation, EMAN): {running:.2f} %; {count} views, {args.companions} sets of "
        f"companions, {seconds:.1f} s")  # fmt: skip
    found = {f"noise/{n}/{alpha}": value for n, line in measured.items() for alpha, value in line.items()}
    file = Path(args.results or Path(cfg.OUTPUT_DIR) / "results.jsonl")
    results.append(file, [
        results.make_record(
            task, METRIC, value, checkpoint={"name": source.name, "sha256": source.sha256}, network=source.network,
            protocol=output, dataset=inputs.title(cfg, count, len(images.train.classes)), seed=args.seed,
            views=count, companions=args.companions, seconds=round(seconds, 1),
        )
        for task, value in {**found, "noise/running": running}.items()
    ])  # fmt: skip
    say(f"records appended to {file}")


def _views(cfg: "CfgNode", images: "Images", count: int) -> "Tensor":
    """One random view of each of ``count`` training images, the same every time."""
    import numpy as np
    import torch

    from lowshot.augment import SeededView

    view = SeededView(images.weak, cfg.SEED)
    rows = np.random.default_rng(cfg.SEED).permutation(len(images.train))[:count]
    return torch.stack([view(images.train[int(row)][0]) for row in rows])


def _batch(text: str) -> int:
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"expected a batch of at least 2 images, found {text}")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--weights", required=True, help="checkpoint of any known family, run folder, hf:…, timm:NAME")
    made.add_argument("--config", required=True, help="of the images: configs/lowshot/…, configs/smoke/lowshot_…")
    made.add_argument("--n", type=_batch, nargs="+", default=[8, 16, 32, 64, 128], help="images that share statistics")
    made.add_argument("--alpha", type=float, nargs="+", default=[1.0, 0.5, 0.1, 0.0], help="weight of the batch")
    made.add_argument("--views", type=_batch, default=512, help="images measured (default: %(default)s)")
    made.add_argument("--companions", type=int, default=4, help="random sets for each (default: %(default)s)")
    made.add_argument("--seed", type=int, default=0, help="of the companions (default: %(default)s)")
    made.add_argument("--network", "--which", dest="which", choices=("teacher", "student"))
    made.add_argument("--arch", metavar="TEXT", help="architecture of a checkpoint that does not tell it")
    made.add_argument("--results", type=Path, metavar="FILE", help="default: OUTPUT_DIR/results.jsonl")
    made.add_argument("overrides", nargs="*", metavar="KEY VALUE", help="settings that override the file's")
    return made


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
