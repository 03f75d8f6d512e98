import numpy as np
import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.neighbours import normalized
from momentum_transfer.lowshot.features.feature_set import FeatureSet, check, check_pair, check_vary, read_npz


def feature_set(labels, dim=3, name="train"):
    labels = np.asarray(labels)
    return FeatureSet(np.ones((len(labels), dim), np.float32), labels, name, "0" * 64)


def test_npz_gives_back_what_was_saved(tmp_path):
    features = np.random.default_rng(0).random((5, 4))
    np.savez(tmp_path / "train.npz", features=features, labels=[0, 1, 2, 1, 0])
    data = read_npz(tmp_path / "train.npz")
    assert data.features.dtype == np.float32
    assert np.allclose(data.features, features)
    assert data.labels.tolist() == [0, 1, 2, 1, 0]
    assert not data.multi_label
    assert data.num_classes == 3


def test_multi_hot_labels_are_recognised(tmp_path):
    np.savez(tmp_path / "voc.npz", features=np.ones((2, 4)), labels=[[0, 1, 1], [1, 0, 0]])
    data = read_npz(tmp_path / "voc.npz")
    assert data.multi_label
    assert data.num_classes == 3


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"features": np.ones((2, 3))}, "missing: labels"),
        ({"features": np.ones((2, 3)), "labels": [0, 1, 1]}, r"shape \(3,\) for 2 features"),
        ({"features": np.ones(3), "labels": [0, 1, 1]}, r"expected \[N, D\]"),
        ({"features": np.array([[1.0], [np.nan]]), "labels": [0, 1]}, r"NaN or infinite values \(first in row 1\)"),
        ({"features": np.ones((2, 3)), "labels": [0, -1]}, "go from -1 to 0; expected class indices from 0"),
        ({"features": np.ones((2, 3)), "labels": [0, 10**12]}, "expected class indices from 0, below 1000000"),
        ({"features": np.full((2, 3), 1e300), "labels": [0, 1]}, r"NaN or infinite values \(first in row 0\)"),
        ({"features": np.ones((2, 3)), "labels": [[0, 2], [1, 0]]}, "other than 0 and 1"),
        ({"features": np.ones((2, 3)), "labels": [0.5, 1.0]}, "expected whole numbers"),
        ({"features": np.ones((2, 3), int), "labels": [0, 1]}, "expected floating-point"),
        ({"features": np.array([[object()]]), "labels": [0]}, "without pickled objects"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_unusable_npz_is_refused_without_a_warning(tmp_path, arrays, message):
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(InputError, match=message):
        read_npz(tmp_path / "bad.npz")


def test_file_that_is_no_archive_is_refused(tmp_path):
    (tmp_path / "bad.npz").write_bytes(b"not a zip")
    with pytest.raises(InputError, match=r"expected a NumPy \.npz without pickled objects"):
        read_npz(tmp_path / "bad.npz")
    with pytest.raises(InputError, match="feature file not found"):
        read_npz(tmp_path / "none.npz")


def test_check_looks_into_every_chunk():
    data = feature_set(np.zeros(70000, np.int64), dim=1)
    data.features[69999] = np.inf
    with pytest.raises(InputError, match="first in row 69999"):
        check(data)


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (feature_set([0, 1]), feature_set([0, 1], dim=4), "same backbone and layer"),
        (feature_set([0, 1]), feature_set([[0, 1]]), "labels do not match"),
        (feature_set([[0, 1]]), feature_set([[0, 1, 1]]), "labels do not match"),
        (feature_set([[0], [1]]), feature_set([[1]]), "one class only; expected multi-hot labels of at least two"),
        (feature_set([3, 3]), feature_set([3]), r"one class only \(label 3\)"),
        (feature_set([0, 1]), feature_set([0, 7], name="test"), "test has classes that train lacks: 7"),
    ],
)
def test_sets_that_do_not_belong_together_are_refused(train, test, message):
    with pytest.raises(InputError, match=message):
        check_pair(train, test)


def test_normalised_rows_have_length_one_and_zero_stays_zero():
    rows = normalized(np.array([[3.0, 4.0], [0.0, 0.0]]))
    assert np.allclose(rows, [[0.6, 0.8], [0, 0]])


@pytest.mark.parametrize("scale", [1e-38, 1e-25, 1e-15, 1e15, 1e25, 1e36])
def test_normalised_rows_do_not_depend_on_scale(scale):
    rows = np.random.default_rng(0).standard_normal((5, 7))
    expected = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    assert np.allclose(normalized((scale * rows).astype(np.float32)), expected, atol=1e-6)
    mixed = np.vstack([scale * rows[:2], rows[2:]]).astype(np.float32)
    assert np.allclose(normalized(mixed, np.empty_like(mixed)), expected, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-20, 1e-3, 1.0, 1e20])
def test_features_are_the_same_for_all_images_up_to_rounding_of_any_scale(scale):
    random = np.random.default_rng(0)
    features = np.tile(random.uniform(0.5, 1.0, 4), (5, 1)) * scale

    def side(changed):
        return FeatureSet(changed.astype(np.float32), np.zeros(5, np.int64), "train", "")

    check_vary(side(features[:1]))  # of one image nothing can be said
    for off, varies in ((0, False), (1e-7, False), (1e-5, True)):
        changed = features.copy()
        changed[3, 2] += off * scale
        if varies:
            check_vary(side(changed))
        else:
            with pytest.raises(InputError, match="found the same for all 5 of train"):
                check_vary(side(changed))
