"""Lazy values of a pickle (storages, tensors, arrays, dtypes, unknown objects): plain data until they are checked.

Sizes are compared with the bytes that are really there before anything is allocated or mapped.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from momentum_transfer.core.errors import InputError


class Description:
    """What may receive state from a pickle (its BUILD instruction); every subclass only keeps it."""

    state: Any = None

    def set_state(self, state: Any) -> None:
        """Keep what the pickle says."""
        self.state = state


class Shell(Description):
    """Stands for an object whose class is not imported. Accepts any construction and state, does nothing with them."""

    def __new__(cls, *_args: Any, **_kwargs: Any) -> "Shell":
        return super().__new__(cls)

    def __init__(self, *_args: Any, **_kwargs: Any) -> None: ...

    def __setitem__(self, _key: Any, _value: Any) -> None: ...

    def append(self, _item: Any) -> None:
        """pickle's APPEND on a list subclass."""

    def extend(self, _items: Any) -> None:
        """pickle's APPENDS on a list subclass."""

    def __call__(self, *_args: Any, **_kwargs: Any) -> "Shell":
        return Shell()

    def __hash__(self) -> int:
        return id(self)


class FileStorage:
    """A run of ``nbytes`` bytes that a checkpoint declares; ``place`` says where in which file they are."""

    def __init__(self, dtype: torch.dtype, count: int) -> None:
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            found = count if type(count) is int else f"a {type(count).__name__}"  # nested tuples print exponentially
            raise InputError(f"expected a storage size, found {found}; the checkpoint is damaged")
        self.dtype, self.count, self.itemsize = dtype, count, dtype.itemsize
        self.nbytes = count * self.itemsize
        self._source: tuple[Path, int] | None = None

    def place(self, path: Path, offset: int) -> None:
        """Record the position, already checked to lie inside the file."""
        self._source = (path, offset)

    def read(self) -> Tensor:
        """All elements as a flat tensor [count]: a private mapping of the file, so pages are read when used."""
        if self._source is None:
            raise InputError("expected the bytes of every storage, found one without; the checkpoint is damaged")
        if not self.count:
            return torch.empty(0, dtype=self.dtype)
        path, offset = self._source
        raw = np.memmap(path, dtype=np.uint8, mode="c", offset=offset, shape=(self.nbytes,))
        if raw.ctypes.data % self.itemsize:
            raw = raw.copy()  # legacy streams do not align their storages
        return torch.from_numpy(raw).view(self.dtype)


class LazyTensor:
    """A tensor that a pickle described: a view of a storage, checked and read by ``resolve``."""

    def __init__(self, storage: Any, offset: Any, size: Any, stride: Any) -> None:
        self.storage, self.offset, self.size, self.stride = storage, offset, tuple(size), tuple(stride)

    def read(self) -> Tensor:
        numbers = (self.offset, *self.size, *self.stride)
        if not isinstance(self.storage, FileStorage) or any(type(n) is not int or n < 0 for n in numbers):
            raise InputError("expected a storage, a size and a stride of a tensor, found others; damaged file")
        count = int(np.prod(self.size, dtype=object)) if self.size else 1
        last = self.offset + sum((n - 1) * s for n, s in zip(self.size, self.stride, strict=True)) if count else 0
        if count > self.storage.count or last >= max(self.storage.count, 1):
            found = f"shape {list(self.size)} on {self.storage.count} elements"
            raise InputError(f"expected tensors that fit their storage, found one of {found}; damaged or crafted")
        return self.storage.read().as_strided(self.size, self.stride, self.offset)


class LazyArray(Description):
    """A numpy array that a pickle described by its state (version, shape, dtype, Fortran order, bytes)."""

    def __init__(self, *_args: Any) -> None: ...

    def read(self) -> np.ndarray:
        if not isinstance(self.state, tuple) or len(self.state) != 5:
            raise InputError("expected the state of a numpy array, found something else; the checkpoint is damaged")
        _, shape, dtype, fortran, raw = self.state
        return array_of(raw, dtype, shape, "F" if fortran else "C")


class LazyDtype(Description):
    """A numpy dtype by name; its pickled state is only asked for the byte order."""

    def __init__(self, name: Any = "", *_flags: Any) -> None:
        self.name = name

    def read(self) -> np.dtype:
        order: Any = self.state[1] if isinstance(self.state, tuple) and len(self.state) > 1 else "="
        name = self.name if isinstance(self.name, str) else "?"
        if name.lstrip("<>=|") not in _DTYPE_NAMES:
            raise InputError(f"expected a numeric numpy array, found dtype {name!r}; nothing else can be a weight")
        return np.dtype(name).newbyteorder(order) if order in ("<", ">") else np.dtype(name)


_DTYPE_NAMES = {
    "f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1", "c8", "c16", "bool", "float16", "float32",
    "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "complex64", "complex128",
}  # fmt: skip


def array_of(raw: Any, dtype: Any, shape: Any, order: Any = "C") -> np.ndarray:
    """An array over the bytes that are really there; their number must be exactly what shape and dtype need."""
    if isinstance(raw, str):
        raw = raw.encode("latin1")  # bytes of Python 2
    kind = dtype.read() if isinstance(dtype, LazyDtype) else LazyDtype(dtype).read()
    sides = shape if isinstance(shape, (tuple, list)) else (None,)
    wrong_sides = any(type(side) is not int or side < 0 for side in sides)
    if not isinstance(raw, (bytes, bytearray)) or order not in ("C", "F") or wrong_sides:
        # before any arithmetic: numpy would unfold nested shared tuples
        raise InputError("expected the bytes of a numpy array, found something else; the checkpoint is damaged")
    needed = int(np.prod(shape, dtype=object)) * kind.itemsize if shape else kind.itemsize
    if needed != len(raw):
        raise InputError(f"expected {needed:,} bytes for an array {list(shape)}, found {len(raw):,}; damaged file")
    array = np.frombuffer(raw, dtype=kind).reshape(shape, order=order)
    return array if isinstance(raw, bytearray) and kind.isnative else array.astype(kind.newbyteorder("="))


class LazyCall(Description):
    """A call whose arguments are descriptions that later instructions complete; made by ``resolve``."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.function, self.args = function, args

    def read(self) -> Any:
        return self.function(*self.args)


def resolve(tree: Any) -> Any:
    """Turn the descriptions inside nested containers into tensors and scalars; shared parts stay shared."""
    known: dict[int, Any] = {}

    def walk(node: Any, depth: int) -> Any:
        if depth > 64:
            raise InputError("expected nested dicts of tensors, found more than 64 levels; the checkpoint is crafted")
        if id(node) not in known:
            known[id(node)] = convert(node, depth)
        return known[id(node)]

    def convert(node: Any, depth: int) -> Any:
        if isinstance(node, (LazyTensor, LazyArray, LazyCall, LazyDtype)):
            value = node.read()
            return torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        if isinstance(node, dict):
            return {key: walk(value, depth + 1) for key, value in node.items()}
        if isinstance(node, (list, tuple)):
            return [walk(value, depth + 1) for value in node]
        return node

    return walk(tree, 0)
