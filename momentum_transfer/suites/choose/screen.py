"""Ranks candidates without training: features of some training images, computed once, and closed-form measures of them.

Of detection sets the features are those of regions, pooled from the last two maps by RoIAlign: labelled boxes, and as
many boxes of the same sizes beside them as a class "background", so that a set of one class can be ranked too. What
LogME says of classes and of the boxes' coordinates is averaged, the idea of TLogME (Fouquet et al., arXiv 2306.15306)
and Det-LogME (Wang et al., arXiv 2403.09432, which matches boxes to a detector's pyramid instead).

The interval of a rank is the middle 95 % over resamples of the images, the same for all candidates. Means over images
are bootstrapped. Other measures are computed on random halves: their variance, 2/N − 1/N, is a bootstrap's, and no
image is there twice (LogME of D ≥ N features grows without bound). LiDAR is not resampled: its interval has no width.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import PIL.Image
import torch
from scipy.stats import rankdata
from torch import Tensor
from torchvision.ops import box_iou, roi_align

from momentum_transfer.backbones.build import own_input
from momentum_transfer.backbones.network_input import NetworkInput
from momentum_transfer.backbones.read import load_backbone
from momentum_transfer.backbones.source import SourceBackbone
from momentum_transfer.backbones.timm_network import TimmBackbone
from momentum_transfer.core.devices import choose_device
from momentum_transfer.core.errors import InputError, counted
from momentum_transfer.core.log import speaking, track, warn
from momentum_transfer.images.class_folders import LabelledFiles
from momentum_transfer.images.reading import read_rgb
from momentum_transfer.images.views import eval_transform
from momentum_transfer.lowshot import transferability
from momentum_transfer.lowshot.augment import SeededView, weak_view
from momentum_transfer.lowshot.features.extract import StageFeatures, compute
from momentum_transfer.lowshot.features.feature_set import FeatureSet, check, check_vary
from momentum_transfer.lowshot.transferability import HITS, LABELLED, UNLABELLED, logme
from momentum_transfer.report.tables import CellView, RowView, TableView
from momentum_transfer.suites.choose.stages import Candidate
from momentum_transfer.transfer.data.annotations import DetectionData

BOXES = "box_logme"
#: The measures in the order of the table. The first that there is decides, unless --measure names another: LogME alone
#: had a Kendall's τ of about .5 with fine-tuning both of images and of regions (`study screen`).
ORDER = ("logme", "knn", "h_score", "linear", "h_score_shrunk", BOXES, "transrate", "cluster_learnability", "rankme",
         "lidar", "alpha_req")  # fmt: skip
#: Images that are measured, at most, and regions, in half as many images; LiDAR's images, and views of each.
MOST_IMAGES, MOST_REGIONS, _VIEWS = 300, 300, (50, 2)
#: Side of the images, in pixels, where neither the user nor the network fixes it. RoIAlign's grid a region.
SIDE = {"images": 128, "regions": 192}
_GRID, _BATCH, _KEPT, RESAMPLES = 2, 32, 512, 200


@dataclass(frozen=True)
class Sample:
    """What is measured."""

    images: tuple[PIL.Image.Image, ...]
    labels: np.ndarray  # [R] class numbers
    rows: np.ndarray  # [R]: of which image each row is
    classes: int  # of the labels; a region of the background has this number
    boxes: np.ndarray | None = None  # [R, 4], fractions of the image's sides
    small: bool = False  # images are taken whole, however they are shaped, and not by their centre


def sample_of_files(files: LabelledFiles, seed: int) -> Sample:
    """Up to ``MOST_IMAGES`` images, as many of each class as there are; InputError where all are one."""
    labels = np.asarray(files.labels)
    order = np.random.default_rng(seed).permutation(len(labels))
    turn = np.empty(len(labels), dtype=int)  # how many of its class come before an image
    for label in np.unique(labels):
        turn[order[labels[order] == label]] = np.arange((labels == label).sum())
    kept = np.sort(order[np.argsort(turn[order], kind="stable")][:MOST_IMAGES])
    images = read_images([files.paths[row] for row in kept])
    return Sample(images, labels[kept], np.arange(len(kept)), len(files.classes))


def sample_of_boxes(data: DetectionData, seed: int) -> Sample:
    """Up to ``MOST_REGIONS`` regions: labelled boxes, and as many of the background beside them."""
    random, content = np.random.default_rng(seed), data.load()
    of_image: dict[int, list[tuple[list[float], int]]] = {}
    for entry in content["annotations"]:
        if not entry.get("iscrowd") and min(entry["bbox"][2:]) > 0:
            place = data.category_ids.index(entry["category_id"])
            of_image.setdefault(entry["image_id"], []).append((entry["bbox"], place))
    found = [image for image in content["images"] if image["id"] in of_image]
    kept = [found[row] for row in np.sort(random.permutation(len(found))[: MOST_REGIONS // 2])]
    if len(kept) < 2:
        raise InputError(f"expected boxes on two images or more, found them on {counted(len(kept), 'image')}")
    each = max(1, MOST_REGIONS // (2 * len(kept)))
    regions: list[tuple[np.ndarray, int, int]] = []
    for row, image in enumerate(kept):
        scale = np.array([image["width"], image["height"]] * 2, dtype=np.float64)
        boxes = np.array([box for box, _ in of_image[image["id"]]]) / scale
        boxes[:, 2:] += boxes[:, :2]
        for index in random.permutation(len(boxes))[:each]:
            regions.append((boxes[index], of_image[image["id"]][index][1], row))
            beside = _beside(boxes, boxes[index], random)
            regions += [(beside, len(data.classes), row)] if beside is not None else []
    places, labels, rows = (np.array(column) for column in zip(*regions, strict=True))
    images = read_images([data.image_path(image) for image in kept])
    return Sample(images, labels, rows, len(data.classes), places, small=True)


def _beside(boxes: np.ndarray, like: np.ndarray, random: np.random.Generator) -> np.ndarray | None:
    """A place for a box of that size that covers little of any box [B, 4]; None where ten tries find none."""
    size = np.minimum(like[2:] - like[:2], 1.0)
    for _ in range(10):
        corner = random.random(2) * (1 - size)
        place = np.concatenate([corner, corner + size])
        if float(box_iou(torch.from_numpy(place[None]), torch.from_numpy(boxes)).max()) < 0.2:
            return place
    return None


def read_images(paths: Sequence[Path]) -> tuple[PIL.Image.Image, ...]:
    """The images, none larger than is needed; InputError where all are one."""
    images = []
    for path in track(paths, "reading images"):
        images.append(read_rgb(path))
        images[-1].thumbnail((_KEPT, _KEPT))
    if len(images) > 1 and len({(image.size, image.tobytes()) for image in images}) == 1:
        raise InputError(f"expected images that differ, found the same {len(images)} times; check --train for copies")
    return tuple(images)


@dataclass(frozen=True)
class Measured:
    """A candidate: its measures, the outcomes a row of those that are their mean, and its features."""

    values: Mapping[str, float]
    hits: Mapping[str, np.ndarray]
    features: np.ndarray


def measure(source: SourceBackbone, sample: Sample, side: int | None = None) -> Measured:
    """All measures of a network; fractions of rows are in percent.

    InputError: it has no maps for regions, or its features are not finite or the same for all images.
    """
    features, views = _features(source, sample, side)
    rows = features.astype(np.float64)
    hits = {name: each(rows, sample.labels) for name, each in HITS.items()}
    values = {name: 100 * float(each.mean()) for name, each in hits.items()}
    computed = (*LABELLED, *UNLABELLED, *[BOXES] * (sample.boxes is not None))
    values |= {name: _value(name, rows, sample, np.arange(len(rows))) for name in computed}
    if sample.boxes is None:
        values["lidar"] = transferability.lidar(views)
    return Measured({name: values[name] for name in ORDER if name in values}, hits, rows)


def _value(name: str, features: np.ndarray, sample: Sample, rows: np.ndarray) -> float:
    """A measure that is no mean over rows, of these rows [r] of the sample."""
    if name in UNLABELLED:
        return UNLABELLED[name](features[rows])
    if name != BOXES or sample.boxes is None:
        return LABELLED[name](features[rows], sample.labels[rows])
    objects = sample.labels < sample.classes
    places = (sample.boxes - sample.boxes[objects].mean(axis=0)) / np.maximum(sample.boxes[objects].std(axis=0), 1e-12)
    classes, rows = LABELLED["logme"](features[rows], sample.labels[rows]), rows[objects[rows]]
    return (classes + logme(features[rows], places[rows])) / 2


def _features(
    source: SourceBackbone, sample: Sample, side: int | None, views: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """[R, D] of the rows, finite and not all the same, and of views [n, q, D] where rows are images."""
    where, own = choose_device(), own_input(source.architecture)
    whole, regions = StageFeatures(source.build()).to(where), sample.boxes is not None
    network: Callable[[Tensor], Tensor] = whole
    spec = (own or NetworkInput())._replace(size=side or SIDE["regions" if regions else "images"])
    try:
        compute(whole, torch.zeros(1, 3, spec.size, spec.size), "fp32", where)
    except InputError:  # a network that takes its own size only
        spec = spec._replace(size=own.size if own else spec.size)
    if regions:
        network = _Regions(whole, sample, spec.size)
    kind = "digits" if sample.small else "imagefolder"
    plain = eval_transform(kind, spec.size, spec.mean, spec.std, interpolation=spec.interpolation)

    def run(transform: Callable[[PIL.Image.Image], Tensor], images: Sequence[PIL.Image.Image]) -> np.ndarray:
        batches = (torch.stack(list(map(transform, images[k : k + _BATCH]))) for k in range(0, len(images), _BATCH))
        return np.concatenate([compute(network, batch, "fp32", where).cpu().numpy() for batch in batches])

    features = run(plain, sample.images)
    found = FeatureSet(features, np.arange(len(features)), source.name, source.sha256)
    check(found)
    check_vary(found)
    if regions or not views:
        return features, np.empty(0)
    view = weak_view(kind, spec.size, spec.mean, spec.std)
    few = sample.images[:: -(-len(sample.images) // _VIEWS[0])]
    return features, np.stack([run(SeededView(view, number), few) for number in range(_VIEWS[1])], axis=1)


class _Regions:
    """Images in the sample's order -> features [R, D] of their regions, from the last two maps of the network."""

    channels_last = False

    def __init__(self, network: StageFeatures, sample: Sample, side: int) -> None:
        self.backbone, self.sample, self.side, self.seen = network.backbone, sample, side, 0

    def __call__(self, images: Tensor) -> Tensor:
        rows, boxes = self.sample.rows, self.sample.boxes
        assert boxes is not None
        here = (rows >= self.seen) & (rows < self.seen + len(images))
        numbered = np.column_stack([rows[here] - self.seen, boxes[here] * self.side])
        places = torch.from_numpy(numbered).to(images)
        self.seen += len(images)
        if isinstance(self.backbone, TimmBackbone) and self.backbone.plain:
            maps = [self.backbone.tokens(images)[-1][1]]
        else:
            maps = [value for name, value in self.backbone.stages(images).items() if name != "pooled"][-2:]
        return torch.cat([
            roi_align(each.float(), places, _GRID, each.shape[-1] / self.side, 2, aligned=True).mean(dim=(2, 3))
            for each in maps
        ], dim=1)  # fmt: skip


def check_features(source: SourceBackbone, images: Sequence[PIL.Image.Image]) -> None:
    """InputError where a network's features of a few images are not finite, or the same for all of them."""
    rows = np.arange(len(images))
    _features(source, Sample(tuple(images), rows, rows, 0), None, views=False)


def screen(
    candidates: Sequence[Candidate], sample: Sample, side: int | None = None, by: str = "", seed: int = 0
) -> "Screen":
    """The candidates ranked, each read anew so that one is in memory; those that give no features are left out."""
    measured, left_out = {}, []
    for one in track(candidates, f"measures of {counted(len(sample.images), 'image')}"):
        try:
            with speaking(quiet=True):
                source = load_backbone(one.weights)
            measured[one.name] = measure(source, sample, side)
        except InputError as error:
            left_out.append(f"{one.name} is left out, because it cannot be used: {error}")
            warn(left_out[-1])
    if not measured:
        raise InputError(f"expected features of one candidate at least, found none; {left_out[0]}")
    return replace(rank(measured, sample, by, seed), left_out=left_out)


@dataclass(frozen=True)
class Screen:
    """Candidates by name, best first: measures, and the rank with its interval by the one that decided."""

    measure: str
    values: dict[str, dict[str, float]]
    ranks: dict[str, tuple[float, float, float]]
    left_out: list[str] = field(default_factory=list)  # sentences on candidates that gave no features

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Headings, and a row a candidate: rank, its interval, measures."""
        return ("candidate", "rank", "95 %", *next(iter(self.values.values()))), [
            (name, f"{rank:g}", f"{low:.0f} to {high:.0f}", *(f"{value:.4g}" for value in self.values[name].values()))
            for name, (rank, low, high) in self.ranks.items()
        ]

    def view(self) -> TableView:
        """The table for the page."""
        caption = f"Higher is better. The rank is by {self.measure}, with the middle 95 % over resampled images."
        columns, rows = self.table()
        lines = tuple(RowView(name, "ours", tuple(map(CellView, cells))) for name, *cells in rows)
        return TableView("Ranked without training", caption, columns[0], columns[1:], lines)

    def sentence(self) -> str:
        """What the ranking says."""
        best, *others = self.ranks
        near = [name for name in others if self.ranks[name][1] <= self.ranks[best][2]]
        beside = f"; {', '.join(near)} may be as good by the intervals" if near else ""
        hint = "A hint: no measure is shown to order weights as fine-tuning does (study screen); --minutes trains them."
        return f"Ranked without training by {self.measure}: {best} first{beside}. {hint}"


def rank(measured: Mapping[str, Measured], sample: Sample, by: str = "", seed: int = 0) -> Screen:
    """The ranking by the measure ``by`` ("": the first of ``ORDER`` that there is); InputError for an unknown one."""
    known = list(next(iter(measured.values())).values)
    by = by or known[0]
    if by not in known:
        raise InputError(f"expected --measure of {', '.join(known)}, found {by}")
    values = np.array([one.values[by] for one in measured.values()])
    random, count = np.random.default_rng(seed), len(sample.images)
    drawn = []
    for _ in range(RESAMPLES if by in HITS else RESAMPLES // 4):
        if by in HITS:
            weights = np.bincount(random.integers(0, count, count), minlength=count)[sample.rows]
            drawn.append([float(weights @ one.hits[by]) for one in measured.values()])
            continue
        half = np.flatnonzero(np.isin(sample.rows, random.permutation(count)[: -(-count // 2)]))
        drawn.append([one.values[by] if by == "lidar" else _value(by, one.features, sample, half)
                      for one in measured.values()])  # fmt: skip
    low, high = np.percentile(rankdata(-np.array(drawn), axis=1), (2.5, 97.5), axis=0)
    order = sorted(zip(measured, rankdata(-values), low, high, strict=True), key=lambda row: row[1])
    ranks = {name: (float(a), float(b), float(c)) for name, a, b, c in order}
    return Screen(by, {name: dict(measured[name].values) for name in ranks}, ranks)
