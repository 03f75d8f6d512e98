"""Score: one number of one evaluation, with its task, metric, protocol and trial."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Score:
    """What an evaluator returns: ``value`` in percent where the metric is a fraction.

    Attributes:
        task: what was asked, for example ``knn/k=20`` or ``svm/k=4``.
        metric: ``top1``, ``top5``, ``mAP``, ``recall``, ``mean_per_class``.
        protocol: the preset by name.
        engine: what computed it, for example ``torch`` or ``scikit-learn``.
        trial: which repetition (a draw, a seed); the spread of the report is taken over it.
        details: what else a reader needs, such as the cost that was chosen.
        items: [N] of which ``value`` is the mean: whether each test image was a hit, or its average precision.
        test_set: hash of the test images in their order.
        network: that was scored, where training makes several of the checkpoint's one: FixMatch's student and teacher.
    """

    task: str
    metric: str
    value: float
    protocol: str
    engine: str = "torch"
    trial: int = 0
    seed: int | None = None
    details: dict[str, Any] = field(default_factory=dict)
    network: str | None = None
    items: np.ndarray | None = field(default=None, compare=False, repr=False)
    test_set: str = ""
