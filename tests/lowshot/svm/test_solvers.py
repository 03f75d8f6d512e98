import re

import numpy as np
import pytest
import torch
from scipy import optimize
from sklearn.svm import LinearSVC

from momentum_transfer.core.neighbours import normalized
from momentum_transfer.lowshot.svm import solvers
from momentum_transfer.lowshot.svm.solvers import (
    LinearClassifiers,
    _Classes,
    _Step,
    fit_batched,
    fit_liblinear,
    shared_basis,
    signed_targets,
)

COSTS = [2.0**power for power in range(-5, 6)]


def problem(classes, shots, dim, seed=0, overlap=1.0):
    """Non-negative features around class means, L2-normalised, as a network with ReLU gives them."""
    generator = np.random.default_rng(seed)
    means = generator.standard_normal((classes, dim))
    rows = np.repeat(means, shots, axis=0) + overlap * generator.standard_normal((classes * shots, dim))
    labels = np.repeat(np.arange(classes), shots)
    return normalized(np.maximum(rows + 0.3, 0)), signed_targets(labels, classes)


def objectives(classifiers, features, targets, costs, positive_weight):
    """The minimised quantity [costs, classes], in float64."""
    values = []
    for cost, weights, biases in zip(costs, classifiers.weights, classifiers.biases, strict=True):
        hinge = np.maximum(0, 1 - targets * (features.astype(np.float64) @ weights.T + biases))
        losses = (np.where(targets > 0, positive_weight, np.abs(targets)) * hinge**2).sum(axis=0)
        values.append(
            (weights.astype(np.float64) ** 2).sum(axis=1) / 2 + biases.astype(np.float64) ** 2 / 2 + cost * losses
        )
    return np.array(values)


SHAPES = {
    "one image a class": (7, 1, 40, 1.0),
    "fewer images than features": (10, 4, 120, 1.0),
    "more images than features": (5, 60, 24, 1.0),
    "classes that overlap": (4, 80, 10, 3.0),
    "two classes": (2, 8, 16, 1.0),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("positive_weight", [1.0, 2.0])
def test_objective_is_never_above_liblinears(shape, positive_weight):
    features, targets = problem(*shape[:3], overlap=shape[3])
    arguments = (features, targets, COSTS, positive_weight)
    found = objectives(fit_batched(*arguments), *arguments)
    reference = objectives(fit_liblinear(*arguments), *arguments)
    assert (found <= reference * (1 + 1e-6)).all()


def exact(features, signs, cost, positive_weight):
    """liblinear by its dual solver, at the tolerance where it is exact (the primal one stops earlier)."""
    machine = LinearSVC(
        C=cost, class_weight={1: positive_weight, -1: 1.0}, tol=1e-10, dual=True, max_iter=10**7, random_state=0
    )
    return machine.fit(features.astype(np.float64), signs)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("cost", [2.0**-5, 1.0, 2.0**5])
def test_float64_solution_equals_linear_svc_to_1e_8(shape, cost):
    features, targets = problem(*shape[:3], overlap=shape[3])
    found = fit_batched(features, targets, [cost], 2.0, double=True)
    for label in range(targets.shape[1]):
        machine = exact(features, targets[:, label], cost, 2.0)
        expected = np.append(machine.coef_[0], machine.intercept_)
        mine = np.append(found.weights[0, label], found.biases[0, label])
        assert np.linalg.norm(mine - expected) <= 1e-8 * np.linalg.norm(expected)


def test_gradient_of_the_float64_solution_vanishes_for_every_cost():
    features, targets = problem(6, 12, 50, overlap=2.0)
    found = fit_batched(features, targets, COSTS, 2.0, double=True)
    rows = np.hstack([features.astype(np.float64), np.ones((len(features), 1))])
    for index, cost in enumerate(COSTS):
        weights = np.hstack([found.weights[index], found.biases[index][:, None]])
        hinge = np.maximum(0, 1 - targets.T * (weights @ rows.T)) * np.where(targets.T > 0, 2.0, 1.0)
        gradient = weights - 2 * cost * (hinge * targets.T) @ rows
        assert np.abs(gradient).max() < 1e-9 * (1 + cost)


@pytest.mark.parametrize("shape", [(20, 16, 64), (30, 1, 48), (6, 40, 24)], ids=["k 16", "k 1", "more than features"])
@pytest.mark.parametrize("positive_weight", [1.0, 2.0])
@pytest.mark.parametrize("copies", [1, 2], ids=["once", "duplicated"])
def test_predictions_agree_with_liblinears(shape, positive_weight, copies):
    classes, shots, dim = shape
    features, targets = (np.tile(part, (copies, 1)) for part in problem(classes, shots, dim, overlap=1.0))
    others, labels = problem(classes, 100, dim, overlap=1.0)[0], np.repeat(np.arange(classes), 100)
    costs = COSTS[::5]
    found = fit_batched(features, targets, costs, positive_weight)
    reference = fit_liblinear(features, targets, costs, positive_weight, tol=1e-6)
    ours, expected = (np.einsum("nd,scd->snc", others, fit.weights) + fit.biases[:, None] for fit in (found, reference))
    assert np.mean(ours.argmax(2) == expected.argmax(2)) >= 0.999
    assert np.mean(ours.argmax(2) == labels) > 3 / classes


def test_images_left_out_of_a_class_are_not_there():
    features, targets = problem(5, 10, 30, overlap=2.0)
    targets[np.random.default_rng(0).random(targets.shape) < 0.2] = 0
    assert (targets == 0).any(axis=0).all()
    found, reference = (fit(features, targets, COSTS[::5], 2.0) for fit in (fit_batched, fit_liblinear))
    arguments = (features, targets, COSTS[::5], 2.0)
    assert (objectives(found, *arguments) <= objectives(reference, *arguments) * (1 + 1e-6)).all()
    for label in range(5):
        kept = targets[:, label] != 0
        machine = exact(features[kept], targets[kept, label], COSTS[5], 2.0)
        alone = fit_batched(features, targets, COSTS[5:6], 2.0, double=True).weights[0, label]
        assert np.linalg.norm(alone - machine.coef_[0]) <= 1e-8 * np.linalg.norm(machine.coef_)


def test_weight_of_positives_keeps_float64_accuracy():
    features, targets = problem(5, 10, 20)
    found = fit_batched(features, targets, [1.0], 1.3, double=True)
    machine = exact(features, targets[:, 0], 1.0, 1.3)
    assert np.linalg.norm(found.weights[0, 0] - machine.coef_[0]) <= 1e-10 * np.linalg.norm(machine.coef_)


@pytest.mark.parametrize(("cost", "positive_weight"), [(2.0**5, 100.0), (1e4, 1.0), (1e4, 100.0)])
def test_extreme_costs_are_solved_too(cost, positive_weight):
    features, targets = problem(3, 20, 10, overlap=2.0)
    arguments = (np.vstack([features, features[:20]]), np.vstack([targets, targets[:20]]), [cost], positive_weight)
    exact_fit = fit_batched(*arguments, double=True)
    found, minimum = (objectives(fit, *arguments) for fit in (fit_batched(*arguments), exact_fit))
    assert (found <= minimum * (1 + 1e-6)).all()
    worse = LinearClassifiers(exact_fit.weights * (1 + 1e-4), exact_fit.biases)
    assert (minimum < objectives(worse, *arguments)).all()


def test_duplicated_images_and_contradicting_labels_are_solved():
    features, targets = problem(4, 5, 30)
    features, targets = np.vstack([features, features, features[:2]]), np.vstack([targets, targets, -targets[:2]])
    arguments = (features, targets, COSTS, 1.0)
    found = objectives(fit_batched(*arguments), *arguments)
    assert (found <= objectives(fit_liblinear(*arguments, tol=1e-6), *arguments) * (1 + 1e-6)).all()


def test_solution_does_not_depend_on_order_of_costs_on_batching_or_on_the_gram_matrix(monkeypatch):
    features, targets = problem(9, 6, 30)
    whole = fit_batched(features, targets, COSTS, double=True)
    backwards = fit_batched(features, targets, COSTS[::-1], double=True)
    assert np.allclose(whole.weights, backwards.weights[::-1], rtol=0, atol=1e-10)
    monkeypatch.setattr(solvers, "_CLASS_BATCH", 4)
    batches = fit_batched(features, targets, COSTS, double=True)
    assert np.allclose(whole.weights, batches.weights, rtol=0, atol=1e-10)
    monkeypatch.setattr(solvers, "_GRAM_BYTES", 0)
    without_gram = fit_batched(features, targets, COSTS, double=True)
    assert np.allclose(whole.weights, without_gram.weights, rtol=0, atol=1e-10)


def test_gram_matrix_that_would_not_fit_is_left_out_with_a_warning(capsys, monkeypatch):
    features, _ = problem(4, 10, 30)
    monkeypatch.setattr(solvers, "_GRAM_BYTES", 100)
    assert shared_basis(features, torch.float32, "cpu").gram is None
    assert "no 40 × 40 Gram matrix" in capsys.readouterr().err


@pytest.mark.parametrize("few", [0, 10**6], ids=["conjugate gradients", "cholesky"])
def test_both_ways_to_take_a_newton_step_reach_the_same_minimum(few):
    features, targets = problem(6, 20, 60, overlap=2.0)
    basis = shared_basis(features, torch.float64, "cpu")
    classes = _Classes(basis, torch.from_numpy(targets.T.astype(np.float64)), 1.0)
    classes.few = few
    for cost in COSTS:
        assert classes.solve(cost) == 0
    expected = fit_batched(features, targets, COSTS[-1:], double=True)
    found = (classes.weights @ basis.vectors.T).numpy()
    assert np.allclose(found[:, :-1], expected.weights[0], rtol=0, atol=1e-8 * np.abs(expected.weights).max() * 10)


def test_coordinates_keep_every_inner_product():
    for shape in SHAPES.values():
        features, _ = problem(*shape[:3], overlap=shape[3])
        basis = shared_basis(features, torch.float64, "cpu")
        assert np.allclose(basis.gram.numpy(), features.astype(np.float64) @ features.T + 1, atol=1e-10)
        assert torch.allclose(basis.rows.T @ basis.rows, torch.diag(basis.moments), atol=1e-8)


def test_fits_that_do_not_arrive_are_counted_in_a_warning(capsys, monkeypatch):
    features, targets = problem(4, 10, 30, overlap=2.0)
    monkeypatch.setattr(solvers, "_MAX_NEWTON", 1)
    fit_batched(features, targets, COSTS[:2])
    assert re.search(r"[1-8] of 8 SVMs did not reach the tolerance in 1 Newton steps", capsys.readouterr().err)
    fit_liblinear(features, targets, [2.0**5], max_iter=1)
    assert "liblinear stopped 4 of 4 fits after 1 iterations" in capsys.readouterr().err


def test_cholesky_takes_float64_where_float32_makes_the_matrix_indefinite():
    """Images ten times over, at a cost whose diagonal is far below float32's rounding of their products."""
    features, targets = (np.repeat(part, 10, axis=0) for part in problem(3, 2, 40))
    basis = shared_basis(features, torch.float32, "cpu")
    assert int(torch.linalg.cholesky_ex(basis.gram + 1e-8 * torch.eye(60)).info)
    classes = _Classes(basis, torch.from_numpy(targets.T.astype(np.float32)), 1.0)
    step = _Step(classes, torch.arange(3), cost=0.5e8)
    rows = basis.rows.double()
    for row in range(3):  # all images are active at the start
        expected = torch.linalg.solve(torch.eye(rows.shape[1]) + 1e8 * rows.T @ rows, -step.gradient[row].double())
        assert torch.allclose(step._by_cholesky(row).double(), expected, rtol=1e-3, atol=1e-3 * expected.abs().max())


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_gpu_reaches_the_cpus_solution(shape):
    features, targets = problem(*shape[:3], overlap=shape[3])
    found = fit_batched(features, targets, COSTS, double=True, device="cuda")
    expected = fit_batched(features, targets, COSTS, double=True)
    assert np.allclose(found.weights, expected.weights, rtol=0, atol=1e-9)


@pytest.mark.parametrize("cost", [0.1, 100.0])
def test_conjugate_gradients_solve_newtons_equation_in_as_many_steps_as_there_are_features(cost, monkeypatch):
    monkeypatch.setattr(solvers, "_MAX_GRADIENTS", 12)
    monkeypatch.setattr(solvers, "_FORCING", {torch.float64: 1e-9})
    features, targets = problem(3, 30, 8, overlap=2.0)
    basis = shared_basis(features, torch.float64, "cpu")
    classes = _Classes(basis, torch.from_numpy(targets.T.astype(np.float64)), 2.0)
    classes.weights.normal_()
    classes.decisions = classes.weights @ basis.rows.T
    step = _Step(classes, torch.arange(3), cost)
    direction, change = step._by_conjugate_gradients(torch.arange(3))
    for k in range(3):
        curvature = 2 * cost * step.sample_weights[k] * step.active[k]
        hessian = torch.eye(basis.rows.shape[1], dtype=torch.float64) + basis.rows.T @ (curvature[:, None] * basis.rows)
        torch.testing.assert_close(direction[k], torch.linalg.solve(hessian, -step.gradient[k]), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(change, direction @ basis.rows.T)


@pytest.mark.parametrize("cost", [0.5, 1e3, 1e6])
@pytest.mark.parametrize("scale", [0.2, 1.0, 30.0])
def test_a_step_ends_where_the_objective_is_least_along_its_direction(cost, scale):
    """Along a random direction the derivative has many kinks, so that Newton leaves its bracket and is bisected."""
    features, targets = problem(6, 20, 30, overlap=2.0)
    basis = shared_basis(features, torch.float64, "cpu")
    classes = _Classes(basis, torch.from_numpy(targets.T.astype(np.float64)), 2.0)
    generator = torch.Generator().manual_seed(0)
    classes.weights += scale * torch.randn(classes.weights.shape, generator=generator, dtype=torch.float64)
    classes.decisions = classes.weights @ basis.rows.T
    step = _Step(classes, torch.arange(6), cost)
    direction = -step.gradient * torch.rand(step.gradient.shape, generator=generator, dtype=torch.float64) ** 4
    size = step.line_search(direction, direction @ basis.rows.T)
    for k in range(6):

        def slope(at, k=k):
            weights = step.weights[k] + at * direction[k]
            hinge = (1 - step.signs[k] * (basis.rows @ weights)).clamp(min=0) * step.sample_weights[k]
            return float((weights - 2 * cost * basis.rows.T @ (hinge * step.signs[k])) @ direction[k])

        least = optimize.brentq(slope, 0, 1e4, xtol=1e-12)
        assert size[k] > 0
        assert abs(slope(float(size[k]))) <= 1e-3 * abs(slope(0)) * (1 + 1e-9)
        assert float(size[k]) == pytest.approx(least, rel=0.05)


@pytest.fixture
def looked_at(monkeypatch):
    """Number type and threads of every fit."""
    seen = []

    def spied(features, dtype, device):
        seen.append((dtype, torch.get_num_threads()))
        return shared_basis(features, dtype, device)

    monkeypatch.setattr(solvers, "shared_basis", spied)
    return seen


@pytest.mark.parametrize(
    ("costs", "positive_weight", "double"),
    [([1.0, 5000.0], 1.0, False), ([5000.1, 1.0], 1.0, True), ([2500.0], 2.0, False), ([2500.1], 2.0, True),
     ([5000.0], 0.5, False), ([10_000.0], 0.5, True)],
)  # fmt: skip
def test_only_what_float32_would_not_solve_is_solved_in_float64(looked_at, costs, positive_weight, double):
    features, targets = problem(2, 3, 4)
    found = fit_batched(features, targets, costs, positive_weight)
    assert [dtype for dtype, _ in looked_at] == [torch.float64 if double else torch.float32]
    assert found.weights.dtype == (np.float64 if double else np.float32)
    assert fit_batched(features, targets, costs, positive_weight, double=True).weights.dtype == np.float64


def test_positives_weigh_as_much_as_negatives_unless_it_is_said():
    features, targets = problem(3, 8, 10, overlap=2.0)
    for fit in (fit_batched, fit_liblinear):
        np.testing.assert_array_equal(fit(features, targets, [1.0]).weights, fit(features, targets, [1.0], 1.0).weights)


def test_small_problems_take_one_thread_and_give_the_others_back(looked_at, monkeypatch):
    features, targets = problem(5, 3, 4)  # 60 numbers, 5 classes
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        for work, batch in ((300, 9), (301, 9), (180, 3), (181, 3)):
            monkeypatch.setattr(solvers, "_WORK_FOR_THREADS", work)
            monkeypatch.setattr(solvers, "_CLASS_BATCH", batch)
            fit_batched(features, targets, [1.0])
            assert torch.get_num_threads() == 2
        assert [threads for _, threads in looked_at] == [2, 1, 2, 1]
    finally:
        torch.set_num_threads(before)
