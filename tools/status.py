"""Where the tasks of a suite are: queued, running with progress and time left, done, failed with the last line.

    python tools/status.py outputs/quick              (on a terminal renewed every five seconds until all have ended)
    python tools/status.py outputs/quick --once --all

It reads the folder's files alone, so it runs anywhere that sees them: where it was submitted, on a node, on a laptop.
Exit code 1 where a task has failed.
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

from momentum_transfer.core.command import run_tool
from momentum_transfer.core.log import say, table
from momentum_transfer.suites.progress import Standing, standings
from momentum_transfer.suites.slurm import submitted

#: Rows of the table unless --all is given.
ROWS = 40

#: What stands first: what wants a look.
ORDER = ("failed", "silent", "running", "stopped", "not run", "queued", "to do", "done")


def main(args: argparse.Namespace) -> None:
    """Show the table once, or again and again until every task has ended."""
    output = Path(args.folder)
    while True:
        found = standings(output, submitted(output))
        live = sys.stdout.isatty() and not args.once
        if live:
            print("\x1b[H\x1b[2J", end="")
        show(found, everything=args.all)
        if not live or all(one.state in ("done", "failed", "not run") for one in found):
            break
        time.sleep(args.every)
    if any(one.state == "failed" for one in found):
        raise SystemExit(1)


def show(found: Sequence[Standing], *, everything: bool) -> None:
    """The table, those first that want a look, and a line that counts all."""
    ordered = sorted(found, key=lambda one: ORDER.index(one.state))
    rows = ordered if everything else ordered[:ROWS]
    table(
        "tasks",
        ["task", "state", "progress", "spent", "left", "last line"],
        [
            [one.planned.title, one.state, _percent(one.fraction), _time(one.seconds), _time(one.left), one.note[:80]]
            for one in rows
        ],
    )
    if len(rows) < len(found):
        say(f"… and {len(found) - len(rows)} more tasks: --all shows them")
    counts = collections.Counter(one.state for one in found)
    used = sum(one.gpu_hours for one in found)
    parts = [f"{counts[state]} {state}" for state in ORDER if counts[state]]
    say(f"{len(found)} tasks: {', '.join(parts)}; {used:.2f} GPU hours used")


def _percent(share: float) -> str:
    return "" if math.isnan(share) else f"{share:.0%}"


def _time(seconds: float) -> str:
    """Seconds as hours, minutes and seconds; "" for none."""
    if math.isnan(seconds) or seconds <= 0:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _seconds(text: str) -> float:
    number = float(text)
    if not 0.5 <= number < 86400:
        raise argparse.ArgumentTypeError(f"expected seconds from 0.5, found {text}")
    return number


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("folder", help="the output folder of an evaluate command")
    made.add_argument("--once", action="store_true", help="show it once, on a terminal too")
    made.add_argument("--all", action="store_true", help=f"all tasks, where there are more than {ROWS}")
    made.add_argument("--every", type=_seconds, default=5.0, metavar="SECONDS", help="between two looks (default: 5)")
    return made


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
