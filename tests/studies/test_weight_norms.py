"""Norms of a checkpoint's weights as records, against torch's by hand."""

import json
import math

import pytest
import torch

from momentum_transfer.backbones.resnet import Architecture
from tests.backbones.test_synthetic_lars import sample
from tests.tools.in_process import run_tool


def test_norms_are_geometric_means_over_tensors_and_scale_with_them(tmp_path):
    container = sample(Architecture("resnet10", 8))[0]
    torch.save(container, tmp_path / "one.pth")
    told = run_tool("studies/weight_norms", "--weights", tmp_path / "one.pth", "--results", tmp_path / "r.jsonl")
    assert told.returncode == 0, told.stderr
    records = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [record["task"] for record in records] == ["weights/conv", "weights/bn"]
    tensors = next((value for value in container.values() if isinstance(value, dict)), container)
    norms = [float(t.norm()) for name, t in tensors.items() if t.dim() == 4]
    assert records[0]["tensors"] == len(norms) == 12
    assert records[0]["value"] == pytest.approx(math.exp(sum(map(math.log, norms)) / len(norms)), rel=1e-5)
