"""Shards of a suite: K of N processes that share its folder, and the scripts that start them on other schedulers.

``evaluate … --shard K/N`` is one process of an LSF array, of an indexed Job of Kubernetes, or of a machine reached by
ssh. All of them see the same folder, take tasks there (``local.py``) and wait for each other's.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from momentum_transfer.core.errors import InputError, shown
from momentum_transfer.suites.task import Job

#: Variables of array jobs: of the index, of how many there are, of the first index, else that index itself.
#: Kubernetes does not tell how many completions an indexed Job has; the manifest that is written here does.
_ARRAYS = (
    ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN", 1),
    ("LSB_JOBINDEX", "LSB_JOBINDEX_END", "", 1),
    ("JOB_COMPLETION_INDEX", "JOB_COMPLETIONS", "", 0),
)


@dataclass(frozen=True)
class Shard:
    """Shard ``number``, from 1, of ``count``."""

    number: int
    count: int

    def first(self, jobs: int) -> int:
        """The index of the job that it begins with."""
        return (self.number - 1) * jobs // self.count


def read_shard(text: str, environment: Mapping[str, str]) -> Shard:
    """``K/N``, or by the variables of an array job where the text is empty; InputError if K is not of 1 to N."""
    if not text:
        text = _of_array(environment)
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise InputError(f"expected --shard K/N with K from 1 to N, found {shown(text)}; the first of three is 1/3")
    return Shard(int(found[1]), int(found[2]))


def _of_array(environment: Mapping[str, str]) -> str:
    for index, count, first, otherwise in _ARRAYS:
        if index in environment:
            values = environment[index], environment.get(count, ""), environment.get(first, str(otherwise))
            if not all(value.isascii() and value.isdecimal() for value in values):
                raise InputError(f"expected numbers in {index} and {count}, found {values[0]!r} and {values[1]!r}; "
                                 "give --shard K/N")  # fmt: skip
            return f"{int(values[0]) - int(values[2]) + 1}/{values[1]}"
    listed = " or ".join(f"{index} with {count}" for index, count, _, _ in _ARRAYS)
    raise InputError(f"expected --shard K/N, or {listed} in the environment, found none; give --shard K/N")


#: What --export takes -> the file's suffix, and how it is started.
KINDS = {
    "commands": (".sh", "a line is a shard: give each to a machine (ssh), or to an array job (LSF)"),
    "k8s": (".yaml", "set image and volume, then kubectl apply -f"),
    "slurm": (".sbatch", "sbatch, from a machine of the cluster"),
}


def export(kind: str, command: str, place: Path, jobs: Sequence[Job], gpus: int, count: int) -> str:
    """The script or manifest that runs a plan in ``count`` shards, each with what its largest task needs.

    Args:
        kind: one of ``KINDS``.
        command: of evaluate, as typed in the folder ``place``.
        gpus: of a node, for tasks that are distributed; others take one.
    """
    cpus = max(job.task.cpus for job in jobs)
    minutes, gpus = max(job.task.minutes for job in jobs), max(job.gpus(gpus) for job in jobs)
    begin = f"cd {shlex.quote(str(place))} && exec {command} --shard"
    if kind == "commands":
        return "".join(f"({begin} {number}/{count})\n" for number in range(1, count + 1))
    if kind == "slurm":
        options = [f"array=1-{count}", f"cpus-per-task={cpus}", f"time={minutes}", "requeue", "signal=B:TERM@120"]
        options += [f"gpus-per-node={gpus}"] if gpus else []
        return "#!/bin/sh\n" + "".join(f"#SBATCH --{option}\n" for option in options) + begin + "\n"
    needs = {"cpu": cpus, **({"nvidia.com/gpu": gpus} if gpus else {})}
    return _K8S.format(count=count, script=json.dumps(begin), needs=json.dumps(needs), place=json.dumps(str(place)))


#: A shard that fails has told why and repeats nothing; one whose node goes away is started again.
_K8S = """\
apiVersion: batch/v1
kind: Job
metadata: {{name: momentum-transfer}}
spec:
  completionMode: Indexed
  completions: {count}
  parallelism: {count}
  backoffLimitPerIndex: 5
  podFailurePolicy:
    rules:
      - {{action: Ignore, onPodConditions: [{{type: DisruptionTarget}}]}}
      - {{action: FailIndex, onExitCodes: {{operator: In, values: [1, 2]}}}}
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 150
      containers:
        - name: shard
          image: momentum-transfer
          command: [sh, -c, {script}]
          env: [{{name: JOB_COMPLETIONS, value: "{count}"}}]
          resources: {{requests: {needs}, limits: {needs}}}
          volumeMounts: [{{name: work, mountPath: {place}}}, {{name: memory, mountPath: /dev/shm}}]
      volumes:
        - {{name: work, persistentVolumeClaim: {{claimName: momentum-transfer}}}}
        - {{name: memory, emptyDir: {{medium: Memory}}}}
"""
