"""How images reach the loop does not change what it learns."""

import time
from pathlib import Path

import PIL.Image
import pytest
import torch
from safetensors.torch import load_file

from momentum_transfer.core import devices
from momentum_transfer.core.checkpoints import CheckpointFolder, load
from momentum_transfer.core.command import Stopped
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.log import speaking
from momentum_transfer.core.settings import learned_settings
from momentum_transfer.images.datasets import build_dataset
from momentum_transfer.pretrain import pipeline
from momentum_transfer.pretrain.pipeline import build_images
from momentum_transfer.pretrain.train import train


@pytest.fixture
def image_folder(tmp_path):
    """An image folder of two classes, 12 PNGs."""
    digits = build_dataset("digits", split="train")
    for index in range(12):
        path = tmp_path / "image_folder" / "train" / str(index % 2) / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        digits[index][0].resize((40, 30 + index), PIL.Image.Resampling.BILINEAR).save(path)
    return tmp_path / "image_folder"


def test_images_in_memory_and_a_measured_number_of_workers_leave_every_weight_as_it_is(
    image_folder, tiny_cfg, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(devices, "WORTH_TRYING", 0)
    monkeypatch.setattr(devices, "available_cores", lambda: 1)
    data = {"DATA.NAME": "imagefolder", "DATA.ROOT": image_folder, "DATA.VIEWS": "rcf", "SOLVER.STEPS": 16}
    exports = []
    for name, memory, workers in (("files", 0, 0), ("memory", 0.5, -1)):
        settings = {"OUTPUT_DIR": tmp_path / name, "DATA.MEMORY_FRACTION": memory, "DATA.WORKERS": workers}
        exports.append(load_file(train(tiny_cfg({**data, **settings}))))
    for key, value in exports[0].items():
        assert value.equal(exports[1][key]), key


@pytest.mark.parametrize("choice", ["workers", "device"])
def test_views_are_made_where_that_is_faster_and_a_resumed_run_keeps_to_it(
    choice, image_folder, tiny_cfg, monkeypatch, capsys
):
    times = iter([1.0, 0.001, 0.002] if choice == "device" else [0.001, 0.001, 1.0])  # workers, decoding, device
    monkeypatch.setattr(pipeline, "_seconds", lambda work, device=None: next(times))
    cfg = {"DATA.NAME": "imagefolder", "DATA.ROOT": image_folder, "DATA.VIEWS": "rcf", "DATA.VIEWS_ON": "auto"}
    with speaking(), pytest.raises(Stopped):
        train(tiny_cfg(cfg), stop_after=2)
    assert f"views are made by the {choice}" in capsys.readouterr().out
    train(tiny_cfg(cfg), resuming=True)  # measures nothing: no time is left
    with pytest.raises(InputError, match="VIEWS_ON"):
        train(tiny_cfg({**cfg, "DATA.VIEWS_ON": "device" if choice == "workers" else "workers"}), resuming=True)


def test_both_ways_are_timed_on_the_images_of_the_run(image_folder, tiny_cfg):
    settings = {"DATA.NAME": "imagefolder", "DATA.ROOT": image_folder, "DATA.VIEWS": "rcf", "DATA.VIEWS_ON": "auto"}
    cfg = tiny_cfg(settings)
    train(cfg)
    state = load(CheckpointFolder(Path(cfg.OUTPUT_DIR) / "checkpoints").last())
    assert learned_settings(state["config"])["DATA.VIEWS_ON"] in ("workers", "device")


def test_a_random_network_decodes_no_image_beforehand(image_folder, tiny_cfg, monkeypatch):
    monkeypatch.setattr(pipeline, "kept_in_memory", lambda *_, **__: pytest.fail("decoded"))
    data = {"DATA.NAME": "imagefolder", "DATA.ROOT": image_folder, "DATA.VIEWS": "rcf"}
    train(tiny_cfg({**data, "METHOD.NAME": "random", "RUN.CALIBRATION_BATCHES": 1}))


@pytest.mark.parametrize(
    ("times", "cores", "processes", "choice"),
    [
        ([16.0, 0.0, 7.9], 1, 1, "device"),  # 16 images by a core, 8 on the device: 1 s an image and 0.99 s
        ([16.0, 0.0, 8.1], 1, 1, "workers"),
        ([16.0, 0.0, 8.0], 1, 1, "workers"),
        ([16.0, 0.0, 1.9], 4, 1, "device"),  # four cores: 0.25 s an image
        ([16.0, 0.0, 2.1], 4, 1, "workers"),
        ([16.0, 0.0, 3.9], 4, 2, "device"),  # two processes share them
        ([16.0, 0.0, 7.9], 1, 2, "device"),  # each has one at least
        ([16.0, 17.0, 0.1], 4, 1, "workers"),  # decoding takes longer than the device
        ([16.0, 15.0, 0.1], 4, 1, "device"),
    ],
)
def test_seconds_an_image_decide_where_views_are_made(
    times, cores, processes, choice, image_folder, tiny_cfg, monkeypatch, capsys
):
    waiting = iter(times)  # workers, decoding, device
    monkeypatch.setattr(pipeline, "_seconds", lambda work, device=None: work() is None or next(waiting))
    monkeypatch.setattr(pipeline, "available_cores", lambda: cores)
    monkeypatch.setattr(pipeline.distributed, "local_world_size", lambda: processes)
    cfg = tiny_cfg(
        {"DATA.NAME": "imagefolder", "DATA.ROOT": image_folder, "DATA.VIEWS": "rcf", "DATA.VIEWS_ON": "auto"}
    )
    images = pipeline.build_images(cfg, "train")
    folder = CheckpointFolder(Path(cfg.OUTPUT_DIR))
    assert choice == pipeline.settle_views(cfg, images, 8, torch.device("cpu"), folder).DATA.VIEWS_ON
    share = max(cores // processes, 1)
    said = capsys.readouterr().out
    assert f"{1000 * times[0] / 16 / share:.2f} ms an image by workers on {share} cores" in said
    assert f"{1000 * max(times[1] / 16 / share, times[2] / 8):.2f} ms on the device" in said


def test_the_second_of_two_runs_is_timed():
    waits = iter([0.2, 0.01])
    assert 0.01 <= pipeline._seconds(lambda: time.sleep(next(waits))) < 0.2


@pytest.mark.parametrize("setting", [{"DATA.CLASS_FRACTION": 0.5}, {"DATA.LONG_TAIL": 0.1}])
def test_settings_of_classes_are_refused_with_images_that_have_none(setting, image_folder, tiny_cfg):
    every = {"DATA.NAME": "images", "DATA.ROOT": image_folder, "DATA.VIEWS": "rcf"}
    with pytest.raises(InputError, match="images without labels; leave these settings out"):
        build_images(tiny_cfg({**every, **setting}), "train")
    assert len(build_images(tiny_cfg(every), "train")) == 12


def test_supervised_training_needs_labels_of_two_classes(tiny_cfg, tmp_path, image_folder):
    listed = tmp_path / "one.txt"
    listed.write_text("".join(f"{file} 0\n" for file in sorted(image_folder.glob("train/0/*.png"))))
    one = {"DATA.NAME": "filelist", "DATA.ROOT": tmp_path, "DATA.FILE_LIST": listed, "DATA.VIEWS": "rcf"}
    assert len(build_images(tiny_cfg(one), "train")) == 6
    with pytest.raises(InputError, match=r"expected labels of two classes or more for METHOD.NAME supervised"):
        build_images(tiny_cfg({**one, "METHOD.NAME": "supervised"}), "train")
