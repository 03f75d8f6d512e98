"""Processes that srun starts: their ranks and meeting place from Slurm's variables, as torchrun would give them.

    srun --ntasks=2 python tools/pretrain.py --config …

Each task of the step is one process. Slurm sets SLURM_PROCID, SLURM_LOCALID, SLURM_STEP_NUM_TASKS, … in each
(https://slurm.schedmd.com/srun.html, OUTPUT ENVIRONMENT VARIABLES).
"""

import re
import socket
from collections.abc import MutableMapping

#: First of the ports that steps meet at, and how many: above those that systems keep, below those that they hand out.
_PORTS = (20000, 12000)


def adopt(environment: MutableMapping[str, str]) -> None:
    """Set RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT in a step of several tasks.

    Left alone: what torchrun (or the user) has set, steps of one task, and the batch script itself, which is none.
    """
    tasks = environment.get("SLURM_STEP_NUM_TASKS", "")
    if "WORLD_SIZE" in environment or not tasks.isdigit() or int(tasks) < 2 or "SLURM_PROCID" not in environment:
        return
    local = int(environment.get("SLURM_LOCALID", "0"))
    devices = [name for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    environment["RANK"], environment["WORLD_SIZE"] = environment["SLURM_PROCID"], tasks
    environment["LOCAL_RANK"] = str(local % len(devices) if devices else local)  # of the GPUs that this task is shown
    environment["LOCAL_WORLD_SIZE"] = str(_tasks_here(environment))
    job, step = (int(environment.get(name, "0") or 0) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    environment.setdefault("MASTER_PORT", str(_PORTS[0] + (job * 16 + step) % _PORTS[1]))
    one_node = environment.get("SLURM_STEP_NUM_NODES", "1") == "1"
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST") or socket.gethostname()
    environment.setdefault("MASTER_ADDR", "127.0.0.1" if one_node else first_host(nodes))


def first_host(nodes: str) -> str:
    """The first name of Slurm's list: ``gpu[007-009,12]-ib,login1`` is ``gpu007-ib``."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodes)
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first.group()) if first else nodes


def _tasks_here(environment: MutableMapping[str, str]) -> int:
    """Tasks of the step on this node, from ``2(x3),1``: two on each of three nodes, one on the fourth."""
    text = environment.get("SLURM_STEP_TASKS_PER_NODE", "") or "1"
    counts = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(count)] * int(times or 1)
    node = int(environment.get("SLURM_NODEID", "0"))
    return counts[node] if node < len(counts) else 1
