"""Archives of arrays: what is in them is read, and what only claims to be is refused before it is allocated."""

import io
import resource
import struct
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from momentum_transfer.core import untrusted
from momentum_transfer.core.errors import InputError
from momentum_transfer.lowshot.features.feature_set import read_npz

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
    with pytest.raises(InputError, match=r"found features of .*a\.npz packed from 275.0 MiB into .* \(a zip bomb\)"):
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
