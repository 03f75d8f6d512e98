"""Where a few-shot stage starts: the detector of the base stage, and the classes that it knows (TFA, section 3)."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fvcore.common.config import CfgNode

from momentum_transfer.core.errors import InputError, shown
from momentum_transfer.transfer.data.few_shot import FewShot
from momentum_transfer.transfer.detector_run import CLASSES, read_classes
from momentum_transfer.transfer.initial_weights import InitialWeights, read_initial


def few_shot_weights(initial: InitialWeights, cfg: CfgNode, classes: Sequence[str], weights: str) -> InitialWeights:
    """``initial`` with the places of its classes among ``classes``, those of the stage that is trained.

    Without ``classes.json`` beside ``weights`` the detector is taken to know the base classes, in their order.
    InputError if it knows novel classes already, or others than the base classes, or is none.
    """
    few_shot, last = FewShot.of(cfg), cfg.FEW_SHOT.TRAINED == "last"
    if few_shot is None or few_shot.stage == "base":
        return initial
    if not initial.detector and last:
        raise InputError("expected a detector of the stage base (model_final.pth) as --weights with FEW_SHOT.TRAINED "
                         f"last, found {initial.name}; train one with FEW_SHOT.STAGE base")  # fmt: skip
    parts = few_shot.parts(classes)
    known = _names_beside(weights) or parts["base"]
    if not initial.detector or known == tuple(classes):  # a backbone, or a detector that has been through this stage
        return initial
    if both := [name for name in known if name in few_shot.novel]:
        raise InputError(f"expected novel classes that {weights} does not know, found {shown(both[0])} among its base "
                         "classes; train the base stage without it, or leave it out of FEW_SHOT.NOVEL")  # fmt: skip
    if few_shot.stage == "novel":
        return replace(initial, places=(), rest=tuple(range(len(classes))))
    if odd := sorted(set(known) ^ set(parts["base"])):
        raise InputError(f"expected a detector of the base classes {', '.join(parts['base'])} in {weights}, found one "
                         f"that differs in {shown(odd[0])}; give the one of the base stage of these data")  # fmt: skip
    places, rest = (tuple(map(list(classes).index, names)) for names in (known, parts["novel"]))
    second = cfg.FEW_SHOT.NOVEL_WEIGHTS
    novel = read_initial(second, cfg).detector if second else {}
    names = _names_beside(second) or parts["novel"] if novel else ("a backbone",)
    if second and names != parts["novel"]:
        raise InputError(f"expected the novel classes {', '.join(parts['novel'])} in {second}, found "
                         f"{', '.join(names)}; train it with FEW_SHOT.STAGE novel")  # fmt: skip
    return replace(initial, places=places, rest=rest, novel=novel)


def _names_beside(weights: str) -> tuple[str, ...]:
    """The classes that a run noted beside its weights; none where it did not."""
    folder = Path(weights) if Path(weights).is_dir() else Path(weights).parent
    return read_classes(folder).names if (folder / CLASSES).is_file() else ()
