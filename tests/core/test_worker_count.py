"""The number of workers that a run's first steps choose, under a clock of our own."""

import itertools

import pytest

from momentum_transfer.core import devices as worker_count
from momentum_transfer.core.devices import MEASURED, TIMED, UNTIMED, measured_batches, workers_without_measuring
from momentum_transfer.core.log import speaking

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
