"""Suites on Ray: a cluster of three simulated nodes whose node, driver and head are killed."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from momentum_transfer.core.command import Stopped
from momentum_transfer.core.errors import InputError
from momentum_transfer.suites.attempt import alone
from momentum_transfer.suites.executors import Setup, cancel, run_on
from momentum_transfer.suites.local import run_local
from momentum_transfer.suites.on_ray import Ray
from momentum_transfer.suites.planning import plan
from momentum_transfer.suites.suite import load_suite
from momentum_transfer.suites.task import Job
from tests.suites.counting import counting_suite, counts, records_of
from tests.suites.suite_files import write_suite, write_weights

ray = pytest.importorskip("ray", reason="ray is the extra 'ray': pip install 'momentum-transfer[ray]'")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]

#: A driver that can be killed: address, suite, output.
DRIVER = """
import sys
from pathlib import Path
from momentum_transfer.suites.executors import Setup, run_on
from momentum_transfer.suites.on_ray import Ray
from momentum_transfer.suites.planning import plan
from momentum_transfer.suites.suite import load_suite
address, suite, output = sys.argv[1:]
run_on(Ray(Setup(Path(output), address)), plan(load_suite(suite), ["pixels"], output), Path(output), gpus=0, poll=0.5)
"""


@contextlib.contextmanager
def cluster_of(nodes: int):
    """A head without CPUs and nodes of two."""
    from ray.cluster_utils import Cluster

    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    for _ in range(nodes):
        made.add_node(num_cpus=2)
    try:
        yield made
    finally:
        made.shutdown()


@pytest.fixture(scope="module")
def cluster():
    with cluster_of(3) as made:
        yield made


def jobs_of(path: Path, output: Path) -> list[Job]:
    output.mkdir(exist_ok=True)
    return plan(load_suite(path), ["pixels"], output)


def wait_for(condition, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def traces(output: Path) -> list[Path]:
    return list(output.glob("pixels/*/trace"))


def test_a_task_on_two_nodes_is_one_group_of_processes(cluster, tmp_path):
    path = tmp_path / "suite.yaml"
    path.write_text(
        "{name: s, tasks: [{name: ddp, command: 'tests/suites/meeting_task.py {results}', nodes: 2, cpus: 1, "
        "distributed: true}]}"
    )
    jobs = jobs_of(path, tmp_path / "out")
    (outcome,) = run_on(Ray(Setup(tmp_path / "out", cluster.address)), jobs, tmp_path / "out", gpus=0, poll=0.5)
    assert outcome.well, jobs[0].log.read_text()
    assert jobs[0].results.read_text() == "01\n"
    assert jobs[0].log.with_name("log.1.txt").is_file()


@pytest.mark.parametrize("lost", [0, 1])
def test_a_task_on_two_nodes_that_loses_one_goes_on_with_another(cluster, tmp_path, lost):
    path, output = tmp_path / "suite.yaml", tmp_path / "out"
    path.write_text(
        "{name: s, tasks: [{name: ddp, command: 'tests/suites/meeting_task.py {results} 200', nodes: 2, cpus: 1, "
        "distributed: true}]}"
    )
    jobs = jobs_of(path, output)
    worker, removed = jobs[0].folder / ".job.lock" if lost == 0 else jobs[0].folder / ".job.lock.1", []

    def lose() -> None:
        wait_for(lambda: (jobs[0].folder / "log.1.txt").is_file() and worker.read_text())
        time.sleep(3)  # they have met
        raylet = int(Path(f"/proc/{worker.read_text().split()[0]}/stat").read_text().rpartition(")")[2].split()[1])
        (node,) = (one for one in cluster.worker_nodes if one.all_processes["raylet"][0].process.pid == raylet)
        removed.append(node)
        cluster.remove_node(node, allow_graceful=False)

    thread = threading.Thread(target=lose)
    thread.start()
    (outcome,) = run_on(Ray(Setup(output, cluster.address)), jobs, output, gpus=0, poll=0.5)
    thread.join()
    cluster.add_node(num_cpus=2)
    assert removed
    assert outcome.well, jobs[0].log.read_text()
    assert jobs[0].results.read_text() == "01\n"
    assert jobs[0].state()["attempts"] == 2


def test_what_is_cancelled_saves_and_is_submitted_again(cluster, tmp_path):
    output = tmp_path / "out"
    jobs = jobs_of(counting_suite(tmp_path, 2, 40), output)
    engine = Ray(Setup(output, cluster.address))

    def end() -> None:
        wait_for(lambda: len(traces(output)) >= 1 and counts(output, "task0")[-1:] >= [5])
        assert cancel(engine, jobs, output) == 2

    thread = threading.Thread(target=end)
    thread.start()
    outcomes = run_on(engine, jobs, output, gpus=0, poll=0.5)
    thread.join()
    assert [outcome.status for outcome in outcomes] == ["cancelled", "not run"]
    assert jobs[0].state()["stopped"] == "SIGTERM"
    assert all(outcome.well for outcome in run_on(engine, jobs, output, gpus=0, poll=0.5))
    assert counts(output, "task0") == list(range(40))


def test_a_failing_task_stops_its_followers_alone(cluster, tmp_path):
    path = write_suite(tmp_path, {"word": "fail"}, {"needs": "task0"}, {})
    jobs = plan(load_suite(path), write_weights(tmp_path)[:1], tmp_path / "out")
    (tmp_path / "out").mkdir()
    outcomes = run_on(Ray(Setup(tmp_path / "out", cluster.address)), jobs, tmp_path / "out", gpus=0, poll=0.5)
    assert [outcome.status for outcome in outcomes] == ["failed", "not run", "done"]
    assert outcomes[0].note == "exit code 3: boom: no such thing"


def test_a_suite_whose_node_and_driver_are_killed_has_the_records_of_an_undisturbed_one(cluster, tmp_path, capsys):
    suite = counting_suite(tmp_path, 24, 20)
    assert all(outcome.well for outcome in run_local(jobs_of(suite, tmp_path / "here"), parallel=6))
    output = tmp_path / "ray"
    jobs = jobs_of(suite, output)
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, cluster.address, str(suite), str(output)], cwd=ROOT)
    wait_for(lambda: len(traces(output)) >= 5)
    driver.kill()
    driver.wait()
    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
    outcomes = run_on(Ray(Setup(output, cluster.address)), jobs, output, gpus=0, poll=0.5)
    cluster.add_node(num_cpus=2)
    assert all(outcome.well for outcome in outcomes)
    assert "still in the queue or running" in capsys.readouterr().out
    assert len((output / "submitted.jsonl").read_text().splitlines()) == 1
    assert records_of(output) == records_of(tmp_path / "here")


def test_the_actor_of_hundreds_of_tasks_begins_again_without_the_call_that_made_it(cluster, tmp_path):
    suite, output = counting_suite(tmp_path, 400, 600), tmp_path / "out"
    jobs = jobs_of(suite, output)
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, cluster.address, str(suite), str(output)], cwd=ROOT)
    wait_for(lambda: traces(output))
    driver.kill()
    driver.wait()
    time.sleep(5)  # until Ray has seen it
    parents = [node.all_processes["raylet"][0].process.pid for node in cluster.list_all_nodes()]
    for parent in parents:
        subprocess.run(["pkill", "-KILL", "-P", str(parent), "-f", "^ray::Keeper"], check=False)
    assert cancel(Ray(Setup(output, cluster.address)), jobs, output) == 400


def test_a_node_that_is_asked_to_leave_lets_its_tasks_save(cluster, tmp_path):
    output = tmp_path / "out"
    jobs = jobs_of(counting_suite(tmp_path, 6, 40), output)
    leaving = list(cluster.worker_nodes)[:2]

    def leave() -> None:
        wait_for(lambda: len(traces(output)) >= 3)
        for node in leaving:
            node.all_processes["raylet"][0].process.send_signal(signal.SIGTERM)

    threading.Thread(target=leave).start()
    outcomes = run_on(Ray(Setup(output, cluster.address)), jobs, output, gpus=0, poll=0.5)
    for node in leaving:
        cluster.remove_node(node)
        cluster.add_node(num_cpus=2)
    assert all(outcome.well for outcome in outcomes)
    assert "saved at" in "".join(job.log.read_text() for job in jobs)
    assert [counts(output, job.task.name) for job in jobs] == [list(range(40))] * 6


def test_two_drivers_of_one_suite_are_refused_and_no_cluster_is_one_line(tmp_path, monkeypatch):
    with alone(tmp_path), pytest.raises(InputError, match="expected to be alone"), alone(tmp_path):
        pass
    with pytest.raises(InputError, match=r"expected a Ray cluster at 127.0.0.1:9, found .*; begin one with ray start"):
        Ray(Setup(tmp_path, "127.0.0.1:9"))


def test_without_its_head_the_driver_ends_in_one_line_and_another_cluster_goes_on(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "5")  # else a minute
    output = tmp_path / "out"
    jobs = jobs_of(counting_suite(tmp_path, 4, 100), output)
    with cluster_of(1) as made:
        engine = Ray(Setup(output, made.address))

        def kill() -> None:
            wait_for(lambda: len(traces(output)) >= 1)
            made.remove_node(made.head_node, allow_graceful=False)

        thread = threading.Thread(target=kill)
        thread.start()
        with pytest.raises(Stopped, match=r"Ray gave no answer \(.*\); if its head is gone, begin one again; finished"):
            run_on(engine, jobs, output, gpus=0, poll=0.5)
        thread.join()
        assert "Raylet is terminated" not in "".join(capfd.readouterr())
    with cluster_of(2) as made:
        outcomes = run_on(Ray(Setup(output, made.address)), jobs, output, gpus=0, poll=0.5)
    assert all(outcome.well for outcome in outcomes)
    assert len(records_of(output)) == 4
    assert [counts(output, job.task.name)[-1] for job in jobs] == [99] * 4
