import itertools

import numpy as np
import PIL.Image
import pytest
import torch

from momentum_transfer.core.errors import InputError
from momentum_transfer.images.datasets import ArrayImages, FileImages
from momentum_transfer.images.opencv_views import PixelArrays
from momentum_transfer.images.views import eval_transform
from momentum_transfer.lowshot.augment import WeakAndStrong, weak_view
from momentum_transfer.lowshot.labelled_data import Stream, evaluation_batches, steps_of, training_batches

PIXELS = np.random.default_rng(0).integers(0, 255, (10, 16, 16, 3), dtype=np.uint8)
IMAGES = ArrayImages(PIXELS, [0, 1] * 5, ["a", "b"])
ROWS = np.array([1, 3, 4, 8, 9])


def test_every_epoch_of_the_stream_shows_every_row_once():
    places = list(itertools.chain.from_iterable(Stream(ROWS, 2, 10, seed=0)))
    assert [epoch for epoch, _ in places] == sorted(epoch for epoch, _ in places)
    for epoch in range(4):
        assert sorted(row for own, row in places if own == epoch) == ROWS.tolist()
    assert [row for _, row in places[:5]] != [row for _, row in places[5:10]]


def test_stream_that_starts_later_gives_the_same_batches():
    whole = list(Stream(ROWS, 3, 9, seed=1))
    assert list(Stream(ROWS, 3, 9, seed=1, start=4)) == whole[4:]
    assert len(Stream(ROWS, 3, 9, seed=1, start=4)) == 5


def test_batch_may_exceed_the_number_of_rows():
    (batch,) = Stream(ROWS[:2], 5, 1, seed=0)
    assert [epoch for epoch, _ in batch] == [0, 0, 1, 1, 2]


def test_processes_divide_each_batch_without_overlap(monkeypatch):
    whole = list(Stream(ROWS, 4, 3, seed=0))
    monkeypatch.setattr("momentum_transfer.core.distributed.world_size", lambda: 2)
    parts = []
    for rank in (0, 1):
        monkeypatch.setattr("momentum_transfer.core.distributed.rank", lambda rank=rank: rank)
        parts.append(list(Stream(ROWS, 4, 3, seed=0)))
    for one, other, both in zip(*parts, whole, strict=True):
        assert [place for pair in zip(one, other, strict=True) for place in pair] == both
    with pytest.raises(InputError, match="a batch size that 2 processes can divide equally, found 5"):
        Stream(ROWS, 5, 3, seed=0)


def test_no_rows_are_refused():
    with pytest.raises(InputError, match="at least one image to train on"):
        Stream(np.array([], np.int64), 2, 1, seed=0)


def test_number_of_steps_rounds_and_is_at_least_one():
    assert [steps_of(2, 10, 4), steps_of(0.01, 10, 4)] == [5, 1]


@pytest.mark.parametrize("workers", [0, 2])
def test_augmented_batches_depend_on_seed_and_step_alone(workers):
    def run(start, workers):
        view = weak_view("cifar10", 16)
        return list(training_batches(IMAGES, view, Stream(ROWS, 2, 6, seed=3, start=start), workers))

    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    whole = run(0, 0)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    for (images, labels), (again, same) in zip(whole[2:], run(2, workers), strict=True):
        assert torch.equal(images, again)
        assert torch.equal(labels, same)


def test_memory_is_pinned_only_where_the_process_uses_a_gpu(monkeypatch):
    def pinned():
        labelled = training_batches(IMAGES, weak_view("cifar10", 16), Stream(ROWS, 2, 6, seed=3), 0)
        return labelled.pin_memory, evaluation_batches(IMAGES, weak_view("cifar10", 16), ROWS, 2, 0).pin_memory

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert pinned() == (False, False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert pinned() == (True, True)


@pytest.mark.parametrize("build", [weak_view, WeakAndStrong])
def test_opencvs_views_of_files_are_those_of_pillows_images_in_workers_and_resumed(build, tmp_path):
    pytest.importorskip("cv2")
    rng = np.random.default_rng(0)
    for k in range(6):
        pixels = PIL.Image.fromarray(rng.integers(0, 256, (5, 7, 3), np.uint8)).resize((70, 50))
        pixels.save(tmp_path / f"{k}.jpg")
    files = FileImages(sorted(tmp_path.iterdir()), [0, 1] * 3, ["a", "b"])
    view = build("imagefolder", 32, backend="opencv")

    def run(start, workers, view=view):
        batches = training_batches(files, view, Stream(np.arange(6), 2, 5, seed=3, start=start), workers)
        return [images if isinstance(images, torch.Tensor) else torch.cat(images) for images, _ in batches]

    alone = run(0, 0)
    assert torch.equal(torch.stack(alone[2:]), torch.stack(run(2, 2)))
    assert isinstance(training_batches(files, view, Stream(np.arange(6), 2, 5, seed=3), 0).dataset.dataset, PixelArrays)
    by_pillow = run(0, 0, lambda image: view(image))
    assert torch.equal(torch.stack(alone), torch.stack(by_pillow))


def test_labels_travel_with_their_images():
    for _, labels in training_batches(IMAGES, weak_view("digits", 16), stream := Stream(ROWS, 5, 1, seed=0), 0):
        (places,) = list(stream)
        assert labels.tolist() == [int(IMAGES.labels[row]) for _, row in places]


def test_evaluation_shows_each_row_once_in_order():
    transform = eval_transform("cifar10", 16)
    batches = list(evaluation_batches(IMAGES, transform, ROWS, 2, 0))
    assert torch.cat([labels for _, labels in batches]).tolist() == IMAGES.labels[ROWS].tolist()
    assert torch.equal(batches[0][0][1], transform(IMAGES[3][0]))


def test_views_keep_size_and_normalisation_and_digits_are_never_mirrored():
    wide = np.zeros((16, 16, 3), np.uint8)
    wide[:, 10:] = 255  # bright on the right, whatever the shift by two
    image = ArrayImages(wide[None], [0], ["a"])[0][0]
    for seed in range(20):
        torch.manual_seed(seed)
        view = weak_view("digits", 16)(image)
        assert view.shape == (3, 16, 16)
        assert view[0, :, 13].mean() > view[0, :, 5].mean()
    assert torch.equal(eval_transform("digits", 16)(image).amax((1, 2)), view.amax((1, 2)))


def test_weak_and_strong_view_have_their_own_randomness():
    torch.manual_seed(0)
    weak, strong = WeakAndStrong("imagefolder", 8)(IMAGES[0][0])
    assert weak.shape == strong.shape == (3, 8, 8)
    torch.manual_seed(0)
    assert torch.equal(weak, weak_view("imagefolder", 8)(IMAGES[0][0]))
    torch.manual_seed(0)
    assert not torch.equal(strong, WeakAndStrong("imagefolder", 8).strong(IMAGES[0][0]))
