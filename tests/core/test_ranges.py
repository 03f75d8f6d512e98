"""Rules of settings: what each allows, and what it says when it does not."""

import math

import pytest
from fvcore.common.config import CfgNode

from momentum_transfer.core import ranges
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.ranges import (
    ANY_PATH,
    COUNT,
    PATH,
    POSITIVE,
    SEED,
    SHARE,
    UNIT,
    Choice,
    Many,
    Momentum,
    Number,
    Words,
)


@pytest.mark.parametrize(
    ("rule", "allowed", "refused"),
    [
        (UNIT, [0, 1, 0.5], [-1e-9, 1 + 1e-9, math.nan, math.inf, True, "1", None]),
        (SHARE, [1e-9, 1], [0, -1]),
        (POSITIVE, [1e-30, 1e30], [0, math.inf, -math.inf]),
        (Number(0, 1, above=True, below=True), [0.5], [0, 1]),
        (Number(high=1), [-1e300, 1], [1.1, -math.inf]),
        (ranges.MOMENTUM, [0, 0.5, 1], [0.51, 0.999, -0.1, 1.1, math.nan, True, "a"]),
        (Momentum(frozen=False, negative="x"), [-1.0, 0.1, 1], [0, 0.9]),
        (COUNT, [1, 10**400], [0, 1.0, True]),
        (SEED, [0, 2**31 - 1], [-1, 2**31]),
        (Choice(("a", "", 2)), ["a", "", 2], ["b", 2.0, True, ["a"], None]),
        (Choice((1,)), [1], [True]),
        (Words(r"cuda(:\d+)?", "of cuda, cuda:N"), ["cuda", "cuda:1"], ["cuda:", "cuda\n", 3]),
        (ANY_PATH, ["", "a/b", "ä" * 127], ["a\0", "ä" * 128, "a/" * 2048, 3, "\ud800"]),
        (PATH, ["a"], ["", " "]),
        (Many(COUNT), [[], (1, 2)], [1, [0], [[1]], "11", None]),
        (Many(COUNT, least=1, ascending=True), [[1, 2]], [[], [2, 1], [1, 1]]),
        (Many(UNIT, lengths=(0, 2)), [[], [1, 0]], [[1]]),
        (Many(POSITIVE, nested=True), [[1], [[1, 2], [3]]], [[[]], [[[1]]], [[0]], [1, [2]]]),
    ],
    ids=lambda value: str(value) if isinstance(value, ranges.Rule) else "",
)
def test_a_rule_holds_for_what_it_says(rule, allowed, refused):
    assert [value for value in allowed if not rule.holds(value)] == []
    assert [value for value in refused if rule.holds(value)] == []


CORRECT = "; correct the config"


@pytest.mark.parametrize(
    ("rule", "value", "message"),
    [
        (COUNT, 0, "of at least 1, found 0" + CORRECT),
        (UNIT, 2, "between 0 and 1, found 2" + CORRECT),
        (SHARE, 0, "above 0 and at most 1, found 0" + CORRECT),
        (Number(0, unit="px", note="0: none"), -1, "of at least 0 px (0: none), found -1" + CORRECT),
        (Choice(("cosine", "step", "")), "cosin", "of cosine, step, '' (none), found 'cosin'; the nearest is cosine"),
        (Many(COUNT, least=1), [1, 2.5],
         "as a list of one or more whole numbers of at least 1, found [1, 2.5]" + CORRECT),
        (Many(Many(POSITIVE, (4,)), least=1), [1],
         "as a list of one or more lists of 4 numbers above 0, found [1]" + CORRECT),
        (PATH, "", "as a path (at most 255 bytes a name, no NUL), found ''" + CORRECT),
    ],
)  # fmt: skip
def test_a_message_says_what_is_expected_what_was_found_and_what_to_do(rule, value, message):
    with pytest.raises(InputError) as refused:
        rule.require("A.B", value)
    assert str(refused.value) == f"expected A.B {message}"


def test_a_message_stays_short_whatever_was_found():
    nested = []
    for _ in range(50):
        nested = [nested] * 50
    for value in (nested, "x" * 10**6, 10**3000):
        with pytest.raises(InputError) as refused:
            UNIT.require("A.B", value)
        assert len(str(refused.value)) < 400


def test_a_table_is_checked_key_by_key_and_tells_what_it_forgets():
    cfg = CfgNode({"A": {"B": 1, "C": 2.0, "SWITCH": True}, "D": "x"})
    ranges.check(cfg, {"A.B": COUNT, "A.C": POSITIVE})
    assert ranges.without_rule(cfg, {"A.B": COUNT}) == ["A.C", "D"]
    cfg.A.C = -2.0
    with pytest.raises(InputError, match=r"expected A\.C above 0, found -2\.0"):
        ranges.check(cfg, {"A.B": COUNT, "A.C": POSITIVE})


def test_of_contradictions_the_first_is_raised_with_a_next_step():
    ranges.refuse(iter(()))
    with pytest.raises(InputError, match=r"^first; correct the config$"):
        ranges.refuse(iter(("first", "second")))
    with pytest.raises(InputError, match=r"^first; do this$"):
        ranges.refuse(iter(("first; do this",)))
