import torch

from momentum_transfer.pretrain.methods.moco import NegativeQueue


def numbered(first, count):
    return torch.arange(first, first + count).float()[:, None].repeat(1, 2)


def test_oldest_keys_are_overwritten_first_across_the_end():
    queue = NegativeQueue(8, 2)
    for first in (0, 3, 6, 9):
        queue.enqueue(numbered(first, 3))
    assert queue.keys[:, 0].tolist() == [8, 9, 10, 11, 4, 5, 6, 7]
    assert queue.pointer == 4


def test_a_batch_larger_than_the_queue_leaves_its_last_keys():
    queue = NegativeQueue(4, 2)
    queue.enqueue(numbered(0, 10))
    assert sorted(queue.keys[:, 0].tolist()) == [6, 7, 8, 9]
    queue.enqueue(numbered(10, 1))
    assert sorted(queue.keys[:, 0].tolist()) == [7, 8, 9, 10]


def test_queue_starts_with_unit_vectors_and_resumes_with_its_pointer():
    queue, resumed = NegativeQueue(5, 3), NegativeQueue(5, 3)
    torch.testing.assert_close(queue.keys.norm(dim=1), torch.ones(5))
    queue.enqueue(torch.ones(3, 3))
    resumed.load_state_dict(queue.state_dict())
    for each in (queue, resumed):
        each.enqueue(torch.zeros(3, 3))
    assert torch.equal(queue.keys, resumed.keys)
