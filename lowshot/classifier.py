"""A backbone with a linear classifier, and how often it is right."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from momentum_transfer import distributed


def linear_head(features: int, classes: int, seed: int) -> nn.Linear:
    """Weights N(0, 0.01²) drawn with ``seed``, zero biases."""
    head = nn.Linear(features, classes)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        head.weight.normal_(0, 0.01, generator=generator)
        head.bias.zero_()
    return head


class Classifier(nn.Module):
    """images [N, 3, H, W] -> logits [N, classes].

    Args:
        backbone: a ``momentum_transfer.backbones.resnet.ResNet``.
    """

    def __init__(self, backbone: nn.Module, classes: int, seed: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.fc = linear_head(int(backbone.num_features), classes, seed)  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.backbone(images))
        return logits


@torch.inference_mode()
def accuracy(
    logits_of: Callable[[Tensor], Tensor], batches: Iterable[tuple[Tensor, Tensor]], device: torch.device
) -> dict[str, Tensor]:
    """Fractions top1 and top5, over the batches of all processes.

    Args:
        logits_of: inputs -> logits [N, classes], or [heads, N, classes] of several classifiers at once.

    Returns:
        ``{"top1": …, "top5": …}``, scalars or [heads].
    """
    count = torch.zeros((), device=device)
    right = {"top1": torch.zeros((), device=device), "top5": torch.zeros((), device=device)}
    for inputs, labels in batches:
        logits, labels = logits_of(inputs.to(device)), labels.to(device)
        ranked = logits.topk(min(5, logits.shape[-1]), dim=-1).indices
        hits = ranked == labels[:, None]
        count = count + len(labels)
        right["top1"] = right["top1"] + hits[..., 0].sum(-1)
        right["top5"] = right["top5"] + hits.any(-1).sum(-1)
    total = distributed.all_reduce_mean(count)
    return {name: distributed.all_reduce_mean(hits) / total for name, hits in right.items()}
