"""Compare backbones of any source: CKA on the same images, and the norms of their weights (RCF figures 3a and 3b).

python tools/compare.py SGD.pth LARS.pth --images val_images/
python tools/compare.py SGD.pth LARS.pth RESCALED.pkl --images digits --image-size 32 --labels SGD LARS NormRescale

The first is the reference; each of the others is compared with it. Depths, widths and kinds of network may differ:
stages that both have are compared by name, and the blocks of both in the matrix.
"""

import argparse
import sys
from pathlib import Path

if not __package__:  # python tools/NAME.py
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from momentum_transfer.core.command import run_tool
from momentum_transfer.core.errors import InputError, counted
from momentum_transfer.core.files import weights_name
from momentum_transfer.core.log import say, table


def main(args: argparse.Namespace) -> None:
    say(f"reading {args.reference} and {len(args.others)} more")
    # Here, because they import torch, which takes seconds.
    from momentum_transfer.backbones import compare_backbones
    from momentum_transfer.backbones.read import load_backbone
    from momentum_transfer.core.devices import choose_device

    paths = [args.reference, *args.others]
    labels = args.labels or [weights_name(path) for path in paths]
    if len(labels) != len(paths):
        raise InputError(f"expected {len(paths)} --labels, one a checkpoint, found {len(labels)}; give each a name")
    device = choose_device()
    batches = compare_backbones.ImageBatches(
        args.images, args.image_size, args.batch_size, args.count, args.seed, device
    )
    archs = args.arch or [None] * len(paths)
    if len(archs) != len(paths):
        raise InputError(f"expected {len(paths)} --arch, one a checkpoint, found {len(archs)}; give each its own")
    sources = [load_backbone(path, network=args.network, trust_pickle=args.trust_pickle, architecture=arch)
               for path, arch in zip(paths, archs, strict=True)]  # fmt: skip
    pairs = [compare_backbones.compare(sources[0], other, batches, batch_statistics=args.batch_statistics)
             for other in sources[1:]]  # fmt: skip
    by_stage = [pair.stages() for pair in pairs]
    stages = max((list(values) for values in by_stage), key=len)
    rows = [(f"{label} vs. {labels[0]}", *(f"{values[s]:.3f}" if s in values else "" for s in stages))
            for label, values in zip(labels[1:], by_stage, strict=True)]  # fmt: skip
    table(f"linear CKA, {counted(pairs[0].count, 'image')}", ("pair", *stages), rows)
    norms = [compare_backbones.weight_norms(source.state, kernel=3) for source in sources]
    if any(norms):
        table("2-norm of the 3x3 convolutions", ("network", "smallest", "mean", "largest"),
              [(label, *(f"{value:.2f}" for value in (min(n.values()), sum(n.values()) / len(n), max(n.values()))))
               for label, n in zip(labels, norms, strict=True) if n])  # fmt: skip
    out = Path(args.output)
    for number, pair in enumerate(pairs, start=1):
        compare_backbones.write_matrix(out / f"cka_blocks_{number}.json", pair)
    records = [record for pair in pairs for record in compare_backbones.records(pair)]
    records += [record for source in sources for record in compare_backbones.norm_records(source)]
    file = Path(args.results or out / "results.jsonl")
    new = compare_backbones.add_records(file, records)
    say(f"{counted(new, 'record')} appended to {file}, {len(records) - new} were there")
    for path in compare_backbones.plot(out, labels, sources, pairs):
        say(f"wrote {path}")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("reference", help="a checkpoint of any known family, a run folder, or hf:org/name")
    add("others", nargs="+", help="the checkpoints to compare with it")
    add("--images", required=True, help="folder of images, or digits (the embedded held-out ones)")
    add("--image-size", type=int, default=224, help="pixels (default: %(default)s; digits: 32)")
    add("--batch-size", type=int, default=64, help="images a batch (default: %(default)s, at least 4)")
    add("--count", type=int, default=0, help="use at most this many images (default: all)")
    add("--seed", type=int, default=0, help="of the images' order (default: %(default)s)")
    add("--batch-statistics", action="store_true",
                      help="BatchNorm normalises by each batch, as fine-tuning does: for NormRescale")  # fmt: skip
    add("--network", choices=("student", "teacher"), help="network to take; default: what the paper evaluates")
    add("--arch", nargs="+", metavar="TEXT",
                      help="architectures, one a checkpoint, where they cannot be inferred: timm:NAME")  # fmt: skip
    add("--labels", nargs="+", help="names for the plots, one a checkpoint")
    add("--output", default="outputs/compare", help="folder for plots and matrices (default: %(default)s)")
    add("--results", metavar="FILE", help="results file (default: OUTPUT/results.jsonl)")
    add("--trust-pickle", action="store_true", help="let the checkpoints run code while they are read")
    return parser


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
