from functools import partial

import numpy as np
import PIL.Image
import pytest
import torch
from torchvision.transforms import v2

from momentum_transfer.lowshot.augment import (
    LEVELS,
    WeakAndStrong,
    _RandomLevelAugment,
    _ReflectedCrop,
    weak_view,
)

SIDE = 16
#: Dark on the left, bright on the right.
RAMP = PIL.Image.fromarray(np.broadcast_to(np.linspace(0, 240, SIDE).astype(np.uint8)[None, :, None], (SIDE, SIDE, 3)))


def views(view, count=40):
    torch.manual_seed(0)
    return [view(RAMP) for _ in range(count)]


def brighter_on_the_left(image):
    return float(image[..., : SIDE // 2].mean()) > float(image[..., SIDE // 2 :].mean())


def strong_view(dataset, size, levels="eman"):
    return WeakAndStrong(dataset, size, levels).strong


@pytest.mark.parametrize("name", ["imagefolder", "cifar10", "stl10"])
@pytest.mark.parametrize("build", [weak_view, strong_view])
def test_images_are_mirrored_half_of_the_time(name, build):
    mirrored = sum(brighter_on_the_left(image) for image in views(build(name, SIDE)))
    assert 8 < mirrored < 32


def test_digits_are_shifted_and_never_mirrored():
    images = views(weak_view("digits", SIDE))
    assert not any(brighter_on_the_left(image) for image in images)
    assert len({image.numpy().tobytes() for image in images}) > 3


def test_weak_view_of_a_small_square_holds_the_images_own_values_and_the_strong_one_others():
    plain = v2.functional.normalize(v2.functional.to_dtype(v2.functional.pil_to_tensor(RAMP), scale=True), [0.0], [1.0])
    weak, strong = (views(build("digits", SIDE)) for build in (weak_view, strong_view))
    own = {tuple(column) for image in weak for column in image[:, 0].T.numpy().round(4)}
    assert len(own) == len(torch.unique(plain[0, 0]))
    changed = sum(not {tuple(column) for column in image[:, 0].T.numpy().round(4)} <= own for image in strong)
    assert changed > 8  # some operations shift or shear only


@pytest.mark.parametrize("levels", LEVELS)
def test_strong_view_adds_two_operations_of_random_levels_to_the_weak_one(levels):
    strong, weak = (build("imagefolder", SIDE) for build in (partial(strong_view, levels=levels), weak_view))
    (added,) = (part for part in strong.transforms if isinstance(part, _RandomLevelAugment))
    assert (added.count, added.level) == (2, LEVELS[levels])
    assert [type(part) for part in strong.transforms if part is not added] == [type(part) for part in weak.transforms]


def test_weak_and_strong_come_in_that_order_each_with_its_own_geometry():
    views = WeakAndStrong("digits", SIDE)
    assert not any(isinstance(part, _RandomLevelAugment) for part in views.weak.transforms)
    assert any(isinstance(part, _RandomLevelAugment) for part in views.strong.transforms)
    views.weak, views.strong = (lambda image: "weak"), (lambda image: "strong")
    assert views(RAMP) == ("weak", "strong")


@pytest.mark.parametrize(("height", "width", "size", "padding"), [(16, 16, 16, 2), (20, 13, 12, 5), (8, 8, 16, 4)])
def test_reflected_crop_gives_the_positions_and_pixels_of_torchvisions(height, width, size, padding):
    random = np.random.default_rng(0)
    image = PIL.Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8))
    ours, torchvisions = _ReflectedCrop(size, padding), v2.RandomCrop(size, padding=padding, padding_mode="reflect")
    assert repr(ours) == repr(torchvisions)
    for seed in range(20):
        crops = []
        for crop in (ours, torchvisions):
            torch.manual_seed(seed)
            crops.append((np.asarray(crop(image)).tolist(), torch.rand(())))
        assert crops[0] == crops[1]
