"""From a backbone's tokens or maps to one vector an image: what FEATURES.LAYER and FEATURES.POOL name.

DINO (arXiv 2104.14294, appendix F.2) takes the CLS tokens of the last four blocks; DINOv2 (arXiv 2304.07193, appendix
B.3) the CLS token of the last one, with or without the mean of its patches.
"""

import re

import torch
from torch import Tensor, nn

from momentum_transfer.backbones.build import Backbone
from momentum_transfer.backbones.resnet import ResNet
from momentum_transfer.backbones.timm_network import TimmBackbone
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.ranges import Choice, Words

LAYERS = ("pooled", "res2", "res3", "res4", "res5")
POOL = Words(
    r"pooled|cls|patch_mean|cls\+patch_mean|last-[1-9]\d?-blocks",
    "of pooled, cls, patch_mean, cls+patch_mean, last-N-blocks",
)


class StageFeatures(nn.Module):
    """One vector an image, [N, D], in float32 whatever the precision of the network.

    Args:
        backbone: of ``momentum_transfer.backbones.build.build_backbone``; frozen here.
        layer: "pooled", or "res2" … "res5": that map averaged over positions.
        pool: "pooled" (as the network pools by itself), and of a network of tokens "cls", "patch_mean",
            "cls+patch_mean" (both, one after the other) or "last-N-blocks": the CLS tokens of the last N blocks, or the
            means of their patches where there is no CLS token, the last block's last. All as the final norm gives them.

    Raises:
        InputError: the network has no such map or token.
    """

    def __init__(self, backbone: Backbone, layer: str = "pooled", pool: str = "pooled") -> None:
        super().__init__()
        Choice(LAYERS).require("FEATURES.LAYER", layer)
        POOL.require("FEATURES.POOL", pool)
        _check(backbone, layer, pool)
        self.backbone = backbone.eval().requires_grad_(False)
        self.layer, self.pool = layer, pool
        #: whether maps may be laid out channels last: timm's bits are those of its own layout
        self.channels_last = isinstance(backbone, ResNet)

    def forward(self, images: Tensor) -> Tensor:
        if isinstance(self.backbone, ResNet):
            stage = "res5" if self.layer == "pooled" else self.layer
            return self.backbone.stages(images)[stage].float().mean(dim=(2, 3))
        if self.layer != "pooled":
            return self.backbone.maps(images)[self.layer].float().mean(dim=(2, 3))
        if self.pool == "pooled" or not isinstance(self.backbone, TimmBackbone):
            return self.backbone(images).float()
        if last := re.fullmatch(r"last-(\d+)-blocks", self.pool):
            one = _class_token if self.backbone.class_token else _patch_mean
            return torch.cat([one(*tokens) for tokens in self.backbone.tokens(images, int(last[1]))], dim=1)
        tokens = self.backbone.tokens(images)[-1]
        parts = {"cls": [_class_token], "patch_mean": [_patch_mean]}.get(self.pool, [_class_token, _patch_mean])
        return torch.cat([part(*tokens) for part in parts], dim=1)


def _class_token(prefix: Tensor, patches: Tensor) -> Tensor:
    return prefix[:, 0].float()


def _patch_mean(prefix: Tensor, patches: Tensor) -> Tensor:
    return patches.float().mean(dim=(2, 3))


def _check(backbone: Backbone, layer: str, pool: str) -> None:
    name = backbone.architecture
    if layer != "pooled" and pool != "pooled":
        raise InputError(f"expected FEATURES.LAYER or FEATURES.POOL, found both: {layer} and {pool}; choose one")
    if layer != "pooled" and layer not in backbone.strides:
        known = ", ".join(backbone.strides) or "none"
        raise InputError(f"expected FEATURES.LAYER of a map that {name} has ({known}), found {layer}; take pooled")
    if pool == "pooled":
        return
    if not (isinstance(backbone, TimmBackbone) and backbone.plain):
        raise InputError(
            f"expected FEATURES.POOL pooled for {name}, which has no tokens, found {pool}; FEATURES.LAYER takes maps"
        )
    if "cls" in pool and not backbone.class_token:
        raise InputError(f"expected FEATURES.POOL without cls for {name}, which has no CLS token, found {pool}")
    if (last := re.fullmatch(r"last-(\d+)-blocks", pool)) and int(last[1]) > backbone.depth:
        raise InputError(f"expected at most last-{backbone.depth}-blocks in FEATURES.POOL for {name}, found {pool}")
