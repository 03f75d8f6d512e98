"""What every test shares: its threads, an own cache folder, and Detectron2's absence said once, with its reason."""

import importlib.util
import os
import sys

import pytest

from momentum_transfer.core.log import speaking
from momentum_transfer.suites import chain

# One thread a process, whatever the shell asks for, here and in every process that a test starts: two numbers of
# threads round differently, so that bits are compared between equals, and the workers of xdist share the cores.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as tool_environment sets
os.environ.setdefault("GOMP_SPINCOUNT", "20000")
if "torch" in sys.modules:  # a plugin was first: the variables come too late for it
    sys.modules["torch"].set_num_threads(1)


chain.IMPORTED = ()  # chains of tests are of small scripts


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory):
    """Embedded data is made once per test session, never in the user's cache."""
    patch = pytest.MonkeyPatch()
    patch.setenv("MOMENTUM_TRANSFER_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


@pytest.fixture(autouse=True, scope="session")
def _speaking():
    """What the library says is printed, as under a tool, so that tests can read it."""
    with speaking():
        yield


@pytest.fixture(autouse=True, scope="session")
def _forks_may_train():
    """The first backward starts autograd's threads, one a device, and a fork cannot train after them.

    On a CPU there are none, but tracing a program for export makes torch count one: so the first backward comes here.
    """
    import torch

    torch.ones(1, requires_grad=True).sum().backward()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked ``detectron2`` skip where it is not installed."""
    if importlib.util.find_spec("detectron2") is not None:
        return
    reason = "Detectron2 is not installed (https://detectron2.readthedocs.io/en/latest/tutorials/install.html)"
    for item in items:
        if "detectron2" in item.keywords:
            item.add_marker(pytest.mark.skip(reason=reason))
