"""Exported programs find what the detector finds, at other sizes too; what one graph cannot hold is refused."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from momentum_transfer.core import errors
from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.detector_run import load_run
from momentum_transfer.transfer.export import write as exporting
from momentum_transfer.transfer.export.exported import load_exported
from momentum_transfer.transfer.export.write import DenseProgram, export
from momentum_transfer.transfer.torchvision_engine.structures import Sample
from tests.tools.in_process import run_tool
from tests.transfer.test_detector_run import write_run

#: A score that an untrained head gives to many boxes.
LOW = (
    "MODEL.RETINANET.SCORE_THRESH_TEST",
    "0.005",
    "MODEL.FCOS.SCORE_THRESH_TEST",
    "0.05",
    "TEST.DETECTIONS_PER_IMAGE",
    "15",
    "MODEL.ANCHOR_GENERATOR.SIZES",  # anchors that fit the images: rounding grows with them
    "[[8],[16],[32],[64],[128]]",
)

#: A .pt2 on its own: torch and torchvision, and nothing of this project.
ALONE = """
import json, sys
for name in ("momentum_transfer", "transfer"):
    sys.modules[name] = None  # importing it fails
import torch, torchvision
extras = {"momentum-transfer": ""}
program = torch.export.load(sys.argv[1], extra_files=extras).module()
wants = json.loads(extras["momentum-transfer"])
side = 3 * wants["multiple"]
boxes, scores, classes = program(torch.full((3, side, 2 * side), 127.0))
assert boxes.shape[1] == 4 and len(boxes) == len(scores) == len(classes) > 0 and len(wants["classes"]) == 3
print("ok")
"""


def images(count: int = 4) -> list[np.ndarray]:
    random = np.random.default_rng(3)
    sizes = [(64, 64), (50, 90), (200, 70), (90, 270)][:count]
    return [random.integers(0, 255, (*size, 3), dtype=np.uint8) for size in sizes]


@pytest.fixture(scope="module", params=["retinanet", "fcos"])
def run(request, tmp_path_factory):
    detector = load_run(write_run(tmp_path_factory.mktemp("run"), request.param, *LOW))
    network = detector.predictor.network
    with torch.no_grad():  # spread the scores of the untrained head, so that no order hangs on rounding
        features = network.backbone(network.batch([torch.rand(3, 64, 64) * 255])[0])
        logits = torch.cat(network.heads.head([features[name] for name in network.heads.levels])[0], dim=1)
        network.heads.head.cls_score.weight.mul_(1 / logits.std())
    return detector


def test_the_program_is_the_detector_bit_for_bit_before_it_is_traced(run):
    network = run.predictor.network
    program = DenseProgram(network, bgr=False)
    for image in (torch.from_numpy(picture.transpose(2, 0, 1).copy()) for picture in images(1)):
        with torch.no_grad():
            (expected,) = network([Sample(image, 0, *image.shape[1:])])
            boxes, scores, classes = program(image.float())
        assert len(expected) > 1
        assert torch.equal(boxes, expected.boxes)
        assert torch.equal(scores, expected.scores)
        assert torch.equal(classes, expected.classes)


def test_colours_may_come_in_the_other_order(run):
    network, image = run.predictor.network, torch.rand(3, 64, 64) * 255
    with torch.no_grad():
        one, other = DenseProgram(network, bgr=True)(image.flip(0)), DenseProgram(network, bgr=False)(image)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def _agrees(run, exported, given) -> None:
    for image in given:
        (expected,) = run.predict(image)
        boxes, scores, classes = exported.predict(image)
        assert len(expected) == len(boxes) > 0
        np.testing.assert_allclose(scores, expected.scores, atol=1e-5)
        np.testing.assert_allclose(boxes, expected.boxes, atol=1e-4)
        assert [exported.spec.classes[k] for k in classes] == list(expected.names)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["onnx", "pt2"])
def test_a_file_of_any_size_finds_what_the_detector_finds_at_other_sizes(run, kind, tmp_path):
    file = tmp_path / f"detector.{kind}"
    assert export(run, kind, file) <= 1e-4
    given, exported = images(), load_exported(file)
    if kind == "pt2":
        one_cell, given = given[0], given[2:]  # the second is 64 × 128 and one cell too
        with pytest.raises(InputError, match=r"found 64×64 after .* export with --size 64x64"):
            exported.predict(one_cell)
        done = subprocess.run([sys.executable, "-c", ALONE, file], cwd=tmp_path, capture_output=True, text=True)
        assert done.stdout.split() == ["ok"], done.stderr
    _agrees(run, exported, given)


@pytest.mark.slow
def test_a_program_of_one_size_takes_images_of_all_sizes(tmp_path):
    detector = load_run(write_run(tmp_path / "run", "retinanet", *LOW))
    export(detector, "pt2", tmp_path / "detector.pt2", size=(64, 64))
    exported = load_exported(tmp_path / "detector.pt2")
    assert exported.spec.category_ids == (10, 20, 30)
    prepared, inside = exported.spec.prepare(np.full((100, 50, 3), 7, dtype=np.uint8))
    assert prepared.shape == (3, 64, 64)
    assert inside == (64, 32)
    assert (prepared[:, :, :32] == 7).all()
    assert np.allclose(prepared[:, 5, 40], detector.cfg.MODEL.PIXEL_MEAN)
    boxes, scores, _ = exported.predict(np.full((100, 50, 3), 7, dtype=np.uint8))
    assert len(boxes) == len(scores) > 0
    assert boxes[:, [0, 2]].max() <= 50
    assert boxes[:, [1, 3]].max() <= 100


def test_a_program_that_finds_something_else_is_not_written(run, tmp_path, monkeypatch):
    class Moved(DenseProgram):
        def forward(self, image):
            boxes, scores, classes = super().forward(image)
            return boxes * 1.01, scores, classes

    monkeypatch.setattr(exporting, "DenseProgram", Moved)
    monkeypatch.setattr(exporting.torch.export, "export", lambda program, *rest, **more: program)
    monkeypatch.setattr(exporting, "_WRITERS", {"pt2": lambda program, wants, path: path.write_text("")})

    class Untraced:
        def __init__(self) -> None:
            self.spec = exporting._input_spec(run, None)

        def program(self, image):
            with torch.no_grad():
                return [v.numpy() for v in Moved(run.predictor.network, bgr=False)(torch.from_numpy(image))]

    monkeypatch.setattr(exporting, "load_exported", lambda path: Untraced())
    with pytest.raises(InputError, match="boxes differ by"):
        export(run, "pt2", tmp_path / "detector.pt2")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("detector", ["mask_rcnn", "stride16"])
def test_detectors_of_regions_and_segmenters_are_refused_with_the_reason(detector, tmp_path):
    folder = write_run(tmp_path / "run", detector)
    done = run_tool("export", "--detector", folder, "--format", "onnx", "--out", tmp_path / "out.onnx")
    assert done.returncode == 2
    assert "expected a RetinaNet or FCOS for --format onnx" in done.stderr
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--format", "torchvision", "--out", "detector.pth"), "these weights would find other boxes in them; use pt2"),
        (("--format", "onnx", "--out", "detector.pt2"), r"expected --out to end in .onnx"),
        (("--format", "pt2", "--out", "detector.pt2", "--size", "60x64"), "expected --size in multiples of 32"),
    ],
)
def test_what_does_not_fit_is_refused(words, message, tmp_path):
    done = run_tool("export", "--detector", write_run(tmp_path / "run", "fcos"), *words)
    assert done.returncode == 2
    assert message in done.stderr


def test_missing_packages_name_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(errors.EXTRAS, "no_such_runtime", "export")
    assert 'pip install "momentum-transfer[export]"' in str(errors.missing_package("onnxscript"))
    with pytest.raises(InputError, match="exported detector not found"):
        load_exported(tmp_path / "nowhere.onnx")
    (tmp_path / "bad.onnx").write_text("no graph")
    with pytest.raises(InputError, match=r"cannot read .*bad\.onnx as ONNX"):
        load_exported(tmp_path / "bad.onnx")
