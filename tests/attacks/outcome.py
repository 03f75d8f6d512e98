"""How an attack ends: done, one line and exit 2, or what must not be."""

import argparse
import contextlib
import io
import re
import resource
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from momentum_transfer.core.command import run_tool

SECONDS, KIBIBYTES = 30.0, 2 << 20
#: What an untrusted file would do to a terminal: write to the clipboard, colour, turn the text, forge a line or a name.
STEERING = (
    "\x1b]52;c;Y3VybA==\x07",
    "\x1b[31mred",
    "\x9b2J",
    "a\u202etxt.exe",
    "a\nforged",
    "a\rforged",
    "a\u2028forged",
    "cat\u200b",
)
_STEERS = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u200b\u202e\u2028]|^forged", re.MULTILINE)
DONE, LINE = "done", "one line"


def outcome_of(call: Callable[[], Any]) -> str:
    """Run it as a tool does: ``DONE``, ``LINE``, or in words what went wrong."""
    out, errors = io.StringIO(), io.StringIO()
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            code = run_tool(argparse.ArgumentParser(), lambda _: call(), [])
    except (Exception, SystemExit) as error:
        return f"traceback: {type(error).__name__}: {str(error)[:120]}"
    if time.monotonic() - began > SECONDS:
        return f"slow: {time.monotonic() - began:.0f} s"
    if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before > KIBIBYTES:
        return "memory: over 2 GiB"
    if steered := _STEERS.search(out.getvalue() + errors.getvalue()):
        return f"silently wrong: {steered[0]!r} on the terminal"
    lines = [line for line in errors.getvalue().splitlines() if not line.startswith("warning: ")]
    if code == 0:
        return DONE
    if code == 2 and len(lines) == 1 and lines[0].startswith("error: "):
        return LINE
    return f"exit {code} with {len(lines)} lines: {lines[:2]}"


def count(attack: Callable[[Any], str], strategy: st.SearchStrategy[Any], examples: int, seed: int = 0) -> Counter[str]:
    """The outcomes of so many attacks, drawn the same way every time; another ``seed`` draws others."""
    found: Counter[str] = Counter()

    @settings(max_examples=examples, deadline=None, database=None, derandomize=not seed, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(strategy)
    def run(value: Any) -> None:
        found[attack(value)] += 1

    (hypothesis.seed(seed)(run) if seed else run)()
    return found


#: What no field expects; all of it can stand in JSON as Python reads it.
NASTY = st.one_of(
    st.sampled_from(
        [None, True, False, 0, -1, 1, 2, -0.0, 1.5, float("inf"), float("-inf"), float("nan"), 1e308, 5e-324, 10**400,
         -(10**400), 2**63, "", "x", "x" * 300, "\ud800", "a\0b", "../../etc/passwd", "/etc/passwd", "<script>", "1",
         *STEERING,
         [], {}, [[]], [None], [1, 2], [-1] * 4, [10**400] * 4, {"a": 1}, {"size": [4, 4], "counts": [-1, 17]},
         {"size": [4, 4], "counts": "\ud800"}, {"counts": [1]}, [[1, 2, 3, 4, 5, 6]], [["a"] * 6]]
    ),
    st.integers(), st.floats(), st.text(max_size=6),
    st.lists(st.integers(-3, 99) | st.floats(), max_size=5),
)  # fmt: skip
