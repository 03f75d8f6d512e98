"""Two views of a whole batch at once on the accelerator: the recipes of `images.views` without a worker's time.

Workers only decode: `CanvasDataset` puts each image, shrunk to fit if need be, into the corner of a square canvas of
bytes. `DeviceViews` applies the random parameters (`images.augmentations`) of both views to the batch: crop, resize and
flip as one matrix product per side, colours as elementwise passes, blur as a matrix product. Distributions are those of
the CPU path; only rounding (none between operations) and the blur (a true Gaussian, cut at 3 sigma) differ from
Pillow's.
"""

import math
from collections.abc import Collection, Sequence

import numpy as np
import PIL.Image
import torch
from numpy.typing import NDArray
from torch import Tensor

from momentum_transfer.core.errors import InputError
from momentum_transfer.images import augmentations
from momentum_transfer.images.augmentations import HUE, NUMBERS, Pair, ViewParameters, draw_parameters
from momentum_transfer.images.labelled_images import LabelledImages
from momentum_transfer.images.views import MEAN, STD, sample_seed

_LUMA = (0.299, 0.587, 0.114)  # ITU-R 601, Pillow's "L"


class CanvasDataset:
    """Images as bytes of one size, for `DeviceViews`; ``seed`` is of all views.

    `self.at(epoch, i) -> (canvas uint8 [3, S, S], size int64 [2], label, i, key)`: the image of height and width `size`
    lies in the upper left corner of the ``canvas`` of side S, to which larger ones are shrunk (twice the view's size or
    more keeps small crops sharp); the random numbers of the views of (seed, epoch, i) follow from `key`.
    """

    def __init__(self, dataset: LabelledImages, canvas: int, seed: int) -> None:
        self.dataset = dataset
        self.canvas = canvas
        self.seed = seed

    def __len__(self) -> int:
        return len(self.dataset)

    def items(self, places: Sequence[tuple[int, int]]) -> list[tuple[Tensor, Tensor, int, int, int]]:
        """The items of many (epoch, index)."""
        return [self.at(*place) for place in places]

    def at(self, epoch: int, index: int) -> tuple[Tensor, Tensor, int, int, int]:
        """The item of an epoch."""
        image, label = self.dataset[index]
        longer = max(image.size)
        if longer > self.canvas:
            width, height = (max(1, round(side * self.canvas / longer)) for side in image.size)
            image = image.resize((width, height), PIL.Image.Resampling.BILINEAR)
        pixels = np.zeros((3, self.canvas, self.canvas), dtype=np.uint8)
        pixels[:, : image.height, : image.width] = np.asarray(image).transpose(2, 0, 1)
        size = torch.tensor([image.height, image.width])
        return torch.from_numpy(pixels), size, label, index, sample_seed(self.seed, epoch, index)


def _resampling(start: Tensor, length: Tensor, flip: Tensor | None, canvas: int, size: int) -> Tensor:
    """Matrices [N, size, canvas] that resize pixels start..start+length by Pillow's antialiased bilinear filter."""
    scale = (length / size)[:, None, None]
    target = torch.arange(size, device=start.device, dtype=torch.float32)
    target = target.expand(len(start), size)
    if flip is not None:
        target = torch.where(flip[:, None], size - 1 - target, target)
    centre = (target + 0.5)[:, :, None] * scale
    source = torch.arange(canvas, device=start.device, dtype=torch.float32) - start[:, None]
    weight = (1 - ((source + 0.5)[:, None] - centre).abs() / scale.clamp(min=1)).clamp(min=0)
    weight = weight * ((source >= 0) & (source < length[:, None]))[:, None]
    return weight / weight.sum(2, keepdim=True)


def crop_batch(images: Tensor, crop: Tensor, flip: Tensor, size: int) -> Tensor:
    """Crop, resize and flip: [N, 3, S, S] and [N, 4] -> float [N, 3, size, size], the same range of values."""
    top, left, height, width = crop.float().unbind(1)
    rows = _resampling(top, height, None, images.shape[2], size)
    columns = _resampling(left, width, flip, images.shape[3], size)
    return rows[:, None] @ images.float() @ columns[:, None].transpose(2, 3)


def _luma(images: Tensor) -> Tensor:
    weights = torch.tensor(_LUMA, device=images.device).view(1, 3, 1, 1)
    return (images * weights).sum(1, keepdim=True)


def shift_hue(images: Tensor, shift: Tensor) -> Tensor:
    """Turn the hue by `shift` (1 is the whole circle), [n, 3, H, W] in 0..1 and [n]; HSV value and saturation stay."""
    value, place = images.max(1, keepdim=True)
    span = value - images.amin(1, keepdim=True)
    red, green, blue = images.split(1, 1)
    safe = torch.where(span > 0, span, 1)
    from_green_or_blue = torch.where(place == 1, 2 + (blue - red) / safe, 4 + (red - green) / safe)
    hue = torch.where(place == 0, (green - blue) / safe, from_green_or_blue)
    # Colour k of (5, 3, 1) is value − span · clamp(min(t, 4 − t), 0, 1) with t = (k + hue) mod 6.
    turned = hue + 6 * shift.view(-1, 1, 1, 1)
    t = (turned + torch.tensor([5.0, 3.0, 1.0], device=images.device).view(1, 3, 1, 1)) % 6
    return value - span * torch.minimum(t, 4 - t).clamp(0, 1)


def jitter_batch(images: Tensor, factors: NDArray[np.float64], order: NDArray[np.int64]) -> Tensor:
    """Brightness, contrast, saturation and hue of each image in its own order, [N, 3, H, W] in 0..1."""
    device = images.device
    for slot in range(4):
        operation = order[:, slot]
        chosen = factors[np.arange(len(order)), operation]
        weight = torch.from_numpy(np.where(operation == HUE, 1.0, chosen)).float().to(device).view(-1, 1, 1, 1)
        kind = torch.from_numpy(operation).to(device).view(-1, 1, 1, 1)
        luma = _luma(images)
        grey = (kind == augmentations.CONTRAST) * luma.mean((2, 3), keepdim=True)
        other = torch.where(kind == augmentations.SATURATION, luma, grey)
        images = torch.lerp(other.expand_as(images), images, weight).clamp(0, 1)
        turned = np.flatnonzero((operation == HUE) & (chosen != 0))
        if len(turned):
            index = torch.from_numpy(turned).to(device)
            images[index] = shift_hue(images[index], torch.from_numpy(chosen[turned]).float().to(device))
    return images


def _blurring(sigma: Tensor, size: int, radius: int) -> Tensor:
    """Matrices [n, size, size] that blur a side by a Gaussian, edge pixels being repeated beyond the edge."""
    place = torch.arange(size, device=sigma.device)
    distance = (place[:, None] - place).abs()
    taps = torch.exp(-0.5 * (torch.arange(radius + 1, device=sigma.device) / sigma[:, None]) ** 2)
    taps = taps / (taps[:, :1] + 2 * taps[:, 1:].sum(1, keepdim=True))
    padded = torch.nn.functional.pad(taps, (0, max(size - radius - 1, 0)))
    matrix = padded[:, distance]
    beyond = padded.flip(1).cumsum(1).flip(1) - padded  # sum of the taps farther than each distance
    matrix[:, :, 0] += beyond[:, :size]
    matrix[:, :, -1] += beyond[:, :size].flip(1)
    return matrix


def blur_batch(images: Tensor, sigma: Tensor, largest: float) -> Tensor:
    """Gaussian blur, [n, 3, H, H] and [n]; the kernel is cut at three times `largest`."""
    matrix = _blurring(sigma, images.shape[-1], math.ceil(3 * largest))[:, None]
    return matrix @ images @ matrix.transpose(2, 3)


def apply_parameters(images: Tensor, parameters: ViewParameters, size: int, threshold: int = 128) -> Tensor:
    """One view of a batch of canvases, uint8 [N, 3, S, S] -> float [N, 3, size, size] in 0..1."""
    device = images.device

    def there(array: NDArray) -> Tensor:
        return torch.from_numpy(array).to(device)

    view = (crop_batch(images, there(parameters.crop), there(parameters.flip), size) / 255).clamp(0, 1)
    if (parameters.factors != [1, 1, 1, 0]).any():
        view = jitter_batch(view, parameters.factors, parameters.order)
    if parameters.gray.any():
        view = torch.where(there(parameters.gray).view(-1, 1, 1, 1), _luma(view), view)
    blurred = np.flatnonzero(parameters.sigma)
    if len(blurred):
        index, sigma = there(blurred), there(parameters.sigma[blurred]).float()
        view[index] = blur_batch(view[index], sigma, float(parameters.sigma.max()))
    if parameters.solarize.any():
        chosen = there(parameters.solarize).view(-1, 1, 1, 1) & (view >= (threshold - 0.5) / 255)
        view = torch.where(chosen, 1 - view, view)
    return view


class DeviceViews:
    """Both views of a batch of `CanvasDataset`, on its device; ``mean`` and ``std`` normalise values in 0..1."""

    def __init__(self, augmentations: Pair, image_size: int, mean: Sequence[float], std: Sequence[float]) -> None:
        self.augmentations = augmentations
        self.image_size = image_size
        self.mean = torch.tensor(mean).view(1, 3, 1, 1)
        self.std = torch.tensor(std).view(1, 3, 1, 1)

    def parameters(self, sizes: Tensor, keys: Tensor) -> tuple[ViewParameters, ViewParameters]:
        """What is done to each image, for both views, from sizes [N, 2] and keys [N]."""
        numbers = augmentations.uniforms(keys.cpu().numpy(), 2 * NUMBERS)
        halves = numbers[:, :NUMBERS], numbers[:, NUMBERS:]
        first, second = (
            draw_parameters(augmentation, sizes.cpu().numpy(), half)
            for augmentation, half in zip(self.augmentations, halves, strict=True)
        )
        return first, second

    @torch.no_grad()
    def __call__(self, canvases: Tensor, sizes: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Two views, float [N, 3, image_size, image_size], of canvases uint8 [N, 3, S, S] on the device to use.

        ``sizes`` [N, 2] (height and width) and ``keys`` [N] are best on the CPU.
        """
        mean, std = self.mean.to(canvases.device), self.std.to(canvases.device)
        views = []
        for augmentation, parameters in zip(self.augmentations, self.parameters(sizes, keys), strict=True):
            view = apply_parameters(canvases, parameters, self.image_size, augmentation.solarize_threshold)
            views.append((view - mean) / std)
        return views[0], views[1]


def build_device_views(
    recipe: str,
    image_size: int,
    *,
    remove: Collection[str] = (),
    crop_scale: tuple[float, float] | None = None,
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
) -> DeviceViews:
    """The batched form of `images.views.build_views`; the recipe digits, which renders on the CPU, has none."""
    if recipe == "digits":
        raise InputError("expected a view recipe for images on the device, found 'digits'; render digits in workers")
    return DeviceViews(augmentations.recipe_augmentations(recipe, remove, crop_scale), image_size, mean, std)
