"""Described arrays and tensors: numpy's own for what is whole, one line for anything else."""

from pathlib import Path

import numpy as np
import pytest
import torch

from momentum_transfer.backbones.safe_load.lazy_values import (
    FileStorage,
    LazyArray,
    LazyCall,
    LazyDtype,
    LazyTensor,
    array_of,
    resolve,
)
from momentum_transfer.core.errors import InputError


def dtype(name: object, *state: object) -> LazyDtype:
    found = LazyDtype(name, 0, 1)
    if state:
        found.set_state((3, *state))
    return found


@pytest.mark.parametrize(
    ("described", "wanted"),
    [
        (dtype("f4"), "f4"),
        (dtype("f4", "<"), "<f4"),
        (dtype("f4", ">"), ">f4"),
        (dtype("f4", ">", None, None, None, -1, -1, 0), ">f4"),
        (dtype("f4", "|"), "f4"),
        (dtype(">f8"), ">f8"),
        (dtype("bool"), "bool"),
    ],
)
def test_a_numbers_type_has_the_byte_order_of_its_state(described: LazyDtype, wanted: str):
    assert described.read() == np.dtype(wanted)


def test_a_state_of_one_entry_says_nothing_of_the_byte_order():
    short = LazyDtype("f4")
    short.set_state((3,))
    assert short.read() == np.dtype("f4")
    short.set_state((3, ">"))  # numpy's older pickles end there
    assert short.read() == np.dtype(">f4")


@pytest.mark.parametrize("name", ["O", "V8", "M8[s]", "S4", "f4,f4", 3, None, ""])
def test_types_that_are_no_numbers_are_refused(name: object):
    with pytest.raises(InputError, match="expected a numeric numpy array, found dtype"):
        dtype(name).read()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", ["<f4", ">f4", ">i2", "u1"])
def test_an_array_is_numpys_own(order: str, kind: str):
    wanted = np.arange(24).reshape(2, 3, 4).astype(kind)
    raw = wanted.tobytes(order=order)
    for given in (raw, bytearray(raw), raw.decode("latin1")):
        found = array_of(given, kind, (2, 3, 4), order)
        assert np.array_equal(found, wanted)
        assert found.dtype.isnative
        found += 1  # its own memory
    described = LazyArray()
    described.set_state((1, (2, 3, 4), dtype(kind), order == "F", raw))
    assert np.array_equal(resolve({"a": [described]})["a"][0].numpy(), wanted)
    assert array_of(np.float64(3).tobytes(), "f8", ()) == 3


@pytest.mark.parametrize(
    ("raw", "shape", "order", "message"),
    [
        (b"1234", (2,), "C", r"expected 8 bytes for an array \[2\], found 4"),
        (b"12345", (1,), "C", "expected 4 bytes"),
        (b"1", (), "C", "expected 4 bytes"),
        (b"", (-1,), "C", "found something else"),
        (b"", (0,), "X", "found something else"),
        (b"", (True,), "C", "found something else"),
        (b"", 3, "C", "found something else"),
        ([1], (1,), "C", "found something else"),
        (b"", (2**40, 2**40), "C", "expected 4,835,703,278,458,516,698,824,704 bytes"),
    ],
)
def test_bytes_that_do_not_fit_their_shape_are_refused_before_memory_is_taken(raw, shape, order, message):
    with pytest.raises(InputError, match=message):
        array_of(raw, "f4", shape, order)


@pytest.mark.parametrize("state", [None, (1, (1,), "f4", False), [1, (1,), "f4", False, b"1234"], "abcde"])
def test_arrays_of_another_state_are_refused(state):
    described = LazyArray()
    described.set_state(state)
    with pytest.raises(InputError, match="expected the state of a numpy array"):
        described.read()


def storage(folder: Path, count: int, offset: int = 0) -> FileStorage:
    (folder / "bytes").write_bytes(b"\0" * offset + np.arange(count, dtype="<f4").tobytes())
    made = FileStorage(torch.float32, count)
    made.place(folder / "bytes", offset)
    return made


@pytest.mark.parametrize("offset", [0, 3, 4])
def test_a_tensor_is_the_view_of_its_storage_that_is_described(offset: int, tmp_path: Path):
    held = storage(tmp_path, 12, offset)
    flat = torch.arange(12.0)
    views = [(0, (12,), (1,)), (2, (2, 5), (5, 1)), (0, (3, 4), (1, 3)), (11, (), ()), (3, (2, 2), (0, 8))]
    for start, size, stride in views:
        assert torch.equal(LazyTensor(held, start, size, stride).read(), flat.as_strided(size, stride, start))
    assert LazyTensor(held, 0, (0, 7), (7, 1)).read().shape == (0, 7)
    empty = FileStorage(torch.float32, 0)
    empty.place(tmp_path / "bytes", 0)
    assert LazyTensor(empty, 0, (0,), (1,)).read().numel() == 0
    changed = held.read()
    changed += 1
    assert torch.equal(held.read(), flat)  # the file stays as it is


@pytest.mark.parametrize(
    ("start", "size", "stride"),
    [(0, (13,), (1,)), (1, (12,), (1,)), (12, (), ()), (0, (2, 6), (7, 1)), (0, (7,), (2,)),
     (0, (2**62, 2**62), (0, 0)), (-1, (1,), (1,)), (0, (-1,), (1,)), (0, (1,), (-1,)),
     (0, (True,), (1,)), (0.0, (1,), (1,))],
)  # fmt: skip
def test_a_view_beyond_its_storage_is_refused(start, size, stride, tmp_path: Path):
    with pytest.raises(InputError, match=r"expected (tensors that fit their storage|a storage, a size and a stride)"):
        LazyTensor(storage(tmp_path, 12), start, size, stride).read()


def test_storages_without_bytes_or_of_no_size_are_refused():
    with pytest.raises(InputError, match="expected the bytes of every storage"):
        LazyTensor(FileStorage(torch.float32, 1), 0, (1,), (1,)).read()
    with pytest.raises(InputError, match="expected a storage, a size and a stride"):
        LazyTensor(torch.zeros(3), 0, (1,), (1,)).read()
    for count, said in ((-1, "found -1"), (True, "found a bool"), ("3", "found a str"), (2.0, "found a float")):
        with pytest.raises(InputError, match=f"expected a storage size, {said}"):
            FileStorage(torch.float32, count)
    assert FileStorage(torch.float16, 3).nbytes == 6


def nested(levels: int) -> object:
    tree: object = 1
    for _ in range(levels):
        tree = [tree]
    return tree


def test_shared_parts_are_made_once_and_nesting_has_an_end():
    made = []
    call = LazyCall(lambda *words: made.append(words) or torch.zeros(1), 1, 2)
    tree = resolve({"a": call, "b": (call, call)})
    assert made == [(1, 2)]
    assert tree["a"] is tree["b"][0] is tree["b"][1]
    assert resolve(nested(64)) == nested(64)
    with pytest.raises(InputError, match="more than 64 levels"):
        resolve(nested(65))
