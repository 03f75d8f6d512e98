"""Files are whole or absent."""

import errno
import hashlib
import os
import shutil
from types import SimpleNamespace

import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import (
    atomic_path,
    cache_root,
    given_name,
    refused_by_system,
    remove_leftovers,
    sha256_of,
    weights_name,
    write_once,
    write_text,
)


def test_a_failed_write_leaves_the_previous_file_whole_and_no_rest(tmp_path):
    target = tmp_path / "checkpoint.pt"
    target.write_bytes(b"previous")
    with pytest.raises(OSError, match="disk full"), atomic_path(target) as temporary:
        temporary.write_bytes(b"half")
        raise OSError("disk full")
    assert target.read_bytes() == b"previous"
    assert os.listdir(tmp_path) == ["checkpoint.pt"]


def test_a_successful_write_replaces_and_is_readable_by_others(tmp_path):
    target = tmp_path / "deep" / "a.npy"
    with atomic_path(target) as temporary:
        assert temporary.suffix == ".npy"
        temporary.write_bytes(b"new")
    assert target.read_bytes() == b"new"
    umask = os.umask(0)
    os.umask(umask)
    assert target.stat().st_mode & 0o777 == 0o666 & ~umask


def test_hash_is_sha256_of_the_bytes(tmp_path):
    write_text(tmp_path / "a.txt", "text")
    assert sha256_of(tmp_path / "a.txt") == hashlib.sha256(b"text").hexdigest()


def test_cache_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("MOMENTUM_TRANSFER_CACHE", str(tmp_path))
    assert cache_root() == tmp_path


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("outputs/momentum2_digits/checkpoints/step_0000999.pt", "momentum2_digits"),
        ("outputs/momentum2_digits/checkpoints", "momentum2_digits"),
        ("outputs/momentum2_digits/backbone.pkl", "momentum2_digits"),
        ("outputs/momentum2_digits/backbone.safetensors", "momentum2_digits"),
        ("outputs/momentum2_digits", "momentum2_digits"),
        ("/data/moco_v2_800ep.pth.tar", "moco_v2_800ep"),
        ("R-50.v2.pkl", "R-50.v2"),
        ("backbone.pkl", "backbone"),
        ("pixels", "pixels"),
        ("none", "none"),
        ("hf:org/moco", "moco"),
        ("hf:org/moco@v2", "moco@v2"),
        ("hf:org/moco@refs/pr/1:backbone.safetensors", "moco@refs-pr-1"),
        ("hf:org/moco:weights/v1.pth.tar", "v1"),
    ],
)
def test_weights_are_called_by_their_run_or_by_their_own_name(path, name):
    assert weights_name(path) == name


def test_weights_are_called_alike_however_their_path_is_typed(tmp_path, monkeypatch):
    (tmp_path / "dl" / "sub").mkdir(parents=True)
    (tmp_path / "dl" / "checkpoint.pth").touch()
    monkeypatch.chdir(tmp_path / "dl" / "sub")
    typed = ["../checkpoint.pth", str(tmp_path / "dl" / "checkpoint.pth"), "../../dl/checkpoint.pth", ".."]
    assert {given_name(path) for path in typed} == {given_name("checkpoint.pth", tmp_path / "dl")} == {"dl"}
    assert given_name("random-of:../checkpoint.pth") == "random-of-dl"
    assert [given_name(text) for text in ("hf:org/moco", "pixels", "outputs/later/backbone.pkl")] == [
        "moco", "pixels", "later",
    ]  # fmt: skip


def test_a_full_disk_names_the_file_that_was_meant(tmp_path):
    with pytest.raises(OSError, match="No space left") as error, atomic_path(tmp_path / "model.pt"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert error.value.filename == str(tmp_path / "model.pt")
    assert not list(tmp_path.iterdir())


def test_of_several_that_write_a_file_once_the_first_one_stays(tmp_path):
    for text in ("first", "second"):
        write_once(tmp_path / "made/here.json", text)
    assert [(path.name, path.read_text()) for path in (tmp_path / "made").iterdir()] == [("here.json", "first")]


def test_without_a_home_folder_the_cache_wants_to_be_named(monkeypatch):
    monkeypatch.delenv("MOMENTUM_TRANSFER_CACHE", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda _number: (_ for _ in ()).throw(KeyError("no such user")))
    with pytest.raises(InputError, match=r"found no home folder .*set MOMENTUM_TRANSFER_CACHE"):
        cache_root()


def test_the_systems_number_is_found_behind_every_librarys_words(tmp_path, monkeypatch):
    def caused(by: BaseException) -> RuntimeError:
        error = RuntimeError("unexpected pos 64 vs 0")
        error.__cause__ = by
        return error

    rust = RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")
    for error, number in (
        (OSError(errno.EACCES, "Permission denied"), errno.EACCES),
        (caused(OSError(errno.EDQUOT, "Quota")), errno.EDQUOT),
        (rust, 28),
        (RuntimeError("IoError(Os { code: 122, kind: Other })"), 122),
        (OSError("400 requested and 72 written"), errno.ENOSPC),
        (RuntimeError("400 requested and 72 written"), None),
        (RuntimeError("CUDA error"), None),
        (OSError("no number"), None),
    ):
        assert refused_by_system(error, tmp_path) == number
    for free, kind, number in (
        ((1 << 20) - 1, RuntimeError, errno.ENOSPC),
        ((1 << 20) - 1, OSError, errno.ENOSPC),
        ((1 << 20) - 1, ValueError, None),
        (1 << 20, RuntimeError, None),
    ):
        monkeypatch.setattr(shutil, "disk_usage", lambda _folder, free=free: SimpleNamespace(free=free))
        assert refused_by_system(kind("PytorchStreamWriter failed"), tmp_path) == number


def test_leftovers_of_killed_writers_are_removed_and_those_of_living_ones_are_kept(tmp_path):
    (tmp_path / "below").mkdir()
    with atomic_path(tmp_path / "a.pt") as living:
        living.write_bytes(b"half")
        for folder in (tmp_path, tmp_path / "below"):
            (folder / living.name.replace("a", "b", 1)).touch()
            (folder / "a.pt.tmp").touch()
        assert remove_leftovers(tmp_path, below=False) == 1
        assert living.exists()
        assert remove_leftovers(tmp_path) == 1
        assert remove_leftovers(tmp_path) == 0
    assert sorted(file.name for file in tmp_path.rglob("*.*")) == ["a.pt", "a.pt.tmp", "a.pt.tmp"]
