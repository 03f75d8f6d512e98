import math

import pytest
import torch
from torchvision.ops import MultiScaleRoIAlign

from momentum_transfer.transfer.torchvision_engine.roi_heads import RoIPooler, assign_levels


@pytest.mark.parametrize(
    ("side", "level"), [(8, 2), (111, 2), (112, 3), (223, 3), (224, 4), (447, 4), (448, 5), (2000, 5)]
)
def test_a_box_of_224_pixels_belongs_to_level_four_and_half_of_it_to_the_one_below(side, level):
    assert assign_levels(torch.tensor([[0.0, 0.0, side, side]]), 2, 5).item() == level - 2


def test_levels_follow_the_formula_of_fpn():
    generator = torch.Generator().manual_seed(0)
    sizes = torch.rand(50, 2, generator=generator) * 600 + 4
    found = assign_levels(torch.cat((torch.zeros(50, 2), sizes), dim=1), 2, 5).tolist()
    for (width, height), level in zip(sizes.tolist(), found, strict=True):
        expected = math.floor(4 + math.log2(math.sqrt(width * height) / 224))
        assert level == min(max(expected, 2), 5) - 2


def test_a_box_a_rounding_error_short_of_a_level_belongs_to_it():
    side = torch.tensor(28.0).nextafter(torch.tensor(0.0)).nextafter(torch.tensor(0.0)).item()
    assert assign_levels(torch.tensor([[0.0, 0.0, side, side]]), 0, 5).item() == 1  # 28 = 224 / 8: three below four
    assert assign_levels(torch.tensor([[5.0, 5.0, 5.0, 9.0]]), 2, 5).item() == 0  # without an area: the finest


def test_unaligned_pooling_is_torchvisions():
    torch.manual_seed(0)
    maps = [torch.rand(2, 3, 64 // 2**k, 64 // 2**k) for k in range(2)]
    boxes = [torch.tensor([[10.0, 20.0, 90.0, 80.0], [0.0, 0.0, 250.0, 250.0]]), torch.tensor([[5.0, 5.0, 60.0, 33.0]])]
    theirs = MultiScaleRoIAlign(["0", "1"], 7, 2)
    theirs.scales = [1 / 4, 1 / 8]
    found = RoIPooler(7, [4, 8], sampling_ratio=2, aligned=False)(maps, boxes)
    expected = theirs(dict(zip("01", maps, strict=True)), boxes, [(256, 256), (256, 256)])
    torch.testing.assert_close(found, expected)


def test_aligned_pooling_of_a_linear_ramp_returns_its_values_at_bin_centres():
    ramp = torch.arange(16.0).repeat(16, 1)[None, None]  # the pixel with index i is the value at i + 0.5
    pooled = RoIPooler(4, [1], sampling_ratio=1)([ramp], [torch.tensor([[2.0, 2.0, 10.0, 10.0]])])
    torch.testing.assert_close(pooled[0, 0, 0], torch.tensor([3.0, 5.0, 7.0, 9.0]) - 0.5)


def test_images_without_boxes_give_no_features():
    pooled = RoIPooler(7, [4, 8])([torch.rand(1, 3, 8, 8), torch.rand(1, 3, 4, 4)], [torch.zeros(0, 4)])
    assert pooled.shape == (0, 3, 7, 7)


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_boxes_stay_in_float32_whatever_the_features_are(precision):
    # at 1000 px bfloat16 knows every fourth pixel only; a ramp shows where a box was looked up
    ramp = torch.arange(256.0).repeat(256, 1)[None, None]
    boxes = [torch.tensor([[901.0, 411.0, 971.0, 489.0], [777.0, 333.0, 999.0, 555.0]])]
    exact, coarse = RoIPooler(7, [4])([ramp], boxes), RoIPooler(7, [4])([ramp.to(precision)], boxes)
    assert coarse.dtype == precision
    torch.testing.assert_close(coarse.float(), exact, rtol=2**-8, atol=0)
