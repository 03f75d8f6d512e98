"""momentum-transfer as a library, ``import momentum_transfer as mt``: the public names, loaded when first used.

Importing it is quick, imports no torch, prints nothing and changes no environment variable; what its functions have to
say goes to the logger ``momentum_transfer``. ``docs/library.md`` shows every name at work.

This file is the front door of the whole house although it lies on the ground floor: Python wants it here. It names
modules of every room, so it counts as roof (tests/test_house.py): no file of the project imports a public name from it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from momentum_transfer import versions

versions.check_python()

__version__ = "0.1.0"

if TYPE_CHECKING:  # what type checkers and editors see; the same names as in _PUBLIC, which a test compares
    from lowshot.arrays import extract_features, knn, linear, svm
    from lowshot.evaluate import evaluate
    from momentum_transfer.backbones.build import build_backbone
    from momentum_transfer.backbones.convert_file import convert_file as convert
    from momentum_transfer.backbones.load import load
    from momentum_transfer.backbones.norm_rescale import rescale_to_anchor as norm_rescale
    from momentum_transfer.backbones.read import KeyReport, SourceBackbone, load_backbone
    from momentum_transfer.errors import InputError
    from momentum_transfer.records import append as append_records
    from momentum_transfer.records import make_record
    from momentum_transfer.records import read as read_records
    from momentum_transfer.report.page import make_report
    from momentum_transfer.report.write import write_report
    from pretrain.own_loop import build_method, train_step
    from transfer.detector_run import load_run as load_detector
    from transfer.detectron2_engine.models import add_momentum_transfer_config
    from transfer.scores.coco import evaluate as score_coco
    from transfer.scores.lvis import evaluate as score_lvis
    from transfer.scores.semantic import evaluate as score_semantic
    from transfer.scores.voc import evaluate as score_voc

#: public name -> module and, after the colon, the name there
_PUBLIC = {
    "InputError": "momentum_transfer.errors:InputError",
    "KeyReport": "momentum_transfer.backbones.read:KeyReport",
    "SourceBackbone": "momentum_transfer.backbones.read:SourceBackbone",
    "add_momentum_transfer_config": "transfer.detectron2_engine.models:add_momentum_transfer_config",
    "append_records": "momentum_transfer.records:append",
    "build_backbone": "momentum_transfer.backbones.build:build_backbone",
    "build_method": "pretrain.own_loop:build_method",
    "convert": "momentum_transfer.backbones.convert_file:convert_file",
    "evaluate": "lowshot.evaluate:evaluate",
    "extract_features": "lowshot.arrays:extract_features",
    "knn": "lowshot.arrays:knn",
    "linear": "lowshot.arrays:linear",
    "load": "momentum_transfer.backbones.load:load",
    "load_backbone": "momentum_transfer.backbones.read:load_backbone",
    "load_detector": "transfer.detector_run:load_run",
    "make_record": "momentum_transfer.records:make_record",
    "make_report": "momentum_transfer.report.page:make_report",
    "norm_rescale": "momentum_transfer.backbones.norm_rescale:rescale_to_anchor",
    "read_records": "momentum_transfer.records:read",
    "score_coco": "transfer.scores.coco:evaluate",
    "score_lvis": "transfer.scores.lvis:evaluate",
    "score_semantic": "transfer.scores.semantic:evaluate",
    "score_voc": "transfer.scores.voc:evaluate",
    "svm": "lowshot.arrays:svm",
    "train_step": "pretrain.own_loop:train_step",
    "write_report": "momentum_transfer.report.write:write_report",
}

__all__ = [
    "InputError",
    "KeyReport",
    "SourceBackbone",
    "__version__",
    "add_momentum_transfer_config",
    "append_records",
    "build_backbone",
    "build_method",
    "convert",
    "evaluate",
    "extract_features",
    "knn",
    "linear",
    "load",
    "load_backbone",
    "load_detector",
    "make_record",
    "make_report",
    "norm_rescale",
    "read_records",
    "score_coco",
    "score_lvis",
    "score_semantic",
    "score_voc",
    "svm",
    "train_step",
    "write_report",
]


def __getattr__(name: str) -> Any:
    """PEP 562: the first use of a public name imports its module."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(sorted(_PUBLIC))}")
    versions.check_torch()
    module, _, attribute = _PUBLIC[name].partition(":")
    globals()[name] = value = getattr(import_module(module), attribute)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
