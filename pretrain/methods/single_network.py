"""Base of the methods without a teacher: one network, the student."""

from __future__ import annotations

from torch import nn

from momentum_transfer.pretrain.methods.method import Method
from momentum_transfer.pretrain.norms.momentum_batch_norm import commit_pair, pair_norms, schedule_alpha, set_alpha


class SingleNetwork(Method):
    """A method of one network.

    Args:
        student: holds the ``backbone``.
        alpha_base, alpha_schedule: Momentum BN's weight of the batch, where the student has it.
        policy: what processes do with their Momentum BN histories, see ``momentum_batch_norm.commit_pair``.
    """

    def __init__(
        self, student: nn.Module, alpha_base: float = 1.0, alpha_schedule: str = "cosine", policy: str = "local"
    ) -> None:
        super().__init__()
        self.student = student
        self.alpha_base, self.alpha_schedule, self.policy = alpha_base, alpha_schedule, policy
        set_alpha(pair_norms(self), alpha_base)

    def begin_step(self, progress: float) -> dict[str, float]:
        """Sets the alpha of a Momentum BN student for the coming forwards; returns it for the log."""
        return schedule_alpha(self, self.alpha_base, self.alpha_schedule, progress)

    def commit_statistics(self) -> None:
        """Ends the step's views for a Momentum BN student."""
        commit_pair(pair_norms(self), self.policy)
