import pickle
import sys

import pytest

from momentum_transfer.transfer.scores import rle


@pytest.fixture(autouse=True)
def _afresh(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "momentum_transfer.transfer.scores.kernels", raising=False)
    rle._kernels.cache_clear()
    yield
    rle._kernels.cache_clear()


def test_without_numba_there_are_no_kernels(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "numba", None)
    assert rle.kernels(1 << 40) is None
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("cannot cache function: no locator available"),
        ImportError("Numba needs NumPy 2.3 or less"),
        EOFError("Ran out of input"),
        pickle.UnpicklingError("pickle data was truncated"),
    ],
)
def test_where_numba_fails_there_are_no_kernels_and_it_is_said(error: Exception, monkeypatch, capsys):
    def refuse(name: str):
        raise error

    monkeypatch.setattr("importlib.import_module", refuse)
    assert rle.kernels(1 << 40) is None
    assert rle.kernels(1 << 40) is None
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("masks are scored without numba") == 1
    assert f"{type(error).__name__}: {error}" in said


def test_a_few_characters_are_not_worth_an_import():
    assert rle.kernels(1 << 20) is None
    assert "momentum_transfer.transfer.scores.kernels" not in sys.modules


def test_kernels_that_are_there_are_used_for_a_few_too(monkeypatch):
    monkeypatch.setitem(sys.modules, "momentum_transfer.transfer.scores.kernels", sys)
    assert rle.kernels() is sys
