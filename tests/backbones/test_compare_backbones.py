"""The comparison tool: equal batches, records once, a matrix and plots, any two depths."""

import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from momentum_transfer.backbones import compare_backbones
from momentum_transfer.backbones.compare_backbones import ImageBatches, cka_of_networks, weight_norms
from momentum_transfer.backbones.norm_rescale import rescale_by_constant
from momentum_transfer.backbones.read import load_backbone
from momentum_transfer.backbones.resnet import Architecture
from momentum_transfer.core import records as results
from momentum_transfer.core.errors import InputError
from tests.backbones.family_writers import network

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def images(tmp_path) -> Path:
    rng = np.random.default_rng(0)
    for index in range(13):
        path = tmp_path / "images" / f"part{index % 2}" / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(path)
    (tmp_path / "images" / "readme.txt").write_text("no image")
    return tmp_path / "images"


@pytest.fixture
def checkpoints(tmp_path) -> list[Path]:
    torch.manual_seed(0)
    paths = [tmp_path / name for name in ("first.pth", "second.pth")]
    for path, architecture in zip(paths, (Architecture("resnet10", 8), Architecture("resnet18", 4)), strict=True):
        torch.save(network(architecture).state_dict(), path)
    return paths


def test_batches_are_equal_shuffled_by_seed_and_repeatable(images):
    batches = ImageBatches(str(images), 32, 6)
    first, again = list(batches), list(batches)
    assert [tuple(batch.shape) for batch in first] == [(6, 3, 32, 32)] * 2  # the 13th image is left out
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    other = list(ImageBatches(str(images), 32, 6, seed=1))
    assert not torch.equal(first[0], other[0])
    assert len(ImageBatches(str(images), 32, 4, count=9)) == 2


def test_digits_are_the_embedded_images(images):
    batch = next(iter(ImageBatches("digits", 32, 8, count=8)))
    assert batch.shape == (8, 3, 32, 32)


def test_missing_folder_too_few_images_and_unreadable_ones_are_named(images):
    with pytest.raises(InputError, match="expected --images as a folder or the word digits, found nowhere"):
        ImageBatches("nowhere", 32, 4)
    with pytest.raises(InputError, match=r"at least one batch of 64 images .*found 13; give more"):
        ImageBatches(str(images), 32, 64)
    (images / "broken.png").write_text("no image")
    with pytest.raises(InputError, match=r"cannot read the image .*broken\.png"):
        list(ImageBatches(str(images), 32, 14))


def test_stages_pair_the_last_blocks_of_networks_of_other_depth(images, checkpoints):
    first, second = (load_backbone(path) for path in checkpoints)
    batches = ImageBatches(str(images), 32, 6)
    made = compare_backbones.compare(first, second, batches)
    matrix = cka_of_networks(first.build(), second.build(), batches)[2]
    assert torch.allclose(made.cka, matrix)
    stages = made.stages()
    assert list(stages) == ["stem", "res2", "res3", "res4", "res5", "avgpool"]
    assert stages["res3"] == pytest.approx(float(matrix[2, 4]))  # res3.0 of ResNet-10, res3.1 of ResNet-18


def test_batch_statistics_do_not_see_the_norm_of_convolutions(images, checkpoints):
    first = load_backbone(checkpoints[0])
    smaller = load_backbone(checkpoints[0])
    smaller.state = rescale_by_constant(first.state, 0.1, "conv")
    batches = ImageBatches(str(images), 32, 6)
    stored = compare_backbones.compare(first, smaller, batches)
    batch = compare_backbones.compare(first, smaller, batches, batch_statistics=True)
    same = compare_backbones.compare(first, first, batches, batch_statistics=True)
    torch.testing.assert_close(batch.cka, same.cka, atol=0.02, rtol=0)
    assert stored.stages()["res5"] < 0.98
    assert {stored.protocol[-17:], batch.protocol[-16:]} == {"stored statistics", "batch statistics"}


def test_tool_writes_records_once_and_plots(images, checkpoints, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    arguments = [*map(str, checkpoints), "--images", str(images), "--image-size", "32", "--batch-size", "6"]
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", ["compare.py", *arguments, "--output", str(out)])
        monkeypatch.setattr(sys, "path", list(sys.path))
        with pytest.raises(SystemExit) as left:
            runpy.run_path(str(ROOT / "tools" / "compare.py"), run_name="__main__")
        assert left.value.code == 0, capsys.readouterr().err
    records, problems = results.read(out / "results.jsonl")
    assert not problems
    cka = [record for record in records if record["task"] == "cka"]
    assert [record["metric"] for record in cka] == ["stem", "res2", "res3", "res4", "res5", "avgpool"]
    assert all(record["checkpoint"]["name"] == "second" and record["reference"]["name"] == "first" for record in cka)
    sources = [load_backbone(path) for path in checkpoints]
    norms = {(r["checkpoint"]["name"], r["metric"]): r["value"] for r in records if r["task"] == "weight_norm"}
    assert norms == {
        (name, layer): value
        for name, source in zip(("first", "second"), sources, strict=True)
        for layer, value in weight_norms(source.state).items()
    }
    matrix = json.loads((out / "cka_blocks_1.json").read_text())
    assert np.array(matrix["cka"]).shape == (len(matrix["rows"]), len(matrix["columns"])) == (6, 10)
    assert 100 * matrix["cka"][0][0] == pytest.approx(cka[0]["value"])
    for name in ("norms.png", "cka.png", "cka_blocks_1.png"):
        assert Image.open(out / name).size[0] > 300


def test_a_comparison_at_another_size_batch_or_seed_is_another_record(images, checkpoints, tmp_path):
    first, second = (load_backbone(path) for path in checkpoints)
    file, written = tmp_path / "results.jsonl", []
    for options in ((32, 6, 0, 0), (40, 6, 0, 0), (32, 4, 12, 0), (32, 6, 0, 1), (32, 6, 6, 0), (32, 6, 0, 0)):
        made = compare_backbones.compare(first, second, ImageBatches(str(images), *options))
        written.append(compare_backbones.add_records(file, compare_backbones.records(made)))
    assert written == [6, 6, 6, 6, 6, 0]
    record = results.read(file)[0][6]
    assert [record[key] for key in ("image_size", "batch_size", "seed", "images")] == [40, 6, 0, 12]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ((0, 6, 0), "--image-size of at least 1, found 0"),
        ((32, 0, 0), "--batch-size of at least 4, found 0"),
        ((32, -1, 0), "--batch-size of at least 4, found -1"),
        ((32, 3, 0), "--batch-size of at least 4, found 3"),
        ((32, 6, -3), "--count of at least 0, found -3"),
    ],
)
def test_sizes_and_counts_that_are_none_are_refused(images, options, found):
    with pytest.raises(InputError, match=found):
        ImageBatches(str(images), *options)


def test_labels_must_be_one_for_each_checkpoint(images, checkpoints, tmp_path, monkeypatch, capsys):
    arguments = [*map(str, checkpoints), "--images", str(images), "--labels", "SGD"]
    monkeypatch.setattr(sys, "argv", ["compare.py", *arguments])
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(ROOT / "tools" / "compare.py"), run_name="__main__")
    assert left.value.code == 2
    assert "error: expected 2 --labels" in capsys.readouterr().err
