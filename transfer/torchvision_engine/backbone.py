"""Feature maps: a ResNet's stages, and a feature pyramid on top of them (FPN, arXiv 1612.03144).

Or the simple feature pyramid of ViTDet (Li et al., arXiv 2203.16527, section 3): all levels from one map.
"""

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from momentum_transfer.backbones.resnet import ResNet
from momentum_transfer.transfer.torchvision_engine.layers import ConvNorm, FrozenBatchNorm2d, norm_layer, xavier_fill

STRIDES = {"res2": 4, "res3": 8, "res4": 16, "res5": 32}
#: The one map of a plain ViT.
LAST = "last_feat"


class BottomUp(nn.Module):
    """The stem and the first stages of a ResNet, with the first ``freeze_at`` of them frozen.

    Parameter names are torchvision's; ``detectors.py`` renames them for Detectron2's files.

    Args:
        resnet: its modules are taken over. last: the last stage to keep, ``res4`` for C4 detectors.
        freeze_at: 0 freezes nothing, 1 the stem, 2 the stem and res2, and so on. A frozen part takes no gradient, and
            its BatchNorms become FrozenBN, as in Detectron2.
    """

    def __init__(self, resnet: ResNet, last: str = "res5", freeze_at: int = 0) -> None:
        super().__init__()
        self.architecture = resnet.architecture
        self.conv1, self.bn1 = resnet.conv1, resnet.bn1
        self.relu, self.maxpool = resnet.relu, resnet.maxpool
        self.stages = [name for name in STRIDES if name <= last]
        for name in self.stages:
            self.add_module(f"layer{int(name[-1]) - 1}", getattr(resnet, f"layer{int(name[-1]) - 1}"))
        self.channels = {name: _out_channels(self._stage(name)) for name in self.stages}
        self.strides = {name: STRIDES[name] for name in self.stages}
        self._freeze(freeze_at)

    def _stage(self, name: str) -> nn.Module:
        return getattr(self, f"layer{int(name[-1]) - 1}")

    def _freeze(self, freeze_at: int) -> None:
        frozen = ["conv1", "bn1"] if freeze_at >= 1 else []
        frozen += [f"layer{int(name[-1]) - 1}" for name in self.stages if freeze_at >= int(name[-1])]
        for name in frozen:
            module = getattr(self, name)
            for parameter in module.parameters():
                parameter.requires_grad_(False)
            setattr(self, name, freeze_norms(module))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Normalised images [N, 3, H, W] → one map a stage."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        features = {}
        for name in self.stages:
            features[name] = x = self._stage(name)(x)
        return features


def _out_channels(stage: nn.Module) -> int:
    """Channels of the last convolution: every residual block ends in one."""
    return [module for module in stage.modules() if isinstance(module, nn.Conv2d)][-1].out_channels


def freeze_norms(module: nn.Module) -> nn.Module:
    """The module with every BatchNorm replaced by a FrozenBatchNorm2d of the same numbers."""
    if isinstance(module, (nn.BatchNorm2d, nn.SyncBatchNorm)):
        frozen = FrozenBatchNorm2d(module.num_features, eps=module.eps)
        state = module.state_dict()
        frozen.load_state_dict({name: state[name] for name in ("weight", "bias", "running_mean", "running_var")})
        return frozen
    for name, child in module.named_children():
        setattr(module, name, freeze_norms(child))
    return module


def dilate(stage: nn.Module, dilations: Sequence[int]) -> None:
    """Trade a stage's stride for dilation of 3×3 convolutions, block by block in turn (DeepLab-v3, section 3.1)."""
    for index, block in enumerate(stage.children()):
        dilation = dilations[index % len(dilations)]
        for conv in (module for module in block.modules() if isinstance(module, nn.Conv2d)):
            conv.stride = (1, 1)
            if conv.kernel_size == (3, 3):
                conv.dilation = conv.padding = (dilation, dilation)


class MaxPoolP6(nn.Module):
    """P6 of Mask R-CNN: P5 subsampled by 2."""

    levels, source = ("p6",), "p5"

    def forward(self, x: Tensor) -> list[Tensor]:
        return [F.max_pool2d(x, kernel_size=1, stride=2)]


class ConvP6P7(nn.Module):
    """P6 and P7 by strided convolutions: from C5 in RetinaNet, from P5 in FCOS."""

    levels = ("p6", "p7")

    def __init__(self, inputs: int, outputs: int, source: str) -> None:
        super().__init__()
        self.source = source
        self.p6 = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1)
        self.p7 = nn.Conv2d(outputs, outputs, 3, stride=2, padding=1)
        xavier_fill(self.p6)
        xavier_fill(self.p7)

    def forward(self, x: Tensor) -> list[Tensor]:
        p6 = self.p6(x)
        return [p6, self.p7(F.relu(p6))]


TopBlock = MaxPoolP6 | ConvP6P7


class FPN(nn.Module):
    """Feature pyramid: lateral 1×1 convolutions, top-down sum, 3×3 output convolutions, extra levels on top.

    Images are padded to multiples of ``size_divisibility``, so that doubling a level meets the one below, or to a
    square with a side of ``square`` pixels if that is not 0.
    """

    def __init__(
        self, bottom_up: Any, sources: Sequence[str], channels: int, *, norm: str, top_block: TopBlock, square: int = 0
    ) -> None:
        super().__init__()
        self.bottom_up, self.sources, self.square = bottom_up, list(sources), square
        for name in self.sources:
            lateral = ConvNorm(bottom_up.channels[name], channels, 1, norm=norm)
            output = ConvNorm(channels, channels, 3, padding=1, norm=norm)
            xavier_fill(lateral)
            xavier_fill(output)
            self.add_module(f"fpn_lateral{name[-1]}", lateral)
            self.add_module(f"fpn_output{name[-1]}", output)
        self.top_block = top_block
        self.size_divisibility = STRIDES[self.sources[-1]]
        names = [f"p{name[-1]}" for name in self.sources] + list(top_block.levels)
        self.strides = {name: 2 ** int(name[-1]) for name in names}
        self.channels = dict.fromkeys(names, channels)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Normalised images [N, 3, H, W] → p2 … p6 or p3 … p7."""
        stages = self.bottom_up(x)
        outputs: dict[str, Tensor] = {}
        above: Tensor | None = None
        for name in reversed(self.sources):
            merged = getattr(self, f"fpn_lateral{name[-1]}")(stages[name])
            if above is not None:
                merged += F.interpolate(above, scale_factor=2.0, mode="nearest")
            outputs[f"p{name[-1]}"] = getattr(self, f"fpn_output{name[-1]}")(merged)
            above = merged
        source = stages[self.top_block.source] if self.top_block.source in stages else outputs[self.top_block.source]
        outputs.update(zip(self.top_block.levels, self.top_block(source), strict=True))
        return {name: outputs[name] for name in self.strides}


class SingleScale(nn.Module):
    """The backbone of C4 detectors and of segmentation: stages and no pyramid; images are padded as for ``FPN``."""

    def __init__(self, bottom_up: Any, size_divisibility: int = 1, square: int = 0) -> None:
        super().__init__()
        self.bottom_up, self.size_divisibility, self.square = bottom_up, size_divisibility, square
        self.strides, self.channels = dict(bottom_up.strides), dict(bottom_up.channels)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        found: dict[str, Tensor] = self.bottom_up(x)
        return found


class SimplePyramid(nn.Module):
    """Levels of strides 4, 8, 16 and 32: transposed convolutions up, max-pooling down, then 1×1 and 3×3 convolutions.

    Args:
        net: gives one map, ``LAST``, of stride 16, and its width in ``channels``.
        levels: some of "p2" to "p5". norm: after every convolution. top_block: P6 (and P7) from P5.
        square: side in pixels of the square that images are padded to; 0: to the next multiple of the last stride.
    """

    def __init__(
        self, net: Any, levels: Sequence[str], channels: int, *, norm: str, top_block: TopBlock, square: int = 0
    ) -> None:
        super().__init__()
        self.levels = list(levels)
        for name in self.levels:
            self.add_module(f"simfp_{name[-1]}", _level(2 ** int(name[-1]), net.channels[LAST], channels, norm))
        self.net, self.top_block, self.square = net, top_block, square
        names = [*self.levels, *top_block.levels]
        self.strides = {name: 2 ** int(name[-1]) for name in names}
        self.channels = dict.fromkeys(names, channels)
        self.size_divisibility = self.strides[self.levels[-1]]

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Normalised images [N, 3, H, W] → p2 … p6 or p3 … p7."""
        (features,) = self.net(x).values()
        outputs = {name: getattr(self, f"simfp_{name[-1]}")(features) for name in self.levels}
        outputs.update(zip(self.top_block.levels, self.top_block(outputs[self.top_block.source]), strict=True))
        return outputs


def _level(stride: int, width: int, channels: int, norm: str) -> nn.Sequential:
    """One level from a map of stride 16; its parts are numbered as Detectron2's."""
    make_norm = norm_layer(norm)
    if make_norm is None:
        raise ValueError("a simple feature pyramid needs a norm")
    scaling: list[nn.Module] = []
    if stride == 4:
        half = width // 2
        scaling = [nn.ConvTranspose2d(width, half, 2, stride=2), make_norm(half), nn.GELU()]
        scaling.append(nn.ConvTranspose2d(half, width // 4, 2, stride=2))
        width //= 4
    elif stride == 8:
        scaling = [nn.ConvTranspose2d(width, width // 2, 2, stride=2)]
        width //= 2
    elif stride == 32:
        scaling = [nn.MaxPool2d(2, stride=2)]
    convs = [ConvNorm(width, channels, 1, norm=norm), ConvNorm(channels, channels, 3, padding=1, norm=norm)]
    return nn.Sequential(*scaling, *convs)
