"""Measure the noise of batch statistics: how much outputs depend on the other images of the batch.

    python tools/noise.py --weights outputs/momentum2_digits --config configs/smoke/lowshot_digits.yaml
    python tools/noise.py --weights moco_v2_800ep.pth.tar --config configs/lowshot/own_images.yaml DATASETS.ROOT IMAGES

Each of --views training images, as one random view, goes through the network with --other-sets random sets of n − 1
others; printed is the cosine distance between the outputs of one view, in % of the mean distance between images, for
batch statistics of weight alpha beside the running ones (1: plain BN; 0, and EMAN: the running ones alone). The output
is the projector's where the weights are a run of tools/pretrain.py, else the pooled features. Nothing published to
compare with: it shows how much a teacher's target depends on the other images of the batch (Momentum² Teacher 3.1).
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

if not __package__:  # python tools/NAME.py
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from momentum_transfer.core.command import at_least, run_tool
from momentum_transfer.core.errors import InputError, counted
from momentum_transfer.core.log import say, table

#: The task without batch statistics.
RUNNING = "noise/running"


def main(args: argparse.Namespace) -> None:
    from momentum_transfer.core.settings import load_config, with_values
    from momentum_transfer.lowshot.config import check_settings, get_cfg

    cfg = load_config(get_cfg(), args.config, args.overrides)
    check_settings(cfg)
    if bad := [alpha for alpha in args.alpha if not 0 <= alpha <= 1]:
        raise InputError(f"expected --alpha between 0 and 1, found {bad[0]:g}; correct it")
    say(f"noise of the batch statistics of {args.weights} on {cfg.DATASETS.NAME} {cfg.DATASETS.TRAIN}")
    from momentum_transfer.backbones.batch_statistics import check_sizes
    from momentum_transfer.backbones.build import own_input
    from momentum_transfer.backbones.compare_backbones import add_records
    from momentum_transfer.backbones.read import load_backbone
    from momentum_transfer.core.devices import choose_device
    from momentum_transfer.core.records import make_record
    from momentum_transfer.lowshot import inputs
    from momentum_transfer.lowshot.identity import settings_hash
    from momentum_transfer.pretrain.resume import load_embedding

    source = load_backbone(args.weights, network=args.network, architecture=args.arch)
    network = load_embedding(args.weights, source.network)
    if (own := own_input(source.architecture)) is not None:
        cfg = with_values(cfg, {"INPUT.IMAGE_SIZE": own.size})
    images = inputs.Images(cfg, own=own)
    count = min(args.views, len(images.train))
    for n in args.n:
        check_sizes(count, n, args.other_sets)
    began = time.perf_counter()
    views = _views(cfg, images, count).to(choose_device())
    noise = _measured((source.build() if network is None else network).to(views.device), views, args)
    seconds = time.perf_counter() - began
    output = "pooled" if network is None else "embedding"
    alphas = [f"alpha={alpha:g}" for alpha in args.alpha]
    rows = [[f"n={n}", *(f"{noise[f'noise/n={n}/{alpha}']:.2f}" for alpha in alphas)] for n in args.n]
    table(f"{source.name} {source.network}, {output}: % of the distance between images", ["batch", *alphas], rows)
    say(f"running statistics alone (evaluation, EMAN): {noise[RUNNING]:.2f} %; {count} views, {args.other_sets} sets "
        f"of other images, {seconds:.1f} s")  # fmt: skip
    about = {
        "checkpoint": {"name": source.name, "sha256": source.sha256},
        "network": source.network,
        "protocol": f"{output}/{args.other_sets} companions",
        "dataset": inputs.title(cfg, count, len(images.train.classes)),
        "config": settings_hash(cfg),
        "images": count,
        "seconds": round(seconds, 1),
    }
    file = Path(args.results or Path(cfg.OUTPUT_DIR) / "results.jsonl")
    records = [make_record(task, "target_noise", value, seed=args.seed, **about) for task, value in noise.items()]
    new = add_records(file, records)
    say(f"{counted(new, 'record')} appended to {file}, {len(records) - new} were there")


def _measured(network: Any, views: Any, args: argparse.Namespace) -> dict[str, float]:
    """Task -> noise in % of the distance between images."""
    from momentum_transfer.backbones.batch_statistics import statistics_noise

    def percent(n: int, alpha: float) -> float:
        return 100 * statistics_noise(network, views, n, alpha, args.other_sets, args.seed).relative

    running = percent(args.n[0], 0.0)  # whatever n is
    noise = {
        f"noise/n={n}/alpha={alpha:g}": percent(n, alpha) if alpha else running for n in args.n for alpha in args.alpha
    }
    return {**noise, RUNNING: running}


def _views(cfg: Any, images: Any, count: int) -> Any:
    """One random view of each of ``count`` training images [count, 3, H, W], the same every time."""
    import numpy as np
    import torch

    from momentum_transfer.lowshot.augment import SeededView

    view = SeededView(images.weak, cfg.SEED)
    rows = np.random.default_rng(cfg.SEED).permutation(len(images.train))[:count]
    return torch.stack([view(images.train[int(row)][0]) for row in rows])


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--weights", required=True, help="checkpoint of any known family, run folder, hf:…, timm:NAME")
    add("--config", required=True, help="of the images: configs/lowshot/…, configs/smoke/lowshot_…")
    add("--n", type=at_least(2, "a number of images"), nargs="+", default=[8, 16, 32, 64, 128], help="sizes of a batch")
    add("--alpha", type=float, nargs="+", default=[1.0, 0.5, 0.1, 0.0], help="weight of the batch")
    add("--views", type=at_least(2, "a number of images"), default=512, help="images measured (default: %(default)s)")
    add("--other-sets", type=int, default=4, help="random sets of other images for each view (default: %(default)s)")
    add("--seed", type=int, default=0, help="of the random sets (default: %(default)s)")
    add("--network", choices=("teacher", "student"))
    add("--arch", metavar="TEXT", help="architecture, where it cannot be inferred")
    add("--results", type=Path, metavar="FILE", help="default: OUTPUT_DIR/results.jsonl")
    add("overrides", nargs="*", metavar="KEY VALUE", help="settings that override the file's")
    return parser


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
