"""The only folder that imports Detectron2, which is optional: its installation is described on its own pages.

Detectron2 is imported inside functions, so that asking whether it is there costs nothing. Its readers of COCO and LVIS
are left aside (that of LVIS needs the package ``lvis``, which NumPy 2 broke): both engines read data in one way.
"""

from momentum_transfer.transfer.detectron2_engine.models import load_initial
from momentum_transfer.transfer.detectron2_engine.train import build_optimizer

__all__ = ["build_optimizer", "load_initial"]
