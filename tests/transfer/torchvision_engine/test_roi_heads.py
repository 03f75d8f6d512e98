"""The proposals that train the heads."""

import pytest
import torch

from momentum_transfer.transfer.torchvision_engine.roi_heads import (
    ProposalSampler,
    foreground,
    label_proposals,
    mask_targets,
)
from momentum_transfer.transfer.torchvision_engine.structures import BitMasks, Proposals, Target

BACKGROUND = 3
TARGET = Target(torch.tensor([[0.0, 0.0, 10.0, 10.0], [20.0, 20.0, 40.0, 30.0]]), torch.tensor([2, 0]))
#: Overlaps with the nearest object: 0.8, 0.4, 0.5, 0.0.
PROPOSED = Proposals(
    torch.tensor([[0.0, 0.0, 10.0, 8.0], [0.0, 0.0, 4.0, 10.0], [20.0, 20.0, 30.0, 30.0], [50.0, 0.0, 60.0, 10.0]]),
    (64, 64),
)


def sampler(append=False, thresholds=(0.5,), labels=(0, 1), batch_size=100, fraction=1.0):
    return ProposalSampler(
        BACKGROUND, thresholds, labels, batch_size=batch_size, positive_fraction=fraction, append_ground_truth=append
    )


def rows(drawn):
    return sorted(zip(drawn.boxes.tolist(), drawn.classes.tolist(), drawn.matched_boxes.tolist(), strict=True))


def test_proposals_take_the_class_and_box_of_the_object_they_overlap_enough():
    labelled = label_proposals(PROPOSED, TARGET, [0.5], [0, 1], BACKGROUND)
    assert labelled.classes.tolist() == [2, BACKGROUND, 0, BACKGROUND]
    assert labelled.matched[:3].tolist() == [0, 0, 1]
    assert labelled.matched_boxes[2].tolist() == TARGET.boxes[1].tolist()


def test_an_interval_labelled_minus_one_is_never_drawn():
    labelled = label_proposals(PROPOSED, TARGET, [0.3, 0.6], [0, -1, 1], BACKGROUND)
    assert labelled.classes.tolist() == [2, -1, -1, BACKGROUND]
    drawn = sampler(thresholds=(0.3, 0.6), labels=(0, -1, 1))([PROPOSED], [TARGET])[0]
    assert sorted(drawn.classes.tolist()) == [2, BACKGROUND]


@pytest.mark.parametrize("append", [False, True])
def test_true_boxes_join_the_proposals_only_where_that_is_asked_for(append):
    drawn = sampler(append)([PROPOSED], [TARGET])[0]
    given = [*PROPOSED.boxes.tolist(), *(TARGET.boxes.tolist() if append else [])]
    assert [row[0] for row in rows(drawn)] == sorted(given)
    exact = [row for row in rows(drawn) if row[0] == row[2]]
    assert [row[1] for row in exact] == ([2, 0] if append else [])


def test_a_batch_holds_at_most_its_share_of_foreground():
    many = Proposals(PROPOSED.boxes.repeat(20, 1), (64, 64))
    drawn = sampler(batch_size=16, fraction=0.25)([many], [TARGET])[0]
    assert len(drawn.boxes) == 16
    assert (drawn.classes != BACKGROUND).sum() == 4


def test_without_objects_everything_is_background():
    empty = Target(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
    assert sampler(True)([PROPOSED], [empty])[0].classes.tolist() == [BACKGROUND] * 4


def test_each_foreground_proposal_is_to_draw_the_mask_of_its_own_object():
    bitmaps = torch.zeros(2, 64, 64, dtype=torch.bool)
    bitmaps[0, :10, :10], bitmaps[1, 20:30, 20:30] = True, True  # the second one: the left half of its box
    target = Target(TARGET.boxes, TARGET.classes, BitMasks(bitmaps))
    labelled = label_proposals(Proposals(TARGET.boxes.flip(0), (64, 64)), target, [0.5], [0, 1], BACKGROUND)
    masks = mask_targets(foreground([labelled], BACKGROUND), [target], 4)
    assert masks[0].tolist() == [[True, True, False, False]] * 4
    assert masks[1].all()
