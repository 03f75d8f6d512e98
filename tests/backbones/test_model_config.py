"""The files beside untrusted weights: a pipe is not waited for, a huge file is not read."""

import json
import os
from pathlib import Path

import pytest

from momentum_transfer.backbones.network_input import NetworkInput
from momentum_transfer.backbones.timm_inference import Clues
from momentum_transfer.backbones.understanding import (
    clues_of,
    detectors_network,
    input_in,
    read_model_config,
    timm_architecture_in,
)
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


VIT = {"patch_embed.proj.weight": (8, 3, 4, 4)}
STATED = {"layer_norm_eps": 1e-3, "num_attention_heads": 2, "image_size": 32.0, "hidden_act": "relu"}


@pytest.mark.parametrize(
    ("layout", "shapes", "config", "clues"),
    [
        ("timm", VIT, {"hidden_size": 8, **STATED}, {}),
        ("transformers-vit", VIT, {}, {"eps": 1e-12, "activation": "gelu"}),
        ("transformers-vit", VIT, {"hidden_size": 9, **STATED}, {"eps": 1e-12, "activation": "gelu"}),
        ("transformers-vit", VIT, {"hidden_size": 8}, {"eps": 1e-12, "activation": "gelu"}),
        ("transformers-vit", VIT, {"hidden_size": 8, **STATED},
         {"eps": 1e-3, "heads": 2, "side": 32, "activation": "relu"}),
        ("transformers-vit", VIT, {"hidden_size": 8, "layer_norm_eps": "1e-3", "image_size": True, "hidden_act": "own"},
         {"eps": 1e-12, "activation": "gelu"}),
        ("transformers-clip", VIT, {"hidden_size": 9, "vision_config": {"hidden_size": 8, "num_attention_heads": 4}},
         {"eps": 1e-5, "heads": 4, "activation": "quick_gelu"}),
        ("transformers-siglip", VIT, {"vision_config": 3, "hidden_size": 8, "hidden_act": "gelu_new"},
         {"eps": 1e-6, "activation": "gelu_tanh"}),
        ("transformers-swin", VIT, {"embed_dim": 8, "hidden_size": 64, "num_heads": [1, 2], "window_size": 7},
         {"heads": (1, 2), "window": 7}),
        ("transformers-dinov3", VIT, {"hidden_size": 8, "rope_theta": 50}, {"rope_temperature": 50}),
        ("transformers-convnext", {"stem.0.weight": (8, 3, 4, 4)}, {"hidden_sizes": [8, 16], "layer_norm_eps": 1e-3},
         {"final_eps": 1e-3, "activation": "gelu"}),
        ("transformers-convnext", {"stem.0.weight": (8, 3, 4, 4)}, {"hidden_sizes": [16, 8], "layer_norm_eps": 1e-3},
         {"final_eps": 1e-12, "activation": "gelu"}),
    ],
)  # fmt: skip
def test_a_config_counts_where_it_is_of_transformers_and_of_the_tensors_width(layout, shapes, config, clues):
    assert clues_of(layout, "named", True, shapes, config) == Clues(layout, "named", True, **clues)


@pytest.mark.parametrize(
    ("details", "sound"),
    [
        ({"mean": [0, 0.5, 1], "std": [1, 0.5, 1e-3]}, True),
        *(({"mean": mean, "std": [1, 1, 1]}, False) for mean in ([0, 0], [0] * 4, 0, [0, 0, "0"], [0, 0, 1.1],
                                                                 [-0.1, 0, 0], [True, 0, 0], (0, 0, 0))),
        *(({"mean": [0, 0, 0], "std": std}, False) for std in ([1, 1, 0], [1, 1, 1.1], [1, 1], None)),
        ({"mean": [0, 0, 0]}, False),
        (None, False),
    ],
)  # fmt: skip
def test_a_normalisation_is_three_means_and_three_deviations_from_0_to_1(details, sound):
    found = input_in({"architecture": "resnet10t", "pretrained_cfg": details})
    assert found == (NetworkInput(mean=tuple(details["mean"]), std=tuple(details["std"])) if sound else None)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (TIMM, "timm:resnet10t"),
        ({"architecture": "resnet18", "pretrained_cfg": {"tag": "a1_in1k"}}, "timm:resnet18.a1_in1k"),
        ({"architecture": "resnet18", "pretrained_cfg": {"tag": "of my own"}}, "timm:resnet18"),
        ({"architecture": "resnet18", "pretrained_cfg": 3, "model_args": 4}, "timm:resnet18"),
        (
            {**TIMM, "model_args": {"depths": [1, 2], "num_classes": 5, "in_chans": 1, "width": 0.5, "norm": None}},
            "timm:resnet10t?depths=(1,2)&width=0.5",
        ),
        ({**TIMM, "model_type": "resnet"}, None),
        ({"architecture": 3}, None),
        ({"architecture": "no_network_of_timm"}, None),
        ({}, None),
    ],
)
def test_timms_config_names_its_network_with_the_tag_that_timm_knows(config, name):
    found = timm_architecture_in(config)
    assert (None if found is None else str(found)) == name


def test_a_nested_config_without_the_width_that_is_transformers_own_counts():
    shapes = {"patch_embed.proj.weight": (768, 3, 32, 32)}
    config = {"model_type": "clip", "vision_config": {"hidden_act": "gelu"}}
    assert clues_of("transformers-clip", "transformers", False, shapes, config).activation == "gelu"
    other = {"patch_embed.proj.weight": (512, 3, 32, 32)}
    assert clues_of("transformers-clip", "transformers", False, other, config).activation == "quick_gelu"
