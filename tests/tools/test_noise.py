"""momentum-transfer noise on a run of ours: its projector's embeddings, the records; what it refuses."""

import json

import pytest
import torch

from momentum_transfer.core import digests
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.settings import load_config
from momentum_transfer.pretrain.config import get_cfg
from momentum_transfer.pretrain.resume import load_embedding
from momentum_transfer.pretrain.train import train
from tests.tools.in_process import run_tool

SETTINGS = ["MODEL.WIDTH", "4", "HEAD.HIDDEN", "16", "HEAD.OUTPUT", "8", "SOLVER.BATCH_SIZE", "8", "SOLVER.STEPS", "2",
            "NORM.GROUP_SIZE", "4"]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two steps of Momentum² with the teacher's BN in groups."""
    folder = tmp_path_factory.mktemp("run") / "mine"
    train(load_config(get_cfg(), "smoke/momentum2_digits", [*SETTINGS, "OUTPUT_DIR", str(folder)]))
    return folder


def test_an_embedding_is_backbone_and_projector_of_the_network_asked_for(run):
    state = torch.load(next((run / "checkpoints").glob("*.pt")), weights_only=True)["model"]
    images = torch.randn(3, 3, 32, 32)
    for network in ("teacher", "student"):
        branch = load_embedding(run, network)
        assert not branch.training
        assert branch(images).shape == (3, 8)
        for name, tensor in branch.projector.state_dict().items():
            assert "pending" in name or torch.equal(tensor, state[f"{network}.projector.{name}"])
    assert load_embedding(run.parent) is None


def test_an_embedding_of_a_run_of_two_processes_is_that_of_one_process_in_two_groups(run, tmp_path):
    file = next((run / "checkpoints").glob("*.pt"))
    state, images = torch.load(file, weights_only=True), torch.randn(3, 3, 32, 32)
    del state[digests.KEY]
    assert any(name.endswith("group_mean") for name in state["model"])
    for name in list(state["model"]):  # the first of two processes saves its own statistics alone
        if name.endswith(("group_mean", "group_var")):
            running = name.replace("group_", "running_")
            state["model"][running] = state["model"].pop(name)[: len(state["model"][running])]
        elif name.endswith(("pending_mean", "pending_var")):
            state["model"][name] = state["model"][name].chunk(2)[0].clone()
    (tmp_path / "checkpoints").mkdir()
    torch.save(state, tmp_path / "checkpoints" / file.name)
    for network in ("teacher", "student"):
        torch.testing.assert_close(load_embedding(tmp_path, network)(images), load_embedding(run, network)(images))
    state["model"]["student.other"] = state["model"].pop("student.projector.0.weight")
    torch.save(state, tmp_path / "checkpoints" / file.name)
    with pytest.raises(InputError, match="expected a checkpoint of this model"):
        load_embedding(tmp_path)


def test_noise_is_recorded_for_every_batch_and_weight(run, tmp_path):
    results = tmp_path / "results.jsonl"
    words = ["--weights", run, "--config", "configs/smoke/lowshot_digits.yaml", "--results", results, "--views", "32"]
    ended = run_tool("noise", *words, "--n", "4", "16", "--alpha", "1", "0.1", "--other-sets", "2")
    assert ended.returncode == 0, ended.stderr
    records = {record["task"]: record for record in map(json.loads, results.read_text().splitlines())}
    places = {f"noise/n={n}/alpha={alpha}" for n in (4, 16) for alpha in ("1", "0.1")}
    assert set(records) == {*places, "noise/running"}
    value = {task: record["value"] for task, record in records.items()}
    assert value["noise/n=4/alpha=1"] > value["noise/n=16/alpha=1"] > 0
    assert value["noise/n=4/alpha=1"] > value["noise/n=4/alpha=0.1"] > value["noise/running"]
    assert value["noise/running"] == pytest.approx(0, abs=1e-3)
    record = records["noise/running"]
    assert (record["protocol"], record["network"], record["metric"]) == (
        "embedding/2 companions",
        "teacher",
        "target_noise",
    )
    assert record["checkpoint"]["name"] == "mine"
    again = run_tool("noise", *words, "--n", "4", "--alpha", "1", "--other-sets", "2")
    assert "0 records appended" in again.stdout
    refused = run_tool("noise", *words, "--n", "5")
    assert refused.returncode == 2
    assert "divide the 32 views, found 5" in refused.stderr
    refused = run_tool("noise", *words, "--alpha", "2")
    assert refused.returncode == 2
    assert "--alpha between 0 and 1, found 2" in refused.stderr
