"""What the training loop asks of every method."""

from __future__ import annotations

from torch import Tensor, nn

from momentum_transfer.backbones.build import Backbone
from momentum_transfer.backbones.resnet import ResNet
from momentum_transfer.backbones.timm_network import TimmBackbone
from momentum_transfer.core.errors import InputError


class Method(nn.Module):
    """Two views to a loss, and the moments at which the loop calls a method.

    A step is: ``begin_step``, ``update_teacher`` where the paper moves the teacher before the forwards, ``forward``
    and the backward pass once for each micro-batch, ``commit_statistics``, the optimiser, ``update_teacher`` where the
    paper moves it after.
    """

    #: network whose backbone the paper evaluates
    network_default = "student"

    def forward(self, view1: Tensor, view2: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """ "loss", to be minimised, and figures for the log, of two views [N, 3, H, W] of N images.

        Args:
            labels: classes [N]; only the supervised baseline looks at them.
        """
        raise NotImplementedError

    def begin_step(self, progress: float) -> dict[str, float]:
        """Set Momentum BN's alpha for the forwards at the share ``progress`` of the run; return it for the log."""
        return {}

    def update_teacher(self, progress: float) -> dict[str, float]:
        """Move the teacher, at the share ``progress`` of the run; return the momentum for the log."""
        return {}

    def commit_statistics(self) -> None:
        """End the iteration's pair of views for normalisations that keep pending statistics."""

    def networks(self) -> dict[str, nn.Module]:
        """The networks by name: "student", and "teacher" where there is one; each has a ``backbone``."""
        return {name: child for name, child in self.named_children() if name in ("student", "teacher")}

    def backbone(self, network: str | None = None) -> Backbone:
        """The backbone of the "student" or the "teacher"; by default of the network that the paper evaluates.

        Raises:
            InputError: the method has no such network.
        """
        found, name = self.networks(), network or self.network_default
        if name not in found:
            known = " and ".join(found)
            raise InputError(f"expected a network of {known}, found {name!r}; take one that the method has")
        backbone = found[name].get_submodule("backbone")
        assert isinstance(backbone, (ResNet, TimmBackbone))
        return backbone
