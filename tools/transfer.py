"""Fine-tune a detector from pretrained weights and score it.

    python tools/transfer.py --config configs/smoke/mask_rcnn_digits.yaml --weights OUT.pkl [KEY VALUE …]

Weights come from tools/convert.py; `--weights none` starts the whole detector at random. With several GPUs:
`torchrun --nproc-per-node 8 tools/transfer.py …`.
"""

import argparse
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from momentum_transfer.console import run_tool, say
from momentum_transfer.errors import InputError


def main(args: argparse.Namespace) -> None:
    """Merge the settings, then check the data or run the trials."""
    from transfer import config

    own = [("ENGINE", args.engine), ("TRIALS", args.trials)]
    overrides = [word for key, value in own if value is not None for word in (key, str(value))]
    cfg = config.load(args.config, [*overrides, *args.overrides])
    weights = args.weights or cfg.MODEL.WEIGHTS
    say(f"{cfg.MODEL.META_ARCHITECTURE} from {weights or 'no weights'}; output in {cfg.OUTPUT_DIR}")
    from transfer.ranges import check_settings  # after the settings, because torch takes seconds
    from transfer.run import Request, run
    from transfer.tasks import open_task

    if args.check_data:
        check_settings(cfg)
        open_task(cfg).check(cfg, open_images=True)
        return
    if not weights:
        raise InputError("expected --weights FILE; convert a checkpoint with tools/convert.py, or give --weights none")
    run(cfg, Request(weights, args.results, args.resume, args.eval_only))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--config", required=True, help="Detectron2-keyed YAML, see configs/transfer and configs/smoke")
    made.add_argument("--weights", help="backbone .pkl, detector .pth, hf:org/name, or none (default: MODEL.WEIGHTS)")
    made.add_argument("--engine", choices=("auto", "detectron2", "torchvision"), help="default: the config's ENGINE")
    made.add_argument("--eval-only", action="store_true", help="score the detector in --weights without training")
    made.add_argument("--resume", action="store_true", help="go on with a training that was stopped")
    made.add_argument("--trials", type=int, help="how many seeds (default: the config's TRIALS)")
    made.add_argument("--results", type=Path, help="where records go (default: OUTPUT_DIR/results.jsonl)")
    made.add_argument("--check-data", action="store_true", help="only look through data and images")
    made.add_argument("overrides", nargs="*", metavar="KEY VALUE", help="settings that override the file's")
    return made


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
