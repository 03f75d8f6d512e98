"""Tools answer --help without what takes seconds to import, and score needs none of it at all."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

from momentum_transfer.backbones import norm_rescale

ROOT = Path(__file__).resolve().parents[2]

LIGHT = """
import importlib, sys, time
slow = {"torch", "torchvision", "scipy", "sklearn", "matplotlib", "pandas"}
began = time.process_time()
for name in sys.argv[1].split(","):
    parser = importlib.import_module(f"momentum_transfer.tools.{name}").parser()
    assert len(parser.format_help()) > 100, name
    assert not slow & set(sys.modules), (name, slow & set(sys.modules))
import benchmarks.gpu
assert not slow & set(sys.modules), ("benchmark gpu", slow & set(sys.modules))
from momentum_transfer.core.command import run_tool
import momentum_transfer.tools.score
code = run_tool(momentum_transfer.tools.score.parser(), momentum_transfer.tools.score.main, sys.argv[2:])
assert not slow & set(sys.modules), slow & set(sys.modules)
taken = time.process_time() - began  # of all of them; of this process's own time
import momentum_transfer.core.loggers, momentum_transfer.report.page
assert "torch" not in sys.modules  # a suite of thousands of tasks is planned and shown without
sys.exit(code or taken > 2.0)
"""


def test_no_help_and_no_score_of_detections_imports_torch(tmp_path: Path):
    box = {"image_id": 1, "category_id": 1, "bbox": [1, 1, 6, 6]}
    truth = {"images": [{"id": 1, "height": 9, "width": 9}], "categories": [{"id": 1, "name": "cat"}],
             "annotations": [{"id": 1, "area": 36, "iscrowd": 0, **box}]}  # fmt: skip
    for name, content in (("gt.json", truth), ("found.json", [{**box, "score": 0.9}])):
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    names = [path.stem for path in sorted((ROOT / "tools").glob("*.py")) if "def parser()" in path.read_text("utf-8")]
    assert {"pretrain", "convert", "compare", "transfer", "lowshot", "score", "evaluate", "report", "verdict"} <= set(
        names
    )
    words = ["coco", str(tmp_path / "gt.json"), str(tmp_path / "found.json")]
    ran = subprocess.run([sys.executable, "-c", LIGHT, ",".join(names), *words], cwd=ROOT, capture_output=True,
                         text=True, check=False)  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "records appended" in ran.stdout


FIRST_LINE = """
import importlib, sys
class Said(Exception): pass
def say(text): raise Said
for line in sys.argv[1].splitlines():
    name, *words = line.split()
    tool = importlib.import_module(f"momentum_transfer.tools.{name}")
    tool.say = say
    try:
        tool.main(tool.parser().parse_args(words))
    except Said:
        pass
    else:
        sys.exit(f"{name} says nothing")
    assert "torch" not in sys.modules, name
"""

TYPED = """compare A B --images DIR
convert A B.pkl
export --detector A --format onnx --out B.onnx
lowshot knn --config smoke/lowshot_digits --weights A
predict --detector A DIR --out B
pretrain --config smoke/momentum2_digits
publish A.jsonl --weights B --out DIR
report A.jsonl
transfer --config smoke/mask_rcnn_digits --weights A"""


def test_the_first_line_comes_before_torch_is_imported():
    ran = subprocess.run([sys.executable, "-c", FIRST_LINE, TYPED], cwd=ROOT, capture_output=True, text=True,
                         check=False)  # fmt: skip
    assert ran.returncode == 0, ran.stderr


def test_convert_offers_the_scopes_that_there_are():
    convert = importlib.import_module("momentum_transfer.tools.convert")
    assert convert.SCOPES == norm_rescale.SCOPES
    assert convert.DEFAULT_SCOPE == norm_rescale.DEFAULT_SCOPE


def test_every_tool_has_its_line_in_the_commands_help():
    cli = importlib.import_module("momentum_transfer.tools.cli")
    tools = {path.stem for path in (ROOT / "tools").glob("*.py")} - {"__init__", "cli", "setup_env"}
    assert tools == set(cli.TOOLS)
    assert all(f"  {name} " in cli.usage() for name in tools)


def test_a_list_whose_reader_leaves_ends_without_a_traceback():
    lines = f"{sys.executable} -m momentum_transfer.tools.cli --settings"
    ran = subprocess.run(["bash", "-o", "pipefail", "-c", f"{lines} | true"], cwd=ROOT, capture_output=True, text=True,
                         check=False)  # fmt: skip
    assert ran.returncode in (0, 141)
    assert ran.stderr == ""
