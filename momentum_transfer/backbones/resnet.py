"""ResNets under torchvision's names, with width, stem and normalisation as arguments, and their names elsewhere.

He et al., "Deep Residual Learning for Image Recognition" (arXiv 1512.03385), with the stride in the 3x3 convolution, or
in Caffe's style. Blocks and stages are built by torchvision itself, so a state dict loads into its ``resnet50`` as it
is. One table a code base gives the names; inverses are derived.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, Bottleneck
from torchvision.models.resnet import ResNet as TorchvisionResNet

from momentum_transfer.backbones.network_input import IMAGENET_STD, NetworkInput
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
STYLES = ("pytorch", "caffe")


@dataclass(frozen=True)
class Architecture:
    """What is needed to build a backbone again.

    Args:
        name: a key of ``DEPTHS``.
        width: channels of the stem, 64 in the paper; 128 is "2x" (every layer twice as wide).
        stem: "imagenet" (7x7 stride 2, then max-pooling) or "small" (3x3 stride 1, no pooling: CIFAR-sized images).
        style: "pytorch", or "caffe", that of the MSRA weights and so of most of Detectron2's model zoo: BGR values of
            0..255 less ImageNet's mean, and a bottleneck's stride in its first 1x1 convolution.
    """

    name: str = "resnet50"
    width: int = 64
    stem: str = "imagenet"
    style: str = "pytorch"

    def __post_init__(self) -> None:
        if self.name not in DEPTHS:
            known = ", ".join(DEPTHS)
            raise InputError(f"expected an architecture of {known} or timm:NAME, found {self.name!r}; correct its name")
        if self.stem not in STEMS:
            raise InputError(f"expected a stem of {', '.join(STEMS)}, found {self.stem!r}; correct its name")
        if self.style not in STYLES:
            raise InputError(f"expected a style of {' or '.join(STYLES)}, found {self.style!r}; correct its name")
        if isinstance(self.width, bool) or not isinstance(self.width, int) or self.width < 1:
            raise InputError(f"expected a width of at least 1 channel, found {self.width!r}; 64 is the paper's")

    def __str__(self) -> str:
        """The text that ``build.parse_architecture`` reads back."""
        usual = {"width": 64, "stem": "imagenet", "style": "pytorch"}
        options = [f"{key}={getattr(self, key)}" for key, value in usual.items() if getattr(self, key) != value]
        return self.name + ("?" + "&".join(options) if options else "")


class _CaffeConv(nn.Conv2d):
    """A first convolution for Caffe's pixels that is given RGB images normalised with ImageNet's mean and deviation.

    Both subtract one mean, and zeros pad both after it: the outputs are Caffe's, at the borders too.
    """

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flip(1) * (255 * x.new_tensor(IMAGENET_STD[::-1]).view(3, 1, 1)))


class _MaxPool(nn.MaxPool2d):
    """On the CPU forwards by torch's kernel for channels last: that for contiguous maps takes four times as long."""

    def forward(self, input: Tensor) -> Tensor:
        plain = not input.is_cpu or torch.compiler.is_compiling() or torch.jit.is_tracing()
        if plain or not input.is_contiguous():
            return super().forward(input)
        with torch.no_grad():
            last = input.contiguous(memory_format=torch.channels_last)
            places = F.max_pool2d(last, self.kernel_size, self.stride, self.padding, return_indices=True)[1]
        return input.flatten(2).gather(2, places.flatten(2)).view(places.shape)


class ResNet(TorchvisionResNet):
    """A ResNet without its classifier: images to pooled features. ``norm_layer``: channels -> normalisation module.

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
        width, large = architecture.width, architecture.stem == "imagenet"
        self.architecture = architecture
        self._norm_layer = norm_layer
        self.inplanes, self.dilation, self.groups, self.base_width = width, 1, 1, 64
        kernel, stride, padding = (7, 2, 3) if large else (3, 1, 1)
        caffe = architecture.style == "caffe"
        first = _CaffeConv if caffe else nn.Conv2d
        self.conv1 = first(3, width, kernel_size=kernel, stride=stride, padding=padding, bias=False)
        self.bn1 = norm_layer(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = _MaxPool(kernel_size=3, stride=2, padding=1) if large else nn.Identity()
        self.layer1 = self._make_layer(block, width, depths[0])
        self.layer2 = self._make_layer(block, width * 2, depths[1], stride=2)
        self.layer3 = self._make_layer(block, width * 4, depths[2], stride=2)
        self.layer4 = self._make_layer(block, width * 8, depths[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.num_features = width * 8 * block.expansion
        self.strides = {f"res{n + 2}": (4 if large else 1) * 2**n for n in range(4)}
        self.channels = {f"res{n + 2}": self.num_features >> 3 - n for n in range(4)}
        for module in self.modules():
            if caffe and isinstance(module, Bottleneck):
                module.conv1.stride, module.conv2.stride = module.conv2.stride, module.conv1.stride
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def stages(self, x: Tensor) -> dict[str, Tensor]:
        """Maps and pooled features of images [N, 3, H, W].

        Returns:
            "res2" [N, C/8, H/4, W/4] to "res5" [N, C, H/32, W/32] (strides of the ImageNet stem), "pooled" [N, C].
        """
        if x.dim() != 4 or x.shape[1] != 3:
            raise ValueError(f"expected images [N, 3, H, W], found a tensor of shape {tuple(x.shape)}")
        maps = {}
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for name, stage in self.named_stages():
            x = maps[name] = stage(x)
        maps["pooled"] = self.avgpool(x).flatten(1)
        return maps

    def named_stages(self) -> list[tuple[str, nn.Sequential]]:
        """("res2", its blocks) to ("res5", …)."""
        return [("res2", self.layer1), ("res3", self.layer2), ("res4", self.layer3), ("res5", self.layer4)]

    def forward(self, x: Tensor) -> Tensor:
        """Pooled features [N, C] of images [N, 3, H, W]."""
        return self.stages(x)["pooled"]


def build_resnet(architecture: Architecture, norm_layer: NormLayer = nn.BatchNorm2d) -> ResNet:
    """A freshly initialised ResNet: He initialisation, fan-out; residual branches do not begin at zero."""
    return ResNet(architecture, norm_layer)


#: BatchNorm's integer buffer: batches seen. Files from before torch 0.4.1 and Detectron2's own lack it.
COUNTER = "num_batches_tracked"
#: Names of Detectron2 -> of torchvision: modules of the stem, stages, modules inside a block.
_STEM = {"stem.conv1": "conv1", "stem.conv1.norm": "bn1"}
_STAGES = {"res2": "layer1", "res3": "layer2", "res4": "layer3", "res5": "layer4"}
_BLOCK = {"conv1": "conv1", "conv1.norm": "bn1", "conv2": "conv2", "conv2.norm": "bn2", "conv3": "conv3",
          "conv3.norm": "bn3", "shortcut": "downsample.0", "shortcut.norm": "downsample.1"}  # fmt: skip
#: lightly's ``nn.Sequential(*children)``: 2 is the ReLU, 3 the max-pooling, 8 the average pooling, 9 the classifier.
_NUMBERED = {"0": "conv1", "1": "bn1", "4": "layer1", "5": "layer2", "6": "layer3", "7": "layer4"}


def from_detectron2(name: str) -> str:
    """``res2.0.conv1.norm.weight`` -> ``layer1.0.bn1.weight``; a name outside the table is returned as it is."""
    return _rename(name, _STEM, _STAGES, _BLOCK)


def to_detectron2(name: str) -> str:
    """``layer1.0.bn1.weight`` -> ``res2.0.conv1.norm.weight``; a name outside the table is returned as it is."""
    return _rename(name, *({right: left for left, right in table.items()} for table in (_STEM, _STAGES, _BLOCK)))


def from_numbered(name: str) -> str:
    """``4.0.bn1.weight`` -> ``layer1.0.bn1.weight``; a name outside the table is returned as it is."""
    head, dot, rest = name.partition(".")
    return f"{_NUMBERED.get(head, head)}{dot}{rest}"


def _rename(name: str, stem: Mapping[str, str], stages: Mapping[str, str], block: Mapping[str, str]) -> str:
    module, _, tensor = name.rpartition(".")
    if module in stem:
        return f"{stem[module]}.{tensor}"
    stage, _, rest = module.partition(".")
    index, _, inner = rest.partition(".")
    if stage in stages and inner in block:
        return f"{stages[stage]}.{index}.{block[inner]}.{tensor}"
    return name


def infer_architecture(shapes: Mapping[str, tuple[int, ...]]) -> Architecture:
    """Depth, width and stem from torchvision names and shapes; InputError if it is no ResNet of ``DEPTHS``."""
    stem = shapes.get("conv1.weight")
    if stem is None or len(stem) != 4 or stem[1] != 3 or stem[2] != stem[3] or stem[2] not in (3, 7):
        found = "none" if stem is None else list(stem)
        raise InputError(f"expected a stem conv1.weight of shape [C, 3, 7, 7] or [C, 3, 3, 3], found {found}")
    blocks = tuple(
        len({name.split(".")[1] for name in shapes if name.startswith(f"layer{stage}.")}) for stage in (1, 2, 3, 4)
    )
    bottleneck = "layer1.0.conv3.weight" in shapes
    for name, (block, depths) in DEPTHS.items():
        if depths == blocks and (block.expansion == 4) == bottleneck:
            return Architecture(name, stem[0], "imagenet" if stem[2] == 7 else "small")
    found = f"{blocks} blocks ({'Bottleneck' if bottleneck else 'BasicBlock'}) in layer1 to layer4"
    raise InputError(f"expected the blocks of one of {', '.join(DEPTHS)}, found {found}")
