import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from momentum_transfer.core.errors import InputError
from momentum_transfer.lowshot.labelled_data import (
    _balanced_fraction,
    _class_members,
    from_file_list,
    sample_classes,
    set_aside,
)


def sample_shots(*arguments, **options):
    return np.unique(np.concatenate(sample_classes(*arguments, **options)))


LABELS = np.random.default_rng(0).integers(0, 7, 400)


def test_class_members_lists_every_image_once():
    members = _class_members(LABELS)
    assert [list(part) for part in members] == [[i for i, own in enumerate(LABELS) if own == c] for c in range(7)]


def test_class_members_of_multi_hot_labels_lists_an_image_under_each_of_its_classes():
    assert [part.tolist() for part in _class_members(np.array([[1, 1], [0, 1]]))] == [[0], [0, 1]]


@given(shots=st.integers(1, 20), trial=st.integers(0, 9), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_samples_are_class_balanced_without_repetition_and_reproducible(shots, trial, seed):
    rows = sample_shots(LABELS, shots, trial, seed)
    assert len(np.unique(rows)) == len(rows)
    assert np.bincount(LABELS[rows]).tolist() == [shots] * 7
    assert np.array_equal(rows, sample_shots(LABELS, shots, trial, seed))


def test_samples_of_trials_differ_and_are_nested_over_shots():
    assert not np.array_equal(sample_shots(LABELS, 4, 0, 0), sample_shots(LABELS, 4, 1, 0))
    assert set(sample_shots(LABELS, 4, 0, 0)) < set(sample_shots(LABELS, 8, 0, 0))


def test_classes_are_sampled_independently_of_one_another():
    labels = np.repeat(np.arange(8), 50)
    for rows in (sample_shots(labels, 3, 0, 0), _balanced_fraction(labels, 0.06, 0), set_aside(labels, 3, 0)[1]):
        places = {tuple(rows[labels[rows] == label] % 50) for label in range(8)}
        assert len(places) == 8


def test_held_out_part_depends_on_the_seed():
    assert not np.array_equal(set_aside(LABELS, 5, 0)[1], set_aside(LABELS, 5, 1)[1])
    assert np.array_equal(set_aside(LABELS, 5, 1)[1], set_aside(LABELS, 5, 1)[1])


def test_multi_label_sample_holds_k_images_of_every_class():
    labels = (np.random.default_rng(1).random((300, 6)) < 0.2).astype(np.int64)
    rows = sample_shots(labels, 5, 0, 0)
    assert (labels[rows].sum(axis=0) >= 5).all()
    assert len(np.unique(rows)) == len(rows)


def test_small_class_is_an_error_that_names_it():
    with pytest.raises(InputError, match="class 1 has 2 images to sample from, expected at least 3"):
        sample_shots(np.array([0, 0, 0, 1, 1]), 3, 0, 0)


def test_small_class_gives_all_it_has_where_that_is_allowed():
    assert sample_shots(np.array([0, 0, 0, 1, 1]), 3, 0, 0, allow_fewer=True).tolist() == [0, 1, 2, 3, 4]


def test_pool_and_held_out_are_disjoint_and_complete():
    pool, held = set_aside(LABELS, 5, 0)
    assert sorted([*pool, *held]) == list(range(400))
    assert np.bincount(LABELS[held]).tolist() == [5] * 7


def test_held_out_part_takes_at_most_half_of_a_class():
    pool, held = set_aside(np.array([0] * 10 + [1] * 3 + [2]), 4, 0)
    assert np.bincount(np.array([0] * 10 + [1] * 3 + [2])[held], minlength=3).tolist() == [4, 1, 0]
    assert len(pool) == 9


def test_fraction_is_balanced_over_classes_and_reproducible():
    labels = np.repeat(np.arange(10), 100)
    rows = _balanced_fraction(labels, 0.1, 3)
    assert np.bincount(labels[rows]).tolist() == [10] * 10
    assert np.array_equal(rows, _balanced_fraction(labels, 0.1, 3))
    assert not np.array_equal(rows, _balanced_fraction(labels, 0.1, 4))
    assert len(_balanced_fraction(labels, 1.0, 0)) == 1000


def test_tiny_fraction_keeps_one_image_of_every_class():
    assert np.bincount(LABELS[_balanced_fraction(LABELS, 1e-6, 0)]).tolist() == [1] * 7


@pytest.mark.parametrize("fraction", [0.0, -1.0, 1.5])
def test_fraction_outside_zero_to_one_is_refused(fraction):
    with pytest.raises(InputError, match="fraction of labels"):
        _balanced_fraction(LABELS, fraction, 0)


def test_file_list_selects_by_name_without_folders(tmp_path):
    listing = tmp_path / "1percent.txt"
    listing.write_text("c.jpg\na.jpg\n\n")
    assert from_file_list(listing, ["x/a.jpg", "x/b.jpg", "y/c.jpg"]).tolist() == [0, 2]


@pytest.mark.parametrize(
    ("text", "message"), [("z.jpg\na.jpg\n", "names 1 of 2 images that the data set lacks, first z.jpg"), ("", "empty")]
)
def test_unusable_file_list_is_refused(tmp_path, text, message):
    listing = tmp_path / "list.txt"
    listing.write_text(text)
    with pytest.raises(InputError, match=message):
        from_file_list(listing, ["a.jpg"])


def test_missing_file_list_is_refused(tmp_path):
    with pytest.raises(InputError, match="split file not found"):
        from_file_list(tmp_path / "none.txt", ["a.jpg"])


def test_split_file_with_a_name_that_two_images_have_is_refused(tmp_path):
    (tmp_path / "list.txt").write_text("0.jpg\n")
    with pytest.raises(InputError, match=r"names 0\.jpg, which 2 images of the data set are called"):
        from_file_list(tmp_path / "list.txt", ["cat/0.jpg", "dog/0.jpg"])
