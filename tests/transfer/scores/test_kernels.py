"""The compiled kernels beside NumPy and pycocotools, which do the same without numba."""

import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pycocotools import mask as coco_mask

from momentum_transfer.transfer.scores import coco, greedy_matching, rle
from tests.transfer.scores.random_sets import coco_set

pytest.importorskip("numba")

from momentum_transfer.transfer.scores import kernels

ALPHABET = "".join(map(chr, range(48, 112)))


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch):
    """Run something with the kernels, or without."""

    def run(work, with_kernels: bool):
        with monkeypatch.context() as patch:
            for module in (rle, greedy_matching):
                patch.setattr(module, "kernels", lambda *_: kernels if with_kernels else None)
            return work()

    return run


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text(ALPHABET, min_size=1, max_size=14) | st.text("04PO_o\x7f /", min_size=1), min_size=1))
@example(["PPPPPP0", "PPPPP0", "oooooO", "0", "00", "4", "0d"])
@example(["ooooo?" * 9, "oooooO" * 9, "000" + "ooooo?" * 8, "04"])  # sums beyond 32 bits
def test_codes_good_and_bad_are_decoded_as_by_numpy(codes: list[str]):
    text, ends = "".join(codes).encode(), np.cumsum([len(code) for code in codes])
    *expected, good = rle.decode(text, ends)
    *found, fine = kernels.decode(text, ends)
    np.testing.assert_array_equal(fine, good)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours[good], theirs[good])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_shared_pixels_are_those_of_the_arrays(seed: int):
    random = np.random.default_rng(seed)
    arrays = random.random((9, random.integers(1, 30), random.integers(1, 30))) < random.random((9, 1, 1)) * 1.4 - 0.2
    codes = [code["counts"] for code in coco_mask.encode(np.asfortranarray(arrays.transpose(1, 2, 0), dtype=np.uint8))]
    which = np.sort(random.integers(0, 4, 5))
    expected = [(one & arrays[5 + other]).sum() for one, other in zip(arrays, which, strict=False)]
    np.testing.assert_array_equal(kernels.shared(codes[:5], codes[5:], which), expected)


@pytest.mark.parametrize("seed", range(4))
def test_the_tables_are_the_same_with_the_kernels_and_without(seed: int, chosen, tmp_path):
    truth, results = coco_set(seed, segm=True)
    for name, data in (("truth", truth), ("results", results)):
        (tmp_path / f"{name}.json").write_text(json.dumps(data))

    def score():
        return coco.evaluate(tmp_path / "truth.json", tmp_path / "results.json", "segm")

    with_kernels, without = chosen(score, True), chosen(score, False)
    np.testing.assert_array_equal(with_kernels.precision, without.precision)
    np.testing.assert_array_equal(with_kernels.recall, without.recall)


def test_a_large_file_is_scored_with_the_kernels(monkeypatch, tmp_path):
    truth, results = coco_set(1, segm=True)
    (tmp_path / "results.json").write_text(json.dumps(results))
    asked = []
    monkeypatch.setattr("momentum_transfer.transfer.scores.typed.kernels", asked.append)
    coco.evaluate(truth, tmp_path / "results.json", "segm")
    assert asked == [(tmp_path / "results.json").stat().st_size]
    assert rle.kernels(1 << 30) is kernels
