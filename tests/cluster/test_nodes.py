"""Suites on a real Slurm of three nodes, with and without accounting: nodes drained or killed, and two at once."""

import json
import time

import pytest
import yaml

from momentum_transfer.suites.local import run_local
from momentum_transfer.suites.planning import plan
from momentum_transfer.suites.suite import load_suite
from tests.cluster.conftest import Evaluation, ended
from tests.cluster.one_node import missing, one_node
from tests.suites.counting import counting_suite, records_of

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(900)]


@pytest.fixture(scope="module", params=[True, False], ids=["sacct", "no_sacct"])
def nodes(request: pytest.FixtureRequest):
    """Three nodes of two CPUs, whose controller forgets ended jobs within seconds."""
    if reason := missing(accounting=request.param):
        pytest.skip(reason)
    pytest.importorskip("submitit", reason="submitit is the extra 'slurm': pip install 'momentum-transfer[slurm]'")
    with one_node(cpus=2, forget=5, nodes=3, accounting=request.param) as made:
        yield made


def test_with_a_node_drained_and_one_killed_the_records_are_those_of_one_machine(nodes, tmp_path):
    path = counting_suite(tmp_path, 24, 40)
    assert all(one.well for one in run_local(plan(load_suite(path), ["pixels"], tmp_path / "here"), parallel=6))
    suite = Evaluation(nodes, tmp_path, yaml.safe_load(path.read_text())["tasks"])
    waiting = suite.start()

    def running(node: str) -> list[str]:
        listed = nodes.run("squeue", "--noheader", f"--nodelist={node}", "--states=RUNNING", "--format=%i %j")
        names = dict(line.split() for line in listed.splitlines())
        return [number for number, name in names.items() if "began" in suite.state(name.removeprefix("pixels-"))]

    suite.wait_for(lambda: running("node0"), 240)
    nodes.run("scontrol", "update", "nodename=node0", "state=drain", "reason=test")
    for number in running("node0"):
        nodes.run("scontrol", "requeue", number, check=False)  # it may just have ended
    suite.wait_for(lambda: running("node1"), 240)
    nodes.kill_node(1)
    suite.wait_for(lambda: "down" in nodes.run("sinfo", "--noheader", "--nodes=node1", "--format=%T"), 120)
    nodes.run("scontrol", "update", "nodename=node0", "state=resume")
    nodes.start_node(1)
    while waiting.poll() is None:
        suite.hasten()
        time.sleep(2)
    code, said = ended(waiting)
    assert code == 0, said
    assert records_of(suite.output) == records_of(tmp_path / "here")
    assert sum(suite.state(f"task{index}")["attempts"] for index in range(24)) > 24


def test_what_failed_and_what_was_cancelled_is_told_alike(nodes, tmp_path):
    (tmp_path / "out").mkdir()
    task = "tests/cluster/counting_task.py {folder} {results} {weights}"
    suite = Evaluation(nodes, tmp_path, [
        {"name": "bad", "command": f"{task} bad 3 fail", "cpus": 1},
        {"name": "after_bad", "command": f"{task} after_bad 3", "needs": "bad", "cpus": 1},
        {"name": "long", "command": f"{task} long 600", "cpus": 1},
    ])  # fmt: skip
    waiting = suite.start()
    suite.wait_for(lambda: "beginning" in suite.log("long") and "exit_code" in suite.state("bad"), 120)
    code, said = suite.run("--cancel")
    assert code == 0, said  # while the other call waits
    assert "cancelled: " in said
    code, said = ended(waiting)
    assert code == 1
    assert "failed: pixels: bad, exit code 1: error: this task was asked to fail" in said
    assert "not run: pixels: after_bad, bad did not end well" in said
    assert "cancelled: pixels: long, Slurm job" in said
    assert suite.records() == {}


def test_a_task_on_two_nodes_is_one_group_of_processes(nodes, tmp_path):
    task = {"name": "ddp", "command": "tests/suites/meeting_task.py {results}", "nodes": 2, "cpus": 1}
    suite = Evaluation(nodes, tmp_path, [{**task, "distributed": True}])
    _, said = suite.run("--gpus", "0")
    assert suite.state("ddp").get("exit_code") == 0, said + suite.log("ddp")
    assert (suite.output / "results.jsonl").read_text() == "01\n"
    assert json.loads((suite.output / "plan.json").read_text())["tasks"]
