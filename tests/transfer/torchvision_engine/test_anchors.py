import pytest
import torch
from torchvision.models.detection.anchor_utils import AnchorGenerator as TorchvisionAnchors
from torchvision.models.detection.image_list import ImageList

from momentum_transfer.transfer.torchvision_engine.boxes import AnchorGenerator, _cell_anchors, _per_level


def test_cell_anchors_have_the_area_and_shape_asked_for_sizes_outermost():
    cells = _cell_anchors([32, 64], [0.5, 1.0, 2.0])
    width, height = cells[:, 2] - cells[:, 0], cells[:, 3] - cells[:, 1]
    torch.testing.assert_close(width * height, torch.tensor([32.0] * 3 + [64.0] * 3) ** 2)
    torch.testing.assert_close(height / width, torch.tensor([0.5, 1.0, 2.0] * 2))
    torch.testing.assert_close(cells[:, :2], -cells[:, 2:])


def test_the_grid_runs_row_by_row_with_anchors_innermost():
    generator = AnchorGenerator([[4.0, 8.0]], [[1.0]], [16])
    anchors = generator([torch.zeros(1, 1, 2, 3)])[0]
    centres = (anchors[:, :2] + anchors[:, 2:]) / 2
    expected = [[x * 16.0, y * 16.0] for y in range(2) for x in range(3) for _ in range(2)]
    assert centres.tolist() == expected


def test_points_of_fcos_are_cell_centres():
    anchors = AnchorGenerator([[8.0]], [[1.0]], [8], offset=0.5)([torch.zeros(1, 1, 1, 2)])[0]
    assert anchors.tolist() == [[0.0, 0.0, 8.0, 8.0], [8.0, 0.0, 16.0, 8.0]]


def test_torchvision_agrees_up_to_its_rounding_where_the_image_is_a_multiple_of_the_stride():
    feature = torch.zeros(1, 1, 4, 6)
    ours = AnchorGenerator([[32.0]], [[0.5, 1.0, 2.0]], [16])([feature])[0]
    theirs = TorchvisionAnchors(((32,),), ((0.5, 1.0, 2.0),))
    found = theirs(ImageList(torch.zeros(1, 3, 64, 96), [(64, 96)]), [feature])[0]
    assert (ours - found).abs().max() <= 0.5


def test_strides_stay_fixed_where_the_image_is_no_multiple():
    # 100 px at stride 32 give 4 cells; torchvision would place them 25 px apart
    anchors = AnchorGenerator([[32.0]], [[1.0]], [32])([torch.zeros(1, 1, 4, 4)])[0]
    assert (anchors[1] - anchors[0]).tolist() == [32.0, 0.0, 32.0, 0.0]


def test_one_list_serves_every_level_and_a_wrong_count_is_refused():
    assert _per_level([[1.0, 2.0]], 3) == [[1.0, 2.0]] * 3
    with pytest.raises(ValueError, match="1 or 3 levels, found 2"):
        _per_level([[1.0], [2.0]], 3)
