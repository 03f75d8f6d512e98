"""How long pretraining waits for its images: files read each time, beside images kept in memory and measured workers.

python benchmarks/waiting.py [--steps 200] [--large 260] [--small 6000]

Whole runs of ``tools/pretrain.py`` on images of 1600 x 1200 pixels (few, large) and on PNG files of 28 x 28 (many,
small), one after the other in turns; both learn the same, to the last bit. A step and its share of waiting are medians
over the second half of a run, so that decoding beforehand and the trial of workers are in "whole run" alone.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
import PIL.Image
from safetensors.torch import load_file

from momentum_transfer.core.command import run_tool
from momentum_transfer.core.log import say, table
from momentum_transfer.core.settings import load_config
from momentum_transfer.images.datasets import build_dataset
from momentum_transfer.pretrain.config import get_cfg
from momentum_transfer.pretrain.train import train

#: What is compared: settings of one and the same training.
READERS: dict[str, dict[str, object]] = {
    "files, 8 workers": {"DATA.MEMORY_SHARE": 0, "DATA.WORKERS": 8},
    "files, workers measured": {"DATA.MEMORY_SHARE": 0, "DATA.WORKERS": -1},
    "in memory, workers measured": {},
}


def write_images(folder: Path, number: int) -> None:
    """JPEG files with structure at every scale."""
    random = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for k in range(number):
        pixels = np.zeros((1200, 1600, 3), dtype=np.float32)
        for cells in (4, 16, 64, 256):
            grid = PIL.Image.fromarray(random.integers(0, 256, (cells, cells, 3), dtype=np.uint8))
            pixels += np.asarray(grid.resize((1600, 1200), PIL.Image.Resampling.BILINEAR), dtype=np.float32) / 4
        PIL.Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{k}.jpg", quality=90)


def draw_small(folder: Path, number: int) -> None:
    """PNG files of single digits."""
    digits = build_dataset("digits", split="train", image_size=28)
    folder.mkdir(parents=True)
    for k in range(number):
        digits[k % len(digits)][0].convert("L").save(folder / f"{k}.png")


def run(data: Path, output: Path, views: str, size: int, steps: int, changes: dict[str, object]) -> tuple[float, ...]:
    """Seconds of a step, share of waiting in it, seconds of the whole run."""
    settings: dict[str, object] = {
        "OUTPUT_DIR": output, "DATA.NAME": "imagefolder", "DATA.ROOT": data, "DATA.VIEWS": views,
        "DATA.IMAGE_SIZE": size, "MODEL.ARCH": "resnet18", "MODEL.WIDTH": 16, "HEAD.HIDDEN": 256,
        "SOLVER.BATCH_SIZE": 32, "SOLVER.STEPS": steps, "SOLVER.WARMUP_EPOCHS": 0.0, "RUN.LOG_EVERY": 5, **changes,
    }  # fmt: skip
    begun = time.perf_counter()
    train(load_config(get_cfg(), None, [str(word) for pair in settings.items() for word in pair]))
    whole = time.perf_counter() - begun
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    late = [line for line in lines if "seconds" in line][len(lines) // 2 :]
    step = statistics.median(line["seconds"] for line in late)
    return step, statistics.median(line["data_seconds"] / line["seconds"] for line in late), whole


def main(args: argparse.Namespace) -> None:
    """A table for each kind of images."""
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        write_images(root / "large" / "train" / "drawn", args.large)
        draw_small(root / "small" / "train" / "drawn", args.small)
        for kind, size in (("large", 96), ("small", 28)):
            rows, weights = [], []
            for index, (name, changes) in enumerate(READERS.items()):
                output = root / f"{kind}_{index}"
                step, waiting, whole = run(root / kind, output, "byol", size, args.steps, changes)
                rows.append((name, f"{1000 * step:.0f}", f"{waiting:.1%}", f"{whole:.0f}"))
                weights.append(load_file(output / "backbone.safetensors"))
            same = all(value.equal(other[key]) for other in weights[1:] for key, value in weights[0].items())
            table(f"{kind}, {size} px views, batch 32", ("", "ms a step", "waiting", "whole run s"), rows)
            say(f"the exported weights are {'equal to the last bit' if same else 'NOT equal'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--large", type=int, default=260)
    parser.add_argument("--small", type=int, default=6000)
    sys.exit(run_tool(parser, main))
