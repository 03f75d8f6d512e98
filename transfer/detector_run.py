"""A finished run as a detector: settings, weights, class names and engine, and predictions on images in memory."""

import functools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from fvcore.common.config import CfgNode

from momentum_transfer.core.errors import InputError, counted, shown
from momentum_transfer.core.files import sha256_of, write_text
from momentum_transfer.core.log import say
from momentum_transfer.core.untrusted import read_json
from momentum_transfer.transfer import config
from momentum_transfer.transfer.data.annotations import DetectionData
from momentum_transfer.transfer.data.few_shot import FewShot
from momentum_transfer.transfer.data.semantic_datasets import SemanticData
from momentum_transfer.transfer.detectron2_engine.engine import Detectron2Engine
from momentum_transfer.transfer.experiment import Engine, Predictor
from momentum_transfer.transfer.initial_weights import (
    WEIGHTS,
    InitialWeights,
    read_detector,
    read_initial,
    trained_weights,
)
from momentum_transfer.transfer.prediction.input_images import as_pixels
from momentum_transfer.transfer.torchvision_engine.engine import TorchvisionEngine
from momentum_transfer.transfer.torchvision_engine.structures import Detections

#: Files of a run: its settings, and the names of its classes.
CONFIG, CLASSES = "config.yaml", "classes.json"


@dataclass(frozen=True)
class RunClasses:
    """Output k of a network is the class ``names[k]``, whose id in result files is ``ids[k]``."""

    names: tuple[str, ...]
    ids: tuple[int, ...]
    title: str = ""  # of the data that it was trained on
    engine: str = ""  # which one trained it


def classes_of(data: DetectionData | SemanticData, engine: str = "") -> RunClasses:
    """The classes of a data set; those of label images are numbered from 0."""
    ids = data.category_ids if isinstance(data, DetectionData) else tuple(range(len(data.classes)))
    return RunClasses(tuple(data.classes), tuple(ids), getattr(data, "title", "") or data.name, engine)


def write_classes(folder: Path, classes: RunClasses) -> None:
    """Write ``classes.json`` into a run's folder."""
    pairs = zip(classes.ids, classes.names, strict=True)
    listed = [{"id": identity, "name": name} for identity, name in pairs]
    content = {"title": classes.title, "engine": classes.engine, "classes": listed}
    write_text(folder / CLASSES, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def read_classes(folder: Path) -> RunClasses:
    """What ``write_classes`` wrote; InputError if the file is damaged."""
    file = folder / CLASSES
    try:
        content = read_json(file, "the classes of a run")
        names = tuple(str(entry["name"]) for entry in content["classes"])
        ids = tuple(int(entry["id"]) for entry in content["classes"])
        return RunClasses(names, ids, str(content.get("title", "")), str(content.get("engine", "")))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise InputError(
            f"expected the classes of a run in {file}, found something else ({error}); it holds "
            '{"title": …, "classes": [{"id": 1, "name": …}, …]}'
        ) from error


@dataclass(frozen=True)
class Found:
    """What a detector found in one image, best score first.

    boxes: float64 [D, 4], x1 y1 x2 y2 in the image's pixels. scores: [D]. names, category_ids: the class of each.
    masks: bool [D, H, W], or None if the detector makes none. labels: uint8 [H, W], the class of every pixel, for
    semantic segmentation, where the rest is empty.
    """

    boxes: np.ndarray
    scores: np.ndarray
    names: tuple[str, ...]
    category_ids: tuple[int, ...]
    masks: np.ndarray | None = None
    labels: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.scores)


@dataclass(frozen=True)
class DetectorRun:
    """A fine-tuned detector, ready to predict."""

    weights: Path  # its file
    cfg: CfgNode = field(repr=False)  # its settings, with the device and engine of this machine
    engine: Engine = field(repr=False)  # which one runs it
    classes: RunClasses

    @property
    def task(self) -> str:
        """``detection`` or ``segmentation``."""
        return config.task_name(self.cfg)

    @functools.cached_property
    def sha256(self) -> str:
        """Of the weights' file."""
        return sha256_of(self.weights)

    @functools.cached_property
    def initial(self) -> InitialWeights:
        """The weights, read once."""
        return InitialWeights(str(self.weights), self.sha256, detector=read_detector(self.weights))

    @functools.cached_property
    def predictor(self) -> Predictor:
        """The network, built once."""
        return self.engine.predictor(self.cfg, self.initial)

    def predict(self, images: Any, *, threshold: float = 0.0, batch_size: int = 1) -> list[Found]:
        """What is in each image, in their order.

        Args:
            images: one or several, of any sizes: a path, a Pillow image, an array [H, W, 3] or [H, W] or a tensor
                [3, H, W] of uint8 in RGB or grey.
            threshold: detections of a lower score are left out; 0 keeps all that the detector gives.
            batch_size: images that go through the network together where they have one size.

        Raises:
            InputError: an image cannot be read or is of another form.
        """
        return list(self.stream(_several(images), threshold=threshold, batch_size=batch_size))

    def stream(self, images: Iterable[Any], *, threshold: float = 0.0, batch_size: int = 1) -> Iterator[Found]:
        """``predict``, one result after another: no more than ``batch_size`` images are in memory."""
        if batch_size < 1:
            raise InputError(f"expected a batch size of at least 1, found {batch_size}")
        batch: list[np.ndarray] = []
        for image in images:
            batch.append(as_pixels(image))
            if len(batch) == batch_size:
                yield from self._run(batch, threshold)
                batch = []
        if batch:
            yield from self._run(batch, threshold)

    def _run(self, batch: Sequence[np.ndarray], threshold: float) -> Iterator[Found]:
        for one in self.predictor(batch):
            if isinstance(one, Detections):
                yield self._found(one.select(one.scores >= threshold))
            else:
                yield Found(np.zeros((0, 4)), np.zeros(0), (), (), labels=one)

    def _found(self, found: Detections) -> Found:
        boxes = found.boxes.cpu().numpy().astype(np.float64)
        labels = found.classes.tolist()
        masks = None if found.masks is None else found.masks.cpu().numpy()
        names = tuple(self.classes.names[label] for label in labels)
        ids = tuple(self.classes.ids[label] for label in labels)
        return Found(boxes, np.array(found.scores.tolist(), dtype=np.float64), names, ids, masks)


def load_run(run: str | Path, *, engine: str = "", device: str = "auto") -> DetectorRun:
    """A finished run of either engine.

    Args:
        run: the OUTPUT_DIR of ``transfer`` (of several trials one, ``RUN/trial_0``), or a ``model_*.pth`` in it.
        engine: ``torchvision`` or ``detectron2``; "": the one that trained it where it is installed, else the other.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``; the run may have been trained on another.

    Raises:
        InputError: there is no such run, it is not finished or damaged, or the engine or device is not there.
    """
    weights = _weights_of(Path(run))
    for name in (CONFIG, CLASSES):
        if not weights.with_name(name).is_file():
            raise InputError(f"expected {name} beside {weights}, found none; give the folder that `transfer` wrote")
    cfg = config.load(weights.with_name(CONFIG), ["MODEL.DEVICE", device, "SOLVER.AMP.ENABLED", "False"])
    classes = read_classes(weights.parent)
    key, count = config.num_classes(cfg)
    if len(classes.names) != count:
        found = len(classes.names)
        raise InputError(f"expected the {counted(count, 'class')} of {key} in {weights.parent}, found {found}")
    return DetectorRun(weights, cfg, _engine(cfg, engine, classes.engine), classes)


def _weights_of(run: Path) -> Path:
    if run.is_file():
        if run.suffix != ".pth":
            raise InputError(f"expected the folder of a finished run or its {WEIGHTS}, found {run}")
        return run
    if not run.is_dir():
        raise InputError(f"run not found: {run}; give the OUTPUT_DIR of a finished `transfer`")
    return trained_weights(run)


def choose_engine(name: str, cfg: CfgNode) -> tuple[Engine, str]:
    """The engine to use, and one sentence that says why.

    Args:
        name: ``auto``, ``detectron2`` or ``torchvision``. ``auto`` takes Detectron2 where it imports and can run the
            config, because it is the papers' own code, and torchvision otherwise.

    Raises:
        InputError: the name is unknown, or no engine that may be used can run the config.
    """
    engines: dict[str, Engine] = {"detectron2": Detectron2Engine(), "torchvision": TorchvisionEngine()}
    if name != "auto":
        if name not in engines:
            raise InputError(f"expected an engine among auto, {', '.join(engines)}, found {name!r}")
        if reason := engines[name].unsupported(cfg):
            raise InputError(f"the {name} engine cannot run this config: {reason}")
        return engines[name], f"engine {name}, as asked"
    reason = engines["detectron2"].unsupported(cfg)
    if reason is None:
        return engines["detectron2"], "engine detectron2: it is installed and runs this config"
    if other := engines["torchvision"].unsupported(cfg):
        raise InputError(f"no engine can run this config: detectron2: {reason}; torchvision: {other}")
    return engines["torchvision"], f"engine torchvision, because detectron2 cannot be used: {reason}"


def _engine(cfg: CfgNode, asked: str, trained: str) -> Engine:
    if asked:
        return choose_engine(asked, cfg)[0]
    if trained:
        try:
            return choose_engine(trained, cfg)[0]
        except InputError as error:
            say(f"{error}; the other engine computes the same")
    return choose_engine("auto", cfg)[0]


def _several(images: Any) -> Iterable[Any]:
    """One image is a list of one; a 4-dimensional array or tensor and a list are several."""
    if isinstance(images, (str, Path)) or getattr(images, "ndim", 4) < 4 or hasattr(images, "getbbox"):
        return [images]
    return images


def few_shot_weights(initial: InitialWeights, cfg: CfgNode, classes: Sequence[str], weights: str) -> InitialWeights:
    """``initial`` with the places of its classes among ``classes``, those of the few-shot stage that is trained.

    Without ``classes.json`` beside ``weights`` the detector is taken to know the base classes, in their order.
    InputError if it knows novel classes already, or others than the base classes, or is none.
    """
    few_shot, last = FewShot.of(cfg), cfg.FEW_SHOT.TRAINED == "last"
    if few_shot is None or few_shot.stage == "base":
        return initial
    if not initial.detector and last:
        raise InputError("expected a detector of the stage base (model_final.pth) as --weights with FEW_SHOT.TRAINED "
                         f"last, found {initial.name}; train one with FEW_SHOT.STAGE base")  # fmt: skip
    parts = few_shot.parts(classes)
    known = _names_beside(weights) or parts["base"]
    if not initial.detector or known == tuple(classes):  # a backbone, or a detector that has been through this stage
        return initial
    if both := [name for name in known if name in few_shot.novel]:
        raise InputError(f"expected novel classes that {weights} does not know, found {shown(both[0])} among its base "
                         "classes; train the base stage without it, or leave it out of FEW_SHOT.NOVEL")  # fmt: skip
    if few_shot.stage == "novel":
        return replace(initial, places=(), rest=tuple(range(len(classes))))
    if odd := sorted(set(known) ^ set(parts["base"])):
        raise InputError(f"expected a detector of the base classes {', '.join(parts['base'])} in {weights}, found one "
                         f"that differs in {shown(odd[0])}; give the one of the base stage of these data")  # fmt: skip
    places, rest = (tuple(map(list(classes).index, names)) for names in (known, parts["novel"]))
    second = cfg.FEW_SHOT.NOVEL_WEIGHTS
    novel = read_initial(second, cfg).detector if second else {}
    names = _names_beside(second) or parts["novel"] if novel else ("a backbone",)
    if second and names != parts["novel"]:
        raise InputError(f"expected the novel classes {', '.join(parts['novel'])} in {second}, found "
                         f"{', '.join(names)}; train it with FEW_SHOT.STAGE novel")  # fmt: skip
    return replace(initial, places=places, rest=rest, novel=novel)


def _names_beside(weights: str) -> tuple[str, ...]:
    """The classes that a run noted beside its weights; none where it did not."""
    folder = Path(weights) if Path(weights).is_dir() else Path(weights).parent
    return read_classes(folder).names if (folder / CLASSES).is_file() else ()
