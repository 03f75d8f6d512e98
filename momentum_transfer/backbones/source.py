"""A backbone with its weights, and where it comes from: a file, a name of timm, a module of the user's.

Key report: which keys of a checkpoint were used, dropped (with the reason) or missing, as data and as a table.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from momentum_transfer.backbones.build import (
    AnyArchitecture,
    Backbone,
    build_backbone,
    metadata_of,
    own_input,
    parse_architecture,
)
from momentum_transfer.backbones.containers import refuse_values
from momentum_transfer.backbones.families import ONLY
from momentum_transfer.backbones.module_network import MODULE, ModuleArchitecture, of_text
from momentum_transfer.backbones.network_input import NetworkInput
from momentum_transfer.backbones.timm_models import TimmArchitecture
from momentum_transfer.backbones.timm_network import published
from momentum_transfer.core import log
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import RANDOM_OF, sha256_of_text, weights_name


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
        filled: ``num_batches_tracked`` counters that the file lacks, set to 0. BatchNorm's evaluation and its momentum
            updates do not read them.
        notes: decisions, in words: which family won, which network was taken.
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
        integers = [key for key, target in self.used.items() if target.endswith("num_batches_tracked")]
        floats = [key for key in self.used if key not in set(integers)]
        rows = [("used", "weights and BatchNorm statistics", len(floats), _examples(floats))]
        if integers:
            rows.append(
                ("used", "integers, kept as they are (num_batches_tracked)", len(integers), _examples(integers))
            )
        for reason, count in Counter(self.dropped.values()).items():
            keys = [key for key, why in self.dropped.items() if why == reason]
            rows.append(("dropped", reason, count, _examples(keys)))
        if self.filled:
            rows.append(("filled with 0", "integers absent from the file", len(self.filled), _examples(self.filled)))
        shapes = [f"{key} {list(found)} for {list(expected)}" for key, found, expected in self.wrong_shape]
        for what, keys in (("missing", self.missing), ("wrong shape", shapes), ("unexpected", self.unexpected)):
            rows.append((what, "", len(keys), _examples(keys)))
        return rows

    def show(self, title: str) -> None:
        """Print the grouped table."""
        log.table(title, ("keys", "rule", "number", "examples"), self.rows())


class CoverageError(InputError):
    """The file does not hold the whole backbone, or more than it; ``report`` says what became of every key."""

    def __init__(self, message: str, report: KeyReport) -> None:
        super().__init__(message)
        self.report = report


def _examples(keys: Sequence[str], count: int = 2) -> str:
    return ", ".join(keys[:count]) + (", …" if len(keys) > count else "")


#: A network at random, ``random-of:CHECKPOINT``: seed of its weights; image crops of its BN statistics, px.
RANDOM_SEED, _CROPS, _CROP_SIZE = 0, 32, 128


@dataclass
class SourceBackbone:
    """A backbone read from a file.

    Attributes:
        state: torchvision's names (ResNets) or timm's -> tensors, statistics and counters included, no classifier.
        architecture: inferred from names and shapes, or as asked.
        family: name of the rule that read it.
        network: "student", "teacher", or "backbone" where the file holds one network and does not say which.
        path: the file itself (a run folder is resolved to its checkpoint).
        sha256: of that file.
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
        """What records say of the weights: name, SHA-256, and where known the method and a random network's seed."""
        known = {key: self.metadata[key] for key in ("method", "random_seed") if self.metadata.get(key)}
        return {"name": self.name, "sha256": self.sha256, **known}

    def build(self) -> Backbone:
        """The network with these weights: float32, eval mode, every tensor loaded strictly."""
        network = build_backbone(self.architecture)
        network.load_state_dict(self.state, strict=True)
        return network.float().eval()


def named_backbone(text: str, which: str | None = None, family: str | None = None) -> SourceBackbone:
    """The backbone behind ``timm:NAME`` or ``module:package.path:factory``, with its weights.

    Raises:
        InputError: as ``timm_network.published`` or ``module_network.of_text``, or a choice that means nothing here.
    """
    if which is not None or family is not None:
        raise InputError(f"expected no --which and no --family with {text}, which is one network; leave them out")
    if text.startswith(MODULE):
        return of_network(of_text(text).build())
    architecture = parse_architecture(text)
    assert isinstance(architecture, TimmArchitecture)
    return of_network(published(architecture))


def of_network(network: Backbone) -> SourceBackbone:
    """A network at hand as what is evaluated: its tensors as they are, named by its architecture's text.

    Raises:
        InputError: weights that are not there (on the meta device), or no weights to compute with.
    """
    if absent := [name for name, tensor in network.state_dict().items() if tensor.is_meta]:
        raise InputError(
            f"expected the weights of {network.architecture}, found none in {absent[0]}, which is on the meta device; "
            "make the module on the CPU, and load its weights"
        )
    state = {name: tensor.detach().cpu().clone() for name, tensor in network.state_dict().items()}
    text, report = str(network.architecture), KeyReport(used={name: name for name in state})
    refuse_values({name: tensor for name, tensor in state.items() if tensor.is_floating_point()}, Path(text))
    sha256 = sha256_of_tensors(state)
    metadata = {"source": text, "source_sha256": sha256, "network": ONLY, **metadata_of(network.architecture)}
    made = SourceBackbone(state, network.architecture, "named", ONLY, Path(text), sha256, metadata, report)
    made.name = weights_name(text)
    return made


def random_of(architecture: AnyArchitecture, like: str) -> SourceBackbone:
    """The network at random that ``random-of:LIKE`` names: another one to compare a checkpoint with.

    Weights are those of a fresh network under the seed `RANDOM_SEED`, the same in every tool and trial. Where it has
    BatchNorms, their statistics are those of crops of scikit-learn's two sample images: mean 0 and variance 1 belong to
    no network, and make frozen features look better or worse than they are.

    Args:
        like: the checkpoint whose architecture this is, for the name.

    Raises:
        InputError: a module of the user's own, which alone decides its weights.
    """
    text = f"{RANDOM_OF}{like}"
    if isinstance(architecture, ModuleArchitecture):
        raise InputError(f"expected a checkpoint or timm:NAME, found {text}; let the module's factory load no weights")
    state = {name: tensor.clone() for name, tensor in _random_state(architecture).items()}
    about = {"method": "random", "random_seed": str(RANDOM_SEED), **metadata_of(architecture)}
    sha256 = sha256_of_text(str(about))  # not of the tensors: the last bits of statistics differ by machine
    metadata = {"source": f"{RANDOM_OF}{weights_name(like)}", "source_sha256": sha256, "network": ONLY, **about}
    report = KeyReport(used={name: name for name in state})
    return SourceBackbone(state, architecture, "named", ONLY, Path(text), sha256, metadata, report, weights_name(text))


@lru_cache(maxsize=2)  # a run asks more than once
def _random_state(architecture: AnyArchitecture) -> Mapping[str, Tensor]:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(RANDOM_SEED)
        network = build_backbone(architecture).eval()
        norms = [each for each in network.modules() if isinstance(each, nn.modules.batchnorm._BatchNorm)]
        for norm in norms:
            norm.momentum = None  # one batch: its statistics are the running ones
            norm.train()
        if norms:
            network(_image_crops(own_input(architecture) or NetworkInput(_CROP_SIZE)))
    found: Mapping[str, Tensor] = network.state_dict()
    return found


def _image_crops(wanted: NetworkInput) -> Tensor:
    """[crops, 3, size, size] of scikit-learn's sample images, the same every time, normalised."""
    from sklearn.datasets import load_sample_images

    draw, crops = np.random.default_rng(0), []
    images = load_sample_images().images  # uint8 [427, 640, 3]
    side = min(wanted.size, *images[0].shape[:2])
    for number in range(_CROPS):
        image = images[number % len(images)]
        top, left = (int(draw.integers(length - side + 1)) for length in image.shape[:2])
        crops.append(image[top : top + side, left : left + side])
    images = torch.from_numpy(np.stack(crops)).permute(0, 3, 1, 2).float() / 255
    images = nn.functional.interpolate(images, size=(wanted.size, wanted.size), mode="bilinear")
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (wanted.mean, wanted.std))
    return (images - mean) / std


def sha256_of_tensors(state: Mapping[str, Tensor]) -> str:
    """Hex SHA-256 of names, types, shapes and bytes, in order of names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
