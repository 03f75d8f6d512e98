import re
from pathlib import Path

import pytest

from lowshot import knn, presets, svm
from lowshot.config import get_cfg
from lowshot.image_evaluations import ON_IMAGES, percent
from pretrain.config import load_config
from pretrain.errors import InputError
from pretrain.images import DATASETS

ROOT = Path(__file__).resolve().parents[2]
SMOKE = ROOT / "configs" / "smoke" / "lowshot_digits.yaml"
CONFIGS = [*sorted((ROOT / "configs" / "lowshot").glob("*.yaml")), SMOKE]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_config_loads_and_names_what_exists(path):
    cfg = load_config(get_cfg(), path)
    assert cfg.DATASETS.NAME in (*DATASETS, "voc07")
    assert cfg.LINEAR.PRESET in presets.LINEAR
    assert cfg.FINETUNE.PRESET in presets.FINETUNE
    assert cfg.FIXMATCH.PRESET in presets.FIXMATCH
    assert cfg.FIXMATCH.SCHEDULE in presets.FIXMATCH_SCHEDULES
    assert all(knn.preset(name).k for name in cfg.KNN.PRESETS)
    svm.LowShot(cfg.SVM.PROTOCOL, tuple(cfg.SVM.SHOTS), cfg.SVM.DRAWS, tuple(cfg.SVM.COSTS), cfg.SVM.SELECT_C)


@pytest.mark.parametrize("path", [path for path in CONFIGS if "base_" not in path.name], ids=lambda path: path.stem)
def test_config_begins_with_paper_score_command_and_state(path):
    header = [line for line in path.read_text().splitlines() if line.startswith("#")]
    text = "\n".join(header)
    assert "arXiv" in text or "RCF" in text
    command = re.search(r"tools/lowshot.py (\w+) --config (\S+)", text)
    assert command is not None
    assert command.group(2) == path.relative_to(ROOT).as_posix()
    if path.parent.name == "lowshot":
        assert "# Expected:" in text
        assert "# Runtime:" in text


def test_defaults_are_the_papers():
    cfg = get_cfg()
    assert cfg.SVM.SHOTS == [1, 2, 4, 8, 16]
    assert [2.0**power for power in range(-5, 6)] == cfg.SVM.COSTS
    assert (cfg.SVM.DRAWS, cfg.RETRIEVAL.TOP) == (5, 1000)
    assert cfg.SVM.SELECT_C == "heldout"


def test_unknown_key_names_the_nearest():
    with pytest.raises(InputError, match=r"unknown config key SVM\.SHOT .*nearest known key is SVM\.SHOTS"):
        load_config(get_cfg(), None, ["SVM.SHOT", "[1]"])


def test_fraction_is_written_as_percent_and_left_out_when_whole():
    assert [percent(0.01), percent(0.1), percent(1.0), percent(0.005)] == ["/1%", "/10%", "", "/0.5%"]
    assert set(ON_IMAGES) == {"linear", "finetune", "fixmatch"}
