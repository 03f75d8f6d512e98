"""Signals that wait for the step to end."""

import os
import signal

import pytest

from momentum_transfer.core.command import stop_signals


def test_the_first_signal_only_sets_the_flag_and_the_second_ends():
    before = signal.getsignal(signal.SIGINT)
    with stop_signals() as stop:
        assert not stop
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop
        assert stop.exit_code == 143
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
