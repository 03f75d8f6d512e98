"""Image retrieval: the training set is the database, test images are the queries (EMAN, arXiv 2101.08482, table 4).

For each query the 1000 most similar training images are ranked by the cosine of L2-normalised features; relevant are
those of its class (with several labels: those that share one).
    average precision = mean over the hits among the 1000 of the precision at that hit (0 without a hit);
    recall = hits among the 1000 / all relevant images of the database.
mAP and recall are means over queries.
"""

from typing import Any

import numpy as np

from momentum_transfer.core.neighbours import Neighbours, chunks
from momentum_transfer.lowshot.features.feature_set import FeatureSet
from momentum_transfer.lowshot.score import Score
from momentum_transfer.verdicts.hits import label_hash


def scores(neighbours: Neighbours, train: FeatureSet, test: FeatureSet, top: int) -> list[Score]:
    """mAP and recall within the first ``top`` neighbours."""
    precisions, recalls = [], []
    database, queries, widest = train.labels, test.labels, top
    if train.multi_label:  # in float32: NumPy has no fast products of integers
        database, queries = database.astype(np.float32), queries.astype(np.float32)
        widest = max(top * train.num_classes, len(train))
    for part in chunks(len(test), max(1, min(512, 2**26 // widest))):
        hits = relevant(database, neighbours.indices[part, :top], queries[part])
        precisions.append(average_precisions(hits))
        recalls.append(hits.sum(axis=1) / np.maximum(relevant_counts(database, queries[part]), 1))
    values = {"mAP": np.concatenate(precisions), "recall": np.concatenate(recalls)}
    origin: dict[str, Any] = {"protocol": "eman", "details": {"top": top}, "test_set": label_hash(test.labels)}
    return [
        Score("retrieval", metric, 100 * float(each.mean()), items=each, **origin) for metric, each in values.items()
    ]


def relevant(database: np.ndarray, indices: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """[q, k] bool: does the neighbour share a label with the query?"""
    if database.ndim == 1:
        return np.asarray(database[indices] == queries[:, None])
    return np.asarray(np.einsum("qkc,qc->qk", database[indices], queries) > 0)


def relevant_counts(database: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """[q]: how many images of the database share a label with each query."""
    if database.ndim == 1:
        return np.bincount(database, minlength=int(queries.max()) + 1)[queries]
    return np.asarray((queries @ database.T > 0).sum(axis=1))


def average_precisions(hits: np.ndarray) -> np.ndarray:
    """[q] average precision of ranked lists ``hits`` [q, k] bool, over the hits that were found."""
    found = np.cumsum(hits, axis=1)
    precision = found / np.arange(1, hits.shape[1] + 1)
    return np.asarray((precision * hits).sum(axis=1) / np.maximum(found[:, -1], 1))
