"""Every operation at the ends and in the middle of its published range, against Pillow or a line of NumPy."""

import numpy as np
import PIL.Image
import pytest
import torch
from PIL import ImageEnhance, ImageOps

from momentum_transfer.lowshot.augment import _OPERATIONS, LEVELS, _RandomLevelAugment

SIDE = 40
VALUES = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3)).astype(np.uint8)
NOISE = PIL.Image.fromarray(VALUES)


def shifted(image, x, y):
    return image.transform(image.size, PIL.Image.Transform.AFFINE, (1, 0, -x, 0, 1, -y))


def sheared(image, x, y):
    """A positive fraction takes from further right (x) or below (y); the upper left corner is at rest."""
    return image.transform(image.size, PIL.Image.Transform.AFFINE, (1, x, 0, y, 1, 0))


def solarized_by_addition(image, amount):
    values = np.asarray(image).astype(int)
    return PIL.Image.fromarray(np.where(values < 128, values + amount, values).astype(np.uint8))


#: name -> (level -> the strength that the papers' range has there), (image, strength) -> image by other means.
EXPECTED = {
    "AutoContrast": (lambda level: None, lambda image, _: ImageOps.autocontrast(image)),
    "Equalize": (lambda level: None, lambda image, _: ImageOps.equalize(image)),
    "Invert": (lambda level: None, lambda image, _: ImageOps.invert(image)),
    "Identity": (lambda level: None, lambda image, _: image),
    "Rotate": (lambda level: 30 * level, lambda image, degrees: image.rotate(degrees)),
    "Posterize": ({0: 8, 0.5: 6, 1: 4}.get, lambda image, bits: ImageOps.posterize(image, bits)),
    "Solarize": (lambda level: 256 * (1 - level), lambda image, threshold: ImageOps.solarize(image, threshold)),
    "Color": (lambda level: 0.1 + 1.8 * level, lambda image, f: ImageEnhance.Color(image).enhance(f)),
    "Contrast": (lambda level: 0.1 + 1.8 * level, lambda image, f: ImageEnhance.Contrast(image).enhance(f)),
    "Brightness": (lambda level: 0.1 + 1.8 * level, lambda image, f: ImageEnhance.Brightness(image).enhance(f)),
    "Sharpness": (lambda level: 0.1 + 1.8 * level, lambda image, f: ImageEnhance.Sharpness(image).enhance(f)),
    "ShearX": (lambda level: 0.3 * level, lambda image, part: sheared(image, part, 0)),
    "ShearY": (lambda level: 0.3 * level, lambda image, part: sheared(image, 0, part)),
    "TranslateX": (lambda level: 12 * level, lambda image, pixels: shifted(image, pixels, 0)),
    "TranslateY": (lambda level: 12 * level, lambda image, pixels: shifted(image, 0, pixels)),
    "SolarizeAdd": ({0: 0, 0.5: 55, 1: 110}.get, solarized_by_addition),
}
SIGNED = {"Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY"}


def test_operations_are_the_sixteen_of_the_published_list():
    assert len(_OPERATIONS) == 16
    assert set(_OPERATIONS) == set(EXPECTED)
    assert {name for name, operation in _OPERATIONS.items() if operation.signed} == SIGNED


@pytest.mark.parametrize("level", [0, 0.5, 1])
@pytest.mark.parametrize("name", EXPECTED)
def test_operation_has_its_published_range(name, level):
    strength_at, apply = EXPECTED[name]
    strength = strength_at(level)
    # shears turn the angle back into the fraction, so that a pixel on an edge may fall on either side of it
    allowed = 0.02 if "Shear" in name else 0.0
    for negated in (False, True):
        found = np.asarray(_OPERATIONS[name](NOISE, level, negated))
        expected = np.asarray(apply(NOISE, -strength if negated and name in SIGNED else strength))
        assert (found != expected).any(axis=2).mean() <= allowed


@pytest.mark.parametrize("name", sorted(SIGNED | {"SolarizeAdd"}))
def test_level_zero_changes_nothing(name):
    assert np.array_equal(np.asarray(_OPERATIONS[name](NOISE, 0)), VALUES)


def test_emans_levels_are_the_integers_1_to_9_of_10_equally_often():
    torch.manual_seed(0)
    levels, counts = np.unique([LEVELS["eman"]() for _ in range(4500)], return_counts=True)
    assert levels.tolist() == [step / 10 for step in range(1, 10)]
    assert np.abs(counts - 500).max() < 5 * np.sqrt(500)


def test_uniform_levels_fill_the_range_evenly():
    torch.manual_seed(0)
    counts, _ = np.histogram([LEVELS["uniform"]() for _ in range(4000)], bins=10, range=(0, 1))
    assert np.abs(counts - 400).max() < 5 * np.sqrt(400)


@pytest.mark.parametrize("levels", LEVELS)
def test_two_operations_are_drawn_for_each_image_each_with_its_own_level_and_sign(levels, monkeypatch):
    seen = []
    for name in list(_OPERATIONS):
        recorded = lambda image, level, negated, name=name: seen.append((name, level, negated)) or image  # noqa: E731
        monkeypatch.setitem(_OPERATIONS, name, recorded)
    torch.manual_seed(0)
    augment = _RandomLevelAugment(levels)
    for _ in range(800):
        augment(NOISE)
    assert len(seen) == 1600
    names, counts = np.unique([name for name, _, _ in seen], return_counts=True)
    assert len(names) == 16
    assert np.abs(counts - 100).max() < 5 * np.sqrt(100)
    first, second = seen[::2], seen[1::2]
    for position in (0, 1, 2):  # the second operation does not repeat the first
        assert sum(a[position] == b[position] for a, b in zip(first, second, strict=True)) < 500
    assert abs(sum(negated for *_, negated in seen) - 800) < 5 * np.sqrt(400)


def test_same_seed_gives_the_same_image():
    images = []
    for _ in range(2):
        torch.manual_seed(3)
        images.append(np.asarray(_RandomLevelAugment()(NOISE)))
    assert np.array_equal(*images)
