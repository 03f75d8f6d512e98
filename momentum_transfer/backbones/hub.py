"""A file of the Hub, or of a URL, on this disk: from a mirror, from huggingface_hub's cache, or over the network.

Names are ``hf:org/name[@revision][:file]``. ``$MOMENTUM_TRANSFER_HUB`` names a mirror, a folder with a repository as
``org/name/`` (a revision of it as ``org/name@revision/``), for machines without a network. Without it huggingface_hub
fetches and caches as always (HF_HOME, HF_ENDPOINT, HF_HUB_OFFLINE and its tokens hold).
"""

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from momentum_transfer.core import machine
from momentum_transfer.core.errors import InputError, extra, shown
from momentum_transfer.core.files import HUB
from momentum_transfer.core.log import say
from momentum_transfer.core.urls import is_url, local_copy

_FORM = "hf:org/name[@revision][:file]"
_PART = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9_-])?"
_NAME = re.compile(rf"hf:(?P<repository>{_PART}/{_PART})(?:@(?P<revision>[\w./-]+))?(?::(?P<file>[^:@\s][^:]*))?")


@dataclass(frozen=True)
class HubName:
    """A file of a model repository. revision: branch, tag or commit ("": main); file: "" where it is to be found."""

    repository: str
    revision: str = ""
    file: str = ""

    def __str__(self) -> str:
        at = f"@{self.revision}" if self.revision else ""
        return f"{HUB}{self.repository}{at}" + (f":{self.file}" if self.file else "")


def parse(text: str | Path) -> HubName:
    """The parts of a name; InputError for another form, or a file that would lie outside of its repository."""
    found = _NAME.fullmatch(str(text))
    parts = found.groupdict(default="") if found else {}
    file, revision = PurePosixPath(parts.get("file", "")), parts.get("revision", "")
    if not found or ".." in str(text) or "--" in parts["repository"] or file.is_absolute() or revision.endswith("/"):
        raise InputError(f"expected weights on the Hub as {_FORM}, found {str(text)!r}; see docs/hub.md")
    return HubName(parts["repository"], revision, parts["file"])


MIRROR = "MOMENTUM_TRANSFER_HUB"
#: Looked for in this order where a name holds no file; the first is what this project exports and pushes.
PREFERRED = ("backbone.safetensors", "model.safetensors", "pytorch_model.bin", "model.safetensors.index.json",
             "pytorch_model.bin.index.json")  # fmt: skip
_WEIGHTS = (".safetensors", ".bin", ".pth", ".pt", ".tar", ".pkl", ".npz")

PURPOSE = "weights of the Hub"


def local_file(weights: str | Path) -> Path:
    """The local copy of ``hf:org/name[@revision][:file]``, or of a URL, fetched if need be.

    Raises:
        InputError: no such name, repository, revision or file; several files to choose from; no network and no copy.
    """
    if is_url(weights):
        return local_copy(str(weights))
    name, folder = parse(weights), mirror()
    return _fetched(name) if folder is None else _mirrored(folder, name)


def origin(weights: str | Path, file: Path) -> str:
    """Where ``file``, the local copy of ``weights``, comes from, with the commit where the cache knows it."""
    if is_url(weights):
        return str(weights)
    name, parts = parse(weights), file.parts
    if "snapshots" in parts[:-2]:
        place = len(parts) - 1 - parts[::-1].index("snapshots")
        return str(HubName(name.repository, parts[place + 1], "/".join(parts[place + 2 :])))
    return str(HubName(name.repository, name.revision, name.file or file.name))


def mirror() -> Path | None:
    """The folder that ``$MOMENTUM_TRANSFER_HUB`` names, None if it is not set. Raises InputError if it is no folder."""
    if not (chosen := os.environ.get(MIRROR)):
        return None
    folder = Path(chosen).expanduser()
    if not folder.is_dir():
        raise InputError(f"expected a folder in {MIRROR}, found {shown(chosen)}; make it, or unset the variable")
    return folder


def mirrored_repository(folder: Path, name: HubName) -> Path:
    """Where a mirror keeps a repository at a revision."""
    return folder / (f"{name.repository}@{name.revision}" if name.revision else name.repository)


def _mirrored(folder: Path, name: HubName) -> Path:
    repository = mirrored_repository(folder, name)
    if not repository.is_dir():
        advice = "put it there, or unset the variable to ask the Hub"
        raise InputError(f"expected {name} as {repository} in the mirror of {MIRROR}, found no such folder; {advice}")
    return _chosen(name, repository)


def _chosen(name: HubName, folder: Path) -> Path:
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return folder / _choose(name, files)


def _choose(name: HubName, files: Sequence[str]) -> str:
    """The file that the name means, of all files of its repository."""
    repository = HubName(name.repository, name.revision)
    weights = [file for file in files if file.endswith(_WEIGHTS)]
    if name.file in files:
        return name.file
    if name.file:
        raise InputError(f"expected {name.file} in {repository}, found {_listed(weights or files)}")
    for preferred in PREFERRED:
        if preferred in files:
            return preferred
    if len(weights) != 1:
        found = _listed(weights)
        raise InputError(f"expected one file of weights in {repository}, found {found}; say which: {repository}:FILE")
    return weights[0]


def _read_beside(file: str, files: Sequence[str]) -> list[str]:
    """What is read beside a file of weights: the model's config, and the shards that an index lists."""
    folder, _, name = file.rpartition("/")
    held = [(other, other.rpartition("/")[2]) for other in files if other.rpartition("/")[0] == folder]
    start = f"{name.partition('.')[0]}-" if name.endswith(".index.json") else None
    shards = [other for other, last in held if start is not None and last.startswith(start) and "-of-" in other]
    return [other for other, last in held if last == "config.json"] + shards


def _listed(files: Sequence[str]) -> str:
    return ", ".join(files[:8]) + (f" and {len(files) - 8} more" if len(files) > 8 else "") or "none"


def endpoint() -> str:
    """The Hub's address; HF_ENDPOINT counts even if it is set after the import."""
    constants = extra("huggingface_hub.constants", PURPOSE)
    return os.environ.get("HF_ENDPOINT", constants.ENDPOINT).rstrip("/")


def reachable() -> bool:
    """Whether the Hub's host answers; huggingface_hub itself would try for half a minute, and print each time."""
    return not extra("huggingface_hub.constants", PURPOSE).is_offline_mode() and machine.reachable(endpoint())


def _fetched(name: HubName) -> Path:
    hub = extra("huggingface_hub", PURPOSE)
    online = reachable()
    with clear_errors(name, online):
        if online:
            files = hub.HfApi(endpoint=endpoint()).list_repo_files(name.repository, revision=name.revision or None)
            file = _choose(name, files)
            for beside in _read_beside(file, files):
                hub.hf_hub_download(name.repository, beside, revision=name.revision or None, endpoint=endpoint())
            path = Path(hub.hf_hub_download(name.repository, file, revision=name.revision or None, endpoint=endpoint()))
        else:
            folder = hub.snapshot_download(name.repository, revision=name.revision or None, local_files_only=True)
            path = _chosen(name, Path(folder))
    say(f"{name} is {origin(str(name), path)}" + ("" if online else " (no network: the copy in the cache)"))
    return path


@contextlib.contextmanager
def clear_errors(name: HubName, online: bool) -> Iterator[None]:
    """What huggingface_hub raises, in one line with the next step."""
    errors = extra("huggingface_hub.errors", PURPOSE)
    try:
        yield
    except InputError:
        raise
    except errors.GatedRepoError as error:
        raise InputError(f"{name} is gated: accept its terms on its page, then `hf auth login`") from error
    except errors.RevisionNotFoundError as error:
        raise InputError(f"expected a revision of {name.repository}, found none called {name.revision}") from error
    except errors.RepositoryNotFoundError as error:
        found = "none that is open to you; check the name, or `hf auth login` for a private one"
        raise InputError(f"expected a model repository {name.repository} on the Hub, found {found}") from error
    except Exception as error:  # requests, httpx and httpx2 raise their own kinds, by the version of huggingface_hub
        if not online:
            raise InputError(
                f"no network to {endpoint()} and no copy of {name} on this machine; fetch it where there is a network "
                f"(HF_HOME is the cache to carry over), or set {MIRROR} to a folder with {name.repository}/ in it"
            ) from error
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(f"{name}: the Hub at {endpoint()} refused or broke off: {reason}; try again") from error
