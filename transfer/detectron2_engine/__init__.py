"""The only folder that imports Detectron2, which is optional: its installation is described on its own pages.

Detectron2 is imported inside functions, so that asking whether it is there costs nothing. Its readers of COCO and LVIS
are left aside (that of LVIS needs the package ``lvis``, which NumPy 2 broke): both engines read data in one way.
"""

from momentum_transfer.transfer.detectron2_engine.data import detectron2_config
from momentum_transfer.transfer.detectron2_engine.engine import Detectron2Engine
from momentum_transfer.transfer.detectron2_engine.models import add_momentum_transfer_config, build_model, load_initial
from momentum_transfer.transfer.detectron2_engine.parity import training_losses
from momentum_transfer.transfer.detectron2_engine.train import build_optimizer

__all__ = [
    "Detectron2Engine",
    "add_momentum_transfer_config",
    "build_model",
    "build_optimizer",
    "detectron2_config",
    "load_initial",
    "training_losses",
]
