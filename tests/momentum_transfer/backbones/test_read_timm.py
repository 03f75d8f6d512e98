"""Checkpoints of timm's networks in every project's nesting: the network's own features, and no key unmentioned."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from momentum_transfer.backbones.read import load_backbone
from tests.momentum_transfer.backbones.test_read import parent_told, tensor_paths
from tests.momentum_transfer.backbones.timm_family_writers import TIMM_WRITERS, TimmSample


def write(sample: TimmSample, folder: Path) -> Path:
    path = folder / f"checkpoint{sample.suffix}"
    if sample.suffix == ".safetensors":
        save_file({name: tensor.contiguous() for name, tensor in sample.tree.items()}, path)
    else:
        torch.save(sample.tree, path)
    return path


@torch.no_grad()
def features(network: torch.nn.Module, side: int) -> torch.Tensor:
    images = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    if hasattr(network, "network"):
        return network(images)
    return network.forward_head(network.forward_features(images), pre_logits=True)


@pytest.mark.parametrize("writer", TIMM_WRITERS, ids=lambda writer: writer.__name__)
def test_every_nesting_gives_the_networks_own_features_and_accounts_for_every_key(writer, tmp_path):
    sample = writer()
    path = write(sample, tmp_path)
    for network in (None, *sample.networks):
        source = load_backbone(path, which=None if network == "backbone" else network)
        expected = network or sample.default
        assert (source.family, str(source.architecture), source.network) == (
            sample.family,
            sample.architecture,
            expected,
        )
        built = source.build()
        side = built.input.size if "img_size" in sample.architecture else 64
        assert torch.allclose(features(built, side), features(sample.networks[expected], side), atol=1e-5)
    report = source.report
    told = set(report.used) | set(report.dropped)
    for key in tensor_paths(sample.tree):
        assert key in told or f"{key.rpartition('.')[0]}.*" in told or parent_told(key, told), key
    assert report.complete
    assert {name for names in report.used.values() for name in names.split(", ")} == set(source.state)
    assert all(name in " ".join(report.dropped) for name in sample.dropped)
