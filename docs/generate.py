"""Pages that the code itself writes while the site is built: commands, settings, the Python API.

A MkDocs hook: ``commands.md`` from the tools' parsers, ``settings.md`` from the rooms' defaults and rules, ``api.md``
from the public names of ``momentum_transfer``.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


#: griffe warns of docstrings that describe several parameters in one entry, as this project's do.
logging.getLogger("mkdocs.plugins.griffe").setLevel(logging.ERROR)


def on_files(files: Files, config: Any) -> Files:
    """MkDocs calls this once it has found the pages of docs/."""
    from mkdocs.structure.files import File

    for name, text in (("commands.md", commands()), ("settings.md", settings()), ("api.md", api())):
        files.append(File.generated(config, name, content=text))
    return files


def commands() -> str:
    """The help of every command."""
    from momentum_transfer.tools.cli import TOOLS

    parts = [
        "# Commands\n\n`momentum-transfer NAME …`, or `python tools/NAME.py …` in a checkout. Pretraining, `transfer` "
        "and `lowshot` run under `torchrun` too.\n"
    ]
    for name, line in TOOLS.items():
        parts.append(f"## {name}\n\n{line[0].upper()}{line[1:]}.\n\n```text\n{help_of(name)}\n```\n")
    return "\n".join(parts)


def help_of(name: str) -> str:
    """What ``momentum-transfer NAME --help`` prints; a tool without options of its own shows its docstring."""
    path = list(sys.path)
    module = importlib.import_module(f"momentum_transfer.tools.{name}")
    sys.path[:] = path
    if not hasattr(module, "parser"):
        return str(module.__doc__).strip()
    parser = module.parser()
    parser.prog = f"momentum-transfer {name}"
    with contextlib.redirect_stdout(io.StringIO()) as out:
        parser.print_help()
    return out.getvalue().strip()


def settings() -> str:
    """Every key of the three rooms: default, what it may be, what its comment says."""
    names = ("pretrain", "transfer", "lowshot")
    parts = ["# Settings\n\nKeys of the YAML files, given as `KEY VALUE` words after the options too.\n"]
    for name in names:
        config = importlib.import_module(f"momentum_transfer.{name}.config")
        rules = importlib.import_module(f"momentum_transfer.{name}.ranges").RULES
        comments = comments_of(Path(str(config.__file__)))
        rows = [
            f"| `{key}` | `{value!r}` | {cell(rules[key]) if key in rules else ''} | {cell(comments.get(key, ''))} |"
            for key, value in leaves(config.get_cfg())
        ]
        head = f"## {name}\n\n| key | default | may be | notes |\n|---|---|---|---|\n"
        parts.append(head + "\n".join(rows) + "\n")
    return "\n".join(parts)


def leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys with their defaults."""
    for key, value in node.items():
        if hasattr(value, "items"):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def comments_of(file: Path) -> dict[str, str]:
    """Dotted key -> the comment behind its default in the source.

    Keys are set on ``cfg`` with their sections, or on the ``node`` of a function that ``cfg.SECTION = …()`` calls.
    """
    text = file.read_text(encoding="utf-8")
    functions = {part.name: part for part in ast.parse(text).body if isinstance(part, ast.FunctionDef)}
    found: dict[str, str] = {}
    for function in functions.values():
        if not any(variable == "node" for variable, *_ in _assigned(function)):
            found |= _comments_in(function, functions, text.splitlines())
    return found


def _comments_in(function: ast.FunctionDef, functions: dict[str, ast.FunctionDef], lines: list[str]) -> dict[str, str]:
    """Key -> comment, for the keys that a function sets or has others set."""
    found: dict[str, str] = {}
    for _, key, statement in _assigned(function):
        value = statement.value
        if isinstance(value, ast.Call) and ast.unparse(value.func) in functions:
            inside = _comments_in(functions[ast.unparse(value.func)], functions, lines)
            found |= {f"{key}.{name}".lstrip("."): comment for name, comment in inside.items()}
        _, mark, comment = lines[(statement.end_lineno or 1) - 1].partition("  # ")
        if mark and key:
            found[key] = comment.strip()
    return found


def _assigned(function: ast.FunctionDef) -> list[tuple[str, str, ast.Assign]]:
    """(``cfg`` or ``node``, dotted key, statement) of a function's assignments to settings."""
    found = []
    for statement in function.body:
        if isinstance(statement, ast.Assign):
            variable, _, key = ast.unparse(statement.targets[0]).partition(".")
            found += [(variable, key, statement)] if variable in ("cfg", "_C", "node") else []
    return found


def cell(value: Any) -> str:
    """Words that do not end a table's cell."""
    return str(value).replace("|", "\\|").replace("\n", " ")


def api() -> str:
    """The public names of the library, by mkdocstrings."""
    import momentum_transfer

    places = dict(sorted(momentum_transfer._PUBLIC.items()))
    entries = [f"## mt.{name}\n\n::: {place.replace(':', '.')}\n" for name, place in places.items()]
    return (
        "# Python API\n\n`import momentum_transfer as mt`; [The library](library.md) shows the names at work.\n\n"
        + ("\n".join(entries))
    )
