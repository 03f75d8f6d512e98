import errno
import json
import os
import signal
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from momentum_transfer.backbones.resnet import Architecture, build_resnet
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.samplers import ordered_loader
from momentum_transfer.images.datasets import ArrayImages
from momentum_transfer.images.labelled_images import FileImages
from momentum_transfer.images.views import eval_transform
from momentum_transfer.lowshot.features.cache import About
from momentum_transfer.lowshot.features.extract import Pixels, StageFeatures, data_hash, extract
from tests.two_processes import in_two_processes

GENERATOR = np.random.default_rng(0)
IMAGES = ArrayImages(
    GENERATOR.integers(0, 255, (11, 32, 32, 3), dtype=np.uint8), [0, 1, 2] * 3 + [0, 1], ["a", "b", "c"]
)
TRANSFORM = eval_transform("digits", 32)
ABOUT = About(weights="w", data="d", transform="t", layer="pooled", precision="fp32")


class CountingNetwork(nn.Module):
    """Mean colour, and how many images it has seen; dies after ``limit`` batches."""

    def __init__(self, limit=None):
        super().__init__()
        self.seen, self.batches, self.limit = 0, 0, limit

    def forward(self, images):
        if self.limit is not None and self.batches > self.limit:
            raise KeyboardInterrupt
        self.seen, self.batches = self.seen + len(images), self.batches + 1
        return images.mean(dim=(2, 3))


def run(network, cache, about=ABOUT, **options):
    options = {"name": "images", "batch_size": 4, **options}
    return extract(network, IMAGES, TRANSFORM, about, cache, **options)


def expected():
    return torch.stack([TRANSFORM(IMAGES[index][0]) for index in range(11)])


def test_features_are_the_networks_outputs_in_order(tmp_path):
    data = run(CountingNetwork(), tmp_path)
    assert np.allclose(data.features, expected().mean(dim=(2, 3)), atol=1e-6)
    assert data.labels.tolist() == IMAGES.labels.tolist()


def test_an_extraction_on_the_cpu_pins_no_memory_for_a_gpu_of_its_machine(tmp_path, monkeypatch):
    asked = []

    def loader(*args, pin_memory, **options):
        asked.append(pin_memory)
        return ordered_loader(*args, **options)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("momentum_transfer.lowshot.features.extract.ordered_loader", loader)
    run(CountingNetwork(), tmp_path)
    assert asked == [False]


def test_second_call_reads_the_cache_and_maps_it_into_memory(tmp_path):
    first = run(CountingNetwork(), tmp_path)
    network = CountingNetwork()
    second = run(network, tmp_path)
    assert network.seen == 0
    assert isinstance(second.features, np.memmap)
    assert np.array_equal(first.features, second.features)


@pytest.mark.parametrize("field", ["weights", "data", "transform", "layer"])
def test_any_other_setting_misses_the_cache(tmp_path, field):
    run(CountingNetwork(), tmp_path)
    network = CountingNetwork()
    run(network, tmp_path, about=replace(ABOUT, **{field: "other"}))
    assert network.seen >= len(IMAGES)


def test_killed_extraction_goes_on_where_it_was_and_ends_the_same(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(CountingNetwork(limit=2), tmp_path / "killed")
    assert not list((tmp_path / "killed").rglob("features.npy"))
    network = CountingNetwork()
    resumed = run(network, tmp_path / "killed")
    assert network.seen == 11 - 8
    whole = run(CountingNetwork(), tmp_path / "whole")
    assert np.array_equal(resumed.features, whole.features)
    assert sorted(path.name for path in (tmp_path / "killed" / ABOUT.key).iterdir()) == [
        "about.json", "features.npy", "labels.npy",
    ]  # fmt: skip


class KilledNetwork(CountingNetwork):
    """Kills its process, as the kernel or a scheduler would, in the third batch of four."""

    def forward(self, images):
        if self.seen > 8:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(images)


def test_extraction_killed_by_sigkill_goes_on_where_it_was(tmp_path):
    process = torch.multiprocessing.get_context("fork").Process(target=run, args=(KilledNetwork(), tmp_path))
    process.start()
    process.join(timeout=60)
    assert process.exitcode == -signal.SIGKILL
    network = CountingNetwork()
    resumed = run(network, tmp_path)
    assert network.seen == len(IMAGES) - 8
    assert np.allclose(resumed.features, expected().mean(dim=(2, 3)), atol=1e-6)


def test_two_jobs_on_the_same_features_share_one_extraction(tmp_path, capfd):
    class SlowNetwork(CountingNetwork):
        def forward(self, images):
            time.sleep(0.1)
            return super().forward(images)

    context = torch.multiprocessing.get_context("fork")
    queue = context.Queue()

    def job():
        network = SlowNetwork()
        found = run(network, tmp_path)
        queue.put((network.seen, np.array(found.features)))

    jobs = [context.Process(target=job) for _ in range(2)]
    for process in jobs:
        process.start()
    results = [queue.get(timeout=60) for _ in jobs]
    for process in jobs:
        process.join(timeout=60)
    assert sorted(seen for seen, _ in results) == [0, len(IMAGES) + 1]
    assert np.array_equal(results[0][1], results[1][1])
    assert "waiting for another process" in capfd.readouterr().out


def test_entry_of_other_settings_is_refused(tmp_path):
    run(CountingNetwork(), tmp_path)
    described = tmp_path / ABOUT.key / "about.json"
    described.write_text(json.dumps({**json.loads(described.read_text()), "transform": "another"}))
    with pytest.raises(InputError, match=r"made with other settings \(transform\)"):
        run(CountingNetwork(), tmp_path)


def test_progress_without_its_array_is_forgotten(tmp_path):
    folder = tmp_path / ABOUT.key
    folder.mkdir()
    (folder / "progress.0-11").write_text("8")
    assert np.allclose(run(CountingNetwork(), tmp_path).features, expected().mean(dim=(2, 3)), atol=1e-6)


def shortened(file):
    file.write_bytes(file.read_bytes()[:-20])


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("about.json", lambda file: file.write_text("{")),
        ("about.json", lambda file: file.write_text("[]")),
        ("about.json", lambda file: file.write_bytes(b"\xff\xfe")),
        ("features.npy", shortened),
        ("features.npy", lambda file: file.write_bytes(b"")),
        ("features.npy", lambda file: np.save(file, np.ones((3, 2), np.float32))),
        ("labels.npy", shortened),
        ("labels.npy", lambda file: file.unlink()),
        ("labels.npy", lambda file: np.save(file, np.ones((11, 2), np.int64))),
        ("labels.npy", lambda file: np.save(file, IMAGES.labels[::-1])),
    ],
)
def test_damaged_entry_is_refused_and_says_what_to_delete(tmp_path, name, damage):
    run(CountingNetwork(), tmp_path)
    damage(tmp_path / ABOUT.key / name)
    with pytest.raises(InputError, match=rf"expected .*{name} as an extraction writes it, found it damaged; delete"):
        run(CountingNetwork(), tmp_path)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("progress.0-11", lambda file: file.write_text("many")),
        ("progress.0-11", lambda file: file.write_text("12")),
        ("features.partial.npy", shortened),
    ],
)
def test_damaged_unfinished_entry_is_refused(tmp_path, name, damage):
    with pytest.raises(KeyboardInterrupt):
        run(CountingNetwork(limit=2), tmp_path)
    damage(tmp_path / ABOUT.key / name)
    with pytest.raises(InputError, match=f"{name} as an extraction writes it, found it damaged"):
        run(CountingNetwork(), tmp_path)


def test_full_disk_is_noticed_before_the_extraction(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    network = CountingNetwork()
    with pytest.raises(OSError, match="No space left"):
        run(network, tmp_path)
    assert network.seen == 1  # the one that gives the number of features
    assert not list(tmp_path.rglob("*.npy"))


def test_nan_features_are_refused(tmp_path):
    class Diverged(nn.Module):
        def forward(self, images):
            return torch.full((len(images), 2), float("nan"))

    with pytest.raises(InputError, match="NaN or infinite"):
        run(Diverged(), tmp_path)


def test_unknown_precision_and_layer_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"FEATURES\.PRECISION of bf16, fp32, found 'fp8'"):
        run(CountingNetwork(), tmp_path, about=replace(ABOUT, precision="fp8"))
    with pytest.raises(InputError, match=r"FEATURES\.LAYER of pooled, res2"):
        StageFeatures(build_resnet(Architecture("resnet10", 8)), "fc")


@pytest.mark.parametrize("layer", ["pooled", "res2", "res3", "res4", "res5"])
def test_stage_features_are_maps_averaged_over_positions(layer):
    backbone = build_resnet(Architecture("resnet10", 8)).eval()
    images = expected()
    with torch.no_grad():
        maps = backbone.stages(images)
        found = StageFeatures(backbone, layer)(images)
    wanted = maps["pooled"] if layer == "pooled" else maps[layer].mean(dim=(2, 3))
    assert torch.allclose(found, wanted, atol=1e-6)


def test_bf16_features_stay_close_to_fp32(tmp_path):
    torch.manual_seed(0)
    network = StageFeatures(build_resnet(Architecture("resnet10", 16)))
    exact = run(network, tmp_path)
    fast = run(network, tmp_path, about=replace(ABOUT, precision="bf16"))
    assert not np.array_equal(exact.features, fast.features)
    cosine = (exact.features * fast.features).sum(1) / np.linalg.norm(exact.features, axis=1)
    assert np.all(cosine / np.linalg.norm(fast.features, axis=1) > 0.999)


def test_extraction_leaves_the_backbone_frozen_and_in_eval_mode():
    network = StageFeatures(build_resnet(Architecture("resnet10", 8)))
    assert not any(module.training for module in network.backbone.modules())
    assert not any(parameter.requires_grad for parameter in network.parameters())


def test_pixels_are_the_grey_image():
    assert torch.allclose(Pixels()(expected()), expected().mean(1).reshape(11, -1))


def test_data_hash_depends_on_images_labels_and_order():
    def images(array, labels):
        return data_hash(ArrayImages(array, labels, ["a", "b"]))

    array = IMAGES.images[:2]
    assert images(array, [0, 1]) == images(array.copy(), [0, 1])
    assert len({images(array, [0, 1]), images(array, [1, 0]), images(array[::-1], [0, 1])}) == 3
    with pytest.raises(InputError, match="neither paths nor images"):
        data_hash(SimpleNamespace(labels=np.zeros(1)))


def _extract(cache):
    network = CountingNetwork()
    return np.array(run(network, cache).features), network.seen


def test_two_processes_share_the_images_and_equal_one(tmp_path):
    results = in_two_processes(_extract, tmp_path / "two")
    alone = run(CountingNetwork(), tmp_path / "one").features
    assert all(np.array_equal(features, alone) for features, _ in results)
    assert sum(seen for _, seen in results) == len(IMAGES) + 1  # and one for the shape


def test_a_flipped_bit_anywhere_in_a_finished_entry_is_noticed(tmp_path):
    run(CountingNetwork(), tmp_path)
    (entry,) = (path for path in tmp_path.iterdir() if path.is_dir())
    for name in ("features.npy", "labels.npy", "about.json"):
        file = entry / name
        whole = bytearray(file.read_bytes())
        for place in range(0, len(whole), 37):
            file.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
            with pytest.raises(InputError, match=r"damaged|other settings"):
                run(CountingNetwork(), tmp_path)
        file.write_bytes(whole)
    run(CountingNetwork(), tmp_path)


def test_a_flipped_bit_in_the_rows_of_a_killed_extraction_is_noticed(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(CountingNetwork(limit=2), tmp_path)
    (partial,) = tmp_path.rglob("features.partial.npy")
    content = bytearray(partial.read_bytes())
    content[-3 * 12 - 40] ^= 1  # in the first eight rows, of three numbers
    partial.write_bytes(content)
    with pytest.raises(InputError, match=r"features\.partial\.npy .* damaged"):
        run(CountingNetwork(), tmp_path)


def test_an_image_replaced_under_its_name_is_another_and_with_verify_by_content_alone(tmp_path):
    files = [tmp_path / f"{n}.png" for n in range(2)]
    for n, file in enumerate(files):
        file.write_bytes(bytes([n]) * 8)
    data = FileImages(files, [0, 1], ["a", "b"])
    before, content = data_hash(data), data_hash(data, content=True)
    time_of_change = files[0].stat().st_mtime_ns
    files[0].write_bytes(b"other!!!")
    os.utime(files[0], ns=(time_of_change, time_of_change))
    assert data_hash(data) == before  # same path, size and time
    assert data_hash(data, content=True) != content
    files[0].write_bytes(bytes(8))
    os.utime(files[0], ns=(1, 1))
    assert data_hash(data) != before
    assert data_hash(data, content=True) == content
