"""YAML of any origin as plain values: no code is run, every key stands once, aliases unfold to a bounded size."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from momentum_transfer.core.errors import InputError, shown
from momentum_transfer.core.text_files import read_text

#: More than any list of classes or tasks needs, less than any memory: bytes of a file, values in it (an alias counts as
#: what it stands for), and levels of nesting.
MOST_BYTES, MOST_ENTRIES, MOST_LEVELS = 4 << 20, 200_000, 20


def read_mapping(file: Path, holds: str = "settings") -> dict[str, Any]:
    """A YAML file's mapping.

    Args:
        holds: what the mapping is of, for the messages.

    Raises:
        InputError: as `parse_mapping`; or the file cannot be read.
    """
    return parse_mapping(read_text(file, f"a YAML mapping of {holds}", MOST_BYTES), str(file), holds)


def parse_mapping(text: str, where: str, holds: str = "settings") -> dict[str, Any]:
    """The mapping that YAML's ``text`` is.

    Args:
        where: it stands, for the messages.

    Raises:
        InputError: it is no YAML, names a key twice, is nested too deeply, too large, empty or no mapping.
    """
    try:
        loaded = yaml.load(text, _Bounded)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: 5000 digits, a date that is none
        detail = " ".join(str(error).split())
        if isinstance(error, yaml.MarkedYAMLError) and error.problem:
            line = f" (line {error.problem_mark.line + 1})" if error.problem_mark else ""
            detail = f"{error.problem}{line}"
        if isinstance(error, RecursionError):
            detail = "it is nested too deeply"
        raise InputError(
            f"expected a YAML mapping in {where}, but it cannot be read: {detail[:400]}; correct it"
        ) from error
    if loaded is None:
        raise InputError(f"expected a YAML mapping of {holds} in {where}, found an empty file; write KEY: value lines")
    if not isinstance(loaded, dict):
        raise InputError(
            f"expected a YAML mapping of {holds} in {where}, found {type(loaded).__name__}; write KEY: value lines"
        )
    return loaded


class _Bounded(yaml.SafeLoader):
    """PyYAML's plain values, with errors where it would take a key's last value, or unfold aliases without end."""

    composed = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.composed += 1
        if self.composed > MOST_ENTRIES:
            raise _too_large()
        return super().compose_node(parent, index)

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None:
            _check_size(node)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key in (pair[0] for pair in node.value if isinstance(pair[0], yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value} stands there twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _check_size(root: yaml.Node) -> None:
    """Level by level, before anything is built of it: aliases make small files large, or endless."""
    count, level = 0, [root]
    for _ in range(MOST_LEVELS):
        inner: list[yaml.Node] = []
        for node in level:
            count += 1
            if count + len(inner) > MOST_ENTRIES:  # before aliases of one long list fill the memory
                raise _too_large()
            if isinstance(node, yaml.MappingNode):
                inner += [part for pair in node.value for part in pair]
            elif isinstance(node, yaml.SequenceNode):
                inner += node.value
            elif not _writable(node.value):
                raise yaml.MarkedYAMLError(
                    problem=f"expected text without NUL and half characters, found {shown(node.value)}",
                    problem_mark=node.start_mark,
                )
        if not (level := inner):
            return
    raise yaml.MarkedYAMLError(
        problem=f"expected at most {MOST_LEVELS} levels, found deeper nesting", problem_mark=level[0].start_mark
    )


def _too_large() -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=f"expected at most {MOST_ENTRIES} entries, found more; divide it")


def _writable(text: str) -> bool:
    """Whether the text can stand in files and command lines."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)
