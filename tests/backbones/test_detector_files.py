"""The backbone of a finished detector, as it was fine-tuned: every tensor of it, nothing of the heads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from momentum_transfer.backbones.build import detectron2_names
from momentum_transfer.backbones.read import load_backbone
from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.initial_weights import read_initial
from momentum_transfer.transfer.torchvision_engine.detectors import export_state
from momentum_transfer.transfer.torchvision_engine.engine import build
from tests.tools.in_process import run_tool
from tests.transfer.torchvision_engine.tiny import tiny_config


def write_detector(path: Path, kind: str, *overrides: str) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    state = export_state(build(tiny_config(kind, *overrides)))
    torch.save({"model": state}, path)
    return state


@pytest.mark.parametrize("kind", ["retinanet", "fcos", "mask_rcnn", "mask_rcnn_c4", "stride16"])
def test_the_backbone_is_taken_out_whole(kind, tmp_path):
    state = write_detector(tmp_path / "model_final.pth", kind)
    source = load_backbone(tmp_path / "model_final.pth")
    assert source.family == "detector"
    assert source.report.complete
    names = detectron2_names(source.architecture)
    for own, tensor in source.state.items():
        detectron2s = [f"{prefix}{names[own]}" for prefix in ("backbone.bottom_up.", "backbone.", "roi_heads.")]
        found = [name for name in detectron2s if name in state]
        assert len(found) == 1 or own.endswith("num_batches_tracked")
        if found:
            assert torch.equal(tensor, state[found[0]])
    reasons = set(source.report.dropped.values())
    assert reasons <= {"feature pyramid", "the detector's heads"}


def test_a_frozen_detector_gives_its_backbone_too(tmp_path):
    write_detector(tmp_path / "model_final.pth", "retinanet", "MODEL.BACKBONE.FREEZE_AT", "2")
    assert load_backbone(tmp_path / "model_final.pth").report.complete


def test_convert_writes_it_and_transfer_starts_from_it(tmp_path):
    state = write_detector(tmp_path / "model_final.pth", "mask_rcnn")
    done = run_tool("convert", tmp_path / "model_final.pth", tmp_path / "backbone.pkl")
    assert done.returncode == 0, done.stdout + done.stderr
    initial = read_initial(str(tmp_path / "backbone.pkl"))
    assert not initial.detector
    assert torch.equal(initial.backbone["stem.conv1.weight"], state["backbone.bottom_up.stem.conv1.weight"])


def test_a_detector_that_lacks_a_part_of_its_backbone_is_refused(tmp_path):
    state = write_detector(tmp_path / "model_final.pth", "retinanet")
    del state["backbone.bottom_up.res3.0.conv1.weight"]
    torch.save({"model": state}, tmp_path / "model_final.pth")
    with pytest.raises(InputError, match=r"layer2\.0\.conv1\.weight"):
        load_backbone(tmp_path / "model_final.pth")


_SMALL_VIT = "depth=2&embed_dim=48&num_heads=2"
#: kind of detector, network of timm; where the tensors are in the file
ON_TIMM = [
    ("retinanet", "timm:convnext_atto?depths=(1,1,1,1)&dims=(16,24,32,48)", "backbone.bottom_up."),
    ("mask_rcnn", f"timm:vit_tiny_patch16_224?img_size=64&{_SMALL_VIT}", "backbone.net."),
    ("stride16", "timm:convnext_atto?depths=(1,1,1,1)&dims=(16,24,32,48)", "backbone."),
]


def on_timm(path: Path, kind: str, architecture: str, *overrides: str) -> dict[str, torch.Tensor]:
    return write_detector(path, kind, "MODEL.BACKBONE.ARCH", architecture, "MODEL.FPN.NORM", "LN", *overrides)


@pytest.mark.parametrize(("kind", "architecture", "prefix"), ON_TIMM)
def test_a_network_of_timm_is_taken_out_whole_under_timms_names(kind, architecture, prefix, tmp_path):
    state = on_timm(tmp_path / "model_final.pth", kind, architecture)
    source = load_backbone(tmp_path / "model_final.pth", architecture=architecture)
    assert (source.family, str(source.architecture)) == ("timm-detector", architecture)
    assert all(torch.equal(tensor, state[prefix + name]) for name, tensor in source.state.items())
    assert set(source.report.dropped.values()) <= {"feature pyramid", "the detector's heads"}
    network = source.build()
    assert network(torch.zeros(1, 3, network.input.size, network.input.size)).shape == (1, network.num_features)


def test_a_run_tells_which_network_of_timm_is_in_its_detector(tmp_path):
    _, architecture, _ = ON_TIMM[1]
    on_timm(tmp_path / "model_final.pth", "retinanet", architecture)
    described = {"architecture": f"{architecture}&dynamic_img_size=True&drop_path_rate=0.1", "parameters": 1}
    (tmp_path / "network.json").write_text(json.dumps(described))
    assert str(load_backbone(tmp_path / "model_final.pth").architecture) == architecture
    for broken in ("", "[]", '{"architecture": 3}', '{"architecture": "timm:no_such"}'):
        (tmp_path / "network.json").write_text(broken)
        with pytest.raises(InputError, match=r"name the network, --arch 'timm:vit_.*num_heads=N'"):
            load_backbone(tmp_path / "model_final.pth")


def test_resampled_patches_are_the_networks_own_and_of_no_other(tmp_path):
    asked = f"timm:vit_small_patch14_reg4_dinov2?img_size=56&{_SMALL_VIT}"
    on_timm(tmp_path / "model_final.pth", "retinanet", asked)
    with pytest.raises(InputError, match=r"patch_embed.proj.weight is \[48, 3, 16, 16\], expected \[48, 3, 14, 14\]"):
        load_backbone(tmp_path / "model_final.pth", architecture=asked)
    resampled = asked.replace("img_size=56", "img_size=64&patch_size=16")
    assert load_backbone(tmp_path / "model_final.pth", architecture=resampled).report.complete


def test_vitdets_network_is_refused_with_what_can_be_done(tmp_path):
    _, architecture, _ = ON_TIMM[1]
    on_timm(tmp_path / "model_final.pth", "retinanet", architecture, "MODEL.VIT.FORM", "vitdet")
    for asked in (None, architecture):
        with pytest.raises(
            InputError, match=r"found ViTDet's network in a detector, .*; go on with the whole detector"
        ):
            load_backbone(tmp_path / "model_final.pth", architecture=asked)
