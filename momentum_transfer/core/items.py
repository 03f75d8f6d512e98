"""Items files: the outcome of every test item, beside the records that are their means.

``items/NAME.npz`` lies in the folder of the results file; a record names it with its SHA-256. The name holds the hash
of the content, so that no evaluation ever overwrites another's outcomes. COCO boxes of 5000 images with 100 detections
each take 1.4 MB.
"""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from momentum_transfer.core import npz
from momentum_transfer.core.errors import InputError, one_line
from momentum_transfer.core.files import atomic_path, sha256_of
from momentum_transfer.verdicts import outcomes
from momentum_transfer.verdicts.outcomes import Outcomes

FOLDER = "items"


def write(folder: str | Path, name: str, found: Outcomes) -> dict[str, str]:
    """Write outcomes under ``folder``; what the record keeps of them: file (relative to ``folder``) and sha256.

    Args:
        name: says what it is to people: task, checkpoint, trial.
    """
    arrays = outcomes.arrays(found)
    digest = hashlib.sha256()
    for key, values in arrays.items():
        digest.update(f"{key} {values.dtype} {values.shape}".encode() + np.ascontiguousarray(values).tobytes())
    stem = re.sub(r"[^A-Za-z0-9.=+-]+", "_", name)[:80]
    file = Path(folder) / FOLDER / f"{stem}.{digest.hexdigest()[:12]}.npz"
    if not file.is_file():
        with atomic_path(file) as temporary:
            np.savez_compressed(temporary, **arrays)  # type: ignore[arg-type]  # the stubs take these for its options
    return {"file": f"{FOLDER}/{file.name}", "sha256": sha256_of(file)}


def read(folder: str | Path, reference: Mapping[str, Any]) -> Outcomes:
    """The outcomes that a record of a results file in ``folder`` refers to.

    Raises:
        InputError: the file is missing, damaged, or not the one that the record was written with.
    """
    name = str(reference.get("file", ""))
    file = Path(folder) / name
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise InputError(f"expected the items file in the folder of the results, found {name}")
    if not file.is_file():
        raise InputError(f"items file not found: {file}; copy the folder {FOLDER}/ along with the results")
    if sha256_of(file) != reference.get("sha256"):
        raise InputError(f"expected the items file {file} as its record has it, found another content; evaluate again")
    arrays = npz.read_arrays(file)
    try:
        return outcomes.from_arrays(arrays)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, AttributeError) as error:
        raise InputError(f"expected outcomes of test items in {file}, found other arrays: {one_line(error)}") from error
