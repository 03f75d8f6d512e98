"""The baselines: supervised cross-entropy by the same loop (RCF, section B), and calibrated random weights."""

import torch.nn.functional as F
from torch import Tensor, nn

from momentum_transfer.backbones.build import Backbone
from momentum_transfer.pretrain.heads import embedding_std
from momentum_transfer.pretrain.methods.method import Method


class Classifier(nn.Module):
    """A backbone and a linear classifier: images [N, 3, H, W] -> features [N, C], logits [N, K]."""

    def __init__(self, backbone: Backbone, num_classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.fc = nn.Linear(backbone.num_features, num_classes)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.backbone(images)
        return features, self.fc(features)


class Supervised(Method):
    """Cross-entropy of view 1, which ignores view 2. ``student`` is a ``Classifier``."""

    def forward(self, view1: Tensor, view2: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """The loss, "top1" in percent, and the spread of the pooled features."""
        if labels is None:
            raise ValueError("expected labels for the supervised baseline, found None")
        features, logits = self.student(view1)
        top1 = 100 * (logits.detach().argmax(dim=1) == labels).float().mean()
        loss = F.cross_entropy(logits.float(), labels)
        return {"loss": loss, "top1": top1, "embedding_std": embedding_std(features)}


class RandomBackbone(Method):
    """A backbone as it was initialised (He), with BN statistics calibrated on the training images.

    With uncalibrated statistics (mean 0, variance 1) random features look worse or better than they are, and a
    comparison with a trained backbone would not be fair.
    """

    def __init__(self, backbone: Backbone) -> None:
        super().__init__(nn.ModuleDict({"backbone": backbone}))
