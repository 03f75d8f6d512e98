"""Read settings: YAML files with ``_BASE_`` and KEY VALUE pairs over typed defaults; hash, keep and compare them.

Under ``_VARIANTS_`` a file may list further configs: name -> settings. Each is found by its name, as if it were a file
beside this one with this one as its ``_BASE_``.

The tables of settings, which give the defaults, are in ``config.py`` of pretrain, transfer and lowshot.
"""

import copy
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from fvcore.common.config import BASE_KEY, CfgNode

from momentum_transfer.core.errors import InputError, shown
from momentum_transfer.core.files import sha256_of_text, write_text
from momentum_transfer.core.shipped import CONFIGS, find_config, listing_of, take_variants, variants
from momentum_transfer.core.untrusted import parse_mapping, read_mapping

#: Files that a config may stand on, one upon the other.
_MOST_BASES = 10
#: Folder of ``configs/`` -> settings that follow from a file's name, unless the file gives them.
_BY_NAME = {
    "pretrain": {"OUTPUT_DIR": "outputs/{}"},
    "lowshot": {"OUTPUT_DIR": "outputs/lowshot/{}"},
    "transfer": {"PROTOCOL": "{}"},
}
#: Settings of pretraining that change where and how long a run works, not a bit of what it learns: a resumed run may
#: change them, and its hash leaves them out. Here, because checkpoints are read without importing ``pretrain``.
#: Not among them is what alters the arithmetic: RUN.PRECISION, RUN.COMPILE, RUN.CHANNELS_LAST and RUN.DEVICE change
#: the rounding, RUN.CALIBRATION_BATCHES the random baseline.
FREE_IN_PRETRAINING = ("OUTPUT_DIR", "MODEL.WEIGHTS", "DATA.ROOT", "DATA.WORKERS", "DATA.MEMORY_FRACTION",
                       "DATA.MAX_UNREADABLE", "RUN.MINUTES", "RUN.CHECKPOINT_EVERY", "RUN.KEEP", "RUN.LOG_EVERY",
                       "RUN.KNN_EVERY", "RUN.KNN_SPLIT", "RUN.EXPORT_EVERY")  # fmt: skip
#: Settings of a pretraining that starts from weights: they count where there are some.
_WEIGHTS_SHA256 = "MODEL.WEIGHTS_SHA256"
_FROM_WEIGHTS = (_WEIGHTS_SHA256, "MODEL.TRAINABLE", "NORM.WEIGHTS_STATISTICS", "SOLVER.LAYER_DECAY",
                 "SOLVER.HEAD_WARMUP")  # fmt: skip
#: Folder beside a results file, of the settings that its records name by their hash.
_KEPT = "settings"


def load_config(defaults: CfgNode, file: str | Path | None, overrides: Sequence[str] = ()) -> CfgNode:
    """Defaults, then the YAML ``file`` (and what its ``_BASE_`` names), then ``KEY VALUE`` pairs; frozen.

    ``file`` and ``_BASE_`` are paths, or names of configs that ship, such as ``smoke/momentum2_digits``. Of a config
    that ships, OUTPUT_DIR (pretrain, lowshot) or PROTOCOL (transfer) follows from its name.

    Raises:
        InputError: the file is missing or no YAML mapping, names a key twice or itself as its base, lists what is no
            variant, a key is unknown (of files and keys the nearest names are given), or a value has another type than
            its default (a whole number is accepted where a float is expected).
    """
    cfg = defaults.clone()
    cfg.defrost()
    if file is not None:
        listing = listing_of(_config_file(file).resolve())
        where = f"{file}, listed in {listing}" if listing else str(file)
        for key, value in _leaves(_read_yaml(file), defaults):
            _set(cfg, key, value, where)
    if len(overrides) % 2:
        raise InputError(
            f"expected KEY VALUE pairs after the options, found {len(overrides)} arguments: {' '.join(overrides)}; "
            "give every key one value, for example SOLVER.STEPS 100"
        )
    for key, value in zip(overrides[::2], overrides[1::2], strict=True):
        _set(cfg, key, value, where="command line")
    cfg.freeze()
    return cfg


def dump(cfg: CfgNode) -> str:
    """The whole configuration as YAML, keys in order: what a checkpoint stores."""
    return cfg.dump(sort_keys=True)


def config_hash(cfg: CfgNode) -> str:
    """Twelve hex digits that name a configuration in results."""
    return sha256_of_text(dump(cfg))[:12]


def learned_settings(text: str) -> dict[str, Any]:
    """Dotted key -> value of a pretraining configuration's YAML ``text``, without ``FREE_IN_PRETRAINING``.

    Raises:
        InputError: no YAML mapping of plain values (the text may come with an untrusted checkpoint).
    """
    try:
        tree = parse_mapping(text, "a checkpoint")
    except InputError as error:
        raise InputError("expected the settings of a pretraining run as a YAML mapping, found other text") from error
    found = {key: value for key, value in flat(tree) if key not in FREE_IN_PRETRAINING}
    return found if found.get(_WEIGHTS_SHA256) else {key: found[key] for key in found if key not in _FROM_WEIGHTS}


def pretraining_hash(text: str) -> str:
    """First 12 hex digits of the SHA-256 of the settings that affect the trained weights (see `learned_settings`)."""
    return sha256_of_text(repr(sorted(learned_settings(text).items())))[:12]


def flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys of nested settings with their values."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def keep(folder: str | Path, name: str, cfg: CfgNode) -> None:
    """Write settings to ``folder/settings/NAME.yaml``, once: records beside it name them by ``name``, their hash."""
    file = Path(folder) / _KEPT / f"{name}.yaml"
    if not file.is_file():
        write_text(file, dump(cfg))


def kept(folder: str | Path, name: str) -> dict[str, Any] | None:
    """What `keep` wrote; None if there is no such file.

    Raises:
        InputError: it is no YAML mapping.
    """
    file = Path(folder) / _KEPT / f"{name}.yaml"
    return read_mapping(file) if re.fullmatch(r"[0-9a-f]{12}", name) and file.is_file() else None


def value_of(cfg: CfgNode, key: str) -> Any:
    """The value, or the section, of a dotted key."""
    return reduce(getitem, key.split("."), cfg)


def with_values(cfg: CfgNode, values: Mapping[str, Any]) -> CfgNode:
    """A frozen copy with other ``values`` of some dotted keys."""
    copied = cfg.clone()
    copied.defrost()
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        value_of(copied, section)[name] = value
    copied.freeze()
    return copied


def differences(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(dotted key, value in ``before``, value in ``now``) of every setting that is not the same; None if absent."""
    for key in sorted(set(before) | set(now), key=str):
        old, new = before.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from differences(old, new, f"{prefix}{key}.")
        elif old != new:
            yield f"{prefix}{key}", old, new


def keys_of(cfg: CfgNode) -> Iterator[str]:
    """The dotted key of every setting, sections left out."""
    return (key for key, _ in flat(cfg))


def config_files(file: str | Path) -> list[Path]:
    """The file of a config, or that lists it, and those of its bases: all that its values may come from.

    Raises:
        InputError: one of them is missing or no YAML mapping, or a base leads back to itself.
    """
    return list(dict.fromkeys(path for path, _ in _with_bases(_config_file(file))))


def _read_yaml(file: str | Path) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for _, content in reversed(_with_bases(_config_file(file))):
        _merge(content, merged)
    return merged


def _with_bases(file: Path, derived: tuple[Path, ...] = ()) -> list[tuple[Path, dict[str, Any]]]:
    """(file, content without ``_BASE_``) of a config and its bases; what comes earlier replaces what comes later.

    A base is a path from the folder of the file that names it, or the name of a config that ships; a variant's is the
    file that lists it.
    """
    resolved = file.resolve()
    if resolved in derived or len(derived) > _MOST_BASES:
        trail = " -> ".join(str(path) for path in (*derived, resolved)[-3:])
        what = "one that leads back to itself" if resolved in derived else f"more than {_MOST_BASES} one upon the other"
        raise InputError(f"expected {BASE_KEY} files that end, found {what}: {trail}; take one {BASE_KEY} out")
    if listing := listing_of(resolved):
        content = _by_name(resolved) | variants(listing)[resolved.stem]
        return [(listing, content), *_with_bases(listing, (*derived, resolved))]
    content = _by_name(resolved) | read_mapping(file)
    take_variants(content, file)
    value = content.pop(BASE_KEY, [])
    bases = value if isinstance(value, list) else [value]
    if not all(isinstance(base, str) and base for base in bases):
        raise InputError(f"expected {BASE_KEY} in {file} to name a file, or a list of them, found {shown(value)}")
    files = [(file, content)]
    for base in reversed(bases):
        try:
            path = _config_file(base, beside=file.parent)
        except InputError as error:
            raise InputError(f"{error} ({BASE_KEY} of {file})") from error
        files += _with_bases(path, (*derived, resolved))
    return files


def _by_name(file: Path) -> dict[str, str]:
    """The settings that follow from the name of a config that ships."""
    folder, name = file.parent, file.stem
    if folder.parent != CONFIGS or name.startswith("base"):
        return {}
    return {key: text.format(name) for key, text in _BY_NAME.get(folder.name, {}).items()}


def _config_file(name: str | Path, beside: Path | None = None) -> Path:
    try:
        return find_config(name, beside=beside)
    except (OSError, ValueError, RuntimeError) as error:  # too long, or ~NOBODY
        detail = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"expected the name of a config, found {shown(str(name))}: {detail}") from error


def _merge(new: dict[str, Any], into: dict[str, Any]) -> None:
    """Sections are merged key by key, values replaced: fvcore's rule for ``_BASE_``."""
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(value, into[key])
        else:
            into[key] = copy.deepcopy(value)


def _leaves(tree: dict[str, Any], defaults: CfgNode, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Pairs (dotted key, value). A mapping is a value itself only where the default is no section."""
    for key, value in tree.items():
        section = defaults.get(key) if isinstance(defaults, CfgNode) else None
        if isinstance(value, dict) and (isinstance(section, CfgNode) or section is None):
            yield from _leaves(value, section if section is not None else CfgNode(), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _set(cfg: CfgNode, key: str, value: Any, where: str) -> None:
    *sections, last = key.split(".")
    node: Any = cfg
    for section in sections:
        node = node.get(section) if isinstance(node, CfgNode) else None
    if not isinstance(node, CfgNode) or last not in node:
        known = list(keys_of(cfg))
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.5) or difflib.get_close_matches(
            key.upper(), known, n=1, cutoff=0.0
        )
        raise InputError(f"unknown config key {key} ({where}); the nearest known key is {near[0]}")
    if isinstance(node[last], CfgNode):
        raise InputError(f"{key} ({where}) is a section, not a setting; set one of its keys: {', '.join(node[last])}")
    decoded = _decoded(key, value, where)
    if isinstance(node[last], str) and isinstance(value, str) and type(decoded) in (int, float):
        decoded = value  # a name such as 2026_01 or 1.50, as it is written
    node[last] = _coerce(key, decoded, node[last], where)


def _decoded(key: str, value: Any, where: str) -> Any:
    """A word of the command line, or of YAML, as the Python value that it spells; else the text itself."""
    try:
        return CfgNode._decode_cfg_value(value)
    except (RecursionError, MemoryError) as error:  # Python's parser, of thousands of brackets
        raise InputError(f"expected a value of {key} ({where}), found one that is nested too deeply") from error


def _coerce(key: str, value: Any, default: Any, where: str) -> Any:
    if default is None or (value is None and not isinstance(default, (bool, int, float, str))):
        return value
    if isinstance(default, float) and type(value) is int:
        try:
            return float(value)
        except OverflowError as error:
            raise InputError(f"expected {key} ({where}) below 1.8e308, found {shown(value)}") from error
    if isinstance(default, str) and type(value) in (int, float):
        return str(value)  # a name such as 10 in YAML
    if isinstance(default, (list, tuple)) and isinstance(value, (list, tuple)):
        return type(default)(value)
    if isinstance(default, bool) and value in ("true", "false"):
        return value == "true"  # as YAML spells it, on the command line
    if type(value) is type(default):
        return value
    raise InputError(
        f"config key {key} ({where}) expects {type(default).__name__} (default {default!r}), "
        f"found {type(value).__name__} {shown(value)}"
    )
