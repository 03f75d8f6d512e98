"""mIoU under weights against images that stand several times in the folder."""

import numpy as np
import pytest
from PIL import Image

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.scores import semantic
from momentum_transfer.verdicts.confusion import Confusions, metrics, replicates
from momentum_transfer.verdicts.outcomes import item_weights


def test_weights_are_label_images_that_are_listed_several_times(tmp_path):
    random = np.random.default_rng(0)
    truth, predicted = [], []
    for number in range(6):
        for side, files in (("truth", truth), ("predicted", predicted)):
            labels = random.choice([0, 1, 2, 4, 255], (9, 11), p=[0.5, 0.2, 0.1, 0.1, 0.1]).astype(np.uint8)
            file = tmp_path / f"{side}_{number}.png"
            Image.fromarray(labels).save(file)
            files.append(file)
    for absent in ("ground-truth", "union"):
        found = semantic.evaluate(truth, predicted, 6, absent_classes=absent)
        np.savez_compressed(tmp_path / "items.npz", **found.items.arrays())
        with np.load(tmp_path / "items.npz") as archive:
            items = Confusions.from_arrays(dict(archive))
        unit = replicates(items, np.ones((1, 6), np.int32))
        assert {name: values[0] for name, values in unit.items()} == found.metrics
        weights = item_weights(6, 4)
        ours = replicates(items, weights)
        for row, weight in enumerate(weights):
            twice = [[file for file, times in zip(files, weight, strict=True) for _ in range(times)]
                     for files in (truth, predicted)]  # fmt: skip
            for name, value in semantic.evaluate(*twice, 6, absent_classes=absent).metrics.items():
                assert ours[name][row] == pytest.approx(value, rel=1e-12), name


def test_damaged_confusions_are_refused():
    items = Confusions(2, 3, "union", np.array([0, 5]), np.array([1, 2]), np.array([3, 4]))
    with pytest.raises(InputError, match="damaged"):
        Confusions.from_arrays(items.arrays())
    with pytest.raises(InputError, match="confusion matrices per image"):
        Confusions.from_arrays({"shape": np.array([1, 2])})


def made(image=(0, 1), cell=(1, 11), pixels=(3, 4), **changes) -> Confusions:
    """Two images of three classes: cells are 0 to 11."""
    values = {"images": 2, "classes": 3, "absent": "union"} | changes
    arrays = (np.array(part, dtype=np.int64) for part in (image, cell, pixels))
    return Confusions(values["images"], values["classes"], values["absent"], *arrays)


def test_what_was_written_is_read_back_up_to_the_last_image_and_cell():
    for items in (made(), made((), (), ()), made((1,), (0,), (1 << 32,)), made((1,), (0,), ((1 << 32) - 1,))):
        found = Confusions.from_arrays(items.arrays())
        assert (found.images, found.classes, found.absent) == (2, 3, "union")
        for name in ("image", "cell", "pixels"):
            assert np.array_equal(getattr(found, name), getattr(items, name))
    assert made().arrays()["pixels"].dtype == made((1,), (0,), ((1 << 32) - 1,)).arrays()["pixels"].dtype == np.uint32
    assert made((1,), (0,), (1 << 32,)).arrays()["pixels"].dtype == np.uint64


@pytest.mark.parametrize(
    "items", [made(image=(0, 2)), made(cell=(0, 12)), made(image=(2,), cell=(0,), pixels=(1,)), made(image=(0,)),
              made(cell=(0,)), made(pixels=(1,)), made(absent="none"),
              made(image=(0,), cell=(12,), pixels=(1,))],
)  # fmt: skip
def test_places_that_do_not_exist_are_refused(items: Confusions):
    with pytest.raises(InputError, match="whose arrays fit each other, found a damaged set"):
        Confusions.from_arrays(items.arrays())


def test_the_total_and_the_test_set_are_of_the_pixels_of_each_class():
    items = made((0, 0, 1, 1), (0, 1, 1, 11), (5, 1, 2, 4))
    assert items.total().tolist() == [[5, 3, 0, 0], [0, 0, 0, 0], [0, 0, 0, 4]]
    assert items.test_set == made((0, 1, 1), (3, 2, 8), (6, 2, 4)).test_set  # other predictions on the same pixels
    assert items.test_set != made((0, 1, 1), (3, 2, 8), (6, 3, 4)).test_set
    assert items.test_set != made((0, 1, 1), (3, 2, 4), (6, 2, 4)).test_set
    assert items.test_set != made((1, 0, 0), (3, 2, 8), (6, 2, 4)).test_set


def test_metrics_are_their_definitions_and_absent_classes_count_as_asked():
    # class 0: 6 of 8 right; class 1 is only predicted; class 2: 2 of 4 right, 2 without a class
    table = np.array([[6, 2, 0, 0], [0, 0, 0, 0], [0, 0, 2, 2]])
    found = metrics(table, "ground-truth")
    wanted = {"mIoU": (6 / 8 + 2 / 4) / 2, "mIoU_ground_truth": (6 / 8 + 2 / 4) / 2, "mIoU_union": (6 / 8 + 2 / 4) / 3,
              "fwIoU": (8 * 6 / 8 + 4 * 2 / 4) / 12, "mACC": (6 / 8 + 2 / 4) / 2, "pACC": 8 / 12}  # fmt: skip
    assert found == pytest.approx({name: 100 * value for name, value in wanted.items()})
    assert metrics(table, "union")["mIoU"] == found["mIoU_union"]
    assert np.isnan(list(metrics(np.zeros((3, 4), int), "union").values())).all()
