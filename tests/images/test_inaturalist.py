import json
import re
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.loggers import read
from momentum_transfer.core.settings import load_config
from momentum_transfer.images.datasets import build_dataset
from momentum_transfer.pretrain.config import get_cfg
from momentum_transfer.pretrain.train import train

ROOT = Path(__file__).resolve().parents[2]


def picture(path: Path, red: int, side: int = 8):
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.new("RGB", (side, side), (red, 0, 0)).save(path, quality=95)


def write_list(root: Path, name: str, images: dict[str, int]):
    """A list in the published form; ids, images and annotations in no particular order, category 4 without images."""
    listing = {
        "info": {"year": 2018},
        "categories": [{"id": c, "name": f"species {c}", "supercategory": "Aves"} for c in (7, 2, 4)],
        "images": [{"id": 100 - k, "file_name": file, "width": 8, "height": 8} for k, file in enumerate(images)],
        "annotations": [
            {"id": k, "image_id": 100 - k, "category_id": category}
            for k, category in reversed(list(enumerate(images.values())))
        ],
    }
    (root / name).write_text(json.dumps(listing))
    return listing


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """Two lists of 2018 over one folder of images, as the archives unpack."""
    train_files = {f"train_val2018/Aves/{c}/{k}.jpg": c for k in range(6) for c in (7, 2)}
    val_files = {f"train_val2018/Aves/{c}/held{k}.jpg": c for k in range(2) for c in (2, 7)}
    for number, file in enumerate([*train_files, *val_files]):
        picture(tmp_path / file, 15 * number, side=24)
    write_list(tmp_path, "train2018.json", train_files)
    write_list(tmp_path, "val2018.json", val_files)
    return tmp_path


def red(sample):
    return int(np.asarray(sample[0])[0, 0, 0])


def test_the_published_lists_of_2018_divide_one_folder(published):
    training = build_dataset("inaturalist", published, "train2018")
    held_out = build_dataset("inaturalist", published, "val2018")
    assert (len(training), len(held_out)) == (12, 4)
    assert training.classes == held_out.classes == ["species 2", "species 4", "species 7"]
    assert training.labels.tolist() == [2, 0] * 6
    assert held_out.labels.tolist() == [0, 2, 0, 2]  # category 4 keeps its number without images
    assert [round(red(training[k]) / 15) for k in range(12)] == list(range(12))
    assert [round(red(held_out[k]) / 15) for k in range(4)] == [12, 13, 14, 15]


@pytest.mark.parametrize("name", ["byol_eman_inaturalist_200e", "moco_eman_inaturalist_1000e"])
def test_the_configs_train_on_2018_and_may_be_watched_on_its_held_out_list(name, published, tmp_path):
    small = {"DATA.ROOT": published, "DATA.WORKERS": 0, "DATA.IMAGE_SIZE": 16, "MODEL.ARCH": "resnet10",
             "MODEL.WIDTH": 4, "HEAD.HIDDEN": 16, "HEAD.OUTPUT": 8, "MOCO.QUEUE": 20, "SOLVER.BATCH_SIZE": 4,
             "NORM.GROUP": 0, "SOLVER.STEPS": 2, "RUN.DEVICE": "cpu", "RUN.PRECISION": "float32", "RUN.LOG_EVERY": 1,
             "RUN.KNN_EVERY": 1, "OUTPUT_DIR": tmp_path / "run"}  # fmt: skip
    cfg = load_config(
        get_cfg(), ROOT / f"configs/pretrain/{name}.yaml", [str(w) for pair in small.items() for w in pair]
    )
    assert (cfg.DATA.SPLIT, cfg.RUN.KNN_SPLIT) == ("train2018", "val2018")
    train(cfg)
    assert any("knn_top1" in line for line in read(tmp_path / "run/metrics.jsonl"))


def test_extracted_folders_are_read_by_year(tmp_path):
    for k, name in enumerate(("00000_Animalia_b_c_d_e_f_terrestris", "00001_Animalia_b_c_d_e_g_viridis")):
        picture(tmp_path / "2021_train" / name / "x.jpg", 100 * k)
    data = build_dataset("inaturalist", tmp_path)
    assert [name[:5] for name in data.classes] == ["00000", "00001"]
    assert abs(red(data[1]) - 100) < 4


def test_lists_that_are_missing_damaged_or_without_labels_are_named(published):
    with pytest.raises(InputError, match=r"published list train2019\.json in .*found none.*DATA\.SPLIT"):
        build_dataset("inaturalist", published, "train2019")
    file = published / "val2018.json"
    whole = json.loads(file.read_text())
    for text, message in (
        ("{", "Input data was truncated"),
        ("[]", "Expected `object`, got `array`"),
        (json.dumps({**whole, "images": []}), "Expected `array` of length >= 1 - at `$.images`"),
        (json.dumps({**whole, "categories": [{"id": 2}]}), "required field `name` - at `$.categories[0]`"),
        (json.dumps({**whole, "annotations": whole["annotations"][1:]}), "found None for 'train_val2018/Aves/7/held1"),
        (json.dumps({**whole, "categories": whole["categories"][1:]}), "found 7 for 'train_val2018/Aves/7/held0"),
    ):
        file.write_text(text)
        with pytest.raises(InputError, match=re.escape(message)):
            build_dataset("inaturalist", published, "val2018")


def test_a_list_without_its_images_says_where_they_belong(tmp_path):
    write_list(tmp_path, "train2018.json", {"train_val2018/Aves/2/a.jpg": 2})
    with pytest.raises(InputError, match="extract the year's archive there"):
        build_dataset("inaturalist", tmp_path, "train2018")
