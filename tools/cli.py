"""The command momentum-transfer: pretrain backbones, move them to detectors, probe them with few labels, report.

momentum-transfer NAME [OPTIONS …]      runs the tool of that name, as python tools/NAME.py does in a checkout
momentum-transfer NAME --help           its options
momentum-transfer --configs [WORD …]    the configs that ship, all or those whose names hold a word
momentum-transfer --settings [ROOM] [WORD …]  the settings of pretrain, transfer and lowshot: defaults, rules, meanings
"""

import ast
import difflib
import importlib
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
if not __package__:  # python tools/NAME.py
    sys.path[0] = str(HERE.parent)

from momentum_transfer import __version__
from momentum_transfer.core.shipped import COMMAND, shipped_configs

#: The tools in the order of their use; the first line of each file's docstring is its help.
TOOLS = ("data", "pretrain", "convert", "compare", "transfer", "predict", "export", "lowshot", "taxonomy", "score",
         "verdict", "choose", "evaluate", "noise", "study", "status", "report", "publish", "demo",
         "quickstart")  # fmt: skip


def usage() -> str:
    lines = []
    for name in TOOLS:
        docstring = ast.get_docstring(ast.parse((HERE / f"{name}.py").read_text(encoding="utf-8"))) or ""
        lines.append(f"  {name:{max(map(len, TOOLS))}}  {docstring.splitlines()[0]}")
    return "\n".join([str(__doc__).strip(), "", *lines])


def settings(words: Sequence[str]) -> list[str]:
    """A line for each setting of the room that the first word names, or of all, that holds the other words."""
    rooms = ("pretrain", "transfer", "lowshot")
    named, words = (words[:1], words[1:]) if words[:1] and words[0] in rooms else (rooms, words)
    tables = {room: importlib.import_module(f"momentum_transfer.{room}.config").SETTINGS for room in named}
    lines = [f"{room}  {setting}" for room, table in tables.items() for setting in table.values()]
    return [line for line in lines if all(word.lower() in line.lower() for word in words)]


def run(words: Sequence[str]) -> int:
    """Run the tool that the first of ``words`` names, or answer an option; returns the exit code."""
    name, *arguments = words
    if name in ("", "-h", "--help"):
        print(usage())
        return 0 if name else 2
    if name == "--version":
        print(f"{COMMAND} {__version__}")
        return 0
    if name == "--configs":
        configs = shipped_configs()
        found = [config for config in configs if all(word in config for word in arguments)]
        if not found:
            nearest = ", ".join(difflib.get_close_matches(arguments[-1], configs, n=3, cutoff=0))
            print(f"error: no config has {' '.join(arguments)}; the nearest are {nearest}", file=sys.stderr)
            return 2
        print("\n".join(found))
        return 0
    if name == "--settings":
        lines = settings(arguments)
        if not lines:
            keys = dict.fromkeys(line.split()[1] for line in settings([]))
            nearest = ", ".join(difflib.get_close_matches(arguments[-1].upper(), keys, n=3, cutoff=0))
            print(f"error: no setting holds {' '.join(arguments)}; the nearest are {nearest}", file=sys.stderr)
            return 2
        print("\n".join(lines))
        return 0
    if name not in TOOLS:
        near = difflib.get_close_matches(name, TOOLS, n=1, cutoff=0)[0]
        print(f"error: expected a command of {', '.join(TOOLS)}, found {name}; did you mean {near}?", file=sys.stderr)
        return 2
    sys.argv = [f"{COMMAND} {name}", *arguments]
    runpy.run_module(f"momentum_transfer.tools.{name}", run_name="__main__")  # ends with the tool's own exit code
    return 0


def main() -> int:
    """Run what the command line asks for; returns the exit code."""
    try:
        code = run(sys.argv[1:] or [""])
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output left, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return code


if __name__ == "__main__":
    sys.exit(main())
