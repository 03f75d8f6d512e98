"""The numbers that papers print (COCO's, LVIS's and VOC's) from tables of precision and recall.

Tables are as the references keep them: T 10 IoU thresholds (.50 : .05 : .95), R 101 recall levels, K categories, A area
ranges (all, small, medium, large), M limits on detections per image; −1 where a category has no object that counts.
"""

from collections.abc import Mapping, Sequence

import numpy as np

_AT_50, _AT_75 = 0, 5


def _percent(tables: np.ndarray) -> np.ndarray:
    """[B] mean of the defined entries (above −1) of each table in percent, NaN if there is none.

    The references' own summation order, so that their bits are met.
    """
    rows = np.ascontiguousarray(tables).reshape(len(tables), -1)
    defined = rows > -1
    if rows.size and defined.all():
        return rows.mean(axis=1) * 100
    each = zip(rows, defined, strict=True)
    return np.array([np.mean(row[known]) * 100 if known.any() else np.nan for row, known in each])


def coco_metrics(
    precision: np.ndarray, recall: np.ndarray, limits: Sequence[int], groups: Mapping[str, Sequence[int]] | None = None
) -> dict[str, np.ndarray]:
    """AP, AP50, AP75, APs, APm, APl, AR<limit> …, ARs, ARm, ARl in percent, [B] each: of B scorings of one set.

    Args:
        precision: [B, T, R, K, A] at the largest limit. recall: [B, T, K, A, M].
    """
    averages = {f"AR{limit}": _percent(recall[..., 0, m]) for m, limit in enumerate(limits)}
    return _precisions(precision) | averages | _by_area("AR", recall[..., -1])


def lvis_metrics(
    precision: np.ndarray, recall: np.ndarray, limits: Sequence[int], groups: Mapping[str, Sequence[int]]
) -> dict[str, np.ndarray]:
    """As ``coco_metrics``, with APr, APc and APf of ``groups`` (rare, common, frequent categories).

    Args:
        precision: [B, T, R, K, A]. recall: [B, T, K, A, 1]. limits: (detections per image,), −1 for no limit.
    """
    by_group = {f"AP{name}": _percent(precision[..., 0][..., chosen]) for name, chosen in groups.items()}
    average = {"AR" if limits[-1] < 0 else f"AR{limits[-1]}": _percent(recall[..., 0, -1])}
    return _precisions(precision) | by_group | average | _by_area("AR", recall[..., -1])


def _precisions(precision: np.ndarray) -> dict[str, np.ndarray]:
    tables = {"AP": precision, "AP50": precision[:, [_AT_50]], "AP75": precision[:, [_AT_75]]}
    return {name: _percent(table[..., 0]) for name, table in tables.items()} | _by_area("AP", precision)


def _by_area(name: str, table: np.ndarray) -> dict[str, np.ndarray]:
    return {f"{name}{area}": _percent(table[..., a]) for a, area in enumerate("sml", start=1)}


def of_one(metrics: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The metrics of one scoring as numbers."""
    return {name: float(values[0]) for name, values in metrics.items()}


def voc_metrics(table: np.ndarray) -> dict[str, float]:
    """AP (mean over the thresholds), AP50 and AP75 from AP in percent [10, K]; NaN where a class has no object."""
    defined = ~np.isnan(table[0])
    by_iou = [float(np.mean(row[defined])) if defined.any() else float("nan") for row in table]
    return {"AP": float(np.mean(by_iou)), "AP50": by_iou[_AT_50], "AP75": by_iou[_AT_75]}
