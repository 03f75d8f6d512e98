"""The files beside untrusted weights: a pipe is not waited for, a huge file is not read."""

import json
import os
from pathlib import Path

import pytest

from momentum_transfer.backbones.model_config import detectors_network, read_model_config
from momentum_transfer.core.untrusted import MOST_BYTES

TIMM = {"architecture": "resnet10t"}


def test_a_config_beside_the_weights_is_read(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(TIMM))
    (tmp_path / "network.json").write_text(json.dumps({"architecture": "timm:resnet10t?drop_path_rate=0.1"}))
    assert read_model_config(tmp_path / "model.safetensors") == TIMM
    assert str(detectors_network(tmp_path / "model_final.pth")) == "timm:resnet10t"


@pytest.mark.parametrize("kind", ["none", "pipe", "folder", "large", "bytes", "list"])
def test_what_is_no_plain_config_counts_as_none(tmp_path: Path, kind: str):
    for name, content in (("config.json", TIMM), ("network.json", {"architecture": "timm:resnet10t"})):
        file, text = tmp_path / name, json.dumps(content)
        if kind == "pipe":
            os.mkfifo(file)
        elif kind == "folder":
            file.mkdir()
        elif kind == "large":
            file.write_text(text + " " * MOST_BYTES)
        elif kind == "bytes":
            file.write_bytes(b"\xff" + text.encode())
        elif kind == "list":
            file.write_text(f"[{text}]")
    assert read_model_config(tmp_path / "model.safetensors") == {}
    assert detectors_network(tmp_path / "model_final.pth") is None
