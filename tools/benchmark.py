"""Run a benchmark of tools/benchmarks by name; each prints ratios of things measured side by side in one run.

python tools/benchmark.py NAME [OPTIONS …]
python tools/benchmark.py NAME --help
"""

import difflib
import runpy
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE.parent)

from momentum_transfer.console import speaking
from momentum_transfer.shipped import as_typed
from momentum_transfer.tool_run import tool_environment


def main() -> int:
    """Hand the rest of the command line to the benchmark's own parser."""
    known = {path.stem: path for path in sorted((HERE / "benchmarks").glob("*.py"))}
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in ("", "-h", "--help"):
        print(f"{as_typed(__doc__).strip()}\n\nbenchmarks: {', '.join(known)}")
        return 0 if name else 2
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0)[0]
        print(f"error: expected a benchmark of {', '.join(known)}, found {name}; did you mean {near}?", file=sys.stderr)
        return 2
    sys.argv = [f"benchmark.py {name}", *sys.argv[2:]]
    tool_environment()
    with speaking():
        runpy.run_path(str(known[name]), run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
