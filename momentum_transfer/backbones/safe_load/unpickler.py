"""An unpickler that builds data and nothing else.

``pickle`` runs whatever callable a file names. Here every name resolves to an entry of one allow-list: tensors and
numpy arrays become descriptions that are turned into tensors once their sizes are checked against the file, and
configuration objects (``argparse.Namespace``, OmegaConf, Lightning's and MMEngine's) become inert shells. Their own
classes are never imported. Built on pickle's Python implementation: the C one allocates what a crafted length asks for.
"""

import codecs
import pickle
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import IO, Any, ClassVar

import torch

from momentum_transfer.backbones.safe_load import lazy_values as lazy
from momentum_transfer.backbones.safe_load.lazy_values import Description, FileStorage, LazyCall, array_of
from momentum_transfer.core.errors import InputError

#: JAX and Haiku names: BYOL's published weights.
_JAX_MODULES = ("jax", "jaxlib", "haiku", "optax", "byol", "dm_haiku")
JAX_REASON = (
    "BYOL's JAX weights were trained with SAME padding, and loading them with torch's padding costs about 4 points of "
    "accuracy; use a checkpoint trained in torch"
)
#: Top-level modules whose objects are settings or logs: they become shells. (numpy's and torch's data are exact names.)
_SHELL_MODULES = ("argparse", "omegaconf", "easydict", "addict", "yacs", "fvcore", "mmcv", "mmengine", "hydra", "box",
                  "ml_collections", "pytorch_lightning", "lightning", "lightning_fabric", "pathlib", "datetime", "enum",
                  "typing", "decimal", "uuid")  # fmt: skip
_SHELL_NAMES = {"collections.defaultdict", "collections.Counter", "collections.deque", "torch.device",
                "torch.Generator", "builtins.getattr", "builtins.object", "builtins.slice", "builtins.type",
                "builtins.dict", "builtins.list", "builtins.tuple", "builtins.int", "builtins.float", "builtins.str",
                "builtins.long", "builtins.unicode",
                "builtins.bool", "copyreg._reconstructor"}  # fmt: skip
#: How torch pickles tensors that no backbone here is made of.
_OTHER_TENSORS = {
    "torch._utils._rebuild_sparse_tensor": "a sparse tensor",
    "torch._utils._rebuild_sparse_csr_tensor": "a sparse tensor",
    "torch._utils._rebuild_qtensor": "a quantised tensor",
    "torch._utils._rebuild_nested_tensor": "a nested tensor",
    "torch._utils._rebuild_tensor_v3": "a tensor of a narrow format such as float8",
    "torch._utils._rebuild_meta_tensor_no_storage": "a tensor without values (meta device)",
}
#: Python 2's names, which pickle protocols 0 to 2 still use.
_RENAMED = {"__builtin__": "builtins", "copy_reg": "copyreg"}


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    """``_codecs.encode``: how Python 3 writes bytes with protocol 2."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise InputError("expected latin1 bytes, found something else; the checkpoint is damaged")
    return codecs.encode(text, "latin1")


def _bytearray(data: Any = b"", encoding: Any = "latin1") -> bytearray:
    """``bytearray(n)`` would allocate n bytes on the file's word; only given bytes are taken."""
    return bytearray(_encode(data, encoding) if isinstance(data, str) else data if isinstance(data, bytes) else b"")


def _check_keys(keys: Iterable[Any]) -> Iterable[Any]:
    """Refuse nested tuples as dict keys and set members: hashing shared ones takes exponentially long."""
    for key in keys:
        if isinstance(key, frozenset) or (
            isinstance(key, tuple) and any(isinstance(part, (tuple, frozenset)) for part in key)
        ):
            raise InputError("expected names or numbers as keys, found nested tuples; the checkpoint is crafted")
    return keys


def _ordered(items: Any = ()) -> OrderedDict:
    pairs = [tuple(pair) for pair in items]
    _check_keys(pair[0] for pair in pairs)
    return OrderedDict(pairs)


@cache
def _allow_list() -> dict[str, Any]:
    allowed: dict[str, Any] = {
        "collections.OrderedDict": _ordered,
        "torch._utils._rebuild_tensor_v2": lambda *args: lazy.LazyTensor(*args[:4]),
        "torch._utils._rebuild_tensor": lazy.LazyTensor,
        "torch._utils._rebuild_parameter": lambda tensor, *_flags: tensor,
        "torch.nn.parameter.Parameter": lambda tensor, *_flags: tensor,
        "torch.Size": lambda size=(): tuple(size),
        "_codecs.encode": _encode,
        "builtins.set": lambda items=(): set(_check_keys(items)), "builtins.complex": complex,
        "builtins.frozenset": lambda items=(): frozenset(_check_keys(items)),
        "builtins.bytearray": _bytearray, "builtins.bytes": lambda *args: bytes(_bytearray(*args)),
        "numpy.ndarray": lambda shape, dtype, raw: LazyCall(array_of, raw, dtype, shape),
        "numpy.dtype": lazy.LazyDtype,
    }  # fmt: skip
    for core in ("numpy.core", "numpy._core"):
        allowed[f"{core}.multiarray._reconstruct"] = lazy.LazyArray
        allowed[f"{core}.multiarray.scalar"] = lambda dtype, raw: LazyCall(lambda: array_of(raw, dtype, ()).item())
        allowed[f"{core}.numeric._frombuffer"] = lambda *args: LazyCall(array_of, *args)
    for kind, dtype in _STORAGE_DTYPES.items():
        allowed[f"torch.{kind}Storage"] = allowed[f"torch.storage.{kind}Storage"] = dtype
        allowed[f"torch.cuda.{kind}Storage"] = dtype
    for value in vars(torch).values():
        if isinstance(value, torch.dtype):
            allowed[str(value)] = value
    return allowed


def plain_key(key: Any) -> str:
    """The text of a storage's key. Anything else is refused unprinted: nested shared tuples print exponentially."""
    if not isinstance(key, (str, int)):
        raise InputError(f"expected a storage's number, found a {type(key).__name__}; the checkpoint is damaged")
    return str(key)


_STORAGE_DTYPES = {
    "Double": torch.float64, "Float": torch.float32, "Half": torch.float16, "BFloat16": torch.bfloat16,
    "Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8,
    "Bool": torch.bool, "ComplexFloat": torch.complex64, "ComplexDouble": torch.complex128, "Untyped": torch.uint8,
}  # fmt: skip


#: Opcode that hashes -> where its keys stand on the stack.
_KEYS = {pickle.SETITEM: slice(-2, -1), pickle.SETITEMS: slice(None, None, 2), pickle.DICT: slice(None, None, 2),
         pickle.ADDITEMS: slice(None), pickle.FROZENSET: slice(None)}  # fmt: skip


def _with_keys_checked(code: bytes, keys: slice) -> Callable[[Any], None]:
    load = pickle._Unpickler.dispatch[code[0]]

    def checked(unpickler: Any) -> None:
        _check_keys(unpickler.stack[keys])
        load(unpickler)

    return checked


class _BoundedStream:
    """A stream that raises EOFError for more than is left, before anything is allocated for it."""

    def __init__(self, stream: IO[bytes], size: int) -> None:
        self.stream, self.left = stream, size

    def read(self, count: int = -1) -> bytes:
        if count < 0 or count > self.left:
            raise EOFError(f"{count:,} bytes asked for, {self.left:,} left")
        self.left -= count
        return self.stream.read(count)

    def readline(self) -> bytes:
        line = self.stream.readline(self.left)
        if not line.endswith(b"\n"):
            raise EOFError("a line that does not end")
        self.left -= len(line)
        return line


class RestrictedUnpickler(pickle._Unpickler):
    """``pickle.Unpickler`` in which names resolve to the allow-list only.

    Args:
        stream: at the first byte of a pickle; left after its last.
        size: bytes that the stream holds from there on.

    Attributes:
        storages: key -> the storages that the pickle refers to; the caller places them in the file.
    """

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(pickle._Unpickler.dispatch)

    stack: list[Any]
    read: Callable[[int], bytes]
    append: Callable[[Any], None]

    def __init__(self, stream: IO[bytes], size: int, path: Path) -> None:
        bounded: Any = _BoundedStream(stream, size)  # it has the methods that pickle calls, not all of a file's
        super().__init__(bounded, encoding="latin1")
        self.path = path
        self.storages: dict[str, FileStorage] = {}

    def load_build(self) -> None:
        """BUILD: give an object its state. Only descriptions take any; pickle itself would set arbitrary attributes."""
        state = self.stack.pop()
        target = self.stack[-1]
        if isinstance(target, Description):
            target.set_state(state)
        elif not isinstance(target, OrderedDict):  # torch keeps module versions there (_metadata); not needed
            kind = type(target).__name__
            raise InputError(f"expected state for a known object, found it for {kind} in {self.path}; damaged file")

    def load_bytearray8(self) -> None:
        """BYTEARRAY8; pickle's own allocates before it reads."""
        (count,) = struct.unpack("<Q", self.read(8))
        self.append(bytearray(self.read(count)))

    dispatch |= {pickle.BUILD[0]: load_build, pickle.BYTEARRAY8[0]: load_bytearray8}
    dispatch |= {code[0]: _with_keys_checked(code, keys) for code, keys in _KEYS.items()}

    def find_class(self, module: str, name: str) -> Any:
        """The allow-listed stand-in of ``module.name``; an InputError that names it otherwise."""
        module = _RENAMED.get(module, module)
        full, top = f"{module}.{name}", module.partition(".")[0]
        if full in _allow_list():
            return _allow_list()[full]
        if full in _OTHER_TENSORS:
            found = f"{_OTHER_TENSORS[full]} ({full}) in {self.path}; save it again with dense float32 weights"
            raise InputError(f"expected dense floating-point tensors, found {found}")
        if full in _SHELL_NAMES or top in _SHELL_MODULES:
            return lazy.Shell
        if top in _JAX_MODULES:
            raise InputError(f"expected torch weights, found a pickle that names {full}: {self.path}. {JAX_REASON}")
        raise InputError(
            f"expected a pickle of tensors and settings, found one that calls {full}: {self.path}; nothing of it "
            "was run. Ask its author for a plain state dict, or give --trust-pickle if you trust its author"
        )

    def persistent_load(self, pid: Any) -> FileStorage:
        """torch's references to storages: ("storage", dtype, key, location, element count[, view])."""
        if not isinstance(pid, tuple) or len(pid) < 5 or pid[0] not in ("storage", b"storage"):
            kind = type(pid).__name__
            raise InputError(f"expected a reference to a tensor storage, found a {kind} in {self.path}; damaged file")
        dtype, count, key = pid[1], pid[4], plain_key(pid[2])
        if not isinstance(dtype, torch.dtype) or (len(pid) > 5 and pid[5] is not None):
            form = dtype if isinstance(dtype, torch.dtype) else f"a {type(dtype).__name__}"
            raise InputError(f"expected a plain tensor storage, found one of {form} in {self.path}; save it anew")
        return self.storages.setdefault(key, FileStorage(dtype, count))
