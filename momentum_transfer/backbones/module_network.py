"""Any ``nn.Module`` as a backbone: what it must give, and how its maps, widths and input are found.

The protocol: ``module(images [N, 3, H, W])`` gives features [N, D], or one map [N, C, h, w], or a dict of maps by any
names, with pooled features [N, D] under "pooled" if the module has its own. Maps are known by their strides, the
image's side over the map's; where no features are pooled, they are the mean of the deepest map. An attribute ``input``
of the module, a :class:`NetworkInput` or a dict of its fields, describes its images; without it they have 224 px and
the settings' normalisation.
"""

import copy
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from momentum_transfer.backbones.batch_statistics import replace_batch_norm
from momentum_transfer.backbones.network_input import STRIDES, NetworkInput
from momentum_transfer.core.errors import InputError, first_line

MODULE = "module:"
#: Errors that are not the fault of the user's code: they keep their own message.
_OF_MACHINE = (InputError, MemoryError, torch.cuda.OutOfMemoryError)


@contextmanager
def _users_code(expected: str, advice: str = "") -> Iterator[None]:
    """Turn an error of the user's own code into an InputError of one line."""
    try:
        yield
    except _OF_MACHINE:
        raise
    except Exception as error:
        raise InputError(f"expected {expected}, found {first_line(error)}; {advice}--debug shows where") from error


@dataclass(frozen=True)
class ModuleArchitecture:
    """A module that the user's own code makes.

    Args:
        name: what records call it: ``module:package.path:factory``.
        factory: makes a new module.
        input: of its images, instead of the module's own ``input``.
    """

    name: str
    factory: Callable[[], nn.Module] = field(compare=False, repr=False)
    input: NetworkInput | None = None

    def __str__(self) -> str:
        return self.name

    def build(self, norm_layer: Callable[[int], nn.Module] | None = None) -> "ModuleBackbone":
        """The module as a backbone; ``norm_layer``: channels -> module, instead of every BatchNorm."""
        try:
            inspect.signature(self.factory).bind()
        except TypeError as error:
            raise InputError(f"expected {self} to take no arguments, found {error}; give it defaults") from error
        except ValueError:
            pass  # no signature to read: a class written in C
        with _users_code(f"{self} to give a torch.nn.Module"):
            module = self.factory()
        if not isinstance(module, nn.Module):
            raise InputError(f"expected {self} to give a torch.nn.Module, found a {type(module).__name__}")
        if norm_layer is not None:
            replace_batch_norm(module, norm_layer)
        return ModuleBackbone(module, self)


def of_module(module: nn.Module, name: str, spec: NetworkInput | None = None) -> ModuleArchitecture:
    """The architecture of a module in memory; each build is a new copy of it."""
    return ModuleArchitecture(name, partial(copy.deepcopy, module), spec)


def of_text(text: str) -> ModuleArchitecture:
    """The architecture behind ``module:package.path:factory``; importing it runs the user's own code."""
    package, colon, name = text.removeprefix(MODULE).partition(":")
    if not all(package.split(".")) or not colon or not name.isidentifier():
        raise InputError(f"expected {MODULE}package.path:factory, found {text!r}; name the module and its function")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # as python -m does, after everything that is installed
    try:
        imported = importlib.import_module(package)
    except Exception as error:  # the user's own code runs here
        if isinstance(error, ModuleNotFoundError) and f"{package}.".startswith(f"{error.name}."):
            raise InputError(
                f"expected a Python module {package}, found none ({error}); run in its folder, or set PYTHONPATH"
            ) from error
        kind = type(error).__name__
        raise InputError(f"expected {package} to be imported, found {kind}: {error}; --debug shows where") from error
    factory = getattr(imported, name, None)
    if not callable(factory):
        raise InputError(f"expected a function {name} that gives a network in {package}, found {factory!r}")
    return ModuleArchitecture(text, factory)


class ModuleBackbone(nn.Module):
    """A user's module with the interface of ``timm_network.TimmBackbone``."""

    plain = False
    channels_last = False

    def __init__(self, module: nn.Module, architecture: ModuleArchitecture) -> None:
        super().__init__()
        self.net = module
        self.architecture = architecture
        own = getattr(module, "input", None)
        if own is not None and architecture.input is None:
            own = input_of(own, f"the attribute input of {architecture}")
        self.says_input = architecture.input is not None or own is not None
        self.input = architecture.input or own or NetworkInput()
        self._by_name: dict[str, str] = {}  # our name of a map -> the module's
        self._deepest = ""
        self.channels: dict[str, int] = {}
        self.strides: dict[str, int] = {}
        self.num_features = self._find()

    def forward(self, x: Tensor) -> Tensor:
        """Features [N, num_features] of images [N, 3, H, W]."""
        return self._pooled(self._outputs(x))

    def stages(self, x: Tensor) -> dict[str, Tensor]:
        """Maps by the names of ``strides``, and "pooled"."""
        outputs = self._outputs(x)
        return {**self._named(outputs), "pooled": self._pooled(outputs)}

    def maps(self, x: Tensor) -> dict[str, Tensor]:
        """``stages`` without the pooled features."""
        return self._named(self._outputs(x))

    def _named(self, outputs: dict[str, Tensor]) -> dict[str, Tensor]:
        if not self._by_name:
            raise InputError(
                f"expected maps of stride 4, 8, 16 or 32 of {self.architecture}, found pooled features alone; let its "
                "forward give a dict of maps"
            )
        return {name: outputs[key] for name, key in self._by_name.items()}

    def _outputs(self, x: Tensor) -> dict[str, Tensor]:
        images = f"images [N, {', '.join(map(str, x.shape[1:]))}]"
        advice = "correct it, or give it an attribute input of the size that it takes; "
        with _users_code(f"{self.architecture} to take {images}", advice):
            outputs = self.net(x)
        if isinstance(outputs, Tensor):
            outputs = {"pooled" if outputs.dim() == 2 else "map": outputs}
        if not isinstance(outputs, Mapping) or not outputs:
            raise self._wrong(f"a {type(outputs).__name__}")
        for name, tensor in outputs.items():
            if not isinstance(tensor, Tensor) or tensor.dim() != (2 if name == "pooled" else 4):
                shape = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
                raise self._wrong(f"{shape} under {name!r}")
            if len(tensor) != len(x) or not tensor.numel():
                raise self._wrong(f"{tuple(tensor.shape)} under {name!r} for {len(x)} images")
            if not tensor.is_floating_point():
                raise self._wrong(f"{tensor.dtype} under {name!r}")
        return dict(outputs)

    def _wrong(self, found: str) -> InputError:
        return InputError(
            f"expected {self.architecture} to give features [N, D] or a dict of maps [N, C, h, w], found {found}"
        )

    def _pooled(self, outputs: dict[str, Tensor]) -> Tensor:
        return outputs["pooled"] if "pooled" in outputs else outputs[self._deepest].mean(dim=(2, 3))

    @torch.no_grad()
    def _find(self) -> int:
        """Strides, channels and width, from two grey images."""
        training, parameter = self.net.training, next(self.net.parameters(), torch.zeros(()))
        size = self.input.size
        self.net.eval()
        try:
            outputs = self._outputs(torch.zeros(2, 3, size, size, device=parameter.device, dtype=parameter.dtype))
        finally:
            self.net.train(training)
        maps = {name: tensor for name, tensor in outputs.items() if name != "pooled"}
        for key, tensor in maps.items():
            if self._deepest == "" or tensor.shape[-1] <= outputs[self._deepest].shape[-1]:
                self._deepest = key
            for name, stride in STRIDES.items():
                if tensor.shape[-1] == -(-size // stride):
                    self._by_name[name], self.channels[name], self.strides[name] = key, tensor.shape[1], stride
        return int(self._pooled(outputs).shape[1])


def input_of(said: Any, where: str, size: int = NetworkInput().size) -> NetworkInput:
    """A :class:`NetworkInput` from one or from a dict of some of its fields, checked; ``size`` where the dict has none,
    ``where`` for the message of the InputError."""
    try:
        found = said if isinstance(said, NetworkInput) else NetworkInput(**{"size": size, **said})
        sound = not isinstance(found.size, bool) and found.size == int(found.size) > 0
        sound = sound and len(found.mean) == len(found.std) == 3 and min(found.std) > 0
        if sound and 0 < found.crop <= 1 and found.interpolation in ("bilinear", "bicubic"):
            return NetworkInput(int(found.size), tuple(found.mean), tuple(found.std), found.interpolation, found.crop)
    except (TypeError, ValueError):
        pass
    raise InputError(f"expected {where} as {', '.join(NetworkInput._fields)} of images, found {said!r}")
