"""A backbone with its weights, and where it comes from: a file, a name of timm, a module of the user's.

The key report says which keys of a checkpoint were used, dropped (with the reason) or missing.
"""

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from momentum_transfer.backbones import build
from momentum_transfer.backbones.build import AnyArchitecture, Backbone, metadata_of
from momentum_transfer.backbones.families import ONLY
from momentum_transfer.backbones.module_network import ModuleArchitecture, ModuleBackbone
from momentum_transfer.backbones.network_input import NetworkInput
from momentum_transfer.backbones.resnet import COUNTER
from momentum_transfer.core import log
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import RANDOM_OF, given_name, sha256_of_text, weights_name


@dataclass
class KeyReport:
    """Every tensor of the file is in exactly one of ``used``, ``dropped``, ``wrong_shape`` and ``unexpected``.

    ``dropped`` groups what lies outside the state dicts as ``path.*``.

    Attributes:
        used: key in the file -> backbone tensor it became.
        dropped: key in the file -> the rule that dropped it.
        missing: backbone tensors that the file lacks.
        wrong_shape: (key in the file, shape found, shape expected).
        unexpected: keys under the backbone's prefix that are neither a backbone tensor nor dropped by a rule, or that
            name a backbone tensor which an earlier key named (``module.conv1.weight`` beside ``conv1.weight``).
        filled: ``num_batches_tracked`` counters that the file lacks, set to 0: evaluation does not read them.
        notes: which family was chosen, which network was taken.
    """

    used: dict[str, str] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    wrong_shape: list[tuple[str, Sequence[int], Sequence[int]]] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    filled: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether the whole backbone was found and nothing unexplained is left in it."""
        return not (self.missing or self.wrong_shape or self.unexpected)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"complete": self.complete, **asdict(self)}

    def rows(self) -> list[tuple[str, str, int, str]]:
        """(what happened, why, how many keys, examples), grouped by rule."""
        integers = [key for key, target in self.used.items() if target.endswith(COUNTER)]
        groups = [("used", "weights and BatchNorm statistics", [key for key in self.used if key not in set(integers)])]
        if integers:
            groups.append(("used", f"integers, kept as they are ({COUNTER})", integers))
        for reason in dict.fromkeys(self.dropped.values()):
            groups.append(("dropped", reason, [key for key, why in self.dropped.items() if why == reason]))
        if self.filled:
            groups.append(("filled with 0", "integers absent from the file", self.filled))
        shapes = [f"{key} {list(found)} for {list(expected)}" for key, found, expected in self.wrong_shape]
        groups += [("missing", "", self.missing), ("wrong shape", "", shapes), ("unexpected", "", self.unexpected)]
        return [
            (what, why, len(keys), ", ".join(keys[:2]) + (", …" if len(keys) > 2 else "")) for what, why, keys in groups
        ]

    def show(self, title: str) -> None:
        """Print the grouped table."""
        log.table(title, ("keys", "rule", "number", "examples"), self.rows())


class CoverageError(InputError):
    """The file does not hold the whole backbone, or more than it; ``report`` says what became of every key."""

    def __init__(self, message: str, report: KeyReport) -> None:
        super().__init__(message)
        self.report = report


@dataclass
class SourceBackbone:
    """A backbone with its weights.

    Attributes:
        state: torchvision's names (ResNets) or timm's -> tensors, statistics and counters included, no classifier.
        family: name of the rule that read it.
        network: "student", "teacher", or "backbone" where the file holds one network without saying which.
        path, sha256: of the file itself (a run folder is resolved to its checkpoint).
        metadata: text that travels with conversions: source, hashes, network, method.
        report: what became of every key.
        name: what results call it.
    """

    state: dict[str, Tensor]
    architecture: AnyArchitecture
    family: str
    network: str
    path: Path
    sha256: str
    metadata: dict[str, str]
    report: KeyReport = field(repr=False)
    name: str = ""

    @property
    def checkpoint(self) -> dict[str, str]:
        """What records say of the weights: name, SHA-256, and where known the method, a random network's seed and the
        ``weights`` that its pretraining started from."""
        known = {key: self.metadata[key] for key in ("method", "random_seed", "weights") if self.metadata.get(key)}
        return {"name": self.name, "sha256": self.sha256, **known}

    def build(self) -> Backbone:
        """The network with these weights: float32, eval mode, every tensor loaded strictly."""
        network = build.build_backbone(self.architecture)
        network.load_state_dict(self.state, strict=True)
        return network.float().eval()


def refuse_values(state: Mapping[str, Tensor], path: Path) -> None:
    """Raise InputError at the first tensor that is not trained: NaN or Inf, a convolution or linear layer of one value,
    a negative variance, integers as weights, fractions as counters."""
    for name, tensor in state.items():
        if flaw := _flaw(name, tensor, f"{name} of {path}"):
            raise InputError(flaw)


def _flaw(name: str, tensor: Tensor, where: str) -> str:
    if name.endswith(COUNTER):
        if not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool):
            return ""
        return (f"expected an integer counter, found {tensor.dtype} in {where}; the weights were cast with their "
                "counters: cast only the floating-point tensors, or leave the counters out")  # fmt: skip
    if not tensor.is_floating_point():
        kind = "complex" if tensor.is_complex() else "integer"
        return (f"expected floating-point weights, found {kind} ones ({tensor.dtype} in {where}); give the weights "
                "before quantisation")  # fmt: skip
    if not torch.isfinite(tensor).all():
        return f"expected finite weights, found NaN or Inf in {where}; its training diverged, take an earlier one"
    if is_constant(name, tensor):
        value, count = f"{float(tensor.flatten()[0]):g}", f"{tensor.numel():,}"
        return (f"expected trained weights, found {value} in all {count} places of {where}; nothing was copied into "
                "it: take the original file, or write it anew")  # fmt: skip
    if name.endswith("running_var") and bool((tensor < 0).any()):
        return f"expected variances of at least 0, found {float(tensor.min()):.3g} in {where}; take the original file"
    return ""


def is_constant(name: str, tensor: Tensor) -> bool:
    """Whether all weights of a convolution or a linear layer are one value; no network of timm begins so."""
    matrix = name.endswith("weight") and tensor.dim() > 1 and tensor.numel() > 1
    return matrix and bool((tensor == tensor.flatten()[0]).all())


def of_network(network: Backbone) -> SourceBackbone:
    """A network in memory as a source: its tensors as they are, named by its architecture's text.

    Its hash is that of the tensors; of a user's module also of its code, which no architecture names.
    """
    if absent := [name for name, tensor in network.state_dict().items() if tensor.is_meta]:
        found = f"none in {absent[0]}, which is on the meta device; make the module on the CPU, and load its weights"
        raise InputError(f"expected the weights of {network.architecture}, found {found}")
    state = {name: tensor.detach().cpu().clone() for name, tensor in network.state_dict().items()}
    text, sha256 = str(network.architecture), _sha256_of_tensors(state)
    refuse_values({name: tensor for name, tensor in state.items() if tensor.is_floating_point()}, Path(text))
    if isinstance(network, ModuleBackbone):
        sha256 = sha256_of_text(f"{sha256} {_code_of(network.net)}")
    metadata = {"source": text, "source_sha256": sha256, "network": ONLY}
    return _of_state(state, network.architecture, text, metadata)


def _of_state(
    state: dict[str, Tensor], architecture: AnyArchitecture, text: str, metadata: Mapping[str, str]
) -> SourceBackbone:
    metadata = {**metadata, **metadata_of(architecture)}
    report, sha256 = KeyReport(used={name: name for name in state}), metadata["source_sha256"]
    return SourceBackbone(state, architecture, "named", ONLY, Path(text), sha256, metadata, report, weights_name(text))


#: A network at random, ``random-of:CHECKPOINT``: seed of its weights; images of its BN statistics, their side in px.
RANDOM_SEED, _CROPS, _CROP_SIZE = 0, 32, 128


def random_of(architecture: AnyArchitecture, like: str) -> SourceBackbone:
    """The randomly initialised network that ``random-of:LIKE`` names, a baseline for a checkpoint.

    Weights are those of a fresh network under the seed `RANDOM_SEED`, the same in every tool and trial. BatchNorm
    statistics, if any, are those of crops of scikit-learn's two sample images: mean 0 and variance 1 belong to no
    network, and make frozen features look better or worse than they are.
    """
    text = f"{RANDOM_OF}{like}"
    if isinstance(architecture, ModuleArchitecture):
        raise InputError(f"expected a checkpoint or timm:NAME, found {text}; let the module's factory load no weights")
    state = {name: tensor.clone() for name, tensor in _random_state(architecture).items()}
    about = {"method": "random", "random_seed": str(RANDOM_SEED), **metadata_of(architecture)}
    sha256 = sha256_of_text(str(about))  # not of the tensors: the last bits of statistics differ by machine
    source = {"source": f"{RANDOM_OF}{given_name(like)}", "source_sha256": sha256, "network": ONLY}
    return _of_state(state, architecture, text, {**source, **about})


@lru_cache(maxsize=2)  # a run asks more than once
def _random_state(architecture: AnyArchitecture) -> Mapping[str, Tensor]:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(RANDOM_SEED)
        network = build.build_backbone(architecture).eval()
        norms = [each for each in network.modules() if isinstance(each, nn.modules.batchnorm._BatchNorm)]
        for norm in norms:
            norm.momentum = None  # one batch: its statistics are the running ones
            norm.train()
        if norms:
            network(_sample_crops(build.own_input(architecture) or NetworkInput(_CROP_SIZE)))
    state: Mapping[str, Tensor] = network.state_dict()
    return state


def _sample_crops(spec: NetworkInput) -> Tensor:
    """[crops, 3, size, size] of scikit-learn's sample images, the same every time, normalised."""
    from sklearn.datasets import load_sample_images

    random, crops = np.random.default_rng(0), []
    samples = load_sample_images().images  # uint8 [427, 640, 3]
    side = min(spec.size, *samples[0].shape[:2])
    for number in range(_CROPS):
        sample = samples[number % len(samples)]
        top, left = (int(random.integers(length - side + 1)) for length in sample.shape[:2])
        crops.append(sample[top : top + side, left : left + side])
    images = torch.from_numpy(np.stack(crops)).permute(0, 3, 1, 2).float() / 255
    images = nn.functional.interpolate(images, size=(spec.size, spec.size), mode="bilinear")
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (spec.mean, spec.std))
    return (images - mean) / std


def _sha256_of_tensors(state: Mapping[str, Tensor]) -> str:
    """Hex SHA-256 of names, types, shapes and bytes, in order of names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _code_of(network: nn.Module) -> str:
    """What a module does beside its tensors: names, plain attributes and functions of its submodules, and their source.

    Torch's own classes and functions count by name, so that another version of torch makes no other network.
    """
    lines, code = [], {}
    for name, module in network.named_modules():
        held = {key: value for key, value in sorted(vars(module).items()) if key != "training"}
        plain = {key: value for key, value in held.items() if _is_plain(value)}
        functions = {key: value for key, value in held.items() if inspect.isroutine(value)}
        called = {key: getattr(value, "__name__", "") for key, value in functions.items()}
        lines.append(f"{name} {type(module).__qualname__} {plain} {called}")
        code.update(dict.fromkeys([*type(module).__mro__, *functions.values()]))
    return "\n".join([*lines, *map(_source, code)])


def _is_plain(value: Any) -> bool:
    return isinstance(value, (int, float, str)) or (isinstance(value, tuple) and all(map(_is_plain, value)))


def _source(code: Any) -> str:
    """Source of a class or function that is not torch's; "" where there is none to read."""
    if str(getattr(code, "__module__", "torch")).partition(".")[0] in ("torch", "builtins"):
        return ""
    try:
        return inspect.getsource(code)
    except (OSError, TypeError):  # in a notebook a class has none, but its methods have
        return "".join(map(_source, filter(inspect.isfunction, vars(code).values()))) if inspect.isclass(code) else ""
