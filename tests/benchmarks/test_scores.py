import re

import pytest

from tests.tools.in_process import run_tool


@pytest.mark.parametrize(
    ("workload", "reference"),
    [
        ("boxes", "pycocotools"),
        pytest.param("masks", "pycocotools", marks=pytest.mark.slow),
        pytest.param("lvis", "lvis-api", marks=pytest.mark.slow),
    ],
)
def test_the_benchmark_finds_no_difference_from_the_reference(workload: str, reference: str):
    done = run_tool("benchmarks/scores", workload, "--images", 4)
    assert done.returncode == 0, done.stderr
    lines = [re.split(" {2,}", line) for line in done.stdout.splitlines()]
    rows = {cells[0].split(" ")[0]: cells for cells in lines if len(cells) == 8}  # a name, then its version
    assert rows[reference][-1] == rows["ours"][-1] == "0"
    assert float(rows[reference][5]) > 10  # MiB
