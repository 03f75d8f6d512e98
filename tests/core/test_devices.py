"""The device of a name, and the number of workers that turns out fastest."""

import itertools

import pytest
import torch

from momentum_transfer.core import devices
from momentum_transfer.core import devices as worker_count
from momentum_transfer.core.devices import (
    MEASURED,
    TIMED,
    UNTIMED,
    check_device,
    choose_device,
    measured_batches,
    runs_on_cpu,
    workers_without_measuring,
)
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.log import speaking


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


TRIAL = UNTIMED + TIMED


class Machine:
    """Batches are numbers; each takes the seconds that its number of workers needs."""

    def __init__(self, seconds):
        self.seconds, self.now, self.asked = seconds, 0.0, []

    def batches_from(self, first, workers):
        self.asked.append((first, workers))
        for number in itertools.count(first):
            self.now += self.seconds[workers]
            yield number

    def run(self, first, total, choices):
        batches = measured_batches(self.batches_from, first, total, choices, clock=lambda: self.now)
        return list(itertools.islice(batches, total - first))


@pytest.mark.parametrize(
    ("seconds", "tried", "best"),
    [
        ({0: 5, 1: 3, 2: 2, 4: 1}, [0, 1, 2, 4], 4),
        ({0: 5, 1: 5.1, 2: 2, 4: 2.1}, [0, 1, 2, 4], 2),
        ({0: 1, 1: 3, 2: 1, 4: 1}, [0, 1], 0),
        ({0: 1, 1: 0.97, 2: 0.96, 4: 0.98}, [0, 1, 2, 4], 0),
    ],
)
def test_the_fastest_number_reads_on_where_the_trials_end_and_no_batch_is_lost(seconds, tried, best, capsys):
    machine = Machine(seconds)
    with speaking():
        assert machine.run(7, 2007, [0, 1, 2, 4]) == list(range(7, 2007))
    assert machine.asked == [(7 + TRIAL * n, w) for n, w in enumerate(tried)] + [(7 + TRIAL * len(tried), best)]
    assert f"{best} worker{'s' * (best != 1)} for reading images, by the time" in capsys.readouterr().out


def test_a_short_rest_of_a_run_is_not_spent_on_trials():
    machine = Machine({0: 1, 2: 1})
    assert machine.run(90, 100, [0, 2]) == list(range(90, 100))
    assert machine.asked == [(90, 2)]


def test_candidates_follow_the_cores_of_each_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker_count, "available_cores", lambda: 32)
    assert worker_count.candidates() == [0, 1, 2, 4, 8, 16]
    assert worker_count.candidates(processes=8) == [0, 1, 2, 4]
    assert workers_without_measuring(MEASURED) == 4
    assert workers_without_measuring(7) == 7
    monkeypatch.setattr(worker_count, "available_cores", lambda: 1)
    assert worker_count.candidates() == [0, 1]
