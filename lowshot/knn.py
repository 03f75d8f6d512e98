"""k-nearest-neighbour classification and image retrieval with frozen features.

Features are L2-normalised, the similarity is the cosine. Presets of kNN:
    eman: majority vote of the 20 most similar training images (EMAN, arXiv 2101.08482, section 5).
    dino: 200 neighbours, each voting with exp(similarity / 0.07) (InstDisc, arXiv 1805.01978, section 3.4; DINO,
        arXiv 2104.14294).
Any other k: ``majority-K``, and ``weighted-K`` with τ = 0.07. All come from one search.

Retrieval: the training set is the database, test images are the queries (EMAN, table 4). For each query the 1000 most
similar training images are ranked; relevant are those of its class (with several labels: those with one in common).
    average precision = mean over the hits among the 1000 of the precision at that hit (0 without a hit);
    recall = hits among the 1000 / all relevant images of the database.
mAP and recall are means over queries.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from momentum_transfer.core.neighbours import Neighbours, chunks, ranked_classes
from momentum_transfer.lowshot.config import KNN_PRESET
from momentum_transfer.lowshot.features.feature_set import FeatureSet
from momentum_transfer.lowshot.identity import Score
from momentum_transfer.verdicts.outcomes import label_hash


@dataclass(frozen=True)
class Preset:
    """``k`` neighbours; ``temperature`` None is a majority vote, else votes weigh exp(similarity / temperature)."""

    k: int
    temperature: float | None = None


PRESETS = {"eman": Preset(k=20), "dino": Preset(k=200, temperature=0.07)}


def preset(name: str) -> Preset:
    """The preset of that name; an InputError lists them."""
    KNN_PRESET.require("KNN.PRESETS", name)
    if name in PRESETS:
        return PRESETS[name]
    kind, _, k = name.partition("-")
    return Preset(int(k), 0.07 if kind == "weighted" else None)


def accuracies(
    neighbours: Neighbours, labels: np.ndarray, test_labels: np.ndarray, chosen: Preset
) -> tuple[dict[str, float], dict[int, float], dict[str, np.ndarray]]:
    """(top1, top5 and the mean over classes of top1; top1 of every class that is tested), in percent; hits [Q] bool.

    Args:
        labels: [N] class indices of the database. test_labels: [Q] of the queries.
    """
    hit = ranked_classes(neighbours, labels, chosen.k, chosen.temperature) == test_labels[:, None]
    present = np.unique(test_labels)
    per_class = {int(label): 100 * float(hit[test_labels == label, 0].mean()) for label in present}
    values = {
        "top1": 100 * float(hit[:, 0].mean()),
        "top5": 100 * float(hit.any(axis=1).mean()),
        "mean_per_class": float(np.mean(list(per_class.values()))),
    }
    return values, per_class, {"top1": hit[:, 0], "top5": hit.any(axis=1)}


def knn_scores(
    neighbours: Neighbours, train: FeatureSet, test: FeatureSet, presets: list[str]
) -> Iterator[list[Score]]:
    """top1, top5 and the mean over classes of top1, for every preset; a class's own accuracy is in the details."""
    test_set = label_hash(test.labels)
    for name in presets:
        chosen = preset(name)
        values, per_class, hits = accuracies(neighbours, train.labels, test.labels, chosen)
        details = {"mean_per_class": {"per_class": per_class}}
        yield [
            Score(f"knn/k={chosen.k}", metric, value, name, details=details.get(metric, {}), items=hits.get(metric),
                  test_set=test_set)
            for metric, value in values.items()
        ]  # fmt: skip


def retrieval_scores(neighbours: Neighbours, train: FeatureSet, test: FeatureSet, top: int) -> list[Score]:
    """mAP and recall within the first ``top`` neighbours."""
    precisions, recalls = [], []
    database, queries, widest = train.labels, test.labels, top
    if train.multi_label:  # in float32: NumPy has no fast products of integers
        database, queries = database.astype(np.float32), queries.astype(np.float32)
        widest = max(top * train.num_classes, len(train))
    for part in chunks(len(test), max(1, min(512, 2**26 // widest))):
        hits = _relevant(database, neighbours.indices[part, :top], queries[part])
        precisions.append(_average_precisions(hits))
        recalls.append(hits.sum(axis=1) / np.maximum(_relevant_counts(database, queries[part]), 1))
    values = {"mAP": np.concatenate(precisions), "recall": np.concatenate(recalls)}
    details, test_set = {"top": top}, label_hash(test.labels)
    return [
        Score("retrieval", metric, 100 * float(each.mean()), "eman", details=details, items=each, test_set=test_set)
        for metric, each in values.items()
    ]


def _relevant(database: np.ndarray, indices: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """[q, k] bool: whether neighbour and query have a label in common."""
    if database.ndim == 1:
        return np.asarray(database[indices] == queries[:, None])
    return np.asarray(np.einsum("qkc,qc->qk", database[indices], queries) > 0)


def _relevant_counts(database: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """[q]: how many images of the database have a label in common with each query."""
    if database.ndim == 1:
        return np.bincount(database, minlength=int(queries.max()) + 1)[queries]
    return np.asarray((queries @ database.T > 0).sum(axis=1))


def _average_precisions(hits: np.ndarray) -> np.ndarray:
    """[q] average precision of ranked lists ``hits`` [q, k] bool, over the hits that were found."""
    found = np.cumsum(hits, axis=1)
    precision = found / np.arange(1, hits.shape[1] + 1)
    return np.asarray((precision * hits).sum(axis=1) / np.maximum(found[:, -1], 1))
