"""The data benchmark runs from its command line and prints a rate for every recipe, part and path."""

import re

from tests.tools.in_process import run_tool


def test_every_row_has_a_rate():
    done = run_tool("benchmarks/data", "--images", 4, "--workers", 0, "--size", 32)
    rates = {
        match[1]: int(match[2]) for match in re.finditer(r"(?m)^(\w[\w, ]*?) {2,}(\d+)( {2,}[\d.]+)?$", done.stdout)
    }
    assert min(rates.values()) > 0
    recipes = {
        f"{name} 32 px, {backend}"
        for name in ("byol", "rcf", "mocov2", "eman_byol")
        for backend in ("pillow", "opencv")
    }
    assert recipes | {"digits 32 px, pillow"} <= set(rates)
    assert {"decoding alone", "decoding to canvases of 73 px"} <= set(rates)
    assert {f"{name} 32 px on {'cuda' if 'cuda' in done.stdout else 'cpu'}" for name in ("byol", "rcf")} <= set(rates)
