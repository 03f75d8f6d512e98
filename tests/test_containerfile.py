"""The Containerfile copies what is there and installs as the README says; test_wheel runs the same steps."""

import re
from pathlib import Path

from tests.tools.test_wheel import LINKED

ROOT = Path(__file__).resolve().parents[1]
STEPS = [line.split(maxsplit=1) for line in (ROOT / "Containerfile").read_text(encoding="utf-8").splitlines() if line]


def test_what_is_copied_is_there_and_is_what_a_wheel_is_built_of():
    copied = {name for word, rest in STEPS if word == "COPY" for name in rest.split()[:-1]}
    assert {"momentum_transfer", *LINKED, "pyproject.toml", "README.md", "LICENSE"} == copied
    assert not [name for name in copied if not (ROOT / name).exists()]


def test_what_is_run_is_what_the_readme_says():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    run = [rest for word, rest in STEPS if word == "RUN"]
    assert len(run) == 2
    assert not [command for command in run if command not in readme]
    version = re.search(r'__version__ = "(.+)"', (ROOT / "momentum_transfer/__init__.py").read_text(encoding="utf-8"))
    assert f"momentum_transfer-{version[1]}-py3-none-any.whl" in run[1]
