"""Batched SVM solver: all classes and costs of one low-shot trial at once; the problem is liblinear's.

The problem is that of :mod:`lowshot.svm.problem`, for n images and features x extended by a constant 1 (the bias is
regularised, so it is one more weight). What the classes and costs of a draw share is computed once:
  - an orthogonal basis in which the matrix of second moments ΣxxT is diagonal, of min(n, D + 1) coordinates;
  - the Gram matrix of the images, where it fits into memory.
Along the costs, ascending, each solution starts from the previous one; how it gets there is in lowshot/svm/newton.py.

Reference: Fan et al., "LIBLINEAR" (JMLR 2008) for the problem.
"""

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from momentum_transfer.core.log import warn
from momentum_transfer.lowshot.svm.newton import MAX_NEWTON, Classes, Shared
from momentum_transfer.lowshot.svm.problem import LinearClassifiers

#: A cost times a weight of positives above this is solved in float64: the problem is then too ill-conditioned for
#: float32 to see that it has not arrived. The papers' largest is 2^5 · 2.
LARGEST_IN_FLOAT32 = 5000.0


def fit_batched(
    features: np.ndarray,
    targets: np.ndarray,
    costs: Sequence[float],
    positive_weight: float = 1.0,
    *,
    double: bool = False,
    device: str | torch.device = "cpu",
    class_batch: int = 128,
    gram_bytes: float = 4e9,
) -> LinearClassifiers:
    """Fit every class against the rest, for every cost.

    Args:
        features: [n, D]. targets: [n, classes] of ±1, or 0 for an image left out of a class.
        double: solve in float64 and to its accuracy; so are costs above ``LARGEST_IN_FLOAT32`` in any case.
        class_batch: classes solved at once; memory grows with class_batch · n.
        gram_bytes: a larger Gram matrix is not formed; the Cholesky steps then multiply the active rows each time.
    """
    double = double or max(costs) * max(positive_weight, 1.0) > LARGEST_IN_FLOAT32
    dtype = torch.float64 if double else torch.float32
    with _one_thread_where_that_is_faster(features.size * min(class_batch, targets.shape[1])):
        return _fit(features, targets, costs, positive_weight, dtype, device, class_batch, gram_bytes)


@contextlib.contextmanager
def _one_thread_where_that_is_faster(work: int) -> Iterator[None]:
    """Thousands of tiny operations lose more by waking threads than they gain; on busy cores a hundredfold."""
    threads = torch.get_num_threads()
    if work < 5e7:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _fit(
    features: np.ndarray,
    targets: np.ndarray,
    costs: Sequence[float],
    positive_weight: float,
    dtype: torch.dtype,
    device: str | torch.device,
    class_batch: int,
    gram_bytes: float,
) -> LinearClassifiers:
    shared = share(features, dtype, device, gram_bytes)
    signs = torch.from_numpy(np.ascontiguousarray(targets.T)).to(device, dtype)  # [classes, n]
    order = np.argsort(costs)
    coordinates = torch.empty(len(costs), len(signs), shared.rows.shape[1], dtype=dtype, device=device)
    unfinished = 0
    for begin in range(0, len(signs), class_batch):
        batch = Classes(shared, signs[begin : begin + class_batch], positive_weight)
        for index in order:
            unfinished += batch.solve(float(costs[index]))
            coordinates[index, begin : begin + class_batch] = batch.weights
    if unfinished:
        warn(f"{unfinished} of {len(costs) * len(signs)} SVMs did not reach the tolerance in {MAX_NEWTON} Newton steps")
    solution = (coordinates @ shared.basis.T).cpu().numpy()
    return LinearClassifiers(solution[..., :-1], solution[..., -1])


def share(features: np.ndarray, dtype: torch.dtype, device: str | torch.device, gram_bytes: float) -> Shared:
    """Basis, coordinates and Gram matrix; the eigenproblem is solved in float64 whatever ``dtype``."""
    images = torch.from_numpy(np.ascontiguousarray(features)).to(device, torch.float64)
    images = torch.cat([images, torch.ones(len(images), 1, dtype=torch.float64, device=device)], dim=1)
    count, dim = images.shape
    if count < dim:  # through the n×n matrix: x = U·√S·VT
        moments, vectors = torch.linalg.eigh(images @ images.T)
        kept = moments > moments[-1] * count * torch.finfo(torch.float64).eps
        moments, vectors = moments[kept], vectors[:, kept]
        rows = vectors * moments.sqrt()
        basis = images.T @ (vectors / moments.sqrt())
    else:
        moments, basis = torch.linalg.eigh(images.T @ images)
        moments, rows = moments.clamp(min=0), images @ basis
    rows = rows.to(dtype)
    gram = None
    if count**2 * rows.element_size() <= gram_bytes:
        gram = rows @ rows.T
    else:
        warn(f"no {count} × {count} Gram matrix: it would take more than {gram_bytes / 1e9:.0f} GB; solving without")
    return Shared(rows, moments.to(dtype), basis.to(dtype), gram)
