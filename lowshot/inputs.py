"""From settings and a checkpoint to what the evaluators take: data sets, a frozen backbone, features."""

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import PIL.Image
import torch
from fvcore.common.config import CfgNode
from torch import Tensor

from momentum_transfer.backbones.build import AnyArchitecture, Backbone, build_backbone, named_architecture
from momentum_transfer.backbones.network_input import NetworkInput
from momentum_transfer.backbones.resnet import Architecture
from momentum_transfer.backbones.source import SourceBackbone
from momentum_transfer.core.devices import choose_device
from momentum_transfer.core.errors import counted
from momentum_transfer.core.files import cache_root, part_title, sha256_of_text
from momentum_transfer.core.log import warn
from momentum_transfer.core.urls import is_url
from momentum_transfer.images.datasets import build_dataset
from momentum_transfer.images.digits import digit_variant
from momentum_transfer.images.groups import image_groups, say_groups
from momentum_transfer.images.labelled_images import LabelledImages, VocImages
from momentum_transfer.images.published_counts import published_counts
from momentum_transfer.images.subsets import Selected, file_names, select, stratified_split, unselected
from momentum_transfer.images.tar_shards import ShardImages
from momentum_transfer.images.views import MEAN, STD, eval_transform
from momentum_transfer.lowshot.augment import SeededView, WeakAndStrong, weak_view
from momentum_transfer.lowshot.features.cache import About
from momentum_transfer.lowshot.features.extract import Pixels, StageFeatures, data_hash, extract
from momentum_transfer.lowshot.features.feature_set import FeatureSet, check_pair
from momentum_transfer.lowshot.labelled_data import LabelledData, check_classes

#: A word instead of weights: features are the image's own grey values.
PIXELS = "pixels"
#: No pretraining: a network of random weights (linear, finetune, fixmatch).
SCRATCH = "scratch"


def architecture_of(cfg: CfgNode, source: SourceBackbone | None) -> AnyArchitecture:
    """The source's, or that of a start from scratch."""
    return source.architecture if source else named_architecture(cfg.MODEL.ARCH, cfg.MODEL.WIDTH, cfg.MODEL.STEM)


def backbone_builder(cfg: CfgNode, source: SourceBackbone | None, seed: int | None = None) -> Callable[[], Backbone]:
    """A function that gives a fresh copy of the backbone each time; without a source a random one of ``seed``."""
    if source is not None:
        return source.build
    architecture = architecture_of(cfg, None)

    def build() -> Backbone:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(cfg.SEED if seed is None else seed)
            return build_backbone(architecture)

    return build


class Images:
    """The labelled images of one command; each split is opened once, when it is first asked for.

    Args:
        verify: cached features count for images of the same content, not of the same size and time of change.
        own: how the network wants its images; None if the settings and the data set determine it.
    """

    def __init__(self, cfg: CfgNode, verify: bool = False, own: NetworkInput | None = None) -> None:
        self.cfg, self.verify, self.own = cfg, verify, own

    @property
    def plain(self) -> Callable[[PIL.Image.Image], Tensor]:
        """The evaluation's view."""
        name, own = self.cfg.DATASETS.NAME, self.own
        if own is None:
            return eval_transform(name, self.cfg.INPUT.IMAGE_SIZE)
        return eval_transform(name, own.size, own.mean, own.std, interpolation=own.interpolation, resized=own.resized)

    @property
    def weak(self) -> Callable[[PIL.Image.Image], Tensor]:
        """Random views for training."""
        cfg = self.cfg
        return weak_view(cfg.DATASETS.NAME, cfg.INPUT.IMAGE_SIZE, *self._statistics, backend=cfg.INPUT.BACKEND)

    def weak_and_strong(self, levels: str) -> WeakAndStrong:
        """FixMatch's pairs of views; ``levels``: see :mod:`momentum_transfer.lowshot.augment`."""
        name, settings = self.cfg.DATASETS.NAME, self.cfg.INPUT
        return WeakAndStrong(name, settings.IMAGE_SIZE, levels, *self._statistics, backend=settings.BACKEND)

    def labelled(self, workers: int) -> LabelledData:
        """Training and test images for classifiers that are trained on images."""
        return LabelledData(self.train, self.test, self.weak, self.plain, workers)

    @property
    def _statistics(self) -> tuple[Sequence[float], Sequence[float]]:
        return (MEAN, STD) if self.own is None else (self.own.mean, self.own.std)

    @cached_property
    def train(self) -> LabelledImages:
        """DATASETS.TRAIN."""
        return _open(self.cfg, "TRAIN")

    @cached_property
    def test(self) -> LabelledImages:
        """DATASETS.TEST."""
        return _open(self.cfg, "TEST")


def title(cfg: CfgNode, images: int, classes: int) -> str:
    """What records call the test set: DATASETS.TITLE, else the name of its folder or list, else NAME and TEST.

    A published set's title is used only for as many images and classes as that set has.
    """
    data = cfg.DATASETS
    published = published_counts(data.TITLE)
    if data.TITLE and published in (None, (images, classes)):
        return str(data.TITLE)
    if published is not None:
        warn(
            f"DATASETS.TITLE is {data.TITLE}, which has {published[0]} images of {published[1]} classes; here are "
            f"{counted(images, 'image')} of {classes}: records do not use this title"
        )
    if data.NAME == "imagefolder":
        root = Path(data.ROOT)
        return f"{part_title(root / data.TRAIN)}_test" if data.SPLIT else part_title(root / data.TEST)
    return part_title(data.TEST_LIST) if data.NAME == "filelist" else f"{data.NAME} {data.TEST}"


def _open(cfg: CfgNode, split: str) -> LabelledImages:
    """The images of DATASETS.TRAIN or TEST, or the part of TRAIN that trains or tests by DATASETS.SPLIT."""
    data = cfg.DATASETS
    part = "TRAIN" if data.SPLIT else split
    long_tail = data.LONG_TAIL if split == "TRAIN" else 1.0
    if data.NAME == "voc07" and not data.SPLIT:
        return VocImages(data.ROOT, data[split])
    images = build_dataset(
        data.NAME, data.ROOT or None, data[part], file_list=data[f"{part}_LIST"] or None,
        image_size=cfg.INPUT.IMAGE_SIZE, variant=data.VARIANT, seed=data.SEED,
        long_tail=1.0 if data.SPLIT else long_tail, renderings=data.RENDERINGS if part == "TEST" else 1,
        # a test image is not replaced by another, which would count twice
        max_unreadable=100 if split == "TRAIN" and not data.SPLIT else 0,
    )  # fmt: skip
    if not data.SPLIT:
        return images
    groups = groups_of(images)
    if groups is not None and split == "TRAIN":
        say_groups(groups)
    trains = stratified_split([[int(label)] for label in images.labels], data.SPLIT, data.SEED, groups)
    rows = np.flatnonzero(trains == (split == "TRAIN"))
    return select(
        Selected(images, rows, images.labels[rows], list(images.classes)), long_tail=long_tail, seed=data.SEED
    )


def groups_of(images: LabelledImages) -> np.ndarray | None:
    """[N] the number of each image's group, by ``groups.csv`` near the files, or beside the tar files; see there."""
    whole, positions = unselected(images)
    if not isinstance(whole, ShardImages):
        return None if (files := file_names(images)) is None else image_groups(files)
    if not len(positions) or is_url(whole.place.root):
        return None
    folder = os.path.dirname(whole.archive(whole.index[0]))
    return image_groups([f"{folder}/{os.fsdecode(name)}" for name in whole.paths[positions]], folder)


def _digest(source: SourceBackbone) -> str:
    """What the cache knows a frozen network by."""
    return sha256_of_text(f"{source.sha256} {source.network}")


def _cache(cfg: CfgNode) -> Path:
    return Path(cfg.FEATURES.CACHE).expanduser() if cfg.FEATURES.CACHE else cache_root() / "features"


def disk_space(cfg: CfgNode, source: SourceBackbone, images: Images) -> dict[tuple[Path, str], int]:
    """(cache, features) -> bytes that an evaluation of frozen features adds; 0 where it has some of these weights."""
    cache, digest = _cache(cfg), _digest(source)
    with torch.device("meta"):
        width = build_backbone(source.architecture).num_features
    known = any(digest.encode() in file.read_bytes() for file in cache.glob("*/about.json"))
    count = len(images.train.labels) + len(images.test.labels)
    return {(cache, f"{digest} {cfg.DATASETS}"): 0 if known else 4 * width * count}


def feature_sets(
    cfg: CfgNode, source: SourceBackbone | None, images: Images,
    check_labels: Callable[[np.ndarray, str], None] = lambda *_: None,
) -> tuple[FeatureSet, FeatureSet]:  # fmt: skip
    """(train, test) features, from the cache or computed; ``check_labels(labels, name)`` of TRAIN may raise before."""
    data = cfg.DATASETS
    check_classes(images.train, images.test)
    check_labels(images.train.labels, f"{data.NAME} {data.TRAIN}")
    train, test = _features(cfg, source, images, [("TRAIN", images.plain), ("TEST", images.plain)])
    check_pair(train, test)
    return train, test


def view_features(cfg: CfgNode, source: SourceBackbone | None, images: Images) -> tuple[FeatureSet, FeatureSet]:
    """Features of two random views of every test image, from the cache or computed; the same views every time."""
    first, second = _features(
        cfg, source, images, [("TEST", SeededView(images.weak, cfg.SEED + number)) for number in (0, 1)]
    )
    return first, second


def _features(
    cfg: CfgNode, source: SourceBackbone | None, images: Images,
    parts: Sequence[tuple[str, Callable[[PIL.Image.Image], Tensor]]],
) -> list[FeatureSet]:  # fmt: skip
    """Features of splits (TRAIN, TEST), each under its transform."""
    data, where = cfg.DATASETS, choose_device()
    network: Pixels | StageFeatures = Pixels().to(where)
    weights, layer = sha256_of_text(PIXELS), PIXELS
    if source is not None:
        network = StageFeatures(source.build(), cfg.FEATURES.LAYER, cfg.FEATURES.POOL).to(where)
        if network.channels_last:
            network.to(memory_format=torch.channels_last)
        architecture, weights, layer = source.architecture, _digest(source), cfg.FEATURES.LAYER
        if not isinstance(architecture, Architecture) or architecture.style != "pytorch":
            layer = f"{layer} {cfg.FEATURES.POOL} of {architecture}"
    # of digits also how they are rendered; data_hash has the number of renderings
    rendered = f" {digit_variant(data.VARIANT)} {data.SEED}" if data.NAME == "digits" else ""
    found = []
    for split, transform in parts:
        part, name = images.train if split == "TRAIN" else images.test, f"{data.NAME} {data[split]}"
        content = f"{name}{rendered} {data_hash(part, content=images.verify)}"
        about = About(weights, content, f"{cfg.INPUT.IMAGE_SIZE} {transform}", layer, cfg.FEATURES.PRECISION)
        found.append(extract(
            network, part, transform, about, _cache(cfg), name=name, device=where,
            batch_size=cfg.FEATURES.BATCH_SIZE, workers=cfg.FEATURES.WORKERS,
        ))  # fmt: skip
    return found
