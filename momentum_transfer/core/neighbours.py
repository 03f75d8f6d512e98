"""Exact nearest neighbours by cosine similarity, in one chunked pass, and their votes: the kNN of every room.

Ties: of equally similar images the earlier row of the database is nearer; classes with equally many votes are ranked
by the sum of their voters' similarities, then by their number.

``precision="bf16"`` (for GPUs with fast bfloat16 products) keeps twice as many candidates and ranks them again in
float32. The rounding error of every product is bounded (Cauchy-Schwarz on the rounding residuals), and a query whose
candidates that bound does not prove sufficient is searched again in float32: the result is the same set either way.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.log import say
from momentum_transfer.core.ranges import Choice

PRECISIONS = ("fp32", "bf16")
#: Rows read at a time in a pass over a memory-mapped array.
CHUNK = 65536


@dataclass(frozen=True)
class Neighbours:
    """The k most similar database rows of each query, most similar first, the earlier of equals first."""

    similarities: np.ndarray  #: [Q, k] float32 cosines, descending
    indices: np.ndarray  #: [Q, k] int64 rows of the database


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
    """Exact top ``k`` by cosine similarity of all queries [Q, D].

    The database [N, D] may be a memory map: it is read once, in chunks, and memory does not grow with N.
    Raises InputError if ``k`` exceeds N, the dimensions differ, or the precision is unknown.
    """
    if not 1 <= k <= len(database):
        raise InputError(f"expected 1 ≤ k ≤ {len(database)} (the size of the database), found k = {k}")
    if database.shape[1] != queries.shape[1]:
        raise InputError(f"queries have {queries.shape[1]} features, the database {database.shape[1]}")
    Choice(PRECISIONS).require("SEARCH.PRECISION", precision)
    vectors = torch.from_numpy(normalized(queries)).to(device)
    sizes = (query_chunk, database_chunk)
    if precision == "fp32" or 2 * k > len(database):
        values, rows, _ = _pass(database, vectors, k, sizes)
        return Neighbours(values.cpu().numpy(), rows.cpu().numpy())
    values, rows, bound = _pass(database, vectors, 2 * k, sizes, torch.bfloat16)
    last = values[:, -1]  # no image that was left out has a larger rounded similarity,
    last = last + 0.51 * torch.finfo(torch.bfloat16).eps * last.abs()  # nor a larger one before that rounding
    values, rows = _rank_again(database, vectors, rows, k)
    unproven = (values[:, -1] <= last + bound).nonzero().flatten()
    if len(unproven):
        say(f"bf16 search: {len(unproven)} of {len(vectors)} queries searched again in fp32")
        values[unproven], rows[unproven], _ = _pass(database, vectors[unproven], k, sizes)
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
    """The best ``k`` [q, k] so far, merged with one more block of the database; sorted, earlier rows first."""
    if best.numel() == 0 or best.shape[1] < k:
        values, columns = _top(similarities, min(k, similarities.shape[1]))
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
    values, order = _top(values, min(k, values.shape[1]))  # what is known comes first, and is earlier
    return values, columns.gather(1, order)


def _top(similarities: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The ``k`` largest of each row, sorted, and their columns; of equal values the earlier, which ``topk`` ignores."""
    values, columns = similarities.topk(min(k + 1, similarities.shape[1]), dim=1)
    if values.shape[1] > k:
        crowded = (values[:, k - 1] == values[:, k]).nonzero().flatten()
        columns = columns[:, :k]
        if len(crowded):
            columns[crowded] = similarities[crowded].sort(dim=1, descending=True, stable=True).indices[:, :k]
    columns = columns.sort(dim=1).values
    values, order = similarities.gather(1, columns).sort(dim=1, descending=True, stable=True)
    return values, columns.gather(1, order)


def _rank_again(database: np.ndarray, queries: Tensor, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Top ``k`` of the candidates ``rows`` [Q, c] by similarities in float32."""
    ranked = []
    for query, candidates in zip(queries, rows, strict=True):
        ordered = candidates.sort().values  # ascending reads are kinder to a memory map
        vectors = torch.from_numpy(normalized(database[ordered.cpu().numpy()])).to(queries.device)
        values, order = (vectors @ query).sort(descending=True, stable=True)
        ranked.append((values[:k], ordered[order[:k]]))
    values, chosen = (torch.stack(pieces) for pieces in zip(*ranked, strict=True))
    return values, chosen


def ranked_classes(neighbours: Neighbours, labels: np.ndarray, k: int, temperature: float | None) -> np.ndarray:
    """The five classes with most votes for each query, best first: [Q, min(5, classes)] int64, -1 without a vote.

    ``labels`` [N] are class indices of the database. Without ``temperature`` each of ``k`` neighbours has one vote,
    else it weighs exp(similarity / temperature).
    """
    classes = int(labels.max()) + 1
    ranked = []
    for part in chunks(len(neighbours.indices), max(1, 2**24 // classes)):
        similarities = torch.from_numpy(neighbours.similarities[part, :k].astype(np.float64))
        voted = torch.from_numpy(labels[neighbours.indices[part, :k]])
        if temperature is None:
            # (sum of similarities + k) / (2k + 1) lies strictly between 0 and 1: it orders ties and nothing else
            votes = torch.ones_like(similarities) + (similarities + 1) / (2 * k + 1)
        else:
            votes = ((similarities - 1) / temperature).exp()  # the factor exp(-1/τ) is common to all and avoids inf
        ballot = torch.zeros(len(votes), classes, dtype=torch.float64).scatter_add_(1, voted, votes)
        guesses = []
        for _ in range(min(5, classes)):
            most, best = ballot.max(dim=1)  # the first of equals, which topk does not promise
            guesses.append(best.masked_fill(most <= 0, -1))
            ballot.scatter_(1, best[:, None], -1.0)
        ranked.append(torch.stack(guesses, dim=1).numpy())
    return np.concatenate(ranked)


def majority_top1(
    database: np.ndarray, labels: np.ndarray, queries: np.ndarray, true: np.ndarray, k: int = 20,
    device: str | torch.device = "cpu",
) -> float:  # fmt: skip
    """Percent of queries whose k nearest neighbours' majority has their label (EMAN: k 20, cosine, majority vote).

    Features are [N, D] and [Q, D], their class indices ``labels`` [N] and ``true`` [Q]; at most N neighbours are taken.
    """
    k = min(k, len(database))
    found = search(database, queries, k, device=device)
    return 100 * float((ranked_classes(found, labels, k, None)[:, 0] == true).mean())


def chunks(count: int, size: int = CHUNK) -> Iterator[slice]:
    """Slices that cover ``range(count)`` in order."""
    for begin in range(0, count, size):
        yield slice(begin, min(begin + size, count))


def normalized(features: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Rows [N, D] divided by their Euclidean norm, float32, into ``out`` if given; a row of zeros stays zero."""
    rows = np.asarray(features, dtype=np.float32)
    with np.errstate(over="ignore", under="ignore"):
        norms = np.sqrt(np.einsum("nd,nd->n", rows, rows))  # several times faster than numpy.linalg.norm
    extreme = ~((norms > 1e-15) & (norms < 1e15))  # the squares leave float32's range
    divided: np.ndarray = np.divide(rows, np.where(extreme, 1, norms)[:, None], out=out)
    for row in np.flatnonzero(extreme):
        exact = rows[row].astype(np.float64)
        divided[row] = exact / max(np.linalg.norm(exact), np.finfo(np.float64).tiny)
    return divided
