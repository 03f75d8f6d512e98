"""Write a checkpoint's scores and weights in the Hugging Face Hub's layout, and push them there if asked.

    python tools/publish.py outputs/results.jsonl --weights outputs/momentum2 --out outputs/card
    python tools/publish.py outputs/results.jsonl --weights outputs/momentum2 --out outputs/card --push hf:org/name

Writes a model card with its model-index (README.md), .eval_results/ for data sets of the Hub (--dataset), the records
and the weights as backbone.safetensors. Nothing leaves this machine without --push. Needs the extra hub.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

if not __package__:  # python tools/NAME.py
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from momentum_transfer.core.command import run_tool
from momentum_transfer.core.errors import InputError, counted
from momentum_transfer.core.log import say, warn


def main(args: argparse.Namespace) -> None:
    say(f"reading {', '.join(args.results)}")
    from momentum_transfer.backbones.read import load_backbone  # here, because it imports torch, which takes seconds
    from momentum_transfer.report.aggregate import aggregate, check_settings_agree
    from momentum_transfer.report.card import push, read_datasets, scores_of, target, write_folder
    from momentum_transfer.report.draws import by_draw
    from momentum_transfer.report.read_inputs import read_records

    records, problems = read_records(args.results)
    check_settings_agree(records)
    published = aggregate(records).records  # one by one, where scores are means of several
    results = replace(aggregate(by_draw(records)), records=published)
    repository = target(args.push) if args.push else None
    source = load_backbone(args.weights) if args.weights else None
    name = _chosen(args.checkpoint, source.name if source else "", results.checkpoints)
    datasets = read_datasets(args.dataset, results)
    scores = scores_of(results, name)
    hashes = {source.sha256, source.metadata.get("source_sha256", "")} if source else set()
    if source and not any(record["checkpoint"].get("sha256") in hashes for record in results.records[name]):
        warn(f"no record of {name} names these weights (SHA-256 {source.sha256[:16]}…); are they the ones measured?")
    out = Path(args.out)
    written = write_folder(out, name, results, scores, datasets=datasets, license=args.license, weights=source,
                           files=[Path(file) for file in args.add])  # fmt: skip
    for problem in (*problems, *results.notices):
        warn(problem)
    left = sorted({measure.dataset for measure, _ in scores} - set(datasets))
    if left:
        say(f"in the card alone, since no --dataset says their names on the Hub: {', '.join(left)}")
    files = ", ".join(str(path.relative_to(out)) for path in written)
    say(f"{counted(len(scores), 'score')} of {name}; wrote {files} in {out}")
    if repository is not None:
        say(f"pushed to {push(out, repository, written, private=args.private)}; --weights {repository} reads it again")


def _chosen(asked: str | None, of_weights: str, names: list[str]) -> str:
    """The checkpoint to publish: --checkpoint, else the name of --weights, else the only one."""
    name = asked or (of_weights if of_weights in names else names[0] if len(names) == 1 else "")
    if name in names:
        return name
    raise InputError(
        f"expected --checkpoint of {', '.join(names)}, found {asked or of_weights or 'none'}; say whose scores"
    )


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("results", nargs="+", metavar="RESULTS.jsonl", help="records that the evaluating tools wrote")
    add("--out", required=True, metavar="FOLDER", help="where the card and its files go")
    add("--weights", help="checkpoint, run folder or hf:org/name to put beside the card")
    add("--checkpoint", metavar="NAME", help="whose scores; default: those of --weights")
    add("--dataset", action="append", default=[], metavar="TITLE=org/name",
                      help="a data set of the records is this one on the Hub: for .eval_results")  # fmt: skip
    add("--license", help="of the weights, as the Hub calls it: apache-2.0, cc-by-nc-4.0, …")
    add("--add", action="append", default=[], metavar="FILE", help="a further file for the repository")
    add("--push", metavar="hf:org/name[@branch]", help="upload the folder to this repository")
    add("--private", action="store_true", help="a repository that --push makes is private")
    return parser


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
