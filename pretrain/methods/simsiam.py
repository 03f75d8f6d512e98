"""SimSiam: "Exploring Simple Siamese Representation Learning" (arXiv 2011.10566); the peer of Momentum^2's table 5."""

from torch import Tensor

from momentum_transfer.pretrain.heads import embedding_std, negative_cosine
from momentum_transfer.pretrain.methods.method import Branch, Method


class SimSiam(Method):
    """A predictor and a stop-gradient, no teacher; ``student`` is a ``Branch`` with predictor."""

    student: Branch

    def forward(self, view1: Tensor, view2: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """D(p1, stop-gradient z2)/2 + D(p2, stop-gradient z1)/2 (eq. 4): the paper halves, unlike BYOL."""
        student = self.student
        assert student.predictor is not None
        projection1 = student.projector(student.backbone(view1))  # NxD
        projection2 = student.projector(student.backbone(view2))
        loss = negative_cosine(student.predictor(projection1), projection2) / 2
        loss = loss + negative_cosine(student.predictor(projection2), projection1) / 2
        return {"loss": loss, "embedding_std": embedding_std(projection1)}
