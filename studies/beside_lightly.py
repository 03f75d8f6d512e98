"""BYOL, MoCo v2 and SimSiam beside lightly's, at the same budget: is what our loop learns what a well-known one learns?

    python studies/beside_lightly.py --config CONFIG --results FILE --seeds 0 1 2 3 4 [KEY VALUE …]

For every seed our run (tools/pretrain.py's loop) and its peer: lightly's own heads, losses and teacher's update
(Susmelj et al., github.com/lightly-ai/lightly) in a plain loop. Both have the same images, views and their order, the
same start of the backbone, steps, SGD and schedules. Then kNN and a low-shot SVM of both, as records of byol_seed0 and
of lightly_byol_seed0. A run that is there already is not repeated. Needs `pip install "momentum-transfer[upstream]"`.
"""

import argparse
import copy
import sys
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
from fvcore.common.config import CfgNode
from torch import Tensor, nn
from torch.optim import SGD

from momentum_transfer.backbones.build import Backbone
from momentum_transfer.backbones.convert import export_backbone
from momentum_transfer.core.checkpoints import CheckpointFolder
from momentum_transfer.core.command import run_tool
from momentum_transfer.core.errors import InputError, extra
from momentum_transfer.core.log import ProgressLine, say
from momentum_transfer.core.optimization import momentum_at
from momentum_transfer.core.settings import load_config
from momentum_transfer.lowshot import config as lowshot_config
from momentum_transfer.lowshot.run import Request
from momentum_transfer.lowshot.run import run as evaluate
from momentum_transfer.pretrain.config import get_cfg
from momentum_transfer.pretrain.optimizers import set_learning_rate
from momentum_transfer.pretrain.plan import learning_rate_at
from momentum_transfer.pretrain.run import Run, prepare
from momentum_transfer.pretrain.train import train

NAME = "lightly's peers"


class Peer(nn.Module):
    """A backbone with lightly's heads and loss.

    Attributes:
        learned: [(student's module, teacher's copy)], empty where there is no teacher.
    """

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone
        self.learned: list[tuple[nn.Module, nn.Module]] = []

    def with_teacher(self, *modules: nn.Module) -> list[nn.Module]:
        """Copies of the student's modules that follow it, registered and without gradient."""
        copies = [copy.deepcopy(module).requires_grad_(False) for module in modules]
        self.learned = list(zip(modules, copies, strict=True))
        self.teacher = nn.ModuleList(copies)
        return copies

    def follow(self, momentum: float) -> None:
        """lightly's update, whose m is the weight of the old value."""
        from lightly.models.utils import update_momentum

        for student, teacher in self.learned:
            update_momentum(student, teacher, m=1 - momentum)


class BYOL(Peer):
    """lightly's BYOL heads and negative cosine similarity."""

    def __init__(self, backbone: Backbone, cfg: CfgNode) -> None:
        from lightly.loss import NegativeCosineSimilarity
        from lightly.models.modules.heads import BYOLPredictionHead, BYOLProjectionHead

        super().__init__(backbone)
        head = cfg.HEAD
        self.projector = BYOLProjectionHead(backbone.num_features, head.HIDDEN, head.OUTPUT)
        self.predictor = BYOLPredictionHead(head.OUTPUT, head.HIDDEN, head.OUTPUT)
        self.with_teacher(self.backbone, self.projector)
        self.criterion = NegativeCosineSimilarity()

    def forward(self, view1: Tensor, view2: Tensor) -> Tensor:
        """The paper's sum of 2 - 2 cos over both directions: 4 times the mean of two -cos in lightly's examples, so
        that a learning rate means the same on both sides."""
        with torch.no_grad():
            target1, target2 = (self.teacher[1](self.teacher[0](view)) for view in (view1, view2))
        predicted1, predicted2 = (self.predictor(self.projector(self.backbone(view))) for view in (view1, view2))
        return 2 * (self.criterion(predicted1, target2) + self.criterion(predicted2, target1))


class MoCo(Peer):
    """lightly's MoCo head and NT-Xent with its memory bank; one direction, as MoCo v2 and MOCO.SYMMETRIC False."""

    def __init__(self, backbone: Backbone, cfg: CfgNode) -> None:
        from lightly.loss import NTXentLoss
        from lightly.models.modules.heads import MoCoProjectionHead

        super().__init__(backbone)
        head = cfg.HEAD
        if head.PROJECTOR_NORM:
            raise InputError("expected HEAD.PROJECTOR_NORM False, found True: lightly's head with BN is MoCo v3's")
        self.projector = MoCoProjectionHead(backbone.num_features, head.HIDDEN, head.OUTPUT)
        self.with_teacher(self.backbone, self.projector)
        self.criterion = NTXentLoss(cfg.MOCO.TEMPERATURE, memory_bank_size=(cfg.MOCO.QUEUE, head.OUTPUT))

    def forward(self, view1: Tensor, view2: Tensor) -> Tensor:
        with torch.no_grad():
            key = self.teacher[1](self.teacher[0](view2))
        return self.criterion(self.projector(self.backbone(view1)), key)


class SimSiam(Peer):
    """lightly's SimSiam heads and negative cosine similarity."""

    def __init__(self, backbone: Backbone, cfg: CfgNode) -> None:
        from lightly.loss import NegativeCosineSimilarity
        from lightly.models.modules.heads import SimSiamPredictionHead, SimSiamProjectionHead

        super().__init__(backbone)
        head = cfg.HEAD
        hidden = head.PREDICTOR_HIDDEN or head.HIDDEN
        self.projector = SimSiamProjectionHead(backbone.num_features, head.HIDDEN, head.OUTPUT)
        self.predictor = SimSiamPredictionHead(head.OUTPUT, hidden, head.OUTPUT)
        self.criterion = NegativeCosineSimilarity()

    def forward(self, view1: Tensor, view2: Tensor) -> Tensor:
        projected1, projected2 = (self.projector(self.backbone(view)) for view in (view1, view2))
        loss1 = self.criterion(self.predictor(projected1), projected2.detach())
        loss2 = self.criterion(self.predictor(projected2), projected1.detach())
        return (loss1 + loss2) / 2


PEERS: dict[str, type[Any]] = {"byol": BYOL, "moco": MoCo, "simsiam": SimSiam}


def train_peer(cfg: CfgNode) -> Path:
    """The peer of the run that ``cfg`` describes, from the same start over the same views; its exported backbone."""
    path = Path(cfg.OUTPUT_DIR) / "backbone.safetensors"
    if path.is_file():
        say(f"{path}: done before")
        return path
    run = prepare(cfg, torch.device("cpu"), CheckpointFolder(Path(cfg.OUTPUT_DIR) / "checkpoints", 1))
    backbone = run.method.backbone("student")
    peer = PEERS[cfg.METHOD.NAME](backbone, cfg).train()
    train_beside(run, peer)
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"method": f"lightly {cfg.METHOD.NAME}", "network": "student", "steps": str(run.plan.steps)}
    export_backbone(path, peer.backbone, metadata)
    return path


def train_beside(run: Run, peer: Peer) -> None:
    """lightly's examples' order: the teacher follows, then the forwards, the loss and the step."""
    cfg, plan, solver = run.cfg, run.plan, run.cfg.SOLVER
    learned = [parameter for parameter in peer.parameters() if parameter.requires_grad]
    optimizer = SGD(learned, lr=plan.base_lr, momentum=solver.MOMENTUM, weight_decay=solver.WEIGHT_DECAY)
    batches = run.batches.from_step(0)
    with ProgressLine(f"lightly's {cfg.METHOD.NAME}", plan.steps) as progress:
        for step in range(plan.steps):
            set_learning_rate(optimizer, learning_rate_at(plan, cfg, step), plan.base_lr)
            peer.follow(momentum_at(cfg.TEACHER.MOMENTUM_BASE, step / plan.steps, cfg.TEACHER.MOMENTUM_SCHEDULE))
            view1, view2, _ = next(batches)
            loss = peer(view1, view2)
            if not torch.isfinite(loss):
                raise InputError(f"expected a finite loss, found {float(loss)} at step {step}; lower SOLVER.BASE_LR")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            progress.advance(note=f"loss {float(loss.detach()):.4f}")


def settings(args: argparse.Namespace, seed: int, who: str) -> CfgNode:
    """The pretraining's settings of one run, in a folder that is called as its records are."""
    cfg = load_config(get_cfg(), args.config, [*args.overrides, "SEED", str(seed), "RUN.DEVICE", "cpu"])
    cfg.defrost()
    cfg.OUTPUT_DIR = str(args.results.parent / "pretrained" / f"{who}{cfg.METHOD.NAME}_seed{seed}")
    cfg.freeze()
    return cfg


def main(args: argparse.Namespace) -> None:
    """Both trainings and their scores, seed by seed."""
    extra("lightly", NAME)
    method = settings(args, 0, "").METHOD.NAME
    if method not in PEERS:
        raise InputError(f"expected METHOD.NAME of {', '.join(PEERS)}, which lightly has too, found {method}")
    probe = load_config(lowshot_config.get_cfg(), args.probe, args.probe_settings)
    for seed in args.seeds:
        for who in ("", "lightly_"):
            cfg = settings(args, seed, who)
            train_peer(cfg) if who else train(cfg, resuming=True)
            for command in ("knn", "svm"):
                evaluate(probe, Request(command, cfg.OUTPUT_DIR, network="student", results=args.results))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, help="of tools/pretrain.py")
    parser.add_argument("--results", type=Path, required=True, help="where records go; the runs lie beside them")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="(default: 0 to 4)")
    parser.add_argument("--probe", default="configs/smoke/lowshot_digits.yaml", help="config of the evaluations")
    parser.add_argument("--probe-settings", nargs="+", default=[], metavar="KEY VALUE", help="settings of these")
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY VALUE", help="settings that override the pretraining's file"
    )
    return parser


if __name__ == "__main__":
    sys.exit(run_tool(parser(), main))
