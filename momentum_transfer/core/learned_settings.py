"""Settings of a pretraining that change what is learned, and their hash."""

from typing import Any

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import sha256_of_text
from momentum_transfer.core.yaml_files import parse_mapping

#: Settings of pretraining that change where and how long a run works, not a bit of what it learns: two parts of a run
#: may differ in them, and its hash leaves them out. What alters the arithmetic is not among them: RUN.PRECISION,
#: RUN.COMPILE, RUN.CHANNELS_LAST and RUN.DEVICE change the rounding, RUN.CALIBRATION_BATCHES the random baseline.
FREE_IN_PRETRAINING = ("OUTPUT_DIR", "DATA.ROOT", "DATA.WORKERS", "DATA.MEMORY_SHARE", "DATA.MAX_UNREADABLE",
                       "RUN.CHECKPOINT_EVERY", "RUN.KEEP", "RUN.LOG_EVERY", "RUN.KNN_EVERY", "RUN.KNN_SPLIT",
                       "RUN.EXPORT_EVERY")  # fmt: skip


def learned_settings(text: str) -> dict[str, Any]:
    """Dotted key -> value of a pretraining configuration's YAML ``text``, without ``FREE_IN_PRETRAINING``.

    Raises:
        InputError: no YAML mapping of plain values (the text may come with a stranger's checkpoint).
    """
    try:
        tree = parse_mapping(text, "a checkpoint")
    except InputError as error:
        raise InputError("expected the settings of a pretraining run as a YAML mapping, found other text") from error
    return {key: value for key, value in _flat(tree).items() if key not in FREE_IN_PRETRAINING}


def pretraining_hash(text: str) -> str:
    """Twelve hex digits of what a pretraining configuration, given as its YAML, teaches."""
    return sha256_of_text(repr(sorted(learned_settings(text).items())))[:12]


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat = {}
    for key, value in tree.items():
        flat.update(_flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return flat
