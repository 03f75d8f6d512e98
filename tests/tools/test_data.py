"""Data sets by name: small files in the published formats, the download function replaced; no network is used."""

import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from torchvision import datasets

from momentum_transfer.core.records import read
from momentum_transfer.images import published
from momentum_transfer.images.datasets import build_dataset
from momentum_transfer.images.published import Licensed, Part
from tests.tools.in_process import run_tool

TINY = ["DATA.IMAGE_SIZE", 28, "MODEL.WIDTH", 4, "HEAD.HIDDEN", 16, "HEAD.OUTPUT", 8, "SOLVER.BATCH_SIZE", 8]


def idx_files(count: int) -> tuple[dict[str, bytes], np.ndarray, np.ndarray]:
    """The four files of an MNIST-like set of ``count`` images a split, as published: idx, gzipped."""
    rng = np.random.default_rng(0)
    labels = np.arange(count, dtype=np.uint8) % 10
    pixels = rng.integers(0, 40, (count, 28, 28), dtype=np.uint8) + 20 * labels[:, None, None]
    files = {}
    for part in ("train", "t10k"):
        files[f"{part}-images-idx3-ubyte.gz"] = gzip.compress(
            struct.pack(">4i", 2051, count, 28, 28) + pixels.tobytes()
        )
        files[f"{part}-labels-idx1-ubyte.gz"] = gzip.compress(struct.pack(">2i", 2049, count) + labels.tobytes())
    return files, pixels, labels


@pytest.fixture
def served(monkeypatch):
    """name of a file -> bytes, served in the network's place; and what was asked for."""
    files: dict[str, bytes] = {}
    asked: list[str] = []

    def retrieve(url, filename, *_):
        name = url.rpartition("/")[2]
        asked.append(name)
        Path(filename).write_bytes(files[name])

    monkeypatch.setattr("torchvision.datasets.utils._urlretrieve", retrieve)
    monkeypatch.setattr("torchvision.datasets.utils._get_redirect_url", lambda url, **_: url)
    monkeypatch.setattr("momentum_transfer.images.published.reachable", lambda address: True)
    return files, asked


@pytest.fixture
def fashion(served, monkeypatch):
    files, pixels, labels = idx_files(60)
    served[0].update(files)
    checked = [(name, hashlib.md5(data).hexdigest()) for name, data in files.items()]
    monkeypatch.setattr(datasets.FashionMNIST, "resources", checked)
    return *served, pixels, labels


def test_a_set_is_downloaded_once_and_read_by_both_rooms(fashion, tmp_path):
    _, asked, pixels, labels = fashion
    root = tmp_path / "sets"
    ended = run_tool("data", "Fashion_MNIST", "--root", root)
    assert ended.returncode == 0, ended.stderr
    assert "31 MB to download" in ended.stdout
    assert "train 60, test 60 images" in ended.stdout
    assert len(asked) == 4
    assert run_tool("data", "fashion-mnist", "--root", root).returncode == 0
    assert len(asked) == 4
    data = build_dataset("fashion-mnist", root, "val")
    assert data.labels.tolist() == labels.tolist()
    np.testing.assert_array_equal(np.asarray(data[7][0]), np.repeat(pixels[7][..., None], 3, axis=2))
    out = tmp_path / "run"
    words = ["DATA.NAME", "fashion-mnist", "DATA.ROOT", root, "DATA.SPLIT", "train", "DATA.VIEWS", "byol"]
    words += ["SOLVER.STEPS", 2, "DATA.WORKERS", 0, "OUTPUT_DIR", out]
    ended = run_tool("pretrain", "--config", "smoke/momentum2_digits", *TINY, *words)
    assert ended.returncode == 0, ended.stderr
    words = ["DATASETS.NAME", "fashion-mnist", "DATASETS.ROOT", root, "DATASETS.TEST", "test", "DATASETS.TITLE", ""]
    words += ["INPUT.IMAGE_SIZE", 28, "KNN.PRESETS", "['eman']", "FEATURES.CACHE", tmp_path / "cache"]
    results = ["--weights", out, "--results", out / "r.jsonl"]
    ended = run_tool("lowshot", "knn", "--config", "smoke/lowshot_digits", *results, *words)
    assert ended.returncode == 0, ended.stderr
    assert {record["dataset"] for record in read(out / "r.jsonl")[0]} == {"fashion-mnist test"}


def test_an_archive_that_is_not_the_published_one_is_refused(fashion, tmp_path):
    files, _, _, _ = fashion
    files["train-images-idx3-ubyte.gz"] = gzip.compress(b"something else")
    ended = run_tool("data", "fashion-mnist", "--root", tmp_path)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "fashion-mnist could not be downloaded: " in ended.stderr
    assert "corrupted" in ended.stderr


def test_nothing_is_made_without_a_network_or_without_a_yes(tmp_path, monkeypatch):
    monkeypatch.setattr("momentum_transfer.images.published.reachable", lambda address: False)
    for words, message in {
        (
            "cifar10",
        ): "no network to https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz; fetch cifar10 where there",
        ("stl10",): "expected --yes to download 2.6 GB",
        ("cifar",): "expected a data set of mnist, fashion-mnist, ",
        ("coco",): "expected the folder of COCO 2017 at",
    }.items():
        ended = run_tool("data", *words, "--root", tmp_path / "absent")
        assert (ended.returncode, ended.stderr.count("\n")) == (2, 1), words
        assert message in ended.stderr
    assert not (tmp_path / "absent").exists()


def test_a_folder_that_is_not_whole_says_which_part_and_where_it_is_had(tmp_path):
    image = PIL.Image.new("RGB", (8, 8))
    for name in ("coco/val2017/1.jpg", "coco/val2017/2.jpg", "val/ILSVRC2012_val_00000001.JPEG"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        image.save(tmp_path / name)
    (tmp_path / "coco/annotations").mkdir()
    (tmp_path / "coco/annotations/instances_val2017.json").touch()
    states = {part.path: problem for part, problem in published.look("coco", tmp_path)}
    assert states == {
        "coco/train2017": "missing",
        "coco/val2017": "2 files of 5,000",
        "coco/annotations/instances_train2017.json": "missing",
        "coco/annotations/instances_val2017.json": "empty",
    }
    assert {part.path: problem for part, problem in published.look("coco", tmp_path / "coco")}["coco/val2017"] == (
        "missing; val2017 is there: give the folder above it"
    )
    assert published.look("imagenet", tmp_path)[1][1].startswith("0 class folders of 1000 (its files are not in class")
    ended = run_tool("data", "coco", "--root", tmp_path)
    assert ended.returncode == 2
    assert "from cocodataset.org, Download" in ended.stdout
    assert "train2017.zip, 18 GB" in ended.stdout
    assert ended.stderr == f"error: expected coco in {tmp_path}, found parts missing: see the list above\n"


def test_a_whole_folder_says_which_setting_reads_it(tmp_path, monkeypatch):
    parts = (Part("train", "a.tar", 2, ".jpeg", 2), Part("list.txt", "b.zip"))
    monkeypatch.setitem(published.LICENSED, "imagenet", Licensed("Small", "page", parts, "DATA.ROOT {root}"))
    for name in ("train/a/1.JPEG", "train/b/1.JPEG", "list.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    ended = run_tool("data", "imagenet", "--root", tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.rstrip().endswith(f"DATA.ROOT {tmp_path}")
