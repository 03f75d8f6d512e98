"""The terminal: lines, progress and tables."""

import argparse
import time

import pytest

from momentum_transfer.core import log
from momentum_transfer.core.command import run_tool
from momentum_transfer.core.errors import InputError, printable
from momentum_transfer.core.log import ProgressLine, table, track
from tests.attacks.outcome import STEERING


def test_brackets_in_names_are_no_markup(capsys):
    table("[b]x.json", ["a"], [["[red]y"]])
    out = capsys.readouterr().out
    assert "[b]x.json" in out
    assert "[red]y" in out


def test_track_yields_everything_and_ends_with_a_plain_line(capsys):
    assert list(track([1, 2, 3], "reading")) == [1, 2, 3]
    assert "reading: 3/3" in capsys.readouterr().out


def test_progress_says_how_much_time_is_left(capsys, monkeypatch):
    now = iter((0.0, 11.0, 11.0, 100.0, 100.0))
    monkeypatch.setattr(log.time, "monotonic", lambda: next(now, 100.0))
    with log.ProgressLine("train", 100, start=50) as line:
        line.advance(5)  # 5 of 50 in 11 s: 45 more in 99 s
        line.advance(45)
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == "train: 55/100 in 11 s, about 99 s left"
    assert last.startswith("train: 100/100 in 100 s")


@pytest.mark.parametrize(
    ("seconds", "said"), [(40, "40 s"), (720, "12 min"), (12_000, "3 h 20 min"), (187_200, "2 d 4 h")]
)
def test_lengths_of_time_are_said_as_people_do(seconds: float, said: str):
    assert log.duration(seconds) == said


def test_progress_carries_its_note(capsys):
    with ProgressLine("training", total=10, start=4) as line:
        line.advance(6, note="loss 1.5")
    assert "training: 10/10" in (out := capsys.readouterr().out)
    assert "loss 1.5" in out


def test_only_the_first_process_talks(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    table("t", ["a"], [["1"]])
    assert capsys.readouterr().out == ""


def test_tables_are_not_folded_off_a_terminal(capsys):
    table("scores", ["metric", "value"], [["AP " + "x" * 90, 12.5]])
    assert "x" * 90 in capsys.readouterr().out


def test_a_table_of_many_rows_is_lines_without_a_frame_and_loses_none(capsys):
    rows = [[f"n[b]{number}", number * 1.5, "x\ny"] for number in range(log.DRAWN + 1)]
    table("scores", ["name", "value", "note"], rows)
    title, head, *lines = capsys.readouterr().out.splitlines()
    assert (title, head.split()) == ("scores", ["name", "value", "note"])
    assert [line.split() for line in lines] == [[name, str(value), r"x\ny"] for name, value, _ in rows]
    assert {line.index(r"x\ny") for line in lines} == {head.index("note")}


@pytest.mark.parametrize("text", STEERING)
def test_what_would_steer_a_terminal_is_shown_as_escapes(text: str, capsys, monkeypatch):
    monkeypatch.setattr(log, "PLAIN_INTERVAL", 0.0)
    log.say(f"tensor {text}")
    log.warn(f"tensor {text}")
    table(text, [text, "b"], [[text, 1.0]])
    table("long", ["a"], [[text]] * (log.DRAWN + 1))
    with ProgressLine(text, total=2) as line:
        line.advance(note=text)
    found = capsys.readouterr()
    everything = found.out + found.err + str(InputError(f"found {text}")) + str(InputError(f"{text}: not found"))
    escaped = text.encode("unicode_escape").decode()
    assert printable(text) == escaped
    assert f"tensor {escaped}\n" in found.out
    assert f"warning: tensor {escaped}\n" in found.err
    assert found.out.count(escaped) == 1 + 3 + log.DRAWN + 1 + 2 * 2
    assert all(character == "\n" or character.isprintable() for character in everything)
    assert "\nforged" not in everything


def test_a_terminals_bar_takes_names_with_brackets_and_escapes_as_text(monkeypatch, capsys):
    monkeypatch.setattr(log.sys.stdout, "isatty", lambda: True, raising=False)
    with log.speaking(), ProgressLine("[/red] \x1b]52;c;eA==\x07", total=1) as line:
        assert line._bar is not None
        line.advance(note="[link=x]y[/link] \u202e")
    shown = capsys.readouterr().out
    assert r"[/red] \x1b]52;c;eA==\x07" in shown
    assert r"[link=x]y[/link] \u202e" in shown
    assert "\x1b]52" not in shown
    assert "\u202e" not in shown


def test_letters_marks_and_emoji_of_any_script_stay_as_they_are():
    for text in ("Straße é e\u0301", "日本語", "עברית", "नी\u200dम", "👩\u200d🔬", r"C:\x1b", "[a]"):
        assert printable(text) == text


def test_a_call_that_counts_nothing_gives_a_sign_of_life(capsys):
    with log.waiting("tracing", every=0.01):
        time.sleep(0.2)
    first, *others = capsys.readouterr().out.splitlines()
    assert first == "tracing"
    assert others
    assert set(others) == {"tracing: 0 s so far"}
    time.sleep(0.05)
    assert capsys.readouterr().out == ""


def test_a_line_comes_while_nothing_is_said_and_none_while_lines_come(capsys):
    with log.never_silent(every=0.1):
        time.sleep(0.6)
    assert "working, 0 s so far" in capsys.readouterr().out
    with log.never_silent(every=60.0):
        time.sleep(0.3)
    assert capsys.readouterr().out == ""


def test_a_block_of_hours_may_be_silent_for_longer():
    assert [log._silence(4.5, elapsed) for elapsed in (0, 60, 270)] == [4.5] * 3
    assert [log._silence(4.5, elapsed) for elapsed in (600, 3600)] == [10, 60]


def test_no_line_comes_while_another_process_speaks(capsys):
    with log.never_silent(every=0.01), log.silent():
        time.sleep(0.2)
    assert capsys.readouterr().out == ""


def test_every_tool_is_never_silent_while_it_runs(capsys):
    assert run_tool(argparse.ArgumentParser(), lambda _: log._stands[-1](), []) == 0
    assert capsys.readouterr().out == "working, 0 s so far\n"
    assert log._stands == []


def test_a_step_that_does_not_end_repeats_where_the_work_stands(capsys):
    with log.never_silent(every=0.1), log.ProgressLine("train", 4) as line:
        line.advance(note="loss 1.5")
        time.sleep(0.4)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 1
    assert all(line.startswith("train: 1/4 in 0 s") and line.endswith("loss 1.5") for line in lines)
