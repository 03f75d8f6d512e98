"""Rules of settings: what each allows, and what it says when it does not."""

import math

import pytest
from fvcore.common.config import CfgNode

from momentum_transfer.core import ranges
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.ranges import (
    ANY_PATH,
    ARCHITECTURE,
    COUNT,
    FRACTION,
    PATH,
    POSITIVE,
    SEED,
    SWITCH,
    UNIT,
    Choice,
    Many,
    Momentum,
    Number,
    Setting,
    Words,
)


@pytest.mark.parametrize(
    ("rule", "allowed", "refused"),
    [
        (UNIT, [0, 1, 0.5], [-1e-9, 1 + 1e-9, math.nan, math.inf, True, "1", None]),
        (FRACTION, [1e-9, 1], [0, -1]),
        (POSITIVE, [1e-30, 1e30], [0, math.inf, -math.inf]),
        (Number(0, 1, above=True, below=True), [0.5], [0, 1]),
        (Number(high=1), [-1e300, 1], [1.1, -math.inf]),
        (ranges.MOMENTUM, [0, 0.5, 1], [0.51, 0.999, -0.1, 1.1, math.nan, True, "a"]),
        (Momentum(frozen=False, negative="x"), [-1.0, 0.1, 1], [0, 0.9]),
        (COUNT, [1, 10**400], [0, 1.0, True]),
        (SWITCH, [True, False], [0, 1, "True", None]),
        (ARCHITECTURE, ["resnet50", "timm:convnext_tiny"], ["resnet51", "convnext_tiny", 50, None]),
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
        (FRACTION, 0, "above 0 and at most 1, found 0" + CORRECT),
        (Number(0, unit="px", note="0: none"), -1, "of at least 0 px (0: none), found -1" + CORRECT),
        (Choice(("cosine", "step", "")), "cosin", "of cosine, step, '' (none), found 'cosin'; the nearest is cosine"),
        (Many(COUNT, least=1), [1, 2.5],
         "as a list of one or more whole numbers of at least 1, found [1, 2.5]" + CORRECT),
        (Many(Many(POSITIVE, (4,)), least=1), [1],
         "as a list of one or more lists of 4 numbers above 0, found [1]" + CORRECT),
        (PATH, "", "as a path, no URL (at most 255 bytes a name, no NUL), found ''" + CORRECT),
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


def test_a_table_gives_defaults_and_is_checked_key_by_key():
    rows = Setting("A.B", [1], Many(COUNT)), Setting("A.C", 2.0, POSITIVE), Setting("D", True, SWITCH)
    settings = ranges.table(*rows, free=["D"])
    assert [setting.decides for setting in settings.values()] == [ranges.TRAINING, ranges.TRAINING, ranges.NOTHING]
    cfg = ranges.add_defaults(CfgNode(), settings)
    assert cfg == {"A": {"B": [1], "C": 2.0}, "D": True}
    assert cfg.A.B is not rows[0].default
    ranges.check(cfg, settings)
    cfg.A.C = -2.0
    with pytest.raises(InputError, match=r"expected A\.C above 0, found -2\.0"):
        ranges.check(cfg, settings)
    cfg.A.C, cfg.D = 1.0, 1
    with pytest.raises(InputError, match="expected D as True or False, found 1"):
        ranges.check(cfg, settings)
    with pytest.raises(ValueError, match="twice"):
        ranges.table(*rows, rows[0])
    with pytest.raises(KeyError, match="NONE"):
        ranges.table(*rows, free=["NONE"])


def test_of_contradictions_the_first_is_raised_with_a_next_step():
    ranges.refuse(iter(()))
    with pytest.raises(InputError, match=r"^first; correct the config$"):
        ranges.refuse(iter(("first", "second")))
    with pytest.raises(InputError, match=r"^first; do this$"):
        ranges.refuse(iter(("first; do this",)))
