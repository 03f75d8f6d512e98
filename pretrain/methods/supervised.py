"""The supervised baseline: cross-entropy on one view, trained by the same loop (RCF, section B)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from momentum_transfer.backbones.build import Backbone
from momentum_transfer.pretrain.heads import embedding_std
from momentum_transfer.pretrain.methods.method import SingleNetwork


class Classifier(nn.Module):
    """A backbone and a linear classifier: images [N, 3, H, W] -> features [N, C], logits [N, K]."""

    def __init__(self, backbone: Backbone, num_classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.fc = nn.Linear(backbone.num_features, num_classes)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.backbone(images)
        return features, self.fc(features)


class Supervised(SingleNetwork):
    """Cross-entropy of view 1; view 2 is not looked at. ``student`` is a ``Classifier``."""

    def forward(self, view1: Tensor, view2: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """The loss of a batch.

        Args:
            view1: [N, 3, H, W].
            view2: ignored.
            labels: classes [N].

        Returns:
            "loss", "top1" in percent, and "embedding_std" of the pooled features.
        """
        if labels is None:
            raise ValueError("expected labels for the supervised baseline, found None")
        features, logits = self.student(view1)
        top1 = 100 * (logits.detach().argmax(dim=1) == labels).float().mean()
        return {
            "loss": F.cross_entropy(logits.float(), labels),
            "top1": top1,
            "embedding_std": embedding_std(features),
        }
