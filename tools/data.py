"""Data sets by name: download those that torchvision verifies, check the folders of the others.

    python tools/data.py                                  the names, their sizes and whether they are there
    python tools/data.py cifar10 fashion-mnist --root datasets
    python tools/data.py stl10 --root datasets --yes      2.6 GB: asks first, or takes --yes
    python tools/data.py coco --root datasets             says what is missing, and where to get it

    python tools/data.py pack FOLDER --shards OUT         train/ and val/ of FOLDER, or FOLDER as train, as tar files:
                                                          image files, or Hugging Face's Parquet and Arrow tables

What is there already stays as it is; nothing is fetched twice.
"""

import argparse
import sys
from pathlib import Path

if not __package__:  # python tools/NAME.py
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from momentum_transfer.core.command import run_tool
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.log import say, silent, table


def main(args: argparse.Namespace) -> None:
    if args.names[:1] == ["pack"] or args.shards:
        return _pack(args)
    say(f"data sets in {args.root or 'the default folder'}")
    from momentum_transfer.images.published import LICENSED, PUBLISHED  # here, because torchvision takes seconds
    from momentum_transfer.transfer.data.detection_datasets import datasets_root

    root = datasets_root(args.root)
    names = [_known(name, [*PUBLISHED, *LICENSED]) for name in args.names]
    if not names:
        _list(root)
    for name in names:
        if name in PUBLISHED:
            _download(name, root, args.yes)
    lacking = [name for name in names if name in LICENSED and not _check(name, root)]
    if lacking:
        raise InputError(f"expected {', '.join(lacking)} in {root}, found parts missing: see the list above")


def _pack(args: argparse.Namespace) -> None:
    if len(args.names) != 2 or args.names[0] != "pack" or not args.shards:
        raise InputError("expected pack FOLDER --shards OUT, found other words; see --help")
    from momentum_transfer.images.datasets import packed_folders

    packed_folders(Path(args.names[1]), Path(args.shards))


def _known(name: str, names: list[str]) -> str:
    """The table's spelling of a name: Fashion_MNIST, voc07."""
    plain = name.lower().replace("_", "-").replace("voc07", "voc2007").replace("voc12", "voc2012")
    known = {each.replace("-", ""): each for each in names}
    if plain.replace("-", "") not in known:
        raise InputError(f"expected a data set of {', '.join(names)}, found {name!r}")
    return known[plain.replace("-", "")]


def _list(root: Path) -> None:
    from momentum_transfer.images.published import LICENSED, PUBLISHED, size, there

    rows = [(name, data.title, size(data.download), "there" if there(name, root) else "download")
            for name, data in PUBLISHED.items()]  # fmt: skip
    rows += [(name, data.title, "", f"yours to get: {data.page}") for name, data in LICENSED.items()]
    table(f"data sets, {root}", ("name", "what", "download", "state"), rows)


def _download(name: str, root: Path, yes: bool) -> None:
    from momentum_transfer.images.published import BIG, PUBLISHED, fetch, size, there

    data = PUBLISHED[name]
    counts = there(name, root)
    if counts is None:
        say(f"{name}: {data.title}; {size(data.download)} to download, {size(data.unpacked)} unpacked, into {root}")
        if data.download >= BIG and not yes:
            _ask(f"download {size(data.download)}")
        counts = fetch(name, root)
    say(f"{name} is in {root}: " + ", ".join(f"{part} {count:,}" for part, count in counts.items()) + " images")
    for use in data.use:
        say(f"  {use.format(root=root)}")


def _ask(what: str) -> None:
    """Return if the user answers y; InputError otherwise, and without a terminal."""
    if not sys.stdin.isatty():
        raise InputError(f"expected --yes to {what}, found no terminal to ask on; give --yes")
    with silent():
        answer = input(f"{what}? [y/N] ")
    if answer.strip().lower() not in ("y", "yes"):
        raise InputError(f"expected y to {what}, found another answer; nothing was downloaded")


def _check(name: str, root: Path) -> bool:
    """Print which parts of a data set are there; returns whether it is complete."""
    from momentum_transfer.images.published import LICENSED, look

    data = LICENSED[name]
    parts = look(name, root)
    rows = [(part.path, problem or "there", part.archive if problem else "") for part, problem in parts]
    table(f"{data.title} in {root}", ("part", "state", "comes in"), rows)
    whole = not any(problem for _, problem in parts)
    say(data.setting.format(root=root) if whole else f"from {data.page}")
    return whole


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="stl10, cifar10, voc2007, …; none lists them")
    add("--root", help="folder of the data sets (default: $DETECTRON2_DATASETS or ./datasets)")
    add("--shards", metavar="OUT", help="with pack FOLDER: folder for tar files of WebDataset's layout")
    add("--yes", action="store_true", help="do not ask before a download of 1 GB and more")
    return parser


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
