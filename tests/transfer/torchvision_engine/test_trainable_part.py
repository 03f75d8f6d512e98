"""Detectors of which a part of the backbone is trained: what moves, what checkpoints hold, and resuming from them."""

import pytest
import torch

from momentum_transfer.backbones.build import build_backbone
from momentum_transfer.backbones.convert import export_backbone
from momentum_transfer.core.command import Stopped
from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.config import check_settings
from momentum_transfer.transfer.detectron2_engine.engine import Detectron2Engine
from momentum_transfer.transfer.experiment import Experiment
from momentum_transfer.transfer.initial_weights import read_detector, read_initial
from momentum_transfer.transfer.tasks import open_task
from momentum_transfer.transfer.torchvision_engine.engine import TorchvisionEngine
from tests.transfer.torchvision_engine.test_train import SHORT
from tests.transfer.torchvision_engine.tiny import predict_tiny, shapes_config, tiny_config

VIT = ["MODEL.BACKBONE.ARCH", "timm:test_vit?img_size=64", "MODEL.VIT.FORM", "vitdet", "MODEL.FPN.NORM", "LN",
       "MODEL.FPN.OUT_CHANNELS", "32", "SOLVER.OPTIMIZER", "AdamW"]  # fmt: skip


def run(cfg, folder, weights, **options):
    return TorchvisionEngine().finetune(
        Experiment(cfg, open_task(cfg), read_initial(str(weights), cfg)), 3, folder, **options
    )


def weights_of(folder, text):
    torch.manual_seed(0)
    export_backbone(folder / "w.safetensors", build_backbone(text), {})
    return folder / "w.safetensors"


@pytest.mark.parametrize(
    ("settings", "text", "trained"),
    [
        (["MODEL.BACKBONE.TRAINABLE", "last-1"], "resnet10?width=32", lambda name: ".res5." in name),
        pytest.param(
            ["MODEL.BACKBONE.TRAINABLE", "lora-2", *VIT],
            VIT[1],
            lambda name: name.endswith((".qkv.weight", "attn.proj.weight")),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["last-1", "lora"],
)
def test_a_part_is_trained_its_checkpoints_hold_it_alone_and_go_on_bit_for_bit(
    settings, text, trained, tmp_path, stop_after
):
    weights = weights_of(tmp_path, text)
    cfg = shapes_config("retinanet", tmp_path, *SHORT, *settings)
    start = read_initial(str(weights), cfg).backbone
    whole = run(cfg, tmp_path / "whole", weights)
    final = read_detector(whole.weights)
    inner = {name: name.removeprefix("backbone.bottom_up.").removeprefix("backbone.net.") for name in final}
    held = {name for name in final if inner[name] in start}
    assert {inner[name] for name in held} == {name for name in start if name in inner.values()} != set()
    moved = {name for name in held if "tracked" not in name and not torch.equal(final[name], start[inner[name]])}
    assert moved == {name for name in held if trained(name) and "tracked" not in name}
    undo = stop_after(2)
    with pytest.raises(Stopped):
        run(cfg, tmp_path / "parts", weights)
    undo()
    (saved,) = (tmp_path / "parts/checkpoints").glob("*.pth")
    model = torch.load(saved, weights_only=True)["model"]
    if "lora" not in settings[1]:
        assert {name for name in model if name in held and "tracked" not in name} == moved
    else:
        assert not held & set(model)
    parts = read_detector(run(cfg, tmp_path / "parts", weights, resume=True).weights)
    assert all(torch.equal(final[name], parts[name]) for name in final)
    assert predict_tiny(TorchvisionEngine(), cfg, whole.weights, tmp_path / "found")


def test_other_weights_do_not_complete_a_checkpoint(tmp_path, stop_after):
    weights = weights_of(tmp_path, "resnet10?width=32")
    cfg = shapes_config("retinanet", tmp_path, *SHORT, "MODEL.BACKBONE.TRAINABLE", "norms")
    stop_after(2)
    with pytest.raises(Stopped):
        run(cfg, tmp_path / "parts", weights)
    torch.manual_seed(1)
    export_backbone(weights, build_backbone("resnet10?width=32"), {})
    with pytest.raises(InputError, match=r"expected the weights of digest [0-9a-f]{12} with"):
        run(cfg, tmp_path / "parts", weights, resume=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["MODEL.BACKBONE.TRAINABLE", "lora"], "a ViT of timm for lora, found resnet10"),
        (["MODEL.BACKBONE.TRAINABLE", "last-7"], "last-1 to last-4, found last-7"),
        (["MODEL.BACKBONE.TRAINABLE", "norms", "MODEL.BACKBONE.FROZEN", "True"], "found norms; choose one"),
        (["MODEL.BACKBONE.TRAINABLE", "some"], "of all, frozen, last-K, norms, lora, lora-R, found 'some'"),
    ],
)
def test_parts_that_are_not_there_are_refused_by_the_settings(settings, message):
    with pytest.raises(InputError, match=message):
        check_settings(tiny_config("retinanet", *settings))


def test_detectron2s_engine_says_that_it_cannot(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: True)
    reason = Detectron2Engine().unsupported(tiny_config("retinanet", "MODEL.BACKBONE.TRAINABLE", "norms"))
    assert reason == "MODEL.BACKBONE.TRAINABLE is the torchvision engine's; set ENGINE torchvision"
