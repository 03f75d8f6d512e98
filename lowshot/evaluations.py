"""Each command by name: settings and features in, scores out. Settings stop here: evaluators take plain arguments."""

from collections.abc import Callable, Iterator

from fvcore.common.config import CfgNode

from lowshot import knn, retrieval, svm
from lowshot.devices import device
from lowshot.feature_set import FeatureSet
from lowshot.neighbours import search
from lowshot.score import Score
from pretrain.errors import InputError

Wanted = Callable[[str, str, int], bool]
"""(task, protocol, trial) -> whether that score is still to be computed."""

Evaluation = Callable[[CfgNode, FeatureSet, FeatureSet, Wanted], Iterator[list[Score]]]
"""Yields the scores of one unit of work (a draw, a preset) together, so that they are written down together."""


def evaluate_knn(cfg: CfgNode, train: FeatureSet, test: FeatureSet, wanted: Wanted) -> Iterator[list[Score]]:
    """kNN with every preset of KNN.PRESETS, from one search."""
    if train.multi_label:
        raise InputError(f"expected one class an image for knn, found multi-hot labels in {train.name}; use retrieval")
    yield from _from_neighbours(cfg, train, test, _wanted_presets(cfg, wanted), retrieve=False)


def evaluate_retrieval(cfg: CfgNode, train: FeatureSet, test: FeatureSet, wanted: Wanted) -> Iterator[list[Score]]:
    """Retrieval, and kNN with it: the search that retrieval needs holds kNN's neighbours."""
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
    found = search(
        train.features,
        test.features,
        max(needed),
        precision=cfg.SEARCH.PRECISION,
        query_chunk=cfg.SEARCH.QUERY_CHUNK,
        database_chunk=cfg.SEARCH.DATABASE_CHUNK,
        device=device(),
    )
    yield from knn.scores(found, train, test, presets)
    if retrieve:
        yield retrieval.scores(found, train, test, min(cfg.RETRIEVAL.TOP, len(train)))


def evaluate_svm(cfg: CfgNode, train: FeatureSet, test: FeatureSet, wanted: Wanted) -> Iterator[list[Score]]:
    """Low-shot SVMs, draw by draw."""
    settings = cfg.SVM
    setup = svm.LowShot(
        protocol=settings.PROTOCOL,
        shots=tuple(settings.SHOTS),
        draws=settings.DRAWS,
        costs=tuple(settings.COSTS),
        select_c=settings.SELECT_C,
        held_out_per_class=settings.HELD_OUT_PER_CLASS,
        solver=settings.SOLVER,
        device=device(),
        seed=cfg.SEED,
    )
    yield from svm.scores(setup, train, test, wanted)


#: Evaluations of frozen features.
ON_FEATURES: dict[str, Evaluation] = {"knn": evaluate_knn, "retrieval": evaluate_retrieval, "svm": evaluate_svm}
