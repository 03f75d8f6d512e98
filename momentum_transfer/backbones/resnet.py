"""ResNets under torchvision's parameter names, with the width, the stem and the normalisation as arguments.

He et al., "Deep Residual Learning for Image Recognition" (arXiv 1512.03385), with the stride in the 3x3 convolution.
Blocks and stages are built by torchvision itself, so a state dict loads into its ``resnet50`` as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, Bottleneck
from torchvision.models.resnet import ResNet as TorchvisionResNet

from momentum_transfer.backbones.network_input import NetworkInput
from momentum_transfer.core.errors import InputError

NormLayer = Callable[[int], nn.Module]

# name -> (block, blocks in each of the four stages); resnet10 is one BasicBlock a stage
DEPTHS: dict[str, tuple[type[BasicBlock] | type[Bottleneck], tuple[int, int, int, int]]] = {
    "resnet10": (BasicBlock, (1, 1, 1, 1)),
    "resnet18": (BasicBlock, (2, 2, 2, 2)),
    "resnet34": (BasicBlock, (3, 4, 6, 3)),
    "resnet50": (Bottleneck, (3, 4, 6, 3)),
    "resnet101": (Bottleneck, (3, 4, 23, 3)),
}
STEMS = ("imagenet", "small")


@dataclass(frozen=True)
class Architecture:
    """What is needed to build a backbone again.

    Args:
        name: a key of ``DEPTHS``.
        width: channels of the stem, 64 in the paper; 128 is "2x" (every layer twice as wide).
        stem: "imagenet" (7x7 stride 2, then max-pooling) or "small" (3x3 stride 1, no pooling: CIFAR-sized images).

    Raises:
        InputError: unknown name or stem, or a width below 1.
    """

    name: str = "resnet50"
    width: int = 64
    stem: str = "imagenet"

    def __post_init__(self) -> None:
        if self.name not in DEPTHS:
            raise InputError(
                f"expected an architecture of {', '.join(DEPTHS)} or timm:NAME, found {self.name!r}; correct its name"
            )
        if self.stem not in STEMS:
            raise InputError(f"expected a stem of {', '.join(STEMS)}, found {self.stem!r}; correct its name")
        if isinstance(self.width, bool) or not isinstance(self.width, int) or self.width < 1:
            raise InputError(f"expected a width of at least 1 channel, found {self.width!r}; 64 is the paper's")

    def __str__(self) -> str:
        """The text that ``build.parse_architecture`` reads back."""
        options = [f"width={self.width}"] * (self.width != 64) + [f"stem={self.stem}"] * (self.stem != "imagenet")
        return self.name + ("?" + "&".join(options) if options else "")


class ResNet(TorchvisionResNet):
    """A ResNet without its classifier: images to pooled features.

    Args:
        architecture: depth, width and stem.
        norm_layer: channels -> normalisation module, called once for each layer.

    Attributes:
        num_features: channels C of the pooled features.
        strides, channels: of the maps "res2" to "res5".
        input, plain: as of any backbone (:class:`momentum_transfer.backbones.timm_network.TimmBackbone`).
    """

    plain = False
    input = NetworkInput()

    def __init__(self, architecture: Architecture, norm_layer: NormLayer) -> None:
        nn.Module.__init__(self)  # torchvision's __init__ fixes the width at 64; its _make_layer does not
        block, depths = DEPTHS[architecture.name]
        width = architecture.width
        self.architecture = architecture
        self._norm_layer = norm_layer
        self.inplanes, self.dilation, self.groups, self.base_width = width, 1, 1, 64
        if architecture.stem == "imagenet":
            self.conv1 = nn.Conv2d(3, width, kernel_size=7, stride=2, padding=3, bias=False)
        else:
            self.conv1 = nn.Conv2d(3, width, kernel_size=3, stride=1, padding=1, bias=False)
        self.bn1 = norm_layer(width)
        self.relu = nn.ReLU(inplace=True)
        pool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1) if architecture.stem == "imagenet" else nn.Identity()
        self.maxpool = pool
        self.layer1 = self._make_layer(block, width, depths[0])
        self.layer2 = self._make_layer(block, width * 2, depths[1], stride=2)
        self.layer3 = self._make_layer(block, width * 4, depths[2], stride=2)
        self.layer4 = self._make_layer(block, width * 8, depths[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.num_features = width * 8 * block.expansion
        first = 4 if architecture.stem == "imagenet" else 1
        self.strides = {f"res{n + 2}": first * 2**n for n in range(4)}
        self.channels = {f"res{n + 2}": self.num_features >> 3 - n for n in range(4)}
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def stages(self, x: Tensor) -> dict[str, Tensor]:
        """Feature maps of the four stages and the pooled features.

        Args:
            x: images [N, 3, H, W].

        Returns:
            "res2" [N, C/8, H/4, W/4] to "res5" [N, C, H/32, W/32] (strides of the ImageNet stem), "pooled" [N, C].
        """
        if x.dim() != 4 or x.shape[1] != 3:
            raise ValueError(f"expected images [N, 3, H, W], found a tensor of shape {tuple(x.shape)}")
        maps = {}
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for name, stage in zip(
            ("res2", "res3", "res4", "res5"), (self.layer1, self.layer2, self.layer3, self.layer4), strict=True
        ):
            x = maps[name] = stage(x)
        maps["pooled"] = self.avgpool(x).flatten(1)
        return maps

    def forward(self, x: Tensor) -> Tensor:
        """Pooled features [N, C] of images [N, 3, H, W]."""
        return self.stages(x)["pooled"]


def build_backbone(architecture: Architecture, norm_layer: NormLayer = nn.BatchNorm2d) -> ResNet:
    """A freshly initialised ResNet (He initialisation, fan-out; residual branches are not zeroed).

    Zero-initialised residual branches hid the signal from the teacher at small budgets, so they are not offered.
    """
    return ResNet(architecture, norm_layer)
