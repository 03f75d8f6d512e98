"""The random baseline: He initialisation, no training, BN statistics calibrated on the training images.

Uncalibrated running statistics (mean 0, variance 1) belong to no network; with them random features look worse or
better than they are, so that a comparison with a trained backbone would not be fair.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from momentum_transfer.backbones.build import Backbone
from momentum_transfer.pretrain.methods.method import Method


class RandomBackbone(Method):
    """A backbone as it was initialised."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.student = nn.ModuleDict({"backbone": backbone})

    @torch.no_grad()
    def calibrate(self, batches: Iterable[Tensor], count: int) -> None:
        """Sets running means and variances to those over the images, by fvcore's precise BN.

        Args:
            batches: images [N, 3, H, W], at least ``count`` of them.
            count: batches used. GN and IN have no running statistics: nothing happens.
        """
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", FutureWarning
            )  # fvcore's losses use torch.jit.script, which is on its way out
            from fvcore.nn import update_bn_stats
        network = self.backbone()
        network.train()
        update_bn_stats(network, batches, count)
        network.eval()
