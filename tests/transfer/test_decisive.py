"""One table says what a setting decides: identity, the claim of a folder and resumption follow it."""

import pytest
import torch

from momentum_transfer.backbones.resnet import Architecture, build_backbone
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.settings import keys_of, value_of
from momentum_transfer.report.differences import Comparisons
from momentum_transfer.report.inputs import read_records
from momentum_transfer.report.page import build
from momentum_transfer.transfer.config import get_cfg
from momentum_transfer.transfer.decisive import DECIDES, NOTHING, SCORES, TRAINING, decides, identity
from momentum_transfer.transfer.run import Request, run
from momentum_transfer.verdicts.comparison import NOT_COMPARED
from tests.transfer.torchvision_engine.tiny import shapes_config

SHORT = ["SOLVER.MAX_ITER", "2", "SOLVER.STEPS", "()", "ENGINE", "torchvision", "PROTOCOL", "tiny", "TEST.VISUALS", "0"]


def test_two_backbones_given_by_model_weights_are_compared(tmp_path):
    files = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        file = tmp_path / f"backbone_{seed}.pth"
        torch.save(build_backbone(Architecture("resnet10", 32)).state_dict(), file)
        out = tmp_path / f"run_{seed}"
        cfg = shapes_config("retinanet", tmp_path, *SHORT, "MODEL.WEIGHTS", str(file), "OUTPUT_DIR", str(out))
        run(cfg, Request(cfg.MODEL.WEIGHTS))
        files.append(out / "results.jsonl")
    report = build(read_records(files)[0], resamples=10)
    assert report.results.unlike == {}
    words = Comparisons(report.results, 10).words("backbone_1", "backbone_0")
    assert words
    assert NOT_COMPARED not in words.values()


def test_the_table_names_settings_only_and_all_of_them_decide_something_known():
    keys = set(keys_of(get_cfg()))
    for name in DECIDES:
        assert name in keys or any(key.startswith(f"{name}.") for key in keys), name
    assert {decides(key) for key in keys} == {NOTHING, SCORES, TRAINING}


@pytest.mark.parametrize("key", sorted(keys_of(get_cfg())))
def test_identity_follows_the_table_for_every_setting(key):
    before, after = get_cfg(), get_cfg()
    section, _, name = key.rpartition(".")
    value = value_of(before, key)
    other = (["another"] if isinstance(value, (list, tuple)) else not value if isinstance(value, bool)
             else f"{value}x" if isinstance(value, str) else value + 1)  # fmt: skip
    (value_of(after, section) if section else after)[name] = type(value)(other)
    assert (identity(before) != identity(after)) == (decides(key) != NOTHING)
    assert (identity(before, evaluation=False) != identity(after, evaluation=False)) == (decides(key) == TRAINING)


def test_what_decides_nothing_or_scores_may_change_at_a_resumption_and_the_rest_may_not(tmp_path):
    cfg = shapes_config("retinanet", tmp_path, *SHORT)
    run(cfg, Request("none"))
    out = tmp_path / "out"
    (out / "model_final.pth").unlink()
    (out / "results.jsonl").unlink()
    free = ["MODEL.WEIGHTS", "elsewhere.pth", "TEST.DETECTIONS_PER_IMAGE", "7", "DATALOADER.NUM_WORKERS", "1"]
    (out / "training.json").unlink()
    run(shapes_config("retinanet", tmp_path, *SHORT, *free), Request("none", resume=True))
    assert (out / "model_final.pth").is_file()
    (out / "model_final.pth").unlink()
    (out / "training.json").unlink()
    other = shapes_config("retinanet", tmp_path, *SHORT, "SOLVER.BASE_LR", "0.5")
    with pytest.raises(InputError, match=r"cannot resume .*: SOLVER.BASE_LR was 0\.\d+ and is 0\.5"):
        run(other, Request("none", resume=True))
