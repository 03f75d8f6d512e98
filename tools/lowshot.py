"""How well does a backbone do with few labels? Frozen features, linear classifiers, fine-tuning, FixMatch.

python tools/lowshot.py features|knn|retrieval|svm|linear|finetune|fixmatch --config configs/smoke/lowshot_digits.yaml
    --weights outputs/run [KEY VALUE …]

--weights takes a checkpoint, a run's folder, or a word: "pixels" (no backbone: the image itself; features, knn,
retrieval, svm) or "scratch" (a random start; linear, finetune, fixmatch). knn, retrieval and svm also take features
made elsewhere: --features TRAIN.npz --test-features TEST.npz. Under torchrun, features, linear, finetune and fixmatch
share the work between processes; knn, retrieval and svm share the extraction, and the first process does the rest.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[1])

from fvcore.common.config import CfgNode

from lowshot import inputs
from lowshot.config import get_cfg
from lowshot.devices import device
from lowshot.evaluations import CHECKS, ON_FEATURES, Wanted
from lowshot.image_evaluations import ON_IMAGES, SCORES_OWN_NETWORKS
from lowshot.ranges import check_settings
from lowshot.score import Score
from momentum_transfer import distributed
from momentum_transfer import records as results
from momentum_transfer.console import run_tool, say, table
from momentum_transfer.errors import InputError
from momentum_transfer.files import sha256_of_text
from momentum_transfer.settings import load_config

Evaluate = Callable[[Wanted], Iterator[list[Score]]]
COMMANDS = ("features", *ON_FEATURES, *ON_IMAGES)


def main(args: argparse.Namespace) -> None:
    """Evaluate, and append a record for every score as it comes."""
    cfg = load_config(get_cfg(), args.config, args.overrides)
    check_settings(cfg)
    file = Path(args.results or Path(cfg.OUTPUT_DIR) / "results.jsonl")
    check_writable(file)
    with distributed.process_group(device()):
        known, evaluate = prepare(args, cfg)
        alone = args.command in ON_FEATURES  # on features that all processes have made, the first one works alone
        if alone and not distributed.is_main():
            return
        known.update(config=inputs.settings_hash(cfg))
        identity = {"sha256": known["checkpoint"]["sha256"], "config": known["config"]}
        identity["start_network" if args.command in SCORES_OWN_NETWORKS else "network"] = known["network"]

        def wanted(task: str, protocol: str, trial: int) -> bool:
            return not results.done(file, task=task, protocol=protocol, trial=trial, **identity)

        new = list(recorded(evaluate(wanted), file, known, alone))
    if args.command != "features":
        show(args.command, known, new, file)


def check_writable(file: Path) -> None:
    """Raise :class:`InputError` before hours of work if the results file cannot be written."""
    if not distributed.is_main():
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        new = not file.exists()
        with open(file, "ab"):
            pass
        if new:
            file.unlink()  # an evaluation that ends in an error leaves no empty file
    except OSError as error:
        raise InputError(f"cannot write results to {file}: {error.strerror}; choose another --results FILE") from error


def prepare(args: argparse.Namespace, cfg: CfgNode) -> tuple[dict[str, Any], Evaluate]:
    """What records say about the weights and data, and the evaluation with its inputs bound."""
    title = cfg.DATASETS.TITLE or f"{cfg.DATASETS.NAME} {cfg.DATASETS.TEST}"
    if args.features or args.test_features:
        if args.command not in ON_FEATURES:
            raise InputError(f"{args.command} works on images, not on --features; give --weights CHECKPOINT")
        if args.weights:
            raise InputError("expected --weights or --features, found both; leave out the one that is not meant")
        train, test = inputs.given_features(args.features, args.test_features)
        both = sha256_of_text(f"{train.sha256} {test.sha256}")  # another test file is another result
        known = {"checkpoint": {"name": train.name, "sha256": both}, "network": "", "dataset": test.name}
        return known, partial(ON_FEATURES[args.command], cfg, train, test)
    if not args.weights:
        raise InputError("expected --weights CHECKPOINT, or --features TRAIN.npz with --test-features TEST.npz")
    on_images = args.command in ON_IMAGES
    if args.weights == (inputs.PIXELS if on_images else inputs.SCRATCH):
        raise InputError(f"--weights {args.weights} means nothing to {args.command}; see --help")
    source = inputs.load_source(args.weights, args.which, args.family)
    known = {**inputs.identity(source, args.weights), "dataset": title}
    if on_images:
        return known, partial(ON_IMAGES[args.command], cfg, source)
    check = partial(CHECKS[args.command], cfg) if args.command in CHECKS else lambda *_: None
    train, test = inputs.feature_sets(cfg, source, check)
    if args.command == "features":
        say(f"{len(train)} + {len(test)} features of {train.features.shape[1]} numbers")
        return known, lambda wanted: iter(())
    return known, partial(ON_FEATURES[args.command], cfg, train, test)


def recorded(units: Iterable[list[Score]], file: Path, known: dict[str, Any], alone: bool) -> Iterator[Score]:
    """Pass scores on, those of one unit of work written to the results file in one go.

    Args:
        alone: the other processes have left; otherwise all wait until the file says what is done.
    """
    for scores in units:
        if distributed.is_main():
            results.append(file, [_record(score, known) for score in scores])
        if not alone:
            distributed.barrier()
        yield from scores


def _record(score: Score, known: dict[str, Any]) -> dict[str, Any]:
    if score.network is not None:  # the checkpoint's network is then only where training began
        known = {**known, "network": score.network, "start_network": known["network"]}
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
        metric = f"{score.metric} ({score.network})" if score.network else score.metric
        groups.setdefault((score.task, metric, score.protocol), []).append(score.value)
    rows = [
        (*name, f"{mean(values):.2f}", f"{stdev(values):.2f}" if len(values) > 1 else "", len(values))
        for name, values in groups.items()
    ]
    checkpoint = known["checkpoint"]["name"]
    table(f"{checkpoint} {known['network']} on {known['dataset']}",
          ("task", "metric", "protocol", "mean", "std", "trials"), rows)  # fmt: skip
    say(f"records appended to {file}")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("command", choices=COMMANDS)
    made.add_argument("--config", required=True, help="YAML file, see configs/lowshot and configs/smoke")
    made.add_argument("--weights", help='checkpoint or run folder, or "pixels", or "scratch"')
    made.add_argument("--which", choices=("teacher", "student"), help="network of the checkpoint")
    made.add_argument("--family", help="kind of a foreign checkpoint, if it is not recognised")
    made.add_argument("--features", metavar="TRAIN.npz", default="", help="features made elsewhere, with labels")
    made.add_argument("--test-features", metavar="TEST.npz", default="")
    made.add_argument("--results", metavar="FILE", help="default: OUTPUT_DIR/results.jsonl")
    made.add_argument("overrides", nargs="*", metavar="KEY VALUE", help="settings that override the file's")
    return made


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
