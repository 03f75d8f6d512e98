"""The precision-recall curve of one category, in all runs (IoU thresholds × area ranges) at once.

Only true positives shape the curve. Between two of them precision falls, so the envelope (the best precision at or
after a point) is attained at true positives; and recall first reaches a level at one. So the long list of false
positives is only counted, and the curve is computed at the matched detections alone.
"""

from functools import cache

import numpy as np

from momentum_transfer.transfer.scores.matching import AREAS, RECALL_THRESHOLDS, RUNS, THRESHOLDS


def unpack(words: np.ndarray) -> np.ndarray:
    """[A, T, N] 0/1 from words [N] with a bit per run."""
    shifts = np.arange(RUNS, dtype=np.int64).reshape(AREAS, THRESHOLDS, 1)
    return ((words >> shifts) & 1).astype(np.int32)


def curve(
    counted: np.ndarray, ignored: np.ndarray, blamed: np.ndarray, before: np.ndarray, positives: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Precision [A, T, R] and recall [A, T] of one category.

    Args:
        counted, ignored: [A, T, N] what each matched detection is, in order of score.
        blamed: [A, N] it would be a false positive if unmatched.
        before: [A, N] detections up to and including this one that would be false positives if unmatched.
        positives: [A] objects that count.
    """
    true = np.cumsum(counted, axis=2, dtype=np.int32)
    matched = np.cumsum((counted | ignored) * blamed[:, None], axis=2, dtype=np.int32)
    false = before[:, None] - matched
    precision = true / (false + true + np.spacing(1))
    envelope = np.maximum.accumulate(precision[:, :, ::-1], axis=2)[:, :, ::-1]
    found = counted.sum(axis=2)
    recall = found / np.maximum(positives, 1)[:, None]
    # The envelope at the true positives, run by run, and where those of each run begin.
    points = np.append(envelope.ravel()[np.flatnonzero(counted)], 0.0)
    first = (np.cumsum(found) - found.ravel()).reshape(AREAS, THRESHOLDS, 1)
    wanted = _wanted(tuple(positives.tolist()))
    reached = wanted < found[:, :, None]
    return points[np.where(reached, first + wanted, -1)], recall


@cache
def _wanted(positives: tuple[int, ...]) -> np.ndarray:
    """[A, 1, R] ``needed`` for the objects of each area range."""
    return np.stack([needed(number) for number in positives])[:, None]


def needed(positives: int) -> np.ndarray:
    """[R] how many true positives come before the one with which recall reaches each level."""
    return np.searchsorted(np.arange(1, positives + 1) / max(positives, 1), RECALL_THRESHOLDS, side="left")
