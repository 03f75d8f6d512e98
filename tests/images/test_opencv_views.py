"""Views by OpenCV are Pillow's: the same random numbers, and pixels within rounding."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import PIL.Image
import PIL.ImageFilter
import pytest
import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from momentum_transfer.core.errors import InputError
from momentum_transfer.images import opencv_views
from momentum_transfer.images.augmentations import RECIPES
from momentum_transfer.images.datasets import ArrayImages, FileImages
from momentum_transfer.images.subsets import Selected
from momentum_transfer.images.views import TwoViewDataset, build_views

#: Levels of 255: the most that an operation's pixels may differ on average, and the average with its sign, by channel.
TOLERANCE, BIAS = 1.5, 0.75


def photograph(seed: int, height: int = 202, width: int = 242) -> np.ndarray:
    """Colours at every scale, as natural images have, uint8 [H, W, 3]."""
    rng = np.random.default_rng(seed)
    pixels = np.full((height, width, 3), 128.0)
    for cells in (3, 6, 12, 25, 50, 100):
        grid = PIL.Image.fromarray(rng.integers(0, 256, (cells, cells, 3), dtype=np.uint8))
        pixels += (np.asarray(grid.resize((width, height), PIL.Image.Resampling.BICUBIC), float) - 128) / cells**0.35
    return pixels.clip(0, 255).astype(np.uint8)


def cropped(image: PIL.Image.Image) -> PIL.Image.Image:
    torch.manual_seed(4)
    return v2.RandomHorizontalFlip(0.5)(v2.RandomResizedCrop(96)(image))


def cropped_here(pixels: np.ndarray) -> np.ndarray:
    torch.manual_seed(4)
    return opencv_views.random_crop(pixels, 96, (0.08, 1.0), 0.5)


Case = tuple[Callable[[np.ndarray], np.ndarray], Callable[[PIL.Image.Image], PIL.Image.Image]]
here = opencv_views
OPERATIONS: dict[str, Case] = {
    "crop": (cropped_here, cropped),
    "grey": (here.grey, lambda image: image.convert("L")),
    "solarize": (lambda x: here.solarized(x, 128), lambda image: F.solarize(image, 128)),
}
for _f in (0.6, 0.93, 1.07, 1.4):
    OPERATIONS[f"brightness {_f}"] = (lambda x, f=_f: here.blended(x, 0, f), lambda i, f=_f: F.adjust_brightness(i, f))
    OPERATIONS[f"contrast {_f}"] = (lambda x, f=_f: here.contrasted(x, f), lambda i, f=_f: F.adjust_contrast(i, f))
    OPERATIONS[f"saturation {_f}"] = (lambda x, f=_f: here.saturated(x, f), lambda i, f=_f: F.adjust_saturation(i, f))
for _f in (-0.1, -0.02, 0.05, 0.1):
    OPERATIONS[f"hue {_f}"] = (lambda x, f=_f: here.turned_hue(x, f), lambda i, f=_f: F.adjust_hue(i, f))
for _f in (0.1, 0.5, 1.0, 2.0):
    OPERATIONS[f"blur {_f}"] = (
        lambda x, f=_f: here.blurred(x, f),
        lambda i, f=_f: i.filter(PIL.ImageFilter.GaussianBlur(f)),
    )


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_is_pillows_within_the_tolerance(name: str):
    ours, pillows = OPERATIONS[name]
    for seed in (0, 1):
        pixels = photograph(seed)
        difference = ours(pixels).astype(float) - np.asarray(pillows(PIL.Image.fromarray(pixels)), float)
        assert np.abs(difference).mean() <= TOLERANCE
        assert np.abs(difference.mean((0, 1))).max() <= BIAS
        if name.split()[0] in ("brightness", "solarize"):
            assert not difference.any()


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_draws_the_same_numbers_and_gives_pillows_views(recipe: str):
    plain = {"mean": (0, 0, 0), "std": (1, 1, 1)}
    by_pillow, by_opencv = (build_views(recipe, 64, **plain, backend=name) for name in ("pillow", "opencv"))
    for seed in range(12):
        image = PIL.Image.fromarray(photograph(seed % 3, *((202, 242), (30, 200), (190, 40))[seed % 3]))
        torch.manual_seed(seed)
        expected = by_pillow(image)
        state = torch.random.get_rng_state()
        torch.manual_seed(seed)
        found = by_opencv(image)
        assert torch.equal(torch.random.get_rng_state(), state)
        for ours, pillows in zip(found, expected, strict=True):
            assert ours.shape == pillows.shape == (3, 64, 64)
            assert (ours - pillows).abs().mean() * 255 < 2 * TOLERANCE


def test_image_files_are_decoded_to_pillows_pixels_and_damaged_ones_replaced_alike(tmp_path: Path):
    image = PIL.Image.fromarray(photograph(0))
    image.save(tmp_path / "0.jpg", quality=90)
    image.save(tmp_path / "1.jpg", progressive=True, subsampling=0)
    image.convert("L").save(tmp_path / "2.jpg")
    image.save(
        tmp_path / "3.jpg",
        exif=b"Exif\x00\x00MM\x00*\x00\x00\x00\x08\x00\x01\x01\x12\x00\x03\x00\x00\x00\x01\x00\x06\x00\x00",
    )
    image.convert("RGBA").save(tmp_path / "4.png")
    whole = (tmp_path / "0.jpg").read_bytes()
    (tmp_path / "5.jpg").write_bytes(whole[: len(whole) // 2])
    files = FileImages([tmp_path / name for name in sorted(os.listdir(tmp_path))], [0] * 6, ["a"])
    part = Selected(files, np.array([5, 3, 2, 1, 0, 4]), np.arange(6), list("abcdef"))
    for index in range(6):
        pixels, label = opencv_views.PixelArrays(part)[index]
        np.testing.assert_array_equal(pixels, np.asarray(part[index][0]))
        assert label == index
    assert part[1][0].size == image.size[::-1]
    assert len(files.unreadable) == 1


def test_views_are_the_same_in_workers_and_alone():
    data = ArrayImages(np.stack([photograph(k, 40, 48) for k in range(6)]), [0, 1, 2] * 2, ["a", "b", "c"])
    views = TwoViewDataset(data, build_views("byol", 32, backend="opencv"), seed=3)
    loader = torch.utils.data.DataLoader(views, batch_size=3, num_workers=2)
    first, second = (torch.cat([batch[k] for batch in loader]) for k in range(2))
    for index in (5, 0):
        assert torch.equal(views[index][0], first[index])
        assert torch.equal(views[index][1], second[index])


def test_without_opencv_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    opencv_views.opencv.cache_clear()
    with pytest.raises(InputError, match=r"momentum-transfer\[fast\]"):
        build_views("byol", 32, backend="opencv")
    opencv_views.opencv.cache_clear()
