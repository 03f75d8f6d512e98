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
    IMAGES,
    Candidate,
    Plan,
    Question,
    Times,
    image_steps,
    rows,
    training_step,
    with_lengths,
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


IMAGE_TIMES = {"resnet50": 60.0, "resnet18": 30.0}


def planned(asked: Question, before: float = 0.0, times=TIMES) -> Plan:
    return with_lengths(asked, Plan({}, times, IMAGE_TIMES), asked.stages, before)


def changed(**changes) -> Question:
    return Question(**{**ASKED.__dict__, **changes})


def test_the_longest_trainings_fit_the_minutes_and_one_iteration_more_does_not():
    plan, before = planned(ASKED, 120.0), 120.0
    for stage, fraction in (("frozen", 1 / 3), ("finetuned", 1)):
        room = (0.95 * 60 * 30 - before) * fraction  # a twentieth is kept in reserve
        assert plan.seconds(ASKED, stage) <= room
        longer = Plan({**plan.lengths, stage: plan.lengths[stage] + 1}, TIMES, IMAGE_TIMES)
        assert longer.seconds(ASKED, stage) > room
        before += plan.seconds(ASKED, stage)
    shown = rows(ASKED, plan)
    assert [row[0] for row in shown] == ["kNN, SVM", "frozen", "finetuned"]
    assert [row[2] for row in shown] == ["5", "10", "10"]
    assert float(shown[0][3]) == pytest.approx((60 * 2 + 30 * 3) / 60)


def test_no_training_is_longer_than_the_recipe_and_too_few_minutes_are_refused_with_those_that_do():
    assert planned(changed(minutes=1e5)).lengths == {"frozen": 5000, "finetuned": 5000}
    with pytest.raises(InputError, match=r"expected --minutes of at least (\d+) for 5 starts and 2 trial") as error:
        planned(changed(minutes=1.0), 90.0)
    assert "found 1; 1.5 of them are before any training" in str(error.value)
    needed = int(str(error.value).split("at least ")[1].split()[0])
    assert min(planned(changed(minutes=float(needed)), 90.0).lengths.values()) >= 10
    with pytest.raises(InputError, match=rf"at least {needed}"):
        planned(changed(minutes=needed - 1.0), 90.0)


def test_half_of_the_candidates_go_on_from_stage_to_stage_and_two_at_least():
    many = tuple(Candidate(f"c{n}", f"/{n}.pth", "", "resnet18", "random_2") for n in range(9))
    screened = changed(candidates=many, screened=True)
    assert screened.counts_of() == {IMAGES: 5, "frozen": 5, "finetuned": 3}
    assert changed(candidates=many).counts_of() == {IMAGES: 9, "frozen": 9, "finetuned": 9}
    assert changed(candidates=many[:2], screened=True).counts_of() == {IMAGES: 2, "frozen": 2, "finetuned": 2}
    assert changed(candidates=many[:1], screened=True).counts_of()[IMAGES] == 1
    images = changed(candidates=many, screened=True, kind=CLASSIFICATION)
    assert images.counts_of() == {IMAGES: 5, "finetuned": 3}
    assert changed(candidates=many, screened=True, trains=False).counts_of() == {IMAGES: 5}
    plan = planned(changed(candidates=many, screened=True, minutes=200.0))
    assert len(plan.starts(screened, "finetuned")) == 3 + 1  # and the random start
    alive = Plan(plan.lengths, TIMES, IMAGE_TIMES, alive={"finetuned": ["c7"]})
    assert [one.name for one in alive.starts(screened, "finetuned")] == ["c7", "random_2"]
    assert alive.starts(screened, "finetuned")[1].weights == "random-of:/0.pth"  # whoever is left


def test_as_long_as_survivors_are_unknown_the_costliest_count():
    screened = changed(candidates=(*ASKED.candidates, ASKED.candidates[2]), screened=True, minutes=200.0)
    plan = planned(screened)
    for stage in (IMAGES, "finetuned"):
        assert [one.name for one in plan.starts(screened, stage)] == ["a", "b", "random_1", "random_2"]


def test_all_starts_get_the_same_words():
    trained = [training_step(ASKED, one, stage, 20) for stage in ASKED.stages for one in ASKED.everyone]
    for steps in (image_steps(ASKED, ASKED.everyone), trained):
        words = {}
        for step in steps:
            kind = step.title.partition(": ")[2]
            own = step.title.partition(":")[0]
            rest = [re.sub(rf"random-of:/[ab].pth|(/out)?/{own}(?=[./]|$)(\.pth)?", "/X", w) for w in step.command]
            words.setdefault(kind, set()).add(tuple(rest))
        assert all(len(found) == 1 for found in words.values()), words


def test_a_set_of_few_images_asks_for_no_more_than_there_are():
    few = Question(**{**ASKED.__dict__, "kind": CLASSIFICATION, "counts": (3, 2)})
    words = image_steps(few, few.everyone)[0].command
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
    found = values(image_steps(asked, asked.everyone)[0].command)
    assert found["KNN.PRESETS"] == f"['{preset}']"
    assert found["SVM.SHOTS"] == shots
    assert (found["LINEAR.BATCH_SIZE"], found["FINETUNE.BATCH_SIZE"]) == (linear, finetune)


def test_what_is_run_on_images_depends_on_the_kind_and_on_two_images_of_a_class():
    def commands(**changes) -> set[str]:
        return {step.command[1] for step in image_steps(changed(**changes), ASKED.everyone)}

    assert commands() == {"knn", "svm"}
    assert commands(kind=CLASSIFICATION) == {"knn", "svm", "linear"}
    assert commands(counts=(1, 1)) == {"knn"}
    assert commands(counts=(2, 1)) == {"knn", "svm"}


def test_of_images_the_only_stage_has_all_minutes():
    asked = Question(**{**ASKED.__dict__, "kind": CLASSIFICATION, "longest": 50})
    times = {"finetuned": {"resnet50": Times(10.0, 5.0), "resnet18": Times(5.0, 2.0)}}
    # a, random_1 are of the one, b, c, random_2 of the other: 35 s around and 16 s an epoch, twice, in 30 minutes
    assert planned(asked, times=times).lengths == {"finetuned": 50}
    shorter = changed(kind=CLASSIFICATION, longest=50, minutes=10.0)
    assert planned(shorter, times=times).lengths == {"finetuned": (285 - 35) // 16}  # 95 % of 5 minutes a trial
    plan = Plan({"finetuned": 16}, times, IMAGE_TIMES)
    assert plan.seconds(shorter, "finetuned") == 2 * (35 + 16 * 16)
    (images, training) = rows(shorter, plan)
    assert images[0] == "kNN, SVM, linear classifier"
    assert training == ("finetuned", "16 epochs; 1.2 minutes start and score", "10", "9.7")
