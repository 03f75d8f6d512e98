"""mIoU under weights against images that stand several times in the folder."""

import numpy as np
import pytest
from PIL import Image

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.scores import semantic
from momentum_transfer.verdicts.confusion import Confusions, replicates
from momentum_transfer.verdicts.outcomes import multinomial_weights


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
        weights = multinomial_weights(6, 4)
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
