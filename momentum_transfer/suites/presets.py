"""Presets of a suite: the words of a command that depend on the paper which a checkpoint is of.

    presets:
      m2: {linear: configs/lowshot/momentum2_linear.yaml, rates: ""}    # the first is for checkpoints of no paper here
      eman-byol: {linear: configs/lowshot/eman_table2_linear_100.yaml, rates: "LINEAR.LEARNING_RATES [0.2,0.4,0.8]"}
    tasks:
      - name: linear
        command: tools/lowshot.py linear --config {linear} --weights {weights} --results {results} {rates}

A checkpoint's preset is what its arm of the suite's pretrainings names (``preset``), else that of the method in its
metadata, else of the family it was read as; ``--preset CHECKPOINT=NAME`` overrides all.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from momentum_transfer.core.errors import InputError, shown
from momentum_transfer.core.files import RANDOM_OF
from momentum_transfer.core.log import say
from momentum_transfer.suites.schema import checked

#: Preset -> place -> words.
Presets = Mapping[str, Mapping[str, str]]
_Filled = msgspec.Meta(min_length=1)
_Presets = Annotated[dict[str, Annotated[dict[str, str], _Filled]], _Filled]

#: Methods that are of one paper -> preset.
OF_METHOD = {"momentum2": "m2", "simsiam": "simsiam"}

#: Families of published files -> preset. EMAN's MoCo writes MoCo's names and cannot be told from it; RCF's files do not
#: say whether LARS trained them.
OF_FAMILY = {
    "momentum2": "m2",
    "rcf": "rcf-sgd",
    "moco": "rcf-sgd",
    "simsiam": "simsiam",
    "eman-byol": "eman-byol",
    "eman-fixmatch": "eman-moco",
}


def preset_of(family: str, metadata: Mapping[str, str]) -> tuple[str, str]:
    """(preset, why) of a checkpoint; the preset is "" where it is of none of the papers.

    Args:
        family: rule that read the file. metadata: what a pretraining of this project left in it.
    """
    method, norm, optimizer = (metadata.get(key, "") for key in ("method", "norm_teacher", "optimizer"))
    if method in OF_METHOD:
        return OF_METHOD[method], f"method {method}"
    if method in ("byol", "moco"):
        if norm == "EMAN":
            return f"eman-{method}", f"method {method} with EMAN"
        return "rcf-lars" if optimizer == "lars" else "rcf-sgd", f"method {method}, optimizer {optimizer or 'unknown'}"
    if method:
        return "", f"method {method} has none of its own"
    return OF_FAMILY.get(family, ""), f"family {family}"


def words_of(presets: Presets, weights: str | None, name: str, chosen: Mapping[str, str]) -> Mapping[str, str]:
    """The words of a checkpoint's preset; says which it is and why.

    Args:
        weights: the checkpoint; None where there is none to read (yet).
        name: in results. chosen: as :func:`read_choices` gives it.
    """
    if not presets:
        return {}
    preset, why = chosen.get(name, chosen.get("", "")), "asked for"
    if not preset:
        why = "no checkpoint yet that could tell"
        if weights is not None:
            from momentum_transfer.backbones.read import load_backbone  # imports torch, which takes seconds

            try:
                source = load_backbone(weights.removeprefix(RANDOM_OF))  # at random is measured as the checkpoint is
                preset, why = preset_of(source.family, source.metadata)
            except InputError as error:  # what cannot be read stops its own tasks, not the plan of all
                why = str(error).partition("\n")[0]
    if preset not in presets:
        preset, why = next(iter(presets)), f"{why}: the suite's first"
    say(f"{name}: preset {preset} ({why}); --preset {name}=NAME takes another")
    return presets[preset]


def read_presets(content: Any, where: str, taken: Collection[str]) -> Presets:
    """The ``presets`` of a suite's file, checked: each gives words for the same places.

    Args:
        taken: places that mean something else.

    Raises:
        InputError: no mapping of names to places and their words, or presets whose places differ or are taken.
    """
    presets = checked(content, _Presets, f"{where}, presets")
    places = set(next(iter(presets.values())))
    for name, entry in presets.items():
        if set(entry) != places:
            found = f"{_listed(entry)} in {name}"
            raise InputError(f"{where}: expected the places {_listed(places)} in every preset, found {found}")
    if wrong := sorted(place for place in places if place in taken or not re.fullmatch(r"\w+", place)):
        found = shown(wrong[0])
        raise InputError(f"{where}: expected places of letters and _ other than {_listed(taken)}, found {found}")
    return presets


def read_choices(words: Sequence[str], presets: Presets, checkpoints: Collection[str]) -> dict[str, str]:
    """Words ``PRESET`` (for all) or ``CHECKPOINT=PRESET`` -> preset by checkpoint, "" standing for all.

    Raises:
        InputError: a preset that the suite lacks, or a checkpoint that is not evaluated.
    """
    chosen: dict[str, str] = {}
    for word in words:
        name, _, preset = word.rpartition("=")
        if not presets:
            raise InputError(f"expected no --preset for a suite without presets, found {word}; leave it out")
        if preset not in presets:
            raise InputError(f"expected --preset of {', '.join(presets)}, found {preset!r}")
        if name and name not in checkpoints:
            raise InputError(f"expected --preset CHECKPOINT={preset} of {', '.join(checkpoints)}, found {name!r}")
        chosen[name] = preset
    return chosen


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names))
