"""Run a command line in the test's own process: the same file, arguments and exit code, without seconds of imports."""

import contextlib
import io
import logging
import os
import runpy
import subprocess
import sys
from pathlib import Path
from unittest import mock

import torch

ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def _restored():
    """Put back what a tool may set for its process: paths, environment, folder, threads, cores, log handlers."""
    folder, threads, handlers = os.getcwd(), torch.get_num_threads(), list(logging.getLogger().handlers)
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    path = [str(ROOT / "tools"), *sys.path]  # the tools replace the first entry, their own folder
    with mock.patch.dict(os.environ), mock.patch.object(sys, "path", path), mock.patch.object(sys, "argv", []):
        os.chdir(ROOT)
        try:
            yield
        finally:
            os.chdir(folder)
            torch.set_num_threads(threads)
            if hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(0, cores)
            logging.getLogger().handlers[:] = handlers


def run_tool(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """``python tools/NAME.py ARGUMENTS`` (or ``FOLDER/NAME.py``) from the root, as by `subprocess.run`."""
    command = [f"{name}.py" if "/" in name else f"tools/{name}.py", *map(str, arguments)]
    out, errors, code = io.StringIO(), io.StringIO(), 0
    with _restored(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        sys.argv = list(command)
        try:
            runpy.run_path(str(ROOT / command[0]), run_name="__main__")
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
            if isinstance(ended.code, str):
                errors.write(ended.code + "\n")
    return subprocess.CompletedProcess(command, code, out.getvalue(), errors.getvalue())
