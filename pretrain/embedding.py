"""The whole network that a run of ours trained: backbone and projector, from its last checkpoint."""

from __future__ import annotations

from pathlib import Path

from fvcore.common.config import CfgNode
from torch import nn

from momentum_transfer.core.checkpoint_folder import CheckpointFolder, load
from momentum_transfer.core.errors import InputError
from momentum_transfer.pretrain.config import get_cfg
from momentum_transfer.pretrain.methods import build_method
from momentum_transfer.pretrain.methods.student_teacher import Branch


def load_embedding(run: str | Path, network: str | None = None) -> Branch | None:
    """Images [N, 3, H, W] -> embeddings [N, D] before the predictor, in evaluation mode.

    Args:
        run: OUTPUT_DIR of a pretraining.
        network: "student" or "teacher"; None for the one that the paper evaluates.

    Returns:
        None where ``run`` is no folder with checkpoints of ours, or its method has no projector.

    Raises:
        InputError: the method has no such network, or the checkpoint is damaged.
    """
    file = CheckpointFolder(Path(run) / "checkpoints").last() if Path(run).is_dir() else None
    if file is None:
        return None
    state = load(file)
    cfg = get_cfg()
    cfg.merge_from_other_cfg(CfgNode.load_cfg(state["config"]))
    classes = state["model"].get("student.fc.weight", [[]] * 10)
    method = build_method(cfg, len(classes))
    method.load_state_dict(state["model"])
    networks: dict[str, nn.Module] = method.networks()
    chosen = network or method.network_default
    if chosen not in networks:
        raise InputError(f"expected a network of {', '.join(networks)} in {file}, found none called {chosen}")
    branch = networks[chosen]
    if not isinstance(branch, Branch):
        return None
    branch.predictor = None
    return branch.eval()
