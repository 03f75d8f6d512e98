"""Exact nearest neighbours by cosine similarity, in one chunked pass that kNN and retrieval share."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lowshot.feature_set import chunks, normalized
from pretrain.errors import InputError


@dataclass(frozen=True)
class Neighbours:
    """The k most similar database rows of each query, most similar first.

    Attributes:
        similarities: [Q, k] float32 cosines, descending.
        indices: [Q, k] int64 rows of the database.
    """

    similarities: np.ndarray
    indices: np.ndarray


def search(
    database: np.ndarray,
    queries: np.ndarray,
    k: int,
    *,
    query_chunk: int = 1024,
    database_chunk: int = 16384,
    device: str | torch.device = "cpu",
) -> Neighbours:
    """Exact top ``k`` by cosine similarity.

    The database [N, D] is read in chunks (it may be a memory map), so memory does not grow with N; all queries [Q, D]
    and their current best stay in memory.

    Raises:
        InputError: ``k`` exceeds the size of the database, or the dimensions differ.
    """
    if not 1 <= k <= len(database):
        raise InputError(f"expected 1 ≤ k ≤ {len(database)} (the size of the database), found k = {k}")
    if database.shape[1] != queries.shape[1]:
        raise InputError(f"queries have {queries.shape[1]} features, the database {database.shape[1]}")
    wanted = torch.from_numpy(normalized(queries)).to(device)
    best = torch.full((len(wanted), 0), 0.0, device=device)
    rows = torch.zeros((len(wanted), 0), dtype=torch.int64, device=device)
    for part in chunks(len(database), database_chunk):
        block = torch.from_numpy(normalized(database[part])).to(device)
        merged = [_merge(wanted[q], block, best[q], rows[q], part.start, k) for q in chunks(len(wanted), query_chunk)]
        best, rows = (torch.cat(pieces) for pieces in zip(*merged, strict=True))
    return Neighbours(best.cpu().numpy(), rows.cpu().numpy())


def _merge(queries: Tensor, block: Tensor, best: Tensor, rows: Tensor, start: int, k: int) -> tuple[Tensor, Tensor]:
    """The best ``k`` of what is known and of one more block of the database, sorted."""
    similarities = queries @ block.T
    values, columns = similarities.topk(min(k, block.shape[0]), dim=1)
    values, rows = torch.cat([best, values], 1), torch.cat([rows, columns + start], 1)
    values, order = values.topk(min(k, values.shape[1]), dim=1)
    return values, rows.gather(1, order)
