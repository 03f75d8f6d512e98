"""Exact nearest neighbours by cosine similarity, in one chunked pass that kNN and retrieval share.

``precision="bf16"`` multiplies in bfloat16, keeps twice as many candidates as asked for and ranks them again in
float32. The rounding error of every product is bounded (Cauchy-Schwarz on the rounding residuals), and a query whose
candidates that bound does not prove sufficient is searched again in float32: the result is the same set either way.
Meant for GPUs with fast bfloat16 products; on a CPU, at 60,000 rows, it was slower than float32.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lowshot.features.feature_set import chunks, normalized
from momentum_transfer.console import say
from momentum_transfer.errors import InputError
from momentum_transfer.ranges import Choice

PRECISIONS = ("fp32", "bf16")


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
    precision: str = "fp32",
    query_chunk: int = 1024,
    database_chunk: int = 16384,
    device: str | torch.device = "cpu",
) -> Neighbours:
    """Exact top ``k`` by cosine similarity.

    The database [N, D] is read in chunks, once (it may be a memory map), so memory does not grow with N; all queries
    [Q, D] and their current best stay in memory.

    Raises:
        InputError: ``k`` exceeds the size of the database, the dimensions differ, or the precision is unknown.
    """
    if not 1 <= k <= len(database):
        raise InputError(f"expected 1 ≤ k ≤ {len(database)} (the size of the database), found k = {k}")
    if database.shape[1] != queries.shape[1]:
        raise InputError(f"queries have {queries.shape[1]} features, the database {database.shape[1]}")
    Choice(PRECISIONS).require("SEARCH.PRECISION", precision)
    wanted = torch.from_numpy(normalized(queries)).to(device)
    sizes = (query_chunk, database_chunk)
    if precision == "fp32" or 2 * k > len(database):
        values, rows, _ = _pass(database, wanted, k, sizes)
        return Neighbours(values.cpu().numpy(), rows.cpu().numpy())
    values, rows, bound = _pass(database, wanted, 2 * k, sizes, torch.bfloat16)
    last = values[:, -1]  # no image that was left out has a larger rounded similarity,
    last = last + 0.51 * torch.finfo(torch.bfloat16).eps * last.abs()  # nor a larger one before that rounding
    values, rows = _rank_again(database, wanted, rows, k)
    unproven = (values[:, -1] < last + bound).nonzero().flatten()
    if len(unproven):
        say(f"bf16 search: {len(unproven)} of {len(wanted)} queries searched again in fp32")
        values[unproven], rows[unproven], _ = _pass(database, wanted[unproven], k, sizes)
    return Neighbours(values.cpu().numpy(), rows.cpu().numpy())


def _pass(
    database: np.ndarray, queries: Tensor, k: int, sizes: tuple[int, int], dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    """Top ``k`` of all queries, and per query a bound on the error of a similarity by rounding its factors."""
    factors = queries.to(dtype)
    best = [(queries.new_empty(0), torch.empty(0, dtype=torch.int64))] * len(range(0, len(queries), sizes[0]))
    residual = queries.new_zeros(())
    # Large arrays that are allocated anew for every block cost more in page faults than in arithmetic.
    vectors = np.empty((min(sizes[1], len(database)), database.shape[1]), np.float32)
    products = np.empty(min(sizes[0], len(queries)) * len(vectors), np.float32)
    for part in chunks(len(database), sizes[1]):
        block = torch.from_numpy(normalized(database[part], vectors[: part.stop - part.start])).to(queries.device)
        rounded = block.to(dtype)
        if dtype != torch.float32:
            residual = torch.maximum(residual, (block - rounded.float()).norm(dim=1).max())
        for index, chosen in enumerate(chunks(len(queries), sizes[0])):
            best[index] = _merge(_product(factors[chosen], rounded, products), *best[index], part.start, k)
    values, rows = (torch.cat(pieces) for pieces in zip(*best, strict=True))
    bound = (queries - factors.float()).norm(dim=1) + factors.float().norm(dim=1) * residual
    return values, rows, bound


def _product(queries: Tensor, block: Tensor, products: np.ndarray) -> Tensor:
    """Similarities [q, b] float32; on a CPU they lie in ``products``."""
    if queries.device.type == "cpu" and queries.dtype == torch.float32:
        out = products[: len(queries) * len(block)].reshape(len(queries), len(block))
        return torch.from_numpy(np.matmul(queries.numpy(), block.numpy().T, out=out))  # the faster BLAS on CPUs
    return (queries @ block.T).float()


def _merge(similarities: Tensor, best: Tensor, rows: Tensor, start: int, k: int) -> tuple[Tensor, Tensor]:
    """The best ``k`` [q, k] of what is known and of one more block of the database, sorted.

    Once k are known, only what exceeds the k-th is looked at, which is little; the selection then costs far less than
    the product.
    """
    if best.numel() == 0 or best.shape[1] < k:
        values, columns = similarities.topk(min(k, similarities.shape[1]), dim=1)
        columns += start
        if best.numel():
            values, columns = torch.cat([best, values], 1), torch.cat([rows, columns], 1)
    else:
        query, column = (similarities > best[:, -1:]).nonzero(as_tuple=True)
        counts = torch.bincount(query, minlength=len(best))
        place = torch.arange(len(query), device=query.device) - (counts.cumsum(0) - counts)[query]
        width = int(counts.max())
        values = torch.cat([best, best.new_full((len(best), width), -torch.inf)], 1)
        columns = torch.cat([rows, rows.new_zeros((len(best), width))], 1)
        values[query, k + place] = similarities[query, column]
        columns[query, k + place] = column + start
    values, order = values.topk(min(k, values.shape[1]), dim=1)
    return values, columns.gather(1, order)


def _rank_again(database: np.ndarray, queries: Tensor, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Top ``k`` of the candidates ``rows`` [Q, c] by similarities in float32."""
    ranked = []
    for query, candidates in zip(queries, rows, strict=True):
        ordered = candidates.sort().values  # ascending reads are kinder to a memory map
        vectors = torch.from_numpy(normalized(database[ordered.cpu().numpy()])).to(queries.device)
        values, order = (vectors @ query).topk(k)
        ranked.append((values, ordered[order]))
    values, chosen = (torch.stack(pieces) for pieces in zip(*ranked, strict=True))
    return values, chosen
