"""A backbone with its weights, and where it comes from: a file, a name of timm, a module of the user's."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from momentum_transfer.backbones.build import AnyArchitecture, Backbone, build_backbone, metadata_of, parse_architecture
from momentum_transfer.backbones.families import ONLY
from momentum_transfer.backbones.key_report import KeyReport
from momentum_transfer.backbones.module_network import MODULE, of_text
from momentum_transfer.backbones.refusals import refuse_values
from momentum_transfer.backbones.timm_names import TimmArchitecture
from momentum_transfer.backbones.timm_network import published
from momentum_transfer.errors import InputError
from momentum_transfer.files import weights_name


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


def sha256_of_tensors(state: Mapping[str, Tensor]) -> str:
    """Hex SHA-256 of names, types, shapes and bytes, in order of names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
