"""The house holds: imports go down only and never in circles; each rule lists its offenders."""

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "momentum_transfer"
#: Rooms of a floor may import each other on the ground and on the second, not on the first.
FLOORS = (
    ("core", "images", "backbones", "verdicts"),
    ("pretrain", "transfer", "lowshot"),
    ("suites", "report"),
    ("tools",),
)
#: Room -> its folder. The rooms that a user opens lie at the top and are links in the package.
FOLDERS = {room: room if (ROOT / room).is_dir() else f"{PACKAGE}/{room}" for floor in FLOORS for room in floor}
LINKED = [room for room, folder in FOLDERS.items() if folder == room]


def python_files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def product_files() -> list[Path]:
    return python_files(*FOLDERS.values())


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def room_of(name: str) -> str | None:
    """The room of a module (``momentum_transfer.core.log``) or of a file (``pretrain/train.py``)."""
    parts = [part for part in re.split(r"[./]", name) if part != PACKAGE]
    return parts[0] if parts and parts[0] in FOLDERS else None


def module_file(name: str) -> str | None:
    room, parts = room_of(name), name.split(".")
    if room is None or parts[0] != PACKAGE:
        return None
    path = ROOT.joinpath(FOLDERS[room], *parts[2:])
    return next((relative(file) for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def imports(path: Path, tree: ast.AST | None = None) -> set[str]:
    """Names of the modules that a file imports, at the top, within functions or for type checking alone."""
    found: set[str] = set()
    tree = tree if tree is not None else parsed(path)
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            submodules = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name for name in submodules if module_file(name)}
            if not all(module_file(name) for name in submodules):
                found.add(node.module)
        else:
            found |= imports(path, node)
    return found


def arrows() -> list[tuple[str, str]]:
    """(file, imported module) within the project."""
    found = [(relative(path), name) for path in product_files() for name in sorted(imports(path)) if room_of(name)]
    return [(file, name) for file, name in found if name.split(".")[0] == PACKAGE]


def test_imports_go_down_only():
    floor = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
    upward = set()
    for file, name in arrows():
        source, target = room_of(file), room_of(name)
        sideways = floor[target] == floor[source] == 1 and target != source
        if floor[target] > floor[source] or sideways:
            upward.add((file, name.removeprefix(f"{PACKAGE}.")))
    assert not upward


def test_rooms_are_imported_as_parts_of_the_package_never_by_their_bare_names():
    """``import transfer`` would find a file of that name in the user's folder, and a second copy in a checkout."""
    bare = []
    for path in [*product_files(), *python_files("tests", "benchmarks", "studies", "docs", PACKAGE)]:
        bare += [(relative(path), name) for name in imports(path) if name.split(".")[0] in LINKED]
    assert not bare


def test_every_room_at_the_top_is_a_link_in_the_package():
    assert {room: (ROOT / PACKAGE / room).resolve() for room in LINKED} == {room: ROOT / room for room in LINKED}
    assert (ROOT / PACKAGE / "configs").resolve() == ROOT / "configs"


def test_the_front_door_names_what_is_there_and_nobody_inside_goes_through_it():
    """momentum_transfer/__init__.py names modules of all rooms: it counts as roof."""
    door = parsed(ROOT / PACKAGE / "__init__.py")
    table = next(
        node for node in door.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_PUBLIC"
    )
    public: dict[str, str] = ast.literal_eval(table.value)
    modules = {name: target.partition(":")[0] for name, target in public.items()}
    assert not [name for name, module in modules.items() if module_file(module) is None]
    body = [node for node in door.body if not isinstance(node, ast.If)]
    at_run = imports(Path("door"), ast.Module(body=body, type_ignores=[]))
    assert at_run == {"importlib", "typing", "momentum_transfer.core.versions"}
    through = []
    for path in product_files():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Import):
                through += [relative(path) for alias in node.names if alias.name == PACKAGE]
            elif isinstance(node, ast.ImportFrom) and node.module == PACKAGE:
                through += [relative(path) for alias in node.names if alias.name in public]
    assert not through


def test_importing_a_room_sets_no_environment_variable_filters_no_warning_and_prints_nothing():
    acts = (
        r"os\.environ\.(setdefault|update|pop)|os\.environ\[.*\] =|os\.putenv|warnings\.(filter|simplefilter)|print\("
    )
    found = []
    for path in product_files():
        if room_of(relative(path)) == "tools":
            continue
        body = parsed(path).body
        statements = [node for node in body if not isinstance(node, (ast.FunctionDef, ast.ClassDef))]
        found += [relative(path) for node in statements if re.search(acts, ast.unparse(node).partition('"""')[0])]
    assert not found


def test_there_are_no_circles():
    graph: dict[str, set[str]] = {}
    for file, name in arrows():
        target = module_file(name)
        if target and target != file:
            graph.setdefault(file, set()).add(target)
    done: set[str] = set()
    circles: list[str] = []

    def visit(file: str, trail: list[str]) -> None:
        if file in trail:
            circles.append(" -> ".join([*trail[trail.index(file) :], file]))
        elif file not in done:
            for target in sorted(graph.get(file, ())):
                visit(target, [*trail, file])
            done.add(file)

    for file in sorted(graph):
        visit(file, [])
    assert not circles


def test_nothing_imports_tools():
    assert not [(file, name) for file, name in arrows() if room_of(name) == "tools" and room_of(file) != "tools"]


def test_only_one_folder_imports_detectron2_and_only_when_it_runs():
    users = [path for path in product_files() if any(m.split(".")[0] == "detectron2" for m in imports(path))]
    assert {relative(path.parent) for path in users} == {"transfer/detectron2_engine"}
    early = []
    for path in users:
        body = parsed(path).body
        at_import = "\n".join(ast.unparse(node) for node in body if isinstance(node, (ast.Import, ast.ImportFrom)))
        early += [relative(path)] if re.search(r"^(?:from|import) detectron2", at_import, re.M) else []
    assert not early


def test_every_tool_finds_the_packages_and_says_what_it_is():
    tools = [path for path in (ROOT / "tools").glob("*.py") if path.name != "setup_env.py"]
    texts = {path.name: path.read_text(encoding="utf-8") for path in tools}
    assert len(tools) > 8
    assert not [name for name, text in texts.items() if "if not __package__:" not in text and name != "__init__.py"]
    assert not [name for name, text in texts.items() if not ast.get_docstring(ast.parse(text))]


def test_what_the_type_checker_is_told_to_ignore_says_why():
    silent = []
    for path in product_files():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if "# type: ignore" in line and not re.search(r"# type: ignore\[[\w, -]+\]  # \w", line):
                silent.append(f"{relative(path)}:{number}")
    assert not silent


def test_no_file_is_called_utils():
    assert not [
        relative(path)
        for path in [*product_files(), *python_files("tests", "benchmarks", "studies")]
        if path.stem == "utils"
    ]


def test_tests_mirror_the_rooms():
    homeless = []
    for path in python_files(*(f"tests/{room}" for room in FOLDERS)):
        room, *inside = path.parent.relative_to(ROOT / "tests").parts
        homeless += [] if ROOT.joinpath(FOLDERS[room], *inside).is_dir() else [relative(path)]
    assert not homeless


def test_pages_name_only_files_that_are_there():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "configs/README.md"]
    known = r"\b(?:configs|tools|momentum_transfer|pretrain|transfer|lowshot|tests|docs)/[\w./-]*\w\.(?:py|yaml|png)"
    absent = []
    for page in pages:
        named = set(re.findall(known, page.read_text(encoding="utf-8")))
        assert named, f"{page.name} names no file"
        absent += [
            f"{page.name}: {name}"
            for name in sorted(named)
            if not re.search("NAME|NN", name) and not (ROOT / name).exists()
        ]
    assert not absent


def test_docstrings_name_only_files_that_are_there():
    files = {relative(path) for path in product_files()}
    absent = []
    for path in product_files():
        tree = parsed(path)
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
        texts = [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, documented)]
        for name in re.findall(r"``([\w/]+\.py)``", "\n".join(texts)):
            if not any(f"/{file}".endswith(f"/{name}") for file in files):
                absent.append(f"{relative(path)}: {name}")
    assert not absent
