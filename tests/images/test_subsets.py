"""Parts of datasets keep what they say, and repeat with their seed."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.images.digits import DigitImages
from momentum_transfer.images.subsets import (
    Selected,
    class_subset,
    draw_per_class,
    long_tail_counts,
    read_taxonomy,
    select,
    stratified_split,
    stretched_epochs,
    unselected,
    without_class,
)


@pytest.fixture(scope="module")
def digits() -> DigitImages:
    return DigitImages("train")


def test_nothing_selected_is_the_dataset_itself(digits: DigitImages):
    assert select(digits) is digits


def test_class_subset_keeps_whole_classes_under_new_numbers(digits: DigitImages):
    part = select(digits, class_fraction=0.5, seed=1)
    assert isinstance(part, Selected)
    assert len(part.classes) == 5
    assert sorted(set(part.labels)) == [0, 1, 2, 3, 4]
    old = digits.labels[part.indices]
    assert [part.classes[label] for label in part.labels] == [str(digit) for digit in old]
    assert len(part) == np.isin(digits.labels, [int(name) for name in part.classes]).sum()
    image, label = part[3]
    np.testing.assert_array_equal(np.asarray(image), np.asarray(digits[int(part.indices[3])][0]))
    assert label == part.labels[3]


def test_smaller_class_subsets_lie_within_larger_ones():
    subsets = [set(class_subset(100, fraction, seed=0)) for fraction in (0.1, 0.2, 0.5, 0.7, 1.0)]
    assert [len(subset) for subset in subsets] == [10, 20, 50, 70, 100]
    assert all(small <= large for small, large in itertools.pairwise(subsets))


def test_long_tail_follows_the_exponential_profile():
    # CIFAR-10-LT, factor .01: n_i = 5000 · .01^(i/9), rounded down (Cui et al., fig. 1).
    assert long_tail_counts(5000, 10, 0.01).tolist() == [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    counts = long_tail_counts(500, 100, 0.01)
    assert counts[0] == 500
    assert counts[-1] == 5


def test_long_tail_of_a_dataset_has_those_counts(digits: DigitImages):
    part = select(digits, long_tail=0.1)
    present = np.bincount(digits.labels)
    expected = np.minimum(long_tail_counts(present.max(), 10, 0.1), present)
    np.testing.assert_array_equal(np.bincount(part.labels), expected)


def test_sample_fraction_keeps_the_share_of_every_class(digits: DigitImages):
    part = select(digits, sample_fraction=0.1, seed=2)
    np.testing.assert_array_equal(np.bincount(part.labels), np.rint(np.bincount(digits.labels) * 0.1))
    assert len(set(part.indices)) == len(part)


def test_tiny_sample_fraction_leaves_one_image_of_every_class(digits: DigitImages):
    part = select(digits, sample_fraction=0.001)
    np.testing.assert_array_equal(np.bincount(part.labels), np.ones(10))


def test_draws_repeat_with_the_seed_and_differ_without():
    labels = np.repeat(np.arange(4), 50)
    counts = np.array([10, 10, 10, 10])
    first = draw_per_class(labels, counts, 0)
    np.testing.assert_array_equal(first, draw_per_class(labels, counts, 0))
    assert set(first) != set(draw_per_class(labels, counts, 1))


def test_draws_take_the_count_of_every_class_or_all_there_are():
    rng = np.random.default_rng(3)
    labels, counts = rng.integers(0, 12, 300), rng.integers(0, 60, 12)
    labels[labels == 4] = 5  # an empty class
    kept = draw_per_class(labels, counts, 0)
    assert len(np.unique(kept)) == len(kept)
    present = np.bincount(labels, minlength=12)
    np.testing.assert_array_equal(np.bincount(labels[kept], minlength=12), np.minimum(counts, present))


def test_taxonomy_renames_classes_to_coarse_ones(digits: DigitImages, tmp_path: Path):
    file = tmp_path / "parity.txt"
    file.write_text("# digits by parity\n" + "".join(f"{k} {'odd' if k % 2 else 'even'}\n" for k in range(10)))
    coarse = select(digits, taxonomy=file)
    assert coarse.classes == ["even", "odd"]
    np.testing.assert_array_equal(coarse.labels, digits.labels % 2)


def test_tab_separated_taxonomy_may_hold_spaces(tmp_path: Path):
    file = tmp_path / "taxonomy.txt"
    file.write_text("great white shark\tfish\nhen\tbird\n")
    coarse_of, names = read_taxonomy(file, ["hen", "great white shark"])
    assert [names[k] for k in coarse_of] == ["bird", "fish"]


def test_incomplete_or_malformed_taxonomy_is_an_error(digits: DigitImages, tmp_path: Path):
    file = tmp_path / "taxonomy.txt"
    file.write_text("0 round\n1 straight\n")
    with pytest.raises(InputError, match=r"found none for 8: 2, 3"):
        select(digits, taxonomy=file)
    file.write_text("0 round shape\n")
    with pytest.raises(InputError, match=r"taxonomy\.txt:1"):
        select(digits, taxonomy=file)
    with pytest.raises(InputError, match="found no file"):
        select(digits, taxonomy=tmp_path / "absent.txt")


@pytest.mark.parametrize("name", ["class_fraction", "sample_fraction", "long_tail"])
def test_fractions_outside_their_range_are_errors(digits: DigitImages, name: str):
    for value in (0.0, 1.5, -1.0):
        with pytest.raises(InputError, match=f"fraction above 0 and at most 1, found {value}"):
            select(digits, **{name: value})


def test_selections_compose_and_remember_the_whole(digits: DigitImages):
    part = select(select(digits, class_fraction=0.5), sample_fraction=0.2)
    whole, positions = unselected(part)
    assert whole is digits
    assert [digits.classes[digits.labels[k]] for k in positions] == [part.classes[k] for k in part.labels]
    for k in (0, len(part) - 1):
        np.testing.assert_array_equal(np.bincount(part.labels, minlength=5) > 0, True)
        assert part[k][1] == part.labels[k]


def test_stretched_epochs_keep_the_iterations():
    # RCF: a tenth of ImageNet takes ten times the epochs.
    assert stretched_epochs(100, 1_281_167, 128_116, 256) == 1001  # 500 batches an epoch instead of 500.4
    for fraction in (0.1, 0.2, 0.5, 0.7):
        kept = int(10_000 * fraction)
        epochs = stretched_epochs(7, 10_000, kept, 64)
        whole = 7 * (10_000 // 64)
        assert whole <= epochs * (kept // 64) < whole + kept // 64
    with pytest.raises(InputError, match="at least one batch of 64 images"):
        stretched_epochs(1, 1000, 63, 64)


@pytest.mark.parametrize("fraction", [0.5, 0.8])
@pytest.mark.parametrize("seed", range(3))
def test_a_split_has_the_fraction_of_the_items_and_of_every_class_though_items_have_several(fraction: float, seed: int):
    random = np.random.default_rng(seed)
    present = random.random((200, 6)) < [0.5, 0.3, 0.2, 0.1, 0.05, 0.4]
    labels = [np.flatnonzero(row).tolist() for row in present]
    assert {len(found) for found in labels} >= {0, 1, 2, 3}
    trains = stratified_split(labels, fraction, seed)
    assert trains.sum() == 200 * fraction
    assert np.abs(present[trains].sum(0) - fraction * present.sum(0)).max() <= 0.5
    assert np.array_equal(trains, stratified_split(labels, fraction, seed))
    assert not np.array_equal(trains, stratified_split(labels, fraction, seed + 1))


@pytest.mark.parametrize("seed", range(5))
def test_groups_are_divided_whole_and_count_by_their_items(seed: int):
    sizes = [40, 25, *[10] * 6, 5, 5, 3, 2]  # of films in which one class or the other is seen
    groups = np.repeat(np.arange(len(sizes)), sizes)
    labels = [[int(group) % 2] for group in groups]
    trains = stratified_split(labels, 0.6, seed, groups)
    assert {len(set(trains[groups == group])) for group in range(len(sizes))} == {1}
    assert trains.sum() == pytest.approx(0.6 * len(groups), abs=5)
    for each in (0, 1):
        own = np.array(labels)[:, 0] == each
        assert trains[own].sum() == pytest.approx(0.6 * own.sum(), abs=5)


@pytest.mark.parametrize(
    ("labels", "fraction", "trained"),
    [([[0]] * 2, 0.99, 1), ([[0]] * 2, 0.01, 1), ([[0], [1]], 0.5, 1), ([[]] * 10, 0.3, 3), ([[0]] * 3, 0.999, 2)],
)  # fmt: skip
def test_both_parts_get_an_item(labels, fraction: float, trained: int):
    assert stratified_split(labels, fraction, 0).sum() == trained


def test_what_cannot_be_split_is_refused():
    for fraction in (0.0, 1.0, -0.5, float("nan")):
        with pytest.raises(InputError, match=f"a training fraction between 0 and 1 .* found {fraction:g}"):
            stratified_split([[0], [0]], fraction, 0)
    for few in ([], [[0]]):
        with pytest.raises(InputError, match=f"at least two images to split, or groups of them, found {len(few)}"):
            stratified_split(few, 0.5, 0)


def test_a_class_may_be_left_out(digits: DigitImages):
    part = without_class(digits, "3")
    assert np.array_equal(part.labels, digits.labels[digits.labels != 3])
    assert part.classes == digits.classes
    assert without_class(digits, "none of them") is digits
