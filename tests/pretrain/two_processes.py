"""What each of two processes does and sees for tests/core/test_distributed.py."""

from pathlib import Path

import torch

from momentum_transfer.backbones.norms import MomentumBatchNorm, Norm, SyncBatchNorm, commit_pair
from momentum_transfer.backbones.teacher import shuffled_forward
from momentum_transfer.core import distributed
from momentum_transfer.core.command import Stopped
from momentum_transfer.core.settings import load_config
from momentum_transfer.pretrain.config import get_cfg
from momentum_transfer.pretrain.methods import build_method
from momentum_transfer.pretrain.methods.moco import NegativeQueue
from momentum_transfer.pretrain.train import train

#: Runs that are taken up again in the middle: every normalisation that processes share or keep for themselves.
RESUMED: dict[str, dict[str, object]] = {
    "local": {},
    "broadcast": {"NORM.POLICY": "broadcast"},
    "reduce": {"NORM.POLICY": "reduce"},
    "ShuffleBN": {"METHOD.NAME": "moco", "NORM.TEACHER": "ShuffleBN", "MOCO.QUEUE": 20},
    "SyncBN": {"METHOD.NAME": "byol", "NORM.STUDENT": "SyncBN", "NORM.TEACHER": "SyncBN"},
    "EMAN": {"METHOD.NAME": "moco", "NORM.TEACHER": "EMAN", "MOCO.QUEUE": 20},
    "TeacherPN": {"METHOD.NAME": "byol", "NORM.TEACHER": "TeacherPN"},
}


def joint_batch() -> torch.Tensor:
    return torch.randn(8, 3, 4, 4, generator=torch.Generator().manual_seed(0)) * 3 + 1


def sync_batch_norm(mine: torch.Tensor) -> dict[str, torch.Tensor]:
    layer = SyncBatchNorm(3)
    x = mine.clone().requires_grad_()
    (layer(x) ** 3).sum().backward()
    return {"output": layer.eval()(mine).detach(), "gradient": x.grad, "var": layer.running_var}


def momentum_batch_norm(mine: torch.Tensor, policy: str) -> torch.Tensor:
    layer = MomentumBatchNorm(3, alpha=0.5)
    with torch.no_grad():
        layer(mine)
    commit_pair([layer], policy)
    return layer.running_mean


def shuffled(mine: torch.Tensor) -> dict[str, torch.Tensor]:
    seen: list[torch.Tensor] = []
    layer = Norm("ShuffleBN")(3)

    def network(images: torch.Tensor) -> torch.Tensor:
        seen.append(images)
        return layer(images).flatten(1)

    torch.manual_seed(distributed.rank())
    with torch.no_grad():
        return {"output": shuffled_forward(network, mine), "seen": seen[0]}


#: Teachers whose pair of views is compared with virtual processes', for each method that keeps them.
GROUPED = {"MomentumBN": "momentum2", "BN": "byol", "EMAN": "byol", "TeacherPN": "byol", "ShuffleBN": "moco"}


def joint_images() -> torch.Tensor:
    return torch.randn(3, 8, 3, 32, 32, generator=torch.Generator().manual_seed(4)).double()


def two_pairs(
    settings: dict[str, object], name: str, first: int, processes: int, group: int = 0
) -> dict[str, torch.Tensor]:
    """Two steps' forwards in float64 of the images first, first + processes, …: embeddings, running statistics."""
    changes = {"METHOD.NAME": GROUPED[name], "NORM.TEACHER": name, "NORM.GROUP_SIZE": group, "MOCO.QUEUE": 20}
    words = [str(word) for pair in {**settings, **changes}.items() for word in pair]
    torch.manual_seed(0)
    method = build_method(load_config(get_cfg(), None, words), 10).double()
    torch.manual_seed(1)
    seen = {}
    with torch.no_grad():
        for step, images in enumerate(joint_images()[:2]):
            mine = images[first::processes]
            method.begin_step(step / 4)
            method.update_teacher(step / 4)
            for view in (mine, mine.flip(-1)):
                seen[f"teacher {step} {len(seen)}"] = method.targets(view)
                seen[f"student {step} {len(seen)}"] = method.student(view)
            method.commit_statistics()
    statistics = {key: value for key, value in method.named_buffers() if key.endswith(("running_mean", "running_var"))}
    return {**seen, **statistics}


def queue() -> torch.Tensor:
    torch.manual_seed(0)
    negatives = NegativeQueue(10, 1)
    negatives.enqueue(torch.tensor([[1.0], [2.0]]) + 10 * distributed.rank())
    return negatives.keys[:4, 0]


def train_here(folder: Path, name: str, settings: dict[str, object], stop_after: int | None = None) -> None:
    cfg = load_config(
        get_cfg(), None, [str(w) for pair in settings.items() for w in pair] + ["OUTPUT_DIR", str(folder / name)]
    )
    train(cfg, stop_after=stop_after, resuming=(folder / name).exists())


def resume_here(out: Path, name: str, settings: dict[str, object]) -> None:
    """Four steps in OUT/whole_<name>, two and two in OUT/parts_<name>."""
    train_here(out, f"whole_{name}", settings)
    try:
        train_here(out, f"parts_{name}", settings, stop_after=2)
    except Stopped:
        train_here(out, f"parts_{name}", settings)


def save_what_is_seen(out: Path, settings: dict[str, object]) -> None:
    """Writes OUT/rank<r>.pt, and checkpoints below OUT."""
    rank = distributed.rank()
    mine = joint_batch()[4 * rank : 4 * rank + 4]
    seen = {
        "sync": sync_batch_norm(mine),
        "far": sync_batch_norm(100 + 0.01 * mine),
        "shuffled": shuffled(mine),
        "queue": queue(),
        "pairs": {name: two_pairs(settings, name, rank, 2) for name in GROUPED},
        "gathered": distributed.all_gather_tensor(torch.tensor([float(rank)])),
        **{policy: momentum_batch_norm(mine, policy) for policy in ("local", "broadcast", "reduce")},
    }
    sync = {"METHOD.NAME": "byol", "NORM.STUDENT": "SyncBN", "NORM.TEACHER": "SyncBN", "SOLVER.STEPS": 2}
    train_here(out, "joined", {**settings, **sync})
    for name, changes in RESUMED.items():
        resume_here(out, name, {**settings, **changes})
    torch.save(seen, out / f"rank{rank}.pt")
