"""Joined generators draw what each would draw alone."""

import numpy as np
import pytest

from momentum_transfer.images.augmentations import JoinedGenerators


def joined(count: int) -> JoinedGenerators:
    return JoinedGenerators([np.random.default_rng(seed) for seed in range(count)])


def test_each_part_is_what_its_generator_draws_alone() -> None:
    together = joined(3)
    drawn = together.random((6, 4)), together.random((5, 6), np.float32, axis=1), together.standard_normal((6, 2, 2))
    for seed in range(3):
        alone, part = np.random.default_rng(seed), slice(2 * seed, 2 * seed + 2)
        np.testing.assert_array_equal(drawn[0][part], alone.random((2, 4)))
        np.testing.assert_array_equal(drawn[1][:, part], alone.random((5, 2), np.float32))
        np.testing.assert_array_equal(drawn[2][part], alone.standard_normal((2, 2, 2)))


def test_images_that_the_generators_cannot_share_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 3 images, found 4"):
        joined(3).random((4, 2))
