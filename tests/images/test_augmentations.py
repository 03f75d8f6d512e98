"""Batched parameters follow torchvision and depend on the key of each sample alone."""

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp, kstest
from torchvision.transforms import v2

from momentum_transfer.images.augmentations import (
    NUMBERS,
    RECIPES,
    Augmentation,
    JoinedGenerators,
    _draw_crops,
    draw_parameters,
    recipe_augmentations,
    uniforms,
)
from momentum_transfer.images.views import sample_seed

N = 4000
KEYS = np.array([sample_seed(0, 0, k) for k in range(N)])
LEAST_P = 1e-3  # fixed keys and seeds: a failure is a change of the code, not chance


def draws(sizes: tuple[int, int], augmentation: Augmentation):  # type: ignore[no-untyped-def]
    return draw_parameters(augmentation, np.tile(sizes, (N, 1)), uniforms(KEYS, NUMBERS))


def drawn_by(theirs):
    """What torchvision's transform draws its parameters with; before version 0.21 that was private."""
    return getattr(theirs, "make_params", None) or theirs._get_params


def test_uniforms_are_uniform_and_uncorrelated():
    numbers = uniforms(KEYS, NUMBERS)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    for column in numbers.T:
        assert kstest(column, "uniform").pvalue > LEAST_P
    correlation = np.corrcoef(numbers.T) - np.eye(NUMBERS)
    assert np.abs(correlation).max() < 4.5 / np.sqrt(N)


def test_uniforms_of_a_sample_do_not_depend_on_its_batch():
    np.testing.assert_array_equal(uniforms(KEYS, 10)[7:9], uniforms(KEYS[7:9], 10))
    np.testing.assert_array_equal(uniforms(KEYS[:5], 10)[:, :4], uniforms(KEYS[:5], 4))


def test_uniforms_are_splitmix64():
    # The generator's published first outputs for seed 1234567.
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    np.testing.assert_array_equal(
        uniforms(np.array([1234567]), 4)[0], [(value >> 11) * 2.0**-53 for value in published]
    )


@pytest.mark.parametrize("sizes", [(32, 32), (90, 160)])
@pytest.mark.parametrize("scale", [(0.08, 1.0), (0.2, 1.0)])
def test_crops_are_distributed_as_torchvisions(sizes: tuple[int, int], scale: tuple[float, float]):
    torch.manual_seed(0)
    image = torch.zeros(3, *sizes)
    theirs = v2.RandomResizedCrop(8, scale=scale)
    params = [drawn_by(theirs)([image]) for _ in range(N)]
    expected = np.array([[p[k] for k in ("top", "left", "height", "width")] for p in params])
    found = draws(sizes, Augmentation(crop_scale=scale)).crop
    assert (found[:, :2] >= 0).all()
    assert (found[:, :2] + found[:, 2:] <= sizes).all()
    for quantity in (lambda c: c[:, 0], lambda c: c[:, 1], lambda c: c[:, 2] * c[:, 3], lambda c: c[:, 3] / c[:, 2]):
        assert ks_2samp(quantity(found), quantity(expected)).pvalue > LEAST_P


def test_an_image_that_no_crop_fits_gives_its_central_crop():
    for sizes, expected in (((10, 200), [0, 93, 10, 13]), ((200, 10), [93, 0, 13, 10])):
        crop = _draw_crops(np.array([sizes]), (1.0, 1.0), np.full((1, 22), 0.5))
        theirs = drawn_by(v2.RandomResizedCrop(8, scale=(1.0, 1.0)))([torch.zeros(3, *sizes)])
        assert crop[0].tolist() == [theirs[k] for k in ("top", "left", "height", "width")]
        assert crop[0].tolist() == expected


@pytest.mark.parametrize("recipe", RECIPES)
def test_operations_are_as_frequent_as_the_recipe_says(recipe: str):
    for augmentation in RECIPES[recipe]:
        found = draws((32, 32), augmentation)
        rates = {
            "flip": (found.flip, 0.5),
            "gray": (found.gray, augmentation.grayscale),
            "blur": (found.sigma > 0, augmentation.blur),
            "solarize": (found.solarize, augmentation.solarize),
            "jitter": ((found.factors != [1, 1, 1, 0]).any(1), augmentation.jitter_p),
        }
        for name, (happened, probability) in rates.items():
            spread = 4 * np.sqrt(probability * (1 - probability) / N) + 1e-12
            assert happened.mean() == pytest.approx(probability, abs=spread), name


def test_jitter_factors_and_order_are_distributed_as_torchvisions():
    torch.manual_seed(0)
    theirs = v2.ColorJitter(0.4, 0.4, 0.2, 0.1)
    params = [drawn_by(theirs)([]) for _ in range(N)]
    names = ("brightness_factor", "contrast_factor", "saturation_factor", "hue_factor")
    found = draws((32, 32), Augmentation(jitter_p=1.0))
    for k, name in enumerate(names):
        assert ks_2samp(found.factors[:, k], [p[name] for p in params]).pvalue > LEAST_P, name
    order = np.bincount(found.order @ [64, 16, 4, 1], minlength=256)
    assert np.count_nonzero(order) == 24  # every permutation, equally often
    assert order[order > 0] == pytest.approx(N / 24, abs=5 * np.sqrt(N / 24))


def test_blur_sigma_is_uniform_in_its_range():
    sigma = draws((32, 32), Augmentation(blur=1.0)).sigma
    assert kstest((sigma - 0.1) / 1.9, "uniform").pvalue > LEAST_P


def test_removed_operations_do_nothing():
    first, _ = recipe_augmentations("rcf", remove=("solarize", "blur", "grayscale", "color_jitter"))
    found = draws((32, 32), first)
    assert not found.solarize.any()
    assert not found.gray.any()
    assert not found.sigma.any()
    assert (found.factors == [1, 1, 1, 0]).all()


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
