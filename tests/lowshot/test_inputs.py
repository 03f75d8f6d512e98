"""Images of few-label evaluations: which part trains, what records call the set, and views of the settings' size."""

import numpy as np
import pytest
import torch
from PIL import Image

from momentum_transfer.backbones.network_input import NetworkInput
from momentum_transfer.images.datasets import build_dataset, packed_folders
from momentum_transfer.images.views import MEAN, STD
from momentum_transfer.lowshot.config import get_cfg
from momentum_transfer.lowshot.inputs import Images, groups_of, title


def config(*words):
    cfg = get_cfg()
    cfg.merge_from_list(list(words))
    return cfg


@pytest.fixture
def folder(tmp_path):
    for part in ("one", "two"):
        for number in range(10):
            file = tmp_path / f"flowers/all/{part}/{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (20, 20), (number, 0, 0)).save(file)
    return tmp_path / "flowers"


def test_one_folder_is_split_into_a_part_that_trains_and_one_that_tests(folder):
    cfg = config("DATASETS.NAME", "imagefolder", "DATASETS.ROOT", str(folder), "DATASETS.TRAIN", "all", "DATASETS.TEST",
                 "all", "DATASETS.SPLIT", 0.7)  # fmt: skip
    images = Images(cfg)
    assert (len(images.train), len(images.test)) == (14, 6)
    for part, each in ((images.train, 7), (images.test, 3)):
        assert np.bincount(part.labels).tolist() == [each, each]
    seen = [[part[k][0].getpixel((0, 0))[0] + 100 * int(part.labels[k]) for k in range(len(part))]
            for part in (images.train, images.test)]  # fmt: skip
    assert sorted(seen[0] + seen[1]) == [*range(10), *range(100, 110)]
    assert title(cfg, images=6, classes=2).endswith("_test")
    cfg.DATASETS.SPLIT = 0.0
    whole = Images(cfg)
    assert (len(whole.train), len(whole.test)) == (20, 20)
    assert not title(cfg, images=20, classes=2).endswith("_test")


def test_a_split_keeps_the_images_of_one_group_on_one_side(folder):
    rows = [f"{part}/{number}.png,{part} {number // 2}\n" for part in ("one", "two") for number in range(10)]
    (folder / "all" / "groups.csv").write_text("".join(rows), encoding="utf-8")
    images = Images(config("DATASETS.ROOT", str(folder), "DATASETS.TRAIN", "all", "DATASETS.SPLIT", 0.6))
    seen = [{(int(part.labels[k]), part[k][0].getpixel((0, 0))[0] // 2) for k in range(len(part))}
            for part in (images.train, images.test)]  # fmt: skip
    assert [len(images.train), len(images.test), len(seen[0]), len(seen[1])] == [12, 8, 6, 4]
    assert not seen[0] & seen[1]


def test_groups_of_images_in_tar_files_are_read_beside_the_archives(folder, tmp_path, monkeypatch):
    packed_folders(folder / "all", tmp_path / "shards")
    images = build_dataset("imagefolder", tmp_path / "shards")
    monkeypatch.chdir(folder)
    (folder / "groups.csv").write_text("folder,1\n", encoding="utf-8")  # of the working folder, and of nothing here
    assert groups_of(images) is None
    rows = [f"{part}/{number}.png,{number % 3}\n" for part in ("one", "two") for number in range(10)]
    (tmp_path / "shards" / "groups.csv").write_text("".join(rows), encoding="utf-8")
    shown = [images[k][0].getpixel((0, 0))[0] for k in range(20)]
    assert groups_of(images).tolist() == [number % 3 for number in shown]
    assert groups_of(build_dataset("imagefolder", tmp_path.as_uri() + "/shards")) is None


def test_a_published_title_is_for_a_set_of_its_size(capsys):
    assert title(config("DATASETS.NAME", "digits", "DATASETS.TEST", "val"), 9, 3) == "digits val"
    assert title(config("DATASETS.TITLE", "mine"), 9, 3) == "mine"
    published = config("DATASETS.NAME", "digits", "DATASETS.TEST", "val", "DATASETS.TITLE", "imagenet_val")
    assert title(published, 50_000, 1000) == "imagenet_val"
    for images, classes in ((49_999, 1000), (50_000, 999)):
        assert title(published, images, classes) != "imagenet_val"


def test_views_have_the_networks_size_and_statistics_or_the_settings():
    grey = Image.new("RGB", (50, 40), (128, 128, 128))
    cfg = config("DATASETS.NAME", "imagefolder", "INPUT.IMAGE_SIZE", 24)
    mine = NetworkInput(16, (0.5,) * 3, (0.25,) * 3)
    for own, size, mean, std in ((None, 24, MEAN, STD), (mine, 16, mine.mean, mine.std)):
        found = Images(cfg, own=own).plain(grey)
        assert found.shape == (3, size, size)
        wanted = (128 / 255 - torch.tensor(mean)) / torch.tensor(std)
        torch.testing.assert_close(found.mean((1, 2)), wanted, atol=0.01, rtol=0)
    weak = Images(cfg, own=NetworkInput(24, (0.5,) * 3, (0.25,) * 3)).weak(grey)
    assert weak.shape == (3, 24, 24)
