"""The one adapter of timm: any of its networks as a backbone, under timm's own tensor names.

Hierarchical networks give a map for each stride of 4, 8, 16 and 32 that they have; plain ones (a ViT) the tokens of
their last blocks. Which of both a network is, its strides, channels, patch size and prefix tokens are read from timm's
own description of it (``feature_info``, ``forward_intermediates``), never from its name.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from momentum_transfer.backbones.batch_statistics import replace_batch_norm
from momentum_transfer.backbones.hub import local_file
from momentum_transfer.backbones.network_input import STRIDES, NetworkInput
from momentum_transfer.backbones.timm_models import TimmArchitecture, create
from momentum_transfer.core.errors import InputError, extra, first_line


def build_timm(architecture: TimmArchitecture, norm_layer: Callable[[int], nn.Module] | None = None) -> "TimmBackbone":
    """The network without its classifier, initialised as timm does but for zero biases of the first convolution.
    ``norm_layer``: channels -> module, instead of every BatchNorm."""
    network = create(architecture)
    if norm_layer is not None:
        replace_batch_norm(network, norm_layer)
    _draw_image_biases(network)
    return TimmBackbone(network, architecture)


def _draw_image_biases(network: nn.Module) -> None:
    """Give convolutions of the image whose biases are all 0 those of PyTorch: U(−b, b), b = (inputs of a sum)^-½.

    Detectors pad images with zeros: without biases each later LayerNorm normalises exact zeros there, and multiplies
    gradients by eps^-½, 1000 a layer. Random numbers drawn afterwards stay the same.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        for module in network.modules():
            if not isinstance(module, nn.Conv2d) or module.in_channels != 3 or module.bias is None:
                continue
            if not module.bias.is_meta and not module.bias.any():
                bound = module.weight[0].numel() ** -0.5
                module.bias.uniform_(-bound, bound)


def published(architecture: TimmArchitecture) -> "TimmBackbone":
    """The network with the weights that timm publishes for its tag, from a mirror, the cache or the Hub."""
    timm = extra("timm", "networks of timm")
    if not timm.models.is_model_pretrained(architecture.name):
        raise InputError(f"expected a network that timm publishes weights of, found {architecture}; give a checkpoint")
    config = timm.get_pretrained_cfg(architecture.name)
    if not config.hf_hub_id:
        try:  # from the address of its own that timm knows
            return TimmBackbone(create(architecture, pretrained=True), architecture)
        except OSError as error:  # urllib's URLError is one
            found = f"no way there ({error}); fetch them where there is a network, or give a checkpoint's file"
            raise InputError(f"expected to get timm's weights of {architecture}, found {found}") from error
    repository = config.hf_hub_id + (f"{config.architecture}.{config.tag}" if config.hf_hub_id.endswith("/") else "")
    file = local_file(f"hf:{repository}" + (f":{config.hf_hub_filename}" if config.hf_hub_filename else ""))
    overlay = {"file": str(file), "custom_load": False}
    return TimmBackbone(create(architecture, pretrained=True, pretrained_cfg_overlay=overlay), architecture)


class TimmBackbone(nn.Module):
    """A network of timm without its classifier.

    Parameters, buffers and children are those of timm's module inside, so that its state dict has timm's names.

    Attributes:
        architecture: from which ``build_backbone`` makes it again.
        input: its images, by timm's config of the network.
        num_features: width C of what ``forward`` gives.
        plain: one map of one stride: ``tokens``. Otherwise ``stages``.
        strides, channels: of the maps that the network has, by name, "res2" to "res5".
        depth: how many maps timm describes: of a plain network its blocks.
        patch_size: of a plain network: the stride of its map; otherwise 0.
        num_prefix_tokens: tokens before the patches in ``tokens`` (CLS, registers), of a plain network.
        class_token: whether the first of them is a CLS token.
    """

    network: Any
    channels_last = False  # its features have the bits of timm's own

    def __init__(self, network: Any, architecture: TimmArchitecture) -> None:
        super().__init__()
        self.__dict__["network"] = network  # not as a child: names would begin with "network."
        for shared in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            self.__dict__[shared] = network.__dict__[shared]
        self.architecture = architecture
        self.input = _input(network, architecture)
        self.num_features = int(getattr(network, "head_hidden_size", None) or network.num_features)
        info = getattr(network, "feature_info", None) if hasattr(network, "forward_intermediates") else None
        info = list(getattr(info, "info", info) or ())  # timm's description of the maps
        reductions = [int(entry["reduction"]) for entry in info]
        self._takes = set(inspect.signature(network.forward_intermediates).parameters) if info else set()
        self.plain = len(set(reductions)) == 1 and (len(reductions) > 1 or hasattr(network, "patch_embed"))
        self.patch_size = reductions[0] if self.plain else 0
        self.depth = len(info)
        has_prefix = self.plain and "return_prefix_tokens" in self._takes
        self.num_prefix_tokens = int(network.num_prefix_tokens) if has_prefix else 0
        self.class_token = self.num_prefix_tokens > 0 and getattr(network, "cls_token", None) is not None
        self._index: dict[str, int] = {}
        if not self.plain:  # of several maps of one stride the last, as in a ResNet
            last = {reduction: number for number, reduction in enumerate(reductions)}
            self._index = {name: last[stride] for name, stride in STRIDES.items() if stride in last}
        self.strides = {name: STRIDES[name] for name in self._index}
        self.channels = {name: int(info[number]["num_chs"]) for name, number in self._index.items()}
        self._found = ", ".join(map(str, dict.fromkeys(reductions))) or "none"

    def train(self, mode: bool = True) -> "TimmBackbone":
        """Switch timm's module too: it reads a flag of its own."""
        self.network.training = mode
        super().train(mode)
        return self

    def check_size(self) -> None:
        """Raise InputError if the network cannot take images of ``img_size``; on the meta device that is cheap."""
        training, side = self.training, self.input.size
        try:
            # A size that it refuses is an InputError; other errors are operations that meta tensors do not have.
            with torch.no_grad(), suppress(NotImplementedError, RuntimeError):
                self.eval()(torch.zeros(2, 3, side, side, device=next(self.parameters()).device))
        finally:
            self.train(training)

    def forward(self, x: Tensor) -> Tensor:
        """Features [N, num_features] of images [N, 3, H, W]: timm's ``forward_head(…, pre_logits=True)``."""
        with self._sizes(x):
            features = self.network.forward_features(x)
            if isinstance(features, Tensor) and not features.numel():  # meta tensors of torch 2.4 have no lower bound
                raise RuntimeError("the image is too small: its last map has no pixel")
            return self._pooled(features)

    def _pooled(self, features: Any) -> Tensor:
        return self.network.forward_head(features, pre_logits=True)

    def stages(self, x: Tensor) -> dict[str, Tensor]:
        """Maps and pooled features of images [N, 3, H, W].

        Returns:
            the names of ``strides``: [N, channels, H/stride, W/stride], not normalised; "pooled" [N, num_features].
        """
        with self._sizes(x):
            final, maps = self._intermediates(x, self._map_numbers())
            return {**self._named(maps), "pooled": self._pooled(final)}

    def maps(self, x: Tensor) -> dict[str, Tensor]:
        """``stages`` without what comes after the last map: no pooled features, nothing that detectors do not use."""
        with self._sizes(x):
            maps = self._intermediates(x, self._map_numbers(), intermediates_only=True, stop_early=True)
            return self._named(maps)

    def _named(self, maps: list[Tensor]) -> dict[str, Tensor]:
        return {name: maps[self._map_numbers().index(number)] for name, number in self._index.items()}

    def _map_numbers(self) -> list[int]:
        if not self.strides:
            kind = "the tokens of one map" if self.plain else f"strides {self._found}"
            what = "a network with maps of stride 4, 8, 16 or 32"
            raise InputError(f"expected {what}, found {kind} in {self.architecture}; choose another network")
        return sorted(set(self._index.values()))

    def tokens(self, x: Tensor, blocks: int = 1) -> list[tuple[Tensor, Tensor]]:
        """The tokens of a plain network's last blocks, each normalised by its final norm, where timm applies one.

        Args:
            x: images [N, 3, H, W].

        Returns:
            for each block the prefix tokens [N, P, C] and the patches as a map [N, C, h, w]; the last block comes last.
        """
        if not self.plain:
            raise InputError(f"expected a plain network with tokens, found the maps of {self.architecture}; use stages")
        if not 1 <= blocks <= self.depth:
            raise InputError(f"expected 1 to {self.depth} last blocks of {self.architecture}, found {blocks}")
        with self._sizes(x):
            options = {"norm": True, "intermediates_only": True, "stop_early": True}
            if self.num_prefix_tokens:
                pairs = self._intermediates(x, blocks, return_prefix_tokens=True, **options)
                return [(prefix, patches) for patches, prefix in pairs]
            return [(x.new_zeros((len(x), 0, m.shape[1])), m) for m in self._intermediates(x, blocks, **options)]

    def _intermediates(self, x: Tensor, indices: int | list[int], **options: bool) -> Any:
        known = {key: value for key, value in options.items() if key in self._takes}
        return self.network.forward_intermediates(x, indices=indices, output_fmt="NCHW", **known)

    @contextmanager
    def _sizes(self, x: Tensor) -> Iterator[None]:
        """Turn timm's and torch's errors about image sizes into an InputError."""
        if x.dim() != 4 or x.shape[1] != 3:
            raise ValueError(f"expected images [N, 3, H, W], found a tensor of shape {tuple(x.shape)}")
        height, width = x.shape[-2:]
        try:
            yield
        except (AssertionError, RuntimeError) as error:
            if not isinstance(error, AssertionError) and not _OF_SIZES.search(str(error)):
                raise
            if (height, width) != (self.input.size, self.input.size):
                patch = f", divisible by its patch of {self.patch_size} px" if self.patch_size else ""
                raise InputError(
                    f"expected images of {self.input.size} x {self.input.size} px for {self.architecture}{patch}, "
                    f"found {height} x {width}; give it their size by ?img_size=N"
                ) from error
            if "img_size" not in dict(self.architecture.options):
                raise
            raise InputError(
                f"expected an img_size that the network can take, found {self.architecture}: timm says "
                f"{first_line(error)}; its own is {max(self.network.pretrained_cfg['input_size'][1:])}"
            ) from error


#: torch's errors where an image of this size does not go through a network.
_OF_SIZES = re.compile(r"must match the size|[Ss]hape '\[|[Kk]ernel size|too small|broadcast|reshape tensor"
                       r"|[Nn]egative dimension|size of tensor|Sizes of tensors|Expected size|cannot be multiplied"
                       r"|calculated shape|view size")  # fmt: skip


def _input(network: Any, architecture: TimmArchitecture) -> NetworkInput:
    config = extra("timm.data", "networks of timm").resolve_model_data_config(network)
    size = dict(architecture.options).get("img_size") or max(config["input_size"][1:])
    interpolation = config["interpolation"] if config["interpolation"] in ("bilinear", "bicubic") else "bicubic"
    mean, std = tuple(config["mean"]), tuple(config["std"])
    return NetworkInput(int(size), mean, std, interpolation, float(config["crop_pct"]))
