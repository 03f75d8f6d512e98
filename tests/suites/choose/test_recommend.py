"""The verdict of a choice, on made-up outcomes of known strength."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from momentum_transfer.core import records
from momentum_transfer.core import records as items
from momentum_transfer.core.errors import InputError
from momentum_transfer.report.read_inputs import read_records
from momentum_transfer.suites.choose.recommend import decide, write_page
from momentum_transfer.suites.choose.screen import Screen
from momentum_transfer.suites.choose.stages import CLASSIFICATION, Candidate, Question
from momentum_transfer.verdicts.comparison import mcnemar
from momentum_transfer.verdicts.corrections import holm
from momentum_transfer.verdicts.outcomes import PerItem


def question(folder: Path, *names: str) -> Question:
    candidates = tuple(Candidate(name, f"{name}.pth", name, "resnet50", "random") for name in names)
    return Question(folder, CLASSIFICATION, "mine", (50, 50), 224, candidates, 10.0)


def write(asked: Question, hits: dict[str, np.ndarray], **details) -> list[dict]:
    """Records of fine-tuning with hits per test image, as `lowshot finetune` writes them; settings differ by name."""
    for name, outcome in hits.items():
        kept = items.write_items(asked.out, f"finetune-{name}", PerItem("same images", {"top1": outcome}))
        line = records.make_record(
            "finetune", "top1", 100 * float(outcome.mean()), checkpoint={"name": name, "sha256": name},
            protocol="eman", dataset="mine", config=f"of {name}", items=kept, **details,
        )  # fmt: skip
        records.append(asked.results, [line])
    return read_records([asked.results])[0]


def right(count: int, of: int = 200, shift: int = 0) -> np.ndarray:
    return np.roll(np.arange(of) < count, shift)


def test_the_one_that_is_better_than_all_is_recommended(tmp_path):
    asked = question(tmp_path, "a", "b")
    found = decide(asked, write(asked, {"a": right(180), "b": right(120), "random": right(60)}), 200)
    assert (found.best, found.worse, found.helped) == (("a",), ("b",), ("a",))
    assert found.sentences[0] == "Take a: its accuracy of 90.0 is better than that of b (60.0)."
    assert found.sentences[1] == "a is better than a random start of its architecture (30.0)."
    assert list(found.means) == ["a", "b", "random"]


def test_near_ones_are_not_told_apart_and_the_size_that_would_be_seen_is_told(tmp_path):
    asked = question(tmp_path, "a", "b", "c")
    hits = {"a": right(150), "b": right(148, shift=3), "c": right(60), "random": right(149, shift=-2)}
    found = decide(asked, write(asked, hits), 200)
    assert (set(found.best), found.worse, found.helped) == ({"a", "b"}, ("c",), ())
    assert found.sentences[0].startswith(
        "No significant difference in accuracy: a (75.0), b (74.0); any of them will do, c (30.0) is"
    )
    assert "a is not significantly different from a random start of its architecture (74.5)." in found.sentences
    assert "would be detected in 80 % of cases" in found.sentences[-1]


def test_a_random_start_that_is_better_is_told(tmp_path):
    asked = question(tmp_path, "a")
    found = decide(asked, write(asked, {"a": right(60), "random": right(160)}), 200)
    assert found.sentences[:2] == (
        "a, the only candidate: accuracy 30.0.",
        "a is worse than a random start of its architecture (80.0).",
    )


def test_words_follow_mcnemar_with_holms_correction_over_all_pairs(tmp_path):
    generator = np.random.default_rng(0)
    for case in range(8):
        folder = tmp_path / str(case)
        asked = question(folder, "a", "b", "c")
        rates = {"a": 0.7, "b": 0.6, "c": 0.5, "random": 0.55}
        hits = {name: generator.random(120) < rate for name, rate in rates.items()}
        found = decide(asked, write(asked, hits), 200)
        pairs = list(itertools.combinations(hits, 2))
        adjusted = dict(zip(pairs, holm([mcnemar(hits[a], hits[b])[2] for a, b in pairs]), strict=True))
        better = {(a, b) if hits[a].mean() > hits[b].mean() else (b, a) for (a, b), p in adjusted.items() if p <= 0.05}
        assert set(found.best) == {n for n in "abc" if not any((other, n) in better for other in "abc")}
        assert set(found.helped) == {n for n in found.best if (n, "random") in better}


def test_the_page_names_what_was_left_out(tmp_path):
    asked = question(tmp_path, "a", "b")
    write(asked, {"a": right(180), "b": right(120), "random": right(60)})
    page, _ = write_page(asked, ["tools/choose.py"], 200, ["c.pth is left out, because it cannot be read: no file"])
    for suffix in (".md", ".html"):
        assert "c.pth is left out" in page.with_suffix(suffix).read_text(encoding="utf-8")


def test_missing_records_and_missing_outcomes_are_one_line(tmp_path):
    asked = question(tmp_path, "a", "b")
    made = write(asked, {"a": right(100), "b": right(90)})
    with pytest.raises(InputError, match="of every start, found none of random"):
        decide(asked, made, 200)
    made = write(asked, {"random": right(90)})
    for line in made:
        line.pop("items")
    with pytest.raises(InputError, match="no verdict on finetune top1 is possible: one trial, and no outcomes"):
        decide(asked, made, 200)


def test_trainings_that_found_nothing_are_told_and_no_power_is_claimed(tmp_path):
    asked = question(tmp_path, "a")
    found = decide(asked, write(asked, {"a": right(0), "random": right(0)}), 200)
    assert "All scores are 0" in found.sentences[-1]
    assert not any("80 %" in sentence for sentence in found.sentences)


def test_a_ranking_alone_shows_no_records_of_an_earlier_choice(tmp_path):
    write(question(tmp_path, "a", "b"), {"a": right(180), "b": right(120), "random": right(60)})
    ranked = Screen("logme", {"x": {"logme": 1.0}, "y": {"logme": 0.5}}, {"x": (1, 1, 2), "y": (2, 1, 2)})
    page, _ = write_page(replace(question(tmp_path, "x", "y"), trains=False), ["tools/choose.py"], 200, screen=ranked)
    text = page.with_suffix(".md").read_text(encoding="utf-8")
    assert "Ranked without training by logme: x first" in text
    assert "random" not in text
