import pytest

from momentum_transfer.transfer.torchvision_engine.detection_run import repeat_factors


def test_repeat_factors_are_the_square_root_of_threshold_over_frequency():
    # class 0 in all 8 images, class 1 in 2 of them, class 2 in one
    images = [{0, 2}, {0, 1}, {0, 1}, *[{0}] * 4, {0}]
    factors = repeat_factors(images, threshold=0.5)
    assert factors.tolist() == pytest.approx([2.0, 2**0.5, 2**0.5, 1, 1, 1, 1, 1])
    assert repeat_factors(images, 0.5, sqrt=False).tolist() == pytest.approx([4.0, 2.0, 2.0, 1, 1, 1, 1, 1])
    assert repeat_factors([set(), {0}], 0.1).tolist() == [1.0, 1.0]
