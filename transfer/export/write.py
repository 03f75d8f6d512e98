"""Write a fine-tuned RetinaNet or FCOS as ONNX or torch.export program, and check that it computes the same.

The program is a function of one resized image: normalisation, network, the best of each level, suppression within
classes. An exported graph has no branches, so the best candidates of a level are taken first and those below the
threshold dropped at the end, after a suppression that lower scores cannot influence.
"""

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.fx.experimental._config
from torch import Tensor, nn
from torchvision.ops import nms

from momentum_transfer.core.errors import InputError, counted, extra
from momentum_transfer.core.files import atomic_path
from momentum_transfer.core.log import say, track, waiting, warn
from momentum_transfer.transfer.detector_run import DetectorRun
from momentum_transfer.transfer.export import exported as onnx_seal
from momentum_transfer.transfer.export.exported import ExportedDetector, InputSpec, load_exported
from momentum_transfer.transfer.export.pt2_archive import KEY
from momentum_transfer.transfer.prediction.input_images import as_pixels
from momentum_transfer.transfer.torchvision_engine import boxes as box_ops
from momentum_transfer.transfer.torchvision_engine.dense import DenseHeads, RetinaNet
from momentum_transfer.transfer.torchvision_engine.detectors import OneStage
from momentum_transfer.transfer.torchvision_engine.structures import Detections, Sample


class DenseProgram(nn.Module):
    """A dense detector for export.

    Args:
        detector: of the torchvision engine; it is set to evaluation.
        bgr: its network takes blue, green, red.
    """

    def __init__(self, detector: OneStage, bgr: bool) -> None:
        super().__init__()
        self.detector, self.bgr = detector.eval(), bgr
        heads = cast(DenseHeads, detector.heads)
        self.threshold, self.candidates = heads.score_threshold, heads.candidates
        self.nms_threshold, self.detections = heads.nms_threshold, heads.detections

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """RGB of 0 … 255, float32 [3, H, W], H and W multiples of the network's stride → boxes float32 [D, 4] (x1 y1 x2
        y2, in the pixels of ``image``, clipped), scores float32 [D], classes int64 [D], best first."""
        pixels = image.flip(0) if self.bgr else image
        x = ((pixels - self.detector.pixel_mean) / self.detector.pixel_std)[None]
        heads = cast(DenseHeads, self.detector.heads)
        features = self.detector.backbone(x)
        anchors, scores, offsets = self._predictions([features[name] for name in heads.levels])
        best = [self._best(a, s[0], o[0]) for a, s, o in zip(anchors, scores, offsets, strict=True)]
        boxes, values, classes = (torch.cat(column) for column in zip(*best, strict=True))
        # Boxes of different classes are moved apart, as in torchvision.ops.batched_nms.
        moved = boxes + (classes.to(boxes.dtype) * (boxes.max() + 1))[:, None]
        keep = nms(moved, values, self.nms_threshold)[: self.detections]
        boxes, values, classes = boxes[keep], values[keep], classes[keep]
        clipped = box_ops.clip(boxes, (image.shape[-2], image.shape[-1]))
        kept = torch.nonzero((values > self.threshold) & box_ops.nonempty(clipped)).squeeze(1)
        return clipped[kept], values[kept], classes[kept]

    def _predictions(self, maps: list[Tensor]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        heads = self.detector.heads
        if isinstance(heads, RetinaNet):
            logits, offsets = heads.head(maps)
            return heads.anchors(maps), [x.sigmoid() for x in logits], offsets
        logits, distances, centreness = heads.head(maps)
        scores = [torch.sqrt(x.sigmoid() * c.sigmoid()) for x, c in zip(logits, centreness, strict=True)]
        return heads.points(maps), scores, distances

    def _best(self, anchors: Tensor, scores: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The candidates of one level, whatever their scores."""
        flat = scores.flatten()
        values, place = flat.topk(torch.sym_min(flat.shape[0], self.candidates))
        cell, classes = place // scores.shape[1], place % scores.shape[1]
        return cast(DenseHeads, self.detector.heads).coder.decode(offsets[cell], anchors[cell]), values, classes


_BOX_TOLERANCE = 1e-4  # pixels, for each 100 pixels of the longer side or of the largest anchor: rounding
_SCORE_TOLERANCE = 1e-4
_OPSET = 18  # the version of ONNX's operators
_TRACED = (9, 13)  # sides of the example with which a program is traced, in multiples of its stride
_KEPT = ("val", "tensor_meta", "unbacked_bindings")  # what torch.export.save needs of a traced operation


def export(
    run: DetectorRun, kind: str, out: Path, *, size: tuple[int, int] | None = None, images: Sequence[Any] = ()
) -> float:
    """Write ``out`` and check it.

    Args:
        run: of the torchvision engine (Detectron2's weights load into it too).
        kind: ``onnx`` or ``pt2``.
        size: (height, width) for a program of one size; None: of any size, in multiples of the network's stride.
        images: to check the file with; synthetic ones if there are none.

    Returns:
        The largest difference of boxes from the detector's own, in pixels.

    Raises:
        InputError: the detector cannot be exported, torch cannot trace it, or the written program finds something else
            (``out`` is then not written).
    """
    network = _dense(run, kind)
    spec = _input_spec(run, size)
    program = DenseProgram(network, run.cfg.INPUT.FORMAT == "BGR")
    with atomic_path(out) as temporary:
        _write(kind, program, spec, temporary)
        found = check(run, network, load_exported(temporary), images)
    return found


def _dense(run: DetectorRun, kind: str) -> OneStage:
    if kind not in _WRITERS:
        raise InputError(f"expected a format among {', '.join(_WRITERS)}, found {kind!r}")
    network = getattr(run.predictor, "network", None)
    if not isinstance(network, OneStage):
        what = run.cfg.MODEL.META_ARCHITECTURE
        raise InputError(
            f"expected a RetinaNet or FCOS for --format {kind}, found {what}: one graph without branches holds dense "
            "detectors only; use `predict`, or fine-tune with configs/transfer/retinanet_1x.yaml"
        )
    return network.cpu()


def _input_spec(run: DetectorRun, size: tuple[int, int] | None) -> InputSpec:
    network: Any = run.predictor
    multiple = network.network.backbone.size_divisibility
    if size is not None and (min(size) < 1 or any(side % multiple for side in size)):
        raise InputError(f"expected --size in multiples of {multiple}, the network's stride, found {size[0]}×{size[1]}")
    mean = [float(value) for value in run.cfg.MODEL.PIXEL_MEAN]
    red, green, blue = mean[::-1] if run.cfg.INPUT.FORMAT == "BGR" else mean
    i = run.cfg.INPUT
    names, ids = run.classes.names, run.classes.ids
    return InputSpec(names, ids, i.MIN_SIZE_TEST, i.MAX_SIZE_TEST, multiple, (red, green, blue), size)


def _write(kind: str, program: DenseProgram, spec: InputSpec, path: Path) -> None:
    height, width = spec.size or (spec.multiple * _TRACED[0], spec.multiple * _TRACED[1])
    example = torch.full((3, height, width), 127.0)
    shapes: dict[str, Any] | None = None
    if spec.size is None:
        sides = (torch.export.Dim(name, min=1, max=4096 // spec.multiple) for name in ("rows", "columns"))
        shapes = {"image": {place: spec.multiple * side for place, side in enumerate(sides, start=1)}}
    if kind == "onnx":  # said before the tracing, which takes a while
        extra("onnx", "ONNX")
        extra("onnxscript", "ONNX")
        extra("onnxruntime", "checking an ONNX file")
    with _quietly(), torch.no_grad(), _any_sides():
        try:
            with waiting("tracing the detector"):
                traced = torch.export.export(program, (example,), dynamic_shapes=shapes)
            with waiting(f"writing it as {kind}"):
                _WRITERS[kind](traced, spec, path)
        except OSError:
            raise
        except Exception as error:  # torch's tracer and exporter raise many kinds
            hint = "" if spec.size else "; try one size, --size HEIGHTxWIDTH"
            first = (str(error).strip().splitlines() or [""])[0]
            raise InputError(f"torch cannot export this network: {type(error).__name__}: {first:.200}{hint}") from error


def _any_sides() -> contextlib.AbstractContextManager[Any]:
    """Feature maps of one row or column are traced too, if this version of torch can."""
    config: Any = torch.fx.experimental._config
    if not hasattr(config, "backed_size_oblivious"):
        return contextlib.nullcontext()
    patched: contextlib.AbstractContextManager[Any] = config.patch(backed_size_oblivious=True)
    return patched


def _write_pt2(traced: torch.export.ExportedProgram, spec: InputSpec, path: Path) -> None:
    for module in traced.graph_module.modules():  # what is left out names this machine's files and lines of code
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta = {key: node.meta[key] for key in _KEPT if key in node.meta}
    torch.export.save(traced, path, extra_files={KEY: spec.as_json()})


def _write_onnx(traced: torch.export.ExportedProgram, spec: InputSpec, path: Path) -> None:
    exported: Any = torch.onnx.export(
        traced, dynamo=True, opset_version=_OPSET, input_names=["image"], output_names=["boxes", "scores", "classes"],
        verbose=False,
    )  # fmt: skip
    exported.model.metadata_props[KEY] = spec.as_json()
    exported.model.metadata_props[onnx_seal.SEAL_KEY] = onnx_seal.BLANK
    exported.save(path, external_data=False)
    onnx_seal.seal(path)


_WRITERS: dict[str, Callable[[torch.export.ExportedProgram, InputSpec, Path], None]] = {
    "onnx": _write_onnx,
    "pt2": _write_pt2,
}


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the tracer's warnings of deprecated parts of itself."""
    noisy = [logging.getLogger(name) for name in ("onnxscript", "onnx_ir", "torch.onnx")]
    before = [logger.level for logger in noisy]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in noisy:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(noisy, before, strict=True):
                logger.setLevel(level)


def check(run: DetectorRun, network: OneStage, exported: ExportedDetector, images: Sequence[Any]) -> float:
    """The largest difference of boxes between an exported program and its detector, in pixels of resized images.

    InputError if they find different objects, or the same ones elsewhere.
    """
    worst, number, images = 0.0, 0, list(images) or _synthetic_images()
    for image in track(images, "checking the file on images"):
        prepared, inside = exported.spec.prepare(as_pixels(image))
        seen = exported.spec.size or inside  # a program of one size sees the padding too, so the detector is to
        pixels = torch.from_numpy(prepared[:, : seen[0], : seen[1]].copy())
        pixels = pixels.flip(0) if run.cfg.INPUT.FORMAT == "BGR" else pixels
        with torch.no_grad():
            (found,) = network([Sample(pixels, 0, *seen)])
        expected = _within(inside, found.boxes, found.scores, found.classes)
        actual = _within(inside, *(torch.from_numpy(np.array(values)) for values in exported.program(prepared)))
        worst = max(worst, _difference(expected, actual, max(*inside, _largest_anchor(network))))
        number += len(expected)
    if number == 0:
        warn("the detector finds nothing on the images of the check; give it some of yours, --check IMAGE")
    detections = counted(number, "detection")
    say(f"checked on {counted(len(images), 'image')}: {detections}, boxes differ by at most {worst:.2g} px")
    return worst


def _within(size: tuple[int, int], boxes: torch.Tensor, scores: torch.Tensor, classes: torch.Tensor) -> Detections:
    """Detections cut at the edges of an image of (height, width); those outside are left out."""
    boxes = box_ops.clip(boxes, size)
    kept = box_ops.nonempty(boxes)
    return Detections(boxes[kept], scores[kept], classes[kept])


def _largest_anchor(network: OneStage) -> float:
    """Its longer side in pixels; 0 for a detector without anchors."""
    if not isinstance(network.heads, RetinaNet):
        return 0.0
    return max(float((cells[:, 2:] - cells[:, :2]).max()) for cells in network.heads.anchors.buffers())


def _synthetic_images() -> list[np.ndarray]:
    """Images of coloured blocks on noise, landscape and portrait."""
    random = np.random.default_rng(0)
    images = []
    for height, width in ((80, 200), (210, 90)) * 2:
        pixels = random.integers(0, 80, (height, width, 3))
        for _ in range(6):
            y, x = int(random.integers(0, height - 8)), int(random.integers(0, width - 8))
            tall, wide = random.integers(8, 48, 2)
            pixels[y : y + tall, x : x + wide] = random.integers(100, 255, 3)
        images.append(pixels.astype(np.uint8))
    return images


def _difference(expected: Detections, actual: Detections, side: float) -> float:
    """Largest difference of boxes; of detections of nearly one score either may come first."""
    if len(actual) != len(expected):
        raise InputError(f"the exported program finds {len(actual)} objects, not {len(expected)}; please report it")
    free = torch.ones(len(actual), dtype=torch.bool)
    worst = 0.0
    for box, score, label in zip(expected.boxes, expected.scores, expected.classes, strict=True):
        fits = free & (actual.classes == label) & ((actual.scores - score).abs() <= _SCORE_TOLERANCE)
        if not fits.any():
            raise InputError(f"the exported program lacks a detection of score {float(score):.4f}; please report it")
        gaps = torch.where(fits, (actual.boxes - box).abs().amax(dim=1), torch.inf)
        free[gaps.argmin()] = False
        worst = max(worst, float(gaps.min()))
    if worst > _BOX_TOLERANCE * max(1.0, side / 100):
        raise InputError(f"the exported program's boxes differ by {worst:.2g} pixels; please report it")
    return worst
