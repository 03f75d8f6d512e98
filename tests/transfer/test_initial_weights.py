import re

import pytest
import torch

from momentum_transfer.backbones.convert import write
from momentum_transfer.backbones.resnet import Architecture, build_resnet
from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.initial_weights import (
    LARGEST_GROWTH,
    InitialWeights,
    check_trained,
    match_backbone,
    read_initial,
)
from momentum_transfer.transfer.torchvision_engine.detectors import export_state, load_backbone, load_detector
from momentum_transfer.transfer.torchvision_engine.engine import initialise
from momentum_transfer.transfer.torchvision_engine.models import build_detector
from tests.transfer.torchvision_engine.tiny import DETECTORS, tiny_config

SMALL = Architecture("resnet10", 32)


def write_backbone(path, architecture=SMALL):
    torch.manual_seed(7)
    backbone = build_resnet(architecture)
    for name, value in backbone.state_dict().items():
        if value.dtype.is_floating_point:
            value.copy_(torch.rand_like(value) if "var" in name else torch.randn_like(value))
    write(path, backbone.state_dict(), architecture, {"network": "teacher"})
    return backbone


@pytest.mark.parametrize("detector", DETECTORS)
def test_a_converted_backbone_fills_every_tensor_of_the_detectors(detector, tmp_path):
    backbone = write_backbone(tmp_path / "backbone.pkl")
    model = build_detector(tiny_config(detector))
    initial = read_initial(str(tmp_path / "backbone.pkl"))
    position = initialise(model, initial)
    assert initial.network == "teacher"
    assert len(position.loaded) == len(backbone.state_dict())
    assert not set(position.loaded) & set(position.new)
    state = export_state(model)
    assert set(position.loaded) | set(position.new) == set(state)
    prefix = "backbone." if detector.endswith("c4") else "backbone.bottom_up."
    assert torch.equal(state[f"{prefix}stem.conv1.weight"], backbone.conv1.weight)
    last = "roi_heads.res5" if detector.endswith("c4") else "backbone.bottom_up.res5"
    assert torch.equal(state[f"{last}.0.conv2.norm.running_var"], backbone.layer4[0].bn2.running_var)
    assert ("roi_heads.res5.norm.weight" in position.new) == detector.endswith("c4")


def test_backbone_and_detector_compute_the_same_features(tmp_path):
    backbone = write_backbone(tmp_path / "backbone.pkl").eval()
    model = build_detector(tiny_config("mask_rcnn")).eval()
    initialise(model, read_initial(str(tmp_path / "backbone.pkl")))
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        expected, found = backbone.stages(x), model.backbone.bottom_up(x)
    assert all(torch.equal(found[name], expected[name]) for name in found)


def test_a_backbone_that_is_not_whole_is_refused(tmp_path):
    write_backbone(tmp_path / "backbone.pkl")
    whole = dict(read_initial(str(tmp_path / "backbone.pkl")).backbone)
    del whole["res3.0.conv1.weight"]
    model = build_detector(tiny_config("mask_rcnn"))
    with pytest.raises(
        InputError, match=r"mine covers 71 of the backbone's 72 tensors: 1 missing \(res3.0.conv1.weight\)"
    ):
        load_backbone(model, whole, "mine")


@pytest.mark.parametrize("architecture", [Architecture("resnet18", 32), Architecture("resnet10", 16)])
def test_weights_of_another_architecture_are_refused(architecture, tmp_path):
    write_backbone(tmp_path / "backbone.pkl", architecture)
    model = build_detector(tiny_config("mask_rcnn", "MODEL.RESNETS.DEPTH", "10"))
    initial = read_initial(str(tmp_path / "backbone.pkl"))
    if architecture.name == "resnet18":  # more blocks than the detector has
        with pytest.raises(InputError, match=r"40 tensors that this detector has no place for \(res2.1"):
            initialise(model, initial)
    else:
        with pytest.raises(
            InputError, match=r"expected .*stem.conv1.weight of shape \(32, 3, 7, 7\), found \(16, 3, 7, 7\)"
        ):
            initialise(model, initial)


def test_a_missing_file_says_what_to_do():
    with pytest.raises(InputError, match=r"weights not found: nowhere.pkl; convert a checkpoint .*--weights none"):
        read_initial("nowhere.pkl")


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path):
    (tmp_path / "text.pth").write_text("not weights")
    with pytest.raises(InputError, match=r"text\.pth"):
        read_initial(str(tmp_path / "text.pth"))


def test_random_initialisation_has_to_be_asked_for():
    assert read_initial("none") == InitialWeights("none")


def test_a_backbone_at_random_has_the_checkpoints_place_and_says_what_it_is(tmp_path):
    write_backbone(tmp_path / "backbone.pkl", Architecture("resnet10", 32))
    given, initial = (read_initial(f"{before}{tmp_path / 'backbone.pkl'}") for before in ("", "random-of:"))
    assert initial.name == f"random-of-{given.name}"
    assert (initial.checkpoint["method"], initial.checkpoint["random_seed"]) == ("random", "0")
    assert {name: value.shape for name, value in initial.backbone.items()} == {
        name: value.shape for name, value in given.backbone.items()
    }
    assert not torch.equal(initial.backbone["res2.0.conv1.weight"], given.backbone["res2.0.conv1.weight"])
    model = build_detector(tiny_config("mask_rcnn", "MODEL.RESNETS.DEPTH", "10"))
    assert initialise(model, initial).loaded
    with pytest.raises(InputError, match=r"absent\.pkl"):
        read_initial("random-of:absent.pkl")


def test_a_detector_with_another_number_of_classes_is_refused():
    model = build_detector(tiny_config("mask_rcnn"))
    other = build_detector(tiny_config("mask_rcnn", "MODEL.ROI_HEADS.NUM_CLASSES", "5"))
    with pytest.raises(InputError, match=r"expected roi_heads.*of shape .* class count"):
        load_detector(model, export_state(other), "mine")


def test_a_detector_of_another_kind_is_refused():
    model = build_detector(tiny_config("retinanet"))
    with pytest.raises(InputError, match=r"mine does not hold this detector: .* missing .* left over"):
        load_detector(model, export_state(build_detector(tiny_config("mask_rcnn"))), "mine")


def test_a_detector_file_starts_a_whole_detector(tmp_path):
    trained = build_detector(tiny_config("cascade"))
    torch.save({"model": export_state(trained), "iteration": 9}, tmp_path / "model_final.pth")
    initial = read_initial(str(tmp_path / "model_final.pth"))
    model = build_detector(tiny_config("cascade"))
    position = initialise(model, initial)
    assert position.new == ()
    assert all(
        torch.equal(a, b) for a, b in zip(export_state(model).values(), export_state(trained).values(), strict=True)
    )


def test_matching_names_what_stays_new():
    shapes = {"backbone.bottom_up.stem.conv1.weight": (1,), "backbone.fpn_lateral2.weight": (2,)}
    found, new = match_backbone(shapes, {"stem.conv1.weight": torch.zeros(1)}, "mine")
    assert list(found) == ["backbone.bottom_up.stem.conv1.weight"]
    assert new == ["backbone.fpn_lateral2.weight"]


def test_a_backbone_in_a_container_may_be_called_pth(tmp_path):
    torch.manual_seed(7)
    state = build_resnet(SMALL).state_dict()
    nested = {f"module.encoder_q.{name}": value for name, value in state.items()}
    nested |= {"module.encoder_q.fc.0.weight": torch.zeros(4, 256), "module.encoder_q.fc.0.bias": torch.zeros(4)}
    nested |= {f"module.encoder_k.{name}": value for name, value in state.items()}
    torch.save({"state_dict": nested | {"module.queue": torch.zeros(4, 9)}}, tmp_path / "moco.pth")
    initial = read_initial(str(tmp_path / "moco.pth"))
    assert not initial.detector
    assert torch.equal(initial.backbone["stem.conv1.weight"], state["conv1.weight"])


def test_a_detector_whose_training_diverged_is_refused():
    model = build_detector(tiny_config("retinanet"))
    state = export_state(model)
    state["head.cls_score.weight"] = torch.full_like(state["head.cls_score.weight"], float("nan"))
    with pytest.raises(InputError, match=r"mine holds 1 tensors that are not finite \(head.cls_score.weight\)"):
        load_detector(model, state, "mine")


def trained(change):
    """A detector that began with a backbone of random numbers, after ``change`` of its tensors."""
    detector = build_detector(tiny_config("retinanet"))
    backbone = {name: 20 * torch.ones_like(value) for name, value in export_state(detector).items()}
    prefix = "backbone.bottom_up."
    initial = InitialWeights(
        "start", backbone={name[len(prefix) :]: v for name, v in backbone.items() if prefix in name}
    )
    initialise(detector, initial)
    state = export_state(detector)
    change(state)
    return InitialWeights("model_final.pth", detector=state), initial


@pytest.mark.parametrize(
    ("name", "factor", "refused"),
    [
        ("backbone.bottom_up.stem.conv1.weight", 20 * LARGEST_GROWTH, False),  # by what it began with
        ("backbone.bottom_up.stem.conv1.weight", 21 * LARGEST_GROWTH, True),
        ("backbone.bottom_up.stem.conv1.norm.running_var", 1e12, False),
        ("head.cls_score.bias", LARGEST_GROWTH, False),
        ("head.cls_score.bias", 1.01 * LARGEST_GROWTH, True),
    ],
)
def test_weights_that_grew_beyond_reason_are_refused_by_their_tensors_name(name, factor, refused):
    def change(state):
        state[name].view(-1)[0] = -factor

    final, initial = trained(change)
    if not refused:
        return check_trained(final, initial)
    with pytest.raises(InputError, match=rf"found {re.escape(name)} at .* no score is recorded; lower SOLVER.BASE_LR"):
        check_trained(final, initial)


def test_a_whole_detector_and_a_random_start_are_measured_by_themselves():
    final, _ = trained(lambda state: state["head.cls_score.bias"].fill_(5 * LARGEST_GROWTH))
    check_trained(final, InitialWeights("itself", detector=final.detector))
    with pytest.raises(InputError, match=r"head\.cls_score\.bias at 5e\+03"):
        check_trained(final, InitialWeights("none", detector={}))


def test_a_backbones_pth_is_read_once(tmp_path, monkeypatch):
    write_backbone(tmp_path / "backbone.pth")
    reads, load = [], torch.load
    monkeypatch.setattr(torch, "load", lambda *args, **kwargs: (reads.append(args), load(*args, **kwargs))[1])
    assert read_initial(str(tmp_path / "backbone.pth")).backbone
    assert len(reads) == 1


def test_the_folder_of_a_run_stands_for_its_detector(tmp_path):
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "training.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match=r"model_final.pth in .*run, found a training that left no checkpoint"):
        read_initial(str(run))
    torch.save({"model": export_state(build_detector(tiny_config("retinanet")))}, run / "model_final.pth")
    by_folder, by_file = read_initial(str(run)), read_initial(str(run / "model_final.pth"))
    assert (by_folder.name, by_folder.sha256) == (by_file.name, by_file.sha256)
    assert by_folder.detector.keys() == by_file.detector.keys() != set()
    with pytest.raises(InputError, match=r"found 1 trials in .*; give one of them, .*trial_0"):
        run.rename(tmp_path / "trial_0")
        read_initial(str(tmp_path))
