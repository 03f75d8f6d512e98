"""Label-free diagnostics of frozen features: how many directions they use, how they spread, what is dead.

    rankme: exp of the entropy of the normalised singular values (Garrido et al., arXiv 2210.02885, equation 1), between
        1 and the number of features; it follows downstream accuracy within a method, not across methods.
    effective_rank: the same of the centred features, so without the direction common to all images (Roy and Vetterli,
        "The effective rank", EUSIPCO 2007).
    uniformity: log of the mean over pairs of images of exp(−2‖x − y‖²), of L2-normalised features; lower is more
        uniform, 0 is collapse (Wang and Isola, arXiv 2005.10242, section 4.1.2).
    alignment: mean squared distance of the L2-normalised features of two random views of an image; lower is more
        invariant, and collapse has 0 too, so the two are read together (the same, section 4.1.1).
    dead_features: percent of features that are the same for all images (within 1e-6 of the features' root mean square).
    norm_mean, norm_std: of the features' 2-norm over images.

None of these is a score: they are shown, never ranked.
"""

import numpy as np

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.neighbours import chunks, normalized
from momentum_transfer.lowshot.features.feature_set import FeatureSet
from momentum_transfer.lowshot.identity import Score

#: Images of whose pairs the uniformity is taken, evenly spaced over the set.
_MOST_IMAGES = 10_000

METRICS = ("rankme", "effective_rank", "uniformity", "alignment", "dead_features", "norm_mean", "norm_std")


def scores(test: FeatureSet, views: tuple[np.ndarray, np.ndarray] | None = None) -> list[Score]:
    """All diagnostics of the test images' features; alignment of ``views``, [N, D] features of two views of each.

    InputError for fewer than two images, or features that are all 0.
    """
    if len(test) < 2:
        raise InputError(f"expected at least two images for diagnostics, found {len(test)} in {test.name}")
    if not np.any(test.features):
        raise InputError(f"expected features that are not all 0 for diagnostics, found only 0 in {test.name}")
    lowest, highest, mean, norms = _moments(test.features)
    square = float((norms**2).sum() / test.features.size)
    values = {
        "rankme": effective_rank(test.features),
        "effective_rank": effective_rank(test.features, mean),
        "uniformity": _uniformity(normalized(test.features[:: -(-len(test) // _MOST_IMAGES)])),
        "dead_features": 100 * float(np.mean(highest - lowest <= 1e-6 * np.sqrt(square))),
        "norm_mean": float(norms.mean()),
        "norm_std": float(norms.std()),
    }
    if views is not None:
        first, second = map(normalized, views)
        values["alignment"] = float(np.mean(((first - second).astype(np.float64) ** 2).sum(axis=1)))
    details = {"images": len(test), "features": test.features.shape[1]}
    return [Score("diagnostics", name, values[name], "test", details=details) for name in METRICS if name in values]


def effective_rank(features: np.ndarray, mean: np.ndarray | float = 0.0) -> float:
    """`entropy_rank` of the singular values of ``features`` [N, D] − ``mean`` [D]."""
    gram = np.zeros((features.shape[1],) * 2)
    for part in chunks(len(features), 4096):
        block = np.asarray(features[part], dtype=np.float64) - mean
        gram += block.T @ block
    return entropy_rank(np.sqrt(np.maximum(np.linalg.eigvalsh(gram), 0.0))[::-1][: min(features.shape)])


def entropy_rank(values: np.ndarray) -> float:
    """exp(−Σ p·log p) with p = values / Σ values + 1e-7, as RankMe has it, of ``values`` ≥ 0; 1 where all are 0."""
    if not values.sum() > 0:
        return 1.0
    parts = values / values.sum() + 1e-7
    return float(np.exp(-(parts * np.log(parts)).sum()))


def _uniformity(features: np.ndarray) -> float:
    """log of the mean over pairs i < j of exp(−2‖xᵢ − xⱼ‖²), ``features`` [N, D] L2-normalised."""
    total = 0.0
    for part in chunks(len(features), 1024):
        distances = np.maximum(2.0 - 2.0 * (features[part] @ features.T).astype(np.float64), 0.0)
        total += float(np.exp(-2.0 * distances).sum())
    count = len(features)
    own = sum(float(np.exp(-2.0 * max(0.0, 2.0 - 2.0 * float(row @ row)))) for row in features)
    return float(np.log((total - own) / (count * (count - 1))))


def _moments(features: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """[D] smallest and largest value and mean of each feature, [N] norms."""
    lowest, highest = np.full(features.shape[1], np.inf), np.full(features.shape[1], -np.inf)
    total, norms = 0, []
    for part in chunks(len(features), 4096):
        block = np.asarray(features[part])
        lowest, highest = np.minimum(lowest, block.min(axis=0)), np.maximum(highest, block.max(axis=0))
        total = total + block.astype(np.float64).sum(axis=0)
        norms.append(np.linalg.norm(block.astype(np.float64), axis=1))
    return lowest, highest, np.asarray(total / len(features)), np.concatenate(norms)
