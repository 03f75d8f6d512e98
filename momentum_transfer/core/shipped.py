"""Where the configs and tools that ship with the package are, in a checkout and in an installed wheel.

In a checkout ``pretrain/``, ``transfer/``, ``lowshot/``, ``configs/`` and ``tools/`` lie at the top level and the
package links to them; in the wheel they are folders of the package.
"""

import difflib
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from momentum_transfer.core.errors import ConfigNotFound, InputError, shown

_PACKAGE = Path(__file__).resolve().parents[1]

#: The checkout that the package is imported from; None for an installed wheel.
CHECKOUT = _PACKAGE.parent if (_PACKAGE / "configs").is_symlink() else None
CONFIGS, TOOLS = (_PACKAGE / "configs").resolve(), (_PACKAGE / "tools").resolve()

#: The console script; ``momentum-transfer NAME …`` is ``python tools/NAME.py …``.
COMMAND = "momentum-transfer"

#: Top-level key of a config under which it lists further configs: name -> settings over the file's own.
VARIANTS = "_VARIANTS_"
_SUFFIXES = (".yaml", ".yml")


def workplace() -> Path:
    """The folder that commands of suites and of the quickstart run in: the checkout, else the current folder."""
    return CHECKOUT or Path.cwd()


def find_config(name: str | Path, *, beside: Path | None = None) -> Path:
    """The file of a config: a path on disk (relative to ``beside`` or the current folder), else a config that ships.

    Shipped ones have short names such as ``smoke/momentum2_digits``. A variant, which another file lists, gets the path
    that a file of its own would have beside that one (`listing_of`); where there is such a file, the file wins. Raises
    ConfigNotFound with the nearest names.
    """
    path = Path(name).expanduser()
    start = beside if beside is not None else Path()
    places = [start / path]
    if not path.is_absolute() and ".." not in path.parts:
        places.append(CONFIGS / (Path(*path.parts[1:]) if path.parts[:1] == ("configs",) else path))
    for place in places:
        for file in _spellings(place):
            if file.is_file():
                return file
        own = _spellings(place)[:2][-1]
        if listing_of(own):
            return own
    raise ConfigNotFound(f"config file not found: {name}; the nearest names are {', '.join(_nearest(path, start))}")


def listing_of(config: Path) -> Path | None:
    """The file in ``config``'s folder that lists it as a variant; None if none does, or it is a file itself.

    Raises InputError if two files list it, or none does and a file with its name in the text has a broken list.
    """
    if config.is_file():
        return None
    found, broken = [], []
    for file in _yaml_files(config.parent):
        try:
            found += [file] if config.stem in variants(file, config.stem) else []
        except InputError as error:
            broken.append(error)
    if broken and not found:
        raise broken[0]
    if len(found) > 1:
        raise InputError(
            f"expected one file that lists {config.stem} under {VARIANTS}, found {found[0]} and {found[1]}; rename one"
        )
    return found[0] if found else None


def variants(file: Path, name: str = "") -> dict[str, dict[str, Any]]:
    """As `take_variants`, of a YAML file; nothing where it cannot be read, or ``name`` is not in its text."""
    from momentum_transfer.core.untrusted import MOST_BYTES, parse_mapping, read_text  # imports NumPy

    try:
        text = read_text(file, "settings", MOST_BYTES)
    except InputError:
        return {}  # a file beside the config, of whatever kind
    return take_variants(parse_mapping(text, str(file)), file) if VARIANTS in text and name in text else {}


def take_variants(content: dict[str, Any], file: Path) -> dict[str, dict[str, Any]]:
    """Take ``_VARIANTS_`` out of a file's content: name -> settings; InputError if it holds anything else."""
    found = content.pop(VARIANTS, {})
    for name, settings in found.items() if isinstance(found, dict) else [(VARIANTS, found)]:
        odd = not isinstance(name, str) or name == file.stem or name.endswith(_SUFFIXES) or "/" in name
        if odd or not isinstance(settings, dict) or {"_BASE_", VARIANTS} & set(settings):
            raise InputError(
                f"expected {VARIANTS} in {file} as names, other than its own and without folder and suffix, with their "
                f"settings, without _BASE_ (the file is their base) and {VARIANTS}, "
                f"found {shown({name: settings})}; write NAME: {{KEY: value}}, the name quoted if it is a number"
            )
    return found


def short_name(file: Path) -> str:
    """The short name of a shipped config, ``smoke/momentum2_digits``."""
    return file.relative_to(CONFIGS).with_suffix("").as_posix()


def shipped_configs() -> list[str]:
    """Short names of all configs that ship, variants too, except the report's reference tables."""
    files = (file for file in CONFIGS.rglob("*.yaml") if file.parent.name != "reference")
    return sorted(short_name(file.with_name(name)) for file in files for name in _names_in(file))


def _names_in(file: Path) -> list[str]:
    try:
        return [file.name, *(f"{name}.yaml" for name in variants(file))]
    except InputError:  # a broken file beside the one that is looked for
        return [file.name]


def _yaml_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("*") if file.suffix in _SUFFIXES) if folder.is_dir() else []


def _spellings(path: Path) -> list[Path]:
    return [path] if path.suffix in _SUFFIXES else [path, *(Path(f"{path}{suffix}") for suffix in _SUFFIXES)]


def _nearest(path: Path, start: Path, count: int = 3) -> list[str]:
    """The names most like ``path`` among shipped configs and the YAML files in its folder."""
    local = [str(path.parent / name) for file in _yaml_files(start / path.parent) for name in _names_in(file)]
    wanted = path.with_suffix("") if path.suffix in _SUFFIXES else path
    if wanted.parts[:1] == ("configs",) and len(wanted.parts) > 1:
        wanted = Path(*wanted.parts[1:])

    def likeness(name: str) -> float:
        whole = difflib.SequenceMatcher(None, wanted.as_posix(), Path(name).with_suffix("").as_posix()).ratio()
        return max(whole, difflib.SequenceMatcher(None, wanted.name, Path(name).stem).ratio())

    names = dict.fromkeys(local + shipped_configs())
    return sorted(names, key=likeness, reverse=True)[:count]


def tool_file(script: str) -> Path:
    """The file of a tool named as in a suite, ``tools/lowshot.py``."""
    path = Path(script)
    return TOOLS / path.name if path.parts[:-1] == ("tools",) else workplace() / path


def started(command: Sequence[str]) -> list[str]:
    """``tools/NAME.py ARGUMENTS`` as arguments of ``python`` that work from any folder."""
    script, *rest = command
    return [*command] if CHECKOUT else [str(tool_file(script)), *rest]


def typed(command: Sequence[str]) -> str:
    """``tools/NAME.py ARGUMENTS`` as a person types it: with python in a checkout, else with the console script.

    ``command`` begins with the tool's file, by any path, or with the console script and the tool's name.
    """
    script, *rest = command
    if script.startswith(COMMAND + " "):
        return f"{script} {shlex.join(rest)}".rstrip()
    path = Path(script)
    if CHECKOUT is None and path.suffix == ".py" and path.parent.name == "tools":
        return f"{COMMAND} {shlex.join([path.stem, *rest])}"
    return shlex.join(["python", *command])


def as_typed(text: str) -> str:
    """A help text or message with ``python tools/NAME.py`` as ``momentum-transfer NAME`` where there is no checkout.

    torchrun takes a file or a module, so there it is ``-m momentum_transfer.tools.NAME``.
    """
    if CHECKOUT is not None:
        return text
    text = re.sub(r"(torchrun [^\n]*?)\btools/(\w+)\.py", r"\1-m momentum_transfer.tools.\2", text)
    return re.sub(r"(?:python )?\btools/(\w+)\.py", rf"{COMMAND} \1", text)
