import json
import re

import pytest
import torch
import yaml

from momentum_transfer.backbones.convert import write
from momentum_transfer.backbones.read import load_backbone
from momentum_transfer.backbones.resnet import Architecture, build_resnet
from momentum_transfer.core import records as records_file
from momentum_transfer.core.files import sha256_of
from momentum_transfer.report.page import escape
from tests.report.report_records import record, small_records
from tests.tools.in_process import run_tool

hub = pytest.importorskip("huggingface_hub")


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "momentum2_digits" / "backbone.safetensors"
    architecture = Architecture("resnet10", 8)
    torch.manual_seed(0)
    write(path, build_resnet(architecture).state_dict(), architecture, {"method": "momentum2"})
    return path


@pytest.fixture
def results(tmp_path, weights):
    path, sha256 = tmp_path / "results.jsonl", sha256_of(weights)
    lines = [*small_records(), record("momentum2_digits", "diagnostics", "rankme", 12.0)]
    for line in lines:
        line["checkpoint"]["sha256"] = sha256 if line["checkpoint"]["name"].startswith("momentum2") else "cd" * 32
    records_file.append(path, lines)
    return path


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delenv("MOMENTUM_TRANSFER_HUB", raising=False)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("evil", ["<script>alert(1)</script>", "a\n\n# Heading", "a|b", "![x](http://tracker.invalid/x.png)",
                                  "a\n---\n"])  # fmt: skip
def test_names_in_records_are_no_markup_in_the_card(evil, results, weights, tmp_path):
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    for line in lines:
        line.update(dataset=evil, protocol=evil, engine=evil)
    results.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    out = tmp_path / "card"
    ended = run_tool("publish", results, "--weights", weights.parent, "--out", out)
    assert ended.returncode == 0, ended.stderr
    front, body = (out / "README.md").read_text().removeprefix("---\n").split("\n---\n", 1)
    assert yaml.safe_load(front)
    assert escape(evil) in body
    assert "<script" not in body
    assert "](" not in body
    assert [line for line in body.splitlines() if line.startswith("#")] == [
        "# momentum2_digits", "## Where the numbers come from"
    ]  # fmt: skip
    rows = [line for line in body.splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1


def test_huggingface_hub_reads_every_score_from_the_card_and_from_eval_results(results, weights, tmp_path):
    out = tmp_path / "card"
    ended = run_tool("publish", results, "--weights", weights.parent, "--out", out, "--license", "apache-2.0",
                     "--dataset", "coco_2017_val=org/coco")  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "in the card alone, since no --dataset says their names on the Hub: digits" in ended.stdout
    data = hub.ModelCard.load(out / "README.md").data
    assert (data.model_name, data.license, data.datasets) == ("momentum2_digits", "apache-2.0", ["org/coco"])
    found = {entry.metric_name: entry for entry in data.eval_results}
    low = found["svm/k=1 top1 imagenet/heldout"]
    assert (low.metric_value, low.metric_type, low.task_type) == (61.0, "accuracy", "image-classification")
    assert low.metric_args["std"] == 1.0
    assert low.metric_args["trials"] == 3
    assert (low.dataset_type, low.dataset_name) == ("digits", "digits")
    box = found["coco/bbox AP mask_rcnn_fpn_1x"]
    assert (box.metric_value, box.task_type, box.dataset_type) == (30.0, "object-detection", "org/coco")
    assert len(data.eval_results) == len(found) == 4
    entries = hub.parse_eval_result_entries(yaml.safe_load((out / ".eval_results/org-coco.yaml").read_text()))
    assert {(entry.dataset_id, entry.task_id, entry.value) for entry in entries} == {
        ("org/coco", "coco-bbox-ap-mask-rcnn-fpn-1x", 30.0),
        ("org/coco", "coco-bbox-ap50-mask-rcnn-fpn-1x", 40.0),
    }
    text = (out / "README.md").read_text()
    assert "| svm/k=1 | top1 | digits | imagenet/heldout | 61.00 ± 1.00 (3) | 11.00 ± 1.00 (3) |" in text
    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert lines == [line for line in records_file.read(results)[0] if line["checkpoint"]["name"].startswith("m")]


def test_what_is_pushed_to_a_mirror_is_pulled_by_name_with_the_same_tensors(results, weights, tmp_path, monkeypatch):
    (tmp_path / "mirror").mkdir()
    monkeypatch.setenv("MOMENTUM_TRANSFER_HUB", str(tmp_path / "mirror"))
    (tmp_path / "notes.txt").write_text("notes")
    ended = run_tool("publish", results, "--weights", weights, "--checkpoint", "momentum2_digits", "--out",
                     tmp_path / "card", "--add", tmp_path / "notes.txt", "--push", "hf:org/mine@v1")  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "--weights hf:org/mine@v1 reads it again" in ended.stdout
    pulled, own = load_backbone("hf:org/mine@v1"), load_backbone(weights)
    assert all(torch.equal(pulled.state[name], value) for name, value in own.state.items())
    assert (pulled.metadata["method"], pulled.name) == ("momentum2", "mine@v1")
    files = {path.relative_to(tmp_path / "mirror/org/mine@v1").as_posix() for path in tmp_path.glob("mirror/org/*/*")}
    assert files == {"README.md", "backbone.safetensors", "notes.txt", "results.jsonl"}


def test_the_hub_is_given_the_files_of_the_folder_and_no_others(results, weights, tmp_path, monkeypatch):
    calls = []

    class Api:
        def __init__(self, endpoint):
            calls.append(("endpoint", endpoint))

        def create_repo(self, name, **more):
            calls.append(("create_repo", name, more))

        def upload_folder(self, **more):
            calls.append(("upload_folder", more))
            return "https://hub/commit"

    monkeypatch.setattr("momentum_transfer.backbones.hub.reachable", lambda: True)
    monkeypatch.setattr(hub, "HfApi", Api)
    monkeypatch.setattr(hub, "get_token", lambda: "token")
    (tmp_path / "card").mkdir()
    (tmp_path / "card/private.txt").write_text("not to be uploaded")
    ended = run_tool(
        "publish", results, "--weights", weights, "--out", tmp_path / "card", "--push", "hf:o/n", "--private"
    )
    assert ended.returncode == 0, ended.stderr
    assert calls[:2] == [
        ("endpoint", "http://127.0.0.1:9"),
        ("create_repo", "o/n", {"private": True, "exist_ok": True}),
    ]
    sent = calls[2][1]
    assert (sent["repo_id"], sent["revision"]) == ("o/n", None)
    assert sorted(sent["allow_patterns"]) == ["README.md", "backbone.safetensors", "results.jsonl"]


def test_wrong_words_end_in_one_line_and_write_nothing(results, weights, tmp_path):
    out = tmp_path / "card"
    for words, message in {
        (): "expected --checkpoint of momentum2_digits, random_digits, found none; say whose scores",
        ("--checkpoint", "x"): "expected --checkpoint of momentum2_digits, random_digits, found x",
        ("--weights", weights, "--dataset", "digits"): "expected --dataset TITLE=org/name, found 'digits'",
        ("--weights", weights, "--dataset", "x=o/n"): "expected a data set of the records, 'digits', 'coco_2017_val'",
        ("--weights", weights, "--push", "org/name"): "expected weights on the Hub as hf:org/name",
        ("--weights", weights, "--push", "hf:org/name"): "no network to http://127.0.0.1:9; push where there is one",
        ("--weights", weights, "--add", "gone.txt"): "expected a file to add, found none at gone.txt",
    }.items():
        ended = run_tool("publish", results, "--out", out, *words)
        assert (ended.returncode, ended.stderr.count("\n")) == (2, 1), (words, ended.stderr)
        assert message in ended.stderr
    assert not out.exists()


def test_a_folder_with_a_readme_of_its_own_or_with_what_is_published_is_left_alone(results, weights, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "README.md").write_text("# My project\n")
    before = results.read_bytes(), weights.read_bytes()
    for folder, message in (
        (own, "of other origin"),
        (tmp_path, "results.jsonl in it"),
        (weights.parent, "safetensors"),
    ):
        ended = run_tool("publish", results, "--weights", weights.parent, "--out", folder)
        assert (ended.returncode, len(ended.stderr.splitlines())) == (2, 1), ended.stderr
        assert message in ended.stderr
    assert (own / "README.md").read_text() == "# My project\n"
    assert (results.read_bytes(), weights.read_bytes()) == before
    for _ in range(2):  # a card of before gives way to the new one
        ended = run_tool("publish", results, "--weights", weights.parent, "--out", tmp_path / "card")
        assert ended.returncode == 0, ended.stderr


def test_every_few_shot_record_is_published_as_it_is_and_cautions_stand_in_the_card(weights, tmp_path):
    path, sha256 = tmp_path / "draws.jsonl", sha256_of(weights)
    more = {"overlap": 12, "shots": 5}
    lines = [record("momentum2_digits", "coco/bbox/novel", "AP", 10.0 + t, trial=t, seed=40 + t, draw=t // 2, **more)
             for t in range(4)]  # fmt: skip
    for line in lines:
        line["checkpoint"]["sha256"] = sha256
    records_file.append(path, lines)
    ended = run_tool("publish", path, "--weights", weights.parent, "--out", tmp_path / "card")
    assert ended.returncode == 0, ended.stderr
    published = [json.loads(line) for line in (tmp_path / "card/results.jsonl").read_text().splitlines()]
    assert [(one["trial"], one["seed"], one["value"]) for one in published] == [(t, 40 + t, 10.0 + t) for t in range(4)]
    text = (tmp_path / "card/README.md").read_text()
    assert "11.50 ± 1.41 (2)" in text  # over the draws
    assert "12" in ended.stderr
    assert "- Notice: " in text
