"""Every config: its header agrees with the paper's table, and it runs, on a miniature of its data set."""

import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.settings import load_config
from momentum_transfer.images.datasets import DATASETS, ArrayImages
from momentum_transfer.lowshot import inputs
from momentum_transfer.lowshot.augment import SMALL_SQUARES
from momentum_transfer.lowshot.config import EVALUATIONS, get_cfg
from momentum_transfer.lowshot.evaluations import ON_FEATURES, ON_IMAGES, percent
from momentum_transfer.lowshot.features.feature_set import FeatureSet
from tests.config_headers import configs_of, header, spelling

ROOT = Path(__file__).resolve().parents[2]
PAPERS = [path for path in configs_of("lowshot") if not path.name.startswith("own_")]
CONFIGS = [*PAPERS, *sorted((ROOT / "configs" / "smoke").glob("lowshot*_digits.yaml"))]
PAPERS_WITH_TABLES = [path for path in PAPERS if re.match(r"(eman|momentum2)_table", path.name)]


def command_of(path):
    named = re.search(r"tools/lowshot.py (\w+) --config (\S+)", header(path))
    assert named is not None
    assert named[2] == spelling(path)
    return named[1]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_header_names_paper_table_score_command_and_runtime(path):
    text = header(path)
    assert re.search(r"arXiv \d{4}\.\d{5}", text)
    assert re.search(r"(table|figure)s? \d|sections? \d", text)
    assert command_of(path) in (*ON_FEATURES, *ON_IMAGES)
    if path in PAPERS:
        assert "# Expected:" in text
        assert "# Runtime:" in text


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_views_that_no_paper_prints_are_stated_as_a_choice(path):
    trained = load_config(get_cfg(), path).DATASETS.NAME in SMALL_SQUARES and command_of(path) in ON_IMAGES
    assert trained == bool(re.search(r"# +View: .*The paper does not say; a choice\.", header(path)))


def reference(path):
    key, number = re.match(r"(eman|momentum2)_table(\d+)", path.name).groups()
    return yaml.safe_load((ROOT / "configs" / "reference" / f"{key}_table_{int(number):02d}.yaml").read_text())


@pytest.mark.parametrize("path", PAPERS_WITH_TABLES, ids=lambda path: path.stem)
def test_expected_scores_are_those_of_the_papers_table(path):
    expected = re.search(r"# Expected: (.*)", header(path))[1]
    numbers = [float(number) for number in re.findall(r"(?<![=.\d] )\b\d+\.\d+\b", expected.replace("m = 0.9", ""))]
    printed = {cell for row in reference(path)["rows"] for cell in row if isinstance(cell, float)}
    assert numbers
    assert set(numbers) <= printed


def miniature(cfg, split):
    """Three classes of 16 px images, 600 to train on: two a class are 1 %."""
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 200 if split == "TRAIN" else 2)
    pixels = generator.integers(0, 80, (len(labels), 16, 16, 3)) + 50 * labels[:, None, None, None]
    return ArrayImages(pixels.astype(np.uint8), labels, ["a", "b", "c"])


def features(cfg, seed):
    generator = np.random.default_rng(seed)
    labels = np.arange(120) % 3
    values = np.eye(3)[labels] @ np.random.default_rng(9).standard_normal((3, 8)) + generator.standard_normal((120, 8))
    if cfg.SVM.PRESET == "voc07":
        labels = np.eye(3, dtype=np.int64)[labels]
    return FeatureSet(values.astype(np.float32), labels, "miniature", "0" * 64)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_config_runs_on_a_miniature_and_records_what_the_table_asks_for(path, tmp_path, monkeypatch):
    command, title = command_of(path), load_config(get_cfg(), path).DATASETS.TITLE
    small = dict.fromkeys(("LINEAR.TRIALS", "FINETUNE.TRIALS", "FIXMATCH.TRIALS", "SVM.TRIALS", "FIXMATCH.STEPS"), 1)
    small |= dict.fromkeys(("LINEAR.BATCH_SIZE", "FINETUNE.BATCH_SIZE", "FIXMATCH.BATCH_SIZE", "MODEL.WIDTH"), 4)
    small |= dict.fromkeys(("LINEAR.WORKERS", "FINETUNE.WORKERS", "FIXMATCH.WORKERS"), 0)
    small |= dict.fromkeys(("LINEAR.EPOCHS", "FINETUNE.EPOCHS"), 0.01)
    small |= {"OUTPUT_DIR": tmp_path, "INPUT.IMAGE_SIZE": 16, "MODEL.ARCH": "resnet10", "MODEL.STEM": "small"}
    small |= {"SVM.SHOTS": "[1]", "KNN.PRESETS": "['eman']", "FIXMATCH.UNLABELLED_RATIO": 1}
    grouped = "/teacher_group=2"  # ShuffleBN in one process needs groups, and the protocol names them
    small |= {"FIXMATCH.TEACHER_GROUP": 2} if "shufflebn" in path.stem else {}
    cfg = load_config(get_cfg(), path, [str(word) for pair in small.items() for word in pair])
    assert cfg.DATASETS.NAME in (*DATASETS, "voc07")
    if command in ON_IMAGES:
        monkeypatch.setattr(inputs, "_open", miniature)
        units = list(ON_IMAGES[command](cfg, None, inputs.Images(cfg), lambda *_: True))
    else:
        units = list(ON_FEATURES[command](cfg, features(cfg, 1), features(cfg, 2), lambda *_: True))
    found = {(score.task, score.protocol.removesuffix(grouped), title) for unit in units for score in unit}
    assert found
    if path in PAPERS_WITH_TABLES:
        assert found <= cells(reference(path))


def cells(table):
    """(task, protocol, data set) of every result that the paper's table holds."""
    wanted = set()
    for row in table["rows"]:
        labels = {column["name"]: cell for column, cell in zip(table["columns"], row, strict=True)}
        for column in table["columns"]:
            if column["kind"] == "result" and "task" in column:
                wanted.add(tuple(str(column[key]).format_map(labels) for key in ("task", "protocol", "dataset")))
    return wanted


def test_defaults_are_the_papers():
    cfg = get_cfg()
    assert cfg.SVM.SHOTS == [1, 2, 4, 8, 16]
    assert [2.0**power for power in range(-5, 6)] == cfg.SVM.COSTS
    assert (cfg.SVM.TRIALS, cfg.RETRIEVAL.TOP) == (5, 1000)
    assert cfg.SVM.SELECT_C == "heldout"


def test_unknown_key_names_the_nearest():
    with pytest.raises(InputError, match=r"unknown config key SVM\.SHOT .*nearest known key is SVM\.SHOTS"):
        load_config(get_cfg(), None, ["SVM.SHOT", "[1]"])


def test_fraction_is_written_as_percent_and_left_out_when_whole():
    assert [percent(0.01), percent(0.1), percent(1.0), percent(0.005)] == ["/1%", "/10%", "", "/0.5%"]


def test_every_evaluation_has_its_name_in_the_tool():
    assert (*ON_FEATURES, *ON_IMAGES) == EVALUATIONS
