"""From data settings to batches of two views on the device, augmented by workers or on the device itself."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any

import torch
from fvcore.common.config import CfgNode
from torch import Tensor
from torch.utils.data import Dataset

from momentum_transfer.backbones.build import named_architecture, own_input
from momentum_transfer.core import distributed
from momentum_transfer.core.devices import MEASURED, candidates, measured_batches
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.log import say
from momentum_transfer.core.samplers import Batches, Place, training_loader, whole_steps
from momentum_transfer.images.datasets import build_dataset, kept_in_memory, unlabelled_folder
from momentum_transfer.images.device_views import CanvasDataset, build_device_views
from momentum_transfer.images.labelled_images import LabelledImages
from momentum_transfer.images.subsets import select
from momentum_transfer.images.views import MEAN, STD, TwoViewDataset, build_views, eval_transform
from momentum_transfer.pretrain.monitor import EvaluationImages
from momentum_transfer.pretrain.plan import Plan

Batch = tuple[Tensor, Tensor, Tensor]  # view1 [N, 3, H, W], view2 [N, 3, H, W], labels [N]


def build_images(cfg: CfgNode, split: str, *, held_out: bool = False) -> LabelledImages:
    """The images of a split, with the subsets that the settings ask for.

    Args:
        held_out: of images that test: the classes are the training images', but none of them is thinned out.
    """
    data = cfg.DATA
    if data.NAME == "imagefolder" and cfg.METHOD.NAME != "supervised" and not held_out:
        unlabelled = unlabelled_folder(data.ROOT, split, data.MAX_UNREADABLE) if data.ROOT else None
        if unlabelled is not None:
            if data.LONG_TAIL != 1.0 or data.CLASS_FRACTION != 1.0 or data.TAXONOMY:
                raise InputError(
                    f"expected folders of classes in {data.ROOT} with LONG_TAIL, CLASS_FRACTION or TAXONOMY, found "
                    "images without labels; leave these settings out"
                )
            say(f"{len(unlabelled)} images of {data.ROOT}, without labels")
            return select(unlabelled, sample_fraction=data.SAMPLE_FRACTION, seed=cfg.SEED)
    return build_dataset(
        data.NAME,
        data.ROOT or None,
        split,
        file_list=data.FILE_LIST or None,
        image_size=data.IMAGE_SIZE,
        variant=data.VARIANT,
        class_fraction=data.CLASS_FRACTION,
        sample_fraction=1.0 if held_out else data.SAMPLE_FRACTION,
        long_tail=1.0 if held_out else data.LONG_TAIL,
        taxonomy=data.TAXONOMY or None,
        seed=cfg.SEED,
        max_unreadable=data.MAX_UNREADABLE,
    )


def evaluation_images(cfg: CfgNode, images: LabelledImages) -> EvaluationImages:
    """The images under the fixed evaluation transform."""
    return EvaluationImages(images, eval_transform(cfg.DATA.NAME, cfg.DATA.IMAGE_SIZE, *statistics(cfg)))


def statistics(cfg: CfgNode) -> tuple[Sequence[float], Sequence[float]]:
    """Mean and standard deviation of the views: the network's own, ImageNet's for a ResNet.

    Raises:
        InputError: the network has a size of its own, and DATA.IMAGE_SIZE is another.
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
    """The images under a key that carries the epoch, so that workers may read across the end of an epoch."""

    def __init__(self, dataset: TwoViewDataset | CanvasDataset) -> None:
        self.dataset = dataset

    def __getitems__(self, places: list[Place]) -> list[tuple[Any, ...]]:
        """A whole batch, as torch's loader asks for it."""
        return [*self.dataset.items(places)]


class TrainingBatches:
    """Endless batches of two views, from any step on.

    Args:
        cfg: settings; DATA.VIEWS_ON "workers" augments on the CPU, "device" a whole batch at once where it is used.
        images: labelled images.
        plan: batch sizes.
        device: where the batches go.

    Raises:
        InputError: an unknown recipe, or one that cannot be drawn there.
    """

    def __init__(self, cfg: CfgNode, images: LabelledImages, plan: Plan, device: torch.device) -> None:
        data = cfg.DATA
        self.cfg, self.plan, self.device, self.size = cfg, plan, device, len(images)
        mean, std = statistics(cfg)
        recipe: dict[str, Any] = {
            "mean": mean,
            "std": std,
            "remove": data.REMOVE,
            "crop_scale": tuple(data.CROP_SCALE) or None,
        }
        self.dataset: TwoViewDataset | CanvasDataset
        if data.VIEWS_ON == "device":
            self.device_views = build_device_views(data.VIEWS, data.IMAGE_SIZE, **recipe)
            self.dataset = CanvasDataset(images, data.CANVAS or 2 * data.IMAGE_SIZE, cfg.SEED)
        else:
            self.dataset = TwoViewDataset(
                images, build_views(data.VIEWS, data.IMAGE_SIZE, variant=data.VARIANT, **recipe), cfg.SEED
            )

    def from_step(self, first: int) -> Iterator[Batch]:
        """This process's micro-batches from the first of step ``first`` on."""
        data, plan = self.cfg.DATA, self.plan
        # Here and not earlier: a run that is over, or a random network, reads no training batch.
        uses, processes = (plan.steps - first) / plan.steps_per_epoch, distributed.local_world_size()
        self.dataset.dataset = kept_in_memory(self.dataset.dataset, data.MEMORY_SHARE, uses=uses, processes=processes)
        accumulate, workers = plan.accumulate, data.WORKERS
        if workers != MEASURED:
            return self._from_batch(first * accumulate, workers)
        return measured_batches(self._from_batch, first * accumulate, plan.steps * accumulate, candidates(processes))

    def _from_batch(self, first: int, workers: int) -> Generator[Batch, None, None]:
        """Micro-batches ``first`` on, read by so many worker processes."""
        rank, world = distributed.rank(), distributed.world_size()
        micro, seed = self.plan.micro_batch, self.cfg.SEED
        order = whole_steps(self.size, micro * world * self.plan.accumulate, seed)
        batches = Batches(order, micro, rank=rank, world=world, start=first)
        pinned = self.device.type == "cuda"
        layout = torch.channels_last if self.cfg.RUN.CHANNELS_LAST else torch.contiguous_format
        images = EpochImages(self.dataset)
        for batch in training_loader(images, batches, workers=workers, seed=seed, pin_memory=pinned):
            view1, view2, labels = self._views(batch)
            yield (
                view1.to(self.device, non_blocking=True, memory_format=layout),
                view2.to(self.device, non_blocking=True, memory_format=layout),
                labels.to(self.device, non_blocking=True),
            )

    def _views(self, batch: list[Tensor]) -> Batch:
        if isinstance(self.dataset, TwoViewDataset):
            view1, view2, labels, _ = batch
        else:
            canvases, sizes, labels, _, keys = batch
            view1, view2 = self.device_views(canvases.to(self.device, non_blocking=True), sizes, keys)
        return view1, view2, labels
