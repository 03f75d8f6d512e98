from itertools import chain, islice

import pytest
import torch

from momentum_transfer.errors import InputError
from momentum_transfer.images.datasets import build_dataset
from momentum_transfer.images.views import TwoViewDataset, build_views
from momentum_transfer.samplers import EndlessBatches, training_loader


def indices(batches, count):
    return [[index for _, index in batch] for batch in islice(batches, count)]


def test_an_epoch_is_a_permutation_without_what_fills_no_batch():
    batches = EndlessBatches(10, 3, seed=0)
    epoch = [*chain(*indices(batches, 3))]
    assert len(set(epoch)) == 9
    assert [epoch for batch in islice(batches, 7) for epoch, _ in batch] == [0] * 9 + [1] * 9 + [2] * 3
    assert [*chain(*indices(batches, 6)[3:])] != epoch


@pytest.mark.parametrize("start", [0, 1, 3, 5, 9])
def test_any_position_is_reached_without_reading_what_came_before(start):
    whole = indices(EndlessBatches(10, 3, seed=4), 12)
    assert indices(EndlessBatches(10, 3, seed=4, start=start), 12 - start) == whole[start:]


def test_processes_share_the_joint_batch_of_one_process():
    joint = indices(EndlessBatches(21, 6, seed=1), 5)
    parts = [indices(EndlessBatches(21, 2, seed=1, rank=rank, world=3), 5) for rank in range(3)]
    for number, batch in enumerate(joint):
        assert sorted(batch) == sorted(parts[0][number] + parts[1][number] + parts[2][number])


@pytest.mark.parametrize(("batch", "world", "accumulate"), [(8, 1, 4), (8, 2, 2), (16, 2, 1), (4, 4, 2)])
def test_a_step_is_the_same_images_however_it_is_divided(batch, world, accumulate):
    whole = indices(EndlessBatches(110, 32, seed=2), 8)  # two epochs of three steps, and more
    for number, step in enumerate(whole):
        parts = [
            index
            for rank in range(world)
            for micro in indices(
                EndlessBatches(
                    110, batch, seed=2, rank=rank, world=world, accumulate=accumulate, start=number * accumulate
                ),
                accumulate,
            )
            for index in micro
        ]
        assert sorted(parts) == sorted(step)
        assert len(set(parts)) == 32


def test_fewer_images_than_a_batch_is_an_error():
    with pytest.raises(InputError, match="expected at least one batch of 8 images, found 7"):
        EndlessBatches(7, 4, seed=0, world=2)


@pytest.mark.parametrize("workers", [0, 2])
def test_views_are_the_same_with_any_number_of_workers_and_across_epochs(workers):
    images = build_dataset("digits", image_size=16)
    dataset = TwoViewDataset(images, build_views("digits", 16), seed=3)
    batches = EndlessBatches(len(images), 600, seed=3, start=1)
    loader = training_loader(dataset, batches, workers=workers, pin_memory=False)
    for (view1, _, _, index), batch in zip(islice(loader, 2), islice(batches, 2), strict=True):
        assert index.tolist() == [i for _, i in batch]
        expected = dataset.at(*batch[7])[0]
        assert torch.equal(view1[7], expected)
    assert [batch[0][0] for batch in islice(batches, 2)] == [0, 1]
