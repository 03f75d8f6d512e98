"""The batched path does to pixels what Pillow does with the same parameters; its images have the same statistics."""

import numpy as np
import PIL.Image
import PIL.ImageFilter
import pytest
import torch
from numpy.typing import NDArray
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from momentum_transfer.core.errors import InputError
from momentum_transfer.images.augmentations import NUMBERS, RECIPES, Augmentation, draw_parameters, uniforms
from momentum_transfer.images.datasets import ArrayImages
from momentum_transfer.images.device_views import (
    CanvasDataset,
    apply_parameters,
    blur_batch,
    build_device_views,
    crop_batch,
    jitter_batch,
    shift_hue,
)
from momentum_transfer.images.views import TwoViewDataset, build_views, sample_seed


def photographs(number: int, height: int = 40, width: int = 40) -> NDArray[np.uint8]:
    """Smooth random colour images: like photographs, and unlike noise, they have structure at every scale."""
    rng = np.random.default_rng(0)
    images = np.zeros((number, height, width, 3))
    for cells in (2, 4, 8, 16):
        grid = rng.normal(size=(number, 3, cells, cells)) * cells**-0.7
        large = torch.nn.functional.interpolate(torch.from_numpy(grid), size=(height, width), mode="bicubic")
        images += large.numpy().transpose(0, 2, 3, 1)
    return np.clip(110 + 70 * images, 0, 255).astype(np.uint8)


def batch(images: NDArray[np.uint8]) -> torch.Tensor:
    return torch.from_numpy(images.transpose(0, 3, 1, 2).copy())


def bytes_of(views: torch.Tensor) -> NDArray[np.float64]:
    return views.numpy().transpose(0, 2, 3, 1).astype(np.float64) * 255


def test_crop_resize_and_flip_equal_pillows_to_a_rounding():
    images = photographs(30, 40, 56)
    parameters = draw_parameters(Augmentation(), np.tile((40, 56), (30, 1)), uniforms(np.arange(30), NUMBERS))
    canvas = np.zeros((30, 64, 64, 3), np.uint8)
    canvas[:, :40, :56] = images
    found = crop_batch(batch(canvas), torch.from_numpy(parameters.crop), torch.from_numpy(parameters.flip), 24)
    for k in range(30):
        top, left, height, width = parameters.crop[k].tolist()
        expected = F.resized_crop(PIL.Image.fromarray(images[k]), top, left, height, width, [24, 24])
        expected = F.horizontal_flip(expected) if parameters.flip[k] else expected
        # Pillow rounds to bytes after each of its two passes.
        assert np.abs(found[k].numpy().transpose(1, 2, 0) - np.asarray(expected)).max() <= 1.01


@pytest.mark.parametrize("operation", range(4))
def test_each_colour_operation_equals_pillows(operation: int):
    images = photographs(8)
    theirs = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)[operation]
    factor = np.linspace(-0.1, 0.1, 8) if operation == 3 else np.linspace(0.6, 1.4, 8)
    factors = np.tile([1.0, 1.0, 1.0, 0.0], (8, 1))
    factors[:, operation] = factor
    found = bytes_of(jitter_batch(batch(images) / 255, factors, np.tile(np.arange(4), (8, 1))))
    for k in range(8):
        expected = np.asarray(theirs(PIL.Image.fromarray(images[k]), factor[k])).astype(float)
        difference = np.abs(found[k] - expected)
        # Pillow's HSV has 256 hues and 256 saturations; the other operations round once.
        assert difference.max() <= (12 if operation == 3 else 2)
        assert difference.mean() <= (1.5 if operation == 3 else 0.7)


def test_hue_turns_by_the_share_of_the_circle():
    red = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)
    for shift, colour in ((1 / 3, (0, 1, 0)), (-1 / 3, (0, 0, 1)), (1 / 6, (1, 1, 0)), (0.0, (1, 0, 0))):
        assert shift_hue(red, torch.tensor([shift])).flatten().tolist() == pytest.approx(colour, abs=1e-6)
    gray = torch.full((1, 3, 2, 2), 0.3)
    assert torch.equal(shift_hue(gray, torch.tensor([0.4])), gray)
    images = torch.rand(2, 3, 5, 5)
    torch.testing.assert_close(shift_hue(images, torch.tensor([1.0, -1.0])), images, atol=1e-5, rtol=0)


def test_order_of_the_colour_operations_matters_and_is_kept():
    images = batch(photographs(2)) / 255
    factors = np.tile([1.4, 0.6, 1.2, 0.05], (2, 1))
    one_way = jitter_batch(images, factors, np.array([[0, 1, 2, 3], [3, 2, 1, 0]]))
    steps = [F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue]
    for k, order in enumerate(([0, 1, 2, 3], [3, 2, 1, 0])):
        expected = images[k]
        for operation in order:
            expected = steps[operation](expected, float(factors[k, operation]))  # on float tensors: no rounding
        # torchvision's contrast takes .2989, .587, .114 for grey.
        torch.testing.assert_close(one_way[k], expected, atol=2e-3, rtol=0)
    assert not torch.allclose(one_way[0], jitter_batch(images, factors, np.array([[3, 2, 1, 0]] * 2))[0], atol=1e-2)


@pytest.mark.parametrize("sigma", [0.1, 0.7, 2.0])
def test_blur_equals_a_naive_convolution_with_repeated_edges(sigma: float):
    images = batch(photographs(2, 20, 20)).double() / 255
    radius = 6
    place = np.arange(-radius, radius + 1)
    kernel = np.exp(-0.5 * (place / sigma) ** 2)
    kernel /= kernel.sum()
    padded = np.pad(images.numpy(), ((0, 0), (0, 0), (radius, radius), (radius, radius)), mode="edge")
    rows = sum(weight * padded[:, :, k : k + 20] for k, weight in enumerate(kernel))
    expected = sum(weight * rows[..., k : k + 20] for k, weight in enumerate(kernel))
    found = blur_batch(images.float(), torch.full((2,), sigma), 2.0)
    np.testing.assert_allclose(found.numpy(), expected, atol=2e-6)


def test_blur_of_images_smaller_than_the_kernel_keeps_their_mean_range():
    images = torch.rand(3, 3, 4, 4)
    found = blur_batch(images, torch.tensor([0.1, 1.0, 2.0]), 2.0)
    torch.testing.assert_close(blur_batch(torch.ones(1, 3, 4, 4), torch.tensor([2.0]), 2.0), torch.ones(1, 3, 4, 4))
    assert found.min() >= images.min()
    assert found.max() <= images.max()


def test_blur_is_near_pillows():
    images = photographs(6)
    for sigma in (0.5, 1.0, 2.0):
        found = bytes_of(blur_batch(batch(images) / 255, torch.full((6,), sigma), 2.0))
        for k in range(6):
            expected = np.asarray(PIL.Image.fromarray(images[k]).filter(PIL.ImageFilter.GaussianBlur(sigma)))
            assert np.abs(found[k] - expected).mean() < 1.0


def test_gray_and_solarize_equal_pillows():
    images = photographs(4)
    augmentation = Augmentation(flip=0, jitter_p=0, grayscale=1, solarize=1)
    parameters = draw_parameters(augmentation, np.tile((40, 40), (4, 1)), uniforms(np.arange(4), NUMBERS))
    parameters.crop[:] = (0, 0, 40, 40)
    found = bytes_of(apply_parameters(batch(images), parameters, 40))
    for k in range(4):
        gray = F.rgb_to_grayscale(PIL.Image.fromarray(images[k]), num_output_channels=3)
        expected = np.asarray(F.solarize(gray, 128)).astype(float)
        assert np.abs(found[k] - expected).max() <= 0.51


@pytest.mark.parametrize("recipe", RECIPES)
def test_both_paths_give_images_of_the_same_statistics(recipe: str):
    """Per view: mean and spread of luminance, saturation, and gradients over many draws agree within their errors."""
    number = 400
    data = ArrayImages(photographs(number), np.zeros(number), ["a"])
    plain = {"mean": (0, 0, 0), "std": (1, 1, 1)}
    workers = TwoViewDataset(data, build_views(recipe, 32, **plain), seed=1)  # type: ignore[arg-type]
    slow = [torch.stack(views) for views in zip(*(workers[k][:2] for k in range(number)), strict=True)]
    canvases = CanvasDataset(data, 40, seed=2)
    items = [canvases.at(0, k) for k in range(number)]
    keys = torch.tensor([item[4] for item in items])
    views = build_device_views(recipe, 32, **plain)  # type: ignore[arg-type]
    fast = views(torch.stack([item[0] for item in items]), torch.stack([item[1] for item in items]), keys)
    for one, other in zip(slow, fast, strict=True):
        for name, statistic in STATISTICS.items():
            a, b = statistic(one), statistic(other)
            error = ((a.var() + b.var()) / number).sqrt()
            assert abs(a.mean() - b.mean()) < 3.5 * error, name
            assert a.std() / b.std() == pytest.approx(1, abs=0.2), name


STATISTICS = {  # images [N, 3, H, W] -> one number per image [N]
    "luminance": lambda x: x.mean((1, 2, 3)),
    "contrast": lambda x: x.mean(1).flatten(1).std(1),
    "saturation": lambda x: (x.amax(1) - x.amin(1)).mean((1, 2)),
    "gradient": lambda x: (x[..., 1:] - x[..., :-1]).abs().mean((1, 2, 3)),
}


def test_a_view_depends_on_its_key_and_image_and_not_on_its_batch():
    data = ArrayImages(photographs(6), np.zeros(6), ["a"])
    items = [CanvasDataset(data, 40, seed=3).at(1, k) for k in range(6)]
    canvases, sizes = torch.stack([item[0] for item in items]), torch.stack([item[1] for item in items])
    keys = torch.tensor([item[4] for item in items])
    views = build_device_views("byol", 16)
    whole = views(canvases, sizes, keys)
    part = views(canvases[2:4], sizes[2:4], keys[2:4])
    for one, other in zip(whole, part, strict=True):
        torch.testing.assert_close(one[2:4], other, atol=1e-4, rtol=0)
    other_keys = views(canvases, sizes, keys + 1)
    assert not torch.allclose(whole[0], other_keys[0], atol=0.1)


def test_canvas_holds_the_image_in_its_corner_and_shrinks_larger_ones():
    images = photographs(1, 30, 20)
    data = ArrayImages(images, np.array([0]), ["a"])
    canvas, size, label, index, key = CanvasDataset(data, 40, seed=5).at(2, 0)
    assert size.tolist() == [30, 20]
    np.testing.assert_array_equal(canvas[:, :30, :20].numpy(), images[0].transpose(2, 0, 1))
    assert canvas[:, 30:].max() == 0
    assert (label, index, key) == (0, 0, sample_seed(5, 2, 0))
    _, size, *_ = CanvasDataset(data, 15, seed=5).at(2, 0)
    assert size.tolist() == [15, 10]


def test_digits_have_no_device_path():
    with pytest.raises(InputError, match="render digits in workers"):
        build_device_views("digits", 32)


def test_normalisation_is_that_of_the_cpu_path():
    images = np.full((1, 20, 20, 3), 200, np.uint8)
    none = ("color_jitter", "grayscale", "blur", "solarize")
    found = build_device_views("rcf", 8, remove=none)(batch(images), torch.tensor([[20, 20]]), torch.tensor([1]))[0]
    expected = build_views("rcf", 8, remove=none)(PIL.Image.fromarray(images[0]))[0]
    torch.testing.assert_close(found[0], expected, atol=1e-5, rtol=0)
    assert isinstance(build_views("rcf", 8).first, v2.Compose)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("height", "width", "shrunk"), [(20, 32, (20, 32)), (32, 20, (32, 20)), (48, 64, (24, 32)),
                                                         (33, 10, (32, 10)), (400, 3, (32, 1))])  # fmt: skip
def test_a_canvas_holds_the_image_in_its_corner_shrunk_where_it_does_not_fit(height, width, shrunk):
    images = photographs(1, height, width)
    canvas, size, label, index, key = CanvasDataset(ArrayImages(images, [3], ["a"] * 4), 32, seed=5).at(2, 0)
    assert (tuple(size.tolist()), label, index, key) == (shrunk, 3, 0, sample_seed(5, 2, 0))
    assert canvas.shape == (3, 32, 32)
    whole = PIL.Image.fromarray(images[0])
    wanted = whole if shrunk == (height, width) else whole.resize(shrunk[::-1], PIL.Image.Resampling.BILINEAR)
    assert np.array_equal(canvas[:, : shrunk[0], : shrunk[1]].permute(1, 2, 0), np.asarray(wanted))
    assert not canvas[:, shrunk[0] :].any()
    assert not canvas[:, :, shrunk[1] :].any()
