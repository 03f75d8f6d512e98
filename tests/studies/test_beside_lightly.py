"""The peers of lightly: the same loss and gradient from the same weights, a run of both, and the error without it."""

import json
import sys

import pytest
import torch

from momentum_transfer.core.checkpoints import CheckpointFolder
from momentum_transfer.core.settings import load_config
from momentum_transfer.pretrain.config import get_cfg
from momentum_transfer.pretrain.methods import build_method
from momentum_transfer.pretrain.run import prepare
from momentum_transfer.pretrain.train import train
from studies.beside_lightly import PEERS, train_beside
from tests.tools.in_process import run_tool

TINY = ["MODEL.WIDTH", "4", "HEAD.HIDDEN", "16", "HEAD.OUTPUT", "8", "MOCO.QUEUE", "64", "NORM.TEACHER", "BN",
        "SOLVER.BATCH_SIZE", "8", "SOLVER.STEPS", "2"]  # fmt: skip
WITHOUT = "the lightly package is not installed (pip install '.[upstream]')"


def settings(method, *more):
    words = [*TINY, "METHOD.NAME", method, "HEAD.PROJECTOR_NORM", str(method != "moco"), *map(str, more)]
    return load_config(get_cfg(), "smoke/momentum2_digits", words)


@pytest.mark.parametrize("method", ["byol", "moco", "simsiam"])
def test_loss_and_gradient_are_lightlys_from_the_same_weights(method):
    pytest.importorskip("lightly", reason=WITHOUT)
    torch.manual_seed(0)
    cfg = settings(method)
    ours = build_method(cfg, 10).train()
    peer = PEERS[method](build_method(cfg, 10).backbone("student"), cfg).train()
    peer.backbone.load_state_dict(ours.student.backbone.state_dict())
    start_as(ours, peer)
    view1, view2 = torch.randn(2, 8, 3, 32, 32)
    for network in (ours, peer):
        found = network(view1, view2)
        (found["loss"] if isinstance(found, dict) else found).backward()
    expected, shift = ours(view1, view2)["loss"], {"byol": 4.0, "moco": 0.0, "simsiam": 0.0}[method]
    if method != "moco":  # its queue has moved on
        torch.testing.assert_close(peer(view1, view2) + shift, expected)
    for (name, a), (_, b) in zip(
        ours.student.backbone.named_parameters(), peer.backbone.named_parameters(), strict=True
    ):
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("method", ["byol", "moco", "simsiam"])
def test_runs_whose_heads_start_alike_stay_alike(method, tmp_path):
    pytest.importorskip("lightly", reason=WITHOUT)
    words = "SOLVER.STEPS 6 SOLVER.WARMUP_EPOCHS 0.01 TEACHER.MOVES after TEACHER.MOMENTUM_SCHEDULE constant"
    cfg = settings(method, *words.split(), "OUTPUT_DIR", tmp_path)
    nowhere = CheckpointFolder(tmp_path / "nowhere", 1)
    ours, run = prepare(cfg, torch.device("cpu"), nowhere).method, prepare(cfg, torch.device("cpu"), nowhere)
    peer = PEERS[method](run.method.backbone("student"), cfg).train()
    start_as(ours, peer)
    train_beside(run, peer)
    train(cfg)  # from the seed's start, which `ours` has
    (file,) = (tmp_path / "checkpoints").glob("*.pt")
    after = torch.load(file, weights_only=True)["model"]
    before = ours.student.backbone.state_dict()
    for name, tensor in peer.backbone.state_dict().items():
        end = after[f"student.backbone.{name}"].float()
        assert (end - tensor).norm() <= 1e-3 * (end - before[name]).norm(), name


def start_as(ours, peer):
    """Heads, teacher and queue of ``ours`` for ``peer``, which has its backbone."""
    for name in ("projector", "predictor"):
        if getattr(ours.student, name) is not None:
            _copy(getattr(ours.student, name), getattr(peer, name))
    for student, teacher in peer.learned:
        teacher.load_state_dict(student.state_dict())
    if hasattr(peer.criterion, "memory_bank"):
        peer.criterion.memory_bank.bank = ours.queue.keys.clone()


def _copy(ours, peer):
    """Parameters in the order of the layers, the same on both sides."""
    mine, yours = list(ours.parameters()), list(peer.parameters())
    assert [p.shape for p in mine] == [p.shape for p in yours]
    with torch.no_grad():
        for a, b in zip(mine, yours, strict=True):
            b.copy_(a)


def test_both_runs_begin_with_one_backbone_and_leave_records_of_their_names(tmp_path):
    pytest.importorskip("lightly", reason=WITHOUT)
    words = ["--config", "smoke/momentum2_digits", *TINY, "METHOD.NAME", "simsiam", "--results", tmp_path / "r.jsonl",
             "--seeds", 0, "--probe-settings", "KNN.PRESETS", "['eman']", "SVM.SHOTS", "[1]", "SVM.TRIALS", 2,
             "FEATURES.CACHE", tmp_path / "cache"]  # fmt: skip
    done = run_tool("studies/beside_lightly", *words)
    assert done.returncode == 0, done.stderr
    names = {json.loads(line)["checkpoint"]["name"] for line in (tmp_path / "r.jsonl").read_text().splitlines()}
    assert names == {"simsiam_seed0", "lightly_simsiam_seed0"}


def test_without_lightly_one_line_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "lightly", None)
    done = run_tool("studies/beside_lightly", "--config", "smoke/momentum2_digits", "--results", tmp_path / "r.jsonl")
    assert done.returncode == 2
    assert 'found none; pip install "momentum-transfer[upstream]"' in done.stderr
    assert list(tmp_path.iterdir()) == []
