"""Scores of fitted one-vs-rest classifiers for all costs at once: top-1 and top-5, or mean average precision."""

from collections.abc import Sequence

import numpy as np

from momentum_transfer.core.neighbours import chunks
from momentum_transfer.lowshot.svm.problem import LinearClassifiers


def evaluate(
    classifiers: LinearClassifiers,
    features: np.ndarray,
    labels: np.ndarray,
    metrics: Sequence[str],
    kept: dict[str, list[np.ndarray]] | None = None,
    envelope: bool = False,
) -> dict[str, np.ndarray]:
    """Fractions [costs] for every metric, from one matrix product for all costs per chunk of images.

    The features' mean goes into the biases, and what all biases of a cost share is left out, both in float64: what
    tells images and classes apart is then not rounded away in float32, even where a backbone has all but collapsed.

    Args:
        features: [N, D] float32, normalised. labels: [N] class indices (top1, top5) or [N, classes] 0/1 (mAP).
        kept: gathers whether each image was right, bool [part of N, costs] for top1 and top5; mAP has no such thing.
        envelope: of mAP, see :func:`average_precision`.
    """
    costs, classes, dim = classifiers.weights.shape
    stacked = classifiers.weights.reshape(costs * classes, dim).astype(np.float32).T
    centre = features.mean(axis=0, dtype=np.float64).astype(np.float32)
    offsets = classifiers.biases + classifiers.weights.astype(np.float64) @ centre.astype(np.float64)
    biases = (offsets - offsets.max(axis=1, keepdims=True)).reshape(-1).astype(np.float32)
    step = max(1, 2**22 // (costs * classes))  # 16 MiB: the counting below then reads from the cache
    products = np.empty((step, costs * classes), np.float32)
    everything, top1, top5 = [], np.zeros(costs), np.zeros(costs)
    for part in chunks(len(features), step):
        decisions = np.matmul(features[part] - centre, stacked, out=products[: part.stop - part.start])
        decisions += biases
        decisions = decisions.reshape(-1, costs, classes)
        if "mAP" in metrics:
            everything.append(decisions.copy())
            continue
        own = np.take_along_axis(decisions, labels[part, None, None], axis=2)
        rivals = np.count_nonzero(decisions >= own, axis=2) - 1  # other classes that are as high as the right one
        top1 += (rivals == 0).sum(axis=0)
        top5 += (rivals < 5).sum(axis=0)
        if kept is not None:
            kept.setdefault("top1", []).append(rivals == 0)
            kept.setdefault("top5", []).append(rivals < 5)
    if "mAP" not in metrics:
        return {"top1": top1 / len(features), "top5": top5 / len(features)}
    scored = np.concatenate(everything)
    return {"mAP": np.array([mean_average_precision(labels, scored[:, cost], envelope) for cost in range(costs)])}


def joined(kept: dict[str, list[np.ndarray]]) -> dict[str, np.ndarray]:
    """[N, costs] by metric of what ``evaluate`` kept."""
    return {metric: np.concatenate(parts) for metric, parts in kept.items()}


def mean_average_precision(labels: np.ndarray, decisions: np.ndarray, envelope: bool) -> float:
    """Mean over classes of :func:`average_precision`; classes without a positive are left out.

    Args:
        labels: [N, classes] of 0 and 1. decisions: [N, classes].
    """
    present = np.flatnonzero(labels.any(axis=0))
    return float(np.mean([average_precision(labels[:, index], decisions[:, index], envelope) for index in present]))


def average_precision(relevant: np.ndarray, decisions: np.ndarray, envelope: bool) -> float:
    """Σ (Rₙ − Rₙ₋₁)·Pₙ over the distinct scores, descending: the area under precision and recall.

    Images of equal score enter together, as one step, so that their order does not matter. (VISSL and PCL take them one
    by one, in whatever order sorting leaves them; without ties the numbers are the same.)

    Args:
        relevant: [N] of 0 and 1, at least one 1. decisions: [N].
        envelope: Pₙ is the highest precision at this recall or above, as in VOC's own AP from 2010 on (Everingham et
            al., IJCV 2010, section 4.2), VISSL and PCL; otherwise it is the precision at n, as in scikit-learn's
            ``average_precision_score``.
    """
    order = np.argsort(-decisions, kind="stable")
    hits = np.cumsum(relevant[order])
    ordered = decisions[order]
    last = np.append(np.flatnonzero(ordered[1:] != ordered[:-1]), len(order) - 1)  # last place of each distinct score
    precision = hits[last] / (last + 1)
    recall = hits[last] / hits[-1]
    if envelope:
        precision = np.maximum.accumulate(precision[::-1])[::-1]
    return float(np.sum(np.diff(recall, prepend=0.0) * precision))
