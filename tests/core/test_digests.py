"""One bit changed anywhere is another digest; what changes on the way through a file is not."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from momentum_transfer.core.digests import (
    KEY,
    _content_digest,
    sealed,
    sealed_metadata,
    verify,
    verify_records,
    verify_safetensors,
)
from momentum_transfer.core.errors import InputError

EMPTY = torch.tensor([], dtype=torch.int8)
TREE = {"a": torch.arange(6.0).reshape(2, 3), "b": [1, 2.5, None, True, "x", b"y"], 3: {"c": EMPTY}}


def changed() -> list[object]:
    """The same tree with one thing in it changed."""
    whole, values = TREE["a"], TREE["b"]
    nearly = whole.clone()
    nearly[1, 2] = torch.nextafter(nearly[1, 2], torch.tensor(9.0))
    tensors = (nearly, whole.reshape(3, 2), whole.double(), whole.view(torch.int32), whole.tolist(), whole.T)
    trees: list[object] = [{**TREE, "a": tensor} for tensor in tensors]
    for place, value in ((0, 2), (0, 1.0), (0, [1]), (3, 1), (3, False), (4, "y"), (5, "y"), (5, b""), (2, "None")):
        trees.append({**TREE, "b": [*values[:place], value, *values[place + 1 :]]})
    trees += [{**TREE, "b": values[:-1]}, {**TREE, "b": [2.5, 1, *values[2:]]}, {**TREE, "d": None}]
    trees += [{"a": whole, "b": values}, {**TREE, 3: {"c": EMPTY.view(torch.uint8)}}]
    return [*trees, {("3" if key == 3 else key): value for key, value in TREE.items()}]


def test_every_change_of_content_is_another_digest():
    digests = [_content_digest(tree) for tree in (TREE, *changed())]
    assert len(set(digests)) == len(digests)
    assert all(len(digest) == 64 for digest in digests)


def test_order_of_keys_layout_in_memory_and_kind_of_sequence_do_not_count():
    other = {3: TREE[3], "b": tuple(TREE["b"]), "a": TREE["a"].T.contiguous().T}
    assert list(other) != list(TREE)
    assert not other["a"].is_contiguous()
    assert _content_digest(other) == _content_digest(TREE)
    assert _content_digest({"a": TREE["a"].numpy()}) == _content_digest({"a": TREE["a"]})
    assert _content_digest(np.arange(3)) == _content_digest(torch.arange(3))


def nested(levels: int) -> object:
    tree: object = 1
    for _ in range(levels):
        tree = [tree]
    return tree


def test_other_values_and_endless_nesting_are_refused():
    with pytest.raises(TypeError, match="expected tensors, texts and numbers, found a set"):
        _content_digest({"a": {1}})
    _content_digest(nested(64))
    with pytest.raises(InputError, match="at most 64 nested levels"):
        _content_digest(nested(65))
    mappings: object = 1
    for _ in range(64):
        mappings = {"a": mappings}
    _content_digest(mappings)
    with pytest.raises(InputError, match="at most 64 nested levels"):
        _content_digest({"a": mappings})


def test_a_sealed_mapping_is_verified_and_a_changed_one_refused():
    whole = sealed(TREE)
    assert sealed(whole)[KEY] == whole[KEY]
    assert verify(whole, Path("a.pt")) is True
    assert verify(TREE, Path("a.pt")) is verify([1], Path("a.pt")) is False
    for tree in changed():
        with pytest.raises(InputError, match="its content differs from the digest in it"):
            verify({**tree, KEY: whole[KEY]}, Path("a.pt"))
    with pytest.raises(InputError, match="found a set"):
        verify({**whole, "e": {1}}, Path("a.pt"))


def test_metadata_of_safetensors_seal_both_tensors_and_text():
    tensors = {"a": TREE["a"]}
    metadata = sealed_metadata(tensors, {"method": "byol"})
    assert sealed_metadata(tensors, metadata) == metadata
    assert verify_safetensors(tensors, metadata, Path("a")) is True
    assert verify_safetensors(tensors, {"method": "byol"}, Path("a")) is False
    for found, text in (({"a": TREE["a"] + 1}, metadata), (tensors, {**metadata, "method": "moco"})):
        with pytest.raises(InputError, match="its content differs"):
            verify_safetensors(found, text, Path("a"))


def archive(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as made:
        for name in names:
            made.writestr(name, name.encode() * 9)
    return path


def test_records_of_one_name_are_refused_whatever_the_archive_calls_itself(tmp_path: Path):
    for names in (("a/x", "a/y"), ("x", "y"), ("a/data/0", "a/data/1"), ("a/x", "a/b/x")):
        verify_records(archive(tmp_path / "a.zip", *names))
    for names in (("a/x", "A/X"), ("a/x", "b/x"), ("x", "X"), ("a/x", "x")):
        with pytest.raises(InputError, match=r"its record '.*' is there twice"):
            verify_records(archive(tmp_path / "a.zip", *names))


def test_a_wrong_checksum_is_refused_and_absent_ones_and_other_files_pass(tmp_path: Path):
    path = archive(tmp_path / "a.zip", "a/first", "a/second")
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"a/seconda", b"a/secondb", 1))
    with pytest.raises(InputError, match="its record a/second"):
        verify_records(path)
    path.write_bytes(b"no archive")
    verify_records(path)
    torch.save({"a": torch.ones(3)}, path)
    verify_records(path)
    path.write_bytes(whole[:40] + whole[60:])
    with pytest.raises(InputError, match="found it damaged"):
        verify_records(path)
