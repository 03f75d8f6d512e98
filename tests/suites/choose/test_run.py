"""What a choice times and notes: a stopped one goes on as it began, another one is refused."""

import json
from pathlib import Path

import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.suites.choose import run
from momentum_transfer.suites.choose.run import keep_question, make_plan, measured, probe_steps
from momentum_transfer.suites.choose.stages import CLASSIFICATION, DETECTION, Candidate, Question, Times


def asked(folder: Path, **changes) -> Question:
    small = (Candidate(name, f"/{name}.pth", name, "resnet18", "random_2") for name in "bc")
    candidates = (Candidate("a", "/a.pth", "a", "resnet50", "random_1"), *small)
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for part in ("train", "val"):
        (folder / "images" / f"{part}.txt").write_text(f"{part}.png 0\n")
    values = {"out": folder, "kind": CLASSIFICATION, "title": "mine", "counts": (9, 8), "image_size": 16,
              "candidates": candidates, "minutes": 10.0, "settings": ("A", "1"), "longest": 40}  # fmt: skip
    return Question(**{**values, **changes})


def test_a_stopped_choice_keeps_what_the_machine_was_when_it_began(tmp_path: Path):
    first = asked(tmp_path)
    assert keep_question(first) == first
    again = keep_question(asked(tmp_path, settings=("A", "9"), longest=7, workers=5))
    assert again == first
    assert json.loads((tmp_path / "question.json").read_text())["workers"] == 2


@pytest.mark.parametrize(
    ("changes", "key"), [({"title": "other"}, "title"), ({"seed": 1}, "seed"), ({"counts": (9, 9)}, "counts"),
                         ({"overrides": ("B", "2")}, "overrides")],
)  # fmt: skip
def test_another_choice_in_the_same_folder_is_refused_with_what_differs(changes, key, tmp_path: Path):
    keep_question(asked(tmp_path))
    with pytest.raises(InputError, match=f"holds another choice: its {key} was .*, now it is"):
        keep_question(asked(tmp_path, **changes))


def test_other_images_are_another_choice(tmp_path: Path):
    keep_question(asked(tmp_path))
    now = asked(tmp_path)
    (tmp_path / "images/val.txt").write_text("more.png 0\n")
    with pytest.raises(InputError, match="holds another choice: its images was"):
        keep_question(now)


def test_minutes_may_change_until_there_is_a_plan_for_them(tmp_path: Path):
    keep_question(asked(tmp_path))
    assert keep_question(asked(tmp_path, minutes=20.0)).minutes == 20
    assert json.loads((tmp_path / "question.json").read_text())["minutes"] == 20
    (tmp_path / "plan.json").write_text("{}")
    assert keep_question(asked(tmp_path, minutes=20.0)).minutes == 20
    with pytest.raises(InputError, match=r"its minutes was 20\.0, now it is 30\.0"):
        keep_question(asked(tmp_path, minutes=30.0))


@pytest.mark.parametrize(
    "changes", [{"settings": ["A"]}, {"settings": ["A", "b\0"]}, {"settings": ["A", "\ud800"]}, {"workers": -1},
                {"longest": 10**12}, {"longest": "x"}],
)  # fmt: skip
def test_damaged_notes_are_refused(changes, tmp_path: Path):
    keep_question(asked(tmp_path))
    file = tmp_path / "question.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    with pytest.raises(InputError, match="as a choice wrote it, found something else; remove the folder"):
        keep_question(asked(tmp_path))
    file.write_text("{")
    with pytest.raises(InputError, match="as a choice wrote it"):
        keep_question(asked(tmp_path))


def lines(folder: Path, *seconds: float, name: str = "metrics.jsonl") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = [json.dumps({"step": step, "seconds": value}) for step, value in enumerate(seconds, 1)]
    (folder / name).write_text("".join(line + "\n" for line in text))


def test_an_epoch_takes_all_that_a_search_tries_and_the_rest_of_the_command_is_around_it(tmp_path: Path):
    question = asked(tmp_path)
    folder = tmp_path / "probes/a/finetuned"
    lines(folder / "one", 1.0, 2.0)
    lines(folder / "two", 4.0)
    assert measured(question, "finetuned", question.candidates[0], 17.0) == Times(10.0, 7.0)
    assert measured(question, "finetuned", question.candidates[0], 5.0) == Times(0.0, 7.0)
    with pytest.raises(InputError, match=r"expected metrics of the timed training in .*probes/b/finetuned, found none"):
        measured(question, "finetuned", question.candidates[1], 17.0)


def test_an_iteration_takes_what_the_last_line_of_either_engine_says(tmp_path: Path):
    question = asked(tmp_path, kind=DETECTION)
    folder = tmp_path / "probes/a/frozen"
    with pytest.raises(InputError, match="found none"):
        measured(question, "frozen", question.candidates[0], 17.0)
    folder.mkdir(parents=True)
    for text in ("", json.dumps({"time": 9.0}) + "\n" + json.dumps({"time": 0.5}) + "\n"):
        (folder / "metrics.json").write_text(text)
        if not text:
            with pytest.raises(InputError, match="found none"):
                measured(question, "frozen", question.candidates[0], 17.0)
    assert measured(question, "frozen", question.candidates[0], 17.0) == Times(14.5, 0.5)  # five iterations
    lines(folder, 9.0, 0.25)
    assert measured(question, "frozen", question.candidates[0], 17.0) == Times(15.75, 0.25)


def test_every_architecture_is_timed_once_in_every_stage(tmp_path: Path):
    question = asked(tmp_path)
    assert [(stage, one.name) for stage, one, _ in probe_steps(question)] == [("finetuned", "a"), ("finetuned", "b")]
    found = [(stage, one.name) for stage, one, _ in probe_steps(asked(tmp_path, kind=DETECTION))]
    assert found == [("frozen", "a"), ("frozen", "b"), ("finetuned", "a"), ("finetuned", "b")]


@pytest.fixture
def timed(monkeypatch) -> list[str]:
    """Titles of the steps that were timed: each took 20 s, an epoch of it 2 s, an image half a second."""
    titles: list[str] = []

    def run_chain(steps, memory: Path, jobs: int) -> None:
        titles.extend(step.title for step in steps)
        memory.parent.mkdir(parents=True, exist_ok=True)
        memory.write_text(json.dumps({step.key: 20.0 for step in steps}))

    monkeypatch.setattr(run, "run_chain", run_chain)
    monkeypatch.setattr(run, "measured", lambda question, stage, one, wall: Times(wall - 2.0, 2.0))
    monkeypatch.setattr(run, "seconds_per_image", lambda source, size: 0.5)
    return titles


def test_a_plan_is_made_once_and_kept(timed, tmp_path: Path):
    question, sources = asked(tmp_path), {"resnet50": None, "resnet18": None}
    plan = make_plan(question, sources, tested=3)
    assert timed == ["a: finetuned, timed", "b: finetuned, timed"]
    # two starts of a ResNet-50, three of a ResNet-18: 90 s around and 10 s an epoch, in ten minutes at most 51; 40 do
    assert plan.lengths == {"finetuned": 40}
    assert plan.images == dict.fromkeys(sources, 3 * 10 + (17 + 3) * 0.5)
    assert make_plan(question, sources, tested=3) == plan
    assert len(timed) == 2
    detector = make_plan(asked(tmp_path / "other", kind=DETECTION, minutes=60.0), sources, tested=3)
    assert detector.images["resnet50"] == 2 * 10 + (17 + 3) * 0.5


@pytest.mark.parametrize(
    "damage", [{"lengths": {}}, {"lengths": {"finetuned": 0}}, {"times": {}}, {"images": {"resnet50": 1.0}},
               {"times": {"finetuned": {"resnet50": {"around": 1.0, "each": 1.0}}}}],
)  # fmt: skip
def test_a_plan_without_a_part_is_refused(damage, timed, tmp_path: Path):
    question = asked(tmp_path)
    make_plan(question, {"resnet50": None, "resnet18": None}, tested=3)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **damage}))
    with pytest.raises(InputError, match=r"plan\.json as a choice wrote it"):
        make_plan(question, {}, tested=3)


def test_too_few_minutes_leave_no_plan(timed, tmp_path: Path):
    with pytest.raises(InputError, match="expected --minutes of at least 2 for 5 starts"):
        make_plan(asked(tmp_path, minutes=1.0), {"resnet50": None, "resnet18": None}, tested=3)
    assert not (tmp_path / "plan.json").exists()


@pytest.mark.parametrize(("name", "text"), [("metrics.jsonl", ""), ("metrics.json", '{"loss": 1.0}\n')])
def test_a_probe_that_measured_no_time_is_refused(name: str, text: str, tmp_path: Path):
    question = asked(tmp_path, kind=DETECTION)
    folder = tmp_path / "probes/a/frozen"
    folder.mkdir(parents=True)
    (folder / name).write_text(text)
    with pytest.raises(InputError, match="expected metrics of the timed training"):
        measured(question, "frozen", question.candidates[0], 17.0)
