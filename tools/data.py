"""Data sets by name: download those that torchvision verifies, check the folders of the others.

    python tools/data.py                                  the names, their sizes and whether they are there
    python tools/data.py cifar10 fashion-mnist --root datasets
    python tools/data.py stl10 --root datasets --yes      2.6 GB: asks first, or takes --yes
    python tools/data.py coco --root datasets             says what is missing, and where it is had

What is there already stays as it is; nothing is fetched twice.
"""

import argparse
import sys
from pathlib import Path

if not __package__:  # python tools/NAME.py
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from momentum_transfer.core.command import run_tool
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.log import say, table


def main(args: argparse.Namespace) -> None:
    """Download or check each of the named sets; without a name, list them."""
    say(f"data sets in {args.root or 'the default folder'}")
    from momentum_transfer.images.published import (
        LICENSED,  # here, because torchvision takes seconds
        PUBLISHED,
    )
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
        raise InputError(
            f"expected {', '.join(lacking)} whole in {root}, found parts missing; the list above says which"
        )


def _known(name: str, names: list[str]) -> str:
    """The table's spelling of a name: Fashion_MNIST, voc07."""
    plain = name.lower().replace("_", "-").replace("voc07", "voc2007").replace("voc12", "voc2012")
    found = {known.replace("-", ""): known for known in names}.get(plain.replace("-", ""))
    if found is None:
        raise InputError(f"expected a data set of {', '.join(names)}, found {name!r}")
    return found


def _list(root: Path) -> None:
    from momentum_transfer.images.published import LICENSED, PUBLISHED, size, there

    rows = [(name, found.title, size(found.download), "there" if there(name, root) else "download")
            for name, found in PUBLISHED.items()]  # fmt: skip
    rows += [(name, found.title, "", f"yours to get: {found.page}") for name, found in LICENSED.items()]
    table(f"data sets, {root}", ("name", "what", "download", "state"), rows)


def _download(name: str, root: Path, yes: bool) -> None:
    from momentum_transfer.images.published import BIG, PUBLISHED, fetch, size, there

    found = PUBLISHED[name]
    counts = there(name, root)
    if counts is None:
        say(f"{name}: {found.title}; {size(found.download)} to download, {size(found.unpacked)} unpacked, into {root}")
        if found.download >= BIG and not yes:
            _ask(f"download {size(found.download)}")
        counts = fetch(name, root)
    say(f"{name} is in {root}: " + ", ".join(f"{part} {count:,}" for part, count in counts.items()) + " images")
    for use in found.use:
        say(f"  {use.format(root=root)}")


def _ask(what: str) -> None:
    """Go on at a y; InputError otherwise, and where nobody can be asked."""
    if not sys.stdin.isatty():
        raise InputError(f"expected --yes to {what}, found nobody to ask; give --yes")
    if input(f"{what}? [y/N] ").strip().lower() not in ("y", "yes"):
        raise InputError(f"expected y to {what}, found another answer; nothing was downloaded")


def _check(name: str, root: Path) -> bool:
    """Say what of a data set is there; whether that is all."""
    from momentum_transfer.images.published import LICENSED, look

    data = LICENSED[name]
    parts = look(name, root)
    rows = [(found.part.path, found.problem or "there", found.part.archive if found.problem else "") for found in parts]
    table(f"{data.title} in {root}", ("part", "state", "comes in"), rows)
    whole = not any(found.problem for found in parts)
    say(data.setting.format(root=root) if whole else f"from {data.page}")
    return whole


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("names", nargs="*", metavar="NAME", help="stl10, cifar10, voc2007, …; none lists them")
    made.add_argument("--root", help="folder of the data sets (default: $DETECTRON2_DATASETS or ./datasets)")
    made.add_argument("--yes", action="store_true", help="do not ask before a download of 1 GB and more")
    return made


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
