"""Words of messages."""

import errno
import sys

import pytest
import torch.distributed as dist

from momentum_transfer.core.errors import (
    MAX_MESSAGE,
    InputError,
    counted,
    extra,
    first_line,
    first_to_say,
    missing_package,
    one_line,
    printable,
    refusal,
    shortened,
    shown,
)


@pytest.mark.parametrize(
    ("count", "noun", "said"),
    [
        (1, "class", "1 class"),
        (2, "class", "2 classes"),
        (0, "image", "0 images"),
        (3, "batch", "3 batches"),
        (2, "box", "2 boxes"),
        (2, "category", "2 categories"),
        (1, "test image", "1 test image"),
    ],
)
def test_a_noun_follows_its_number(count: int, noun: str, said: str):
    assert counted(count, noun) == said


@pytest.mark.parametrize(
    ("error", "line", "code"),
    [
        (OSError(errno.ENOSPC, "No space", "/a/b"), "no space left on the disk while writing /a/b; free some", 1),
        (OSError(errno.EDQUOT, "Quota"), "no space left on the disk while writing the output;", 1),
        (OSError(errno.EFBIG, "Too large", b"/a"), "no space left on the disk while writing /a;", 1),
        (OSError(errno.EMFILE, "Too many open files", "/a"), "too many open files; raise `ulimit -n`", 1),
        (RuntimeError("unable to mmap: Too many open files (24)"), "too many open files", 1),
        (PermissionError(errno.EACCES, "Permission denied", "/a"), "cannot use /a: Permission denied; choose", 2),
        (MemoryError(), "not enough memory (no more could be allocated)", 1),
        (MemoryError("Unable to allocate 9 TiB"), "not enough memory (Unable to allocate 9 TiB)", 1),
        (ValueError("embedded null byte"), "found one with a NUL character in it", 2),
        (ValueError("open: embedded null character in path"), "found one with a NUL character in it", 2),
        (RuntimeError("Could not determine home directory."), "found one that begins with ~ and no such user", 2),
    ],
)
def test_what_the_system_refuses_is_one_line_with_its_exit_code(error: Exception, line: str, code: int):
    found, exit_code = refusal(error)
    assert line in found
    assert exit_code == code


def test_text_that_cannot_be_written_is_shown_around_its_place():
    try:
        ("x" * 100 + "\ud800" + "y" * 100).encode()
    except UnicodeEncodeError as error:
        found, code = refusal(error)
    assert code == 2
    assert f"found '{'x' * 60}\\ud800{'y' * 20}'; use other characters" in found


@pytest.mark.parametrize(
    "error",
    [OSError("of no file"), OSError(errno.EACCES, "Permission denied"), ValueError("wrong"), RuntimeError("CUDA error"),
     TypeError("embedded null byte"), KeyError("home directory"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x")],
)  # fmt: skip
def test_a_bug_is_no_refusal(error: Exception):
    assert refusal(error) is None


def test_messages_are_one_printable_line_of_readable_length():
    assert str(InputError("a\n   b\r\n\x1b[2J\u202ec")) == "a b \\x1b[2J\\u202ec"
    assert str(InputError("a  b")) == "a  b"
    worker = "Caught InputError in DataLoader worker process 0.\nTraceback:\n  File\nInputError: expected an image\n"
    assert str(InputError(worker)) == "expected an image"
    assert printable("a\tb\u200bc ü é") == "a\\tb\\u200bc ü é"
    assert one_line("a" * 240) == "a" * 240
    assert one_line("a" * 241) == "a" * 239 + "…"
    assert one_line("abc", 2) == "a…"
    assert (one_line(" a\n b "), one_line(KeyError())) == ("a b", "KeyError")
    assert first_line(ValueError(f"{'x' * 200}\nsecond")) == f"ValueError: {'x' * 160}"
    assert first_line(ValueError()) == "ValueError"
    assert shortened("a" * MAX_MESSAGE) == "a" * MAX_MESSAGE
    assert shortened("a\n" + "b" * MAX_MESSAGE) == "a " + "b" * (MAX_MESSAGE - 2) + "… (all of it with --debug)"


def test_values_are_shown_short():
    assert shown("a" * 78) == repr("a" * 78)
    assert len(shown("a" * 79)) == 80
    assert shown(list(range(8))) == "[0, 1, 2, 3, 4, 5, 6, 7]"
    assert shown(list(range(9))) == "[0, 1, 2, 3, 4, 5, 6, 7, ...]"
    assert shown([[[[1]]]]) == "[[[[...]]]]"
    assert shown(["a" * 60] * 4) == repr(["a" * 60] * 4)
    long = shown(["a" * 60] * 5)
    assert len(long) == 300
    assert long.endswith("...")


def test_a_missing_package_is_named_with_what_brings_it(monkeypatch):
    assert (
        missing_package("timm.models") == 'expected the package timm, found none; pip install "momentum-transfer[timm]"'
    )
    assert "pip install momentum-transfer" in missing_package("torch.nn")
    assert missing_package("elsewhere") is None
    assert extra("json", "reading").loads("1") == 1
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(InputError, match=r"^Slurm jobs: expected the package submitit.*\[slurm\]"):
        extra("submitit", "Slurm jobs")


def test_outside_torchrun_every_process_speaks(monkeypatch):
    for variables in ({}, {"WORLD_SIZE": "1", "MASTER_PORT": "1"}, {"WORLD_SIZE": "2"}):
        for name in ("WORLD_SIZE", "MASTER_PORT", "MASTER_ADDR"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert first_to_say("a")
        assert first_to_say("a")


def test_of_the_processes_of_a_job_the_first_speaks(monkeypatch):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert [first_to_say(text) for text in ("a", "a", "b", "a")] == [True, False, True, False]
