"""Text files of any content are read whole or refused in one line, without waiting for a pipe's end."""

import os
from pathlib import Path

import pytest

from momentum_transfer.core import untrusted
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.untrusted import read_json, read_lines, read_text
from momentum_transfer.images import datasets
from momentum_transfer.images.labelled_images import VocImages
from momentum_transfer.images.subsets import read_taxonomy
from momentum_transfer.images.taxonomies import read_hierarchy
from momentum_transfer.lowshot.labelled_data import from_file_list
from momentum_transfer.tools import score, taxonomy
from momentum_transfer.transfer.scores import semantic


def test_lines_keep_their_numbers_and_lose_the_mark_and_the_space_around_them(tmp_path: Path):
    (tmp_path / "a.txt").write_bytes("\ufeff one \r\n\r\n\tzwei ü\n".encode())
    assert read_lines(tmp_path / "a.txt", "words") == ["one", "", "zwei ü"]
    assert read_text(tmp_path / "a.txt", "words") == " one \r\n\r\n\tzwei ü\n"


def test_what_is_no_text_file_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(untrusted, "MOST", 100)
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
        tmp_path / "a\0b": "embedded null",
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


def test_json_of_any_content_is_read_or_one_line(tmp_path: Path):
    file = tmp_path / "a.json"
    file.write_text('{"a": [1, "ü"]}', encoding="utf-16")
    assert read_json(file, "a list") == {"a": [1, "ü"]}
    for content in (b"", b"\xff\xfe\x00", b"[" * 100_000, b"9" * 5000, b"{", b"[1] 2"):
        file.write_bytes(content)
        with pytest.raises(InputError) as refused:
            read_json(file, "a list")
        assert str(refused.value).startswith(f"expected a list as JSON in {file}, but it cannot be read: ")
        assert "\n" not in str(refused.value)


def test_every_list_that_a_user_gives_goes_through_the_reader(tmp_path: Path):
    file = tmp_path / "list.txt"
    readers = {
        "taxonomy": lambda: read_taxonomy(file, ["a"]),
        "hierarchy": lambda: read_hierarchy(file),
        "subset": lambda: from_file_list(file, ["a.png"]),
        "classes of scoring": lambda: score._classes(str(file)),
        "classes of a taxonomy": lambda: taxonomy.class_names(file),
        "labels to score": lambda: semantic.pairs(file, file),
        "index of images": lambda: datasets._file_list(tmp_path, file, 0),
        "VOC's images": lambda: VocImages._flags(file),
    }
    file.write_bytes(b"a \xff\xfe 1\n")
    for what, read in readers.items():
        with pytest.raises(InputError, match=r"list\.txt, found bytes that are no UTF-8 text"):
            pytest.fail(f"{what}: {read()}")
