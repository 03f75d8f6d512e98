"""What the teacher's normalisation is worth at small batches: short Momentum² runs on the digits, several seeds each.

python benchmarks/teacher_norms.py [--batch 16 32] [--seeds 0 1 2] [--images 9600] [--output FOLDER] [KEY VALUE …]

The student has plain BN throughout; the teacher BN, Momentum BN with alpha falling from 1 to 0 or fixed, or EMAN
(the question of tables 6 and 7 of Momentum² Teacher, arXiv 2101.07525, and table 1 of EMAN, arXiv 2101.08482). Every
run sees as many images; learning rate and teacher momentum follow the equivalence rule. Reported is the evaluated
network's kNN top-1 on held-out digits after the last step, mean and standard deviation (n - 1) over the seeds.
A run that is there already is not repeated, one that was killed is resumed.
"""

import argparse
import statistics
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch

from momentum_transfer.core.command import run_tool
from momentum_transfer.core.log import say, table
from momentum_transfer.core.loggers import read
from momentum_transfer.core.settings import load_config
from momentum_transfer.pretrain.config import get_cfg
from momentum_transfer.pretrain.train import train

CONFIG = "smoke/momentum2_digits"
FIXED = {"NORM.TEACHER": "MomentumBN", "NORM.ALPHA_SCHEDULE": "constant"}
TEACHERS: dict[str, dict[str, object]] = {
    "BN": {"NORM.TEACHER": "BN"},
    "Momentum BN, alpha 1 to 0": {"NORM.TEACHER": "MomentumBN"},
    "Momentum BN, alpha .5": {**FIXED, "NORM.ALPHA_BASE": 0.5},
    "Momentum BN, alpha .1": {**FIXED, "NORM.ALPHA_BASE": 0.1},
    "EMAN": {"NORM.TEACHER": "EMAN"},
}


def knn_after_training(folder: Path, settings: dict[str, object], overrides: list[str]) -> float:
    """Percent of held-out digits; trains unless the folder holds the finished run of these settings."""
    words = [str(word) for pair in settings.items() for word in pair]
    cfg = load_config(get_cfg(), CONFIG, [*words, *overrides, "OUTPUT_DIR", str(folder)])
    train(cfg, resuming=True)
    scores = [line["knn_top1"] for line in read(folder / "metrics.jsonl") if "knn_top1" in line]
    return float(scores[-1])


def main(args: argparse.Namespace) -> None:
    torch.set_num_threads(args.threads)
    scores: dict[str, list[list[float]]] = {name: [[] for _ in args.batch] for name in TEACHERS}
    for seed in args.seeds:
        for column, batch in enumerate(args.batch):
            for name, teacher in TEACHERS.items():
                settings = {
                    "SEED": seed,
                    "MODEL.WIDTH": 16,
                    "SOLVER.BATCH_SIZE": batch,
                    "SOLVER.STEPS": max(args.images // batch, 1),
                    "TEACHER.SCALE_MOMENTUM": True,
                    "RUN.KNN_EVERY": 1e6,  # epochs: after the last step only
                    "RUN.KEEP": 1,
                    **teacher,
                }
                folder = args.output / f"{name.replace(', ', '_').replace(' ', '_')}_batch{batch}_seed{seed}"
                score = knn_after_training(folder, settings, args.overrides)
                scores[name][column].append(score)
                say(f"{name}, batch {batch}, seed {seed}: {score:.2f} %")
    rows = [[name, *(spread(values) for values in columns)] for name, columns in scores.items()]
    title = f"kNN top-1 in %, {args.images} images seen, {len(args.seeds)} seeds"
    table(title, ["teacher's normalisation", *(f"batch {batch}" for batch in args.batch)], rows)


def spread(values: list[float]) -> str:
    """Mean ± standard deviation over the seeds; of one seed the mean alone."""
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{deviation}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[16, 32])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--images", type=int, default=9_600, help="images that a run sees, in all its steps")
    parser.add_argument("--output", type=Path, default=Path("outputs/teacher_norms"), metavar="FOLDER")
    parser.add_argument("--threads", type=int, default=1, help="of the CPU")
    parser.add_argument("overrides", nargs="*", metavar="KEY VALUE", help="settings for every run")
    sys.exit(run_tool(parser, main))
