"""Run one few-label evaluation from settings to records; scores that are recorded already are skipped."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from fvcore.common.config import CfgNode

from momentum_transfer.backbones.build import own_input
from momentum_transfer.backbones.network_input import NetworkInput
from momentum_transfer.backbones.read import load_backbone
from momentum_transfer.backbones.source import SourceBackbone
from momentum_transfer.core import distributed, records
from momentum_transfer.core.devices import choose_device
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.errors import refusals as refused
from momentum_transfer.core.files import sha256_of_text
from momentum_transfer.core.log import say, table
from momentum_transfer.core.run_lock import alone_in
from momentum_transfer.core.settings import keep
from momentum_transfer.images.content import Overlap, report_overlap, shared_images, shared_rows
from momentum_transfer.images.subsets import unselected
from momentum_transfer.lowshot import evaluations, inputs
from momentum_transfer.lowshot.config import EVALUATIONS, check_settings
from momentum_transfer.lowshot.evaluations import ON_FEATURES, ON_IMAGES, Wanted
from momentum_transfer.lowshot.features.feature_set import FeatureSet, check_pair, read_npz
from momentum_transfer.lowshot.identity import Score, Subject, decisive, settings_hash, subject_of
from momentum_transfer.verdicts.outcomes import PerItem, in_groups, per_item

_Evaluate = Callable[[Wanted], Iterator[list[Score]]]


@dataclass(frozen=True)
class Request:
    """What the command line asks for."""

    command: str  # of ``config.EVALUATIONS``, or "features" to compute and keep features alone
    weights: str = ""  # a checkpoint, a run's folder, ``inputs.PIXELS`` or ``inputs.SCRATCH``; "" for given features
    network: str | None = None  # this and the next two as ``load_backbone`` takes them
    family: str | None = None
    arch: str | None = None  # also that of a start from scratch
    features: str = ""  # file of features made elsewhere
    test_features: str = ""
    results: Path | None = None  # where records go (None: OUTPUT_DIR/results.jsonl)
    verify: bool = False  # recognise images in the feature cache by content
    forbid_overlap: bool = False  # refuse test images that are among the training images
    source: SourceBackbone | None = None  # the backbone itself; ``weights`` then only names it
    identities: list[dict[str, Any]] = field(default_factory=list)  # gets what all records of it have in common


def run(cfg: CfgNode, request: Request) -> list[Score]:
    """Evaluate, and append a record for every score as it comes; the new scores.

    Raises InputError for wrong settings, inputs or targets before any compute.
    """
    check_settings(cfg)
    file = Path(request.results or Path(cfg.OUTPUT_DIR) / "results.jsonl")
    _check_writable(file)
    with distributed.process_group(choose_device()), _lock(cfg, request):
        subject, evaluate = _prepare(cfg, request)
        identity = {"sha256": subject.checkpoint["sha256"], "config": subject.config, "data": subject.data}
        identity["start_network" if request.command in evaluations.SCORES_OWN_NETWORKS else "network"] = subject.network
        request.identities.append(identity)
        alone = request.command in ON_FEATURES  # on features that all processes have computed, rank 0 works alone
        if alone and not distributed.is_main():
            return []

        def wanted(task: str, protocol: str, trial: int) -> bool:
            protocol += subject.features
            return not records.done(file, task=task, protocol=protocol, trial=trial, **identity)

        new = list(_recorded(evaluate(wanted), file, subject, alone))
    if request.command != "features":
        _show(request.command, subject, new, file)
    return new


def refusals(
    cfg: CfgNode, request: Request, source: SourceBackbone | None, opened: dict[str, inputs.Images],
    space: dict[tuple[Path, str], int],
) -> Iterator[tuple[str, str]]:  # fmt: skip
    """(what, reason) of all that `run` would refuse before its compute; ``source``: None for words and unmade weights.

    ``opened``: data sets by their settings, to which those of ``cfg`` are added, so that a plan reads each once; to
    ``space`` is added what goes into the cache of features (`inputs.disk_space`), unless something is refused.
    """
    key = f"{cfg.DATASETS} {cfg.INPUT.IMAGE_SIZE}"

    def weights() -> None:
        _check_weights(request)
        if source is not None or request.weights in (inputs.PIXELS, inputs.SCRATCH):
            own, _ = _own_images(cfg, request, source)
            evaluations.check_network(own, request.command, source)

    def data() -> None:
        if request.features or request.test_features:
            _given(request)
            return
        images = opened.setdefault(key, inputs.Images(cfg))
        inputs.check_classes(images.train, images.test)
        if check := evaluations.CHECKS.get(request.command):
            check(cfg, images.train.labels, f"{cfg.DATASETS.NAME} {cfg.DATASETS.TRAIN}")

    found = list(refused({"settings": lambda: check_settings(cfg), "weights": weights, "data": data}))
    yield from found
    if not found and source is not None and request.command in ON_FEATURES and not request.features:
        space |= inputs.disk_space(cfg, source, opened[key])


def _check_weights(request: Request) -> None:
    """InputError for none, or for a word that means nothing to the evaluation."""
    if not (request.weights or request.features or request.test_features):
        raise InputError("expected --weights CHECKPOINT, or --features TRAIN.npz with --test-features TEST.npz")
    if request.weights == (inputs.PIXELS if request.command in ON_IMAGES else inputs.SCRATCH):
        raise InputError(f"--weights {request.weights} means nothing to {request.command}; see --help")


def _lock(cfg: CfgNode, request: Request) -> contextlib.AbstractContextManager[None]:
    """The lock of OUTPUT_DIR if something is written there.

    Trainings keep checkpoints in it, and without ``--results`` records and items go there. A results file elsewhere
    may have several writers: they take turns, and items are named by their content.
    """
    here = request.command in ON_IMAGES or (request.results is None and request.command != "features")
    return alone_in(cfg.OUTPUT_DIR) if here else contextlib.nullcontext()


def _check_writable(file: Path) -> None:
    """Raise InputError before hours of work if the results file cannot be written."""
    if not distributed.is_main():
        return
    missing = [folder for folder in file.absolute().parents if not folder.exists()]
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        new = not file.exists()
        with open(file, "ab"):
            pass
        if new:
            file.unlink()  # an evaluation that ends in an error leaves no empty file
    except OSError as error:
        raise InputError(f"cannot write results to {file}: {error.strerror}; choose another --results FILE") from error
    finally:
        for folder in missing:  # nor an empty folder
            with contextlib.suppress(OSError):
                folder.rmdir()


def _prepare(cfg: CfgNode, request: Request) -> tuple[Subject, _Evaluate]:
    """Read weights and open data, once; what records say of them, and the evaluation with its inputs bound."""
    if request.command not in ("features", *EVALUATIONS):
        raise InputError(f"expected an evaluation of {', '.join(EVALUATIONS)}, found {request.command!r}")
    if request.features or request.test_features:
        train, test = _given(request)
        both = sha256_of_text(f"{train.sha256} {test.sha256}")  # another test file is another result
        settings = settings_hash(cfg), _counts(test.labels), decisive(cfg)
        subject = Subject({"name": train.name, "sha256": both}, "", test.name, *settings)
        subject = _with_overlap(subject, request, lambda: shared_rows(train.features, test.features))
        return subject, partial(ON_FEATURES[request.command], cfg, train, test)
    _check_weights(request)
    on_images = request.command in ON_IMAGES
    source = request.source
    if source is None and request.weights not in (inputs.PIXELS, inputs.SCRATCH):
        source = load_backbone(
            request.weights, network=request.network, family=request.family, architecture=request.arch
        )
    cfg, own = _own_images(cfg, request, source)
    images = inputs.Images(cfg, request.verify, own)
    counts = _counts(images.test.labels, images.test.classes)
    subject = subject_of(cfg, request.command, request.weights, source, counts)
    groups = inputs.groups_of(images.test)
    config = subject.config
    if groups is not None and cfg.DATASETS.SPLIT:  # another groups.csv is another division
        config = sha256_of_text(f"{config} {unselected(images.test)[1].tolist()}")[:12]
    subject = replace(subject, groups=groups, config=config)
    subject = _with_overlap(subject, request, lambda: shared_images(images.train, images.test))
    if on_images:
        return subject, partial(ON_IMAGES[request.command], cfg, source, images)
    check = evaluations.CHECKS.get(request.command, lambda *_: None)
    train, test = inputs.feature_sets(cfg, source, images, partial(check, cfg))
    if request.command == "features":
        say(f"{len(train)} + {len(test)} features of {train.features.shape[1]} numbers")
        return subject, lambda wanted: iter(())
    evaluate = partial(ON_FEATURES[request.command], cfg, train, test)
    if request.command == "diagnostics":
        evaluate = partial(evaluate, views=inputs.view_features(cfg, source, images))
    return subject, evaluate


def _with_overlap(subject: Subject, request: Request, count: Callable[[], Overlap]) -> Subject:
    """The subject with the number of test images that also train, if the evaluation trains; rank 0 counts."""
    if request.command in ("features", "diagnostics") or not distributed.is_main():
        return subject
    return replace(subject, overlap=report_overlap(count(), forbid=request.forbid_overlap))


def _own_images(cfg: CfgNode, request: Request, source: SourceBackbone | None) -> tuple[CfgNode, NetworkInput | None]:
    """The settings with the network's image size, and its input specification; logs both."""
    cfg = cfg.clone()
    cfg.defrost()
    if source is None and request.arch is not None:
        cfg.MODEL.ARCH = request.arch
        check_settings(cfg)
    if request.weights == inputs.PIXELS:
        return cfg, None
    architecture = inputs.architecture_of(cfg, source)
    own = own_input(architecture)
    if own is not None:
        cfg.INPUT.IMAGE_SIZE = own.size
        say(f"images as {architecture} wants them: {own}")
    return cfg, own


def _counts(labels: np.ndarray, classes: Sequence[str] | None = None) -> dict[str, int]:
    """Images, and classes: the named ones, else up to the highest label."""
    counted = labels.shape[1] if labels.ndim == 2 else int(labels.max(initial=-1)) + 1
    return {"images": len(labels), "classes": len(classes) if classes is not None else counted}


def _given(request: Request) -> tuple[FeatureSet, FeatureSet]:
    """(train, test) features made elsewhere."""
    if request.command not in ON_FEATURES:
        raise InputError(f"{request.command} works on images, not on --features; give --weights CHECKPOINT")
    if request.weights:
        raise InputError("expected --weights or --features, found both; leave one out")
    if not (request.features and request.test_features):
        raise InputError("expected both --features TRAIN.npz and --test-features TEST.npz, found only one of them")
    train, test = read_npz(request.features), read_npz(request.test_features)
    check_pair(train, test)
    return train, test


def _recorded(units: Iterable[list[Score]], file: Path, subject: Subject, alone: bool) -> Iterator[Score]:
    """Pass scores on; those of one unit of work are written to the results file together, the settings beside it.

    Unless the process is ``alone``, all wait until the records are written.
    """
    for unit in units:
        # Five guesses of five classes or fewer are always right: no score.
        scores = [score for score in unit if score.metric != "top5" or subject.data["classes"] > 5]
        if distributed.is_main():
            written = _write_items(scores, file.parent, subject)
            lines = [subject.record(score, written.get(_unit(score)) if score.items is not None else None)
                     for score in scores]  # fmt: skip
            keep(file.parent, subject.config, subject.settings)
            records.append(file, lines)
        if not alone:
            distributed.barrier()
        yield from scores


def _unit(score: Score) -> tuple[Any, ...]:
    """What the scores of one items file have in common."""
    return score.task, score.protocol, score.trial, score.network


def _write_items(scores: list[Score], folder: Path, subject: Subject) -> dict[tuple[Any, ...], dict[str, str]]:
    """Write the outcomes per test image of the scores that have them; unit -> what its records keep."""
    units: dict[tuple[Any, ...], list[Score]] = {}
    for score in scores:
        if score.items is not None:
            units.setdefault(_unit(score), []).append(score)
    written = {}
    for unit, same in units.items():
        task, protocol, trial, network = unit
        name = "-".join(filter(None, (task, protocol, subject.checkpoint["name"], network, f"t{trial}")))
        values = {one.metric: per_item(one.items, subject.renderings) for one in same if one.items is not None}
        written[unit] = records.write_items(folder, name, in_groups(PerItem(same[0].test_set, values), subject.groups))
    return written


def _show(command: str, subject: Subject, scores: list[Score], file: Path) -> None:
    """Print the table of what is new: mean ± standard deviation over trials."""
    if not scores:
        say(f"{command}: every score of these weights and settings is in {file} already")
        return
    groups: dict[tuple[str, str, str], list[float]] = {}
    for score in scores:
        metric = f"{score.metric} ({score.network})" if score.network else score.metric
        values = groups.setdefault((score.task, metric, score.protocol), [])
        if math.isfinite(score.value):  # without a confident pseudo-label their accuracy is NaN
            values.append(score.value)
    rows = [
        (*name, f"{mean(values):.2f}" if values else "", f"{stdev(values):.2f}" if len(values) > 1 else "", len(values))
        for name, values in groups.items()
    ]
    title = f"{subject.checkpoint['name']} {subject.network} on {subject.dataset}"
    table(title, ("task", "metric", "protocol", "mean", "std", "trials"), rows)
    say(f"records appended to {file}")
