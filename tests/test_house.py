"""The house holds: who imports whom, nothing imports tools, one folder imports Detectron2, files stay readable."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("pretrain", "transfer", "lowshot")

#: What the evaluating rooms may take from pretraining.
SHARED = {
    "pretrain.errors",
    "pretrain.console",
    "pretrain.files",
    "pretrain.config",
    "pretrain.images",
    "pretrain.digits",
    "pretrain.subsets",
    "pretrain.views",
    "pretrain.backbones",
    "pretrain.checkpoint",
    "pretrain.sources",
    "pretrain.distributed",
    "pretrain.schedules",
    "pretrain.precise_bn",
}
#: FixMatch-EMAN is a teacher-student method that lives with the few-label evaluations.
EXCEPTIONS = {"lowshot/fixmatch.py": {"pretrain.teacher", "pretrain.norms"}}


def python_files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def imported_modules(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            submodules = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name for name in submodules if is_module(name)} or {node.module}
    return found


def is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_the_rooms_are_there():
    for room in ROOMS:
        assert python_files(room), f"room {room} is empty"


@pytest.mark.parametrize("path", python_files("transfer", "lowshot"), ids=relative)
def test_evaluating_rooms_import_only_what_is_shared(path: Path):
    room = relative(path).split("/")[0]
    other = {"transfer": "lowshot", "lowshot": "transfer"}[room]
    allowed = SHARED | EXCEPTIONS.get(relative(path), set())
    for module in imported_modules(path):
        assert module.split(".")[0] != other, f"{relative(path)} imports {module}"
        if module.split(".")[0] == "pretrain":
            assert module in allowed, f"{relative(path)} imports {module}, which pretraining does not share"


@pytest.mark.parametrize("path", python_files("pretrain"), ids=relative)
def test_pretraining_imports_no_evaluating_room(path: Path):
    assert not {module.split(".")[0] for module in imported_modules(path)} & {"transfer", "lowshot"}


@pytest.mark.parametrize("path", python_files(*ROOMS, "tools"), ids=relative)
def test_nothing_imports_tools(path: Path):
    assert "tools" not in {module.split(".")[0] for module in imported_modules(path)}


def test_only_one_folder_imports_detectron2_and_only_when_it_runs():
    users = {path for path in python_files(*ROOMS) if "detectron2" in {m.split(".")[0] for m in imported_modules(path)}}
    assert {relative(path.parent) for path in users} == {"transfer/detectron2_engine"}
    for path in users:
        body = ast.parse(path.read_text(encoding="utf-8")).body
        at_import = "\n".join(ast.unparse(node) for node in body if isinstance(node, (ast.Import, ast.ImportFrom)))
        assert not re.search(r"^(?:from|import) detectron2", at_import, re.M), relative(path)


def test_every_tool_finds_the_packages_and_teaches_with_help():
    for path in sorted((ROOT / "tools").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        if path.name != "setup_env.py":
            assert "sys.path[0] = " in text, f"{path.name} would import itself instead of its package"
        assert ast.get_docstring(ast.parse(text)), f"{path.name} says nothing about itself"


def test_no_file_is_called_utils():
    assert not [relative(path) for path in python_files(*ROOMS, "tools", "tests") if path.stem == "utils"]


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "configs/README.md"])
def test_pages_name_only_files_that_are_there(page: str):
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(
        re.findall(r"\b(?:configs|tools|pretrain|transfer|lowshot|tests|docs)/[\w./-]*\w\.(?:py|yaml|png)", text)
    )
    assert named, f"{page} names no file"
    assert not [name for name in sorted(named) if not re.search("NAME|NN", name) and not (ROOT / name).exists()]
