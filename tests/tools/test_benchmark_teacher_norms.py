"""The comparison of teacher normalisations runs from its command line, and a second time from what is there."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TINY = ["DATA.IMAGE_SIZE", "16", "MODEL.WIDTH", "4", "HEAD.HIDDEN", "16", "HEAD.OUTPUT", "8"]


def test_every_teacher_has_a_mean_and_a_spread(tmp_path):
    command = [sys.executable, "tools/benchmark.py", "teacher_norms", "--batch", "8", "--seeds", "0", "1"]
    command += ["--images", "16", "--output", str(tmp_path), *TINY]
    runs = [subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False) for _ in "ab"]
    for done in runs:
        assert done.returncode == 0, done.stderr
    rows = [line for line in runs[0].stdout.splitlines() if "±" in line]
    assert len(rows) == 5
    assert [line for line in runs[1].stdout.splitlines() if "±" in line] == rows
    assert len(list(tmp_path.glob("*/backbone.safetensors"))) == 10
