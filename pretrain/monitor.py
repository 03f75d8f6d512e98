"""Watches a training: kNN on a held-out split, and the names of non-finite tensors."""

from collections.abc import Callable

import numpy as np
import PIL.Image
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from momentum_transfer.core.neighbours import majority_top1
from momentum_transfer.core.samplers import ordered_loader
from momentum_transfer.images.datasets import LabelledImages

_BANK = 20_000  # training images that vote; enough to compare epochs with each other


class EvaluationImages(Dataset):
    """Images under the fixed evaluation transform: ``self[i] -> (tensor [3, H, W], label)``."""

    def __init__(self, images: LabelledImages, transform: Callable[[PIL.Image.Image], Tensor]) -> None:
        self.images = images
        self.transform = transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, label = self.images[index]
        return self.transform(image), label


def shuffled_subset(images: EvaluationImages, count: int, seed: int) -> Dataset:
    """At most ``count`` of the images, sampled with the seed."""
    order = np.random.default_rng(seed).permutation(len(images))[:count]
    return torch.utils.data.Subset(images, order.tolist())


@torch.no_grad()
def features(
    backbone: nn.Module, images: Dataset, device: torch.device, batch: int, workers: int
) -> tuple[np.ndarray, np.ndarray]:
    """Pooled features [N, C] and labels [N], in evaluation mode; the mode is put back."""
    training = backbone.training
    backbone.eval()
    parts, labels = [], []
    for tensors, targets in ordered_loader(images, batch, workers=workers):
        parts.append(backbone(tensors.to(device)).float().cpu())
        labels.append(targets)
    backbone.train(training)
    return torch.cat(parts).numpy(), torch.cat(labels).numpy()


class KnnMonitor:
    """kNN top-1 of a backbone: training images (``bank``) vote on held-out ones, as in ``lowshot`` by preset eman."""

    def __init__(
        self, bank: EvaluationImages, held_out: EvaluationImages, device: torch.device, *, batch: int, workers: int
    ) -> None:
        self.bank = shuffled_subset(bank, _BANK, seed=0)
        self.held_out = held_out
        self.device, self.batch, self.workers = device, batch, workers

    def top1(self, backbone: nn.Module) -> float:
        """Percent of the held-out images classified correctly."""
        bank = features(backbone, self.bank, self.device, self.batch, self.workers)
        held_out = features(backbone, self.held_out, self.device, self.batch, self.workers)
        return majority_top1(*bank, *held_out, device=self.device)


def non_finite_tensors(method: nn.Module, named: dict[str, Tensor], limit: int = 8) -> list[str]:
    """Names of what is NaN or infinite: the given tensors, then the method's parameters, buffers and gradients."""
    gradients = {f"{name} (gradient)": p.grad for name, p in method.named_parameters() if p.grad is not None}
    tensors = {**named, **dict(method.named_parameters()), **dict(method.named_buffers()), **gradients}
    names = [name for name, tensor in tensors.items() if not torch.isfinite(tensor).all()]
    return names[:limit] + (["…"] if len(names) > limit else [])
