"""Coarse classes from a hierarchy such as WordNet's, for supervised pretraining on fewer classes (RCF, table 6).

    python tools/taxonomy.py wordnet.is_a.txt --classes IMAGENET/train                         which counts there are
    python tools/taxonomy.py wordnet.is_a.txt --classes IMAGENET/train --count 127 --out imagenet_127.txt
    python tools/taxonomy.py wordnet.is_a.txt --classes IMAGENET/train --under n00021939 --out artifact.txt

The hierarchy holds `parent child` lines; --classes is a folder of class folders or a text file of one class a line. Use
the result as DATA.TAXONOMY imagenet_127.txt. --under makes one class of all that lies below a concept (n00021939 is
artifact) and one of the rest.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

if not __package__:  # python tools/NAME.py
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from momentum_transfer.core.command import run_tool
from momentum_transfer.core.errors import InputError, counted
from momentum_transfer.core.log import say, table
from momentum_transfer.core.untrusted import read_lines


def main(args: argparse.Namespace) -> None:
    from momentum_transfer.images import taxonomies

    if args.count is not None and args.under:
        raise InputError("expected --count or --under, found both; give one of them")
    parents, classes = taxonomies.read_hierarchy(args.hierarchy), class_names(Path(args.classes))
    if args.count is None and not args.under:
        counts = [len(set(mapping.values())) for mapping in taxonomies.rounds(classes, parents)]
        say(f"bottom-up clustering of {len(classes)} classes leaves {', '.join(map(str, counts))}; choose with --count")
        return
    if args.under:
        mapping = taxonomies.under(classes, parents, args.under)
    else:
        mapping = taxonomies.of_count(classes, parents, args.count)
    sizes = Counter(mapping.values())
    table(counted(len(sizes), "class"), ("class", "fine classes"), sizes.most_common(20))
    say(f"largest to smallest: {max(sizes.values())} : {min(sizes.values())} of {len(classes)} fine classes")
    if args.out:
        chosen = f"under {' '.join(args.under)}" if args.under else f"{args.count} classes, bottom-up"
        taxonomies.write_mapping(args.out, mapping, f"{chosen}, from {Path(args.hierarchy).name}")
        say(f"wrote {args.out}; use it with DATA.TAXONOMY {args.out}")


def class_names(path: Path) -> list[str]:
    """Names of class folders, or the first word of every line of a file."""
    if path.is_dir():
        return sorted(child.name for child in path.iterdir() if child.is_dir() and not child.name.startswith("."))
    if not path.is_file():
        raise InputError(f"expected a folder of class folders or a list of classes, found no {path}")
    lines = [line.split("#")[0].split() for line in read_lines(path, "a list of classes")]
    return list(dict.fromkeys(words[0] for words in lines if words))


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("hierarchy", help="text file of `parent child` lines, for example wordnet.is_a.txt")
    add("--classes", required=True, metavar="PATH", help="folder of class folders, or a list")
    add("--count", type=int, metavar="N", help="classes to be left by bottom-up clustering")
    add("--under", nargs="+", default=[], metavar="CONCEPT", help="one class a concept, one for the rest")
    add("--out", metavar="FILE", help="the mapping, for DATA.TAXONOMY")
    return parser


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
