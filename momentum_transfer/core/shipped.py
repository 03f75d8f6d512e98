"""Where the configs and tools that ship with the package are, in a checkout and in an installed wheel.

In a checkout ``pretrain/``, ``transfer/``, ``lowshot/``, ``configs/`` and ``tools/`` lie at the top level and the
package links to them; in the wheel they are folders of the package.
"""

import difflib
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from momentum_transfer.core.errors import InputError

_PACKAGE = Path(__file__).resolve().parents[1]

#: The checkout that the package is imported from; None for an installed wheel.
CHECKOUT = _PACKAGE.parent if (_PACKAGE / "configs").is_symlink() else None
CONFIGS, TOOLS = (_PACKAGE / "configs").resolve(), (_PACKAGE / "tools").resolve()

#: The console script; ``momentum-transfer NAME …`` is ``python tools/NAME.py …``.
COMMAND = "momentum-transfer"

_SUFFIXES = (".yaml", ".yml")


def workplace() -> Path:
    """The folder that commands of suites and of the quickstart run in: the checkout, else the current folder."""
    return CHECKOUT or Path.cwd()


def find_config(name: str | Path, *, beside: Path | None = None) -> Path:
    """The file of a config: a path on disk (relative to ``beside`` or the current folder), else a config that ships.

    Shipped ones have short names such as ``smoke/momentum2_digits``. Raises InputError with the nearest names.
    """
    path = Path(name).expanduser()
    start = beside if beside is not None else Path()
    for file in _spellings(start / path):
        if file.is_file():
            return file
    if not path.is_absolute() and ".." not in path.parts:
        inside = Path(*path.parts[1:]) if path.parts[:1] == ("configs",) else path
        for file in _spellings(CONFIGS / inside):
            if file.is_file():
                return file
    raise InputError(f"config file not found: {name}; the nearest names are {', '.join(_nearest(path, start))}")


def short_name(file: Path) -> str:
    """The short name of a shipped config, ``smoke/momentum2_digits``."""
    return file.relative_to(CONFIGS).with_suffix("").as_posix()


def shipped_configs() -> list[str]:
    """Short names of all configs that ship, except the report's reference tables."""
    names = (short_name(file) for file in sorted(CONFIGS.rglob("*.yaml")))
    return [name for name in names if not name.startswith("reference/")]


def _spellings(path: Path) -> list[Path]:
    return [path] if path.suffix in _SUFFIXES else [path, *(Path(f"{path}{suffix}") for suffix in _SUFFIXES)]


def _nearest(path: Path, start: Path, count: int = 3) -> list[str]:
    """The names most like ``path`` among shipped configs and the YAML files in its folder."""
    folder = start / path.parent
    files = folder.glob("*") if folder.is_dir() else ()
    local = [str(path.parent / file.name) for file in files if file.suffix in _SUFFIXES]
    wanted = path.with_suffix("") if path.suffix in _SUFFIXES else path
    if wanted.parts[:1] == ("configs",) and len(wanted.parts) > 1:
        wanted = Path(*wanted.parts[1:])

    def likeness(name: str) -> float:
        whole = difflib.SequenceMatcher(None, wanted.as_posix(), Path(name).with_suffix("").as_posix()).ratio()
        return max(whole, difflib.SequenceMatcher(None, wanted.name, Path(name).stem).ratio())

    names = dict.fromkeys(local + shipped_configs())
    return sorted(names, key=likeness, reverse=True)[:count]


def tool_file(script: str) -> Path:
    """The file of a tool named as in a suite, ``tools/lowshot.py``."""
    path = Path(script)
    return TOOLS / path.name if path.parts[:-1] == ("tools",) else workplace() / path


def started(command: Sequence[str]) -> list[str]:
    """``tools/NAME.py ARGUMENTS`` as arguments of ``python`` that work from any folder."""
    script, *rest = command
    return [*command] if CHECKOUT else [str(tool_file(script)), *rest]


def typed(command: Sequence[str]) -> str:
    """``tools/NAME.py ARGUMENTS`` as a person types it: with python in a checkout, else with the console script.

    ``command`` begins with the tool's file, by any path, or with the console script and the tool's name.
    """
    script, *rest = command
    if script.startswith(COMMAND + " "):
        return f"{script} {shlex.join(rest)}".rstrip()
    path = Path(script)
    if CHECKOUT is None and path.suffix == ".py" and path.parent.name == "tools":
        return f"{COMMAND} {shlex.join([path.stem, *rest])}"
    return shlex.join(["python", *command])


def as_typed(text: str) -> str:
    """A help text or message with ``python tools/NAME.py`` as ``momentum-transfer NAME`` where there is no checkout.

    torchrun takes a file or a module, so there it is ``-m momentum_transfer.tools.NAME``.
    """
    if CHECKOUT is not None:
        return text
    text = re.sub(r"(torchrun [^\n]*?)\btools/(\w+)\.py", r"\1-m momentum_transfer.tools.\2", text)
    return re.sub(r"(?:python )?\btools/(\w+)\.py", rf"{COMMAND} \1", text)
