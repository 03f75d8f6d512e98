import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.ops import box_iou

from momentum_transfer.transfer.torchvision_engine import boxes


def random_boxes(count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(count, 2, generator=generator) * 50
    return torch.cat((corner, corner + 1 + torch.rand(count, 2, generator=generator) * 30), dim=1)


def test_overlap_equals_torchvisions_and_is_zero_for_empty_boxes():
    a, b = random_boxes(7), random_boxes(5, seed=1)
    torch.testing.assert_close(boxes.pairwise_iou(a, b), box_iou(a, b))
    empty = torch.tensor([[3.0, 3.0, 3.0, 3.0]])
    assert boxes.pairwise_iou(empty, empty).item() == 0.0


def naive_match(quality, thresholds, labels, low_quality):
    index, label = [], []
    for candidate in range(quality.shape[1]):
        best = max(range(quality.shape[0]), key=lambda g: (quality[g, candidate].item(), -g))
        value = quality[best, candidate].item()
        interval = sum(value >= threshold for threshold in thresholds)
        chosen = labels[interval]
        if low_quality and any(quality[g, candidate] == quality[g].max() for g in range(quality.shape[0])):
            chosen = 1
        index.append(best)
        label.append(chosen)
    return index, label


@pytest.mark.parametrize("low_quality", [False, True])
@pytest.mark.parametrize(("thresholds", "labels"), [([0.3, 0.7], [0, -1, 1]), ([0.5], [0, 1])])
@pytest.mark.parametrize("seed", range(5))
def test_matching_equals_a_loop_over_pairs(thresholds, labels, low_quality, seed):
    # tenths, so that ties occur
    quality = torch.randint(0, 11, (4, 30), generator=torch.Generator().manual_seed(seed)).float() / 10
    index, label = boxes.match(quality, [t + 1e-6 for t in thresholds], labels, low_quality=low_quality)
    expected_index, expected_label = naive_match(quality, [t + 1e-6 for t in thresholds], labels, low_quality)
    assert label.tolist() == expected_label
    torch.testing.assert_close(quality[index, range(30)], quality[expected_index, range(30)])


def test_without_objects_everything_is_background():
    index, label = boxes.match(torch.zeros(0, 4), [0.3, 0.7], [0, -1, 1], low_quality=True)
    assert index.tolist() == [0, 0, 0, 0]
    assert label.tolist() == [0, 0, 0, 0]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(-1, 3), max_size=40), st.integers(1, 20), st.floats(0, 1))
def test_a_sample_keeps_to_its_size_and_its_share_of_foreground(labels, count, fraction):
    positive, negative = boxes.sample(torch.tensor(labels, dtype=torch.int64), count, fraction, background=3)
    assert len(set(positive.tolist() + negative.tolist())) == len(positive) + len(negative)
    assert all(labels[i] in (0, 1, 2) for i in positive)
    assert all(labels[i] == 3 for i in negative)
    foreground = sum(label in (0, 1, 2) for label in labels)
    assert len(positive) == min(foreground, int(count * fraction))
    assert len(negative) == min(labels.count(3), count - len(positive))


def test_offsets_of_a_box_lead_back_to_it():
    references, wanted = random_boxes(9), random_boxes(9, seed=1)
    coder = boxes.OffsetCoder((10.0, 10.0, 5.0, 5.0))
    torch.testing.assert_close(coder.decode(coder.encode(references, wanted), references), wanted)


def test_offsets_are_the_closed_form():
    coder = boxes.OffsetCoder((1.0, 1.0, 1.0, 1.0))
    offsets = coder.encode(torch.tensor([[0.0, 0.0, 10.0, 20.0]]), torch.tensor([[5.0, 0.0, 25.0, 10.0]]))
    torch.testing.assert_close(offsets, torch.tensor([[1.0, -0.25, 2.0, 0.5]]).clone().index_copy_(
        1, torch.tensor([2, 3]), torch.log(torch.tensor([[2.0, 0.5]]))))  # fmt: skip


def test_half_precision_offsets_are_decoded_in_full_precision():
    references = torch.tensor([[1000.0, 1000.0, 1032.0, 1032.0]])
    decoded = boxes.OffsetCoder((1.0, 1.0, 1.0, 1.0)).decode(torch.zeros(1, 4, dtype=torch.bfloat16), references)
    assert decoded.dtype == torch.float32
    assert torch.equal(decoded, references)


def test_distances_of_a_box_lead_back_to_it():
    points = torch.tensor([[8.0, 8.0, 16.0, 16.0], [0.0, 0.0, 32.0, 32.0]])
    wanted = torch.tensor([[4.0, 2.0, 30.0, 50.0], [10.0, 1.0, 20.0, 60.0]])
    coder = boxes.DistanceCoder()
    distances = coder.encode(points, wanted)
    torch.testing.assert_close(distances[0], torch.tensor([8.0, 10.0, 18.0, 38.0]) / 8)
    torch.testing.assert_close(coder.decode(distances, points), wanted)


def test_negative_distances_give_no_inverted_box():
    decoded = boxes.DistanceCoder().decode(torch.full((1, 4), -3.0), torch.tensor([[0.0, 0.0, 8.0, 8.0]]))
    assert decoded.tolist() == [[4.0, 4.0, 4.0, 4.0]]


def test_clipping_keeps_boxes_in_the_image():
    clipped = boxes.clip(torch.tensor([[-5.0, -1.0, 30.0, 12.0]]), (10, 20))
    assert clipped.tolist() == [[0.0, 0.0, 20.0, 10.0]]
    assert boxes.nonempty(torch.tensor([[1.0, 1.0, 1.0, 5.0], [1.0, 1.0, 2.0, 5.0]])).tolist() == [False, True]


def test_a_box_without_a_side_is_empty():
    found = torch.tensor([[0.0, 0, 2, 3], [5, 5, 5, 9], [5, 5, 9, 5], [3, 0, 2, 3], [0, 0, 1, 2]])
    assert boxes.nonempty(found).tolist() == [True, False, False, False, True]
    assert boxes.nonempty(found, 1.0).tolist() == [True, False, False, False, False]
    assert boxes.nonempty(found, 2.0).tolist() == [False] * 5
    assert boxes.area(found).tolist() == [6.0, 0.0, 0.0, -3.0, 2.0]


def test_boxes_are_limited_to_the_image():
    found = boxes.clip(torch.tensor([[[-1.0, -2, 30, 40], [3, 4, 5, 6], [25, 35, 26, 36]]]), (12, 20))
    assert found.tolist() == [[[0, 0, 20, 12], [3, 4, 5, 6], [20, 12, 20, 12]]]


def test_distances_are_from_the_centre_in_sides_of_the_reference():
    references = torch.tensor([[4.0, 8.0, 12.0, 16.0], [4.0, 8.0, 8.0, 16.0]])  # centres (8, 12), (6, 12)
    wanted = torch.tensor([[2.0, 4.0, 20.0, 30.0]]).repeat(2, 1)
    coder = boxes.DistanceCoder()
    distances = [[6 / 8, 8 / 8, 12 / 8, 18 / 8], [4 / 4, 8 / 8, 14 / 4, 18 / 8]]
    assert coder.encode(references, wanted).tolist() == distances
    torch.testing.assert_close(coder.decode(coder.encode(references, wanted), references), wanted)
