"""The ground floor: what pretraining, dense transfer and low-shot evaluation stand on."""

from momentum_transfer.versions import check_python

__version__ = "0.1.0"

check_python()
