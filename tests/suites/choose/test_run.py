"""What a choice times and notes: a stopped one goes on as it began, another one is refused."""

import json
from pathlib import Path

import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.records import append, make_record
from momentum_transfer.suites.choose import run
from momentum_transfer.suites.choose.run import Progress, as_begun, estimated, keep_question, make_plan, measured
from momentum_transfer.suites.choose.screen import Screen
from momentum_transfer.suites.choose.stages import CLASSIFICATION, DETECTION, IMAGES, Candidate, Plan, Question, Times


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
    assert as_begun(first) == first
    keep_question(first)
    again = as_begun(asked(tmp_path, settings=("A", "9"), longest=7, workers=5))
    assert again == first
    keep_question(again)
    assert json.loads((tmp_path / "question.json").read_text())["workers"] == 2


@pytest.mark.parametrize(
    ("changes", "key"), [({"title": "other"}, "title"), ({"seed": 1}, "seed"), ({"counts": (9, 9)}, "counts"),
                         ({"overrides": ("B", "2")}, "overrides")],
)  # fmt: skip
def test_another_choice_in_the_same_folder_is_refused_with_what_differs(changes, key, tmp_path: Path):
    keep_question(asked(tmp_path))
    with pytest.raises(InputError, match=f"holds another choice: its {key} was .*, now it is"):
        as_begun(asked(tmp_path, **changes))


def test_a_choice_that_was_refused_or_only_planned_holds_no_folder(tmp_path: Path):
    as_begun(asked(tmp_path))
    assert as_begun(asked(tmp_path, image_size=32)).image_size == 32


def test_other_images_are_another_choice(tmp_path: Path):
    keep_question(asked(tmp_path))
    now = asked(tmp_path)
    (tmp_path / "images/val.txt").write_text("more.png 0\n")
    with pytest.raises(InputError, match="holds another choice: its images was"):
        as_begun(now)


def test_minutes_may_change_until_there_is_a_plan_for_them(tmp_path: Path):
    keep_question(asked(tmp_path))
    keep_question(as_begun(asked(tmp_path, minutes=20.0)))
    assert json.loads((tmp_path / "question.json").read_text())["minutes"] == 20
    (tmp_path / "plan.json").write_text('{"lengths": {}, "times": {}}')
    assert as_begun(asked(tmp_path, minutes=20.0)).minutes == 20
    (tmp_path / "plan.json").write_text('{"lengths": {}, "times": {}, "timed": ["finetuned"]}')
    assert as_begun(asked(tmp_path, minutes=20.0)).minutes == 20
    with pytest.raises(InputError, match=r"its minutes was 20\.0, now it is 30\.0"):
        as_begun(asked(tmp_path, minutes=30.0))


@pytest.mark.parametrize(
    "changes", [{"settings": ["A"]}, {"settings": ["A", "b\0"]}, {"settings": ["A", "\ud800"]}, {"workers": -1},
                {"longest": 10**12}, {"longest": "x"}],
)  # fmt: skip
def test_damaged_notes_are_refused(changes, tmp_path: Path):
    keep_question(asked(tmp_path))
    file = tmp_path / "question.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    with pytest.raises(InputError, match="as a choice wrote it, found something else; remove the folder"):
        as_begun(asked(tmp_path))
    file.write_text("{")
    with pytest.raises(InputError, match="as a choice wrote it"):
        as_begun(asked(tmp_path))


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


SEEN = {"resnet50": Times(12.0, 4.0), "resnet18": Times(6.0, 1.0)}


@pytest.fixture
def ran(monkeypatch) -> list[str]:
    """Titles of the steps that were run: each took 20 s, an epoch of it 2 s."""
    titles: list[str] = []

    def run_chain(steps, memory: Path, jobs: int) -> None:
        titles.extend(step.title for step in steps)
        memory.parent.mkdir(parents=True, exist_ok=True)
        memory.write_text(json.dumps({step.key: 20.0 for step in steps}))

    monkeypatch.setattr(run, "run_chain", run_chain)
    monkeypatch.setattr(run, "measured", lambda question, stage, one, wall: Times(wall - 2.0, 2.0))
    return titles


def first_plan(question: Question) -> Plan:
    return Plan({}, {stage: dict(SEEN) for stage in question.stages}, {"resnet50": 30.0, "resnet18": 20.0})


def test_a_plan_from_sizes_grows_with_networks_and_images(monkeypatch, tmp_path: Path):
    monkeypatch.setattr(run, "_operations_a_second", lambda: 1e9)
    large, small = "resnet10?width=8", "resnet10?width=4"
    candidates = tuple(Candidate(name, f"/{name}", name, name, f"random {name}") for name in (large, small))
    question = asked(tmp_path, image_size=32, candidates=candidates)
    plan = estimated(question, tested=3)
    assert plan.images[large] > plan.images[small] > 0
    assert plan.times["finetuned"][large].each > plan.times["finetuned"][small].each
    assert estimated(question, tested=300).images[small] > plan.images[small]
    boxes = estimated(asked(tmp_path, kind=DETECTION, candidates=candidates), 3, side=64, batch=2)
    assert boxes.times["frozen"][large].each < boxes.times["finetuned"][large].each
    assert run._operations(small, 64) == pytest.approx(4 * run._operations(small, 32))


def test_a_plan_has_the_lengths_that_fit_and_a_timed_one_is_kept(tmp_path: Path):
    question = asked(tmp_path)
    plan = make_plan(question, first_plan(question), 10.0)
    # two starts of a ResNet-50, three of a ResNet-18: 120 s of images, 42 s around and 11 s an epoch, in 9.5 minutes
    assert plan.lengths == {"finetuned": (570 - 10 - 120 - 42) // 11}
    progress = Progress(question, plan)
    progress.keep(timed=["finetuned"], lengths={"finetuned": 7})
    assert make_plan(question, first_plan(question), 500.0).lengths == {"finetuned": 7}
    with pytest.raises(InputError, match="expected --minutes of at least 5 for 5 starts and 1 trial, found 1"):
        make_plan(asked(tmp_path / "other", minutes=1.0), first_plan(question), 100.0)
    assert not (tmp_path / "other/plan.json").exists()


@pytest.mark.parametrize(
    "damage", [{"lengths": {}}, {"lengths": {"finetuned": 0}}, {"times": {}}, {"images": {"resnet50": 1.0}},
               {"times": {"finetuned": {"resnet50": {"around": 1.0, "each": 1.0}}}}, {"timed": ["other"]},
               {"alive": {"finetuned": ["stranger"]}}, {"spent": -1.0}],
)  # fmt: skip
def test_a_plan_without_a_part_is_refused(damage, tmp_path: Path):
    question = asked(tmp_path)
    Progress(question, make_plan(question, first_plan(question), 0.0)).keep()
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **damage}))
    with pytest.raises(InputError, match=r"plan\.json as a choice wrote it"):
        make_plan(question, first_plan(question), 0.0)


def test_stages_run_in_order_and_the_better_half_goes_on(ran, tmp_path: Path):
    question = asked(tmp_path, screened=True, candidates=tuple(
        Candidate(name, f"/{name}.pth", name, "resnet18", "random_2") for name in "abcdef"))  # fmt: skip
    for name, value in {"a": 10.0, "b": 90.0, "c": 50.0}.items():
        append(question.results, [make_record("linear", "top1", value, checkpoint={"name": name, "sha256": name})])
    progress = Progress(question, make_plan(question, first_plan(question), 0.0))
    assert progress.run(["c", "a", "b", "f", "d", "e"]) == ("c", "b")
    random = "random_2"
    assert ran[:4] == [f"{name}: knn" for name in ("a", "b", "c", random)]
    assert ran[-4:] == ["b: finetuned, timed", "b: finetuned", "c: finetuned", f"{random}: finetuned"]
    assert progress.plan.alive == {IMAGES: ["c", "a", "b"], "finetuned": ["c", "b"]}
    assert progress.plan.times["finetuned"]["resnet18"] == Times(18.0, 2.0)
    again = Progress(question, make_plan(question, first_plan(question), 0.0))
    assert again.plan.lengths == progress.plan.lengths
    assert again.run(["d", "e", "f"]) == ("c", "b")  # as it began, whatever a new ranking says
    assert again.spent >= progress.plan.spent


def test_only_as_much_is_timed_as_the_budget_bears_and_the_rest_is_scaled(ran, monkeypatch, tmp_path: Path):
    question = asked(tmp_path, kind=DETECTION, minutes=20.0)
    progress = Progress(question, make_plan(question, first_plan(question), 0.0))
    clock = iter(range(0, 10**6, 70))  # every look at the clock takes 70 s: more than half a tenth of the rest
    monkeypatch.setattr(run.time, "monotonic", lambda: next(clock) + progress._begun)
    progress._time("frozen")
    assert ran == ["a: detector, frozen, timed"]
    found = progress.plan.times
    assert found["frozen"] == {"resnet50": Times(18.0, 2.0), "resnet18": Times(6.0 * 1.5, 1.0 * 0.5)}
    assert found["finetuned"] == {"resnet50": Times(18.0, 2.0), "resnet18": Times(9.0, 0.5)}
    assert progress.plan.timed == ["frozen"]


def test_the_time_left_counts_on_later_stages_that_are_fitted_to_the_minutes(ran, monkeypatch, caplog, tmp_path: Path):
    question = asked(tmp_path)
    progress = Progress(question, make_plan(question, first_plan(question), 0.0))
    clock = iter(range(0, 10**6, 40))  # every look at the clock takes 40 s
    monkeypatch.setattr(run.time, "monotonic", lambda: next(clock) + progress._begun)
    with caplog.at_level("INFO", "momentum_transfer"):
        progress._steps(IMAGES, run.stages.image_steps(question, question.everyone)[:2])
    # 120 s of ten minutes at the third look; as planned, 80 s of images and 449 s of fine-tuning would follow
    assert progress.plan.seconds(question, "finetuned") == 449
    assert "images, 1 of 2: 2.7 of 10 minutes spent, about 8.0 left" in caplog.text


@pytest.mark.parametrize(("name", "text"), [("metrics.jsonl", ""), ("metrics.json", '{"loss": 1.0}\n')])
def test_a_probe_that_measured_no_time_is_refused(name: str, text: str, tmp_path: Path):
    question = asked(tmp_path, kind=DETECTION)
    folder = tmp_path / "probes/a/frozen"
    folder.mkdir(parents=True)
    (folder / name).write_text(text)
    with pytest.raises(InputError, match="expected metrics of the timed training"):
        measured(question, "frozen", question.candidates[0], 17.0)


def test_a_kept_ranking_is_of_one_measure(tmp_path: Path):
    found = Screen("logme", {"a": {"logme": 1.0}}, {"a": (1.0, 1.0, 1.0)})
    question = asked(tmp_path)
    assert run.kept_screen(question, lambda: found).measure == "logme"
    assert run.kept_screen(question, lambda: pytest.fail("ranked again"), "logme").measure == "logme"
    with pytest.raises(InputError, match="its measure was logme, now it is 'knn'"):
        run.kept_screen(question, lambda: pytest.fail("ranked again"), "knn")
