"""Stand-ins for Slurm's programs: what the runner says to them, and the whole path without a cluster."""

from pathlib import Path

#: Takes a job as Slurm does: copies the script, answers with a number, and runs it once what it depends on ended well.
SBATCH = """#!/bin/sh
cd "$(dirname "$0")"
number=$(( $(ls *.sh 2>/dev/null | wc -l) + 101 ))
cp "$1" "$number.sh"
last=$(sed -n 's/^#SBATCH --array=[^0-9]*0-\\([0-9]*\\).*/\\1/p' "$number.sh")
run() {
  id=$1 index=$2
  kind=
  for word in $(sed -n 's/^#SBATCH --dependency=//p' "$number.sh" | tr ',:' '  '); do
    case $word in after*) kind=$word; continue ;; esac
    other=$word; [ $kind = aftercorr ] && other=${word}_$index
    while grep -qE 'PENDING|RUNNING' "$other.state"; do sleep 0.05; done
    grep -q COMPLETED "$other.state" || { echo "PENDING|DependencyNeverSatisfied" > "$id.state"; exit; }
  done
  echo "RUNNING|None" > "$id.state"
  export SLURM_JOB_ID=$number$index SLURM_NTASKS=1 SLURM_JOB_NUM_NODES=1 SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0
  [ -n "$index" ] && export SLURM_ARRAY_JOB_ID=$number SLURM_ARRAY_TASK_ID=$index
  bin=$PWD
  cd "$(sed -n 's/^#SBATCH --chdir=//p' "$number.sh")"
  if sh "$bin/$number.sh" >&2; then echo "COMPLETED|None"; else echo "FAILED|NonZeroExitCode"; fi > "$bin/$id.new"
  mv "$bin/$id.new" "$bin/$id.state"
}
if [ -n "$last" ]; then
  for index in $(seq 0 "$last"); do echo "PENDING|None" > "${number}_$index.state"; done
  ( for index in $(seq 0 "$last"); do ( run "${number}_$index" "$index" ); done ) < /dev/null > "$number.out" 2>&1 &
else
  echo "PENDING|None" > "$number.state"
  ( run "$number" "" ) < /dev/null > "$number.out" 2>&1 &
fi
echo "Submitted batch job $number"
"""

SRUN = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do
  case $1 in --output|--error) shift 2 ;; *) shift ;; esac
done
exec "$@"
"""

SQUEUE = """#!/bin/sh
cd "$(dirname "$0")"
for state in *.state; do [ -e "$state" ] && echo "${state%.state}|$(cat "$state")"; done
exit 0
"""

SINFO = """#!/bin/sh
echo '4|gpu:a100:2(S:0-1)'
echo '6|(null)'
"""

SCONTROL = """#!/bin/sh
echo 'MaxArraySize            = 3'
"""

SCANCEL = """#!/bin/sh
cd "$(dirname "$0")"
for number; do echo 'CANCELLED|None' > "$number.state"; done
"""


def make_stand_ins(folder: Path) -> Path:
    """Write the programs into a new folder, for the front of PATH; ``NUMBER.sh`` in it are the submitted scripts."""
    folder.mkdir()
    programs = {"sbatch": SBATCH, "srun": SRUN, "squeue": SQUEUE, "sinfo": SINFO, "scontrol": SCONTROL}
    for name, text in {**programs, "scancel": SCANCEL, "sacct": "#!/bin/sh\nexit 1\n"}.items():
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    return folder
