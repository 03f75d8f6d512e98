"""Milliseconds a photo's views take beside albumentations and torchvision, and OpenCV's pixels beside Pillow's.

python benchmarks/views.py [--images N] [--passes N] [--size 224] [--scaled-decoding]

JPEG files of quality 90, scikit-learn's two photos cut to 484 x 404 at random places; from the file to normalised
tensors, one thread, CPU milliseconds a photo: the best of some passes in which all ways take turns. albumentations
(``pip install albumentationsx``) resizes with ``area``, which antialiases, or ``linear``, which does not; its other
operations are those nearest to the recipe's. torchvision works on tensors of bytes from its own decoder. FixMatch's
strong view has two of 14 random operations: torchvision's RandAugment, two of the like among albumentations'.

``--scaled-decoding`` asks instead what decoding JPEGs at 1/2 or 1/4 would save, where the smaller crop of BYOL's two
views stays at least as large as the view, and how far the views then are from Pillow's.
"""

import argparse
import io
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
import PIL.Image
import PIL.ImageFilter
import torch
import torchvision
from sklearn.datasets import load_sample_images
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from momentum_transfer.core.command import run_tool
from momentum_transfer.core.log import say, table
from momentum_transfer.images import opencv_views
from momentum_transfer.images.augmentations import RECIPES, Augmentation
from momentum_transfer.images.datasets import FileImages
from momentum_transfer.images.views import MEAN, STD, build_views
from momentum_transfer.lowshot.augment import WeakAndStrong, weak_view

View = Callable[[Path], object]


def photos(folder: Path, number: int) -> FileImages:
    """JPEG files of 484 x 404 px."""
    rng = np.random.default_rng(0)
    paths = []
    for k in range(number):
        pixels = load_sample_images().images[k % 2]
        top, left = rng.integers(0, pixels.shape[0] - 404 + 1), rng.integers(0, pixels.shape[1] - 484 + 1)
        paths.append(folder / f"{k}.jpg")
        PIL.Image.fromarray(pixels[top : top + 404, left : left + 484]).save(paths[-1], quality=90)
    return FileImages(paths, [0] * number, ["photo"])


def by_torchvision(pair: tuple[Augmentation, ...], size: int, strong: bool) -> View:
    """v2 on tensors of bytes; ``strong``: the last view with RandAugment."""
    views = []
    for number, aug in enumerate(pair, 1):
        steps: list[Any] = [v2.RandomResizedCrop(size, scale=aug.crop_scale), v2.RandomHorizontalFlip(aug.flip)]
        steps += [v2.RandomApply([v2.ColorJitter(*aug.jitter)], aug.jitter_p), v2.RandomGrayscale(aug.grayscale)]
        if aug.blur:
            kernel = size // 20 * 2 + 1  # SimCLR's tenth of the side
            steps.append(v2.RandomApply([v2.GaussianBlur(kernel, aug.blur_sigma)], aug.blur))
        if aug.solarize:
            steps.append(v2.RandomSolarize(aug.solarize_threshold, aug.solarize))
        if strong and number == len(pair):
            steps.append(v2.RandAugment(2))
        views.append(v2.Compose([*steps, v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]))

    def view(path: Path) -> object:
        image = torchvision.io.decode_jpeg(torchvision.io.read_file(str(path)))
        return [each(image) for each in views]

    return view


def by_albumentations(pair: tuple[Augmentation, ...], size: int, area: bool, strong: bool) -> View:
    """OpenCV's decoder and albumentations; ``strong``: the last view with two random operations."""
    import albumentations as A
    import cv2

    cv2.setNumThreads(1)
    views = []
    for number, aug in enumerate(pair, 1):
        crop = A.RandomResizedCrop((size, size), aug.crop_scale, area_for_downscale="image" if area else None)
        *near, hue = aug.jitter
        ranges = {f"{name}_range": (1 - x, 1 + x) for name, x in zip(_JITTER, near, strict=True)}
        steps = [crop, A.HorizontalFlip(p=aug.flip), A.ColorJitter(**ranges, hue_range=(-hue, hue), p=aug.jitter_p)]
        steps += [A.ToGray(p=aug.grayscale), A.GaussianBlur(sigma_range=aug.blur_sigma, p=aug.blur)]
        steps.append(A.Solarize(threshold_range=(0.5, 0.5), p=aug.solarize))
        if strong and number == len(pair):
            one = [A.AutoContrast(p=1), A.Equalize(p=1), A.InvertImg(p=1), A.Rotate((-30, 30), p=1), A.Posterize(p=1)]
            one += [A.Solarize(p=1), A.Sharpen(p=1), A.NoOp(p=1), A.Solarize(p=1)]
            one += [A.ColorJitter(**({**_STILL, f"{name}_range": (0.1, 1.9)}), p=1) for name in _JITTER]
            one += [A.Affine(shear={axis: (-17, 17)}, p=1) for axis in "xy"]
            one += [A.Affine(translate_percent={axis: (-0.3, 0.3)}, p=1) for axis in "xy"]
            steps.append(A.SomeOf(one, n=2, replace=True, p=1))
        views.append(A.Compose([*steps, A.Normalize(MEAN, STD), A.ToTensorV2()]))

    def view(path: Path) -> object:
        image = cv2.imdecode(np.frombuffer(path.read_bytes(), np.uint8), cv2.IMREAD_COLOR_RGB)
        return [each(image=image)["image"] for each in views]

    return view


_JITTER = ("brightness", "contrast", "saturation")
_STILL = {**{f"{name}_range": (1, 1) for name in _JITTER}, "hue_range": (0, 0)}


def ways(recipe: str, size: int, data: FileImages) -> dict[str, View]:
    """Name of each way -> function of a path."""
    if recipe in RECIPES:
        ours: dict[str, Callable[[Any], object]] = {
            backend: build_views(recipe, size, backend=backend) for backend in ("pillow", "opencv")
        }
        pair: tuple[Augmentation, ...] = RECIPES[recipe]
    else:
        make: Any = weak_view if recipe == "fine-tuning" else WeakAndStrong
        ours = {backend: make("imagefolder", size, backend=backend) for backend in ("pillow", "opencv")}
        pair = (Augmentation(jitter_p=0, grayscale=0),) * (1 if recipe == "fine-tuning" else 2)
    position = {str(Path(path.decode())): index for index, path in enumerate(data.paths)}
    sources = {name: getattr(view, "source", lambda images: images)(data) for name, view in ours.items()}
    found: dict[str, View] = {
        f"ours, {name}": lambda path, view=view, source=sources[name]: view(source[position[str(path)]][0])
        for name, view in ours.items()
    }
    strong = recipe == "FixMatch"
    found["torchvision v2"] = by_torchvision(pair, size, strong)
    with suppress(ImportError):
        found["albumentations, area"] = by_albumentations(pair, size, area=True, strong=strong)
        found["albumentations, linear"] = by_albumentations(pair, size, area=False, strong=strong)
    return found


def milliseconds(found: dict[str, View], paths: list[Path], passes: int) -> dict[str, float]:
    """CPU milliseconds a photo; all ways take turns."""
    best = dict.fromkeys(found, float("inf"))
    for _ in range(passes + 1):
        for name, view in found.items():
            begun = time.process_time()
            for path in paths:
                view(path)
            best[name] = min(best[name], (time.process_time() - begun) / len(paths) * 1e3)
    return best


def _cases() -> Iterator[tuple[str, Callable[[np.ndarray], np.ndarray], Callable[[Any], Any]]]:
    """Name, ours and Pillow's form of every operation at both ends of its range."""
    here, blur = opencv_views, PIL.ImageFilter.GaussianBlur
    yield "luminance", here.grey, lambda image: image.convert("L")
    yield "solarize", lambda x: here.solarized(x, 128), lambda image: F.solarize(image, 128)
    for f in (0.6, 1.4):
        yield f"brightness {f}", lambda x, f=f: here.blended(x, 0, f), lambda i, f=f: F.adjust_brightness(i, f)
        yield f"contrast {f}", lambda x, f=f: here.contrasted(x, f), lambda i, f=f: F.adjust_contrast(i, f)
        yield f"saturation {f}", lambda x, f=f: here.saturated(x, f), lambda i, f=f: F.adjust_saturation(i, f)
    for f in (-0.1, 0.03, 0.1):
        yield f"hue {f}", lambda x, f=f: here.turned_hue(x, f), lambda i, f=f: F.adjust_hue(i, f)
    for f in (0.3, 0.5, 1.0, 1.5, 2.0):
        yield f"blur {f}", lambda x, f=f: here.blurred(x, f), lambda i, f=f: i.filter(blur(f))


def tolerance_rows(images: list[PIL.Image.Image], size: int) -> list[list[str]]:
    """Mean, largest and signed difference of every operation and recipe from Pillow's, in levels of 255."""
    small = [image.resize((size, size), PIL.Image.Resampling.BILINEAR) for image in images]
    pairs = {
        name: [(ours(np.asarray(image)), np.asarray(pillows(image))) for image in small]
        for name, ours, pillows in _cases()
    }
    for recipe in RECIPES:
        views = [build_views(recipe, size, mean=(0,) * 3, std=(1 / 255,) * 3, backend=b) for b in ("opencv", "pillow")]
        pairs[f"{recipe}, a whole view"] = made = []
        for seed, image in enumerate(images * 4):
            both = []
            for each in views:
                torch.manual_seed(seed)
                both.append(each(image))
            made += [(one.numpy(), other.numpy()) for one, other in zip(*both, strict=True)]
    rows = []
    for name, compared in pairs.items():
        differences = [np.subtract(one, other, dtype=float) for one, other in compared]
        means = [np.abs(each).mean() for each in differences]
        bias = np.mean([each.mean() for each in differences])
        rows.append([name, f"{np.mean(means):.2f}", f"{max(means):.2f}", f"{bias:+.2f}"])
    return rows


def scaled_rows(view: int, passes: int, trials: int = 200) -> list[list[str]]:
    """What decoding at a scale saves of decoding, and how far its views are from Pillow's, by size and quality."""
    import cv2

    kinds = {1: cv2.IMREAD_COLOR_RGB, 2: cv2.IMREAD_REDUCED_COLOR_2, 4: cv2.IMREAD_REDUCED_COLOR_4}
    rows = []
    for width, height, quality in [(w, h, q) for w, h in _SIZES for q in (90, 75)]:
        stream = io.BytesIO()
        photo = PIL.Image.fromarray(load_sample_images().images[0]).resize(
            (width, height), PIL.Image.Resampling.BICUBIC
        )
        photo.save(stream, "JPEG", quality=quality)
        code = np.frombuffer(stream.getvalue(), np.uint8)
        whole = F.pil_to_tensor(PIL.Image.open(stream).convert("RGB"))
        spent = dict.fromkeys(kinds, float("inf"))
        for _ in range(passes + 1):
            for scale, kind in kinds.items():
                begun = time.process_time()
                for _ in range(5):
                    cv2.imdecode(code, kind)
                spent[scale] = min(spent[scale], (time.process_time() - begun) / 5)
        torch.manual_seed(0)
        found: dict[int, list[float]] = {scale: [] for scale in kinds}
        for _ in range(trials):
            crops = [v2.RandomResizedCrop(view).make_params([whole]) for _ in range(2)]
            least = min(min(crop["height"], crop["width"]) for crop in crops)
            scale = max(one for one in kinds if one == 1 or least >= one * view)
            decoded = cv2.imdecode(code, kinds[scale])
            small = torch.from_numpy(decoded if scale == 1 else decoded[..., ::-1].copy()).movedim(2, 0)  # BGR to RGB
            for place in ([crop[side] for side in ("top", "left", "height", "width")] for crop in crops):
                # Of the same pixels: sides that the scale divides.
                views = [F.resized_crop(image, *[side // scale * k for side in place], [view, view], antialias=True)
                         for image, k in ((whole, scale), (small, 1))]  # fmt: skip
                found[scale].append((views[0].float() - views[1].float()).abs().mean().item())
        saved = 1 - sum(spent[scale] * len(each) for scale, each in found.items()) / (spent[1] * 2 * trials)
        apart = [f"{np.mean(each):.1f}, {max(each):.1f}" if each else "–" for each in (found[2], found[4])]
        times = [f"{each * 1e3:.1f}" for each in spent.values()]
        rows.append([f"{width} x {height}, {quality}", *times, f"{saved:.0%}", *apart])
    return rows


_SIZES = ((484, 404), (800, 600), (1200, 900), (2000, 1500))


def main(args: argparse.Namespace) -> None:
    """Print the tables."""
    torch.set_num_threads(1)
    say(f"PyTorch {torch.__version__}, torchvision {torchvision.__version__}, Pillow {PIL.__version__}, "
        f"OpenCV {opencv_views.opencv().__version__}, one thread")  # fmt: skip
    if args.scaled_decoding:
        columns = ["photo, quality", "ms", "at 1/2", "at 1/4", "saved", "mean, largest difference at 1/2", "at 1/4"]
        table("JPEGs decoded at a scale, one thread", columns, scaled_rows(args.size, args.passes))
        return
    with tempfile.TemporaryDirectory() as folder:
        data = photos(Path(folder), args.images)
        paths = [Path(path.decode()) for path in data.paths]
        rows = []
        for recipe in [*RECIPES, "fine-tuning", "FixMatch"]:
            times = milliseconds(ways(recipe, args.size, data), paths, args.passes)
            rows += [[recipe, name, f"{time:.2f}"] for name, time in times.items()]
        table("CPU ms a photo, file to tensors", ["views", "way", "ms"], rows)
        images = [data[index][0] for index in range(min(len(data), 12))]
    columns = ["operation", "mean", "largest mean of an image", "bias"]
    table("OpenCV's minus Pillow's, levels of 255", columns, tolerance_rows(images, args.size))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=32, help="photos in a pass")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--scaled-decoding", action="store_true", help="only what decoding at 1/2 or 1/4 would save")
    sys.exit(run_tool(parser, main))
