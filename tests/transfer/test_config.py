import re
from pathlib import Path

import pytest
import yaml

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer import config
from momentum_transfer.transfer.torchvision_engine.engine import TorchvisionEngine
from tests.config_headers import configs_of, header, spelling

ROOT = Path(__file__).parents[2]
PROTOCOLS = configs_of("transfer")
SMOKE = [path for path in configs_of("smoke") if "transfer.py" in header(path)]


@pytest.mark.parametrize("file", [*PROTOCOLS, *SMOKE], ids=lambda file: file.stem)
def test_every_config_is_one_that_the_torchvision_engine_runs(file):
    cfg = config.load(file)
    assert TorchvisionEngine().unsupported(cfg) is None
    assert cfg.PROTOCOL or "Paper: none" in header(file)
    assert max(cfg.SOLVER.STEPS, default=0) < cfg.SOLVER.MAX_ITER


@pytest.mark.parametrize("file", [*PROTOCOLS, *SMOKE], ids=lambda file: file.stem)
def test_every_header_names_its_own_command(file):
    assert header(file).count(f" --config {spelling(file)} --weights OUT.pkl") == 1


@pytest.mark.parametrize("file", PROTOCOLS, ids=lambda file: file.stem)
def test_expected_scores_in_headers_are_the_papers(file):
    text = header(file)
    cited = re.search(r"^# Paper: (.*) \(arXiv .*\), table (\d+)\. Expected (.*):$", text, re.M)
    if cited is None:
        assert "# Paper: none" in text
        return
    key = "momentum2" if cited[1].startswith("Momentum") else "rcf"
    reference = yaml.safe_load((ROOT / f"configs/reference/{key}_table_{int(cited[2]):02d}.yaml").read_text())
    protocol = config.load(file).PROTOCOL
    wanted = [tuple(what.split()) for what in cited[3].split(", ")]
    columns = [
        next(i for i, column in enumerate(reference["columns"])
             if (column.get("task"), column.get("metric"), column.get("protocol")) == (task, metric, protocol))
        for task, metric in wanted
    ]  # fmt: skip
    rows = {
        re.sub(r"\s+", " ", " ".join(cell for cell in row[:2] if isinstance(cell, str))): row
        for row in reference["rows"]
    }
    printed = re.findall(r"^#   (\S.*?)\s{2,}(.*)$", text, re.M)
    assert printed
    for label, numbers in printed:
        assert [str(rows[label][column]) for column in columns] == numbers.split(" / ")


@pytest.mark.parametrize(("stride", "dropout", "precise"), [(16, 0.0, True), (8, 0.1, False)])
def test_deeplab_drops_out_and_recomputes_statistics_as_each_protocol_has_it(stride, dropout, precise):
    cfg = config.load(ROOT / f"configs/transfer/deeplab_v3_stride{stride}.yaml")
    found = cfg.MODEL.SEM_SEG_HEAD.ASPP_DROPOUT, cfg.TEST.PRECISE_BN.ENABLED
    assert found == (dropout, precise)


def test_an_unknown_key_names_the_nearest():
    with pytest.raises(InputError, match=r"unknown config key MODEL.ROI_HEADS.NUM_CLASS .*nearest.*NUM_CLASSES"):
        config.load(None, ["MODEL.ROI_HEADS.NUM_CLASS", "3"])


def test_a_value_of_another_type_is_refused():
    with pytest.raises(InputError, match=r"SOLVER.MAX_ITER .* expects int"):
        config.load(None, ["SOLVER.MAX_ITER", "many"])


def test_a_key_that_is_not_used_here_is_refused_rather_than_ignored():
    with pytest.raises(InputError, match="KEYPOINT_ON"):
        config.load(None, ["MODEL.KEYPOINT_ON", "True"])
