"""Types of arguments: what is no count of the kind asked for is refused, and said."""

import argparse

import pytest

from momentum_transfer.core.command import at_least, resamples


def test_counts_from_the_least_on_are_taken() -> None:
    assert [at_least(1)("1"), at_least(0)("0"), at_least(2)("0640")] == [1, 0, 640]
    assert [resamples(text) for text in ("0", "100", "1000")] == [0, 100, 1000]


@pytest.mark.parametrize("text", ["1", "-3", "2.0", "", "two", "²", "٣"])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=f"^expected a batch of at least 2, found {text}$"):
        at_least(2, "a batch")(text)


@pytest.mark.parametrize("text", ["1", "99", "-100", "1e3"])
def test_too_few_resamples_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected 0 or at least 100 resamples"):
        resamples(text)
