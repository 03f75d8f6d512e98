"""Names of weights on the Hub, ``hf:org/name[@revision][:file]``: parsed and told; nothing is fetched here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from momentum_transfer.core.errors import InputError

PREFIX = "hf:"
_FORM = "hf:org/name[@revision][:file]"
_PART = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9_-])?"
_NAME = re.compile(rf"hf:(?P<repository>{_PART}/{_PART})(?:@(?P<revision>[\w./-]+))?(?::(?P<file>[^:@\s][^:]*))?")


@dataclass(frozen=True)
class HubName:
    """A file of a model repository. revision: branch, tag or commit (""= main); file: "" where it is to be found."""

    repository: str
    revision: str = ""
    file: str = ""

    def __str__(self) -> str:
        at = f"@{self.revision}" if self.revision else ""
        return f"{PREFIX}{self.repository}{at}" + (f":{self.file}" if self.file else "")


def is_hub_name(weights: str | Path) -> bool:
    """Whether the words mean a file on the Hub, and no path."""
    return str(weights).startswith(PREFIX)


def parse(text: str | Path) -> HubName:
    """The parts of a name.

    Raises:
        InputError: another form, or a file that would lie outside of its repository.
    """
    found = _NAME.fullmatch(str(text))
    parts = found.groupdict(default="") if found else {}
    file, revision = PurePosixPath(parts.get("file", "")), parts.get("revision", "")
    if not found or ".." in str(text) or "--" in parts["repository"] or file.is_absolute() or revision.endswith("/"):
        raise InputError(f"expected weights on the Hub as {_FORM}, found {str(text)!r}; see docs/hub.md")
    return HubName(parts["repository"], revision, parts["file"])
