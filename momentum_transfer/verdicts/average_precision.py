"""The bootstrap of AP: the metrics of COCO, LVIS and VOC under many sets of image weights.

``replicates`` gives what the evaluator would give for every resample of the images, without matching again. The curve
of a run (category, area range, IoU threshold) changes only at its true positives, so each run is the list of its true
positives in order of score; one pass of weighted cumulative sums gives true and false positives of every entry in every
resample. Weights are whole numbers, so counts are exact: unit weights reproduce the evaluator's numbers bit for bit,
and others those of the resampled set, in which an image drawn twice stands twice, to 1e-12 (up to 4.5e-4 points of AP
off where many detections of an image have one score).

The mean of the replicates lies above the score itself (a detection drawn twice makes precision less ragged), so a plain
percentile interval of one checkpoint's AP is shifted; verdicts take the replicates' standard deviation alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from momentum_transfer.verdicts.ap_metrics import coco_metrics, lvis_metrics, voc_metrics
from momentum_transfer.verdicts.ranked import Ranked

#: Recall 0 : .01 : 1 as the references build them. Level j is not reached by a recall of exactly j / 100 where linspace
#: rounds the level up.
_LEVELS = np.linspace(0.0, 1.0, 101)
_MISSED = np.arange(101) / 100 < _LEVELS

#: At a time: resamples, bytes of their table, entries × resamples (about 40 bytes each); those of one category.
_BLOCK, _TABLE_BYTES, _CHUNK, _LARGEST = 64, 96 << 20, 1 << 18, 1 << 25


@dataclass(frozen=True)
class _Part:
    """The runs of the categories [low, high): R = (high − low)·A·T of them, in the order [category, area, threshold].

    E entries, run by run: the detections that take an object, in order of score, then one that closes the run. False
    positives are all candidates (detections that are false if unmatched) less those that a match spares; ``candidates``
    counts them by stretch: row r, those between a matched detection of the category and the one before it.
    """

    low: int
    high: int
    image: np.ndarray  # [E], ``images`` (of weight 0) for the closing entry
    counted: np.ndarray  # [E] int32, 1 for a true positive
    spared: np.ndarray  # [E] int32, 1 where the match keeps a candidate from being a false positive
    first_limit: np.ndarray  # [E] the first limit that keeps it
    run_start: np.ndarray  # [R] first entry of each run
    run_of: np.ndarray  # [E]
    stretch: np.ndarray  # [E] row of ``candidates`` that ends at the entry
    candidates: sparse.csr_matrix  # [rows, images]
    candidate_start: np.ndarray  # [starts] rows where the cumulative sum begins anew
    candidate_of: np.ndarray  # [rows] which of them
    most: int  # detections and objects in the part
    positives: sparse.csr_matrix  # [(high − low)·A, images] objects that count

    @property
    def last(self) -> np.ndarray:
        """[R] the closing entry of each run."""
        return np.append(self.run_start[1:], len(self.image)) - 1


@dataclass(frozen=True)
class _Curves:
    """The curves of a part under B sets of weights, at its entries.

    Attributes:
        true, false: [B, E] true and false positives up to and including the entry.
        positives: [B, (high − low)·A] objects that count.
        weights: [B, E] of the entries.
    """

    part: _Part
    true: np.ndarray
    false: np.ndarray
    positives: np.ndarray
    weights: np.ndarray


def replicates(ranked: Ranked, weights: np.ndarray) -> dict[str, np.ndarray]:
    """Every metric, in percent, under each set of weights; NaN where it is undefined (no object of that size).

    Args:
        weights: [B, images] whole numbers of at least 0, for example ``outcomes.item_weights``.
    """
    if ranked.rule.startswith("voc"):
        rows = list(_voc(ranked, weights))
        return {name: np.array([row[name] for row in rows]) for name in rows[0]}
    blocks = list(_sampled(ranked, weights))
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def _sampled(ranked: Ranked, weights: np.ndarray) -> Iterator[dict[str, np.ndarray]]:
    """COCO and LVIS: precision at 101 levels of recall, for a block of weights at a time."""
    metrics: Any = lvis_metrics if ranked.rule == "lvis" else coco_metrics
    row_bytes = ranked.categories * ranked.runs * len(_LEVELS) * 8
    size = max(1, min(_block(ranked), _TABLE_BYTES // row_bytes))
    whole = _parts(ranked, size)
    for start in range(0, len(weights), size):
        block = weights[start : start + size]
        precision = np.empty((len(block), ranked.categories, ranked.areas, ranked.thresholds, len(_LEVELS)))
        recall = np.empty((len(ranked.limits), len(block), ranked.categories, ranked.areas, ranked.thresholds))
        for part in whole:
            curves = _curves(part, block)
            precision[:, part.low : part.high] = _precision_at_levels(ranked, curves)
            recall[:, :, part.low : part.high] = _recall(ranked, curves)
        # [B, T, R, K, A] and [B, T, K, A, M], as the references order them
        tables = precision.transpose(0, 3, 4, 1, 2), recall.transpose(1, 4, 2, 3, 0)
        yield metrics(*tables, ranked.limits, ranked.groups)


def _precision_at_levels(ranked: Ranked, curves: _Curves) -> np.ndarray:
    """[B, categories, A, T, R]; −1 where a category has no object that counts."""
    part, block = curves.part, len(curves.true)
    precision = curves.true / (curves.false + curves.true + np.spacing(1))
    precision[:, part.last] = 0.0
    _envelope(precision, part)
    positives = curves.positives.take(part.run_of // ranked.thresholds, axis=1)
    table: np.ndarray = np.repeat(precision.ravel(), _levels(curves.true, positives, part).ravel())
    shape = (block, part.high - part.low, ranked.areas, ranked.thresholds, len(_LEVELS))
    table = table.reshape(shape)
    table[(curves.positives == 0).reshape(shape[:3])] = -1.0
    return table


def _levels(true: np.ndarray, positives: np.ndarray, part: _Part) -> np.ndarray:
    """[B, E] how many levels of recall are first reached at each entry; the closing one takes those that never are."""
    hundredths = np.multiply(true, 100.0) / np.maximum(positives, 1)
    reached = hundredths.astype(np.int64)
    whole = reached == hundredths  # the quotient of whole numbers is exact where it is whole
    reached += 1
    reached[whole] -= _MISSED[reached[whole] - 1]
    reached[:, part.last] = len(_LEVELS)
    new = np.empty_like(reached)
    np.subtract(reached[:, 1:], reached[:, :-1], out=new[:, 1:])
    new[:, part.run_start] = reached[:, part.run_start]
    return new


def _recall(ranked: Ranked, curves: _Curves) -> np.ndarray:
    """[M, B, categories, A, T]; −1 where a category has no object that counts."""
    part = curves.part
    own = curves.weights * part.counted
    hits = [
        np.add.reduceat(own * (part.first_limit <= place), part.run_start, axis=1)
        for place in range(len(ranked.limits) - 1)
    ]
    hits.append(curves.true[:, part.last])
    shape = (len(hits), len(curves.true), part.high - part.low, ranked.areas, ranked.thresholds)
    positives = curves.positives.reshape(*shape[1:4], 1)
    recall = np.stack(hits).reshape(shape) / np.maximum(positives, 1)
    return np.where(positives > 0, recall, -1.0)


def _voc(ranked: Ranked, weights: np.ndarray) -> Iterator[dict[str, float]]:
    """VOC: 11 points, or the area under the envelope."""
    average = _eleven_points if ranked.rule == "voc 11-point" else _area
    size = _block(ranked)
    whole = _parts(ranked, size)
    for start in range(0, len(weights), size):
        block = weights[start : start + size]
        table = np.full((len(block), ranked.thresholds, ranked.categories), np.nan)
        for part in whole:
            curves = _curves(part, block)
            with np.errstate(invalid="ignore", divide="ignore"):
                recall = curves.true / curves.positives[:, part.run_of // ranked.thresholds].astype(np.float64)
            precision = curves.true / np.maximum(curves.true + curves.false, np.finfo(np.float64).eps)
            precision[:, part.last] = 0.0
            _envelope(precision, part)
            hit = (curves.weights > 0) & (part.counted > 0)
            for run, (begin, end) in enumerate(zip(part.run_start.tolist(), part.last.tolist(), strict=True)):
                category, threshold = divmod(run, ranked.thresholds)
                for b in np.flatnonzero(curves.positives[:, category]).tolist():
                    kept = hit[b, begin:end]
                    value = average(recall[b, begin:end][kept], precision[b, begin:end][kept])
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


def _block(ranked: Ranked) -> int:
    """How many resamples at a time: fewer where a category has millions of detections."""
    return max(1, min(_BLOCK, _LARGEST // int(_entries(ranked).max())))


def _entries(ranked: Ranked) -> np.ndarray:
    """[K] entries of each category."""
    words = ranked.counted | ranked.ignored
    entries = sum(((words >> run) & 1 for run in range(ranked.runs)), start=np.zeros(len(words), dtype=np.int64))
    return np.diff(np.append(0, np.cumsum(entries))[np.searchsorted(ranked.match, ranked.starts)]) + ranked.runs


def _parts(ranked: Ranked, resamples: int) -> list[_Part]:
    """The categories in parts small enough for a block of ``resamples``."""
    sizes = _entries(ranked)
    parts, low = [], 0
    while low < ranked.categories:
        high, total = low + 1, int(sizes[low])
        while high < ranked.categories and (total + int(sizes[high])) * resamples <= _CHUNK:
            total += int(sizes[high])
            high += 1
        parts.append(_part(ranked, low, high))
        low = high
    return parts


def _curves(part: _Part, weights: np.ndarray) -> _Curves:
    """The curves under ``weights`` [B, images], whole numbers of at least 0."""
    # Sums of weights over detections: 32 bits hold them unless there are hundreds of millions.
    kind = np.int32 if int(weights.max(initial=0)) * part.most < 1 << 31 else np.int64
    padded = np.concatenate((weights, np.zeros((len(weights), 1), weights.dtype)), axis=1).astype(kind)
    own = np.take(padded, part.image, axis=1)  # in row order, which padded[:, …] would not be
    true, spared = (
        _since(np.cumsum(own * flags.astype(kind), axis=1, dtype=kind), part.run_start, part.run_of)
        for flags in (part.counted, part.spared)
    )
    transposed = np.ascontiguousarray(padded[:, :-1].T)
    candidates, positives = (
        np.ascontiguousarray((counts.astype(kind) @ transposed).T) for counts in (part.candidates, part.positives)
    )
    candidates = _since(np.cumsum(candidates, axis=1, dtype=kind), part.candidate_start, part.candidate_of)
    return _Curves(part, true, candidates.take(part.stretch, axis=1) - spared, positives, own)


def _envelope(precision: np.ndarray, part: _Part) -> None:
    """The best precision at or after each entry of a run, in place; ``precision`` [B, E]."""
    ends = np.append(part.run_start[1:], precision.shape[1])
    for start, end in zip(part.run_start.tolist(), ends.tolist(), strict=True):
        if end - start > 2:  # the closing entry has precision 0
            run = precision[:, start:end][:, ::-1]
            np.maximum.accumulate(run, axis=1, out=run)


def _since(totals: np.ndarray, start: np.ndarray, of: np.ndarray) -> np.ndarray:
    """Cumulative sums [B, E] that begin anew at each ``start`` [R]; entry e belongs to the run ``of[e]``, in place."""
    base = totals[:, start - 1]
    base[:, start == 0] = 0
    totals -= base.take(of, axis=1)
    return totals


def _part(ranked: Ranked, low: int, high: int) -> _Part:
    first, end = np.searchsorted(ranked.match, ranked.starts[[low, high]]).tolist()
    match = ranked.match[first:end]
    category = np.searchsorted(ranked.starts, match, side="right") - 1 - low
    # [A, T, M]
    shifts = np.arange(ranked.runs, dtype=np.int64).reshape(ranked.areas, ranked.thresholds, 1)
    counted, ignored = (((words[first:end] >> shifts) & 1).astype(bool) for words in (ranked.counted, ranked.ignored))
    candidate = ((ranked.false_candidates[match] >> np.arange(ranked.areas)[:, None]) & 1).astype(bool)[:, None]
    spared = (counted | ignored) & candidate
    area, threshold, place = np.nonzero(counted | spared)
    run = (category[place] * ranked.areas + area) * ranked.thresholds + threshold
    order = np.argsort(run, kind="stable")  # places ascend within a run
    area, threshold, place, run = area[order], threshold[order], place[order], run[order]
    runs = (high - low) * ranked.runs
    ends = np.searchsorted(run, np.arange(runs), side="right")

    def closed(values: np.ndarray, closing: int = 0) -> np.ndarray:
        return np.insert(values, ends, closing)

    lengths = np.diff(ends, prepend=0) + 1
    candidates, starts, of, rows = _candidates(ranked, low, high, match, category)
    return _Part(
        low,
        high,
        image=closed(ranked.image[match[place]], ranked.images),
        counted=closed(counted[area, threshold, place].astype(np.int32)),
        spared=closed(spared[area, threshold, place].astype(np.int32)),
        first_limit=closed(ranked.limit[first:end][place]),
        run_start=np.cumsum(lengths) - lengths,
        run_of=np.repeat(np.arange(runs), lengths),
        stretch=closed(area * rows + place),
        candidates=candidates,
        candidate_start=starts,
        candidate_of=of,
        most=ranked.areas * (int(ranked.starts[high] - ranked.starts[low]) + len(ranked.object_image) + len(run)),
        positives=_positives(ranked, low, high),
    )


def _candidates(
    ranked: Ranked, low: int, high: int, match: np.ndarray, category: np.ndarray
) -> tuple[sparse.csr_matrix, np.ndarray, np.ndarray, int]:
    """False positive candidates, by area range and by the next matched detection of their category.

    Returns:
        [A·rows, images] counts, rows where a category begins, which of those each row belongs to, rows per area range.
    """
    rows = max(1, len(match))
    span = np.arange(int(ranked.starts[low]), int(ranked.starts[high]))
    owner = np.searchsorted(ranked.starts, span, side="right") - 1 - low
    following = np.searchsorted(match, span)
    kept = following < len(match)
    kept[kept] = category[following[kept]] == owner[kept]
    span, following = span[kept], following[kept]
    chosen = [np.flatnonzero((ranked.false_candidates[span] >> area) & 1) for area in range(ranked.areas)]
    row = np.concatenate([following[places] + area * rows for area, places in enumerate(chosen)])
    image = np.concatenate([ranked.image[span[places]] for places in chosen])
    counts = _counts(row, image, (ranked.areas * rows, ranked.images))
    start, of = np.unique(category, return_inverse=True)
    start = np.searchsorted(category, start) if len(category) else np.zeros(1, dtype=np.int64)
    of = of if len(category) else np.zeros(1, dtype=np.int64)
    starts = np.concatenate([start + area * rows for area in range(ranked.areas)])
    groups = np.concatenate([of + area * len(start) for area in range(ranked.areas)])
    return counts, starts, groups, rows


def _positives(ranked: Ranked, low: int, high: int) -> sparse.csr_matrix:
    mine = np.flatnonzero((ranked.object_category >= low) & (ranked.object_category < high))
    chosen = [mine[((ranked.object_areas[mine] >> area) & 1).astype(bool)] for area in range(ranked.areas)]
    row = np.concatenate([(ranked.object_category[own] - low) * ranked.areas + area for area, own in enumerate(chosen)])
    image = np.concatenate([ranked.object_image[own] for own in chosen])
    return _counts(row, image, ((high - low) * ranked.areas, ranked.images))


def _counts(row: np.ndarray, image: np.ndarray, shape: tuple[int, int]) -> sparse.csr_matrix:
    return sparse.csr_matrix((np.ones(len(row), dtype=np.int64), (row, image)), shape=shape)
