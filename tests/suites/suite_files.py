"""Suites of a small script for the tests of the runners."""

from pathlib import Path

import yaml

#: Writes its word to {results}, unless asked to fail or to sleep; "once" sleeps the first time only.
SCRIPT = """
import pathlib, sys, time
results, word = sys.argv[1:3]
if word == "fail":
    print("boom: no such thing")
    sys.exit(3)
sleeping = pathlib.Path(results).with_name("sleeping")
if word == "sleep" or word == "once" and not sleeping.exists():
    sleeping.touch()
    time.sleep(30)
with open(results, "a") as stream:
    stream.write(word + "\\n")
"""


def write_suite(folder: Path, *tasks: dict, **changes) -> Path:
    """A suite file of tasks task0, task1, …; the ``word`` of each says what its script does."""
    script = folder / "tool.py"
    script.write_text(SCRIPT, encoding="utf-8")
    made = []
    for index, task in enumerate(tasks):
        word = task.pop("word", f"word{index}")
        made.append({"name": f"task{index}", "command": f"'{script}' {{results}} {word}", **task})
    path = folder / "suite.yaml"
    path.write_text(yaml.safe_dump({"name": "test", "tasks": made, **changes}), encoding="utf-8")
    return path


def write_weights(folder: Path) -> list[str]:
    """Two checkpoint files of a few bytes: a plan hashes them and opens none."""
    paths = [folder / "momentum2.pt", folder / "random.pt"]
    for path in paths:
        path.write_text(path.name, encoding="utf-8")
    return [str(path) for path in paths]


def words(output: Path) -> list[str]:
    """What the tasks of a suite wrote to its results."""
    return (output / "results.jsonl").read_text(encoding="utf-8").split()
