"""Small data that a classifier can learn, the same for every seed but for the noise."""

import numpy as np

from momentum_transfer.images.datasets import ArrayImages
from momentum_transfer.lowshot.features.feature_set import FeatureSet


def clusters(seed, count, classes=6, dim=16, spread=1.2):
    """Features around class centres that are the same for every seed; classes of unequal size."""
    centres = np.random.default_rng(99).standard_normal((classes, dim))
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, count)
    labels[:classes] = np.arange(classes)
    features = centres[labels] + spread * generator.standard_normal((count, dim))
    return FeatureSet(features.astype(np.float32), labels, f"set {seed}", "0" * 64)


def bright_or_dark(count, seed):
    """Noise of 16 px, of two classes in turn; images of the second have a bright upper half."""
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    pixels = generator.integers(0, 80, (count, 16, 16, 3))
    pixels[labels == 1, :8] += 120
    return ArrayImages(pixels.astype(np.uint8), labels, ["a", "b"])
