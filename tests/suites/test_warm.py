"""Commands that begin with the imports done: what they are given, what they print, how they end."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from momentum_transfer.suites.chain import WarmCommand

SCRIPT = """
import atexit, json, os, signal, sys
from pathlib import Path
print(json.dumps([sys.argv[1:], os.getcwd(), os.environ["ONE"], "HOME" in os.environ, __name__]))
print("a warning", file=sys.stderr)
atexit.register(Path("at_exit.txt").touch)
if sys.argv[1] == "signal":
    os.kill(os.getpid(), signal.SIGTERM)
sys.exit({"text": "words", "none": None}.get(sys.argv[1], 7))
"""


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., WarmCommand]:
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    environment = {"ONE": "1", "OMP_NUM_THREADS": os.environ["OMP_NUM_THREADS"]}
    return lambda *words, **more: WarmCommand([str(tmp_path / "script.py"), *words], tmp_path, environment | more)


def test_a_command_has_its_words_folder_and_environment_and_ends_as_a_process_does(command, tmp_path):
    for word, code, said in (("a b", 7, []), ("text", 1, ["words"]), ("none", 0, [])):
        started = command(word)
        first, *others = started.stdout.read().splitlines()
        started.process.join()
        assert json.loads(first) == [[word], str(tmp_path), "1", False, "__main__"]
        assert others == ["a warning", *said]
        assert started.process.exitcode == code
        assert 0 < started.peak_gib() < 64
        assert (tmp_path / "at_exit.txt").exists()


def test_a_signal_is_told_by_its_number(command):
    started = command("signal")
    assert len(started.stdout.read().splitlines()) == 2
    started.process.join()
    started.process.terminate()
    assert (started.process.exitcode, started.peak_gib()) == (-signal.SIGTERM, 0.0)


@pytest.mark.skipif(sys.platform != "linux", reason="nothing is forked here")
def test_another_number_of_threads_is_not_forked(command):
    same, other = command("none"), command("none", OMP_NUM_THREADS="3")
    kinds = [type(one.process).__name__ for one in (same, other)]
    for one in (same, other):
        one.stdout.read()
        one.process.join()
    assert kinds == ["ForkServerProcess", "SpawnProcess"]
    assert same.process.exitcode == other.process.exitcode == 0


PARENT = """
import multiprocessing
def work():
    print("worked", flush=True)
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=work)
    child.start()
    child.join()
"""


def test_a_command_in_another_folder_starts_processes_of_its_own(tmp_path):
    (tmp_path / "parent.py").write_text(PARENT, encoding="utf-8")
    started = WarmCommand(["parent.py"], tmp_path, {"OMP_NUM_THREADS": os.environ["OMP_NUM_THREADS"]})
    assert started.stdout.read() == "worked\n"
    started.process.join()
    assert started.process.exitcode == 0


STARTER = """
import sys
from momentum_transfer.suites import chain
if __name__ == "__main__":
    chain.IMPORTED = ()
    started = chain.WarmCommand(sys.argv[1:], ".", {"OMP_NUM_THREADS": ""})
    sys.stderr.write(started.stdout.read())
    started.process.join()
    sys.exit(started.process.exitcode)
"""


def test_a_tool_begins_where_standard_output_goes_to_a_file(tmp_path):
    """Python asks a file for its place before it changes how text is written; the command's output is a pipe."""
    (tmp_path / "starter.py").write_text(STARTER, encoding="utf-8")
    (tmp_path / "tool.py").write_text(
        "from momentum_transfer.core.command import tool_environment\ntool_environment()\nprint('begun: \\udcff')\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "", "PYTHONPATH": str(Path.cwd())}
    with open(tmp_path / "log.txt", "w") as log:
        ended = subprocess.run(
            [sys.executable, "starter.py", "tool.py"], cwd=tmp_path, env=environment, stdout=log,
            stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "begun: \\udcff\n")
