"""A run that takes a fraction of a second: ResNet-10 of 4 channels on digits of 16 px, batches of 8."""

import pytest

from momentum_transfer.core.settings import load_config
from momentum_transfer.pretrain.config import get_cfg

TINY = {
    "DATA.NAME": "digits",
    "DATA.VIEWS": "digits",
    "DATA.IMAGE_SIZE": 16,
    "DATA.WORKERS": 0,
    "MODEL.ARCH": "resnet10",
    "MODEL.WIDTH": 4,
    "HEAD.HIDDEN": 16,
    "HEAD.OUTPUT": 8,
    "MOCO.QUEUE": 20,
    "SOLVER.BATCH_SIZE": 8,
    "SOLVER.BASE_BATCH_SIZE": 8,
    "SOLVER.STEPS": 4,
    "SOLVER.WARMUP_EPOCHS": 0.0,
    "RUN.DEVICE": "cpu",
    "RUN.LOG_EVERY": 1,
    "RUN.CALIBRATION_BATCHES": 2,
}


@pytest.fixture
def tiny_cfg(tmp_path):
    """``tiny_cfg(**{"KEY": value})`` -> settings of a tiny run in its own OUTPUT_DIR."""

    def make(overrides=None, file=None):
        settings = {"OUTPUT_DIR": tmp_path / "run", **TINY, **(overrides or {})}
        return load_config(get_cfg(), file, [str(word) for pair in settings.items() for word in pair])

    return make
