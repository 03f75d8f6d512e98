"""Images per second of the input pipeline alone: each view recipe in worker processes, its parts, and its batched form.

python benchmarks/data.py [--images N] [--workers 0 1 2] [--size 224]
python benchmarks/data.py --detector     (instead: a detector's reader beside Detectron2's, CPU ms an image, one thread)

Images are generated, not downloaded: 500x375 JPEG of quality 90, with detail at every scale. An image counts
once, however many views are made of it. Every figure is the best of three passes after a warm-up, in one run.
"""

import argparse
import functools
import importlib.util
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
import PIL.Image
import torch

from momentum_transfer.core.command import run_tool
from momentum_transfer.core.devices import choose_device
from momentum_transfer.core.log import say, table
from momentum_transfer.images.augmentations import RECIPES
from momentum_transfer.images.datasets import FileImages, LabelledImages, build_dataset
from momentum_transfer.images.device_views import CanvasDataset, build_device_views
from momentum_transfer.images.reading import read_pixels, read_rgb
from momentum_transfer.images.views import TwoViewDataset, build_views
from momentum_transfer.transfer.torchvision_engine.data import AnnotatedImage, Annotation, Mapper

PASSES = 3
BATCH = 32


def write_images(folder: Path, number: int) -> FileImages:
    """Write JPEG files with structure at every scale, as natural images have."""
    rng = np.random.default_rng(0)
    paths = []
    for k in range(number):
        pixels = np.zeros((375, 500, 3), dtype=np.float32)
        for cells in (3, 6, 12, 25, 50, 100, 200):
            grid = PIL.Image.fromarray(rng.integers(0, 256, (cells, cells, 3), dtype=np.uint8))
            large = grid.resize((500, 375), PIL.Image.Resampling.BICUBIC)
            pixels += (np.asarray(large, dtype=np.float32) - 128) * 1.5 / cells**0.35
        paths.append(folder / f"{k}.jpg")
        PIL.Image.fromarray(np.clip(pixels + 128, 0, 255).astype(np.uint8)).save(paths[-1], quality=90)
    return FileImages(paths, [0] * number, ["generated"])


class _Epoch(torch.utils.data.Dataset):
    """A map-style dataset over whatever gives the items at a batch's indices."""

    def __init__(self, items: Callable[[list[int]], list[Any]], number: int) -> None:
        self.items, self.number = items, number

    def __len__(self) -> int:
        return self.number

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return self.items(indices)


def one_by_one(item: Callable[[int], Any]) -> Callable[[list[int]], list[Any]]:
    """A batch of what gives item i."""
    return lambda indices: [item(index) for index in indices]


def images_per_second(items: Callable[[list[int]], list[Any]], number: int, workers: int) -> float:
    """Best rate over passes through items 0..number-1 in batches, workers started and warm."""
    loader = torch.utils.data.DataLoader(
        _Epoch(items, number), batch_size=BATCH, num_workers=workers, persistent_workers=workers > 0
    )
    best = float("inf")
    for attempt in range(PASSES + 1):
        begun = time.perf_counter()
        for _ in loader:
            pass
        if attempt:
            best = min(best, time.perf_counter() - begun)
    return number / best


def _first_epoch(views: TwoViewDataset, indices: list[int]) -> list[Any]:
    return views.items([(0, index) for index in indices])


def worker_rows(data: LabelledImages, recipes: list[str], size: int, counts: list[int]) -> list[list[str]]:
    """Rows (recipe, images/s for each count of workers) of the CPU path: batches as training reads them."""
    rows = []
    for recipe, backend in itertools.product(recipes, ("pillow", "opencv")):
        if (recipe, backend) == ("digits", "opencv"):
            continue
        views = TwoViewDataset(data, build_views(recipe, size, backend=backend), seed=0)
        ways: list[tuple[str, Callable[[list[int]], list[Any]]]] = [("", functools.partial(_first_epoch, views))]
        if recipe == "digits":  # rendered together in training
            ways.append((", one by one", one_by_one(views.__getitem__)))
        for way, items in ways:
            rates = [images_per_second(items, len(data), count) for count in counts]
            rows.append([f"{recipe} {size} px{way}, {backend}", *(f"{rate:.0f}" for rate in rates)])
    return rows


def part_rows(data: FileImages, size: int, counts: list[int]) -> list[list[str]]:
    """Rows for reading alone, and for what workers do when the device makes the views."""

    def read(index: int) -> int:
        return data[index][1]

    canvases = CanvasDataset(data, round(size * 16 / 7), seed=0)
    parts: list[tuple[str, Callable[[int], Any]]] = [
        ("decoding alone", read),
        (f"decoding to canvases of {canvases.canvas} px", lambda index: canvases.at(0, index)),
    ]
    return [
        [name, *(f"{images_per_second(one_by_one(item), len(data), count):.0f}" for count in counts)]
        for name, item in parts
    ]


def device_rows(data: FileImages, size: int) -> list[list[str]]:
    """Rows (recipe, images/s, ms per batch) of the batched path on the device there is, canvases being at hand."""
    device = choose_device()
    canvases = CanvasDataset(data, round(size * 16 / 7), seed=0)
    items = [canvases.at(0, index) for index in range(min(BATCH, len(data)))]
    batch = torch.stack([item[0] for item in items]).to(device)
    sizes, keys = torch.stack([item[1] for item in items]), torch.tensor([item[4] for item in items])
    rows = []
    for recipe in RECIPES:
        views = build_device_views(recipe, size)
        best = float("inf")
        for _ in range(PASSES + 1):
            begun = time.perf_counter()
            views(batch, sizes, keys)
            if device.type == "cuda":
                torch.cuda.synchronize()
            best = min(best, time.perf_counter() - begun)
        rows.append([f"{recipe} {size} px on {device.type}", f"{len(items) / best:.0f}", f"{best * 1e3:.1f}"])
    return rows


def with_polygons(files: FileImages, objects: int = 7) -> list[AnnotatedImage]:
    """The images with as many objects as COCO's have, each a polygon of 24 corners."""
    rng, images = np.random.default_rng(1), []
    angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    for number, path in enumerate(map(Path, map(os.fsdecode, files.paths))):
        found = []
        for _ in range(objects):
            x, y, radius = rng.uniform(90, 410), rng.uniform(90, 285), rng.uniform(10, 90)
            corners = np.stack([x + radius * np.cos(angles), y + radius * np.sin(angles)], 1).round(1)
            low, high = corners.min(0), corners.max(0)
            found.append(Annotation((*low, *high), 0, [corners.reshape(-1).tolist()], False))
        images.append(AnnotatedImage(path, number, 375, 500, tuple(found)))
    return images


def detectron2_mapper() -> Callable[[AnnotatedImage], Any]:
    """Detectron2's training mapper for the same form of image."""
    from detectron2.data import DatasetMapper
    from detectron2.data import transforms as T
    from detectron2.structures import BoxMode

    mapper = DatasetMapper(
        is_train=True,
        augmentations=[T.ResizeShortestEdge([800], 1333, "choice"), T.RandomFlip()],
        image_format="BGR",
        use_instance_mask=True,
    )

    def read(entry: AnnotatedImage) -> Any:
        annotations = [
            {"bbox": list(each.box), "bbox_mode": BoxMode.XYXY_ABS, "category_id": each.category,
             "segmentation": each.segmentation, "iscrowd": 0}
            for each in entry.annotations
        ]  # fmt: skip
        return mapper({"file_name": str(entry.file), "height": entry.height, "width": entry.width,
                       "image_id": entry.image_id, "annotations": annotations})  # fmt: skip

    return read


def detector_rows(images: list[AnnotatedImage]) -> list[list[str]]:
    """Rows (what, CPU ms an image: median of five passes that take turns, ratio to our reader)."""
    mapper, random = Mapper([800], 1333, bgr=True, mask_format="polygon", flip=True), np.random.default_rng(0)
    ways: dict[str, Callable[[AnnotatedImage], Any]] = {"our reader": lambda entry: mapper.train(entry, random)}
    if importlib.util.find_spec("detectron2"):
        ways["Detectron2's"] = detectron2_mapper()
    ways["of ours, decoding by simplejpeg"] = lambda entry: read_pixels(entry.file)
    ways["decoding by Pillow"] = lambda entry: np.asarray(read_rgb(entry.file))
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for attempt in range(6):
        for name, read in ways.items():
            begun = time.process_time()
            for entry in images:
                read(entry)
            if attempt:
                seconds[name].append((time.process_time() - begun) / len(images))
    middle = {name: statistics.median(found) for name, found in seconds.items()}
    return [[name, f"{1e3 * found:.2f}", f"{found / middle['our reader']:.2f}"] for name, found in middle.items()]


def main(args: argparse.Namespace) -> None:
    """Print the tables."""
    torch.set_num_threads(1)  # as in a worker
    if args.detector:
        with tempfile.TemporaryDirectory() as folder:
            rows = detector_rows(with_polygons(write_images(Path(folder), args.images)))
        table("Images of 500x375 px to 1066x800, seven polygons each", ["", "CPU ms", "to ours"], rows)
        return
    say(f"PyTorch {torch.__version__}, Pillow {PIL.__version__}, one thread a process, batches of {BATCH}")
    columns = ["two views", *(f"{count} workers" if count else "in process" for count in args.workers)]
    digits = build_dataset("digits", split="train")
    with tempfile.TemporaryDirectory() as folder:
        data = write_images(Path(folder), args.images)
        rows = worker_rows(digits, ["digits"], 32, args.workers)
        rows += worker_rows(data, list(RECIPES), args.size, args.workers)
        rows += part_rows(data, args.size, args.workers)
        table("Images per second on the CPU", columns, rows)
        table("Both views of a batch at once", ["two views", "images/s", "ms a batch"], device_rows(data, args.size))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=128, help="images in a pass")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--size", type=int, default=224, help="side of the views of these images")
    parser.add_argument("--detector", action="store_true", help="a detector's reader instead of views")
    sys.exit(run_tool(parser, main))
