"""Checkpoints and records are read from URLs and copied there; a run's own folder is none."""

import fsspec
import numpy as np
import pytest
import torch

from momentum_transfer.backbones.build import build_backbone
from momentum_transfer.backbones.read import load_backbone
from momentum_transfer.backbones.resnet import Architecture
from momentum_transfer.core import records
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.urls import copy_out, is_url, local_copy
from momentum_transfer.verdicts.outcomes import PerItem
from tests.tools.in_process import run_tool


@pytest.fixture(params=["memory", "file"])
def store(request, tmp_path, monkeypatch):
    """A folder's URL, empty."""
    monkeypatch.setenv("MOMENTUM_TRANSFER_CACHE", str(tmp_path / "cache"))
    return f"memory://{tmp_path.name}/bucket" if request.param == "memory" else f"file://{tmp_path}/bucket"


def put(url, content):
    with fsspec.open(url, "wb", auto_mkdir=True) as stream:
        stream.write(content)


def test_a_checkpoint_at_a_url_is_read_once_for_each_content(store, tmp_path):
    file = tmp_path / "r10.pth"
    for width in (8, 16):
        torch.save(build_backbone(Architecture("resnet10", width)).state_dict(), file)
        put(f"{store}/r10.pth", file.read_bytes())
        found = load_backbone(f"{store}/r10.pth")
        assert (found.architecture.width, found.name) == (width, "r10")
        assert found.metadata["source"] == f"{store}/r10.pth"
    first = local_copy(f"{store}/r10.pth")
    assert local_copy(f"{store}/r10.pth") == first
    assert first.read_bytes() == file.read_bytes()


def test_records_go_out_with_what_they_name_and_the_page_is_made_of_them_there(store, tmp_path):
    run = tmp_path / "run"
    for name, right in (("m2", 0.9), ("random", 0.4)):
        hits = (np.arange(100) < 100 * right).astype(float)
        items = records.write_items(run, f"knn-{name}", PerItem("set", {"top1": hits}))
        about = {"checkpoint": {"name": name, "sha256": name}, "protocol": "eman", "config": "0" * 12, "items": items}
        records.append(run / "results.jsonl", [records.make_record("knn/k=20", "top1", 100 * right, **about)])
    copy_out(run, store)
    ended = run_tool("report", f"{store}/results.jsonl", "--out", tmp_path / "page.html", "--resamples", 100)
    assert ended.returncode == 0, ended.stderr
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "items file not found" not in page
    assert "m2" in page
    copied = local_copy(f"{store}/results.jsonl", records=True)
    assert copied.read_bytes() == (run / "results.jsonl").read_bytes()
    assert {file.name for file in (copied.parent / "items").iterdir()} == {f.name for f in (run / "items").iterdir()}


def test_what_is_not_there_or_cannot_be_written_is_one_line(store, tmp_path):
    with pytest.raises(InputError, match=r"expected a file at .*nothing\.pth, found: .*; check the URL"):
        local_copy(f"{store}/nothing.pth")
    with pytest.raises(InputError, match=r"expected a file at nosuch://x, found: .*nosuch"):
        local_copy("nosuch://x")
    with pytest.raises(InputError, match=f"expected to write to nosuch://x, found: .*everything is in {tmp_path}"):
        copy_out(tmp_path, "nosuch://x")
    words = ("--suite", "smoke", "--weights", "pixels", "--output", tmp_path / "out", "--copy-to", "nosuch://x")
    ended = run_tool("evaluate", *words)  # not after hours
    assert ended.returncode == 2
    assert "expected the URL of a store, found nosuch://x: Protocol not known: nosuch" in ended.stderr
    assert not (tmp_path / "out").exists()
    assert is_url("s3://a/b")
    assert not is_url("outputs/a")


def test_a_run_whose_folder_would_be_a_url_is_refused_with_the_reason(tmp_path):
    asked = {
        "evaluate": ["--suite", "smoke", "--weights", "pixels", "--output", "s3://bucket/out"],
        "lowshot": ["knn", "--config", "smoke/lowshot_digits", "--weights", "pixels", "--results", "s3://b/r.jsonl"],
        "transfer": ["--config", "smoke/mask_rcnn_digits", "--weights", "none", "OUTPUT_DIR", "s3://bucket/out"],
    }
    for tool, words in asked.items():
        ended = run_tool(tool, *words)
        assert ended.returncode == 2
        text = " ".join(ended.stderr.split())
        assert ("no stopped run could resume" in text) or "OUTPUT_DIR as a path, no URL" in text, text
    ended = run_tool("report", "memory://nowhere/r.jsonl")
    assert ended.returncode == 2
    assert "expected --out FILE.html with records at a URL" in ended.stderr
