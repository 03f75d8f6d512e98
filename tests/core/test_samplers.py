import multiprocessing
import os
import subprocess
import time
from collections import Counter
from itertools import chain, islice

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from momentum_transfer.core import samplers
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.samplers import (
    Batches,
    RepeatedPasses,
    ordered_loader,
    shuffled_rows,
    training_loader,
    whole_steps,
)
from momentum_transfer.images.datasets import build_dataset
from momentum_transfer.images.views import TwoViewDataset, build_views
from momentum_transfer.pretrain.pipeline import EpochImages


def endless(images, batch, *, seed, rank=0, world=1, accumulate=1, start=0):
    order = whole_steps(images, batch * world * accumulate, seed)
    return Batches(order, batch, rank=rank, world_size=world, start=start)


def repeated(factors, batch, *, seed, groups=None, **share):
    return Batches(RepeatedPasses(torch.tensor(factors), seed), batch, groups=groups, **share)


def indices(batches, count):
    return [[index for _, index in batch] for batch in islice(batches, count)]


def test_an_epoch_is_a_permutation_without_what_fills_no_batch():
    batches = endless(10, 3, seed=0)
    epoch = [*chain(*indices(batches, 3))]
    assert len(set(epoch)) == 9
    assert [epoch for batch in islice(batches, 7) for epoch, _ in batch] == [0] * 9 + [1] * 9 + [2] * 3
    assert [*chain(*indices(batches, 6)[3:])] != epoch


@pytest.mark.parametrize("start", [0, 1, 3, 5, 9])
def test_any_position_is_reached_without_reading_what_came_before(start):
    whole = indices(endless(10, 3, seed=4), 12)
    assert indices(endless(10, 3, seed=4, start=start), 12 - start) == whole[start:]


def test_processes_share_the_joint_batch_of_one_process():
    joint = indices(endless(21, 6, seed=1), 5)
    parts = [indices(endless(21, 2, seed=1, rank=rank, world=3), 5) for rank in range(3)]
    for number, batch in enumerate(joint):
        assert sorted(batch) == sorted(parts[0][number] + parts[1][number] + parts[2][number])


@pytest.mark.parametrize(("batch", "world", "accumulate"), [(8, 1, 4), (8, 2, 2), (16, 2, 1), (4, 4, 2)])
def test_a_step_is_the_same_images_however_it_is_divided(batch, world, accumulate):
    whole = indices(endless(110, 32, seed=2), 8)  # two epochs of three steps, and more
    for number, step in enumerate(whole):
        parts = [
            index
            for rank in range(world)
            for micro in indices(
                endless(110, batch, seed=2, rank=rank, world=world, accumulate=accumulate, start=number * accumulate),
                accumulate,
            )
            for index in micro
        ]
        assert sorted(parts) == sorted(step)
        assert len(set(parts)) == 32


def test_fewer_images_than_a_batch_is_an_error():
    with pytest.raises(InputError, match="expected at least one batch of 8 images, found 7"):
        endless(7, 4, seed=0, world=2)


@pytest.mark.parametrize("workers", [0, 2])
def test_views_are_the_same_with_any_number_of_workers_and_across_epochs(workers):
    images = build_dataset("digits", image_size=16)
    dataset = TwoViewDataset(images, build_views("digits", 16), seed=3)
    batches = endless(len(images), 600, seed=3, start=1)
    loader = training_loader(EpochImages(dataset), batches, workers=workers)
    for (view1, _, _, index), batch in zip(islice(loader, 2), islice(batches, 2), strict=True):
        assert index.tolist() == [i for _, i in batch]
        expected = dataset.at(*batch[7])[0]
        assert torch.equal(view1[7], expected)
    assert [batch[0][0] for batch in islice(batches, 2)] == [0, 1]


ORDERS = {
    "whole steps": lambda: whole_steps(10, 3, seed=4),
    "rows": lambda: shuffled_rows(np.arange(20, 27), seed=4),
    "passes": lambda: RepeatedPasses(torch.ones(7), seed=4),
    "repeat factors": lambda: RepeatedPasses(torch.tensor([1.0, 1.25, 3.5]), seed=4),
}


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("first", [0, 1, 6, 7, 9, 23])
def test_an_order_is_entered_anywhere(name, first):
    whole = list(islice(ORDERS[name]().places(0), 40))
    assert list(islice(ORDERS[name]().places(first), 40 - first)) == whole[first:]
    assert len(set(whole)) == 40, "a place comes once, so that no view is drawn twice"


@pytest.mark.parametrize("groups", [None, [1, 0, 0, 1, 1, 0, 0]])
@pytest.mark.parametrize("world", [1, 2])
def test_starting_later_is_leaving_out_the_first_batches(groups, world):
    share = {"seed": 1, "groups": groups, "rank": world - 1, "world_size": world}
    whole = list(islice(repeated([1.0] * 7, 3, **share), 9))
    assert list(islice(repeated([1.0] * 7, 3, start=4, **share), 5)) == whole[4:]
    assert list(repeated([1.0] * 7, 3, start=4, stop=6, **share)) == whole[4:6]


def test_processes_share_the_places_of_one():
    whole = list(chain(*islice(repeated([1.0] * 10, 1, seed=5), 20)))
    parts = [list(chain(*islice(repeated([1.0] * 10, 1, seed=5, rank=rank, world_size=2), 10))) for rank in range(2)]
    assert sorted(parts[0] + parts[1]) == whole


def test_every_image_comes_once_a_pass_and_fractional_repeats_on_average():
    places = RepeatedPasses(torch.ones(7), seed=3).places(0)
    assert all(sorted(index for _, index in islice(places, 7)) == list(range(7)) for _ in range(3))
    count = Counter(index for _, index in islice(RepeatedPasses(torch.tensor([1.0, 1.25, 3.5]), 0).places(0), 23000))
    assert count[1] / count[0] == pytest.approx(1.25, abs=0.03)
    assert count[2] / count[0] == pytest.approx(3.5, abs=0.05)


def test_batches_of_groups_hold_one_group_and_lose_no_image():
    wide = [index % 3 == 0 for index in range(12)]
    batches = list(islice(repeated([1.0] * 12, 2, seed=0, groups=wide), 60))
    assert all(len({wide[index] for _, index in batch}) == 1 for batch in batches)
    drawn = Counter(index for batch in batches for _, index in batch)
    assert max(drawn.values()) - min(drawn.values()) <= 2


#: The first places of each order, kept so that a seed goes on meaning the same images.
KEPT = {
    "whole steps": [0, 9, 7, 3, 2, 6, 1, 5, 4, 4, 9, 7],
    "rows": [22, 26, 24, 21, 23, 20, 25, 21, 26, 23, 22, 25],
    "repeat factors": [2, 0, 2, 1, 2, 2, 2, 1, 2, 2, 2, 0],
}


@pytest.mark.parametrize("name", KEPT)
def test_a_seeds_order_stays_from_version_to_version(name):
    assert [index for _, index in islice(ORDERS[name]().places(0), 12)] == KEPT[name]


class Pids(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, place):
        return os.getpid()


@pytest.fixture
def two_threads():
    """As a user has them: then torch starts a thread in every worker, which a signal could reach."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("loader", [
    lambda: training_loader(Pids(), Batches(whole_steps(2, 2, 0), 2), workers=1),
    lambda: ordered_loader(Pids(), 2, workers=1),
])  # fmt: skip
@pytest.mark.usefixtures("two_threads")
def test_workers_survive_signals_of_others_and_end_at_their_parents(loader):
    before = torch.random.get_rng_state()
    batches = iter(loader())
    assert torch.equal(torch.random.get_rng_state(), before), "a loader draws no random number of the training's"
    worker = int(next(batches)[0])
    for number in ("INT", "TERM", "TERM"):
        subprocess.run(["kill", f"-{number}", str(worker)], check=True)
    time.sleep(0.2)
    assert all(int(next(batches)[0]) == worker for _ in range(20))  # more than lay ready
    (process,) = (child for child in multiprocessing.active_children() if child.pid == worker)
    process.terminate()
    process.join(timeout=10)
    assert process.exitcode == 0


def test_loaders_start_at_most_a_worker_for_each_core_and_say_so_once(caplog, recwarn, monkeypatch):
    monkeypatch.setattr("momentum_transfer.core.devices.available_cores", lambda: 2)
    caplog.set_level("INFO")
    asked = 4001  # more than any machine has, so that torch would warn
    loaders = [
        samplers.training_loader(range(8), [[0, 1]], workers=asked),
        samplers.ordered_loader(range(8), 2, workers=asked),
        samplers.ordered_loader(range(8), 2, workers=1),
    ]
    assert [loader.num_workers for loader in loaders] == [2, 2, 1]
    assert not [one for one in recwarn if "worker processes" in str(one.message)]
    assert [record.getMessage() for record in caplog.records] == [
        "2 workers instead of 4001 read the images: one for each core of this process"
    ]
