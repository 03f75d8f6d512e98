import itertools
from collections import Counter

import pytest
import torch

from transfer.torchvision_engine.sampling import TrainingBatches, endless, repeat_factors


def take(batches, count):
    return list(itertools.islice(iter(batches), count))


def test_every_image_comes_once_a_pass():
    stream = endless(torch.ones(7), seed=3)
    for _ in range(3):
        assert sorted(itertools.islice(stream, 7)) == list(range(7))


def test_repeat_factors_are_the_square_root_of_threshold_over_frequency():
    # class 0 in all 8 images, class 1 in 2 of them, class 2 in one
    images = [{0, 2}, {0, 1}, {0, 1}, *[{0}] * 4, {0}]
    factors = repeat_factors(images, threshold=0.5)
    assert factors.tolist() == pytest.approx([2.0, 2**0.5, 2**0.5, 1, 1, 1, 1, 1])
    assert repeat_factors(images, 0.5, sqrt=False).tolist() == pytest.approx([4.0, 2.0, 2.0, 1, 1, 1, 1, 1])
    assert repeat_factors([set(), {0}], 0.1).tolist() == [1.0, 1.0]


def test_fractional_repeats_are_right_on_average():
    stream = endless(torch.tensor([1.0, 1.25, 3.5]), seed=0)
    count = Counter(itertools.islice(stream, 23000))
    passes = count[0]
    assert count[1] / passes == pytest.approx(1.25, abs=0.03)
    assert count[2] / passes == pytest.approx(3.5, abs=0.05)


def test_two_processes_share_the_stream_of_one():
    whole = [draw for batch in take(TrainingBatches(torch.ones(10), None, 1, seed=5), 20) for draw in batch]
    parts = [
        [
            draw
            for batch in take(TrainingBatches(torch.ones(10), None, 1, 5, rank=r, world_size=2), 10)
            for draw in batch
        ]
        for r in range(2)
    ]
    assert sorted(parts[0] + parts[1]) == whole


@pytest.mark.parametrize("wide", [None, [True, False, False, True, True, False, False]])
def test_starting_later_is_leaving_out_the_first_batches(wide):
    whole = take(TrainingBatches(torch.ones(7), wide, 3, seed=1), 9)
    assert take(TrainingBatches(torch.ones(7), wide, 3, seed=1, start=4), 5) == whole[4:]


def test_batches_hold_images_of_one_orientation():
    wide = [index % 3 == 0 for index in range(12)]
    for batch in take(TrainingBatches(torch.ones(12), wide, 2, seed=0), 30):
        assert len({wide[index] for _, index in batch}) == 1


def test_grouping_loses_no_image():
    wide = [index % 3 == 0 for index in range(12)]
    drawn = Counter(index for batch in take(TrainingBatches(torch.ones(12), wide, 2, seed=0), 60) for _, index in batch)
    assert max(drawn.values()) - min(drawn.values()) <= 2
