"""An old Python or torch, a missing package: one line that says what to install."""

import argparse
import ast
import importlib.metadata
import sys
from pathlib import Path

import pytest

import momentum_transfer as mt
from momentum_transfer.core import versions
from momentum_transfer.core.command import run_tool
from momentum_transfer.core.errors import EXTRAS, REQUIRED, InputError, extra

ROOT = Path(__file__).resolve().parents[2]
#: import name -> name on the package index, where they differ
NAMES = {"sklearn": "scikit-learn", "jinja2": "Jinja2", "PIL": "Pillow", "yaml": "PyYAML"}


def pyproject() -> dict:
    tomllib = pytest.importorskip("tomllib", reason="part of Python 3.11")
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_an_old_python_is_told_so_in_one_line(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 8, 18))
    with pytest.raises(SystemExit, match=r"^error: expected Python 3\.10 or newer, found 3\.8\.18 \(.*\); install a"):
        versions.check_python()


def test_an_old_python_can_parse_what_it_meets_first():
    first = ["momentum_transfer/__init__.py", "momentum_transfer/core/versions.py"]
    for file in [*first, *(path.relative_to(ROOT).as_posix() for path in (ROOT / "tools").glob("*.py"))]:
        ast.parse((ROOT / file).read_text(encoding="utf-8"), feature_version=(3, 8))


@pytest.mark.parametrize("found", ["1.13.1", "2.3.0+cu118"])
def test_an_old_torch_is_one_line_before_it_is_imported(found, monkeypatch, capsys):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: found)
    assert run_tool(argparse.ArgumentParser(), lambda args: None, []) == 2
    assert capsys.readouterr().err.startswith(f"error: expected torch {versions._TORCH[0]}.")
    monkeypatch.delitem(vars(mt), "knn", raising=False)
    with pytest.raises(InputError, match=f"found {found.partition('+')[0]}"):
        _ = mt.knn


def test_the_versions_are_those_of_the_package():
    project = pyproject()
    assert project["requires-python"] == ">={}.{}".format(*versions._PYTHON)
    (torch,) = [line for line in project["dependencies"] if line.startswith("torch>")]
    assert torch.startswith("torch>={}.{},".format(*versions._TORCH))


def test_every_extra_is_one_of_the_package_and_every_dependency_is_known():
    project = pyproject()
    assert set(EXTRAS.values()) <= set(project["optional-dependencies"])
    known = {NAMES.get(module, module) for module in REQUIRED}
    assert known <= {line.partition(">")[0] for line in project["dependencies"]}


def test_a_missing_extra_names_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "lvis", None)  # as if it were not installed
    with pytest.raises(InputError, match=r'reference scores: .*pip install "momentum-transfer\[lvis\]"'):
        extra("lvis", "reference scores")

    def main(_args):
        import lvis  # noqa: F401

    assert run_tool(argparse.ArgumentParser(), main, []) == 2
    assert 'pip install "momentum-transfer[lvis]"' in capsys.readouterr().err


def test_a_missing_dependency_is_one_line_and_another_module_a_bug(capsys):
    def main(_args):
        raise ModuleNotFoundError("No module named 'fvcore'", name="fvcore.common")

    assert run_tool(argparse.ArgumentParser(), main, []) == 2
    assert capsys.readouterr().err.startswith("error: expected the package fvcore, found none; install it")

    def typing_error(_args):
        import momentum_transfer.pretrain.nowhere  # noqa: F401

    with pytest.raises(ModuleNotFoundError):
        run_tool(argparse.ArgumentParser(), typing_error, [])
