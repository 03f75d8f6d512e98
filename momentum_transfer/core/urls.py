"""Files at URLs that fsspec reads (``s3://``, ``gs://``, ``memory://`` …): checkpoints and records in, results out.

A run's own folder is never at a URL: object stores have no renaming, no locks and no appending, on which it rests that
a stopped run resumes and a record is whole or absent.
"""

from pathlib import Path
from typing import Any

from momentum_transfer.core.errors import InputError, one_line
from momentum_transfer.core.files import atomic_path, cache_root, sha256_of_text

#: What records name and the page shows, beside ``results.jsonl``.
_BESIDE = ("items", "settings", "report.html", "report.md", "report.csv")


def is_url(path: object) -> bool:
    """Whether the text is a URL and no path."""
    return "://" in str(path)


def local_copy(url: str, *, records: bool = False) -> Path:
    """The file at a URL, copied into the cache once for each content; of ``records`` also what they name."""
    try:
        system, path = _opened(url)
        target = cache_root() / "urls" / sha256_of_text(f"{url} {system.checksum(path)}")[:16] / path.rpartition("/")[2]
        if not target.is_file():
            with atomic_path(target) as temporary:
                for name in _BESIDE[:2] if records else ():
                    if system.isdir(folder := f"{path.rpartition('/')[0]}/{name}"):
                        system.get(f"{folder}/", f"{target.parent / name}/", recursive=True)
                system.get_file(path, str(temporary))  # last: where it is, the others are
    except Exception as error:  # of whichever store it is
        raise InputError(f"expected a file at {url}, found: {one_line(error)}; check the URL") from error
    return target


def copy_out(folder: Path, url: str) -> None:
    """Copy the records of a folder, what they name and the page to a URL; InputError if it cannot be written."""
    try:
        system, path = _opened(url)
        places = [folder / name for name in ("results.jsonl", *_BESIDE)]
        for file in (file for place in places for file in (place, *place.glob("*")) if file.is_file()):
            target = f"{path.rstrip('/')}/{file.relative_to(folder).as_posix()}"
            system.makedirs(target.rpartition("/")[0], exist_ok=True)
            system.put_file(str(file), target)
    except Exception as error:
        raise InputError(f"expected to write to {url}, found: {one_line(error)}; everything is in {folder}") from error


def check_store(url: str) -> None:
    """Raise InputError if no installed package opens such a URL."""
    try:
        _opened(url)
    except Exception as error:  # of whichever store it is
        raise InputError(f"expected the URL of a store, found {url}: {one_line(error)}; nothing was started") from error


def _opened(url: str) -> tuple[Any, str]:
    import fsspec  # torch brings it

    return fsspec.core.url_to_fs(url)
