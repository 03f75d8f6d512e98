import os
import signal

import pytest

from momentum_transfer.transfer.torchvision_engine import train


@pytest.fixture
def stop_after(monkeypatch):
    """Sends SIGTERM to this process at the end of an iteration."""

    def arrange(iteration):
        original = train.Log.add

        def add(self, step, *rest, **times):
            original(self, step, *rest, **times)
            if step + 1 == iteration:
                os.kill(os.getpid(), signal.SIGTERM)

        monkeypatch.setattr(train.Log, "add", add)
        return lambda: monkeypatch.setattr(train.Log, "add", original)

    return arrange
