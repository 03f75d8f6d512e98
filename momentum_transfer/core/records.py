"""Records: one JSON object a line, each a score with its provenance; and items files, the outcome of every test item.

Every score of every evaluator ends here; the report is a pure function of these lines. A line is appended with one
write, so a killed run leaves whole lines only. ``items/NAME.npz`` beside the results file holds the outcomes whose mean
a record is; the record names it with its SHA-256, and the name holds a hash of the content, so none is overwritten.
"""

import contextlib
import fcntl
import functools
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import re
import sys
import time
import zipfile
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from momentum_transfer.core import untrusted
from momentum_transfer.core.errors import InputError, one_line
from momentum_transfer.core.files import append_whole, atomic_path, sha256_of
from momentum_transfer.core.shipped import typed
from momentum_transfer.verdicts import outcomes
from momentum_transfer.verdicts.outcomes import Outcomes

#: Increased when the meaning of a key changes; the report lists records of other versions separately.
FORMAT = 1

#: Keys that every record holds.
REQUIRED = ("task", "metric", "value", "checkpoint")

#: Environment variable: seconds that a suite's earlier attempts at this task took.
SPENT = "MOMENTUM_TRANSFER_SPENT"

_BEGAN = time.monotonic()  # tools import this as they start

_PACKAGES = ("momentum-transfer", "torch", "torchvision", "scikit-learn", "scipy", "pycocotools", "detectron2")


@functools.cache  # looking up six packages takes milliseconds, and a sweep writes thousands of records
def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def make_record(
    task: str,
    metric: str,
    value: float,
    *,
    checkpoint: Mapping[str, str],
    network: str = "",
    trial: int = 0,
    seed: int | None = None,
    protocol: str = "",
    config: str = "",
    engine: str = "",
    dataset: str = "",
    **details: Any,
) -> dict[str, Any]:
    """One record.

    Args:
        task, metric: ``coco/bbox``, ``knn/k=20``, …; ``AP``, ``top1``, … as the field calls it; fractions in percent.
        value: NaN is stored as null, because JSON has no NaN.
        checkpoint: ``{"name": …, "sha256": …}`` of the weights, and where known ``method``, ``random_seed`` and the
            ``weights`` that a continued pretraining started from.
        network: ``teacher`` or ``student``, as scored (FixMatch trains both; ``start_network`` is the checkpoint's).
        trial, seed: which repetition, and its seed.
        protocol: name of the preset, so that numbers of different protocols are never compared silently.
        config: hash of the configuration (``momentum_transfer.core.settings.config_hash``).
        details: further keys, such as ``k``, ``cost``, or ``data``: numbers of ``images`` and ``classes`` that test.
    """
    return {
        "format": FORMAT,
        "task": task,
        "metric": metric,
        "value": None if math.isnan(value) else float(value),
        "trial": int(trial),
        "seed": seed,
        "protocol": protocol,
        "checkpoint": {
            "name": checkpoint.get("name", ""),
            "sha256": checkpoint.get("sha256", ""),
            **{key: checkpoint[key] for key in ("method", "random_seed", "weights") if checkpoint.get(key)},
        },
        "network": network,
        "dataset": dataset,
        "config": config,
        "engine": engine,
        "versions": dict(_versions()),
        "command": typed(sys.argv),
        **_spent(),
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        **details,
    }


def _spent() -> dict[str, float]:
    """``hours`` of this process and the suite's earlier attempts; ``gpu_hours``: times the processes, 0 on the CPU."""
    earlier = os.environ.get(SPENT, "")
    hours = (time.monotonic() - _BEGAN + (float(earlier) if re.fullmatch(r"\d+(\.\d*)?", earlier) else 0.0)) / 3600
    torch = sys.modules.get("torch")  # not imported for this
    cuda = torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized()
    gpus = int(os.environ.get("WORLD_SIZE", "1")) if cuda else 0
    return {"hours": round(hours, 6), "gpu_hours": round(hours * gpus, 6)}


def append(path: str | Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Append ``records`` to a results file, all of them in one write; on a full disk (OSError) none of them.

    Writers take turns by a lock. A half line that a power cut left is closed first, so that it damages no new record.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(record, sort_keys=True, allow_nan=False) + "\n" for record in records)
    with open(path, "ab+", buffering=0) as stream:
        with contextlib.suppress(OSError):  # a file system without locks: appending is one write all the same
            fcntl.flock(stream, fcntl.LOCK_EX)
        size = stream.seek(0, os.SEEK_END)
        if size and os.pread(stream.fileno(), 1, size - 1) != b"\n":
            text = "\n" + text
        append_whole(stream, text.encode("utf-8"), path)
        os.fsync(stream.fileno())


def read(path: str | Path) -> tuple[list[dict[str, Any]], list[str]]:
    """All records of a file, and its problems, a line each; InputError if there is no such file."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"results file not found: {path}; every evaluating tool writes one (--results FILE)")
    records: list[dict[str, Any]] = []
    problems: list[str] = []
    known: dict[Any, Any] = {}
    with open(path, "rb") as stream:
        for number, line in enumerate(stream, start=1):
            record, problem = _parsed(line)
            if problem:
                text = line.decode("utf-8", "replace")
                problems.append(f"{path}:{number}: {problem}: {one_line(text)}")
            elif record is not None:
                records.append(_shared(record, known))
    return records, problems


def _parsed(line: bytes) -> tuple[dict[str, Any] | None, str | None]:
    """(record, problem) of a line; neither for an empty one."""
    try:
        record = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # NaN, half characters, garbage: by json's rules
        if not line.strip():
            return None, None
        try:
            text = line.decode("utf-8", "replace")
            record = json.loads(text)
            if "\\u" in text:
                content_is_text(record)
        except (ValueError, RecursionError) as error:
            return None, f"not JSON ({_reason(error)})"
    return record, _problem(record)


def _shared(record: dict[str, Any], known: dict[Any, Any]) -> dict[str, Any]:
    """The record, sharing texts, checkpoint and versions with those read before, so that a million of them fit."""
    for key, value in record.items():
        if type(value) is str:
            record[key] = known.setdefault(value, value)
        elif key in ("checkpoint", "versions") and type(value) is dict:
            with contextlib.suppress(TypeError):  # holds lists
                record[key] = known.setdefault((key, *value.items()), value)
    return record


def content_is_text(content: Any) -> None:
    """Raise ValueError if a text in parsed JSON holds half a surrogate pair, which no file can store."""
    try:
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("half a character (a lone surrogate)") from error


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return "a number of too many digits" if "digits" in str(error) else one_line(error)


def _problem(record: Any) -> str | None:
    if not isinstance(record, dict):
        return f"expected an object, found {type(record).__name__}"
    missing = [key for key in REQUIRED if key not in record]
    if missing:
        return f"keys missing: {', '.join(missing)}"
    if not isinstance(record["checkpoint"], dict):
        return "checkpoint is not an object with name and sha256"
    value = record["value"]
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
        return f"value is {value!r}, not a number"
    if record.get("format", FORMAT) != FORMAT:
        return f"written in format {record['format']}, this version reads format {FORMAT}"
    return None


def done(path: str | Path, **wanted: Any) -> bool:
    """Whether ``path`` holds a record whose keys equal ``wanted``; ``sha256=…`` means the checkpoint's."""
    if not Path(path).is_file():
        return False
    marker = str(wanted.get("sha256") or "").encode()  # skip lines of other weights unparsed
    with open(path, "rb") as stream:
        own = (_parsed(line) for line in stream if marker in line)
        return any(record is not None and not problem and _matches(record, wanted) for record, problem in own)


def _matches(record: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    keys = {**record, "sha256": record["checkpoint"].get("sha256")}
    return all(keys.get(key) == value for key, value in wanted.items())


_FOLDER = "items"


def write_items(folder: str | Path, name: str, found: Outcomes) -> dict[str, str]:
    """Write outcomes under ``folder``, called ``name``; returns the record's reference: relative file and sha256."""
    arrays = outcomes.arrays(found)
    digest = hashlib.sha256()
    for key, values in arrays.items():
        digest.update(f"{key} {values.dtype} {values.shape}".encode() + np.ascontiguousarray(values).tobytes())
    stem = re.sub(r"[^A-Za-z0-9.=+-]+", "_", name)[:80]
    file = Path(folder) / _FOLDER / f"{stem}.{digest.hexdigest()[:12]}.npz"
    if not file.is_file():
        # zlib's first level: 5 % larger than NumPy's savez_compressed, in a third of its time
        with (
            atomic_path(file) as temporary,
            zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        ):
            for key, values in arrays.items():
                # The images of detections by score are nearly random: without compression the file of COCO's validation
                # set is 11 % larger, and written in three fifths of the time.
                entry = zipfile.ZipInfo("image.npy") if key == "image" else f"{key}.npy"
                with archive.open(entry, "w", force_zip64=True) as stream:
                    np.lib.format.write_array(stream, np.asanyarray(values), allow_pickle=False)
    return {"file": f"{_FOLDER}/{file.name}", "sha256": sha256_of(file)}


def read_items(folder: str | Path, reference: Mapping[str, Any]) -> Outcomes:
    """The outcomes that a record refers to; InputError if the file is missing, damaged, or not the one it names."""
    name = str(reference.get("file", ""))
    file = Path(folder) / name
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise InputError(f"expected the items file in the folder of the results, found {name}")
    if not file.is_file():
        raise InputError(f"items file not found: {file}; copy the folder {_FOLDER}/ along with the results")
    if sha256_of(file) != reference.get("sha256"):
        raise InputError(f"expected the items file {file} as its record has it, found another content; evaluate again")
    arrays = untrusted.read_arrays(file)
    try:
        return outcomes.from_arrays(arrays)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, AttributeError) as error:
        raise InputError(f"expected outcomes of test items in {file}, found other arrays: {one_line(error)}") from error
