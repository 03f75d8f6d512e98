"""Two solvers of the same linear SVM problem: liblinear, one class and cost at a time, and a batched Newton method.

For each class with targets y = ±1 (0 leaves an image out of this class), over the weights w and the bias b:
    minimise  ½‖w‖² + ½b² + C · Σᵢ sᵢ · max(0, 1 − yᵢ(w·xᵢ + b))²,    sᵢ = positive_weight where yᵢ = +1, 1 where −1.
This is liblinear's L2-regularised squared-hinge SVM as scikit-learn's LinearSVC poses it (Fan et al., JMLR 2008): the
bias is regularised too, so it is one more weight of features x extended by a constant 1.

The batched solver computes once what all classes and costs of a trial have in common: an orthogonal basis of
min(n, D + 1) coordinates in which the matrix of second moments ΣxxT is diagonal, and the images' Gram matrix where it
fits into memory. Along the ascending costs each solution starts from the previous one, by Newton steps on the active
images, those inside the margin (Keerthi and DeCoste, "A Modified Finite Newton Method for Fast Solution of Large Scale
Linear SVMs", JMLR 2005):
  - many active images (small costs): conjugate gradients for a batch of classes at once, two matrix products an
    iteration, preconditioned by the diagonal;
  - few active images (larger costs): Cholesky on them alone, through the identity of Woodbury.
An exact line search follows. A class is finished when the Newton decrement, an estimate of twice the distance to the
minimum, is small against the objective: an unchanged active set says nothing after an inexact step.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC
from torch import Tensor

from momentum_transfer.core.log import warn

#: Classes solved at once; memory grows with these times the images.
_CLASS_BATCH = 128
#: A larger Gram matrix is not formed; the Cholesky steps then multiply the active rows each time.
_GRAM_BYTES = 4e9
_MAX_NEWTON = 60
_MAX_GRADIENTS = 200
#: Finished when decrement ≤ 2 · tolerance · objective. float32 ends ten times below what the tests promise.
_TOLERANCE = {torch.float32: 1e-7, torch.float64: 1e-19}
#: Residual at which the conjugate gradients stop, relative; the next Newton step corrects the rest.
_FORCING = {torch.float32: 0.1, torch.float64: 0.01}
#: A cost times a weight of positives above this is solved in float64: the problem is then too ill-conditioned for
#: float32 to see that it has not arrived. The papers' largest is 2^5 · 2.
_LARGEST_IN_FLOAT32 = 5000.0
#: Below this many features × classes one thread is faster: waking threads for thousands of tiny operations costs more
#: than they save, 5 % to fiftyfold on busy cores.
_WORK_FOR_THREADS = 5e7


@dataclass(frozen=True)
class LinearClassifiers:
    """One-vs-rest classifiers for every cost: ``weights`` [costs, classes, D], ``biases`` [costs, classes]."""

    weights: np.ndarray
    biases: np.ndarray


def signed_targets(labels: np.ndarray, num_classes: int) -> np.ndarray:
    """[n, classes] int8 of +1 where the image shows the class, -1 elsewhere.

    Args:
        labels: [n] class indices, or [n, classes] of 0 and 1.
    """
    if labels.ndim == 2:
        return np.where(labels > 0, 1, -1).astype(np.int8)
    targets = np.full((len(labels), num_classes), -1, dtype=np.int8)
    targets[np.arange(len(labels)), labels] = 1
    return targets


def fit_liblinear(
    features: np.ndarray, targets: np.ndarray, costs: Sequence[float], positive_weight: float = 1.0, *,
    tol: float = 1e-4, max_iter: int = 10000,
) -> LinearClassifiers:  # fmt: skip
    """The reference: one scikit-learn LinearSVC for each class against the rest and each cost.

    Args:
        features: [n, D]. targets: [n, classes] of ±1, or 0 where an image is left out; both signs in every column.
        tol, max_iter: liblinear's stopping rule; a warning counts the fits that ``max_iter`` stopped.
    """
    rows = np.ascontiguousarray(features, dtype=np.float64)
    weights = np.empty((len(costs), targets.shape[1], rows.shape[1]))
    biases = np.empty(weights.shape[:2])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        for index, cost in enumerate(costs):
            for label in range(targets.shape[1]):
                machine = LinearSVC(
                    C=cost, class_weight={1: positive_weight, -1: 1.0}, tol=tol, max_iter=max_iter, random_state=0
                )
                counts = targets[:, label] != 0
                machine.fit(rows[counts], targets[counts, label])
                weights[index, label], biases[index, label] = machine.coef_[0], machine.intercept_[0]
    unfinished = sum(issubclass(item.category, ConvergenceWarning) for item in caught)
    if unfinished:
        warn(f"liblinear stopped {unfinished} of {biases.size} fits after {max_iter} iterations")
    return LinearClassifiers(weights, biases)


def fit_batched(
    features: np.ndarray, targets: np.ndarray, costs: Sequence[float], positive_weight: float = 1.0, *,
    double: bool = False, device: str | torch.device = "cpu",
) -> LinearClassifiers:  # fmt: skip
    """Fit every class against the rest, for every cost.

    Args:
        features: [n, D]. targets: [n, classes] of ±1, or 0 for an image left out of a class.
        double: solve in float64 and to its accuracy; so are costs above ``_LARGEST_IN_FLOAT32`` in any case.
    """
    double = double or max(costs) * max(positive_weight, 1.0) > _LARGEST_IN_FLOAT32
    dtype = torch.float64 if double else torch.float32
    threads = torch.get_num_threads()
    if features.size * min(_CLASS_BATCH, targets.shape[1]) < _WORK_FOR_THREADS:
        torch.set_num_threads(1)
    try:
        basis = shared_basis(features, dtype, device)
        signs = torch.from_numpy(np.ascontiguousarray(targets.T)).to(device, dtype)  # [classes, n]
        coordinates = torch.empty(len(costs), len(signs), basis.rows.shape[1], dtype=dtype, device=device)
        unfinished = 0
        for begin in range(0, len(signs), _CLASS_BATCH):
            part = slice(begin, begin + _CLASS_BATCH)
            batch = _Classes(basis, signs[part], positive_weight)
            for index in np.argsort(costs):
                unfinished += batch.solve(float(costs[index]))
                coordinates[index, part] = batch.weights
        solution = (coordinates @ basis.vectors.T).cpu().numpy()
    finally:
        torch.set_num_threads(threads)
    if unfinished:
        warn(
            f"{unfinished} of {len(costs) * len(signs)} SVMs did not reach the tolerance in {_MAX_NEWTON} Newton steps"
        )
    return LinearClassifiers(solution[..., :-1], solution[..., -1])


@dataclass(frozen=True)
class Basis:
    """What all classes and costs of a trial have in common."""

    rows: Tensor  # [n, r] the images in the diagonal basis
    moments: Tensor  # [r] diagonal of rowsT·rows
    vectors: Tensor  # [D + 1, r] orthonormal columns; weights are ``vectors @ coordinates``
    gram: Tensor | None  # [n, n] rows·rowsT, or None if it would not fit


def shared_basis(features: np.ndarray, dtype: torch.dtype, device: str | torch.device) -> Basis:
    """Basis, coordinates and Gram matrix; the eigenproblem is solved in float64 whatever ``dtype``."""
    images = torch.from_numpy(np.ascontiguousarray(features)).to(device, torch.float64)
    images = torch.cat([images, torch.ones(len(images), 1, dtype=torch.float64, device=device)], dim=1)
    count, dim = images.shape
    if count < dim:  # through the n×n matrix: x = U·√S·VT
        moments, eigenvectors = torch.linalg.eigh(images @ images.T)
        kept = moments > moments[-1] * count * torch.finfo(torch.float64).eps
        moments, eigenvectors = moments[kept], eigenvectors[:, kept]
        rows = eigenvectors * moments.sqrt()
        vectors = images.T @ (eigenvectors / moments.sqrt())
    else:
        moments, vectors = torch.linalg.eigh(images.T @ images)
        moments, rows = moments.clamp(min=0), images @ vectors
    rows = rows.to(dtype)
    fits = count**2 * rows.element_size() <= _GRAM_BYTES
    gram = rows @ rows.T if fits else None
    if not fits:
        warn(f"no {count} × {count} Gram matrix: it would take more than {_GRAM_BYTES / 1e9:.0f} GB; solving without")
    return Basis(rows, moments.to(dtype), vectors.to(dtype), gram)


class _Classes:
    """A batch of m classes on its way along the costs."""

    def __init__(self, basis: Basis, signs: Tensor, positive_weight: float) -> None:
        self.basis = basis
        self.signs = signs  # [m, n]
        self.sample_weights = signs.abs().masked_fill_(signs > 0, positive_weight)  # 0: left out
        self.weights = signs.new_zeros(len(signs), basis.rows.shape[1])  # [m, r] solutions of the last cost
        self.decisions = torch.zeros_like(signs)  # [m, n] weights · rows
        count, rank = basis.rows.shape
        # Cholesky costs about a³/3 for a active images, conjugate gradients a few iterations of 4·n·r; the factor 12
        # was measured.
        self.few = int((12 * count * rank) ** (1 / 3))

    def solve(self, cost: float) -> int:
        """Move ``weights`` to the solution for ``cost``; the number of classes that did not get there."""
        live = torch.arange(len(self.signs), device=self.signs.device)
        tolerance = _TOLERANCE[self.signs.dtype]
        for _ in range(_MAX_NEWTON):
            state = _Step(self, live, cost)
            direction, change = state.newton_direction()
            decrement = -(state.gradient * direction).sum(dim=1)
            size = state.line_search(direction, change)
            self.weights[live] += size[:, None] * direction
            self.decisions[live] += size[:, None] * change
            live = live[decrement > 2 * tolerance * state.objective]
            if not len(live):
                return 0
        return len(live)


class _Step:
    """One Newton step of the classes ``live`` [m'] of a batch, at one cost."""

    def __init__(self, classes: _Classes, live: Tensor, cost: float) -> None:
        self.basis, self.few, self.cost = classes.basis, classes.few, cost
        self.weights, self.decisions = classes.weights[live], classes.decisions[live]
        self.signs, self.sample_weights = classes.signs[live], classes.sample_weights[live]
        hinge = (1 - self.signs * self.decisions).clamp_(min=0)  # [m', n]
        weighted = self.sample_weights * hinge
        self.objective = 0.5 * self.weights.square().sum(1) + cost * (weighted * hinge).sum(1)
        self.gradient = self.weights - 2 * cost * (weighted * self.signs) @ self.basis.rows  # [m', r]
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
            change[few] = direction[few] @ self.basis.rows.T
        if len(many):
            direction[many], change[many] = self._by_conjugate_gradients(many)
        return direction, change

    def _by_cholesky(self, row: int) -> Tensor:
        """−H⁻¹g with H = I + 2C·AᵀWA, A the active rows: H⁻¹ = I − Aᵀ((2CW)⁻¹ + AAᵀ)⁻¹A."""
        own = self.active[row].nonzero().flatten()
        active, gradient = self.basis.rows.index_select(0, own), self.gradient[row]
        slack = 1 / (2 * self.cost * self.sample_weights[row, own])
        if self.basis.gram is None:
            gram = active @ active.T
        else:
            places = (own[:, None] * len(self.basis.gram) + own).flatten()  # the fastest gather of several
            gram = self.basis.gram.flatten().index_select(0, places).view(len(own), len(own))
        gram.diagonal().add_(slack)
        factor, failed = torch.linalg.cholesky_ex(gram)
        if failed:  # rounding has made it indefinite, which takes a huge cost and images almost the same
            active, gradient = active.double(), gradient.double()
            factor = torch.linalg.cholesky(active @ active.T + torch.diag(slack.double()))
        solved = torch.cholesky_solve((active @ gradient)[:, None], factor)
        return (active.T @ solved[:, 0] - gradient).to(self.gradient.dtype)

    def _by_conjugate_gradients(self, many: Tensor) -> tuple[Tensor, Tensor]:
        rows = self.basis.rows
        curvature = 2 * self.cost * self.sample_weights[many] * self.active[many]  # [m', n]
        diagonal = 1 + curvature.mean(dim=1, keepdim=True) * self.basis.moments
        residual = -self.gradient[many]
        direction, change = torch.zeros_like(residual), torch.zeros_like(curvature)
        scaled = residual / diagonal
        search, norm = scaled, (residual * scaled).sum(1)
        enough = norm * _FORCING[rows.dtype] ** 2
        for _ in range(_MAX_GRADIENTS):
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
