"""Words of messages."""

import pytest

from momentum_transfer.core.errors import counted


@pytest.mark.parametrize(
    ("count", "noun", "said"),
    [
        (1, "class", "1 class"),
        (2, "class", "2 classes"),
        (0, "image", "0 images"),
        (3, "batch", "3 batches"),
        (2, "box", "2 boxes"),
        (2, "category", "2 categories"),
        (1, "test image", "1 test image"),
    ],
)
def test_a_noun_follows_its_number(count: int, noun: str, said: str):
    assert counted(count, noun) == said
