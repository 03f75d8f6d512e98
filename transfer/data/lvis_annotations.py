"""LVIS's form of annotation (arXiv:1908.03195): each image says which classes were looked for, and how thoroughly."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

RARE_IMAGES, COMMON_IMAGES = 10, 100  # rare up to 10 training images, common up to 100, else frequent


def federate(data: dict[str, Any], rng: np.random.Generator) -> None:
    """Turn exhaustive COCO annotations into LVIS's federated ones, in place.

    Each image gets up to three verified absent classes. In one of ten images that hold a class twice or more, one such
    instance is left unannotated and the class is listed as not exhaustively annotated.
    """
    of_image: dict[int, list[dict[str, Any]]] = {image["id"]: [] for image in data["images"]}
    for annotation in data["annotations"]:
        of_image[annotation["image_id"]].append(annotation)
    dropped = set()
    for image in data["images"]:
        counts = Counter(annotation["category_id"] for annotation in of_image[image["id"]])
        absent = [category["id"] for category in data["categories"] if category["id"] not in counts]
        image["neg_category_ids"] = sorted(int(k) for k in rng.choice(absent, min(3, len(absent)), replace=False))
        image["not_exhaustive_category_ids"] = []
        repeated = sorted(category for category, count in counts.items() if count > 1)
        if repeated and rng.random() < 0.1:
            category = int(rng.choice(repeated))
            last = [a["id"] for a in of_image[image["id"]] if a["category_id"] == category][-1]
            dropped.add(last)
            image["not_exhaustive_category_ids"] = [category]
    data["annotations"] = [annotation for annotation in data["annotations"] if annotation["id"] not in dropped]


def count_categories(data: dict[str, Any], frequency: dict[int, str] | None) -> dict[int, str]:
    """Add LVIS's category fields in place; the frequency is that of the training split, which is also returned."""
    instances = Counter(annotation["category_id"] for annotation in data["annotations"])
    pairs = {(annotation["image_id"], annotation["category_id"]) for annotation in data["annotations"]}
    pictured = Counter(category for _, category in pairs)
    found = {}
    for category in data["categories"]:
        number = pictured[category["id"]]
        letter = "r" if number <= RARE_IMAGES else "c" if number <= COMMON_IMAGES else "f"
        found[category["id"]] = letter if frequency is None else frequency[category["id"]]
        category.update(
            image_count=number,
            instance_count=instances[category["id"]],
            frequency=found[category["id"]],
            synset=f"digit_{category['name']}.n.01",
            synonyms=[category["name"]],
            **{"def": f"the handwritten digit {category['name']}"},
        )
    return found
