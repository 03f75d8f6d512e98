"""Lengths under a budget, and the commands of a choice."""

import itertools
import math
import re
from pathlib import Path

import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.suites.choose.stages import (
    CLASSIFICATION,
    DETECTION,
    Candidate,
    Plan,
    Question,
    Times,
    image_steps,
    lengths,
    refuse_too_few,
    rows,
    training_steps,
)

ASKED = Question(
    Path("/out"), DETECTION, "cells", (40, 30), 224,
    (Candidate("a", "/a.pth", "1", "resnet50", "random_1"), Candidate("b", "/b.pth", "2", "resnet18", "random_2"),
     Candidate("c", "/c.pth", "3", "resnet18", "random_2")), minutes=30.0, trials=2, longest=5000,
)  # fmt: skip
TIMES = {
    "frozen": {"resnet50": Times(10.0, 0.5), "resnet18": Times(8.0, 0.2)},
    "finetuned": {"resnet50": Times(12.0, 1.0), "resnet18": Times(9.0, 0.4)},
}


def test_every_architecture_has_its_random_start():
    assert [one.name for one in ASKED.everyone] == ["a", "b", "c", "random_1", "random_2"]
    assert [one.weights for one in ASKED.everyone[3:]] == ["random-of:/a.pth", "random-of:/b.pth"]


def test_the_longest_trainings_fit_the_minutes_and_one_iteration_more_does_not():
    found = lengths(ASKED, TIMES)
    plan = Plan(found, TIMES, {"resnet50": 60.0, "resnet18": 30.0})
    for stage, fraction in (("frozen", 1 / 3), ("finetuned", 2 / 3)):
        assert plan.seconds(ASKED, stage) <= 60 * 30 * fraction
        longer = Plan({**found, stage: found[stage] + 1}, TIMES)
        assert longer.seconds(ASKED, stage) > 60 * 30 * fraction
    shown = rows(ASKED, plan)
    assert [row[0] for row in shown] == ["kNN, SVM", "frozen", "finetuned"]
    assert [row[2] for row in shown] == ["5", "10", "10"]
    assert float(shown[0][3]) == pytest.approx((60 * 2 + 30 * 3) / 60)


def test_no_training_is_longer_than_the_recipe_and_too_few_minutes_are_refused_with_those_that_do():
    long = Question(**{**ASKED.__dict__, "minutes": 1e5})
    assert lengths(long, TIMES) == {"frozen": 5000, "finetuned": 5000}
    with pytest.raises(InputError, match=r"expected --minutes of at least (\d+) for 5 starts and 2 trial") as error:
        lengths(Question(**{**ASKED.__dict__, "minutes": 1.0}), TIMES)
    needed = int(str(error.value).split("at least ")[1].split()[0])
    assert min(lengths(Question(**{**ASKED.__dict__, "minutes": float(needed)}), TIMES).values()) >= 10
    with pytest.raises(InputError, match=rf"at least {needed}"):
        lengths(Question(**{**ASKED.__dict__, "minutes": needed - 1.0}), TIMES)


def test_what_is_measured_so_far_refuses_too_few_minutes_and_says_what_would_be_enough():
    so_far: dict[str, dict[str, Times]] = {"frozen": {"resnet50": Times(10.0, 0.5)}, "finetuned": {}}
    # two starts of a ResNet-50, two trials, a third of the minutes: 2 · 2 · (10 + 10 · 0.5) / (1 / 3) = 180 s
    refuse_too_few(Question(**{**ASKED.__dict__, "minutes": 3.0}), so_far)
    # all five starts in both stages as long as that: 2 · 5 · 15 / (1 / 3) = 450 s
    with pytest.raises(InputError, match=r"expected --minutes of at least 8 for 5 starts and 2 trials, found 2\.9"):
        refuse_too_few(Question(**{**ASKED.__dict__, "minutes": 2.9}), so_far)
    refuse_too_few(Question(**{**ASKED.__dict__, "minutes": 0.1}), {"frozen": {}, "finetuned": {}})


def test_all_starts_get_the_same_words():
    plan = Plan(lengths(ASKED, TIMES), TIMES, {"resnet50": 60.0, "resnet18": 30.0})
    for steps in (image_steps(ASKED), training_steps(ASKED, plan)):
        words = {}
        for step in steps:
            kind = step.title.partition(": ")[2]
            own = step.title.partition(":")[0]
            rest = [re.sub(rf"random-of:/[ab].pth|(/out)?/{own}(?=[./]|$)(\.pth)?", "/X", w) for w in step.command]
            words.setdefault(kind, set()).add(tuple(rest))
        assert all(len(found) == 1 for found in words.values()), words


def test_a_set_of_few_images_asks_for_no_more_than_there_are():
    few = Question(**{**ASKED.__dict__, "kind": CLASSIFICATION, "counts": (3, 2)})
    words = image_steps(few)[0].command
    value = dict(itertools.pairwise(words))
    assert value["KNN.PRESETS"] == "['majority-5']"
    assert value["SVM.SHOTS"] == "[1, 2]"
    assert int(value["FINETUNE.BATCH_SIZE"]) <= math.floor(0.8 * 5)
    assert few.stages == ("finetuned",)
