"""Put a folder into a model repository: on the Hub, or in the mirror folder that stands for it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from momentum_transfer.backbones.hub_names import HubName, parse
from momentum_transfer.backbones.hub_pull import MIRROR, clear_errors, endpoint, mirror, mirrored_repository, reachable
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.extras import extra
from momentum_transfer.core.files import atomic_path

PURPOSE = "pushing to the Hub"


def target(text: str) -> HubName:
    """The repository that ``hf:org/name[@branch]`` means, checked before anything is made for it.

    Raises:
        InputError: another form, a file's name, no mirror and no network, or no login.
    """
    name = parse(text)
    if name.file:
        raise InputError(f"expected a repository to push to, hf:org/name[@branch], found the file {text}")
    if mirror() is None:
        if not reachable():
            raise InputError(
                f"no network to {endpoint()}; push where there is one, or set {MIRROR} to a folder that stands "
                "for the Hub"
            )
        if extra("huggingface_hub", PURPOSE).get_token() is None:
            raise InputError("expected a login to push with, found none; `hf auth login`, or set HF_TOKEN")
    return name


def push(folder: Path, name: HubName, written: Sequence[Path], *, private: bool = False) -> str:
    """Upload ``written``, files within ``folder``, and make the repository if it is new; where they are now.

    Raises:
        InputError: the Hub refuses, in one line.
    """
    message = "Weights and scores by momentum-transfer"
    if (mirrored := mirror()) is not None:
        repository = mirrored_repository(mirrored, name)
        for file in written:
            place = repository / file.relative_to(folder)
            with atomic_path(place) as temporary:
                shutil.copyfile(file, temporary)
        return str(repository)
    api = extra("huggingface_hub", PURPOSE).HfApi(endpoint=endpoint())
    with clear_errors(name, online=True):
        api.create_repo(name.repository, private=private, exist_ok=True)
        if name.revision:
            api.create_branch(name.repository, branch=name.revision, exist_ok=True)
        done = api.upload_folder(
            repo_id=name.repository, folder_path=str(folder), revision=name.revision or None, commit_message=message,
            allow_patterns=[file.relative_to(folder).as_posix() for file in written],
        )  # fmt: skip
    return str(done)
