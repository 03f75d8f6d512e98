"""TIDE by loops over dicts, as its paper describes it, for one set in COCO's form: the independent computation."""

from __future__ import annotations

from typing import Any

import numpy as np
from pycocotools import mask as coco_mask


def overlap(found: dict, thing: dict, geometry: str) -> float:
    one, other = found[geometry], thing[geometry]
    return float(coco_mask.iou([one], [other], [int(thing.get("iscrowd", 0))])[0][0])


def errors(truth: dict[str, Any], results: list[dict[str, Any]], geometry: str = "bbox") -> dict[str, Any]:
    """Numbers and costs of the kinds of error; the rules of tidecv except where kinds.py names a difference."""
    counted = [{**a, "taken": None} for a in truth["annotations"] if not a.get("iscrowd")]
    crowds = [a for a in truth["annotations"] if a.get("iscrowd")]
    points: list[dict[str, Any]] = []
    for image in sorted(truth["images"], key=lambda entry: entry["id"]):
        things = [a for a in counted if a["image_id"] == image["id"]]
        mine = [r for r in results if r["image_id"] == image["id"]]
        kept = []
        for category in {r["category_id"] for r in mine}:
            kept += sorted((r for r in mine if r["category_id"] == category), key=lambda r: -r["score"])[:100]
        mine = sorted((r for r in mine if any(r is other for other in kept)), key=lambda r: -r["score"])
        for found in mine:
            best = None
            for thing in things:
                if thing["category_id"] != found["category_id"] or thing["taken"] is not None:
                    continue
                iou = overlap(found, thing, geometry)
                if iou >= 0.5 and (best is None or iou >= best[0]):
                    best = (iou, thing)
            point = {"score": found["score"], "class": found["category_id"], "found": found, "things": things,
                     "kind": None, "target": None, "true": best is not None}  # fmt: skip
            if best is not None:
                best[1]["taken"] = point
            elif any(
                c["image_id"] == image["id"] and c["category_id"] == found["category_id"]
                and overlap(found, c, geometry) >= 0.5 for c in crowds
            ):  # fmt: skip
                continue
            points.append(point)
    for point in points:
        if not point["true"]:
            point["kind"], point["target"] = kind_of(point, geometry)
    return {"numbers": numbers(points, counted), "costs": costs(points, counted), "ap50": ap(points, counted)}


def kind_of(point: dict, geometry: str) -> tuple[str, dict | None]:
    own: tuple[float, dict | None] = (0.0, None)
    other: tuple[float, dict | None] = (0.0, None)
    repeated = 0.0
    for thing in point["things"]:
        iou = overlap(point["found"], thing, geometry)
        if thing["category_id"] == point["class"]:
            own = (iou, thing) if iou > own[0] else own
            repeated = max(repeated, iou if thing["taken"] is not None else 0.0)
        else:
            other = (iou, thing) if iou > other[0] else other
    if 0.1 <= own[0] <= 0.5:
        return "localisation", own[1]
    if other[0] >= 0.5:
        return "classification", other[1]
    if repeated >= 0.5:
        return "duplicate", None
    if max(own[0], other[0]) <= 0.1:
        return "background", None
    return "both", None


def best_of(thing: dict, points: list[dict]) -> dict | None:
    """The best-scored error that would give the object."""
    about = [point for point in points if point["target"] is thing]
    return max(about, key=lambda point: point["score"]) if about and thing["taken"] is None else None


def is_missed(thing: dict, points: list[dict]) -> bool:
    return thing["taken"] is None and best_of(thing, points) is None


def numbers(points: list[dict], counted: list[dict]) -> dict[str, int]:
    kinds = ("classification", "localisation", "both", "duplicate", "background")
    found = {kind: sum(point["kind"] == kind for point in points) for kind in kinds}
    return found | {"missed": sum(is_missed(thing, points) for thing in counted)}


def costs(points: list[dict], counted: list[dict]) -> dict[str, float]:
    whole = ap(points, counted)
    found = {}
    for kind in ("classification", "localisation", "both", "duplicate", "background"):
        changed = []
        for point in points:
            if point["kind"] != kind:
                changed.append(point)
            elif point["target"] is not None and best_of(point["target"], points) is point:
                changed.append({**point, "true": True, "class": point["target"]["category_id"]})
        found[kind] = ap(changed, counted) - whole
    missed = [thing for thing in counted if is_missed(thing, points)]
    found["missed"] = ap(points, counted, missed) - whole
    found["false positives"] = ap([point for point in points if point["true"]], counted) - whole
    found["false negatives"] = ap(points, counted, [thing for thing in counted if thing["taken"] is None]) - whole
    return found


def ap(points: list[dict], counted: list[dict], left_out: list[dict] = ()) -> float:
    values = []
    for category in sorted({thing["category_id"] for thing in counted}):
        positives = sum(t["category_id"] == category for t in counted)
        positives -= sum(t["category_id"] == category for t in left_out)
        mine = sorted((p for p in points if p["class"] == category), key=lambda point: -point["score"])
        curve, true = [], 0
        for number, point in enumerate(mine, start=1):
            true += point["true"]
            curve.append((true / positives if positives else 0.0, true / number))
        levels = [max((p for r, p in curve if r >= level), default=0.0) for level in np.linspace(0, 1, 101)]
        values.append(100 * sum(levels) / 101 if positives else 0.0)
    return sum(values) / len(values) if values else float("nan")
