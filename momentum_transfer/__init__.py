"""Public names of momentum-transfer for ``import momentum_transfer as mt``, each loaded when it is first used.

Importing this is quick, imports no torch, prints nothing and changes no environment variable. ``docs/library.md`` shows
every name at work. The table names modules of every room: no file of the project imports a public name from here.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from momentum_transfer.core import versions

versions.check_python()

__version__ = "0.1.0"

if TYPE_CHECKING:  # what type checkers and editors see; the same names as in _PUBLIC, which a test compares
    from momentum_transfer.backbones.build import build_backbone
    from momentum_transfer.backbones.convert import convert_file as convert
    from momentum_transfer.backbones.norm_rescale import rescale_to_anchor as norm_rescale
    from momentum_transfer.backbones.read import load, load_backbone
    from momentum_transfer.backbones.source import KeyReport, SourceBackbone
    from momentum_transfer.core.errors import InputError
    from momentum_transfer.core.records import append as append_records
    from momentum_transfer.core.records import make_record
    from momentum_transfer.core.records import read as read_records
    from momentum_transfer.lowshot.library import evaluate, extract_features, knn, linear, svm
    from momentum_transfer.pretrain.own_loop import build_method, train_step
    from momentum_transfer.report.file_verdict import verdict
    from momentum_transfer.report.page import make_report, write_report
    from momentum_transfer.transfer.detector_run import load_run as load_detector
    from momentum_transfer.transfer.detectron2_engine.models import add_momentum_transfer_config
    from momentum_transfer.transfer.scores.coco import evaluate as score_coco
    from momentum_transfer.transfer.scores.lvis import evaluate as score_lvis
    from momentum_transfer.transfer.scores.semantic import evaluate as score_semantic
    from momentum_transfer.transfer.scores.voc import evaluate as score_voc

#: public name -> module and, after the colon, the name there
_PUBLIC = {
    "InputError": "momentum_transfer.core.errors:InputError",
    "KeyReport": "momentum_transfer.backbones.source:KeyReport",
    "SourceBackbone": "momentum_transfer.backbones.source:SourceBackbone",
    "add_momentum_transfer_config": "momentum_transfer.transfer.detectron2_engine.models:add_momentum_transfer_config",
    "append_records": "momentum_transfer.core.records:append",
    "build_backbone": "momentum_transfer.backbones.build:build_backbone",
    "build_method": "momentum_transfer.pretrain.own_loop:build_method",
    "convert": "momentum_transfer.backbones.convert:convert_file",
    "evaluate": "momentum_transfer.lowshot.library:evaluate",
    "extract_features": "momentum_transfer.lowshot.library:extract_features",
    "knn": "momentum_transfer.lowshot.library:knn",
    "linear": "momentum_transfer.lowshot.library:linear",
    "load": "momentum_transfer.backbones.read:load",
    "load_backbone": "momentum_transfer.backbones.read:load_backbone",
    "load_detector": "momentum_transfer.transfer.detector_run:load_run",
    "make_record": "momentum_transfer.core.records:make_record",
    "make_report": "momentum_transfer.report.page:make_report",
    "norm_rescale": "momentum_transfer.backbones.norm_rescale:rescale_to_anchor",
    "read_records": "momentum_transfer.core.records:read",
    "score_coco": "momentum_transfer.transfer.scores.coco:evaluate",
    "score_lvis": "momentum_transfer.transfer.scores.lvis:evaluate",
    "score_semantic": "momentum_transfer.transfer.scores.semantic:evaluate",
    "score_voc": "momentum_transfer.transfer.scores.voc:evaluate",
    "svm": "momentum_transfer.lowshot.library:svm",
    "train_step": "momentum_transfer.pretrain.own_loop:train_step",
    "verdict": "momentum_transfer.report.file_verdict:verdict",
    "write_report": "momentum_transfer.report.page:write_report",
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
    "verdict",
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
