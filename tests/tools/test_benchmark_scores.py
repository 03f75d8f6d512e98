import pytest

from tests.tools.in_process import run_tool


@pytest.mark.parametrize(
    ("workload", "reference"), [("boxes", "pycocotools"), ("masks", "pycocotools"), ("lvis", "lvis-api")]
)
def test_the_benchmark_finds_no_difference_from_the_reference(workload: str, reference: str):
    done = run_tool("benchmark", "scores", workload, "--images", 4)
    assert done.returncode == 0, done.stderr
    rows = {cells[0]: cells for line in done.stdout.splitlines() if len(cells := line.strip("│ ").split(" │ ")) == 7}
    rows = {name.strip(): [cell.strip() for cell in cells] for name, cells in rows.items()}
    assert rows[reference][-1] == rows["ours"][-1] == "0"
    assert float(rows[reference][4]) > 10  # MiB
