"""Files are whole or absent."""

import errno
import hashlib
import os

import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.files import atomic_path, cache_root, sha256_of, weights_name, write_once, write_text


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
