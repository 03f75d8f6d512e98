import json

import numpy as np
import PIL.Image
import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.data.annotations import open_dataset
from momentum_transfer.transfer.data.crops import _MARGIN, _MOST_SIDE, _crop, write_crops


@pytest.fixture
def dataset(tmp_path):
    """Two images whose boxes are filled with the number of their annotation."""
    boxes = {1: [(1, 3, [10, 20, 30, 20]), (2, 7, [60, 5, 10, 40])], 2: [(3, 7, [0, 0, 50, 50]), (4, 3, [5, 5, 2, 2])]}
    content = {"images": [], "annotations": [], "categories": [{"id": 7, "name": "b"}, {"id": 3, "name": "a"}]}
    for number, entries in boxes.items():
        pixels = np.zeros((64, 96, 3), np.uint8)
        for identifier, category, (x, y, w, h) in entries:
            pixels[y : y + h, x : x + w] = 10 * identifier
            content["annotations"].append({"id": identifier, "image_id": number, "category_id": category,
                                           "bbox": [x, y, w, h], "area": w * h, "iscrowd": 0})  # fmt: skip
        PIL.Image.fromarray(pixels).save(tmp_path / f"{number}.png")
        content["images"].append({"id": number, "file_name": f"{number}.png", "width": 96, "height": 64})
    (tmp_path / "labels.json").write_text(json.dumps(content))
    return open_dataset("small", tmp_path, tmp_path / "labels.json")


def test_every_box_that_shows_something_is_cut_out_under_its_class(dataset, tmp_path):
    made = write_crops(dataset, tmp_path / "crops", most=100)
    assert [(path.name, dataset.classes[label]) for path, label in made] == [
        ("1_1.png", "a"), ("1_2.png", "b"), ("2_3.png", "b"),
    ]  # fmt: skip
    for path, _ in made:
        pixels = np.asarray(PIL.Image.open(path))
        number = 10 * int(path.stem.split("_")[1])
        assert (pixels == number).any()
        assert pixels.max() <= max(number, 40)
    stamps = [path.stat().st_mtime_ns for path, _ in made]
    assert [path.stat().st_mtime_ns for path, _ in write_crops(dataset, tmp_path / "crops", most=100)] == stamps


def test_a_crop_is_a_square_that_holds_its_box_and_stays_within_the_image():
    generator = np.random.default_rng(0)
    for _ in range(200):
        width, height = (int(side) for side in generator.integers(40, 200, 2))
        w, h = (int(generator.integers(5, side)) for side in (width, height))
        x, y = int(generator.integers(0, width - w + 1)), int(generator.integers(0, height - h + 1))
        pixels = np.zeros((height, width, 3), np.uint8)
        pixels[y : y + h, x : x + w] = 255
        cut = np.asarray(_crop(PIL.Image.fromarray(pixels), [x, y, w, h]))
        side = max(w, h) * _MARGIN
        assert abs(cut.shape[0] - min(side, height)) <= 1
        assert abs(cut.shape[1] - min(side, width)) <= 1
        assert (cut[..., 0] == 255).sum() == w * h


def test_large_crops_shrink_and_a_seed_chooses_among_many(dataset, tmp_path):
    assert max(_crop(PIL.Image.new("RGB", (2000, 1500)), [0, 0, 1900, 1400]).size) == _MOST_SIDE
    chosen = write_crops(dataset, tmp_path / "crops", most=2, seed=1)
    assert chosen == write_crops(dataset, tmp_path / "crops", most=2, seed=1)
    assert len(chosen) == 2


def test_a_set_without_boxes_is_refused(dataset, tmp_path):
    dataset.load()["annotations"].clear()
    with pytest.raises(InputError, match="expected boxes of at least 4 px in small, found none"):
        write_crops(dataset, tmp_path / "crops", most=10)
