"""Pretraining on networks of timm: bit-exact resuming, the exported architecture, refusals of what needs batch norm."""

import pytest
import timm
import torch
from torch import nn

from momentum_transfer.backbones.norms import MomentumBatchNorm
from momentum_transfer.backbones.read import load_backbone
from momentum_transfer.core.command import Stopped
from momentum_transfer.core.errors import InputError
from momentum_transfer.pretrain.methods import build_method
from momentum_transfer.pretrain.own_loop import build_method as method_by_name
from momentum_transfer.pretrain.pipeline import statistics
from momentum_transfer.pretrain.train import train

CONVNEXT = {"METHOD.NAME": "byol", "TEACHER.MOVES": "after", "NORM.TEACHER": "BN",
            "MODEL.ARCH": "timm:test_convnext?img_size=32", "SOLVER.OPTIMIZER": "adamw",
            "DATA.IMAGE_SIZE": 32}  # fmt: skip


def test_byol_of_a_convnext_resumes_bit_for_bit_and_exports_what_it_is(tiny_cfg, tmp_path):
    train(tiny_cfg({**CONVNEXT, "OUTPUT_DIR": tmp_path / "whole"}))
    half = tiny_cfg({**CONVNEXT, "OUTPUT_DIR": tmp_path / "half"})
    with pytest.raises(Stopped):
        train(half, stop_after=2)
    train(half, resuming=True)
    whole, resumed = (load_backbone(tmp_path / name / "backbone.safetensors") for name in ("whole", "half"))
    assert str(whole.architecture) == CONVNEXT["MODEL.ARCH"]
    assert whole.network == "student"
    assert all(torch.equal(tensor, resumed.state[name]) for name, tensor in whole.state.items())
    checkpoint = load_backbone(tmp_path / "whole", network="teacher")
    assert (checkpoint.architecture, checkpoint.network) == (whole.architecture, "teacher")
    assert not all(torch.equal(tensor, checkpoint.state[name]) for name, tensor in whole.state.items())


@pytest.mark.parametrize("name", ["MomentumBN", "TeacherPN", "GN"])
def test_what_needs_batch_norm_is_refused_of_a_network_without(name, tiny_cfg):
    with pytest.raises(
        InputError, match=rf"batch normalisation to replace by {name}, found timm:test_convnext.*heads alone"
    ):
        build_method(tiny_cfg({**CONVNEXT, "NORM.TEACHER": name}), 0)


def test_momentum_bn_takes_the_place_of_every_batch_norm_of_a_timm_network(tiny_cfg):
    method = build_method(tiny_cfg({"MODEL.ARCH": "timm:test_efficientnet?img_size=32", "DATA.IMAGE_SIZE": 32}), 0)
    teacher, student = method.backbone("teacher"), method.backbone("student")
    count = sum(isinstance(one, nn.BatchNorm2d) for one in timm.create_model("test_efficientnet").modules())
    assert sum(isinstance(one, MomentumBatchNorm) for one in teacher.modules()) == count
    assert not any(isinstance(one, MomentumBatchNorm) for one in student.modules())
    images = torch.randn(4, 3, 32, 32)
    assert torch.isfinite(method(images, images)["loss"])


def test_views_have_the_networks_own_statistics_and_size(tiny_cfg):
    assert statistics(tiny_cfg(CONVNEXT)) == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    with pytest.raises(InputError, match=r"DATA\.IMAGE_SIZE 160, the size of timm:test_vit, found 32"):
        statistics(tiny_cfg({**CONVNEXT, "MODEL.ARCH": "timm:test_vit"}))
    with pytest.raises(InputError, match="nearest are test_vit"):
        build_method(tiny_cfg({"MODEL.ARCH": "timm:test_vitt"}), 0)


def test_a_method_of_ones_own_loop_takes_a_timm_network():
    settings = {"HEAD.HIDDEN": 16, "HEAD.OUTPUT": 8}
    method = method_by_name("byol_eman", arch="timm:test_convnext?img_size=32", settings=settings)
    assert str(method.backbone().architecture) == "timm:test_convnext?img_size=32"
