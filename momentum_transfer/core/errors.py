"""InputError: the exception for mistakes in a user's input; any other exception is a bug."""

import re
import reprlib
from typing import Any

#: Control characters, line separators, marks that turn the direction of text, what has no width (two names that look
#: alike; the joiners of emoji and of Persian stay), and what no encoding can write.
_UNPRINTABLE = re.compile(
    "[\0-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f\ud800-\udfff]"
)
_LINE_BREAK = re.compile(r"\s*\n\s*")
_SHORT = reprlib.Repr()
_SHORT.maxstring, _SHORT.maxother, _SHORT.maxlong = 80, 80, 40
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = 8
_SHORT.maxlevel = 3


def printable(text: str) -> str:
    """The text on one line, with what would steer a terminal or reorder the line as escapes (``\\x1b``, ``\\n``).

    Names, metadata and records of untrusted files pass here before they reach a terminal, a log or a table.
    """
    return _UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], text)


def shown(value: Any) -> str:
    """A value as messages show it: its ``repr`` on one line, shortened where it is long or deeply nested."""
    text = _SHORT.repr(value)
    return text if len(text) <= 300 else f"{text[:297]}..."


def counted(count: int, noun: str) -> str:
    """``1 class``, ``2 classes``: a number with its noun, given in the singular."""
    plural = f"{noun}es" if noun.endswith(("s", "x", "ch")) else f"{noun[:-1]}ies" if noun[-2:] == "ry" else f"{noun}s"
    return f"{count} {noun if count == 1 else plural}"


def one_line(error: BaseException | str, most: int = 240) -> str:
    """A library's message cut to one line: its first sentences, without line breaks. ``--debug`` shows all of it."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= most else f"{text[: most - 1]}…"


def first_line(error: Exception) -> str:
    """What an exception says, behind its kind: the first line of it, of readable length."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}{': ' if text else ''}{text[:160]}"


class InputError(Exception):
    """Something the user gave is wrong. The message says what was expected, what was found and what to do next.

    Tools print it as one line and exit with code 2; library callers may catch it. Line breaks (of a library's message
    within it) become spaces; what they were is in the ``__cause__``, which ``--debug`` shows.
    """

    def __init__(self, message: str) -> None:
        # A DataLoader raises a worker's exception again with the worker's traceback in front of the message.
        if message.startswith(f"Caught {type(self).__name__} in "):
            message = message.rstrip().rpartition(f"{type(self).__name__}: ")[2]
        super().__init__(printable(_LINE_BREAK.sub(" ", message).strip() if "\n" in message else message))
