"""Time and memory of converting a ResNet to Detectron2 weights, beyond importing torch, beside the plain way.

python benchmarks/convert.py [--arch resnet50] [--repeats 3]

The plain way is what a short script does: torch.load, rename, pickle.dump. It accounts for no key and hashes nothing.
Each run is a process of its own; memory is its peak minus what it had after the imports.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

import torch

from momentum_transfer.backbones.resnet import DEPTHS, Architecture, build_backbone
from momentum_transfer.core.command import run_tool
from momentum_transfer.core.log import say, table

_MEASURE = """
import json, resource, sys, time
sys.path.insert(0, {root!r})
import torch
imported = time.process_time()
{imports}
resident = int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
before = time.perf_counter()
{work}
seconds = time.perf_counter() - before
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - resident
everything = time.process_time() - imported
print("MEASURED", json.dumps([seconds, peak, everything]))
"""

_WAYS = {
    "this project": (
        "from momentum_transfer.backbones.read import load_backbone\nfrom transfer import convert, norm_rescale",
        "source = load_backbone({checkpoint!r})\n"
        "norm_rescale.lars_warning(source.state)\n"
        "convert.write({out!r}, source.state, source.architecture, convert.metadata_of(source))",
    ),
    "plain script": (
        "import pickle\nfrom momentum_transfer.backbones.resnet import to_detectron2",
        "state = torch.load({checkpoint!r}, weights_only=True)\n"
        "tree = {{'model': {{to_detectron2(name): t.numpy() for name, t in state.items()}}}}\n"
        "with open({out!r}, 'wb') as stream: pickle.dump(tree, stream)",
    ),
}


def measure(way: str, checkpoint: Path, out: Path) -> tuple[float, float, float]:
    """(seconds of the work, peak bytes beyond the imports, CPU seconds of everything beyond ``import torch``)."""
    imports, work = (part.format(checkpoint=str(checkpoint), out=str(out)) for part in _WAYS[way])
    script = _MEASURE.format(root=str(ROOT), imports=imports, work=work)
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    line = next(line for line in ran.stdout.splitlines() if line.startswith("MEASURED"))
    return tuple(json.loads(line.removeprefix("MEASURED")))


def main(args: argparse.Namespace) -> None:
    """Measure both ways in turn and print medians and ratios."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint, out = Path(folder, "checkpoint.pth"), Path(folder, "out.pkl")
        torch.save(build_backbone(Architecture(args.arch, args.width)).state_dict(), checkpoint)
        size = checkpoint.stat().st_size
        runs: dict[str, list[tuple[float, float, float]]] = {way: [] for way in _WAYS}
        for _ in range(args.repeats):
            for way in _WAYS:
                runs[way].append(measure(way, checkpoint, out))
    rows = []
    for way, values in runs.items():
        seconds, peak, everything = (statistics.median(column) for column in zip(*values, strict=True))
        rows.append((way, f"{seconds:.2f}", f"{everything:.2f}", f"{peak / 1e6:.0f}", f"{peak / size:.2f}"))
    title = f"{args.arch}, width {args.width}: {size / 1e6:.0f} MB, median of {args.repeats}"
    table(title, ("way", "seconds", "CPU s with imports after torch", "peak MB", "peak / file"), rows)
    ours, plain = (statistics.median(value[0] for value in runs[way]) for way in _WAYS)
    say(f"time against the plain script: {ours / plain:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", choices=sorted(DEPTHS), default="resnet50")
    parser.add_argument("--width", type=int, default=64, help="channels of the stem; 128 is 2x")
    parser.add_argument("--repeats", type=int, default=3)
    sys.exit(run_tool(parser, main))
