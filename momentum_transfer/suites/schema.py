"""Checks a suite's YAML: msgspec converts it into typed objects, and its refusals become one line each."""

import difflib
import re
from datetime import date
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from momentum_transfer.core.errors import InputError, shown
from momentum_transfer.core.untrusted import read_mapping

Kind = TypeVar("Kind")
#: Tasks of a whole plan: more than any sweep needs, less than any memory.
MOST_TASKS = 200_000
#: Longest name of a folder that a suite gives; file systems take 255 bytes.
LONGEST_NAME = 200

Hours = Annotated[float, msgspec.Meta(ge=0, le=10_000_000)]
Nodes = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Cpus = Annotated[int, msgspec.Meta(ge=1, le=10_000)]
Minutes = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
#: msgspec's name of a type -> ours
_WORDS = {"str": "text", "int": "a whole number", "float": "a number", "bool": "true or false", "array": "a list",
          "object": "a mapping", "null": "nothing"}  # fmt: skip
_REFUSAL = re.compile(r"Expected `([^`]+)`(?: ((?:of length )?[<>]=? [\d.]+))?(?:, got `\w+`)?(?: - at (.*))?")


class SuiteEntry(msgspec.Struct, forbid_unknown_fields=True):
    """The whole file; its parts are checked where they are read."""

    name: str | None = None
    include: str | None = None
    weights: list[str] = []
    pretrain: Any = None
    presets: Any = None
    tasks: list[Any] | None = None
    plots: list[Any] = []
    study: Any = None


def read_entry(path: Path) -> SuiteEntry:
    """The checked top level of a suite's file; InputError if it is no YAML, too deep, too large, or a key is wrong."""
    content = read_mapping(path, "a name and a list of tasks")
    entry = checked(content, SuiteEntry, str(path))
    for key, value in content.items():
        if value is None:
            raise InputError(f"{path}: expected something under {key}, found nothing; fill it in or leave it out")
    if not entry.tasks and entry.include is None:
        raise InputError(f"{path}: expected a name and a list of tasks, found no task; see configs/suites/smoke.yaml")
    return entry


def checked(content: Any, kind: type[Kind], where: str) -> Kind:
    """``content`` as an object of ``kind``; ``where`` names file and part in the InputError about a key or value."""
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise InputError(f"{where}: {_in_words(str(error), content, kind)}") from error


def check_name(name: str, where: str) -> None:
    """Raises InputError unless the name of a suite, task or variant can name a folder: letters, digits and . = - _."""
    if not re.fullmatch(r"[\w.=-]+", name) or not name.strip(".") or len(name.encode()) > LONGEST_NAME:
        raise InputError(f"{where}: expected a name of letters, digits and . = - _, no longer than {LONGEST_NAME}, "
                         f"found {shown(name)}; give it another")  # fmt: skip


def _in_words(refusal: str, content: Any, kind: type) -> str:
    """msgspec's message as ours: what was expected, found, and what to do."""
    if found := re.fullmatch(r"Object contains unknown field `(.*)`", refusal, re.DOTALL):
        known = msgspec.structs.fields(kind)
        names = [field.name for field in known]
        near = difflib.get_close_matches(found[1], names, n=1)
        advice = f"; did you mean {near[0]!r}?" if near else f"; expected some of {', '.join(names)}"
        return f"unknown key {shown(found[1])}{advice}"
    if found := re.fullmatch(r"Object missing required field `(.*)`", refusal):
        return f"expected at least {found[1]}, found {shown(content)}; add it"
    expected = _REFUSAL.fullmatch(refusal)
    if not expected:
        return f"{refusal}; see configs/suites"
    types, bound, place = expected[1], expected[2], (expected[3] or "").replace("`", "")
    words = " or ".join(_WORDS.get(name, name) for name in types.split(" | "))
    words += f" {bound.replace('of length >= 1', 'of at least one')}" if bound else ""
    where = place.partition("[...]")[0].removeprefix("$").removeprefix(".")
    if place.startswith("key in"):
        return f"expected every key of {place.removeprefix('key in $').strip('.') or 'it'} as text; put it in quotes"
    if "[...]" in place:
        where = f"every value of {where}" if where else "every value"
    value = _value_at(content, place)
    quotes = "put it in quotes" if words.startswith("text") and isinstance(value, (int, float, date)) else "correct it"
    return f"expected {where + ' as ' if where else ''}{words}, found {shown(value)}; {quotes}"


def _value_at(content: Any, place: str) -> Any:
    """The value at msgspec's path; for ``[...]``, any entry of a mapping, the whole mapping."""
    for key, index in re.findall(r"\.(\w+)|\[(\d+)\]", place.partition("[...]")[0]):
        content = content[key] if key else content[int(index)]
    return content
