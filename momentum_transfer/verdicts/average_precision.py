"""The AP family under many sets of image weights: the 12 numbers of COCO, LVIS with APr, APc, APf, and VOC's three.

``replicates`` gives what the evaluator would give for every resample of the images, without matching again. The unit
weights reproduce the evaluator's numbers bit for bit. Against a fresh evaluation of the resampled set, in which an
image that was drawn twice stands twice under new ids, the numbers agree to 1e-12 where no two detections of an image
and category have the same score. Where some do, the fresh evaluation orders the copies otherwise (first all of one
copy, then all of the next), and AP can differ a little: up to 4.5e-4 points in a small set full of ties.

The mean of the replicates lies above the score itself (a detection drawn twice makes precision less ragged), so a plain
percentile interval of one checkpoint's AP is shifted; verdicts take the replicates' standard deviation alone.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from momentum_transfer.verdicts.ap_metrics import coco_metrics, lvis_metrics, voc_metrics
from momentum_transfer.verdicts.ranked import Ranked
from momentum_transfer.verdicts.weighted_curves import Curves, Part, blocks, curves, envelope, parts

#: Recall 0 : .01 : 1 as the references build them.
LEVELS = np.linspace(0.0, 1.0, 101)

#: Level j is not reached by a recall of exactly j / 100 where linspace rounds the level up.
_MISSED = np.arange(101) / 100 < LEVELS

#: Bytes of the table of a block of resamples.
_TABLE_BYTES = 96 << 20


def replicates(ranked: Ranked, weights: np.ndarray) -> dict[str, np.ndarray]:
    """Every metric, in percent, under each set of weights; NaN where it is undefined (no object of that size drawn).

    Args:
        weights: [B, images] whole numbers of at least 0, for example ``bootstrap.multinomial_weights``.
    """
    rows = list(_voc(ranked, weights) if ranked.rule.startswith("voc") else _sampled(ranked, weights))
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def _sampled(ranked: Ranked, weights: np.ndarray) -> Iterator[dict[str, float]]:
    """COCO and LVIS: precision at 101 levels of recall."""
    metrics: Any = lvis_metrics if ranked.rule == "lvis" else coco_metrics
    row_bytes = ranked.categories * ranked.runs * len(LEVELS) * 8
    size = max(1, min(64, _TABLE_BYTES // row_bytes))
    whole = parts(ranked, size)
    for block in blocks(weights, size):
        precision = np.empty((len(block), ranked.categories, ranked.areas, ranked.thresholds, len(LEVELS)))
        recall = np.empty((len(ranked.limits), len(block), ranked.categories, ranked.areas, ranked.thresholds))
        for part in whole:
            found = curves(part, block)
            precision[:, part.low : part.high] = _precision_at_levels(ranked, found)
            recall[:, :, part.low : part.high] = _recall(ranked, found)
        for b in range(len(block)):
            # [T, R, K, A] and [T, K, A, M], as the references order them
            tables = precision[b].transpose(2, 3, 0, 1), recall[:, b].transpose(3, 1, 2, 0)
            yield metrics(*tables, ranked.limits, ranked.groups)


def _precision_at_levels(ranked: Ranked, found: Curves) -> np.ndarray:
    """[B, categories, A, T, R]; −1 where a category has no object that counts."""
    part, block = found.part, len(found.true)
    precision = found.true / (found.false + found.true + np.spacing(1))
    precision[:, part.last] = 0.0
    envelope(precision, part)
    positives = found.positives.take(part.run_of // ranked.thresholds, axis=1)
    table: np.ndarray = np.repeat(precision.ravel(), _levels(found.true, positives, part).ravel())
    shape = (block, part.high - part.low, ranked.areas, ranked.thresholds, len(LEVELS))
    table = table.reshape(shape)
    table[(found.positives == 0).reshape(shape[:3])] = -1.0
    return table


def _levels(true: np.ndarray, positives: np.ndarray, part: Part) -> np.ndarray:
    """[B, E] how many levels of recall are first reached at each entry; the closing one takes those that never are."""
    hundredths = np.multiply(true, 100.0) / np.maximum(positives, 1)
    reached = hundredths.astype(np.int64)
    whole = reached == hundredths  # the quotient of whole numbers is exact where it is whole
    reached += 1
    reached[whole] -= _MISSED[reached[whole] - 1]
    reached[:, part.last] = len(LEVELS)
    new = np.empty_like(reached)
    np.subtract(reached[:, 1:], reached[:, :-1], out=new[:, 1:])
    new[:, part.run_start] = reached[:, part.run_start]
    return new


def _recall(ranked: Ranked, found: Curves) -> np.ndarray:
    """[M, B, categories, A, T]; −1 where a category has no object that counts."""
    part = found.part
    own = found.weights * part.counted
    hits = [
        np.add.reduceat(own * (part.first_limit <= place), part.run_start, axis=1)
        for place in range(len(ranked.limits) - 1)
    ]
    hits.append(found.true[:, part.last])
    shape = (len(hits), len(found.true), part.high - part.low, ranked.areas, ranked.thresholds)
    positives = found.positives.reshape(*shape[1:4], 1)
    recall = np.stack(hits).reshape(shape) / np.maximum(positives, 1)
    return np.where(positives > 0, recall, -1.0)


def _voc(ranked: Ranked, weights: np.ndarray) -> Iterator[dict[str, float]]:
    """VOC: 11 points, or the area under the envelope."""
    average = _eleven_points if ranked.rule == "voc 11-point" else _area
    size = 64
    whole = parts(ranked, size)
    for block in blocks(weights, size):
        table = np.full((len(block), ranked.thresholds, ranked.categories), np.nan)
        for part in whole:
            found = curves(part, block)
            with np.errstate(invalid="ignore", divide="ignore"):
                recall = found.true / found.positives[:, part.run_of // ranked.thresholds].astype(np.float64)
            precision = found.true / np.maximum(found.true + found.false, np.finfo(np.float64).eps)
            precision[:, part.last] = 0.0
            envelope(precision, part)
            hit = (found.weights > 0) & (part.counted > 0)
            for run, (start, end) in enumerate(zip(part.run_start.tolist(), part.last.tolist(), strict=True)):
                category, threshold = divmod(run, ranked.thresholds)
                for b in np.flatnonzero(found.positives[:, category]).tolist():
                    kept = hit[b, start:end]
                    value = average(recall[b, start:end][kept], precision[b, start:end][kept])
                    table[b, threshold, part.low + category] = value * 100
        yield from (voc_metrics(rows) for rows in table)


def _eleven_points(recall: np.ndarray, best: np.ndarray) -> float:
    """Mean of the best precision at recall ≥ 0, .1, …, 1; ``recall`` and ``best`` [N] at the true positives."""
    place = np.searchsorted(recall, np.arange(0.0, 1.1, 0.1), side="left")
    values = np.append(best, 0.0)[np.minimum(place, len(best))]
    return float(np.cumsum(values / 11.0)[-1])


def _area(recall: np.ndarray, best: np.ndarray) -> float:
    """Σ ΔR·P over the true positives, and over the rest up to recall 1, where P is 0."""
    if not len(recall) or recall[-1] != 1.0:
        recall, best = np.append(recall, 1.0), np.append(best, 0.0)
    return float(np.sum(np.diff(recall, prepend=0.0) * best))
