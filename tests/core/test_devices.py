import pytest
import torch

from momentum_transfer.core import devices
from momentum_transfer.core.devices import check_device, choose_device, runs_on_cpu
from momentum_transfer.core.errors import InputError


@pytest.fixture
def machine(monkeypatch):
    """A machine with so many CUDA devices; the ones that became current are returned."""
    current = []

    def of(count):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "set_device", current.append)
        return current

    devices._say_once.cache_clear()
    yield of
    devices._say_once.cache_clear()


def test_auto_without_cuda_is_the_cpu_said_aloud_once(machine, capsys):
    machine(0)
    assert [choose_device(), choose_device("auto")] == [torch.device("cpu")] * 2
    assert capsys.readouterr().out == "no CUDA device: running on the CPU\n"
    assert choose_device("cpu") == torch.device("cpu")
    assert capsys.readouterr().out == ""


def test_cuda_is_this_processs_own_device_and_the_current_one(machine, monkeypatch):
    current = machine(4)
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert [choose_device(name) for name in ("auto", "cuda", "cuda:3")] == [torch.device("cuda", i) for i in (2, 2, 3)]
    assert current == [2, 2, 3]
    assert choose_device("cpu") == torch.device("cpu")
    assert [runs_on_cpu(name) for name in ("auto", "cuda", "cpu")] == [False, False, True]


@pytest.mark.parametrize(
    ("name", "count", "message"),
    [
        ("cuda", 0, r"expected a CUDA device under RUN\.DEVICE cuda, found none; use cpu or auto"),
        ("cuda:1", 0, r"expected a CUDA device under RUN\.DEVICE cuda:1, found none"),
        ("cuda:2", 2, r"expected RUN\.DEVICE below cuda:2, found cuda:2; use auto"),
        ("gpu", 2, r"expected RUN\.DEVICE of auto, cuda, cuda:N, cpu, found 'gpu'"),
        ("", 2, r"expected RUN\.DEVICE of auto"),
    ],
)
def test_what_is_not_there_is_refused_and_never_replaced(machine, name, count, message):
    machine(count)
    with pytest.raises(InputError, match=message):
        check_device(name, "RUN.DEVICE")
    with pytest.raises(InputError, match=message):
        choose_device(name, "RUN.DEVICE")
