"""docs/protocols.md covers every results table and figure, and names only configs that load."""

import re
from fnmatch import fnmatch
from pathlib import Path

from momentum_transfer.core.settings import load_config
from momentum_transfer.core.shipped import shipped_configs
from momentum_transfer.lowshot import config as lowshot
from momentum_transfer.pretrain.config import get_cfg, norms_of_own_batch
from momentum_transfer.pretrain.methods.momentum2 import Momentum2Teacher
from momentum_transfer.report.reference import load_tables
from momentum_transfer.suites.suite import load_suite
from momentum_transfer.transfer import config as transfer
from tests.config_headers import configs_of

ROOT = Path(__file__).resolve().parents[1]
PAPERS = {"momentum2": "Momentum²", "eman": "EMAN", "rcf": "RCF"}
#: Tool -> defaults of its configs; what names the place of its results in a plot.
DEFAULTS = {"tools/lowshot.py": lowshot.get_cfg, "tools/transfer.py": transfer.get_cfg}
MEASURED_AT = {"tools/lowshot.py": lambda cfg: cfg.DATASETS.TITLE, "tools/transfer.py": lambda cfg: cfg.PROTOCOL}
#: Figures with results.
FIGURES = {"momentum2": {3}, "eman": {3}, "rcf": {2, 3, 4, 5, 6, 7, 8}}


def sections() -> dict[str, str]:
    text = (ROOT / "docs" / "protocols.md").read_text(encoding="utf-8")
    parts = re.split(r"^## ", text, flags=re.M)[1:]
    return {key: next(part for part in parts if part.startswith(name)) for key, name in PAPERS.items()}


def named(kind: str, section: str) -> set[int]:
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| ")]
    return {int(number) for row in rows for number in re.findall(rf"\b{kind} (\d+)", row)}


def test_every_transcribed_table_and_every_figure_has_a_row():
    tables = {key: {table.number for table in load_tables() if table.paper == key} for key in PAPERS}
    pages = sections()
    assert sum(map(len, tables.values())) == 27
    assert {key: named("table", pages[key]) for key in PAPERS} == tables
    assert {key: named("figure", pages[key]) for key in PAPERS} == FIGURES


def test_every_row_names_what_runs_it_and_all_of_it_exists():
    shipped = set(shipped_configs())
    for section in sections().values():
        rows = [line for line in section.splitlines() if line.startswith("| ") and not line.startswith("| what")]
        for row in rows:
            files = re.findall(r"`((?:configs|tools)/[\w./-]+\.(?:yaml|py))`", row)
            names = re.findall(r"`((?:pretrain|lowshot|transfer)/[\w.]+)`", row)
            assert files or names, row
            assert set(names) <= shipped, row
            assert not [file for file in files if not (ROOT / file).is_file()], row
            for suite in (file for file in files if file.startswith("configs/suites/")):
                assert load_suite(ROOT / suite).tasks


def test_the_list_of_images_per_bn_is_that_of_the_configs():
    part = (ROOT / "docs" / "protocols.md").read_text(encoding="utf-8").split("## Images per BN")[1].split("## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:4]] for line in part.splitlines() if line.startswith("| `")]
    patterns = [(pattern, gpus, group) for names, gpus, group in rows for pattern in re.findall(r"`([^`]+)`", names)]
    met = set()
    for path in configs_of("pretrain"):
        pattern, gpus, group = next(row for row in patterns if fnmatch(path.stem, row[0]))
        met.add(pattern)
        cfg = load_config(get_cfg(), path)
        assert bool(norms_of_own_batch(cfg)) == group.isdigit() or path.stem.endswith("syncbn_teacher_syncbn")
        if group.isdigit():
            assert int(group) == cfg.NORM.GROUP_SIZE, path.stem
            images = re.search(r"\d+ x (\d+)", gpus)
            assert images is None or images[1] == group
    assert met == {pattern for pattern, _, _ in patterns}


def test_every_row_of_momentum2s_tables_is_the_teachers():
    """3.4: "we dump the model from teacher", on the baseline that is BYOL."""
    for number in (1, 2, 4, 6, 7):
        suite = load_suite(ROOT / "configs" / "suites" / f"momentum2_table{number}.yaml")
        for run in suite.sweep.runs():
            words = run.command
            cfg = load_config(get_cfg(), words[2], words[words.index("--resume") + 1 :])
            assert cfg.METHOD.NAME == "momentum2", (number, run.name)
            assert cfg.SOLVER.ACCUMULATE == 1
    assert Momentum2Teacher.network_default == "teacher"


def test_a_plot_names_data_sets_and_protocols_that_its_suite_measures():
    named = 0
    for file in sorted((ROOT / "configs" / "suites").glob("*.yaml")):
        suite = load_suite(file)
        known = set()
        for tool, *words in (task.command.split() for task in suite.tasks):
            configs = [word for word in words if word.startswith("configs/")] if tool in DEFAULTS else []
            known |= {MEASURED_AT[tool](load_config(DEFAULTS[tool](), config)) for config in configs}
        for measure in (measure for plot in suite.plots for measure in (plot.x, plot.y) if "@" in measure):
            assert measure.partition("@")[2].strip() in known, (file.name, measure)
            named += 1
    assert named
