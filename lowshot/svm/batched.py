"""Batched SVM solver: all classes and costs of one low-shot trial at once; the problem is liblinear's.

The problem is that of :mod:`lowshot.svm.problem`, for n images and features x extended by a constant 1 (the bias is
regularised, so it is one more weight). What the classes and costs of a draw share is computed once:
  - an orthogonal basis in which the matrix of second moments ΣxxT is diagonal, of min(n, D + 1) coordinates;
  - the Gram matrix of the images, where it fits into memory.
Along the costs, ascending, each solution starts from the previous one; how it gets there is in lowshot/svm/batched.py.

Reference: Fan et al., "LIBLINEAR" (JMLR 2008) for the problem.

Newton's method for a batch of classes of the batched SVM, along ascending costs.

One step is Newton's on the active images (those inside the margin; the objective is quadratic as long as they stay the
same):
  - many active images (small costs): conjugate gradients for a batch of classes at once, two matrix products an
    iteration, preconditioned by the shared diagonal;
  - few active images (larger costs): Cholesky on them alone, through the identity of Woodbury.
An exact line search follows. A class is finished when the Newton decrement, an estimate of twice the distance to the
minimum, is small against the objective: an unchanged active set says nothing after an inexact step.

Reference: Keerthi and DeCoste, "A Modified Finite Newton Method for Fast Solution of Large Scale Linear SVMs" (JMLR
2005).
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from momentum_transfer.core.log import warn
from momentum_transfer.lowshot.svm.problem import LinearClassifiers

MAX_NEWTON = 60
MAX_GRADIENTS = 200
#: Finished when decrement ≤ 2 · tolerance · objective. float32 ends ten times below what the tests promise.
TOLERANCE = {torch.float32: 1e-7, torch.float64: 1e-19}
#: Residual at which the conjugate gradients stop, relative; the next Newton step corrects the rest.
FORCING = {torch.float32: 0.1, torch.float64: 0.01}


@dataclass(frozen=True)
class Shared:
    """What all classes and costs of a draw share.

    Attributes:
        rows: [n, r] the images in the diagonal basis.
        moments: [r] diagonal of rowsT·rows.
        basis: [D + 1, r] orthonormal columns; weights are ``basis @ coordinates``.
        gram: [n, n] rows·rowsT, or None where it would not fit.
    """

    rows: Tensor
    moments: Tensor
    basis: Tensor
    gram: Tensor | None


class Classes:
    """A batch of m classes on its way along the costs.

    Attributes:
        weights: [m, r] solutions of the last cost, in the shared basis.
    """

    def __init__(self, shared: Shared, signs: Tensor, positive_weight: float) -> None:
        self.shared = shared
        self.signs = signs  # [m, n]
        self.sample_weights = signs.abs().masked_fill_(signs > 0, positive_weight)  # 0: left out
        self.weights = signs.new_zeros(len(signs), shared.rows.shape[1])
        self.decisions = torch.zeros_like(signs)  # [m, n] weights · rows
        count, rank = shared.rows.shape
        # Cholesky costs about a³/3 for a active images, conjugate gradients a few iterations of 4·n·r; where they cost
        # the same was measured.
        self.few = int((12 * count * rank) ** (1 / 3))

    def solve(self, cost: float) -> int:
        """Move ``weights`` to the solution for ``cost``; the number of classes that did not get there."""
        live = torch.arange(len(self.signs), device=self.signs.device)
        tolerance = TOLERANCE[self.signs.dtype]
        for _ in range(MAX_NEWTON):
            state = Step(self, live, cost)
            direction, change = state.newton_direction()
            decrement = -(state.gradient * direction).sum(dim=1)
            size = state.line_search(direction, change)
            self.weights[live] += size[:, None] * direction
            self.decisions[live] += size[:, None] * change
            live = live[decrement > 2 * tolerance * state.objective]
            if not len(live):
                return 0
        return len(live)


class Step:
    """One Newton step of the classes ``live`` [m'] of a batch, at one cost."""

    def __init__(self, classes: Classes, live: Tensor, cost: float) -> None:
        self.shared, self.few, self.cost = classes.shared, classes.few, cost
        self.weights, self.decisions = classes.weights[live], classes.decisions[live]
        self.signs, self.sample_weights = classes.signs[live], classes.sample_weights[live]
        hinge = (1 - self.signs * self.decisions).clamp_(min=0)  # [m', n]
        weighted = self.sample_weights * hinge
        self.objective = 0.5 * self.weights.square().sum(1) + cost * (weighted * hinge).sum(1)
        self.gradient = self.weights - 2 * cost * (weighted * self.signs) @ self.shared.rows  # [m', r]
        self.active = weighted > 0

    def newton_direction(self) -> tuple[Tensor, Tensor]:
        """(direction [m', r], direction · rows [m', n])."""
        direction = torch.empty_like(self.weights)
        change = torch.empty_like(self.decisions)
        few = self.active.sum(dim=1) <= self.few
        many = (~few).nonzero().flatten()
        few = few.nonzero().flatten()
        for row in few.tolist():
            direction[row] = self._by_cholesky(row)
        if len(few):
            change[few] = direction[few] @ self.shared.rows.T
        if len(many):
            direction[many], change[many] = self._by_conjugate_gradients(many)
        return direction, change

    def _by_cholesky(self, row: int) -> Tensor:
        """−H⁻¹g with H = I + 2C·AᵀWA, A the active rows: H⁻¹ = I − Aᵀ((2CW)⁻¹ + AAᵀ)⁻¹A."""
        own = self.active[row].nonzero().flatten()
        active, gradient = self.shared.rows.index_select(0, own), self.gradient[row]
        slack = 1 / (2 * self.cost * self.sample_weights[row, own])
        if self.shared.gram is None:
            gram = active @ active.T
        else:
            places = (own[:, None] * len(self.shared.gram) + own).flatten()  # the fastest gather of several
            gram = self.shared.gram.flatten().index_select(0, places).view(len(own), len(own))
        gram.diagonal().add_(slack)
        factor, failed = torch.linalg.cholesky_ex(gram)
        if failed:  # rounding has made it indefinite, which takes a huge cost and images almost the same
            active, gradient = active.double(), gradient.double()
            factor = torch.linalg.cholesky(active @ active.T + torch.diag(slack.double()))
        solved = torch.cholesky_solve((active @ gradient)[:, None], factor)
        return (active.T @ solved[:, 0] - gradient).to(self.gradient.dtype)

    def _by_conjugate_gradients(self, many: Tensor) -> tuple[Tensor, Tensor]:
        rows = self.shared.rows
        curvature = 2 * self.cost * self.sample_weights[many] * self.active[many]  # [m', n]
        diagonal = 1 + curvature.mean(dim=1, keepdim=True) * self.shared.moments
        residual = -self.gradient[many]
        direction, change = torch.zeros_like(residual), torch.zeros_like(curvature)
        scaled = residual / diagonal
        search, norm = scaled, (residual * scaled).sum(1)
        enough = norm * FORCING[rows.dtype] ** 2
        for _ in range(MAX_GRADIENTS):
            moved = search @ rows.T
            product = search + (curvature * moved) @ rows
            length = torch.where(norm > enough, norm / (search * product).sum(1), 0)[:, None]
            direction += length * search
            change += length * moved
            residual -= length * product
            scaled = residual / diagonal
            previous, norm = norm, (residual * scaled).sum(1)
            if bool((norm <= enough).all()):
                break
            search = scaled + (norm / previous)[:, None] * search
        return direction, change

    def line_search(self, direction: Tensor, change: Tensor) -> Tensor:
        """The minimising step sizes [m']: Newton with bisection on the derivative, which is piecewise linear."""
        slope0 = (self.weights * direction).sum(1)
        bend0 = direction.square().sum(1)
        margin, drift = 1 - self.signs * self.decisions, self.signs * change
        size = torch.ones_like(slope0)
        low, high = torch.zeros_like(size), torch.full_like(size, torch.inf)
        accuracy = 1e-3 * (self.gradient * direction).sum(1).abs()
        for _ in range(30):
            hinge = (margin - size[:, None] * drift).clamp_(min=0)
            weighted = self.sample_weights * drift
            slope = slope0 + size * bend0 - 2 * self.cost * (weighted * hinge).sum(1)
            if bool((slope.abs() <= accuracy).all()):
                break
            bend = bend0 + 2 * self.cost * (weighted * drift * (hinge > 0)).sum(1)
            low, high = torch.where(slope < 0, size, low), torch.where(slope > 0, size, high)
            newton = size - slope / bend
            middle = torch.where(high.isinf(), 2 * size, (low + high) / 2)
            inside = (newton > low) & (newton < high)
            size = torch.where(slope.abs() <= accuracy, size, torch.where(inside, newton, middle))
        return size


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
