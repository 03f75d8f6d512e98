"""A run's folder belongs to one training: other weights, seeds or settings are refused before any compute."""

import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer import config
from momentum_transfer.transfer import run as run_module
from momentum_transfer.transfer.config import identity
from momentum_transfer.transfer.run import Request, _claim, run

#: What a training of either engine leaves as soon as there is something to go on with.
CHECKPOINTS = ["checkpoints/step_0000002.pth", "last_checkpoint", "model_final.pth"]


def write_checkpoint(folder, name="checkpoints/step_0000002.pth"):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).touch()


def settings(*overrides: str):
    return config.load("configs/smoke/mask_rcnn_digits.yaml", list(overrides))


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch):
    from pathlib import Path

    monkeypatch.chdir(Path(__file__).resolve().parents[2])


@pytest.mark.parametrize(
    ("key", "weights", "seed", "overrides"),
    [
        ("initial weights", "b" * 64, 0, ()),
        ("seed", "a" * 64, 1, ()),
        ("training settings", "a" * 64, 0, ("SOLVER.BASE_LR", "0.5")),
    ],
)
def test_resuming_with_something_else_is_refused_and_named(tmp_path, key, weights, seed, overrides):
    _claim(tmp_path, settings(), "a" * 64, 0, resume=False)
    write_checkpoint(tmp_path)
    with pytest.raises(InputError, match=f"cannot resume .* began with {key}"):
        _claim(tmp_path, settings(*overrides), weights, seed, resume=True)


def test_the_same_training_goes_on_and_may_be_evaluated_otherwise(tmp_path):
    _claim(tmp_path, settings(), "a" * 64, 0, resume=False)
    write_checkpoint(tmp_path)
    _claim(tmp_path, settings("TEST.DETECTIONS_PER_IMAGE", "7", "OUTPUT_DIR", "elsewhere"), "a" * 64, 0, resume=True)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_second_training_does_not_begin_by_itself(tmp_path, name):
    _claim(tmp_path, settings(), "a" * 64, 0, resume=False)
    write_checkpoint(tmp_path, name)
    with pytest.raises(InputError, match="holds a training already; go on with --resume"):
        _claim(tmp_path, settings(), "a" * 64, 0, resume=False)


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_folder_with_checkpoints_of_a_pretraining_or_of_detectron2_is_left_as_it_is(tmp_path, name, resume):
    write_checkpoint(tmp_path, name)
    with pytest.raises(InputError, match=r"of another program, without training\.json; choose another OUTPUT_DIR"):
        _claim(tmp_path, settings(), "a" * 64, 0, resume=resume)
    with pytest.raises(InputError, match="holds checkpoints of another program"):
        run(settings("OUTPUT_DIR", str(tmp_path), "ENGINE", "torchvision"), Request("none", resume=resume))
    assert not [path.name for path in tmp_path.iterdir() if path.suffix in (".json", ".yaml")]


@pytest.mark.parametrize("resume", [False, True])
def test_any_training_begins_where_the_one_before_left_no_checkpoint(tmp_path, resume):
    _claim(tmp_path, settings(), "a" * 64, 0, resume=False)
    for name in ("model_best.pth", "model_best.json", "metrics.json"):
        (tmp_path / name).touch()
    _claim(tmp_path, settings("SOLVER.BASE_LR", "0.5"), "b" * 64, 1, resume=resume)
    assert [path.name for path in tmp_path.iterdir()] == ["training.json"]
    write_checkpoint(tmp_path)
    _claim(tmp_path, settings("SOLVER.BASE_LR", "0.5"), "b" * 64, 1, resume=True)


def test_a_folder_with_a_training_is_refused_before_the_data_is_read(tmp_path, monkeypatch):
    cfg = settings("OUTPUT_DIR", str(tmp_path), "ENGINE", "torchvision")
    _claim(tmp_path, cfg, "", cfg.SEED, resume=False)
    write_checkpoint(tmp_path)
    monkeypatch.setattr(run_module, "open_task", lambda *_, **__: pytest.fail("the data was opened"))
    with pytest.raises(InputError, match="holds a training already; go on with --resume"):
        run(cfg, Request("none"))


def test_evaluation_settings_change_the_records_identity_and_not_the_trainings():
    a, b = settings(), settings("TEST.DETECTIONS_PER_IMAGE", "7")
    assert identity(a) != identity(b)
    assert identity(a, evaluation=False) == identity(b, evaluation=False)


def test_evaluating_nothing_is_refused_at_once(tmp_path):
    cfg = settings("OUTPUT_DIR", str(tmp_path), "ENGINE", "torchvision")
    with pytest.raises(InputError, match=r"expected a trained detector .* found --weights none"):
        run(cfg, Request("none", eval_only=True))


def test_novel_weights_are_known_by_content_in_claims_and_not_in_the_settings(tmp_path):
    one, other = (settings("FEW_SHOT.NOVEL_WEIGHTS", f"{name}/model_final.pth") for name in "ab")
    assert identity(one) == identity(other) != identity(settings())
    _claim(tmp_path, one, "a" * 64, 0, resume=False, novel_sha256="c" * 64)
    write_checkpoint(tmp_path)
    _claim(tmp_path, other, "a" * 64, 0, resume=True, novel_sha256="c" * 64)
    with pytest.raises(InputError, match=r"cannot resume .* began with novel_sha256"):
        _claim(tmp_path, other, "a" * 64, 0, resume=True, novel_sha256="d" * 64)
