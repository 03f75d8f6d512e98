"""XML with the line of every element, which the standard library's parser keeps to itself."""

from __future__ import annotations

from pathlib import Path
from xml.parsers import expat

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.text_files import read_regular

#: Bytes of the longest annotation of one image; a gigabyte of elements would fit into what other texts may have.
MOST = 16 << 20
#: Labels have five levels.
_DEEPEST = 64


class Node:
    """An element: its tag, line, text and children."""

    __slots__ = ("children", "line", "parts", "tag")

    def __init__(self, tag: str, line: int) -> None:
        self.tag, self.line = tag, line
        self.children: list[Node] = []
        self.parts: list[str] = []

    @property
    def text(self) -> str:
        """What stands in the element itself."""
        return "".join(self.parts)

    def all(self, tag: str) -> list[Node]:
        """The children of that tag."""
        return [child for child in self.children if child.tag == tag]

    def child(self, tag: str) -> Node | None:
        """The first child of that tag, or None."""
        return next((child for child in self.children if child.tag == tag), None)


def read_xml(path: Path) -> Node:
    """The root of an XML file.

    Raises:
        InputError: the file cannot be read or is no XML; the line is named. Entities are refused: labels need none.
    """
    parser = expat.ParserCreate()
    parser.buffer_text = True  # or every line comes alone
    top = Node("", 0)
    stack = [top]

    def begin(tag: str, _attributes: dict[str, str]) -> None:
        if len(stack) > _DEEPEST:
            raise InputError(
                f"expected at most {_DEEPEST} nested elements in {path}:{parser.CurrentLineNumber}, found more"
            )
        node = Node(tag, parser.CurrentLineNumber)
        stack[-1].children.append(node)
        stack.append(node)

    def end(_tag: str) -> None:
        stack.pop()

    def text(data: str) -> None:
        stack[-1].parts.append(data)

    def entity(*_: object) -> None:
        raise InputError(
            f"expected an XML without entities, found one in {path}:{parser.CurrentLineNumber}; take it out"
        )

    parser.StartElementHandler, parser.EndElementHandler = begin, end
    parser.CharacterDataHandler, parser.EntityDeclHandler = text, entity
    try:
        parser.Parse(read_regular(path, "an XML file", MOST), True)
    except (expat.ExpatError, ValueError, LookupError) as error:  # ValueError: encodings that expat does not know
        line = f":{error.lineno}" if isinstance(error, expat.ExpatError) else ""
        raise InputError(f"expected an XML file, found one that cannot be read at {path}{line}: {error}") from error
    return top.children[0]
