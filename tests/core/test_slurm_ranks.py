import pytest

from momentum_transfer.core.command import _adopt_slurm_ranks, _first_host

STEP = {
    "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_JOB_ID": "12",
    "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
}  # fmt: skip
RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")


def test_a_step_of_several_tasks_gives_ranks_and_a_place_to_meet():
    environment = dict(STEP)
    _adopt_slurm_ranks(environment)
    assert [environment[name] for name in RANKS] == ["3", "4", "1", "2", "gpu07"]
    other = {**STEP, "SLURM_PROCID": "0", "SLURM_STEP_ID": "1"}
    _adopt_slurm_ranks(other)
    assert other["MASTER_PORT"] != environment["MASTER_PORT"]  # two steps of a job do not meet each other
    shown_one = {**STEP, "CUDA_VISIBLE_DEVICES": "0", "SLURM_STEP_NUM_NODES": "1"}
    _adopt_slurm_ranks(shown_one)
    assert (shown_one["LOCAL_RANK"], shown_one["MASTER_ADDR"]) == ("0", "127.0.0.1")


@pytest.mark.parametrize("changed", [{"SLURM_STEP_NUM_TASKS": "1"}, {"SLURM_STEP_NUM_TASKS": ""}, {"WORLD_SIZE": "2"}])
def test_one_task_the_batch_script_and_torchrun_are_left_alone(changed):
    environment = {**STEP, **changed}
    _adopt_slurm_ranks(environment)
    assert environment == {**STEP, **changed}


def test_the_first_host_of_slurms_lists():
    lists = {"gpu[007-009,12]-ib,login1": "gpu007-ib", "a,b": "a", "node1": "node1", "r[1-2]n[03,05]": "r1n03"}
    assert {text: _first_host(text) for text in lists} == lists
