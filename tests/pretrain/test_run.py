"""A run from its settings: what is refused, logged and built before the first step."""

import numpy as np
import pytest
import torch
from PIL import Image

from momentum_transfer.core.checkpoints import CheckpointFolder
from momentum_transfer.core.errors import InputError
from momentum_transfer.images.datasets import packed_folders
from momentum_transfer.images.labelled_images import ArrayImages
from momentum_transfer.pretrain.run import _knn_monitor, distribute, prepare

CPU = torch.device("cpu")


def prepared(cfg, **options):
    return prepare(cfg, CPU, CheckpointFolder(cfg.OUTPUT_DIR), **options)


@pytest.mark.parametrize(("stem", "smallest"), [("imagenet", 32), ("small", 8)])
def test_bf16_on_the_cpu_needs_images_above_the_networks_stride(stem, smallest, tiny_cfg):
    settings = {"RUN.PRECISION": "bf16", "MODEL.STEM": stem}
    with pytest.raises(InputError, match=rf"float32 for images of {smallest} px .* use images above {smallest} px"):
        prepared(tiny_cfg({**settings, "DATA.IMAGE_SIZE": smallest}))
    for fine in ({**settings, "DATA.IMAGE_SIZE": smallest + 1}, {"DATA.IMAGE_SIZE": smallest, "MODEL.STEM": stem}):
        assert prepared(tiny_cfg(fine)).scaler.is_enabled() is False


def test_the_plan_of_a_training_is_told_and_a_random_network_has_none(tiny_cfg, capsys):
    prepared(tiny_cfg())
    assert "4 steps" in capsys.readouterr().out
    prepared(tiny_cfg({"METHOD.NAME": "random"}))
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""


def test_the_same_seed_begins_with_the_same_weights_and_another_with_others(tiny_cfg):
    first, again, other = (prepared(tiny_cfg({"SEED": seed})).method.state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())
    assert not all(torch.equal(tensor, other[name]) for name, tensor in first.items())
    drawn = []
    for seed in (3, 3, 4):  # what a method draws in training follows from the seed too
        prepared(tiny_cfg({"SEED": seed}))
        drawn.append(torch.rand(1).item())
    assert drawn[0] == drawn[1] != drawn[2]


def test_the_optimizer_has_the_settings(tiny_cfg):
    run = prepared(
        tiny_cfg({"SOLVER.OPTIMIZER": "sgd", "SOLVER.MOMENTUM": 0.7, "SOLVER.WEIGHT_DECAY": 0.3, "SOLVER.BASE_LR": 0.5,
                  "RUN.CHANNELS_LAST": True})
    )  # fmt: skip
    assert {group["momentum"] for group in run.optimizer.param_groups} == {0.7}
    assert max(group["weight_decay"] for group in run.optimizer.param_groups) == 0.3
    assert run.optimizer.param_groups[0]["lr"] == run.plan.base_lr == 0.5
    assert run.method.student.backbone.conv1.weight.is_contiguous(memory_format=torch.channels_last)
    assert distribute(run) is run.method


@pytest.mark.parametrize("kind", ["tar", "stl10"])
def test_knn_is_refused_for_images_without_labels(kind, tiny_cfg, tmp_path):
    settings = {"RUN.KNN_EVERY": 1, "DATA.NAME": "imagefolder", "DATA.ROOT": tmp_path / "tars", "DATA.VIEWS": "rcf"}
    images = None
    if kind == "tar":
        for number in range(16):
            path = tmp_path / "set" / ("val" if number % 4 == 0 else "train") / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (20, 20), (10 * number, 0, 0)).save(path)
        packed_folders(tmp_path / "set", tmp_path / "tars")
    else:
        settings |= {"DATA.NAME": "stl10", "DATA.SPLIT": "unlabeled"}
        images = ArrayImages(np.zeros((16, 20, 20, 3), dtype=np.uint8), [2] * 16, ["car", "cat", "unlabeled"])
    message = f"expected training images of two classes or more .* found {int(kind == 'tar')} in"
    with pytest.raises(InputError, match=message):
        cfg = tiny_cfg(settings)
        prepared(cfg) if images is None else _knn_monitor(cfg, images, CPU)


def test_knn_is_watched_if_asked_and_a_list_has_no_held_out_part(tiny_cfg, tmp_path):
    assert prepared(tiny_cfg({"RUN.KNN_EVERY": 0})).knn is None
    assert prepared(tiny_cfg({"RUN.KNN_EVERY": 1})).knn is not None
    for number in range(8):
        Image.new("RGB", (16, 16)).save(tmp_path / f"{number}.png")
    (tmp_path / "list.txt").write_text("".join(f"{number}.png 0\n" for number in range(8)))
    listed = {"DATA.NAME": "filelist", "DATA.ROOT": tmp_path, "DATA.FILE_LIST": tmp_path / "list.txt",
              "DATA.VIEWS": "rcf"}  # fmt: skip
    with pytest.raises(InputError, match=r"RUN\.KNN_EVERY 0 with DATA\.NAME filelist"):
        prepared(tiny_cfg({"RUN.KNN_EVERY": 1, **listed}))
    assert prepared(tiny_cfg({"RUN.KNN_EVERY": 0, **listed})).knn is None


def test_knn_of_parts_with_other_classes_is_refused(tiny_cfg, tmp_path):
    for part, names in (("train", "abc"), ("val", "bc")):
        for name in names:
            (tmp_path / "set" / part / name).mkdir(parents=True)
            for number in range(4):
                Image.new("RGB", (40, 40), (number, 0, 0)).save(tmp_path / "set" / part / name / f"{number}.png")
    settings = {"DATA.NAME": "imagefolder", "DATA.ROOT": tmp_path / "set", "DATA.VIEWS": "rcf", "RUN.KNN_EVERY": 1,
                "RUN.KNN_SPLIT": "val", "SOLVER.BATCH_SIZE": 4}  # fmt: skip
    with pytest.raises(InputError, match=r"expected the same classes in both parts .* found a .* where val has b"):
        prepared(tiny_cfg(settings))
