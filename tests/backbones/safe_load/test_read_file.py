"""Untrusted files: nothing runs, nothing large is allocated, and the error says what was found."""

import argparse
import collections
import contextlib
import os
import pickle
import resource
import struct
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from momentum_transfer.backbones.safe_load.lazy_values import Shell
from momentum_transfer.backbones.safe_load.read_file import read_tree
from momentum_transfer.core.errors import InputError


class Runs:
    """Unpickling this touches a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


def torch_zip(value, path: Path) -> None:
    torch.save(value, path)


def torch_legacy(value, path: Path) -> None:
    torch.save(value, path, _use_new_zipfile_serialization=False)


def pickle_2(value, path: Path) -> None:
    path.write_bytes(pickle.dumps(value, protocol=2))


def pickle_5(value, path: Path) -> None:
    path.write_bytes(pickle.dumps(value, protocol=5))


WRITERS = (torch_zip, torch_legacy, pickle_2, pickle_5)
by_name = {"ids": lambda writer: writer.__name__}


@pytest.mark.parametrize("writer", WRITERS, **by_name)
class TestEveryContainer:
    def test_malicious_pickle_does_not_run_and_its_global_is_named(self, writer, tmp_path):
        marker = tmp_path / "ran"
        writer({"model": {"w": np.zeros(2)}, "extra": Runs(marker)}, tmp_path / "evil.pth")
        with pytest.raises(InputError, match=r"calls posix\.system: .*nothing of it was run"):
            read_tree(tmp_path / "evil.pth")
        assert not marker.exists()

    def test_trust_pickle_is_the_explicit_way(self, writer, tmp_path):
        marker = tmp_path / "ran"
        writer({"x": Runs(marker)}, tmp_path / "evil.pth")
        assert read_tree(tmp_path / "evil.pth", trust_pickle=True) == {"x": 0}
        assert marker.exists()

    def test_truncation_anywhere_is_an_error(self, writer, tmp_path):
        writer({"w": np.arange(3000.0), "names": ["a", "b"]}, tmp_path / "whole.pth")
        whole = (tmp_path / "whole.pth").read_bytes()
        for count in (1, 9, 60, len(whole) // 3, len(whole) // 2, len(whole) - 1):
            (tmp_path / "cut.pth").write_bytes(whole[:count])
            with pytest.raises(InputError, match=r"truncated or damaged|unknown format"):
                read_tree(tmp_path / "cut.pth")

    def test_numpy_arrays_and_scalars_come_back_as_tensors_and_numbers(self, writer, tmp_path):
        arrays = {
            "f": np.arange(6, dtype=np.float32).reshape(2, 3),
            "fortran": np.asfortranarray(np.arange(6, dtype=np.float64).reshape(2, 3)),
            "big_endian": np.arange(4, dtype=">i4"),
            "empty": np.zeros((0, 3), np.int64),
            "zero_dim": np.array(7, dtype=np.int64),
        }
        writer({**arrays, "scalar": np.float64(1.5)}, tmp_path / "a.pth")
        tree = read_tree(tmp_path / "a.pth")
        for name, array in arrays.items():
            np.testing.assert_array_equal(tree[name].numpy(), array)
        assert tree["scalar"] == 1.5

    def test_settings_objects_become_inert_shells(self, writer, tmp_path):
        path = tmp_path / "settings.pth"
        writer(
            {"args": argparse.Namespace(lr=0.1), "model": {"w": np.ones(2)}, "kind": collections.Counter("aab")}, path
        )
        tree = read_tree(path)
        assert isinstance(tree["args"], Shell)
        assert tree["model"]["w"].tolist() == [1, 1]


@pytest.mark.parametrize("writer", WRITERS, **by_name)
def test_random_damage_is_read_or_refused_and_nothing_else(writer, tmp_path):
    writer(
        {"model": {f"w{i}": np.arange(20.0) for i in range(20)}, "args": argparse.Namespace(lr=1)}, tmp_path / "w.pth"
    )
    whole = (tmp_path / "w.pth").read_bytes()
    random = np.random.default_rng(0)
    refused = 0
    for _ in range(150):
        damaged = bytearray(whole)
        for position in random.integers(0, len(whole), size=random.integers(1, 6)):
            damaged[position] = random.integers(0, 256)
        (tmp_path / "damaged.pth").write_bytes(damaged)
        try:
            read_tree(tmp_path / "damaged.pth")
        except InputError:
            refused += 1
    assert refused > 10


@pytest.mark.parametrize("writer", [torch_zip, torch_legacy], **by_name)
def test_tensors_of_every_kind_and_view_read_as_torch_reads_them(writer, tmp_path):
    base = torch.arange(24.0)
    tensors = {
        "plain": torch.randn(3, 4), "half": torch.randn(5).half(), "bfloat": torch.randn(5).bfloat16(),
        "ints": torch.arange(5), "bools": torch.tensor([True, False]), "zero_dim": torch.tensor(3),
        "view": base.view(4, 6)[1:3, ::2], "shared": base, "transposed": base.view(4, 6).t(),
        "empty": torch.empty(0, 2), "parameter": torch.nn.Parameter(torch.randn(2)),
    }  # fmt: skip
    writer({**tensors, "args": argparse.Namespace(a=1)}, tmp_path / "t.pth")
    tree = read_tree(tmp_path / "t.pth")
    for name, tensor in tensors.items():
        assert torch.equal(tree[name], tensor.detach()), name
        assert tree[name].dtype == tensor.dtype


def test_plain_zip_is_mapped_and_changes_never_reach_the_file(tmp_path):
    torch.save({"w": torch.zeros(1000)}, tmp_path / "w.pth")
    before = (tmp_path / "w.pth").read_bytes()
    read_tree(tmp_path / "w.pth")["w"].fill_(3)
    assert (tmp_path / "w.pth").read_bytes() == before


def test_omegaconf_settings_are_read_past(tmp_path):
    omegaconf = pytest.importorskip("omegaconf")
    cfg = omegaconf.OmegaConf.create({"lr": 0.1, "steps": [1, 2]})
    torch.save({"state_dict": {"w": torch.ones(2)}, "hyper_parameters": cfg}, tmp_path / "lightning.ckpt")
    assert read_tree(tmp_path / "lightning.ckpt")["state_dict"]["w"].tolist() == [1, 1]


def rewrite_zip(path: Path, edit: Callable[[bytes], bytes], compression: int = zipfile.ZIP_STORED) -> None:
    """The same archive with another data.pkl."""
    with zipfile.ZipFile(path) as old:
        records = {info.filename: old.read(info) for info in old.infolist()}
    with zipfile.ZipFile(path, "w", compression) as new:
        for name, data in records.items():
            new.writestr(name, edit(data) if name.endswith("data.pkl") else data)


def test_zip_bomb_is_refused_before_it_is_opened(tmp_path):
    torch.save({"w": torch.zeros(1_000_000)}, tmp_path / "bomb.pth")
    rewrite_zip(tmp_path / "bomb.pth", lambda data: data, zipfile.ZIP_DEFLATED)
    assert (tmp_path / "bomb.pth").stat().st_size < 10_000
    with pytest.raises(InputError, match=r"fit the file .*found 4,000,\d+ bytes declared.*zip bomb"):
        read_tree(tmp_path / "bomb.pth")


COUNT = b"J" + struct.pack("<i", 100_000)
HUGE = b"J" + struct.pack("<i", 2**31 - 1)


@pytest.mark.parametrize("plain", [True, False], ids=["torch", "restricted"])
@pytest.mark.parametrize("which", ["storage and tensor", "tensor only"])
def test_sizes_beyond_the_file_are_refused(plain, which, tmp_path):
    path = tmp_path / "crafted.pth"
    torch.save({"w": torch.arange(100_000.0), **({} if plain else {"args": argparse.Namespace()})}, path)

    def edit(data: bytes) -> bytes:
        assert data.count(COUNT) == 2
        return data.replace(COUNT, HUGE) if which == "storage and tensor" else HUGE.join(data.rsplit(COUNT, 1))

    rewrite_zip(path, edit)
    with pytest.raises(InputError, match=r"expected (tensors that fit|8,589,934,588 bytes)"):
        read_tree(path)


def test_tensor_that_repeats_its_storage_is_refused(tmp_path):
    torch.save({"w": torch.zeros(1).expand(10**12)}, tmp_path / "expanded.pth")
    with pytest.raises(InputError, match=r"fit their storage, found one of shape \[1000000000000\] on (4|1) "):
        read_tree(tmp_path / "expanded.pth")


@pytest.mark.parametrize("writer", WRITERS, **by_name)
def test_references_that_multiply_are_refused(writer, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "momentum_transfer.backbones.safe_load.read_file._MAX_NODES", 10_000
    )  # the real bound takes seconds to reach
    laughs = [0]
    for _ in range(40):
        laughs = [laughs, laughs]
    writer({"a": laughs}, tmp_path / "laughs.pth")
    with pytest.raises(InputError, match="10,000 values"):
        read_tree(tmp_path / "laughs.pth")
    loop: dict = {}
    loop["again"] = loop
    writer(loop, tmp_path / "loop.pth")
    with pytest.raises(InputError, match="more than 64 levels"):
        read_tree(tmp_path / "loop.pth")


class Allocates:
    def __init__(self, call, *args) -> None:
        self.call, self.args = call, args

    def __reduce__(self):
        return self.call, self.args


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 36) + b"abc.",  # BINBYTES8 of 64 GiB
        b"\x80\x05\x96" + struct.pack("<Q", 1 << 36) + b"abc.",  # BYTEARRAY8
        b"\x80\x04\x95" + struct.pack("<Q", 1 << 36) + b"abc.",  # FRAME
        b"\x80\x04}r" + struct.pack("<I", 2**32 - 1) + b".",  # LONG_BINPUT: the C unpickler's memo would take 64 GiB
        pickle.dumps(Allocates(bytearray, 1 << 36)),
        pickle.dumps({"w": Allocates(np.ndarray, (1 << 36,), "f4", b"abcd")}),
    ],
    ids=["bytes", "bytearray", "frame", "memo", "bytearray call", "ndarray call"],
)
def test_crafted_lengths_allocate_nothing(content, tmp_path):
    (tmp_path / "crafted.pkl").write_bytes(content)
    tracemalloc.start()
    with contextlib.suppress(InputError):
        read_tree(tmp_path / "crafted.pkl")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"\n<!DOCTYPE html><html><body>Sign in</body>", "an HTML or XML page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "a Git LFS pointer"),
        (b"\x89HDF\r\n\x1a\n" + bytes(60), "an HDF5 file"),
        (b"hello, this is a text", "an unknown format"),
        (b'{"a": 1}', "a JSON text"),
        (b"", "an empty file"),
        (b"PK\x03\x04 and then nothing", "a truncated or damaged zip"),
    ],
)
@pytest.mark.parametrize("suffix", [".pth", ".pkl", ".safetensors"])
def test_other_files_are_named_for_what_they_are(content, found, suffix, tmp_path):
    path = tmp_path / f"model{suffix}"
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"found {found}" if suffix != ".safetensors" else "expected a "):
        read_tree(path)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "a Git LFS pointer"),
        (b'{"error": "not found"}', "a JSON text"),
        (b"\n<!DOCTYPE html><html><body>Sign in</body>", "an HTML or XML page"),
    ],
)
def test_content_decides_before_the_safetensors_suffix(content, found, tmp_path):
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(InputError, match=f"found {found}"):
        read_tree(tmp_path / "model.safetensors")


@pytest.mark.parametrize("writer", WRITERS, **by_name)
def test_torch_files_named_safetensors_are_read(writer, tmp_path):
    for values in (np.ones(2), torch.ones(2)) if writer in (torch_zip, torch_legacy) else (np.ones(2),):
        writer({"w": values}, tmp_path / "model.safetensors")
        for trust in (False, True):
            assert read_tree(tmp_path / "model.safetensors", trust_pickle=trust)["w"].tolist() == [1, 1]


@pytest.mark.parametrize("record", ["data.pkl", "byteorder", "data/0"])
def test_compressed_records_are_refused_whatever_size_they_declare(record, tmp_path):
    torch.save({"w": torch.randn(100)}, tmp_path / "w.pth")
    with zipfile.ZipFile(tmp_path / "w.pth") as old:
        records = {info.filename: old.read(info) for info in old.infolist()}
    with zipfile.ZipFile(tmp_path / "w.pth", "w") as new:
        for name, data in records.items():
            new.writestr(name, data, zipfile.ZIP_DEFLATED if name.endswith(record) else zipfile.ZIP_STORED)
    with pytest.raises(InputError, match=rf"stored without compression.*found \S*{record} compressed"):
        read_tree(tmp_path / "w.pth")


@pytest.mark.parametrize(
    "names",
    [
        ("w/data.pkl", "w/data.pkl"),
        ("w/data.pkl", "W/DATA.PKL"),
        ("w/data.pkl", "x/data.pkl"),
        ("w/data/0", "w/data/0"),
    ],
)
def test_two_records_of_one_name_are_refused_for_readers_differ_in_which_they_take(names, tmp_path):
    path = tmp_path / "w.pth"
    torch.save({"w": torch.randn(100)}, path)
    assert read_tree(path)["w"].shape == (100,)
    with zipfile.ZipFile(path) as old:
        content = old.read(names[0])
    with warnings.catch_warnings(), zipfile.ZipFile(path, "a") as archive:
        warnings.simplefilter("ignore")  # zipfile's own, of the second name
        archive.writestr(names[1], content)
    with pytest.raises(InputError, match=rf"its record '{names[0].partition('/')[2]}' is there twice"):
        read_tree(path)


#: A pickle's instructions for ((((None,), ...), ...)): each of 60 levels holds the one below it twice.
SHARED = b"N\x85q\x00" + b"".join(b"h" + bytes([i]) + b"h" + bytes([i]) + b"\x86q" + bytes([i + 1]) for i in range(60))


@pytest.mark.parametrize(
    "instructions",
    [
        SHARED + b"Q",
        b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\n" + SHARED + b"X\x03\x00\x00\x00cpuK\x01tQ",
        b"(X\x07\x00\x00\x00storage" + SHARED + b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x01tQ",
        b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu" + SHARED + b"tQ",
        b"}" + SHARED + b"Ns",
        b"}(" + SHARED + b"Nu",
        b"(" + SHARED + b"Nd",
        b"ccollections\nOrderedDict\n](" + SHARED + b"N\x86e\x85R",
        b"c__builtin__\nset\n](" + SHARED + b"e\x85R",
        b"c_codecs\nencode\nX\x00\x00\x00\x00" + SHARED + b"\x86R",
        b"cnumpy\nndarray\n" + SHARED + b"X\x02\x00\x00\x00f4C\x00\x87R",
    ],
    ids=["reference", "key", "dtype", "count", "SETITEM", "SETITEMS", "DICT", "OrderedDict", "set", "encode", "shape"],
)
def test_shared_tuples_are_refused_without_printing_or_hashing_them(instructions, tmp_path):
    (tmp_path / "crafted.pkl").write_bytes(b"\x80\x03" + instructions + b".")
    with pytest.raises(InputError, match=r"expected .*, found "):  # unfolded, they would have 2**60 parts
        read_tree(tmp_path / "crafted.pkl")


@pytest.mark.parametrize(
    ("tensor", "found"),
    [
        (torch.zeros(3, 3).to_sparse(), "a sparse tensor"),
        (torch.zeros(3).to(torch.float8_e4m3fn), "a tensor of a narrow format"),
        (torch.zeros(3, device="meta"), "a tensor without values"),
    ],
)
def test_tensors_that_are_no_dense_weights_are_named_and_no_trust_is_asked_for(tensor, found, tmp_path):
    torch.save({"w": tensor, "args": argparse.Namespace()}, tmp_path / "w.pth")
    with pytest.raises(InputError, match=f"expected dense floating-point tensors, found {found}") as caught:
        read_tree(tmp_path / "w.pth")
    assert "--trust-pickle" not in str(caught.value)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"checkpoint file not found: .*nowhere\.pth"):
        read_tree(tmp_path / "nowhere.pth")


def test_torchscript_and_other_zips_are_refused(tmp_path):
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), str(tmp_path / "script.pt"))
    with pytest.raises(InputError, match="found a TorchScript program"):
        read_tree(tmp_path / "script.pt")
    with zipfile.ZipFile(tmp_path / "photos.pth", "w") as archive:
        archive.writestr("photos/a.txt", "a")
    with pytest.raises(InputError, match=r"found a zip without data\.pkl"):
        read_tree(tmp_path / "photos.pth")


def test_damaged_safetensors_is_refused(tmp_path):
    save_file({"w": torch.zeros(100)}, tmp_path / "w.safetensors")
    whole = (tmp_path / "w.safetensors").read_bytes()
    for content in (whole[:-1], whole[:20], struct.pack("<Q", 10**15) + whole[8:]):
        (tmp_path / "bad.safetensors").write_bytes(content)
        with pytest.raises(InputError, match="found a truncated or damaged one"):
            read_tree(tmp_path / "bad.safetensors")


def test_jax_pickle_is_refused_with_the_padding_reason(tmp_path):
    # {"experiment_state": haiku._src.data_structures.FlatMap()}, written as pickle would
    crafted = b"\x80\x04}\x8c\x10experiment_statechaiku._src.data_structures\nFlatMap\n)Rs."
    (tmp_path / "byol.pkl").write_bytes(crafted)
    with pytest.raises(InputError, match=r"names haiku\._src\.data_structures\.FlatMap.*SAME padding.*about 4 points"):
        read_tree(tmp_path / "byol.pkl")


def test_build_instruction_changes_no_object_of_ours(tmp_path):
    # GLOBAL Namespace (the shell class itself), a state dict, BUILD: pickle would set attributes on the class.
    crafted = b"\x80\x02cargparse\nNamespace\n}(X\x06\x00\x00\x00appendK\x01ub."
    (tmp_path / "crafted.pkl").write_bytes(crafted)
    with pytest.raises(InputError, match="state for a known object, found it for type"):
        read_tree(tmp_path / "crafted.pkl")
    assert callable(Shell.append)


def test_object_arrays_and_strings_are_refused(tmp_path):
    for array in (np.array([{}], dtype=object), np.array(["text"])):
        (tmp_path / "a.pkl").write_bytes(pickle.dumps({"w": array}))
        with pytest.raises(InputError, match="expected a numeric numpy array, found dtype"):
            read_tree(tmp_path / "a.pkl")


def test_reading_a_zip_takes_no_memory_for_tensors_that_are_not_used(tmp_path):
    torch.save({"state_dict": {"w": torch.zeros(10)}, "optimizer": torch.zeros(20_000_000)}, tmp_path / "large.pth")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tree = read_tree(tmp_path / "large.pth")
    assert tree["state_dict"]["w"].sum() == 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30_000  # KiB; the file has 80 MB
