"""Exit codes, errors of one line, argument types, ranks under Slurm, and stop signals."""

import argparse
import errno
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from momentum_transfer.core.command import (
    Stopped,
    _adopt_slurm_ranks,
    _first_host,
    at_least,
    resamples,
    run_tool,
    stop_signals,
)
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.log import say, table, track, warn

ROOT = Path(__file__).resolve().parents[2]


def run(main, argv=()):
    return run_tool(argparse.ArgumentParser(), main, list(argv))


def raiser(error):
    def main(_args):
        raise error

    return main


def test_wrong_input_is_one_line_and_exit_code_2(capsys):
    assert run(raiser(InputError("expected a, found b"))) == 2
    assert capsys.readouterr().err == "error: expected a, found b\n"


def test_a_library_error_with_the_path_of_an_untrusted_archive_cannot_steer_the_terminal(capsys):
    assert run(raiser(PermissionError(errno.EACCES, "Permission denied", "a\x1b]52;c;eA==\x07\nb"))) == 2
    assert capsys.readouterr().err == (
        "error: cannot use a\\x1b]52;c;eA==\\x07\\nb: Permission denied; choose another path\n"
    )


def test_file_names_that_look_like_options_and_warnings_of_libraries_cannot_steer_the_terminal(capsys, monkeypatch):
    with pytest.raises(SystemExit):
        run_tool(argparse.ArgumentParser(), lambda _: None, ["--\x1b]52;c;eA==\x07.jpg"])
    assert capsys.readouterr().err.endswith("error: unrecognized arguments: --\\x1b]52;c;eA==\\x07.jpg\n")
    monkeypatch.setattr(warnings, "formatwarning", None)
    assert run(lambda _: None) == 0
    line = warnings.formatwarning("Glyph \x1b)\nforged", UserWarning, "a.py", 1)  # as Python's own printer calls it
    assert line == "a.py:1: UserWarning: Glyph \\x1b)\\nforged\n"


@pytest.mark.parametrize("variables", [{"PYTHONIOENCODING": "ascii"},
                                       {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}])  # fmt: skip
def test_names_that_the_output_cannot_encode_are_escapes_and_no_traceback(variables, tmp_path):
    code = (
        "import argparse, sys\n"
        "from momentum_transfer.core.log import say, warn, table\n"
        "from momentum_transfer.core.errors import InputError\n"
        "from momentum_transfer.core.command import run_tool\n"
        "def main(args):\n"
        "    say(args.path); warn(args.path); table(args.path, [args.path], [[args.path]])\n"
        "    raise InputError(f'found {args.path}')\n"
        "parser = argparse.ArgumentParser(); parser.add_argument('path')\n"
        "sys.exit(run_tool(parser, main))\n"
    )
    for name, shown in (
        ("caf\u00e9.jpg", ("caf\\xe9.jpg", "caf\\udcc3\\udca9.jpg")),
        (b"caf\xe9.jpg", ("caf\\udce9.jpg",)),
    ):
        command = [os.fsencode(part) for part in (sys.executable, "-c", code, name)]
        done = subprocess.run(command, env={**os.environ, **variables}, cwd=ROOT, capture_output=True)
        assert done.returncode == 2, done.stderr.decode(errors="replace")
        out, errors = done.stdout.decode("ascii"), done.stderr.decode("ascii")
        assert any(out.count(text) == 4 and f"error: found {text}\n" in errors for text in shown), out + errors


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


def test_an_error_is_one_line_whatever_breaks_stand_in_the_names_in_it(capsys):
    assert run(raiser(InputError("expected a, found b\nc\u2028d\x85e; next"))) == 2
    assert capsys.readouterr().err == "error: expected a, found b c\\u2028d\\x85e; next\n"


def test_a_full_standard_output_is_named_as_such(capsys):
    assert run(raiser(OSError(errno.ENOSPC, "No space left on device"))) == 1
    assert "no space left on the disk while writing the output; " in capsys.readouterr().err


def test_paths_of_bytes_are_shown_as_text(capsys):
    assert run(raiser(PermissionError(errno.EACCES, "Permission denied", b"f/events"))) == 2
    assert "cannot use f/events: Permission denied" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EMFILE, "Too many open files"),
        RuntimeError("Too many open files. Communication with the workers is no longer"),
    ],
)
def test_too_many_open_files_are_one_line(capsys, monkeypatch, error):
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    assert run(raiser(error)) == 1
    assert capsys.readouterr().err.startswith("error: too many open files; raise `ulimit -n`, or take fewer workers")


def in_fork(work):
    """Exit code of ``work`` in a child, which has no part in pytest's capture."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(work())
        except BaseException:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_closed_standard_streams_end_no_tool():
    def work():
        sys.stdout = sys.stderr = sys.stdin = None
        return run(lambda _args: (say("a"), warn("b"), table("c", ("d",), [["e"]]), list(track([1], "f"))))

    assert in_fork(work) == 0


def test_a_full_standard_error_changes_no_exit_code_and_ends_no_run():
    def work(main):
        sys.stderr = os.fdopen(os.open("/dev/full", os.O_WRONLY), "w")
        return run(main)

    assert in_fork(lambda: work(raiser(InputError("expected a")))) == 2
    assert in_fork(lambda: work(lambda _args: warn("b"))) == 0


def test_counts_from_the_least_on_are_taken() -> None:
    assert [at_least(1)("1"), at_least(0)("0"), at_least(2)("0640")] == [1, 0, 640]
    assert [resamples(text) for text in ("0", "100", "1000")] == [0, 100, 1000]


@pytest.mark.parametrize("text", ["1", "-3", "2.0", "", "two", "²", "٣"])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=f"^expected a batch of at least 2, found {text}$"):
        at_least(2, "a batch")(text)


@pytest.mark.parametrize("text", ["1", "99", "-100", "1e3"])
def test_too_few_resamples_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected 0 or at least 100 resamples"):
        resamples(text)


STEP = {
    "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_JOB_ID": "12",
    "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
}  # fmt: skip
RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")


def test_a_step_of_several_tasks_gives_ranks_and_a_place_to_meet():
    environment = dict(STEP)
    _adopt_slurm_ranks(environment)
    assert [environment[name] for name in RANKS] == ["3", "4", "1", "2", "gpu07"]
    other = {**STEP, "SLURM_PROCID": "0", "SLURM_STEP_ID": "1"}
    _adopt_slurm_ranks(other)
    assert other["MASTER_PORT"] != environment["MASTER_PORT"]  # two steps of a job do not meet each other
    shown_one = {**STEP, "CUDA_VISIBLE_DEVICES": "0", "SLURM_STEP_NUM_NODES": "1"}
    _adopt_slurm_ranks(shown_one)
    assert (shown_one["LOCAL_RANK"], shown_one["MASTER_ADDR"]) == ("0", "127.0.0.1")


@pytest.mark.parametrize("changed", [{"SLURM_STEP_NUM_TASKS": "1"}, {"SLURM_STEP_NUM_TASKS": ""}, {"WORLD_SIZE": "2"}])
def test_one_task_the_batch_script_and_torchrun_are_left_alone(changed):
    environment = {**STEP, **changed}
    _adopt_slurm_ranks(environment)
    assert environment == {**STEP, **changed}


def test_the_first_host_of_slurms_lists():
    lists = {"gpu[007-009,12]-ib,login1": "gpu007-ib", "a,b": "a", "node1": "node1", "r[1-2]n[03,05]": "r1n03"}
    assert {text: _first_host(text) for text in lists} == lists


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
