"""The wheel, installed into an empty environment and used in an empty folder, far from the checkout."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from momentum_transfer.core.records import make_record

ROOT = Path(__file__).resolve().parents[2]
LINKED = ("pretrain", "transfer", "lowshot", "tools", "configs")
TOOLS = ("pretrain", "convert", "compare", "transfer", "lowshot", "score", "evaluate", "report",
         "quickstart", "demo")  # fmt: skip

#: Loads the configs that its arguments name, a line each.
LOAD = """
import sys
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.settings import load_config
from momentum_transfer.pretrain.config import get_cfg
for name in sys.argv[1:]:
    try:
        cfg = load_config(get_cfg(), name)
        print(cfg.METHOD.NAME, cfg.SOLVER.STEPS, cfg.MODEL.ARCH)
    except InputError as error:
        print(error)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built offline from a copy of the sources, by the setuptools that is there."""
    pytest.importorskip(
        "setuptools", minversion="70.1", reason="building a wheel needs setuptools 70.1: the extra test"
    )
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for room in ("momentum_transfer", *LINKED):
        shutil.copytree(ROOT / room, source / room, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(out)!r})"
    built = subprocess.run([sys.executable, "-c", build], cwd=source, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr[-2000:]
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the environment's programs. A .pth lends it this Python's packages, but not the project."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    for other in LINKED:  # as careless packages leave them there
        (site / other).mkdir()
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-index", "--no-deps", "-q", str(wheel)]
    subprocess.run(pip, capture_output=True, check=True)
    return python.parent


class Shell:
    """Runs commands of the environment in an empty folder."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.programs, self.folder = programs, folder

    def __call__(self, *words: str, code: int = 0, program: str = "momentum-transfer") -> str:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        command = [str(self.programs / program), *words]
        ran = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert ran.returncode == code, ran.stdout + ran.stderr
        assert "Traceback" not in ran.stderr
        return ran.stdout + ran.stderr


@pytest.fixture
def run(installed: Path, tmp_path: Path) -> Shell:
    return Shell(installed, tmp_path)


def test_the_wheel_holds_every_room_config_and_tool_and_no_top_level_tools(wheel: Path):
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.split("/")[0] for name in names if not name.split("/")[0].endswith(".dist-info")}
    assert tops == {"momentum_transfer"}
    for room in ("momentum_transfer", *LINKED):
        inside = f"momentum_transfer/{room}" if room in LINKED else room
        kept = [p.relative_to(ROOT / room).as_posix() for kind in ("*.py", "*.yaml", "*.j2", "*.css", "py.typed")
                for p in (ROOT / room).rglob(kind) if p.suffix != ".yaml" or room == "configs"]  # fmt: skip
        assert kept
        assert not [name for name in kept if f"{inside}/{name}" not in names]


def test_help_lists_every_command_with_a_line_and_each_has_its_own(run: Shell):
    listed = {line.split()[0]: line.split()[1:] for line in run("--help").splitlines() if line.startswith("  ")}
    assert set(TOOLS) <= set(listed)
    assert all(len(words) >= 3 for words in listed.values())
    for name in ("pretrain", "transfer", "score", "evaluate"):
        said = run(name, "--help")
        assert f"usage: momentum-transfer {name}" in said
        assert "python tools/" not in said
    assert "did you mean score?" in run("scores", code=2)
    assert "smoke/momentum2_digits" in run("--configs", "smoke").split()
    assert not list(run.folder.iterdir())


def test_configs_are_found_by_name_and_by_path_and_unknown_ones_get_their_neighbours(run: Shell):
    (run.folder / "mine.yaml").write_text("_BASE_: smoke/momentum2_digits\nSOLVER: {STEPS: 7}\n", encoding="utf-8")

    def loaded(*names: str) -> list[str]:
        return run("-c", LOAD, *names, program="python").splitlines()

    shipped, mine = "momentum2 1000 resnet10", "momentum2 7 resnet10"
    assert loaded("smoke/momentum2_digits", "configs/smoke/momentum2_digits.yaml") == [shipped, shipped]
    assert loaded("mine.yaml", "mine", str(run.folder / "mine.yaml")) == [mine] * 3
    near_mine, near_shipped = loaded("mine2.yaml", "smoke/momentum_digits")
    assert near_mine.startswith("config file not found: mine2.yaml; the nearest names are mine.yaml")
    assert near_shipped.startswith(
        "config file not found: smoke/momentum_digits; the nearest names are smoke/momentum2"
    )


@pytest.mark.slow
def test_suites_are_planned_with_commands_that_can_be_typed(run: Shell):
    said = run("evaluate", "--weights", "pixels", "--suite", "configs/suites/smoke.yaml", "--dry-run")
    assert "$ momentum-transfer lowshot knn --config configs/smoke/lowshot_digits.yaml --weights pixels" in said
    assert "momentum-transfer pretrain --config" in run("quickstart", "--dry-run")


def test_a_score_and_a_report_with_reference_tables_need_no_checkout(run: Shell):
    box = {"image_id": 1, "category_id": 1, "bbox": [1, 1, 6, 6]}
    truth = {"images": [{"id": 1, "height": 9, "width": 9}], "categories": [{"id": 1, "name": "cat"}],
             "annotations": [{"id": 1, "area": 36, "iscrowd": 0, **box}]}  # fmt: skip
    for name, content in (("gt.json", truth), ("found.json", [{**box, "score": 0.9}])):
        (run.folder / name).write_text(json.dumps(content), encoding="utf-8")
    assert "100.00" in run("score", "coco", "gt.json", "found.json", "--results", "results.jsonl")
    lines = [json.loads(line) for line in (run.folder / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    assert lines[0]["command"] == "momentum-transfer score coco gt.json found.json --results results.jsonl"
    knn = make_record("knn/k=20", "top1", 61.2, checkpoint={"name": "mine", "sha256": "0" * 64}, protocol="eman",
                      dataset="imagenet val")  # fmt: skip
    with open(run.folder / "results.jsonl", "a", encoding="utf-8") as stream:
        stream.write(json.dumps(knn) + "\n")
    run("report", "results.jsonl", "--out", "page.html")
    page = (run.folder / "page.html").read_text(encoding="utf-8")
    assert "EMAN table 4" in page  # a published row beside ours


@pytest.mark.slow
def test_the_demo_gives_a_number_and_a_page(run: Shell):
    said = run("demo", "--steps", "40")
    assert "points from random" in said
    assert (run.folder / "outputs/demo/report.html").is_file()


@pytest.mark.slow
def test_a_suite_runs_its_commands_from_the_wheel(run: Shell):
    run("pretrain", "--config", "smoke/random_digits", "OUTPUT_DIR", "random", "RUN.CALIBRATION_BATCHES", "2")
    run("convert", "random", "random.pkl")
    said = run("evaluate", "--weights", "random", "pixels", "--suite", "smoke", "--output", "out")
    assert said.count(": done in") == 4
    tasks = {json.loads(line)["task"] for line in (run.folder / "out/results.jsonl").read_text("utf-8").splitlines()}
    assert {"knn/k=20", "svm/k=1"} <= tasks
    assert (run.folder / "out/report.html").is_file()
