"""Coarse classes from a hierarchy, and iNaturalist as published."""

import json
import os
import re
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.loggers import read
from momentum_transfer.core.settings import load_config
from momentum_transfer.images import taxonomies
from momentum_transfer.images.datasets import build_dataset
from momentum_transfer.images.subsets import read_taxonomy
from momentum_transfer.pretrain.config import get_cfg
from momentum_transfer.pretrain.train import train

#: entity -> {animal -> {dog -> {pug, beagle}, cat -> {tabby, siamese}, bird}, thing -> {tool -> {saw, axe}}}
LINES = """
entity animal   # a comment
entity thing
animal dog
animal cat
animal bird
dog pug
dog beagle
cat tabby
cat siamese
thing tool
tool saw
tool axe
toy saw
"""
CLASSES = ["pug", "beagle", "tabby", "siamese", "bird", "saw", "axe"]


@pytest.fixture
def parents(tmp_path):
    path = tmp_path / "is_a.txt"
    path.write_text(LINES, encoding="utf-8")
    return taxonomies.read_hierarchy(path)


def test_rounds_cluster_what_lies_under_one_concept_from_the_leaves_up(parents):
    found = taxonomies.rounds(CLASSES, parents)
    clusters = [sorted(set(mapping.values())) for mapping in found]
    assert clusters[0] == sorted(CLASSES)
    assert clusters[1] == ["bird", "cat", "dog", "tool"]
    assert clusters[2] == ["animal", "thing"]
    assert clusters[-1] == ["entity"]
    counts = [len(names) for names in clusters]
    assert counts == sorted(set(counts), reverse=True)
    for mapping in found:  # every class is under its cluster
        assert all(cluster in taxonomies._trail(name, parents) for name, cluster in mapping.items())


def test_a_count_is_one_of_the_rounds_and_others_are_refused_with_the_list(parents):
    assert len(set(taxonomies.of_count(CLASSES, parents, 4).values())) == 4
    with pytest.raises(InputError, match=r"\(1, 2, 4, 7\), found 3"):
        taxonomies.of_count(CLASSES, parents, 3)


def test_a_cut_at_a_concept_leaves_it_and_the_rest(parents):
    mapping = taxonomies.under(CLASSES, parents, ["thing"])
    assert {name for name, cluster in mapping.items() if cluster == "thing"} == {"saw", "axe"}
    assert {mapping[name] for name in CLASSES[:5]} == {"other"}
    with pytest.raises(InputError, match="none below toy"):
        taxonomies.under(CLASSES, parents, ["toy"])


def test_what_is_written_is_what_data_taxonomy_reads(parents, tmp_path):
    mapping = taxonomies.of_count(CLASSES, parents, 4)
    taxonomies.write_mapping(tmp_path / "four.txt", mapping, "four")
    numbers, names = read_taxonomy(tmp_path / "four.txt", CLASSES)
    assert [names[number] for number in numbers] == [mapping[name] for name in CLASSES]


@pytest.mark.parametrize(
    ("text", "message"),
    [("a b c", "line 1: expected `parent child`"), ("a a", "line 1"), ("a b\nb c\nc a", "its own ancestor")],
)
def test_a_file_that_is_no_hierarchy_is_refused(text, message, tmp_path):
    (tmp_path / "h.txt").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        taxonomies.read_hierarchy(tmp_path / "h.txt")
    with pytest.raises(InputError, match="found no file"):
        taxonomies.read_hierarchy(tmp_path / "no.txt")


def test_classes_that_the_hierarchy_lacks_are_named(parents):
    with pytest.raises(InputError, match="1 of 2 missing, the first cow"):
        taxonomies.rounds(["pug", "cow"], parents)
    with pytest.raises(InputError, match="found none"):
        taxonomies.rounds([], parents)


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
             "NORM.GROUP_SIZE": 0, "SOLVER.STEPS": 2, "RUN.DEVICE": "cpu", "RUN.PRECISION": "float32",
             "RUN.LOG_EVERY": 1, "RUN.KNN_EVERY": 1, "OUTPUT_DIR": tmp_path / "run"}  # fmt: skip
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


def test_a_list_that_is_a_pipe_is_not_waited_for(published):
    (published / "val2018.json").unlink()
    os.mkfifo(published / "val2018.json")
    with pytest.raises(InputError, match=r"expected iNaturalist's published list in .*found a pipe or a device"):
        build_dataset("inaturalist", published, "val2018")


def test_a_list_without_its_images_says_where_they_belong(tmp_path):
    write_list(tmp_path, "train2018.json", {"train_val2018/Aves/2/a.jpg": 2})
    with pytest.raises(InputError, match="extract the year's archive there"):
        build_dataset("inaturalist", tmp_path, "train2018")
