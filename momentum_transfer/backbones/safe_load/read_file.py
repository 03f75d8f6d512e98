"""Reads untrusted files: tensors come out, code never runs, and nothing is allocated beyond what a file holds.

Formats: torch's zip files (1.6 and later), torch's legacy pickle streams, plain pickles of numpy arrays (Detectron2's
model zoo) and safetensors. ``torch.load(weights_only=True)`` is tried first on zips; what it refuses, and every other
pickle, goes to the restricted reader of ``safe_load.unpickler``, whose allow-list holds data only.
"""

import pickle
import re
import struct
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from momentum_transfer.backbones.safe_load.lazy_values import resolve
from momentum_transfer.backbones.safe_load.unpickler import RestrictedUnpickler, plain_key
from momentum_transfer.core.digests import verify, verify_records, verify_safetensors
from momentum_transfer.core.errors import InputError, one_line

#: torch's legacy streams start with this number, pickled (torch.serialization.MAGIC_NUMBER).
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
#: What reading a damaged file raises.
_DAMAGE = (EOFError, struct.error, pickle.UnpicklingError, zipfile.BadZipFile, LookupError, TypeError, ValueError,
           AttributeError, AssertionError, RuntimeError, OverflowError, OSError)  # fmt: skip
#: More than any checkpoint has (optimizer states and logs included); crafted references can make exponentially many.
_MAX_DEPTH, _MAX_NODES = 64, 2_000_000
_TORCHSCRIPT_RECORDS = ("constants.pkl", "code/")

_NEXT = "download it again and compare its size with the publisher's"
_ZIP_START, _PICKLE_STARTS = b"PK\x03\x04", (b"\x80", b"(", b"}", b"c")
#: First bytes of files that are no checkpoint -> what they are.
_FOREIGN_STARTS = (
    (b"<", "an HTML or XML page saved under this name (a login or error page, usually)"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself"),
    (b"\x89HDF", "an HDF5 file (Keras or TensorFlow)"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\x93NUMPY", "a numpy .npy array"),
    (b"{", "a JSON text"),
    (b"%PDF", "a PDF"),
    (b"\x89PNG", "a PNG image"),
)


#: End of a file's name -> what wrote it. Kernels are stored there in another order, under other names.
_OTHER_FORMATS = {
    ".npz": "JAX weights in numpy's archive (ViT's, MLP-Mixer's, SigLIP's releases)",
    ".msgpack": "Flax weights", ".h5": "TensorFlow or Keras weights", ".keras": "Keras weights",
    ".pb": "a TensorFlow graph", ".index": "a TensorFlow checkpoint", ".tflite": "TensorFlow Lite weights",
    ".onnx": "an ONNX program", ".gguf": "quantised weights (GGUF)", ".mlmodel": "a Core ML program",
}  # fmt: skip


def refuse_other_formats(path: Path) -> None:
    """Raise InputError for files of JAX, Flax, TensorFlow and of exported programs, known by their names."""
    kind = next((what for end, what in _OTHER_FORMATS.items() if path.name.lower().endswith(end)), "")
    if re.search(r"\.data-\d+-of-\d+$", path.name):
        kind = "a TensorFlow checkpoint"
    if kind and path.is_file():
        advice = "take the torch file of the same network, timm's or transformers' (model.safetensors)"
        raise InputError(f"expected torch weights, found {kind}: {path}; {advice}")


def read_tree(path: Path, *, trust_pickle: bool = False) -> Any:
    """The nested dicts, lists, scalars and tensors of a checkpoint file.

    Args:
        path: a .pth, .pth.tar, .pt, .ckpt, .pkl or .safetensors file; the content decides, not the suffix.
        trust_pickle: unpickle with code execution. Only for files whose author you trust.

    Returns:
        Tensors on the CPU; those of zip files are mapped, not read, until they are used.

    Raises:
        InputError: no such file, no checkpoint, truncated, oversized, or a pickle that calls something outside the
            allow-list; the message names the global that it would have called.
    """
    head = _first_bytes(path)
    if _is_safetensors(path, head):
        tree = _read_safetensors(path)
        verify_safetensors(tree, read_safetensors_metadata(path), path)
        return tree
    for start, meaning in _FOREIGN_STARTS:
        if head.lstrip()[: len(start)] == start:
            raise InputError(f"expected a checkpoint, found {meaning}: {path}; {_NEXT}")
    is_zip = head.startswith(_ZIP_START)
    if is_zip:
        _check_zip(path)
    elif not head.startswith(_PICKLE_STARTS):
        raise InputError(f"expected a checkpoint, found an unknown format (first bytes {head[:8]!r}): {path}; {_NEXT}")
    try:
        if trust_pickle:
            return _read_trusted(path, is_zip, head)
        tree = _check_tree(_read_zip(path) if is_zip else _read_stream(path), path)
        verify(tree, path)
        return tree
    except _DAMAGE as error:
        raise _damaged("one", path, error) from error


def read_safetensors_metadata(path: Path) -> dict[str, str]:
    """The text metadata of a safetensors file; empty for other formats."""
    if not _is_safetensors(path, _first_bytes(path)):
        return {}
    with _open_safetensors(path) as file:
        try:
            return dict(file.metadata() or {})
        except safetensors.SafetensorError as error:
            raise InputError(f"expected text metadata in {path}, found other: {one_line(error)}; {_NEXT}") from error


def _damaged(what: str, path: Path, error: Exception) -> InputError:
    found = f"a truncated or damaged {what}: {path} ({one_line(error)})"
    return InputError(f"expected a whole checkpoint, found {found}; {_NEXT}")


def _first_bytes(path: Path) -> bytes:
    if not path.is_file():
        raise InputError(f"checkpoint file not found: {path}; check the path")
    try:
        with open(path, "rb") as stream:
            head = stream.read(64)
    except OSError as error:
        raise InputError(f"expected a readable checkpoint, found {error.strerror}: {path}; check the disk") from error
    if not head:
        raise InputError(f"expected a checkpoint, found an empty file: {path}; {_NEXT}")
    return head


def _is_safetensors(path: Path, head: bytes) -> bool:
    """Whether a file is eight bytes of header length and a JSON object. The suffix decides only for unknown content."""
    if head[8:9] == b"{":
        return True
    foreign = tuple(start for start, _ in _FOREIGN_STARTS)
    return path.suffix == ".safetensors" and not head.lstrip().startswith((_ZIP_START, *foreign, *_PICKLE_STARTS))


def _open_safetensors(path: Path) -> Any:
    try:
        return safetensors.safe_open(str(path), framework="pt")
    except (safetensors.SafetensorError, OSError) as error:
        raise _damaged("one", path, error) from error


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    with _open_safetensors(path) as file:  # the library checks that the declared offsets cover the file exactly
        try:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        except (safetensors.SafetensorError, *_DAMAGE) as error:
            found = f"others: {path} ({one_line(error)})"
            raise InputError(f"expected tensors of known kinds, found {found}; {_NEXT}") from error


def _check_zip(path: Path) -> None:
    """Refuse before allocation: torch stores records uncompressed, so together they cannot exceed the file."""
    size = path.stat().st_size
    try:
        with zipfile.ZipFile(path) as archive:
            records = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise _damaged("zip", path, error) from error
    declared = sum(record.file_size for record in records)
    if declared > size:
        raise InputError(
            f"expected records that fit the file ({size:,} bytes), found {declared:,} bytes declared: {path} is a "
            "compressed or crafted archive (a zip bomb) and is not opened; torch.save stores without compression"
        )
    names = [record.filename.partition("/")[2] for record in records]
    if any(name.startswith(_TORCHSCRIPT_RECORDS) for name in names):
        raise InputError(f"expected a state dict, found a TorchScript program: {path}; save model.state_dict() instead")
    if "data.pkl" not in names:
        raise InputError(f"expected a torch checkpoint, found a zip without data.pkl: {path}; unpack it first")
    packed = next((r for r in records if r.compress_type != zipfile.ZIP_STORED or r.compress_size != r.file_size), None)
    if packed is not None:  # its declared size may be a lie that only unpacking shows
        found = f"{packed.filename} compressed in {path}; unpack the archive and save the checkpoint again"
        raise InputError(f"expected records stored without compression, as torch.save writes them, found {found}")
    verify_records(path)


def _read_zip(path: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of pickle protocols other than 2
            if _globals_of_zip(path) <= _PLAIN_GLOBALS:
                return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    # torch takes an archive of its own for safetensors if it is called so.
    except (pickle.UnpicklingError, RuntimeError, ValueError, AttributeError, safetensors.SafetensorError) as error:
        if "truncated" in str(error) or "resize storage" in str(error):
            found = f"{path} declaring more than it holds"
            raise InputError(f"expected tensors that fit the file, found {found}; {_NEXT}") from error
        # Whatever else it could not read, the restricted reader reads or refuses with a reason.
    return _read_zip_restricted(path)


def _check_tree(tree: Any, path: Path) -> Any:
    """Refuse what would grow when it is used: nested references that multiply, tensors that repeat their storage."""
    waiting, seen = [(tree, 0)], 0
    while waiting:
        node, depth = waiting.pop()
        seen += 1
        if depth > _MAX_DEPTH or seen > _MAX_NODES:
            found = f"more than {_MAX_DEPTH} levels or {_MAX_NODES:,} values in {path}; the checkpoint is crafted"
            raise InputError(f"expected nested dicts of tensors, found {found}")
        if isinstance(node, Tensor) and node.numel() * node.element_size() > node.untyped_storage().nbytes():
            found = f"shape {list(node.shape)} on {node.untyped_storage().nbytes():,} bytes in {path}"
            raise InputError(f"expected tensors that fit their storage, found one of {found}; damaged or crafted")
        if isinstance(node, (Mapping, list, tuple)):
            waiting.extend((value, depth + 1) for value in (node.values() if isinstance(node, Mapping) else node))
    return tree


#: The globals of a plain state dict. ``weights_only`` also allows constructors that allocate what a file asks for
#: (torch.FloatTensor, bytearray); files that name those go to the restricted reader.
_PLAIN_GLOBALS = {
    "collections.OrderedDict", "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_parameter", "torch.Size",
    "torch.nn.parameter.Parameter", "torch.device", "torch.DoubleStorage", "torch.FloatStorage", "torch.HalfStorage",
    "torch.BFloat16Storage", "torch.LongStorage", "torch.IntStorage", "torch.ShortStorage", "torch.CharStorage",
    "torch.ByteStorage", "torch.BoolStorage", "torch.ComplexFloatStorage", "torch.ComplexDoubleStorage",
}  # fmt: skip


def _globals_of_zip(path: Path) -> set[str]:
    """Every global that the pickle names, without running it."""
    with zipfile.ZipFile(path) as archive:
        record = next(info for info in archive.infolist() if info.filename.partition("/")[2] == "data.pkl")
        with archive.open(record) as stream:
            return torch._weights_only_unpickler.get_globals_in_pkl(stream)


def _read_zip_restricted(path: Path) -> Any:
    with zipfile.ZipFile(path) as archive:
        places = {info.filename.partition("/")[2]: info for info in archive.infolist()}
        order = archive.read(places["byteorder"]).decode() if "byteorder" in places else "little"
        if order != "little":
            raise InputError(f"expected little-endian tensors, found {order}: {path}; save it again on this machine")
        with archive.open(places["data.pkl"]) as stream:
            unpickler = RestrictedUnpickler(stream, places["data.pkl"].file_size, path)
            tree = unpickler.load()
        for key, storage in unpickler.storages.items():
            record = places.get(f"data/{key}")
            if record is None or record.compress_type != zipfile.ZIP_STORED or record.file_size < storage.nbytes:
                need = f"{storage.nbytes:,} bytes of tensor data"
                raise InputError(f"expected {need}, found fewer in data/{key} of {path}; {_NEXT}")
            storage.place(path, _data_offset(path, record))
    return resolve(tree)


def _data_offset(path: Path, record: zipfile.ZipInfo) -> int:
    """Where a stored record's bytes begin: after its local header, whose extra field is not the directory's."""
    with open(path, "rb") as stream:
        stream.seek(record.header_offset + 26)
        name_length, extra_length = struct.unpack("<HH", stream.read(4))
    return int(record.header_offset + 30 + name_length + extra_length)


def _read_stream(path: Path) -> Any:
    """A plain pickle, or torch's legacy format: five pickles (the fourth is the object), then the storages' bytes."""
    size = path.stat().st_size
    with open(path, "rb") as stream:

        def unpickler() -> RestrictedUnpickler:
            return RestrictedUnpickler(stream, size - stream.tell(), path)

        first = unpickler().load()
        if first != _LEGACY_MAGIC:
            return resolve(first)
        unpickler().load()  # protocol version
        unpickler().load()  # sizes of C types on the writer's machine
        main = unpickler()
        tree = main.load()
        for key in unpickler().load():
            (count,) = struct.unpack("<q", stream.read(8))
            storage, offset = main.storages[plain_key(key)], stream.tell()
            length = count * storage.itemsize
            if count < 0 or storage.nbytes > length or offset + length > size:
                need = f"{storage.nbytes:,} bytes for storage {key}"
                raise InputError(f"expected {need}, found that the file ends first: {path}; {_NEXT}")
            storage.place(path, offset)
            stream.seek(offset + length)
    return resolve(tree)


def _read_trusted(path: Path, is_zip: bool, head: bytes) -> Any:
    """With code execution, as the user asked."""
    if is_zip or _LEGACY_MAGIC.to_bytes(10, "little") in head:
        with open(path, "rb") as stream:  # by the content: torch goes by a path's suffix
            return torch.load(stream, map_location="cpu", weights_only=False)
    with open(path, "rb") as stream:
        return pickle.load(stream, encoding="latin1")
