"""The comparison of teacher normalisations runs from its command line, and a second time from what is there."""

from tests.tools.in_process import run_tool

TINY = ["DATA.IMAGE_SIZE", "16", "MODEL.WIDTH", "4", "HEAD.HIDDEN", "16", "HEAD.OUTPUT", "8"]
TINY += ["DATA.SAMPLE_FRACTION", "0.1"]


def test_every_teacher_has_a_mean_and_a_spread(tmp_path):
    arguments = ["--batch", 8, "--seeds", 0, 1, "--images", 16, "--output", tmp_path, *TINY]
    runs = [run_tool("benchmarks/teacher_norms", *arguments) for _ in "ab"]
    for done in runs:
        assert done.returncode == 0, done.stderr
    rows = [line for line in runs[0].stdout.splitlines() if "±" in line]
    assert len(rows) == 5
    assert [line for line in runs[1].stdout.splitlines() if "±" in line] == rows
    assert len(list(tmp_path.glob("*/backbone.safetensors"))) == 10
