"""BYOL: "Bootstrap Your Own Latent" (arXiv 2006.07733).

Teacher: any normalisation; SyncBN in the paper, EMAN in BYOL-EMAN (arXiv 2101.08482).
The teacher moves after the optimizer step, here and in RCF; its momentum is .99 -> 1, in our notation .01 -> 0.
"""

from torch import Tensor

from momentum_transfer.pretrain.heads import cosine_regression, embedding_std
from momentum_transfer.pretrain.methods.method import StudentTeacher


class BYOL(StudentTeacher):
    """The student's predictor regresses the teacher's projection of the other view, in both directions."""

    def forward(self, view1: Tensor, view2: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """The loss of a pair of views (eq. 2 and its symmetric part), and the spread of the teacher's projections.

        The two directions are summed: at a fixed learning rate their mean would halve the step, which costs about ten
        points.
        """
        target1, target2 = self.targets(view1), self.targets(view2)  # NxD each
        loss = cosine_regression(self.student(view1), target2) + cosine_regression(self.student(view2), target1)
        return {"loss": loss, "embedding_std": embedding_std(target1)}
