"""tools/transfer.py from the command line."""

from pathlib import Path

import pytest

from momentum_transfer.core.settings import value_of
from tests.tools.in_process import run_tool
from tests.transfer.torchvision_engine.tiny import write_shapes

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: object, code: int) -> str:
    done = run_tool("transfer", *arguments)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def settings(folder: Path) -> list[object]:
    """Arguments of a run on a small set of its own, written by the first call."""
    known = f"{folder / 'data/images'}:{folder / 'data/shapes.json'}"
    name = repr((known if (folder / "data").exists() else write_shapes(folder / "data"),))
    sets = ["DATASETS.TRAIN", name, "DATASETS.TEST", name, "OUTPUT_DIR", folder / "out"]
    return ["--config", ROOT / "configs/smoke/fcos_digits.yaml", "MODEL.FCOS.NUM_CLASSES", "3", *sets]


def test_data_is_looked_through_alone_without_weights_and_nothing_is_written(tmp_path: Path):
    printed = run("--check-data", *settings(tmp_path), code=0)
    assert "4 images, 3 classes, checked" in printed
    assert not (tmp_path / "out").exists()


def test_what_is_fitted_to_data_is_not_fitted_anew_for_an_evaluation(tmp_path: Path):
    words = [*settings(tmp_path), "FIT_TO_DATA", "True", "MODEL.DEVICE", "cpu"]
    printed = run("--eval-only", "--weights", tmp_path / "model_final.pth", *words, code=2)
    assert "expected the training's config.yaml beside --weights" in printed


@pytest.mark.parametrize(
    ("arch", "settings_said"),
    [
        ("resnet18", {"RESNETS.DEPTH": 18, "RESNETS.STEM_OUT_CHANNELS": 64, "RESNETS.RES2_OUT_CHANNELS": 64}),
        ("resnet50?width=32", {"RESNETS.DEPTH": 50, "RESNETS.RES2_OUT_CHANNELS": 128, "RESNETS.WIDTH_PER_GROUP": 32}),
        ("timm:convnext_atto", {"BACKBONE.ARCH": "timm:convnext_atto"}),
    ],
)
def test_arch_is_the_backbone_in_the_place_of_the_configs(arch: str, settings_said: dict, tmp_path: Path, monkeypatch):
    seen = []
    monkeypatch.setattr("momentum_transfer.transfer.run.run", lambda cfg, request, opened: seen.append(cfg))
    run("--weights", "none", "--arch", arch, *settings(tmp_path), code=0)
    assert {key: value_of(seen[0].MODEL, key) for key in settings_said} == settings_said
    run("--weights", "none", "--arch", arch, *settings(tmp_path), "MODEL.RESNETS.DEPTH", 34, code=0)
    assert seen[1].MODEL.RESNETS.DEPTH == 34


def test_settings_after_novel_classes_are_settings(tmp_path: Path, monkeypatch):
    seen = []
    monkeypatch.setattr("momentum_transfer.transfer.run.run", lambda cfg, request, opened: seen.append(cfg))
    run(*settings(tmp_path), "--weights", "none", "--novel", "square", "my class", "SEED", "5", "TRIALS", "2", code=0)
    assert (seen[0].FEW_SHOT.NOVEL, seen[0].SEED, seen[0].TRIALS) == (("square", "my class"), 5, 2)


def test_a_resnet_takes_the_place_of_a_configs_other_network(tmp_path: Path, monkeypatch):
    seen = []
    monkeypatch.setattr("momentum_transfer.transfer.run.run", lambda cfg, request, opened: seen.append(cfg))
    words = settings(tmp_path)
    config = tmp_path / "other.yaml"
    config.write_text(f"_BASE_: {words[1]}\nMODEL: {{BACKBONE: {{ARCH: 'timm:convnext_atto'}}}}\n")
    run("--weights", "none", "--arch", "resnet18", "--config", config, *words[2:], code=0)
    assert (seen[0].MODEL.BACKBONE.ARCH, seen[0].MODEL.RESNETS.DEPTH) == ("", 18)


def test_an_arch_that_no_detector_has_is_one_line(tmp_path: Path):
    assert "expected a ResNet with the stem imagenet" in run(
        "--arch", "resnet18?stem=small", *settings(tmp_path), code=2
    )
    assert "resnet19" in run("--arch", "resnet19", *settings(tmp_path), code=2)


def test_weights_have_to_be_named(tmp_path: Path):
    printed = run(*settings(tmp_path), code=2)
    assert "expected --weights FILE" in printed
    assert "Traceback" not in printed
    assert not (tmp_path / "out").exists()


def test_training_images_that_test_are_told_by_check_data_and_refused_on_demand(tmp_path: Path):
    words = [*settings(tmp_path), "--check-data"]
    assert "warning: 4 of 4 test images are byte for byte training images (shapes; " in run(*words, code=0)
    refused = run(*words, "--forbid-overlap", code=2)
    assert "expected no test image among the training images, found 4 of 4" in refused
    assert not (tmp_path / "out").exists()


def test_embedded_scenes_and_label_maps_share_no_image(tmp_path: Path):
    for name in ("fcos_digits", "deeplab_v3_digits"):
        config = ROOT / f"configs/smoke/{name}.yaml"
        printed = run("--config", config, "--check-data", "--forbid-overlap", "OUTPUT_DIR", tmp_path / "out", code=0)
        assert "warning" not in printed
