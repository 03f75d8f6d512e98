"""From data settings to batches of two views on the device, made by worker processes or on the device itself."""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import PIL.Image
import torch
import torch.distributed as dist
from fvcore.common.config import CfgNode
from torch import Tensor
from torch.utils.data import Dataset

from momentum_transfer.backbones.build import named_architecture, own_input
from momentum_transfer.core import distributed
from momentum_transfer.core.checkpoints import CheckpointFolder, load
from momentum_transfer.core.devices import MEASURED, candidates, measured_batches
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.log import say
from momentum_transfer.core.machine import available_cores
from momentum_transfer.core.samplers import Batches, Place, training_loader, whole_steps
from momentum_transfer.core.settings import learned_settings, with_values
from momentum_transfer.images.datasets import build_dataset, every_image, kept_in_memory, unlabelled_folder
from momentum_transfer.images.device_views import CanvasDataset, build_device_views
from momentum_transfer.images.labelled_images import LabelledImages
from momentum_transfer.images.subsets import select
from momentum_transfer.images.views import MEAN, STD, TwoViewDataset, build_views, eval_transform
from momentum_transfer.pretrain.plan import PretrainingPlan

Batch = tuple[Tensor, Tensor, Tensor]  # view1 [N, 3, H, W], view2 [N, 3, H, W], labels [N]
_SAMPLE = 16  # images that are timed


def build_images(cfg: CfgNode, split: str, *, held_out: bool = False) -> LabelledImages:
    """The images of a split under the settings' subsets; of ``held_out`` ones only the classes are restricted."""
    data = cfg.DATA
    if data.NAME == "images":
        _refuse_class_settings(data)
        every = every_image(data.ROOT, data.MAX_UNREADABLE)
        say(f"{len(every)} images below {data.ROOT}, without labels")
        return select(every, sample_fraction=data.SAMPLE_FRACTION, seed=cfg.SEED)
    if data.NAME == "imagefolder" and cfg.METHOD.NAME != "supervised" and not held_out:
        unlabelled = unlabelled_folder(data.ROOT, split, data.MAX_UNREADABLE) if data.ROOT else None
        if unlabelled is not None:
            _refuse_class_settings(data)
            say(f"{len(unlabelled)} images of {data.ROOT}, without labels")
            return select(unlabelled, sample_fraction=data.SAMPLE_FRACTION, seed=cfg.SEED)
    found = build_dataset(
        data.NAME, data.ROOT or None, split, file_list=data.FILE_LIST or None, image_size=data.IMAGE_SIZE,
        variant=data.VARIANT, class_fraction=data.CLASS_FRACTION, taxonomy=data.TAXONOMY or None, seed=cfg.SEED,
        sample_fraction=1.0 if held_out else data.SAMPLE_FRACTION, long_tail=1.0 if held_out else data.LONG_TAIL,
        max_unreadable=data.MAX_UNREADABLE,
    )  # fmt: skip
    if list(found.classes) == ["unlabelled"]:
        _refuse_class_settings(data)
    if cfg.METHOD.NAME == "supervised" and not held_out and (len(found.classes) < 2 or "unlabeled" in found.classes):
        raise InputError(
            f"expected labels of two classes or more for METHOD.NAME supervised, found images of {data.NAME} {split} "
            "without; name a labelled DATA.SPLIT, or choose another method"
        )
    return found


def _refuse_class_settings(data: CfgNode) -> None:
    """InputError for settings of classes with images that have none."""
    if data.LONG_TAIL != 1.0 or data.CLASS_FRACTION != 1.0 or data.TAXONOMY:
        raise InputError(
            f"expected folders of classes in {data.ROOT} with LONG_TAIL, CLASS_FRACTION or TAXONOMY, found "
            "images without labels; leave these settings out"
        )


class EvaluationImages(Dataset):
    """Images under the fixed evaluation transform: ``self[i] -> (tensor [3, H, W], label)``."""

    def __init__(self, images: LabelledImages, transform: Callable[[PIL.Image.Image], Tensor]) -> None:
        self.images, self.transform = images, transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, label = self.images[index]
        return self.transform(image), label


def evaluation_images(cfg: CfgNode, images: LabelledImages) -> EvaluationImages:
    return EvaluationImages(images, eval_transform(cfg.DATA.NAME, cfg.DATA.IMAGE_SIZE, *statistics(cfg)))


def statistics(cfg: CfgNode) -> tuple[Sequence[float], Sequence[float]]:
    """Mean and standard deviation of the views: the network's own, ImageNet's for a ResNet.

    InputError if the network has its own size, and DATA.IMAGE_SIZE is another.
    """
    architecture = named_architecture(cfg.MODEL.ARCH, cfg.MODEL.WIDTH, cfg.MODEL.STEM)
    own = own_input(architecture)
    if own is None:
        return MEAN, STD
    if own.size != cfg.DATA.IMAGE_SIZE:
        raise InputError(
            f"expected DATA.IMAGE_SIZE {own.size}, the size of {architecture}, found {cfg.DATA.IMAGE_SIZE}; set it, or "
            "say the size in MODEL.ARCH: timm:NAME?img_size=N"
        )
    return own.mean, own.std


class EpochImages(Dataset):
    """Images by a key that holds the epoch too, so that workers may read across the end of an epoch."""

    def __init__(self, dataset: TwoViewDataset | CanvasDataset) -> None:
        self.dataset = dataset

    def __getitems__(self, places: list[Place]) -> list[tuple[Any, ...]]:
        """A whole batch, as torch's loader asks for it."""
        return [*self.dataset.items(places)]


class TrainingBatches:
    """Endless batches of two views on the device, from any step on.

    DATA.VIEWS_ON "workers" augments on the CPU, "device" a whole batch at once where it is used. InputError for an
    unknown recipe, or one that cannot be made there.
    """

    def __init__(self, cfg: CfgNode, images: LabelledImages, plan: PretrainingPlan, device: torch.device) -> None:
        data = cfg.DATA
        self.cfg, self.plan, self.device, self.size = cfg, plan, device, len(images)
        self.dataset: TwoViewDataset | CanvasDataset
        if data.VIEWS_ON == "device":
            self.device_views = build_device_views(data.VIEWS, data.IMAGE_SIZE, **_recipe(cfg))
            self.dataset = _canvases(cfg, images)
        else:
            self.dataset = worker_views(cfg, images)

    def from_step(self, first: int) -> Iterator[Batch]:
        """This process's micro-batches from step ``first`` on."""
        data, plan = self.cfg.DATA, self.plan
        # Here and not earlier: a run that is over, or a random network, reads no training batch.
        uses, processes = (plan.steps - first) / plan.steps_per_epoch, distributed.local_world_size()
        self.dataset.dataset = kept_in_memory(
            self.dataset.dataset, data.MEMORY_FRACTION, uses=uses, processes=processes
        )
        start, end = first * plan.accumulate, plan.steps * plan.accumulate
        if data.WORKERS != MEASURED:
            return self._from_batch(start, data.WORKERS)
        return measured_batches(self._from_batch, start, end, candidates(processes))

    def _from_batch(self, first: int, workers: int) -> Generator[Batch, None, None]:
        """Micro-batches ``first`` on, read by ``workers`` processes."""
        rank, processes = distributed.rank(), distributed.world_size()
        micro, seed = self.plan.micro_batch, self.cfg.SEED
        order = whole_steps(self.size, micro * processes * self.plan.accumulate, seed)
        batches = Batches(order, micro, rank=rank, world_size=processes, start=first)
        pinned = self.device.type == "cuda"
        layout = torch.channels_last if self.cfg.RUN.CHANNELS_LAST else torch.contiguous_format
        images = EpochImages(self.dataset)
        for batch in training_loader(images, batches, workers=workers, seed=seed, pin_memory=pinned):
            if isinstance(self.dataset, TwoViewDataset):
                view1, view2, labels, _ = batch
            else:
                canvases, sizes, labels, _, keys = batch
                view1, view2 = self.device_views(canvases.to(self.device, non_blocking=True), sizes, keys)
            yield (
                view1.to(self.device, non_blocking=True, memory_format=layout),
                view2.to(self.device, non_blocking=True, memory_format=layout),
                labels.to(self.device, non_blocking=True),
            )


def _recipe(cfg: CfgNode) -> dict[str, Any]:
    mean, std = statistics(cfg)
    return {"remove": cfg.DATA.REMOVE, "crop_scale": tuple(cfg.DATA.CROP_SCALE) or None, "mean": mean, "std": std}


def worker_views(cfg: CfgNode, images: LabelledImages) -> TwoViewDataset:
    """The views of the images that worker processes make."""
    data = cfg.DATA
    views = build_views(data.VIEWS, data.IMAGE_SIZE, variant=data.VARIANT, backend=data.BACKEND, **_recipe(cfg))
    return TwoViewDataset(images, views, cfg.SEED)


def _canvases(cfg: CfgNode, images: LabelledImages) -> CanvasDataset:
    return CanvasDataset(images, cfg.DATA.CANVAS or 2 * cfg.DATA.IMAGE_SIZE, cfg.SEED)


def settle_views(
    cfg: CfgNode, images: LabelledImages, micro_batch: int, device: torch.device, checkpoints: CheckpointFolder
) -> CfgNode:
    """A copy of the settings with "workers" or "device" for DATA.VIEWS_ON "auto": the faster one, by a measurement.

    Both follow one recipe, but not to the bit, so the choice belongs to the run: ``checkpoints`` hold it, and a resumed
    run keeps to it.
    """
    if cfg.DATA.VIEWS_ON != "auto":
        return cfg
    key = "DATA.VIEWS_ON"
    return measured(cfg, [key], lambda: {key: _faster(cfg, images, micro_batch, device)}, device, checkpoints)


def measured(
    cfg: CfgNode, keys: Sequence[str], measure: Callable[[], dict[str, Any]], device: torch.device,
    checkpoints: CheckpointFolder,
) -> CfgNode:  # fmt: skip
    """A copy of the settings with the values that rank 0 measures; a resumed run keeps those of ``keys`` it has."""
    if (last := checkpoints.last()) is not None:
        before = learned_settings(load(last)["config"])
        return with_values(cfg, {key: before[key] for key in keys if key in before})
    found: list[Any] = [measure() if distributed.is_main() else {}]
    if distributed.is_distributed():
        dist.broadcast_object_list(found, device=device if device.type == "cuda" else None)
    return with_values(cfg, found[0])


def _faster(cfg: CfgNode, images: LabelledImages, micro_batch: int, device: torch.device) -> str:
    data = cfg.DATA
    if data.VIEWS == "digits":  # rendered, not cropped from an image
        return "workers"
    views, canvases = worker_views(cfg, images), _canvases(cfg, images)
    sample = [index % len(images) for index in range(_SAMPLE)]
    cores = max(available_cores() // distributed.local_world_size(), 1)
    by_workers = _seconds(lambda: [views.at(0, index) for index in sample]) / (_SAMPLE * cores)
    items = [canvases.at(0, index) for index in sample]
    decoding = _seconds(lambda: [canvases.at(0, index) for index in sample]) / (_SAMPLE * cores)
    on_device = build_device_views(data.VIEWS, data.IMAGE_SIZE, **_recipe(cfg))
    repeated = [items[index % _SAMPLE] for index in range(micro_batch)]
    batch = torch.stack([item[0] for item in repeated]).to(device)
    sizes, keys = torch.stack([item[1] for item in repeated]), torch.tensor([item[4] for item in repeated])
    # Workers decode beside the device's work, so the slower of the two counts.
    by_device = max(decoding, _seconds(lambda: on_device(batch, sizes, keys), device) / micro_batch)
    choice = "device" if by_device < by_workers else "workers"
    say(f"views are made by the {choice}: {1000 * by_workers:.2f} ms an image by workers on {cores} cores, "
        f"{1000 * by_device:.2f} ms on the device (DATA.VIEWS_ON)")  # fmt: skip
    return choice


def _seconds(work: Callable[[], object], device: torch.device | None = None) -> float:
    """The seconds of the second of two runs."""
    for _ in range(2):
        begun = time.perf_counter()
        work()
        if device is not None and device.type == "cuda":
            torch.cuda.synchronize(device)
        taken = time.perf_counter() - begun
    return taken
