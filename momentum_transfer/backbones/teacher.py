"""The teacher: a copy of the student that follows it, in its weights and, under EMAN, in its statistics.

Mean Teacher (arXiv 1703.01780); Momentum^2 Teacher (arXiv 2101.07525) eq. 7, read as ``(1 - m) teacher + m student``;
EMAN (arXiv 2101.08482) eqs. 1 and 9, whose momentum is 1 - m.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from momentum_transfer.backbones.norms import FOLLOWS_STUDENT
from momentum_transfer.core import distributed

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked", "group_mean", "group_var")


def _statistics(network: nn.Module) -> dict[str, Tensor]:
    return {name: buffer for name, buffer in network.named_buffers() if name.rpartition(".")[2] in _STATISTICS}


def _matching(teacher: Mapping[str, Tensor], student: Mapping[str, Tensor]) -> list[Tensor]:
    if missing := [name for name in teacher if name not in student]:
        raise ValueError(f"expected the student to have every tensor of the teacher, missing: {', '.join(missing)}")
    return [student[name] for name in teacher]


@torch.no_grad()
def copy_student(student: nn.Module, teacher: nn.Module) -> None:
    """Starts the teacher at the student's weights, and at its running statistics where both keep some.

    The teacher's modules may be fewer (no predictor) and its normalisation another, as long as parameter names agree.
    Its parameters get no gradients from now on.
    """
    move_parameters(student, teacher, 1.0)
    statistics = _statistics(student)
    for name, buffer in _statistics(teacher).items():
        prefix, dot, last = name.rpartition(".")
        if name in statistics:
            buffer.copy_(statistics[name])
        elif last in ("group_mean", "group_var"):  # a student that keeps one set of statistics
            alone = statistics.get(prefix + dot + last.replace("group", "running"))
            if alone is not None:
                buffer.copy_(alone.repeat(len(buffer) // len(alone)))
    teacher.requires_grad_(False)


def update_teacher(
    student: nn.Module, teacher: nn.Module, momentum: float, norm: str, statistics_momentum: float | None = None
) -> None:
    """Moves the teacher towards the student: its parameters, and its statistics where they follow the student's.

    Args:
        momentum: weight of the student, in [0, 1].
        norm: the teacher's normalisation, a name of ``norms.TEACHER_NORMS``.
        statistics_momentum: EMAN's own weight of the student's statistics; None takes ``momentum``.
    """
    move_parameters(student, teacher, momentum)
    if norm in FOLLOWS_STUDENT:
        own = momentum if statistics_momentum is None else statistics_momentum
        move_statistics(student, teacher, 1.0 if norm == "StudentPN" else own)


@torch.no_grad()
def move_parameters(student: nn.Module, teacher: nn.Module, momentum: float) -> None:
    """teacher <- (1 - momentum) * teacher + momentum * student, over all of the teacher's parameters at once."""
    moved = dict(teacher.named_parameters())
    source = _matching(moved, dict(student.named_parameters()))
    torch._foreach_lerp_(list(moved.values()), source, momentum)


@torch.no_grad()
def move_statistics(student: nn.Module, teacher: nn.Module, momentum: float) -> None:
    """EMAN (eq. 9): running means and variances follow the student's like parameters; integer counters are copied.

    A ``momentum`` of 1 copies them all (student proxy norm).
    """
    moved = _statistics(teacher)
    pairs = list(zip(moved.values(), _matching(moved, _statistics(student)), strict=True))
    followed = [pair for pair in pairs if pair[0].is_floating_point()]
    copied = [pair for pair in pairs if not pair[0].is_floating_point()]
    if followed:
        torch._foreach_lerp_([pair[0] for pair in followed], [pair[1] for pair in followed], momentum)
        torch._foreach_copy_([pair[0] for pair in copied], [pair[1] for pair in copied])


def shuffled_forward(network: nn.Module, images: Tensor, groups: int = 1) -> Tensor:
    """The network on images exchanged at random between processes, outputs brought back in order (MoCo, 3.3).

    So every process's BN statistics come from other images than its student sees. Alone it is the plain forward.

    Args:
        images: [N, 3, H, W], equally many on every process.
        groups: virtual processes within this one's batch; they take part like real ones.

    Returns:
        Embeddings [N, D] in the order of ``images``.
    """
    processes = distributed.world_size()
    if processes * groups == 1:
        return network(images)
    everyone = _by_process(distributed.all_gather_tensor(images), processes, groups)  # (processes N)x3xHxW
    order = distributed.broadcast(torch.randperm(len(everyone), device=images.device))
    mine = _own_rows(order, processes, groups)
    outputs = _by_process(distributed.all_gather_tensor(network(everyone[mine])), processes, groups)  # shuffled
    return outputs[_own_rows(torch.argsort(order), processes, groups)]


def _by_process(rows: Tensor, processes: int, groups: int) -> Tensor:
    """Gathered rows, those of one (virtual) process together; within a batch they lie at g, g + G, g + 2G, …"""
    if groups == 1:
        return rows
    return rows.view(processes, -1, groups, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def _own_rows(rows: Tensor, processes: int, groups: int) -> Tensor:
    """Of indices [processes N], those of one (virtual) process together: this process's, in its batch's order [N]."""
    return rows.view(processes, groups, -1)[distributed.rank()].t().reshape(-1)
