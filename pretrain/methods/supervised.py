"""The supervised baseline: cross-entropy on one view, trained by the same loop (RCF, section B)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from pretrain.backbones import ResNet
from pretrain.losses import embedding_std
from pretrain.norms import commit_pair, pair_norms


class Classifier(nn.Module):
    """A backbone and a linear classifier: images [N, 3, H, W] -> features [N, C], logits [N, K]."""

    def __init__(self, backbone: ResNet, num_classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.fc = nn.Linear(backbone.num_features, num_classes)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.backbone(images)
        return features, self.fc(features)


class Supervised(nn.Module):
    """Cross-entropy of view 1; view 2 is not looked at."""

    network_default = "student"

    def __init__(self, backbone: ResNet, num_classes: int) -> None:
        super().__init__()
        self.student = Classifier(backbone, num_classes)

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

    def backbone(self, which: str | None = None) -> ResNet:
        """The only backbone there is, the student's."""
        return self.student.backbone

    def update_teacher(self, progress: float) -> dict[str, float]:
        """Nothing moves."""
        return {}

    def commit_statistics(self) -> None:
        """Ends the batch for a Momentum BN student."""
        commit_pair(pair_norms(self))
