"""The overview counts what is there and draws it where it is."""

import csv
import json
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.data.annotations import DetectionData, decode_mask
from momentum_transfer.transfer.data.detection_datasets import get_dataset
from momentum_transfer.transfer.data.overview import _class_histogram, write_overview


@pytest.fixture
def data(tmp_path: Path) -> DetectionData:
    for k in (1, 2, 3):
        PIL.Image.new("RGB", (100, 100)).save(tmp_path / f"{k}.png")
    polygon = [[10, 20, 40, 20, 40, 60, 10, 60]]
    boxes = [(1, 1, 1, 0), (2, 1, 1, 0), (3, 2, 1, 0), (4, 2, 2, 0), (5, 1, 2, 1)]
    content = {
        "images": [{"id": k, "file_name": f"{k}.png", "height": 100, "width": 100} for k in (1, 2, 3)],
        "annotations": [
            {
                "id": i,
                "image_id": image,
                "category_id": c,
                "bbox": [10, 20, 30, 40],
                "segmentation": polygon,
                "iscrowd": crowd,
            }
            for i, image, c, crowd in boxes
        ],
        "categories": [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}, {"id": 3, "name": "c"}],
    }
    (tmp_path / "own.json").write_text(json.dumps(content))
    return get_dataset(f"{tmp_path}:{tmp_path / 'own.json'}")


def test_histogram_counts_images_and_instances_without_crowds(data: DetectionData):
    assert _class_histogram(data) == [("a", 2, 3), ("b", 1, 1), ("c", 0, 0)]


def test_overview_writes_table_plot_and_annotated_examples(data: DetectionData, tmp_path: Path):
    files = write_overview(data, tmp_path / "run", examples=6)
    assert len(files) == 4  # two of the three images have annotations
    with open(files[0], encoding="utf-8") as stream:
        assert list(csv.reader(stream))[1:] == [["a", "2", "3"], ["b", "1", "1"], ["c", "0", "0"]]
    for file in files[1:]:
        assert PIL.Image.open(file).size[0] > 100


def test_example_is_drawn_where_the_box_and_mask_are(data: DetectionData, tmp_path: Path):
    pixels = np.asarray(PIL.Image.open(write_overview(data, tmp_path / "run")[-1])).astype(int).sum(2)
    assert pixels.shape == (300, 300)
    assert pixels[90:165, 45:105].min() > 0  # masked
    assert pixels[60, 30:120].min() > 0  # edges of the box
    assert pixels[180, 30:120].min() > 0
    assert pixels[210:, :].max() == 0
    assert pixels[:, 180:].max() == 0


def test_all_forms_of_a_mask_decode_alike():
    mask = np.zeros((6, 5), bool)
    mask[1:4, 2:4] = True
    polygon = [[2, 1, 4, 1, 4, 4, 2, 4]]
    lengths = {"size": [6, 5], "counts": [13, 3, 3, 3, 8]}
    np.testing.assert_array_equal(decode_mask(polygon, 6, 5), mask)
    np.testing.assert_array_equal(decode_mask(lengths, 6, 5), mask)


def test_unreadable_image_is_named(data: DetectionData, tmp_path: Path):
    data.image_path(data.load()["images"][0]).write_bytes(b"")
    with pytest.raises(InputError, match=r"cannot read the image .*1\.png"):
        write_overview(data, tmp_path / "run")
