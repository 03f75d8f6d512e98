"""Text files of any content are read whole or refused in one line, without waiting for a pipe's end."""

import os
from pathlib import Path

import pytest

from momentum_transfer import text_files
from momentum_transfer.errors import InputError
from momentum_transfer.text_files import read_lines, read_text


def test_lines_keep_their_numbers_and_lose_the_mark_and_the_space_around_them(tmp_path: Path):
    (tmp_path / "a.txt").write_bytes("\ufeff one \r\n\r\n\tzwei ü\n".encode())
    assert read_lines(tmp_path / "a.txt", "words") == ["one", "", "zwei ü"]
    assert read_text(tmp_path / "a.txt", "words") == " one \r\n\r\n\tzwei ü\n"


def test_what_is_no_text_file_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(text_files, "MOST", 100)
    (tmp_path / "bytes").write_bytes(b"a\xff\xfe")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    places = {
        tmp_path / "bytes": "no UTF-8 text (at 1); save it as UTF-8",
        tmp_path / "folder": "found a folder",
        tmp_path / "pipe": "found a pipe or a device",
        Path("/dev/zero"): "found a pipe or a device",
        tmp_path / "loop": "Too many levels of symbolic links",
        tmp_path / "none": "No such file",
        tmp_path / ("x" * 300): "File name too long",
        tmp_path / "a\0b": "null byte",
    }
    for place, message in places.items():
        with pytest.raises(InputError) as refused:
            read_text(place, "a list of words")
        assert str(refused.value).startswith("expected a list of words in ")
        assert message in str(refused.value)
        assert "\n" not in str(refused.value)
    (tmp_path / "large").write_bytes(b"x" * 101)
    with pytest.raises(InputError, match="found 101 bytes"):
        read_text(tmp_path / "large", "a list of words", 100)
