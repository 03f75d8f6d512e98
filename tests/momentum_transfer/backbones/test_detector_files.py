"""The backbone of a finished detector, as it was fine-tuned: every tensor of it, nothing of the heads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from momentum_transfer.backbones.read import detectron2_names, load_backbone
from momentum_transfer.errors import InputError
from tests.tools.in_process import run_tool
from tests.transfer.torchvision_engine.tiny import tiny_config
from transfer.initial_weights import read_initial
from transfer.torchvision_engine.engine import build
from transfer.torchvision_engine.weights import export_state


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
        theirs = [f"{prefix}{names[own]}" for prefix in ("backbone.bottom_up.", "backbone.", "roi_heads.")]
        found = [name for name in theirs if name in state]
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
