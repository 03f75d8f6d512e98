"""Measures of how well frozen features will serve a task, in closed form: nothing is trained. Higher is better in all.

With labels, of features [N, D] and class indices [N] (H-score, TransRate and the probe of centred features):
    logme: log of the maximum evidence of a Bayesian linear regression of each class's indicator, an image, mean over
        classes (You et al., ICML 2021, arXiv 2102.11005, equations 2 to 4); any real targets in `logme`.
    h_score: tr(Σ⁻¹·Σ_between), Σ and Σ_between the covariances of features and of their class means (Bao et al., ICIP
        2019, arXiv 2212.10082, definition 2), with the pseudo-inverse. With D ≥ N it is constant, so it is for N > D.
    h_score_shrunk: (1 − δ)·tr(Σ_δ⁻¹·Σ_between), Σ_δ = (1 − δ)·Σ + δ·tr(Σ)/D·I, δ of Ledoit and Wolf (2004) (Ibrahim
        et al., arXiv 2110.06893, section 3).
    transrate: R(Z) − Σ_c n_c/N·R(Z_c), R(Z) = ½·logdet(I + ZᵀZ/(nε)), ε = 1e-4 (Huang et al., ICML 2022, arXiv
        2106.09362, equations 3 to 5). Features are first scaled to tr(ZᵀZ) = N: else their scale decides.
    knn: fraction that the majority of the k nearest other images classifies rightly, by cosine (leave-one-out).
    linear: the same of a ridge regression on the classes' indicators, with intercept; leave-one-out by its hat matrix,
        the penalty of the least squared leave-one-out error out of seven.
Without labels:
    rankme: see `lowshot/diagnostics.py` (arXiv 2210.02885, equation 1).
    alpha_req: −|α − 1|, the eigenvalues of the covariance falling as j^−α, fitted in logarithms from the 3rd to the
        100th (Agrawal et al., "α-ReQ", NeurIPS 2022: representations with α near 1 transfer best).
    cluster_learnability: how well k nearest neighbours predict the clusters of k-means, leave-one-out (Lu et al., arXiv
        2206.01251, section 3); √N clusters, the first start of ten by inertia.
    lidar: of features of several views an image [n, q, D], exp of the entropy of the eigenvalues of
        Σ_w^−½·Σ_b·Σ_w^−½, Σ_b between and Σ_w within images, + 1e-4·I (Thilak et al., ICLR 2024, arXiv 2312.04000,
        equations 1 to 4).
"""

from collections.abc import Callable

import numpy as np

from momentum_transfer.core.neighbours import Neighbours, normalized, ranked_classes
from momentum_transfer.lowshot.diagnostics import effective_rank, entropy_rank

#: Penalties of the linear probe, in units of the mean squared norm of the centred features.
_PENALTIES = 10.0 ** np.arange(-5, 2)
#: TransRate's distortion, what LiDAR adds to the covariance within images.
_DISTORTION, _WITHIN = 1e-4, 1e-4
#: First and last eigenvalue of α-ReQ's fit, counted from 1.
_DECAY = (3, 100)


def indicators(labels: np.ndarray) -> np.ndarray:
    """[N, C] 1 where the image is of the class, of the C classes that there are."""
    return (np.asarray(labels)[:, None] == np.unique(labels)).astype(np.float64)


def logme(features: np.ndarray, targets: np.ndarray) -> float:
    """Mean over targets of the log evidence an image at its maximum over α (of the weights) and β (of the noise).

    MacKay's fixed point, for all targets [N, T] at once in the basis of the features' singular vectors: with
    t = α/β, γ = Σ σ²/(t + σ²), α ← γ/‖m‖², β ← (N − γ)/‖Fm − y‖².
    """
    count, targets, features = len(features), np.asarray(targets, dtype=np.float64), _float64(features)
    if count <= features.shape[1]:  # from the products of images: a tenth of the time
        squares, left = np.linalg.eigh(features @ features.T)
        squares = np.maximum(squares, 0.0)[:, None]
    else:
        left, singular, _ = np.linalg.svd(features, full_matrices=False)
        squares = (singular**2)[:, None]
    inside = (left.T @ targets) ** 2
    outside = np.maximum((targets**2).sum(axis=0) - inside.sum(axis=0), 0.0)
    ratio, tiny = np.ones(targets.shape[1]), np.finfo(np.float64).tiny
    for _ in range(1000):
        below = ratio + squares
        degrees, inner = (squares / below).sum(axis=0), inside / below**2
        weights, rest = (squares * inner).sum(axis=0), (inner * ratio**2).sum(axis=0) + outside
        alpha, beta = degrees / np.maximum(weights, tiny), (count - degrees) / np.maximum(rest, tiny)
        before, ratio = ratio, np.clip(alpha / beta, 1e-12, 1e12)
        if np.all(np.abs(ratio - before) <= 1e-9 * before):
            break
    logs = count * np.log(beta / (2 * np.pi)) - np.log1p(squares / ratio).sum(axis=0)  # D/2·log α − ½·log|A|, D cancels
    evidence = (logs - beta * rest - alpha * weights) / 2
    return float(np.mean(evidence) / count)


def h_score(features: np.ndarray, labels: np.ndarray, shrunk: bool = True) -> float:
    """Between-class over total covariance; ``shrunk``: the total one by Ledoit and Wolf's estimator."""
    centred = _centred(features)
    count, width = centred.shape
    left, singular, _ = np.linalg.svd(centred, full_matrices=False)
    kept = singular > singular[0] * max(centred.shape) * np.finfo(np.float64).eps
    left, squares = left[:, kept], singular[kept] ** 2 / count  # eigenvalues of the covariance
    groups = indicators(labels)
    between = ((groups / groups.sum(axis=0)).T @ left) ** 2 * squares * count  # of class means, in the same basis
    between = groups.sum(axis=0) @ between / count
    if not shrunk:
        return float((between / squares).sum())
    mean = squares.sum() / width
    distance = (squares**2).sum() - width * mean**2
    spread = ((centred**2).sum(axis=1) ** 2).sum() / count**2 - (squares**2).sum() / count
    delta = min(max(spread, 0.0) / distance, 1.0) if distance > 0 else 1.0
    return float((1 - delta) * (between / ((1 - delta) * squares + delta * mean)).sum())


def transrate(features: np.ndarray, labels: np.ndarray) -> float:
    """Mutual information of features and labels, entropies by coding rates."""
    centred = _centred(features)
    centred *= np.sqrt(len(centred) / max((centred**2).sum(), np.finfo(np.float64).tiny))

    def rate(rows: np.ndarray) -> float:
        gram = rows @ rows.T if len(rows) < rows.shape[1] else rows.T @ rows
        return 0.5 * float(np.linalg.slogdet(np.eye(len(gram)) + gram / (len(rows) * _DISTORTION))[1])

    parts = (centred[labels == one] for one in np.unique(labels))
    return rate(centred) - sum(len(part) / len(centred) * rate(part) for part in parts)


def knn_hits(features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """[N] whether the majority of the 20 nearest other images (of fewer than 200: 5) has the image's class.

    Ties as in :mod:`momentum_transfer.core.neighbours`.
    """
    count, k = len(features), 20 if len(features) >= 200 else 5
    rows = normalized(np.asarray(features)).astype(np.float64)
    similar = rows @ rows.T
    np.fill_diagonal(similar, -np.inf)
    order = np.argsort(-similar, axis=1, kind="stable")[:, : min(k, count - 1)]
    near = Neighbours(np.take_along_axis(similar, order, axis=1), order)
    return np.asarray(ranked_classes(near, labels, order.shape[1], None)[:, 0] == labels)


def linear_hits(features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """[N] whether ridge regression on the other images classifies the image rightly."""
    targets, centred = indicators(labels), _centred(features)
    left, singular, _ = np.linalg.svd(centred, full_matrices=False)
    squares, inside = singular**2, left.T @ (targets - targets.mean(axis=0))
    best, hits = np.inf, np.zeros(len(centred), dtype=bool)
    for penalty in _PENALTIES * squares.sum() / len(centred):
        shrink = squares / (squares + max(penalty, np.finfo(np.float64).tiny))
        leverage = 1 / len(centred) + left**2 @ shrink
        fitted = targets.mean(axis=0) + left @ (shrink[:, None] * inside)
        errors = (targets - fitted) / np.maximum(1 - leverage, 1e-9)[:, None]
        if (error := float((errors**2).sum())) < best:
            best, hits = error, (targets - errors).argmax(axis=1) == targets.argmax(axis=1)
    return hits


def alpha_req(features: np.ndarray) -> float:
    """−|α − 1| of the decay of the covariance's eigenvalues."""
    values = np.linalg.svd(_centred(features), compute_uv=False) ** 2
    values = values[values > values[0] * 1e-10][_DECAY[0] - 1 : _DECAY[1]]
    if len(values) < 2:
        return -np.inf  # no spectrum: all features are one direction
    return -abs(-float(np.polyfit(np.log(np.arange(len(values)) + _DECAY[0]), np.log(values), 1)[0]) - 1)


def cluster_hits(features: np.ndarray) -> np.ndarray:
    """[N] whether the nearest neighbours predict the image's own cluster."""
    from sklearn.cluster import KMeans

    count = max(2, round(len(features) ** 0.5))
    rows = normalized(np.asarray(features)).astype(np.float64)
    clusters = KMeans(min(count, len(np.unique(rows, axis=0))), n_init=10, random_state=0).fit_predict(rows)
    return knn_hits(features, clusters.astype(np.int64))


def lidar(views: np.ndarray) -> float:
    """Effective rank of the discriminant matrix of ``views`` [n images, q views, D]."""
    views = _float64(views)
    count, copies, width = views.shape
    means = views.mean(axis=1)
    between = means - means.mean(axis=0)
    within = (views - means[:, None]).reshape(-1, width)
    # Σ_w^−½·B with B·Bᵀ = n·Σ_b: its squared singular values are the eigenvalues, the others are 0
    _, singular, right = np.linalg.svd(within, full_matrices=False)
    scales = 1 / np.sqrt(singular**2 / (count * copies) + _WITHIN) - 1 / np.sqrt(_WITHIN)
    whitened = between / np.sqrt(_WITHIN) + (between @ right.T * scales) @ right
    values = np.linalg.svd(whitened, compute_uv=False) ** 2
    return entropy_rank(np.pad(values, (0, width - len(values))))


#: Measures of features and labels; those that are fractions of images, by their outcomes (an interval then needs no
#: second computation); measures of features alone.
LABELLED: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "logme": lambda features, labels: logme(features, indicators(labels)),
    "h_score": lambda features, labels: h_score(features, labels, shrunk=False),
    "h_score_shrunk": h_score,
    "transrate": transrate,
}
HITS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "linear": linear_hits,
    "knn": knn_hits,
    "cluster_learnability": lambda features, labels: cluster_hits(features),
}
UNLABELLED: dict[str, Callable[[np.ndarray], float]] = {"rankme": effective_rank, "alpha_req": alpha_req}


def _float64(features: np.ndarray) -> np.ndarray:
    return np.asarray(features, dtype=np.float64)


def _centred(features: np.ndarray) -> np.ndarray:
    values = _float64(features)
    return np.asarray(values - values.mean(axis=0))
