"""The notebooks of docs/: their cells run in order, and every command, option and public name in them is there."""

import ast
import importlib
import json
import re
import runpy
import shlex
import sys
from pathlib import Path
from unittest import mock

import pytest

import momentum_transfer as mt
from momentum_transfer.tools.cli import TOOLS

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))


def cells(path: Path, kind: str) -> list[str]:
    content = json.loads(path.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == kind]


def as_python(cell: str) -> str:
    """A cell whose lines ``!COMMAND`` are calls of ``shell``."""
    return re.sub(r"^!(.*)$", lambda line: f"shell({line[1]!r})", cell, flags=re.M)


def commands(path: Path) -> list[list[str]]:
    return [shlex.split(line[1:]) for cell in cells(path, "code") for line in cell.splitlines() if line[:1] == "!"]


def test_there_are_five_without_outputs_and_the_documentation_links_each():
    assert [path.stem for path in NOTEBOOKS] == ["convert", "detect", "own_images", "probe", "verdict"]
    page = (ROOT / "docs/notebooks.md").read_text(encoding="utf-8")
    for path in NOTEBOOKS:
        content = json.loads(path.read_text(encoding="utf-8"))
        assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
        assert len({cell["id"] for cell in content["cells"]}) == len(content["cells"])
        assert not any(cell.get("outputs") for cell in content["cells"])
        assert f"(notebooks/{path.name})" in page
    assert "notebooks.md" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_command_option_public_name_and_link_is_there(path):
    for tool, name, *words in commands(path):
        assert (tool, name in TOOLS) == ("momentum-transfer", True)
        importlib.import_module(f"momentum_transfer.tools.{name}").parser().parse_intermixed_args(words)
    trees = [ast.parse(as_python(cell)) for cell in cells(path, "code")]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    used = {node.attr for node in nodes if isinstance(node.value, ast.Name) and node.value.id == "mt"}
    assert used <= set(mt.__all__)
    assert used
    for text in cells(path, "markdown"):
        for link in re.findall(r"\]\(([^)#]+)\)", text):
            assert (path.parent / link).is_file(), link


def shell(command: str) -> None:
    """Run ``momentum-transfer NAME …`` in this process, as IPython's ``!`` does in another."""
    _, name, *words = shlex.split(command)
    with mock.patch.object(sys, "argv", [f"momentum-transfer {name}", *words]), pytest.raises(SystemExit) as ended:
        runpy.run_module(f"momentum_transfer.tools.{name}", run_name="__main__")
    assert not ended.value.code, command


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_cells_run_in_order(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"shell": shell, "__name__": "__main__"}
    for number, cell in enumerate(cells(path, "code")):
        exec(compile(as_python(cell), f"{path.name}, cell {number}", "exec"), names)
    assert "error" not in capsys.readouterr().err
