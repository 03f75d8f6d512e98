"""The loop against one written out by hand: what moves, when, by how much, in plain arithmetic without our pieces."""

import contextlib
import copy
import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from momentum_transfer.backbones.norms import MomentumBatchNorm
from momentum_transfer.core.checkpoints import CheckpointFolder, load
from momentum_transfer.core.command import Stopped
from momentum_transfer.images.datasets import build_dataset
from momentum_transfer.pretrain import train as loop
from momentum_transfer.pretrain.methods import build_method
from momentum_transfer.pretrain.pipeline import TrainingBatches
from momentum_transfer.pretrain.plan import make_plan
from momentum_transfer.pretrain.run import KnnMonitor
from momentum_transfer.pretrain.train import train

STEPS, WARMUP = 5, 2
M_BASE, ALPHA_BASE = 0.5, 0.8
RUN = {
    "DATA.IMAGE_SIZE": 16,
    "MODEL.STEM": "small",
    "SOLVER.STEPS": STEPS,
    "SOLVER.WARMUP_EPOCHS": WARMUP / (1257 // 8),
    "SOLVER.WARMUP_FACTOR": 0.25,
    "SOLVER.BASE_LR": 0.4,
    "SOLVER.MOMENTUM": 0.7,
    "SOLVER.WEIGHT_DECAY": 0.05,
    "SOLVER.ETA": 0.02,
    "TEACHER.MOMENTUM_BASE": M_BASE,
    "NORM.ALPHA_BASE": ALPHA_BASE,
}


def falling(k):
    """(cos(pi k/K) + 1) / 2, eq. 8 of Momentum^2 Teacher."""
    return (math.cos(math.pi * k / STEPS) + 1) / 2


def rate(base, k):
    """Linear from a quarter of the base over two steps, then the cosine over the other three."""
    if k < WARMUP:
        return base * (0.25 + 0.75 * k / WARMUP)
    return base * (math.cos(math.pi * (k - WARMUP) / (STEPS - WARMUP)) + 1) / 2


class NaiveMomentumNorm(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.weight, self.bias, self.eps = layer.weight, layer.bias, layer.eps
        self.mean, self.var = layer.running_mean.clone(), layer.running_var.clone()
        self.alpha, self.seen = 1.0, []

    def forward(self, x):
        dims, n = [d for d in range(x.dim()) if d != 1], x.numel() // x.shape[1]
        mean, var = x.mean(dims), x.var(dims, correction=0)
        self.seen.append((mean, var * n / (n - 1)))
        shape = (1, -1, *[1] * (x.dim() - 2))
        mean = (self.alpha * mean + (1 - self.alpha) * self.mean).view(shape)
        var = (self.alpha * var + (1 - self.alpha) * self.var).view(shape)
        return (x - mean) / (var + self.eps).sqrt() * self.weight.view(shape) + self.bias.view(shape)

    def commit(self):
        means, variances = (torch.stack(kept).mean(0) for kept in zip(*self.seen, strict=True))
        self.mean = self.alpha * means + (1 - self.alpha) * self.mean
        self.var = self.alpha * variances + (1 - self.alpha) * self.var
        self.seen = []


def with_naive_norms(network):
    """The network, and its Momentum BN layers by name, written out."""
    naive = {}
    for name, layer in list(network.named_modules()):
        if isinstance(layer, MomentumBatchNorm):
            parent, _, last = name.rpartition(".")
            naive[name] = NaiveMomentumNorm(layer)
            setattr(network.get_submodule(parent), last, naive[name])
    return network, naive


def unit(x):
    return x / x.norm(dim=1, keepdim=True)


class NaiveUpdate:
    """One parameter at a time, from the optimizers' definitions."""

    def __init__(self, name, parameters):
        self.name, self.parameters, self.step = name, parameters, 0
        self.first = [torch.zeros_like(p) for p in parameters]
        self.second = [torch.zeros_like(p) for p in parameters]

    @torch.no_grad()
    def __call__(self, lr, momentum=0.7, decay=0.05, eta=0.02):
        self.step += 1
        for k, p in enumerate(self.parameters):
            decayed = decay if self.name == "sgd" or p.dim() > 1 else 0.0  # biases and norms are vectors
            if self.name == "adamw":
                self.first[k] = 0.9 * self.first[k] + 0.1 * p.grad
                self.second[k] = 0.999 * self.second[k] + 0.001 * p.grad**2
                mean, square = self.first[k] / (1 - 0.9**self.step), self.second[k] / (1 - 0.999**self.step)
                p.copy_((1 - lr * decayed) * p - lr * mean / (square.sqrt() + 1e-8))
                continue
            update = p.grad + decayed * p
            if self.name == "lars" and p.dim() > 1:
                update = update * eta * p.norm() / update.norm()
            self.first[k] = momentum * self.first[k] + update
            p.copy_(p - lr * self.first[k])


def by_hand(cfg, optimizer, lr, moves, accumulate):
    """Student and teacher tensors before and after STEPS steps of Momentum^2 Teacher."""
    images = build_dataset("digits", image_size=16)
    batches = TrainingBatches(cfg, images, make_plan(cfg, len(images), len(images), 1), torch.device("cpu"))
    torch.manual_seed(cfg.SEED)
    method = build_method(cfg, 10)
    start = {name: value.clone() for name, value in method.state_dict().items()}
    student = copy.deepcopy(method.student)
    teacher, norms = with_naive_norms(copy.deepcopy(method.teacher))
    update = NaiveUpdate(optimizer, list(student.parameters()))
    stream = batches.from_step(0)

    @torch.no_grad()
    def move(m):
        source = dict(student.named_parameters())
        for name, p in teacher.named_parameters():
            p.copy_((1 - m) * p + m * source[name])

    for k in range(STEPS):
        if moves == "before":
            move(M_BASE * falling(k))
        for norm in norms.values():
            norm.alpha = ALPHA_BASE * falling(k)
        student.zero_grad()
        for _ in range(accumulate):
            view1, view2, _ = next(stream)
            with torch.no_grad():
                target1, target2 = unit(teacher(view1)), unit(teacher(view2))
            prediction1, prediction2 = unit(student(view1)), unit(student(view2))
            loss = ((prediction1 - target2) ** 2).sum(1).mean() + ((prediction2 - target1) ** 2).sum(1).mean()
            (loss / accumulate).backward()
        for norm in norms.values():
            norm.commit()
        update(rate(lr, k))
        if moves == "after":
            move(M_BASE * falling(k))
    tensors = {f"student.{name}": value for name, value in student.state_dict().items()}
    tensors |= {f"teacher.{name}": value.detach() for name, value in teacher.named_parameters()}
    tensors |= {f"teacher.{name}.running_mean": norm.mean for name, norm in norms.items()}
    return start, tensors | {f"teacher.{name}.running_var": norm.var for name, norm in norms.items()}


def last_model(cfg):
    return load(CheckpointFolder(f"{cfg.OUTPUT_DIR}/checkpoints").last())["model"]


@pytest.mark.parametrize(
    ("optimizer", "lr", "norm", "moves", "accumulate"),
    [
        ("sgd", 0.1, "BN", "before", 1),
        ("sgd", 0.1, "GN", "after", 2),
        ("lars", 0.4, "BN", "before", 1),
        ("adamw", 0.004, "GN", "after", 1),  # under BN the projector's bias has a gradient of rounding errors alone
    ],
)
def test_five_steps_equal_a_loop_written_by_hand(optimizer, lr, norm, moves, accumulate, tiny_cfg):
    settings = {"SOLVER.OPTIMIZER": optimizer, "SOLVER.BASE_LR": lr, "NORM.STUDENT": norm, "TEACHER.MOVES": moves}
    cfg = tiny_cfg({**RUN, **settings, "SOLVER.ACCUMULATE": accumulate})
    train(cfg)
    found, (start, expected) = last_model(cfg), by_hand(cfg, optimizer, lr, moves, accumulate)
    for name, value in expected.items():
        error, moved = (found[name] - value).float().norm(), (value - start[name]).float().norm()
        assert error <= 0.01 * moved + 1e-6, f"{name}: {error} off after moving by {moved}"


@pytest.mark.parametrize("moves", ["before", "after"])
def test_the_log_holds_rate_momentum_and_alpha_of_every_step(moves, tiny_cfg):
    cfg = tiny_cfg({**RUN, "TEACHER.MOVES": moves})
    train(cfg)
    lines = [json.loads(line) for line in Path(cfg.OUTPUT_DIR, "metrics.jsonl").read_text().splitlines()]
    assert [line["lr"] for line in lines] == pytest.approx([rate(0.4, k) for k in range(STEPS)])
    assert [line["momentum"] for line in lines] == pytest.approx([M_BASE * falling(k) for k in range(STEPS)])
    assert [line["alpha"] for line in lines] == pytest.approx([ALPHA_BASE * falling(k) for k in range(STEPS)])


def test_simsiams_predictor_learns_on_where_the_rate_has_fallen(tiny_cfg):
    cfg = tiny_cfg(
        {
            "METHOD.NAME": "simsiam",
            "SOLVER.FIXED_PREDICTOR_LR": True,
            "SOLVER.SCHEDULE": "step",
            "SOLVER.MILESTONES": [0.5],
            "SOLVER.GAMMA": 1e-9,
        }
    )
    with pytest.raises(Stopped):
        train(cfg, stop_after=2)
    half = last_model(cfg)
    train(cfg, resuming=True)
    moved = {
        name for name, value in last_model(cfg).items() if not torch.allclose(value, half[name], rtol=0, atol=1e-6)
    }
    weights = {name for name in moved if name.endswith("weight")}
    assert {"student.predictor.0.weight", "student.predictor.3.weight"} <= weights
    assert all("predictor" in name for name in weights)


@pytest.mark.parametrize("micro", [1, 3])
def test_gradients_are_exchanged_with_the_last_micro_batch_alone(micro, tiny_cfg, monkeypatch):
    asked = []
    monkeypatch.setattr(loop, "_gradient_exchange", lambda model, last: asked.append(last) or contextlib.nullcontext())
    train(tiny_cfg({"SOLVER.STEPS": 2, "SOLVER.BATCH_SIZE": 12, "SOLVER.ACCUMULATE": micro}))
    assert asked == ([False] * (micro - 1) + [True]) * 2


@pytest.mark.parametrize(
    ("epochs", "steps", "scored"),
    [(0.02, 7, [3, 6, 7]), (0.02, 6, [3, 6]), (0.0001, 3, [1, 2, 3]), (1, 4, [4])],  # of 157 steps an epoch
)
def test_knn_is_scored_every_so_many_epochs_and_at_the_end(epochs, steps, scored, tiny_cfg, monkeypatch):
    monkeypatch.setattr(KnnMonitor, "top1", lambda self, backbone: 12.5)
    cfg = tiny_cfg({"RUN.KNN_EVERY": epochs, "SOLVER.STEPS": steps})
    train(cfg)
    lines = [json.loads(line) for line in (Path(cfg.OUTPUT_DIR) / "metrics.jsonl").read_text().splitlines()]
    found = [line for line in lines if "knn_top1" in line]
    assert [line["step"] for line in found] == scored
    assert {line["knn_top1"] for line in found} == {12.5}
    assert found[0]["epoch"] == pytest.approx(scored[0] / 157)


def test_backbones_are_exported_on_the_way_under_their_epoch(tiny_cfg):
    cfg = tiny_cfg({"RUN.EXPORT_EVERY": 0.0128, "SOLVER.STEPS": 6})  # every two of 157 steps
    train(cfg)
    names = sorted(path.name for path in (Path(cfg.OUTPUT_DIR) / "exports").iterdir())
    assert names == ["run_epoch0.0128.safetensors", "run_epoch0.0256.safetensors", "run_epoch0.0384.safetensors"]
