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
    training_step,
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


def values(words: list[str]) -> dict[str, str]:
    """Every word of a command with the one behind it."""
    return dict(itertools.pairwise(words))


def test_a_probe_is_one_short_trial_in_a_folder_and_a_record_of_its_own():
    one = ASKED.candidates[0]
    probe, training = (training_step(ASKED, one, "frozen", 300, probe=probe) for probe in (True, False))
    assert (probe.title, training.title) == ("a: detector, frozen, timed", "a: detector, frozen")
    found = values(probe.command), values(training.command)
    for key, wanted in {
        "--trials": ("1", "2"), "OUTPUT_DIR": ("/out/probes/a/frozen", "/out/a/frozen"),
        "--results": ("/out/probes/results.jsonl", "/out/results.jsonl"), "SOLVER.MAX_ITER": ("300", "300"),
        "SOLVER.WARMUP_ITERS": ("30", "30"), "SOLVER.CHECKPOINT_PERIOD": ("75", "75"),
    }.items():  # fmt: skip
        assert tuple(words[key] for words in found) == wanted
    images = Question(**{**ASKED.__dict__, "kind": CLASSIFICATION})
    probe, training = (training_step(images, one, "finetuned", 3, probe=probe) for probe in (True, False))
    assert (probe.title, training.title) == ("a: finetuned, timed", "a: finetuned")
    found = values(probe.command), values(training.command)  # of a key given twice the last counts, as in the tool
    assert [words["FINETUNE.TRIALS"] for words in found] == ["1", "2"]
    assert [words["OUTPUT_DIR"] for words in found] == ["/out/probes/a/finetuned", "/out/few_labels"]
    assert [words["FINETUNE.EPOCHS"] for words in found] == ["3.0", "3.0"]


@pytest.mark.parametrize(
    ("length", "warmup", "period"), [(5, "1", "20"), (10, "1", "20"), (20, "2", "20"), (84, "8", "21"),
                                     (990, "99", "247"), (5000, "100", "1250")],
)  # fmt: skip
def test_a_detectors_warmup_is_a_tenth_of_it_and_it_saves_four_times(length: int, warmup: str, period: str):
    found = values(training_step(ASKED, ASKED.candidates[0], "finetuned", length).command)
    assert (found["SOLVER.WARMUP_ITERS"], found["SOLVER.CHECKPOINT_PERIOD"]) == (warmup, period)


def test_a_detector_is_told_its_network_where_no_setting_of_resnets_names_it():
    vit = Candidate("v", "/v.pth", "4", "timm:test_vit?img_size=32", "random_3")
    assert values(training_step(ASKED, vit, "frozen", 20).command)["MODEL.BACKBONE.ARCH"] == vit.architecture
    assert "MODEL.BACKBONE.ARCH" not in training_step(ASKED, ASKED.candidates[0], "frozen", 20).command


@pytest.mark.parametrize(
    ("counts", "preset", "shots", "linear", "finetune"),
    [
        ((100, 100), "majority-20", "[1, 2, 4, 8, 16]", "160", "32"),
        ((100, 99), "majority-5", "[1, 2, 4, 8, 16]", "158", "32"),
        ((400, 400), "majority-20", "[1, 2, 4, 8, 16]", "256", "32"),
        ((30, 31, 9), "majority-5", "[1, 2, 4, 8]", "56", "32"),  # 20 of each test it at most half: 10, 11, 5 are left
        ((32, 32), "majority-5", "[1, 2, 4, 8, 16]", "50", "32"),
        ((1, 1), "majority-2", "[1]", "2", "2"),
    ],
)
def test_few_labels_are_asked_for_as_far_as_the_images_go(counts, preset, shots, linear, finetune):
    asked = Question(**{**ASKED.__dict__, "kind": CLASSIFICATION, "counts": counts})
    found = values(image_steps(asked)[0].command)
    assert found["KNN.PRESETS"] == f"['{preset}']"
    assert found["SVM.SHOTS"] == shots
    assert (found["LINEAR.BATCH_SIZE"], found["FINETUNE.BATCH_SIZE"]) == (linear, finetune)


def test_what_is_run_on_images_depends_on_the_kind_and_on_two_images_of_a_class():
    def commands(**changes) -> set[str]:
        return {step.command[1] for step in image_steps(Question(**{**ASKED.__dict__, **changes}))}

    assert commands() == {"knn", "svm"}
    assert commands(kind=CLASSIFICATION) == {"knn", "svm", "linear"}
    assert commands(counts=(1, 1)) == {"knn"}
    assert commands(counts=(2, 1)) == {"knn", "svm"}


def test_of_images_the_only_stage_has_all_minutes():
    asked = Question(**{**ASKED.__dict__, "kind": CLASSIFICATION, "longest": 50})
    times = {"finetuned": {"resnet50": Times(10.0, 5.0), "resnet18": Times(5.0, 2.0)}}
    # a, random_1 are of the one, b, c, random_2 of the other: 35 s around and 16 s an epoch, twice, in 30 minutes
    assert lengths(asked, times) == {"finetuned": 50}
    shorter = Question(**{**asked.__dict__, "minutes": 10.0})
    assert lengths(shorter, times) == {"finetuned": (300 - 35) // 16}
    plan = Plan({"finetuned": 16}, times, {"resnet50": 60.0, "resnet18": 30.0})
    assert plan.seconds(shorter, "finetuned") == 2 * (35 + 16 * 16)
    (images, training) = rows(shorter, plan)
    assert images[0] == "kNN, SVM, linear classifier"
    assert training == ("finetuned", "16 epochs; 1.2 minutes start and score", "10", "9.7")
