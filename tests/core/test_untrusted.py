"""Untrusted text, YAML and NumPy archives are read whole or refused in one line."""

import io
import os
import resource
import runpy
import struct
import time
import zipfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from momentum_transfer.core import untrusted
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.untrusted import MOST_ENTRIES, parse_mapping, read_json, read_lines, read_mapping, read_text
from momentum_transfer.images import datasets
from momentum_transfer.images.labelled_images import VocImages
from momentum_transfer.images.subsets import read_taxonomy
from momentum_transfer.images.taxonomies import read_hierarchy
from momentum_transfer.lowshot.features.feature_set import read_npz
from momentum_transfer.lowshot.labelled_data import from_file_list
from momentum_transfer.tools import score, taxonomy
from momentum_transfer.transfer.scores import semantic


def test_lines_keep_their_numbers_and_lose_the_mark_and_the_space_around_them(tmp_path: Path):
    (tmp_path / "a.txt").write_bytes("\ufeff one \r\n\r\n\tzwei ü\n".encode())
    assert read_lines(tmp_path / "a.txt", "words") == ["one", "", "zwei ü"]
    assert read_text(tmp_path / "a.txt", "words") == " one \r\n\r\n\tzwei ü\n"


def test_what_is_no_text_file_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(untrusted, "MAX_FILE_BYTES", 100)
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


def test_plain_values_are_those_of_the_library():
    text = "a: [1, 2.5, true, null, x]\nb: &b {c: 2026-11-22}\nd: *b\ne: {<<: *b, f: 1}\n"
    assert parse_mapping(text, "here") == yaml.safe_load(text)


with mock.patch.object(yaml, "CSafeLoader", yaml.SafeLoader):  # as PyYAML built without libyaml
    WITHOUT_LIBYAML = runpy.run_path(untrusted.__file__)["parse_mapping"]

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
MERGES = "a0: &a0 {k: v}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 12))
CHAIN = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 300))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LAUGHS, "entries"),
        (MERGES, "entries"),
        (CHAIN, "deeper nesting"),
        ("a: &a [*a]", "deeper nesting"),
        ("a: " + "[" * 50_000, "nesting"),
        ("a: " + "{b: " * 50_000, "nesting"),
        ("\n".join(" " * n + "b:" for n in range(30)), "deeper nesting"),
        ("a: 1\na: 2", r"duplicate key a \(line 2\)"),
        ('a: "b\\0"', "without NUL and half characters"),
        ('"\\ud800": b', "without NUL and half characters|invalid Unicode"),
        (f"a: {'9' * 5000}", "cannot be read"),
        ("a: 2026-99-99", "cannot be read"),
        ("a: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("a: 1\n---\nb: 2", "found another document"),
        ("", "found an empty file"),
        ("- a", "found list"),
    ],
)
@pytest.mark.parametrize("parse", [parse_mapping, WITHOUT_LIBYAML], ids=["libyaml", "python"])
def test_bombs_and_mistakes_are_one_line_in_no_time(text: str, message: str, parse):
    began = time.process_time()
    with pytest.raises(InputError, match=message) as refused:
        parse(text, "here")
    assert time.process_time() - began < 5
    assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_a_long_list_is_refused_before_it_is_built(tmp_path):
    (tmp_path / "a.yaml").write_text("a: [" + "1," * MOST_ENTRIES + "1]")
    with pytest.raises(InputError, match="entries"):
        read_mapping(tmp_path / "a.yaml")
    (tmp_path / "a.yaml").write_text("#" * (5 << 20))
    with pytest.raises(InputError, match="bytes"):
        read_mapping(tmp_path / "a.yaml")


FEATURES, LABELS = np.random.default_rng(0).random((6, 4)).astype(np.float32), np.array([0, 1, 2, 0, 1, 2])


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def with_header(text: str, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    header = text.encode("latin-1")
    length = struct.pack("<H" if version[0] == 1 else "<I", len(header))
    return b"\x93NUMPY" + version + length + header + data


def archive(path, features: bytes, labels: bytes = npy(LABELS)):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("features.npy", features)
        made.writestr("labels.npy", labels)
    return path


def test_what_numpy_wrote_is_read_back(tmp_path):
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", features=FEATURES, labels=LABELS, other=np.asfortranarray(FEATURES))
        found = untrusted.read_arrays(tmp_path / "a.npz")
        assert {name: array.tolist() for name, array in found.items()} == {
            "features": FEATURES.tolist(), "labels": LABELS.tolist(), "other": FEATURES.tolist()
        }  # fmt: skip


DICT = "{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}"
LIES = {
    "more rows than bytes": DICT.format(descr="'<f4'", shape="(10000000000, 2048)"),
    "a product beyond 64 bits": DICT.format(descr="'<f4'", shape="(4611686018427387904, 4)"),
    "negative": DICT.format(descr="'<f4'", shape="(-1, -96)"),
    "objects": DICT.format(descr="'|O'", shape="(12,)"),
    "other length": DICT.format(descr="'<f4'", shape="(5, 4)"),
    "no dtype": DICT.format(descr="'<q9'", shape="(6, 4)"),
    "no shape": DICT.format(descr="'<f4'", shape="'6'"),
    "no dictionary": "[1, 2]",
    "nested": "(" * 5000,
    "long": "#" * 60000,
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies_is_refused_before_anything_is_allocated(lie, tmp_path):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=r"a\.npz") as raised:
        read_npz(archive(tmp_path / "a.npz", with_header(LIES[lie], FEATURES.tobytes())))
    assert len(str(raised.value).splitlines()) == 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as made:
        with made.open("features.npy", "w", force_zip64=True) as stream:
            stream.write(with_header(DICT.format(descr="'<f4'", shape="(65536, 1100)")))
            for _ in range(1100):
                stream.write(bytes(65536 * 4))
        made.writestr("labels.npy", npy(LABELS))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=r"found features of .*a\.npz compressed from 275.0 MiB to .* \(a zip bomb\)"):
        read_npz(tmp_path / "a.npz")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_more_than_the_free_memory_is_refused_with_both_numbers(tmp_path, monkeypatch):
    np.savez(tmp_path / "a.npz", features=np.ones((1000, 100), np.float32), labels=np.zeros(1000, np.int64))
    monkeypatch.setattr(untrusted, "available_memory", lambda: 1 << 20)
    told = r"at most 80% of the free memory \(819\.2 KiB of 1\.0 MiB\), found 1\.2 MiB .*largest: features"
    with pytest.raises(InputError, match=told):
        untrusted.read_arrays(tmp_path / "a.npz", copies=3)
    assert len(untrusted.read_arrays(tmp_path / "a.npz", copies=1.5)) == 2


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 10**6), value=st.integers(1, 255), cut=st.booleans())
def test_whatever_byte_is_wrong_the_answer_is_one_line_or_the_same_arrays(tmp_path, place, value, cut):
    file = tmp_path / "a.npz"
    np.savez_compressed(file, features=FEATURES, labels=LABELS)
    content = bytearray(file.read_bytes())
    place %= len(content)
    content[place] ^= value
    file.write_bytes(content[:place] if cut else content)
    try:
        found = read_npz(file)
    except InputError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017  either end is right
    else:
        assert np.array_equal(found.features, FEATURES)
        assert np.array_equal(found.labels, LABELS)


def test_as_many_entries_as_the_limit_are_read_and_one_more_is_refused(monkeypatch):
    monkeypatch.setattr(untrusted, "MOST_ENTRIES", 10)  # a mapping, its key, a list and seven numbers
    assert parse_mapping(f"a: {list(range(7))}", "here") == {"a": list(range(7))}
    for text in (f"a: {list(range(8))}", "a: &a [1, 2]\nb: [*a, *a]"):  # what an alias stands for counts each time
        with pytest.raises(InputError, match="entries"):
            parse_mapping(text, "here")
    assert parse_mapping("a: &a [1]\nb: [*a]", "here") == {"a": [1], "b": [[1]]}


def test_as_many_levels_as_the_limit_are_read_and_one_more_is_refused(monkeypatch):
    monkeypatch.setattr(untrusted, "MOST_LEVELS", 4)
    assert parse_mapping("a: [[1]]", "here") == {"a": [[1]]}
    with pytest.raises(InputError, match="deeper nesting"):
        parse_mapping("a: [[[1]]]", "here")
