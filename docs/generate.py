"""Pages that the code itself writes while the site is built: commands, settings, the Python API.

A MkDocs hook: ``commands.md`` from the tools' parsers, ``settings.md`` from the rooms' tables of settings, ``api.md``
from the public names of ``momentum_transfer``.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import sys
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
    return "\n".join([*parts, *(f"## {name}\n\n```text\n{help_of(name)}\n```\n" for name in TOOLS)])


def help_of(name: str) -> str:
    """What ``momentum-transfer NAME --help`` prints; a tool without options of its own shows its docstring."""
    module = importlib.import_module(f"momentum_transfer.tools.{name}")
    if not hasattr(module, "parser"):
        return str(module.__doc__).strip()
    parser = module.parser()
    parser.prog = f"momentum-transfer {name}"
    with contextlib.redirect_stdout(io.StringIO()) as out:
        parser.print_help()
    return out.getvalue().strip()


def settings() -> str:
    """Every setting of the three rooms, from their tables."""
    parts = [
        "# Settings\n\nKeys of the YAML files, given as `KEY VALUE` arguments after the options too. A setting that "
        "decides nothing changes no number, and no identity of a result counts it; one that decides scores leaves the "
        "training as it is; all others decide both. Keys that Detectron2 has mean what they mean there.\n"
    ]
    for name in ("pretrain", "transfer", "lowshot"):
        table = importlib.import_module(f"momentum_transfer.{name}.config").SETTINGS.values()
        rows = [
            f"| `{each.key}` | `{each.default!r}` | {cell(each.rule)} | {each.decides.replace('training', '')} "
            f"| {cell(each.meaning)} |"
            for each in table
        ]
        head = f"## {name}\n\n| key | default | may be | decides | notes |\n|---|---|---|---|---|\n"
        parts.append(head + "\n".join(rows) + "\n")
    return "\n".join(parts)


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
