"""How well does a backbone do with few labels? kNN and low-shot SVM on frozen features.

python tools/lowshot.py features|knn|svm --config configs/smoke/lowshot_digits.yaml --weights outputs/run [KEY VALUE …]

--weights takes a checkpoint, a run's folder, or the word "pixels" (no backbone: the image itself).
"""

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import mean, stdev
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[1])

from lowshot import inputs
from lowshot.config import get_cfg
from lowshot.evaluations import ON_FEATURES
from lowshot.score import Score
from pretrain.config import config_hash, load_config
from pretrain.console import run_tool, say, table
from pretrain.errors import InputError
from transfer import results

COMMANDS = ("features", *ON_FEATURES)


def main(args: argparse.Namespace) -> None:
    """Compute the features, evaluate, append a record for every score as it comes."""
    cfg = load_config(get_cfg(), args.config, args.overrides)
    file = Path(args.results or Path(cfg.OUTPUT_DIR) / "results.jsonl")
    if args.features or args.test_features:
        train, test = inputs.given_features(args.features, args.test_features)
        known: dict[str, Any] = {"checkpoint": {"name": train.name, "sha256": train.sha256}, "network": ""}
    else:
        if not args.weights:
            raise InputError("expected --weights CHECKPOINT, or --features TRAIN.npz with --test-features TEST.npz")
        source = inputs.load_source(args.weights, args.which, args.family)
        train, test = inputs.feature_sets(cfg, source)
        known = inputs.identity(source)
    known.update(config=config_hash(cfg), dataset=cfg.DATASETS.TITLE or test.name)
    if args.command == "features":
        say(f"{len(train)} + {len(test)} features of {train.features.shape[1]} numbers")
        return
    identity = {"sha256": known["checkpoint"]["sha256"], "config": known["config"], "network": known["network"]}

    def wanted(task: str, protocol: str, trial: int) -> bool:
        return not results.done(file, task=task, protocol=protocol, trial=trial, **identity)

    new = list(recorded(ON_FEATURES[args.command](cfg, train, test, wanted), file, known))
    show(args.command, known, new, file)


def recorded(units: Iterable[list[Score]], file: Path, known: dict[str, Any]) -> Iterator[Score]:
    """Pass scores on, those of one unit of work written to the results file in one go."""
    for scores in units:
        results.append(file, [_record(score, known) for score in scores])
        yield from scores


def _record(score: Score, known: dict[str, Any]) -> dict[str, Any]:
    origin: dict[str, Any] = {
        "protocol": score.protocol,
        "engine": score.engine,
        "trial": score.trial,
        "seed": score.seed,
    }
    return results.make_record(score.task, score.metric, score.value, **origin, **known, **score.details)


def show(command: str, known: dict[str, Any], scores: list[Score], file: Path) -> None:
    """Print the table of what is new: mean ± standard deviation over trials."""
    if not scores:
        say(f"{command}: every score of these weights and settings is in {file} already")
        return
    groups: dict[tuple[str, str, str], list[float]] = {}
    for score in scores:
        groups.setdefault((score.task, score.metric, score.protocol), []).append(score.value)
    rows = [
        (*name, f"{mean(values):.2f}", f"{stdev(values):.2f}" if len(values) > 1 else "", len(values))
        for name, values in groups.items()
    ]
    checkpoint = known["checkpoint"]["name"]
    table(f"{checkpoint} {known['network']} on {known['dataset']}",
          ("task", "metric", "protocol", "mean", "std", "trials"), rows)  # fmt: skip
    say(f"records appended to {file}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--config", required=True, help="YAML file, see configs/lowshot and configs/smoke")
    parser.add_argument("--weights", help='checkpoint or run folder, or "pixels"')
    parser.add_argument("--which", choices=("teacher", "student"), help="network of the checkpoint")
    parser.add_argument("--family", help="kind of a foreign checkpoint, if it is not recognised")
    parser.add_argument("--features", metavar="TRAIN.npz", default="", help="features made elsewhere, with labels")
    parser.add_argument("--test-features", metavar="TEST.npz", default="")
    parser.add_argument("--results", metavar="FILE", help="default: OUTPUT_DIR/results.jsonl")
    parser.add_argument("overrides", nargs="*", metavar="KEY VALUE", help="settings that override the file's")
    sys.exit(run_tool(parser, main))
