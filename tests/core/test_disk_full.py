"""On a full disk every format ends in one error that names the file that was meant, and leaves no part of it."""

import errno
import resource

import matplotlib.figure
import numpy as np
import PIL.Image
import pytest

from momentum_transfer.backbones import convert
from momentum_transfer.backbones.convert import backbone_state, export_backbone
from momentum_transfer.backbones.resnet import Architecture, build_resnet
from momentum_transfer.core import records
from momentum_transfer.core.checkpoints import CheckpointFolder
from momentum_transfer.core.files import atomic_path
from momentum_transfer.core.loggers import Metrics, read

ARCHITECTURE = Architecture("resnet18", 16, "imagenet")
NETWORK = build_resnet(ARCHITECTURE)
RECORD = records.make_record("knn/k=20", "top1", 1.0, checkpoint={"name": "x" * 300, "sha256": ""})
NOISE = np.random.default_rng(0).random((300, 300, 3))


@pytest.fixture(params=[60_000, 4096])
def little_space(request):
    """No file grows beyond so many bytes: what a quota does, and a full disk with another number."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (request.param, old[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, old)


def save(path, write):
    with atomic_path(path) as temporary:
        write(temporary)


def figure(path):
    drawn = matplotlib.figure.Figure()
    drawn.add_subplot().imshow(NOISE)
    drawn.savefig(path, dpi=200)


WRITERS = {
    "a.pkl": lambda path: convert.write(path, backbone_state(NETWORK), ARCHITECTURE, {}),
    "a.pth": lambda path: convert.write(path, backbone_state(NETWORK), ARCHITECTURE, {}),
    "a.safetensors": lambda path: convert.write(path, backbone_state(NETWORK), ARCHITECTURE, {}),
    "backbone.safetensors": lambda path: export_backbone(path, NETWORK, {}),
    "step_0000003.pt": lambda path: CheckpointFolder(path.parent).save(3, {"model": backbone_state(NETWORK)}),
    "a.npy": lambda path: save(path, lambda file: np.save(file, NOISE)),
    "a.npz": lambda path: save(path, lambda file: np.savez_compressed(file, a=NOISE)),
    "a.png": lambda path: save(path, PIL.Image.fromarray((NOISE * 255).astype(np.uint8)).save),
    "figure.png": lambda path: save(path, figure),
}


@pytest.mark.parametrize("name", WRITERS)
def test_the_file_that_was_meant_is_named_and_nothing_of_it_stays(name, tmp_path, little_space):
    little_space()
    with pytest.raises(OSError, match=r"File too large|No space") as raised:
        WRITERS[name](tmp_path / name)
    assert raised.value.filename == str(tmp_path / name)
    assert raised.value.errno == (errno.ENOSPC if name == "a.npy" else errno.EFBIG)  # numpy does not tell the number
    assert list(tmp_path.iterdir()) == []


def test_of_records_that_do_not_fit_none_is_written(tmp_path, little_space):
    path = tmp_path / "results.jsonl"
    records.append(path, [RECORD])
    little_space()
    with pytest.raises(OSError, match="File too large") as raised:
        records.append(path, [RECORD] * 200)
    assert raised.value.filename == str(path)
    assert records.read(path) == ([RECORD], [])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # TensorBoard's
def test_a_line_of_figures_that_does_not_fit_leaves_whole_lines(tmp_path, little_space):
    little_space()
    with pytest.raises(OSError, match="File too large") as raised, Metrics(tmp_path) as metrics:
        for step in range(1, 1000):
            metrics.write(step, {"a" * 500: 1.0})
    assert raised.value.filename in {str(tmp_path / "metrics.jsonl"), str(tmp_path)}  # or TensorBoard's file in it
    text = (tmp_path / "metrics.jsonl").read_text()
    assert text.endswith("}\n")
    assert len(read(tmp_path / "metrics.jsonl")) == text.count("\n") > 3
