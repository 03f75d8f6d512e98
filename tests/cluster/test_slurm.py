"""Suites on a real Slurm of one node, without accounting: what users of clusters meet."""

import os
import re
import signal
import time

import pytest

from tests.cluster.conftest import TASK, Evaluation, ended
from tests.cluster.one_node import one_node

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]


def trace(evaluation, task: str, weights: str = "pixels") -> list[int]:
    """The counts that a task went through, in the order it did."""
    text = (evaluation.output / weights / task / "trace").read_text()
    return [int(line.split()[1]) for line in text.splitlines()]


def test_needs_come_first_and_a_failing_task_stops_its_followers_alone(evaluation):
    suite = evaluation(
        {"name": "first", "count": 20},
        {"name": "second", "needs": "first"},
        {"name": "bad", "count": 3, "word": "fail"},
        {"name": "after_bad", "needs": "bad"},
        {"name": "after_that", "needs": "after_bad"},
    )
    code, said = suite.run()
    assert code == 1
    assert "failed: pixels: bad, exit code 1: error: this task was asked to fail; see" in said
    assert "not run: pixels: after_bad, bad did not end well" in said
    assert "not run: pixels: after_that, after_bad did not end well" in said
    assert suite.records() == {("count/first", "pixels"): 1, ("count/second", "pixels"): 1}
    first, second = ((suite.output / "pixels" / name / "trace").read_text().split() for name in ("first", "second"))
    assert float(first[-2]) < float(second[0])
    code, said = suite.run()  # what failed is submitted again, and nothing else
    assert code == 1
    assert [len(entry["jobs"]) for entry in suite.submissions()[5:]] == [1, 1, 1]
    assert sum(suite.records().values()) == 2


def test_after_ctrl_c_the_same_command_finds_its_jobs(evaluation):
    suite = evaluation({"name": "long", "count": 120}, {"name": "after", "needs": "long"})
    waiting = suite.start()
    suite.wait_for(lambda: "beginning" in suite.log("long"))
    os.kill(waiting.pid, signal.SIGINT)
    code, said = ended(waiting)
    assert code == 130
    assert "the submitted jobs go on" in said
    assert "step" not in said
    code, said = suite.run()
    assert code == 0
    assert "2 tasks still in the queue or running" in said
    assert len(suite.submissions()) == 2
    assert trace(suite, "long") == list(range(120))
    assert sum(suite.records().values()) == 2


@pytest.mark.parametrize("pending", [False, True], ids=["running", "pending"])
def test_a_cancelled_job_is_told_as_such_and_run_by_the_next_call(evaluation, cluster, pending: bool):
    suite = evaluation(
        {"name": "long", "count": 300}, {"name": "after", "needs": "long"}, {"name": "other", "count": 60}
    )
    waiting = suite.start(*(["--sbatch", "begin=now+600"] if pending else []))
    if pending:
        suite.wait_for(lambda: (suite.output / "submitted.jsonl").exists() and len(suite.submissions()) == 3)
    else:
        suite.wait_for(lambda: "beginning" in suite.log("long"))
    for entry in suite.submissions() if pending else suite.submissions()[:1]:
        cluster.run("scancel", entry["number"])
    code, said = ended(waiting)
    assert code == 1
    assert "cancelled: pixels: long, Slurm job" in said
    assert "not run: pixels: after, long did not end well" in said
    assert re.search("cancelled: pixels: other" if pending else "other +done", said)
    assert "exit_code" not in suite.state("long")
    if not pending:
        suite.wait_for(lambda: "saved at" in suite.log("long"))
        code, said = suite.run()
        assert code == 0
        assert "long: submitted as job" in said
        assert trace(suite, "long") == list(range(300))  # it went on


@pytest.mark.parametrize("how", ["requeue", "preemption"])
def test_a_job_that_is_put_back_into_the_queue_goes_on_and_is_submitted_once(evaluation, cluster, how: str):
    suite = evaluation({"name": "long", "count": 100}, {"name": "after", "needs": "long"})
    waiting = suite.start()
    suite.wait_for(lambda: "count: 20" in suite.log("long"))
    number = suite.submissions()[0]["number"]
    if how == "requeue":
        cluster.run("scontrol", "requeue", number)
    else:
        cluster.run("sbatch", "--partition=urgent", "--exclusive", "--wrap=sleep 5", "--output=/dev/null")
    suite.wait_for(lambda: "saved at" in suite.log("long"))
    suite.wait_for(lambda: suite.state("long").get("stopped") == "SIGTERM")
    suite.wait_for(suite.hasten)
    assert "exit_code" not in suite.state("long")
    os.kill(waiting.pid, signal.SIGINT)  # and while it is back in the queue, the same command submits nothing
    ended(waiting)
    code, said = suite.run()
    assert code == 0, said
    assert "still in the queue or running" in said
    assert len(suite.submissions()) == 2
    assert trace(suite, "long") == list(range(100))
    assert suite.records() == {("count/long", "pixels"): 1, ("count/after", "pixels"): 1}
    assert suite.state("long")["attempts"] == 2
    assert suite.state("long")["seconds"] > 9


def test_a_job_at_its_time_limit_saves_is_put_back_and_finishes(evaluation):
    suite = evaluation({"name": "long", "count": 700, "minutes": 1})
    waiting = suite.start()
    while waiting.poll() is None:
        suite.hasten()
        time.sleep(2)
    code, said = ended(waiting)
    assert code == 0, said
    assert suite.state("long")["attempts"] >= 2
    assert trace(suite, "long") == list(range(700))
    assert sum(suite.records().values()) == 1


def test_a_node_that_dies_and_comes_back_repeats_no_record(evaluation, cluster):
    suite = evaluation({"name": "long", "count": 600}, {"name": "after", "needs": "long"})
    waiting = suite.start()
    suite.wait_for(lambda: "count: 20" in suite.log("long"))
    cluster.kill_node()
    number = suite.submissions()[0]["number"]
    suite.wait_for(lambda: "PENDING" in cluster.run("squeue", "--noheader", "--format=%T", f"--jobs={number}"), 120)
    cluster.start_node()
    suite.wait_for(lambda: "idle" in cluster.run("sinfo", "--noheader", "--format=%T"))
    time.sleep(6)  # what is left of the first attempt on the node is being killed
    suite.wait_for(suite.hasten)
    code, said = ended(waiting)
    assert code == 0, said
    assert suite.records() == {("count/long", "pixels"): 1, ("count/after", "pixels"): 1}


def test_two_hundred_tasks_are_arrays_of_which_so_many_run_at_once(evaluation, tmp_path):
    names = [tmp_path / f"net{index:03}.pt" for index in range(100)]
    for name in names:
        name.write_text(name.name)
    suite = evaluation(
        {"name": "one", "count": 2}, {"name": "two", "count": 1, "needs": "one"}, weights=tuple(map(str, names))
    )
    code, said = suite.run("--jobs", "3")
    assert code == 0, said
    assert [len(entry["jobs"]) for entry in suite.submissions()] == [100, 100]
    assert len(suite.records()) == sum(suite.records().values()) == 200
    times = []
    for name in names:
        lines = (suite.output / name.stem / "one" / "trace").read_text().splitlines()
        times += [(float(lines[0].split()[0]), 1), (float(lines[-1].split()[0]), -1)]
    running = most = 0
    for _, change in sorted(times):
        running += change
        most = max(most, running)
    assert most <= 3


def test_one_failure_in_an_array_stops_its_own_follower_alone(evaluation, tmp_path):
    names = [tmp_path / f"net{index}.pt" for index in range(4)]
    for name in names:
        name.write_text(name.name)
    suite = evaluation({"name": "one"}, {"name": "two", "needs": "one"}, weights=tuple(map(str, names)))
    text = (tmp_path / "suite.yaml").read_text()
    script = tmp_path / "some_fail.py"
    script.write_text(
        "import runpy, sys\nif 'net2' in sys.argv[1]: sys.exit('error: net2 is bad')\n"
        "sys.argv[0] = 'tests/cluster/counting_task.py'\nrunpy.run_path(sys.argv[0])\n"
    )
    (tmp_path / "suite.yaml").write_text(text.replace("tests/cluster/counting_task.py", str(script), 1))
    code, said = suite.run()
    assert code == 1
    assert "failed: net2: one, exit code 1: error: net2 is bad" in said
    assert "not run: net2: two" in said
    assert len(suite.records()) == 6


def test_two_suites_at_once_keep_their_own_and_one_folder_takes_one(evaluation, tmp_path, cluster):
    (tmp_path / "other").mkdir()
    one = evaluation({"name": "a", "count": 60})
    two = type(one)(cluster, tmp_path / "other", [{"name": "a", "command": "tests/cluster/counting_task.py "
                    "{folder} {results} {weights} a 40", "cpus": 1}])  # fmt: skip
    first, second = one.start(), two.start()
    one.wait_for(lambda: "beginning" in one.log("a"))
    code, said = one.run()
    assert code == 2
    assert "expected to be alone" in said
    assert ended(first)[0] == ended(second)[0] == 0
    assert trace(one, "a") == list(range(60))
    assert trace(two, "a") == list(range(40))
    assert sum(one.records().values()) == sum(two.records().values()) == 1


def test_what_cannot_start_says_why_and_a_refused_option_is_one_line(evaluation, cluster):
    suite = evaluation({"name": "a"})
    cluster.run("scontrol", "update", "partitionname=main", "state=down")
    try:
        waiting = suite.start()
        time.sleep(8)
        os.kill(waiting.pid, signal.SIGINT)
        _, said = ended(waiting)
    finally:
        cluster.run("scontrol", "update", "partitionname=main", "state=up")
    assert "0 of 1 ended, 1 queued (PartitionDown 1)" in said
    assert "may stay so: PartitionDown: the partition is down; --sbatch partition=ANOTHER" in said
    code, said = suite.run()
    assert code == 0
    other = evaluation({"name": "b"})
    code, said = other.run("--sbatch", "partition=nowhere")
    assert code == 2
    errors = [line for line in said.splitlines() if "error" in line]
    assert len(errors) == 1
    assert errors[0].startswith("error: expected an answer of sinfo, found") or "Invalid partition" in errors[0]
    assert "Traceback" not in said


def test_jobs_that_the_controller_has_forgotten_count_as_ended(cluster, tmp_path):
    """MinJobAge 2: a failed task, and a cancelled one with a follower, are gone from squeue within seconds."""
    with one_node(cpus=2, forget=2) as forgetful:
        tasks = [
            {"name": "bad", "command": f"{TASK} bad 3 fail", "cpus": 1},
            {"name": "after_bad", "command": f"{TASK} after_bad 3", "needs": "bad"},
            {"name": "long", "command": f"{TASK} long 300", "cpus": 1},
            {"name": "after_long", "command": f"{TASK} after_long 3", "needs": "long"},
        ]
        suite = Evaluation(forgetful, tmp_path, tasks)
        waiting = suite.start()
        suite.wait_for(lambda: "beginning" in suite.log("long"))
        os.kill(waiting.pid, signal.SIGINT)
        ended(waiting)
        forgetful.run("scancel", suite.submissions()[2]["number"])
        time.sleep(15)
        code, said = suite.run()  # nothing of it is left in the controller: all is submitted anew
        assert code == 1
        assert "failed: pixels: bad" in said
        assert re.search("long +done", said)
        assert trace(suite, "long") == list(range(300))
