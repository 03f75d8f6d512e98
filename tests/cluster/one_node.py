"""A Slurm cluster of this machine alone, in a temporary folder with ports of its own.

    python tests/cluster/one_node.py        (brings it up, says what to export, takes it down at Ctrl-C)

It wants Debian's packages (``apt-get install slurm-wlm munge``) and root. Partition ``main`` is the default;
``urgent`` preempts its jobs, which go back into the queue. Of several nodes each is a daemon of its own on this machine
(``slurmd -N``). Accounting (``slurmdbd mariadb-server``) keeps its database in the same folder.
"""

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel")

CONFIG = """
ClusterName=onenode
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=2
SlurmctldPort={ports[0]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=2
PriorityType=priority/basic
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{accounting}
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
MinJobAge={forget}
KillWait={kill_wait}
SlurmdTimeout=10
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1 State=UP
PartitionName=urgent Nodes=ALL MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF State=UP
"""

DATABASE = """
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser={user}
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={storage}
StorageUser=slurm
StoragePass=slurm
"""


def missing(accounting: bool = False) -> str:
    """Why there can be no cluster here; "" where there can."""
    wanted = (*PROGRAMS, *(("slurmdbd", "sacct", "mariadbd") if accounting else ()))
    absent = [name for name in wanted if _program(name) is None]
    if absent:
        more = " slurmdbd mariadb-server" if accounting else ""
        return f"Slurm is not installed ({', '.join(absent)}): apt-get install slurm-wlm munge{more}"
    return "" if os.getuid() == 0 else "Slurm's daemons are started as root here"


class Cluster:
    """The running cluster; ``environment`` is for processes that speak to it."""

    def __init__(self, folder: Path, *, cpus: int, forget: int, kill_wait: int, nodes: int, accounting: bool) -> None:
        self.folder, host = folder, socket.gethostname()
        self.nodes = [host] if nodes == 1 else [f"node{index}" for index in range(nodes)]
        self._database: subprocess.Popen[bytes] | None = None
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        ports = _free_ports(3 + nodes)
        self._ports = ports[1:3] if accounting else []
        lines = [f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory=2000 "
                 "State=UNKNOWN" for name, port in zip(self.nodes, ports[3:], strict=True)]  # fmt: skip
        kept = "none"
        if accounting:
            kept = f"slurmdbd\nAccountingStorageHost=127.0.0.1\nAccountingStoragePort={ports[1]}"
            kept += f"\nAccountingStoragePass={folder}/munge.socket"
        (folder / "slurm.conf").write_text(
            CONFIG.format(host=host, user=getpass.getuser(), folder=folder, ports=ports, nodes="\n".join(lines),
                          accounting=f"AccountingStorageType=accounting_storage/{kept}", forget=forget,
                          kill_wait=kill_wait)
        )  # fmt: skip
        (folder / "slurmdbd.conf").write_text(
            DATABASE.format(host=host, folder=folder, port=ports[1], user=getpass.getuser(), storage=ports[2])
        )
        (folder / "slurmdbd.conf").chmod(0o600)
        for name in ("state", "spool"):
            (folder / name).mkdir()
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o400)

    def up(self) -> None:
        """Start the daemons and wait until the node takes jobs."""
        place = self.folder
        files = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munged.pid", "log-file": "munged.log",
                 "seed-file": "munge.seed"}  # fmt: skip
        self._daemon("munged", "--force", *(f"--{key}={place / name}" for key, name in files.items()))
        if self._ports:
            self._start_accounting()
        self._daemon("slurmctld", "-c")
        for node in range(len(self.nodes)):
            self.start_node(node)
        deadline = time.monotonic() + 60
        while self.run("sinfo", "--noheader", "--Node", "--partition=main", "--format=%T", check=False).split() != [
            "idle"
        ] * len(self.nodes):
            if time.monotonic() > deadline:
                raise RuntimeError((place / "slurmctld.log").read_text()[-2000:])
            time.sleep(0.2)

    def _start_accounting(self) -> None:
        """MariaDB and slurmdbd, with this cluster in it."""
        data = self.folder / "database"
        made = ["mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={data}"]
        subprocess.run(made, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._database = subprocess.Popen(
            [_program("mariadbd") or "mariadbd", "--no-defaults", "--user=root", f"--datadir={data}",
             f"--socket={self.folder}/mariadb.socket", f"--port={self._ports[1]}", "--bind-address=127.0.0.1",
             "--skip-grant-tables"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        _wait_for_port(self._ports[1])
        self._daemon("slurmdbd")
        _wait_for_port(self._ports[0])
        self.run("sacctmgr", "--immediate", "add", "cluster", "onenode")

    def start_node(self, node: int = 0) -> None:
        """Start a node's daemon."""
        (self.folder / "spool" / self.nodes[node]).mkdir(exist_ok=True)
        self._daemon("slurmd", "-c", "-N", self.nodes[node])

    def kill_node(self, node: int = 0) -> None:
        """Kill a node's daemon, as a machine that dies; the processes of its jobs live on."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(int((self.folder / f"slurmd.{self.nodes[node]}.pid").read_text()), signal.SIGKILL)

    def down(self) -> None:
        """End the jobs and the daemons."""
        self.run("scancel", f"--user={os.getuid()}", check=False)
        deadline = time.monotonic() + 15
        while self.run("squeue", "--noheader", check=False).strip() and time.monotonic() < deadline:
            time.sleep(0.2)
        for name in (*(f"slurmd.{node}" for node in self.nodes), "slurmctld", "slurmdbd", "munged"):
            with contextlib.suppress(OSError, ValueError):
                number = int((self.folder / f"{name}.pid").read_text())
                os.kill(number, signal.SIGTERM)
                _wait_for_end(number)
        if self._database is not None:
            self._database.terminate()
            self._database.wait(timeout=60)

    def run(self, *command: str, check: bool = True) -> str:
        """What one of Slurm's programs prints."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise RuntimeError(f"{command}: {done.stderr}")
        return done.stdout

    def _daemon(self, name: str, *words: str) -> None:
        subprocess.run([_program(name) or name, *words], env=self.environment, check=True, timeout=60)


@contextlib.contextmanager
def one_node(
    cpus: int = 2, forget: int = 60, kill_wait: int = 5, nodes: int = 1, accounting: bool = False
) -> Iterator[Cluster]:
    """A cluster of one node, or of several with as many ``cpus`` each, within the block.

    Args:
        forget: seconds after which the controller forgets an ended job.
        kill_wait: seconds between SIGTERM and SIGKILL.
    """
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    folder.chmod(0o755)
    cluster = Cluster(folder, cpus=cpus, forget=forget, kill_wait=kill_wait, nodes=nodes, accounting=accounting)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()
        shutil.rmtree(folder, ignore_errors=True)


def _program(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]))


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _wait_for_port(port: int, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.3)


def _wait_for_end(number: int, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.kill(number, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)


def main(settings: Mapping[str, int]) -> int:
    """Bring a cluster up, say how to use it, and wait."""
    if reason := missing():
        print(reason, file=sys.stderr)
        return 2
    with one_node(**settings) as cluster:
        print(f"export SLURM_CONF={cluster.folder}/slurm.conf\n# up until Ctrl-C; logs in {cluster.folder}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main({"cpus": int(sys.argv[1])} if len(sys.argv) > 1 else {}))
