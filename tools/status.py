"""Show the tasks of a suite: queued, running with progress and time left, done, or failed with the last line.

    python tools/status.py outputs/quick              (on a terminal renewed every five seconds until all have ended)
    python tools/status.py outputs/quick --once --all

It only reads files of the folder, so it runs anywhere that sees them: where the suite was submitted, on a node, on a
laptop. Exit code 1 if a task has failed.
"""

import argparse
import collections
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

if not __package__:  # python tools/NAME.py
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from momentum_transfer.core.command import number_in, run_tool
from momentum_transfer.core.log import duration, say, silent, table
from momentum_transfer.suites.progress import Standing, standings

#: Rows of the table unless --all is given.
ROWS = 40

#: States in order of urgency.
_ORDER = ("failed", "silent", "running", "stopped", "not run", "queued", "to do", "done")


def main(args: argparse.Namespace) -> None:
    output = Path(args.folder)
    while True:
        tasks = standings(output)
        live = sys.stdout.isatty() and not args.once
        if live:
            print("\x1b[H\x1b[2J", end="")
        show(tasks, everything=args.all)
        if not live or all(one.state in ("done", "failed", "not run") for one in tasks):
            break
        with silent():
            time.sleep(args.every)
    if any(one.state == "failed" for one in tasks):
        raise SystemExit(1)


def show(tasks: Sequence[Standing], *, everything: bool) -> None:
    ordered = sorted(tasks, key=lambda one: _ORDER.index(one.state))
    rows = ordered if everything else ordered[:ROWS]
    cells = [[one.planned.title, one.state, "" if math.isnan(one.fraction) else f"{one.fraction:.0%}",
              *(duration(seconds) if seconds > 0 else "" for seconds in (one.seconds, one.left)), one.note[:80]]
             for one in rows]  # fmt: skip
    table("tasks", ["task", "state", "progress", "spent", "left", "last line"], cells)
    if len(rows) < len(tasks):
        say(f"… and {len(tasks) - len(rows)} more tasks: --all shows them")
    counts = collections.Counter(one.state for one in tasks)
    used = sum(one.gpu_hours for one in tasks)
    parts = [f"{counts[state]} {state}" for state in _ORDER if counts[state]]
    say(f"{len(tasks)} tasks: {', '.join(parts)}; {used:.2f} GPU hours used")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("folder", help="the output folder of an evaluate command")
    add("--once", action="store_true", help="show it once, on a terminal too")
    add("--all", action="store_true", help=f"all tasks, where there are more than {ROWS}")
    add("--every", type=number_in(0.5, 86400, "seconds from 0.5"), default=5.0, metavar="SECONDS",
        help="between two looks (default: 5)")  # fmt: skip
    return parser


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
