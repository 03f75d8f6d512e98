"""The terminal: exit codes, one-line errors, signals that wait for the step to end."""

import argparse
import errno
import os
import signal

import pytest

from momentum_transfer import console
from momentum_transfer.console import ProgressLine, Stopped, run_tool, stop_signals, table, track
from momentum_transfer.errors import InputError


def run(main, argv=()):
    return run_tool(argparse.ArgumentParser(), main, list(argv))


def raiser(error):
    def main(_args):
        raise error

    return main


def test_wrong_input_is_one_line_and_exit_code_2(capsys):
    assert run(raiser(InputError("expected a, found b"))) == 2
    assert capsys.readouterr().err == "error: expected a, found b\n"


def test_debug_shows_the_traceback(capsys):
    assert run(raiser(InputError("expected a")), ["--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_full_disk_is_readable(capsys):
    assert run(raiser(OSError(errno.ENOSPC, "No space left on device", "x.pt"))) == 1
    assert "no space left on the disk while writing x.pt" in capsys.readouterr().err


@pytest.mark.parametrize("error", [NotADirectoryError(errno.ENOTDIR, "Not a directory", "f/out"),
                                   OSError(errno.ENAMETOOLONG, "File name too long", "f/out"),
                                   PermissionError(errno.EACCES, "Permission denied", "f/out")])  # fmt: skip
def test_a_path_that_cannot_be_used_is_one_line(capsys, error):
    assert run(raiser(error)) == 2
    assert capsys.readouterr().err == f"error: cannot use f/out: {error.strerror}; choose another path\n"


def test_sigterm_unwinds_and_says_what_to_do(capsys):
    unwound = []

    def main(_args):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            unwound.append(True)

    before = signal.getsignal(signal.SIGTERM)
    assert run(main) == 143
    assert unwound
    assert "run the same command again" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is before


def test_brackets_in_names_are_no_markup(capsys):
    table("[b]x.json", ["a"], [["[red]y"]])
    out = capsys.readouterr().out
    assert "[b]x.json" in out
    assert "[red]y" in out


def test_a_stop_says_its_message_and_gives_the_shells_code(capsys):
    assert run(raiser(Stopped("saved step 3; resume with --resume", 143))) == 143
    assert "resume with --resume" in capsys.readouterr().out


def test_settings_may_stand_before_between_and_after_options():
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["knn", "svm"])
    parser.add_argument("--config")
    parser.add_argument("overrides", nargs="*")
    seen = []
    assert run_tool(parser, seen.append, ["svm", "A", "1", "--config", "f", "B", "2", "--debug"]) == 0
    assert (seen[0].command, seen[0].config, seen[0].overrides, seen[0].debug) == (
        "svm",
        "f",
        ["A", "1", "B", "2"],
        True,
    )


def test_bugs_keep_their_traceback():
    with pytest.raises(ZeroDivisionError):
        run(raiser(ZeroDivisionError()))


def test_the_first_signal_only_sets_the_flag_and_the_second_ends():
    before = signal.getsignal(signal.SIGINT)
    with stop_signals() as stop:
        assert not stop
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop
        assert stop.exit_code == 143
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_track_yields_everything_and_ends_with_a_plain_line(capsys):
    assert list(track([1, 2, 3], "reading")) == [1, 2, 3]
    assert "reading: 3/3" in capsys.readouterr().out


def test_progress_says_how_much_time_is_left(capsys, monkeypatch):
    now = iter((0.0, 11.0, 11.0, 100.0, 100.0))
    monkeypatch.setattr(console.time, "monotonic", lambda: next(now, 100.0))
    with console.ProgressLine("train", 100, start=50) as line:
        line.advance(5)  # 5 of 50 in 11 s: 45 more in 99 s
        line.advance(45)
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == "train: 55/100 in 11 s, about 99 s left"
    assert last.startswith("train: 100/100 in 100 s")


@pytest.mark.parametrize(
    ("seconds", "said"), [(40, "40 s"), (720, "12 min"), (12_000, "3 h 20 min"), (187_200, "2 d 4 h")]
)
def test_lengths_of_time_are_said_as_people_do(seconds: float, said: str):
    assert console.duration(seconds) == said


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
    rows = [[f"n[b]{number}", number * 1.5, "x\ny"] for number in range(console.DRAWN + 1)]
    table("scores", ["name", "value", "note"], rows)
    title, head, *lines = capsys.readouterr().out.splitlines()
    assert (title, head.split()) == ("scores", ["name", "value", "note"])
    assert [line.split() for line in lines] == [[name, str(value), "x", "y"] for name, value, _ in rows]
    assert {line.index("x y") for line in lines} == {head.index("note") + 1}


def test_an_error_is_one_line_whatever_breaks_stand_in_the_names_in_it(capsys):
    assert run(raiser(InputError("expected a, found b\nc\u2028d\x85e; next"))) == 2
    assert capsys.readouterr().err == "error: expected a, found b c d e; next\n"
