"""Registry of the evaluators on frozen features: settings and features in, scores out.

Settings stop here: evaluators take plain arguments.
"""

from collections.abc import Callable, Iterator

import numpy as np
from fvcore.common.config import CfgNode

from momentum_transfer.core.devices import choose_device
from momentum_transfer.core.errors import InputError, counted
from momentum_transfer.core.neighbours import search
from momentum_transfer.lowshot import diagnostics, knn
from momentum_transfer.lowshot import knn as retrieval
from momentum_transfer.lowshot.features.feature_set import FeatureSet, check_vary
from momentum_transfer.lowshot.score import Score
from momentum_transfer.lowshot.svm import lowshot_svm as svm

Wanted = Callable[[str, str, int], bool]
"""(task, protocol, trial) -> whether that score is still to be computed."""

Evaluation = Callable[[CfgNode, FeatureSet, FeatureSet, Wanted], Iterator[list[Score]]]
"""Yields the scores of one unit of work (a draw, a preset) together, so that they are written down together."""


Check = Callable[[CfgNode, np.ndarray, str], None]
"""(settings, labels of the training set, its name): raises InputError before any feature is computed."""


def check_knn(cfg: CfgNode, labels: np.ndarray, name: str) -> None:
    """Presets that exist, images that have one class and are enough of them."""
    if labels.ndim == 2:
        raise InputError(f"expected one class an image for knn, found multi-hot labels in {name}; use retrieval")
    if not cfg.KNN.PRESETS:
        raise InputError(
            "expected at least one of eman, dino, majority-K, weighted-K in KNN.PRESETS, found none; correct the config"
        )
    check_retrieval(cfg, labels, name)


def check_retrieval(cfg: CfgNode, labels: np.ndarray, name: str) -> None:
    """Retrieval scores kNN's presets too, where images have one class."""
    for chosen in cfg.KNN.PRESETS:
        k = knn.preset(chosen).k
        if labels.ndim == 1 and k > len(labels):
            raise InputError(
                f"KNN preset {chosen} asks for {k} neighbours, {name} has {counted(len(labels), 'image')}; leave it out"
            )


def check_svm(cfg: CfgNode, labels: np.ndarray, name: str) -> None:
    """Settings that mean something, labels that fit the protocol, classes with enough images."""
    svm.check(_low_shot(cfg), labels, name)


def evaluate_knn(cfg: CfgNode, train: FeatureSet, test: FeatureSet, wanted: Wanted) -> Iterator[list[Score]]:
    """kNN with every preset of KNN.PRESETS, from one search."""
    check_knn(cfg, train.labels, train.name)
    yield from _from_neighbours(cfg, train, test, _wanted_presets(cfg, wanted), retrieve=False)


def evaluate_retrieval(cfg: CfgNode, train: FeatureSet, test: FeatureSet, wanted: Wanted) -> Iterator[list[Score]]:
    """Retrieval, and kNN with it: the search that retrieval needs holds kNN's neighbours."""
    check_retrieval(cfg, train.labels, train.name)
    presets = [] if train.multi_label else _wanted_presets(cfg, wanted)
    yield from _from_neighbours(cfg, train, test, presets, retrieve=wanted("retrieval", "eman", 0))


def _wanted_presets(cfg: CfgNode, wanted: Wanted) -> list[str]:
    return [name for name in cfg.KNN.PRESETS if wanted(f"knn/k={knn.preset(name).k}", name, 0)]


def _from_neighbours(
    cfg: CfgNode, train: FeatureSet, test: FeatureSet, presets: list[str], retrieve: bool
) -> Iterator[list[Score]]:
    needed = [knn.preset(name).k for name in presets] + [min(cfg.RETRIEVAL.TOP, len(train))] * retrieve
    if not needed:
        return
    check_vary(train, test)
    found = search(
        train.features,
        test.features,
        max(needed),
        precision=cfg.SEARCH.PRECISION,
        query_chunk=cfg.SEARCH.QUERY_CHUNK,
        database_chunk=cfg.SEARCH.DATABASE_CHUNK,
        device=choose_device(),
    )
    yield from knn.knn_scores(found, train, test, presets)
    if retrieve:
        yield retrieval.retrieval_scores(found, train, test, min(cfg.RETRIEVAL.TOP, len(train)))


def evaluate_svm(cfg: CfgNode, train: FeatureSet, test: FeatureSet, wanted: Wanted) -> Iterator[list[Score]]:
    """Low-shot SVMs, see lowshot/svm/lowshot_svm.py."""
    check_vary(train, test)
    yield from svm.scores(_low_shot(cfg), train, test, wanted)


def _low_shot(cfg: CfgNode) -> svm.LowShot:
    settings = cfg.SVM
    return svm.LowShot(
        protocol=settings.PRESET,
        shots=tuple(settings.SHOTS),
        draws=settings.TRIALS,
        costs=tuple(settings.COSTS),
        select_c=settings.SELECT_C,
        held_out_per_class=settings.HELD_OUT_PER_CLASS,
        class_weights=settings.CLASS_WEIGHTS,
        voc_shots=settings.VOC_SHOTS,
        solver=settings.SOLVER,
        device=choose_device(),
        seed=cfg.SEED,
    )


def evaluate_diagnostics(
    cfg: CfgNode,
    train: FeatureSet,
    test: FeatureSet,
    wanted: Wanted,
    views: tuple[FeatureSet, FeatureSet] | None = None,
) -> Iterator[list[Score]]:
    """Label-free diagnostics of the test images; alignment where there are features of two views of them."""
    if wanted("diagnostics", "test", 0):
        yield diagnostics.scores(test, None if views is None else (views[0].features, views[1].features))


#: Evaluations of frozen features, and what each asks of settings and labels.
ON_FEATURES: dict[str, Evaluation] = {
    "knn": evaluate_knn,
    "retrieval": evaluate_retrieval,
    "svm": evaluate_svm,
    "diagnostics": evaluate_diagnostics,
}
CHECKS: dict[str, Check] = {"knn": check_knn, "retrieval": check_retrieval, "svm": check_svm}
