"""A Momentum² Teacher step beside a plain hand-written loop and lightly's BYOL blocks; its parts beside the plain ones.

python benchmarks/pretrain.py [--model resnet18 resnet50] [--rounds N] [--batch N] [--device cpu|cuda] [--threads N]
    [--ways WAY …] [--step-only]

Contestants take turns, so that a machine that slows down slows all of them; a ratio is the median over rounds of
their time / ours (above 1: ours is faster). On the CPU the clock is CPU time, which other work on the machine does not
enter, of one thread unless --threads says more. lightly is compared where it is installed (pip install lightly). Beside
them stands what the step's convolutions and products take alone, where the step goes by torch's profiler, and with
--ways ours with channels last, bf16 and torch.compile.
"""

import argparse
import copy
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.arithmetic import alone, recorded, split
from momentum_transfer.backbones.norms import Norm
from momentum_transfer.backbones.resnet import Architecture, build_resnet
from momentum_transfer.backbones.teacher import move_parameters
from momentum_transfer.core.command import run_tool
from momentum_transfer.core.log import say, table
from momentum_transfer.core.machine import keep_freed_memory
from momentum_transfer.pretrain import train
from momentum_transfer.pretrain.config import get_cfg
from momentum_transfer.pretrain.heads import mlp
from momentum_transfer.pretrain.methods.method import Branch, TeacherRule
from momentum_transfer.pretrain.methods.momentum2 import Momentum2Teacher
from momentum_transfer.pretrain.optimizers import build_optimizer

#: architecture, image side, batch on the CPU, batch on a GPU, hidden units
SIZES = {"resnet18": (32, 64, 1024, 512), "resnet50": (224, 4, 256, 4096)}
WAYS = ("channels-last", "bf16", "channels-last+bf16", "compiled", "channels-last+bf16+compiled")
Step = Callable[[], None]


class PlainMomentumBN(nn.BatchNorm2d):
    """Momentum BN as one would write it down from the paper: mean, variance and normalisation by tensor operations."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.alpha = 0.5
        self.pending: list[tuple[Tensor, Tensor]] = []

    def forward(self, input: Tensor) -> Tensor:
        dims = [0, *range(2, input.dim())]
        shape = [1, -1] + [1] * (input.dim() - 2)
        mean, var = input.mean(dims), input.var(dims, unbiased=False)
        self.pending.append((mean, var))
        assert self.running_mean is not None
        assert self.running_var is not None
        mean = self.alpha * mean + (1 - self.alpha) * self.running_mean
        var = self.alpha * var + (1 - self.alpha) * self.running_var
        out = (input - mean.view(shape)) / torch.sqrt(var.view(shape) + self.eps)
        return out * self.weight.view(shape) + self.bias.view(shape)

    def end_pair(self) -> None:
        (mean1, var1), (mean2, var2) = self.pending
        assert self.running_mean is not None
        assert self.running_var is not None
        self.running_mean = self.alpha * (mean1 + mean2) / 2 + (1 - self.alpha) * self.running_mean
        self.running_var = self.alpha * (var1 + var2) / 2 + (1 - self.alpha) * self.running_var
        self.pending = []


def branch(architecture: Architecture, hidden: int, norm: Any, vectors: Any, predictor: bool) -> Branch:
    backbone = build_resnet(architecture, norm)
    projector = mlp(backbone.num_features, hidden, 256, vectors)
    return Branch(backbone, projector, mlp(256, hidden, 256, vectors) if predictor else None)


def placed(module: nn.Module, device: torch.device) -> Any:
    """On the device; on a GPU with channels last, as ``RUN.CHANNELS_LAST`` does."""
    if device.type == "cuda":
        module.to(memory_format=torch.channels_last)
    return module.to(device)


def our_step(architecture: Architecture, hidden: int, views: list[Tensor], way: str = "") -> tuple[Step, list[Any]]:
    """The step of ``momentum_transfer.pretrain.train`` without logging, and its networks.

    ``way``: of its words ``channels-last``, ``bf16`` and ``compiled``, as the settings of ``RUN`` do.
    """
    student, teacher = Norm("BN"), Norm("MomentumBN")
    method: Any = Momentum2Teacher(
        branch(architecture, hidden, student, student.for_vectors, True),
        branch(architecture, hidden, teacher, teacher.for_vectors, False),
        TeacherRule(norm="MomentumBN", moves="before"),
    )
    method, device = placed(method, views[0].device), views[0].device
    if "channels-last" in way:
        method.to(memory_format=torch.channels_last)
        views = [view.contiguous(memory_format=torch.channels_last) for view in views]
    cfg = get_cfg()
    cfg.TEACHER.MOVES = "before"
    cfg.RUN.PRECISION = "bf16" if "bf16" in way or device.type == "cuda" else "float32"
    if "compiled" in way:
        method.student.compile()
        method.teacher.compile()
    run: Any = SimpleNamespace(
        plan=SimpleNamespace(steps=100, accumulate=1, base_lr=0.05, warmup=0), cfg=cfg, method=method, device=device,
        optimizer=build_optimizer(method, "sgd", lr=0.05, momentum=0.9, weight_decay=1e-4, eta=0.001), start=None,
        scaler=torch.amp.GradScaler(device.type, enabled=False),
    )  # fmt: skip
    batches: Any = itertools.repeat((*views, None))
    return lambda: train._step(run, method, batches, 50), [method.student, method.teacher]


def plain_step(architecture: Architecture, hidden: int, views: list[Tensor], autocast: Any) -> Step:
    """The same model and mathematics, written tensor by tensor."""
    device = views[0].device
    student = placed(branch(architecture, hidden, nn.BatchNorm2d, nn.BatchNorm1d, True), device)
    teacher = placed(branch(architecture, hidden, PlainMomentumBN, PlainMomentumBN, False), device)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, foreach=False)

    def regression(p: Tensor, z: Tensor) -> Tensor:
        return 2 - 2 * (F.normalize(p, dim=1) * F.normalize(z, dim=1)).sum(dim=1).mean()

    def step() -> None:
        source = dict(student.named_parameters())
        for name, parameter in teacher.named_parameters():
            parameter.data = 0.995 * parameter.data + 0.005 * source[name].data
        with autocast():
            with torch.no_grad():
                target1, target2 = teacher(views[0]), teacher(views[1])
            loss = regression(student(views[0]), target2) + regression(student(views[1]), target1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for layer in teacher.modules():
            if isinstance(layer, PlainMomentumBN):
                layer.end_pair()

    return step


def arithmetic_step(architecture: Architecture, hidden: int, views: list[Tensor]) -> Step:
    """The convolutions and products of our step alone: student forward and backward, teacher forward, of both views."""
    student, teacher = (
        placed(branch(architecture, hidden, nn.BatchNorm2d, nn.BatchNorm1d, p), views[0].device) for p in (True, False)
    )
    with recorded(student) as trained:
        for view in views:
            student(view)
    with recorded(teacher) as forwards, torch.no_grad():
        for view in views:
            teacher(view)
    return alone(trained, forwards)


def lightly_step(architecture: Architecture, hidden: int, views: list[Tensor], autocast: Any) -> Step | None:
    """BYOL from lightly's blocks on the same backbone; its teacher has plain BN, which costs less than Momentum BN."""
    try:
        from lightly.loss import NegativeCosineSimilarity
        from lightly.models.modules import BYOLPredictionHead, BYOLProjectionHead
        from lightly.models.utils import deactivate_requires_grad, update_momentum
    except ImportError:
        return None
    device = views[0].device
    backbone = placed(build_resnet(architecture), device)
    projector = BYOLProjectionHead(backbone.num_features, hidden, 256).to(device)
    predictor = BYOLPredictionHead(256, hidden, 256).to(device)
    teacher, teacher_projector = copy.deepcopy(backbone), copy.deepcopy(projector)
    deactivate_requires_grad(teacher)
    deactivate_requires_grad(teacher_projector)
    criterion = NegativeCosineSimilarity()
    trained = [*backbone.parameters(), *projector.parameters(), *predictor.parameters()]
    optimizer = torch.optim.SGD(trained, lr=0.05, momentum=0.9, weight_decay=1e-4)

    def step() -> None:
        update_momentum(backbone, teacher, m=0.995)
        update_momentum(projector, teacher_projector, m=0.995)
        with autocast():
            predictions = [predictor(projector(backbone(view))) for view in views]
            with torch.no_grad():
                targets = [teacher_projector(teacher(view)) for view in views]
            loss = criterion(predictions[0], targets[1]) + criterion(predictions[1], targets[0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def seconds(steps: dict[str, Step], rounds: int, device: torch.device) -> dict[str, list[float]]:
    """Times of each contestant, one call a round, in turns; the first round warms up."""
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 1):
        for name, step in steps.items():
            begun = clock()
            step()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if number:
                times[name].append(clock() - begun)
    return times


def report(title: str, times: dict[str, list[float]], images: int | None = None) -> None:
    """Median milliseconds of each, and the median over rounds of its time over the first one's."""
    first = next(iter(times))
    rows = []
    for name, values in times.items():
        ratio = statistics.median(a / b for a, b in zip(values, times[first], strict=True))
        rate = f"{images / statistics.median(values):.1f}" if images else ""
        rows.append((name, f"{1000 * statistics.median(values):.2f}", f"{ratio:.2f}", rate))
    table(title, ("", "ms", f"x {first}", "images/s"), rows)


def steps_of_training(
    name: str, rounds: int, device: torch.device, ways: Sequence[str] = (), batch: int | None = None
) -> None:
    side, cpu_batch, gpu_batch, hidden = SIZES[name]
    batch = batch or (gpu_batch if device.type == "cuda" else cpu_batch)
    layout = torch.channels_last if device.type == "cuda" else torch.contiguous_format
    views = [torch.randn(batch, 3, side, side, device=device).to(memory_format=layout) for _ in range(2)]

    def autocast() -> Any:
        return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")

    architecture = Architecture(name)
    ours, networks = our_step(architecture, hidden, views)
    steps: dict[str, Step] = {"ours": ours}
    for way in ways:
        steps[f"ours, {way}"], _ = our_step(architecture, hidden, views, way)
    if device.type == "cpu":
        split(f"{name}, {side} px, batch {batch}", ours, networks, rounds)
        steps["convolutions and products alone"] = arithmetic_step(architecture, hidden, views)
    steps["plain loop"] = plain_step(architecture, hidden, views, autocast)
    lightly = lightly_step(architecture, hidden, views, autocast)
    if lightly is None:
        say("lightly is not installed: not compared")
    else:
        steps["lightly BYOL (teacher BN)"] = lightly
    report(f"{name}, {side} px, batch {batch}: one training step", seconds(steps, rounds, device), batch)
    if device.type == "cuda":
        flops = 8 * forward_flops(architecture, side) * batch  # 2 teacher forwards, 2 student forwards with backward
        ours = statistics.median(seconds({"ours": steps["ours"]}, rounds, device)["ours"])
        say(f"{flops / ours / 1e12:.1f} TFLOP/s; peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")


def forward_flops(architecture: Architecture, side: int) -> float:
    """Floating-point operations (two a multiply-add) of one image's backbone forward, by torch's counter."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        build_resnet(architecture).eval()(torch.zeros(1, 3, side, side))
    return float(counter.get_total_flops())


def teacher_forwards(name: str, rounds: int, device: torch.device) -> None:
    side, cpu_batch, gpu_batch, _ = SIZES[name]
    images = torch.randn(gpu_batch if device.type == "cuda" else cpu_batch, 3, side, side, device=device)
    networks = {n: build_resnet(Architecture(name), Norm(n)).to(device) for n in ("BN", "MomentumBN", "EMAN")}

    def forward(network: nn.Module) -> Step:
        @torch.no_grad()
        def run() -> None:
            network(images)

        return run

    times = seconds({n: forward(network) for n, network in networks.items()}, 3 * rounds, device)
    report(f"{name}, {side} px: a teacher's forward", times)


def ema_updates(rounds: int, device: torch.device) -> None:
    """The fused update, three loops over tensors as people write them, and what the memory allows.

    An update reads teacher and student and writes the teacher: 12 bytes a parameter. The floor is the fastest thing
    that moves as much, one addition over two flat vectors. The textbook loop makes two tensors and a third of their
    sum: 40 bytes a parameter with the lines that are read before they are written, and page faults for each.
    """
    student = build_resnet(Architecture("resnet50")).to(device)
    teacher, looped = copy.deepcopy(student), copy.deepcopy(student)
    one, other = (torch.cat([p.detach().flatten() for p in net.parameters()]) for net in (teacher, student))

    @torch.no_grad()
    def in_place_loop() -> None:
        for a, b in zip(looped.parameters(), student.parameters(), strict=True):
            a.mul_(0.99).add_(b, alpha=0.01)

    @torch.no_grad()
    def allocating_loop() -> None:
        for a, b in zip(looped.parameters(), student.parameters(), strict=True):
            a.data = a.data * 0.99 + b.data * 0.01

    @torch.no_grad()
    def copying_loop() -> None:
        for a, b in zip(looped.parameters(), student.parameters(), strict=True):
            a.copy_(a * 0.99 + b * 0.01)

    def one_addition() -> None:
        one.add_(other, alpha=0.01)

    ema: dict[str, Step] = {
        "fused": lambda: move_parameters(student, teacher, 0.01),
        "loop: t.data = t.data * m + s.data * (1 - m)": allocating_loop,
        "loop: t.copy_(t * m + s * (1 - m))": copying_loop,
        "loop: t.mul_(m).add_(s, alpha=1 - m)": in_place_loop,
        "floor: as many bytes in one addition": one_addition,
    }
    times = seconds(ema, 3 * rounds, device)
    report("ResNet-50: EMA of the parameters", times)
    median = {name: statistics.median(values) for name, values in times.items()}
    fused, loop, *_, floor = median.values()
    gigabytes = 12e-9 * len(one)
    say(
        f"fused: {gigabytes / fused:.1f} of {gigabytes / floor:.1f} GB/s; "
        f"no update of these bytes can be more than {loop / floor:.1f} x as fast as the first loop here"
    )


def main(args: argparse.Namespace) -> None:
    device = torch.device(args.device)
    torch.set_num_threads(args.threads)
    if device.type == "cpu" and keep_freed_memory():
        say("freed memory stays with the process, as in training: for all contestants alike")
    say(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {device}")
    for name in args.model:
        steps_of_training(name, args.rounds, device, args.ways, args.batch)
        if not args.step_only:
            teacher_forwards(name, args.rounds, device)
    if not args.step_only:
        ema_updates(args.rounds, device)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--batch", type=int, help="images of a step, instead of the size's own")
    parser.add_argument("--step-only", action="store_true", help="leave out the teacher's forwards and the EMA")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--ways", nargs="+", default=[], choices=WAYS, help="ours in other ways too")
    parser.add_argument("--threads", type=int, default=1, help="of the CPU")
    sys.exit(run_tool(parser, main))
