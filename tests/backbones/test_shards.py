"""Checkpoints in shards read like the whole file; every damage of the set is one line."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from momentum_transfer.backbones.read import load_backbone
from momentum_transfer.core.errors import InputError
from tests.backbones.family_writers import network


def sharded(folder: Path) -> Path:
    """A ResNet's file in two shards with transformers' index."""
    names = sorted(state := {name: tensor.contiguous() for name, tensor in network().state_dict().items()})
    placed = {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        file = f"model-{number:05d}-of-00002.safetensors"
        save_file({name: state[name] for name in part}, folder / file)
        placed |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))
    return folder / "model.safetensors.index.json"


def test_shards_read_like_one_file_by_the_index_and_by_the_folder(tmp_path):
    torch.manual_seed(0)
    index = sharded(tmp_path)
    torch.manual_seed(0)
    whole = network().state_dict()
    for path in (index, tmp_path):
        source = load_backbone(path)
        assert all(torch.equal(tensor, whole[name]) for name, tensor in source.state.items())
        assert source.path == index
    hashes = source.sha256
    (tmp_path / "model-00002-of-00002.safetensors").rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"the shard model-00002-of-00002\.safetensors beside .*found none"):
        load_backbone(index)
    save_file({"conv1.weight": torch.zeros(8, 3, 7, 7)}, tmp_path / "model-00002-of-00002.safetensors")
    with pytest.raises(InputError, match="of different downloads"):
        load_backbone(index)
    assert len(hashes) == 64


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "expected an index of shards as JSON in"),
        ("[]", "expected a weight_map"),
        ('{"weight_map": {"a": 3}}', "expected a weight_map"),
        ('{"weight_map": {"a": "../../secret.safetensors"}}', "expected shards beside their index"),
    ],
)
def test_an_index_that_is_none_is_refused(text, message, tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(InputError, match=message):
        load_backbone(tmp_path / "model.safetensors.index.json")
