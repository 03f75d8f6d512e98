import sys

import pytest

from transfer.scores import compiled


@pytest.fixture(autouse=True)
def _afresh(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "transfer.scores.kernels", raising=False)
    compiled._kernels.cache_clear()
    yield
    compiled._kernels.cache_clear()


def test_without_numba_there_are_no_kernels(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    assert compiled.kernels(1 << 40) is None


def test_where_nothing_can_be_cached_there_are_no_kernels(monkeypatch):
    def refuse(name: str):
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr("importlib.import_module", refuse)
    assert compiled.kernels(1 << 40) is None


def test_a_few_characters_are_not_worth_an_import():
    assert compiled.kernels(1 << 20) is None
    assert "transfer.scores.kernels" not in sys.modules


def test_kernels_that_are_there_are_used_for_a_few_too(monkeypatch):
    monkeypatch.setitem(sys.modules, "transfer.scores.kernels", sys)
    assert compiled.kernels() is sys
