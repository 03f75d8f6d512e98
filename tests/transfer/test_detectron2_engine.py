"""Both engines, same weights, same images: what one computes the other computes too."""

from __future__ import annotations

import copy
import functools
import json
import operator
import os
import re
import signal

import pytest
import torch

pytest.importorskip("detectron2")

from detectron2.config import CfgNode, get_cfg
from tensorboard.backend.event_processing import event_accumulator

from benchmarks import engine_parity as parity
from benchmarks.engine_parity import training_losses
from momentum_transfer.backbones.build import build_backbone
from momentum_transfer.core.command import Stopped
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.shipped import listing_of, variants
from momentum_transfer.transfer import config
from momentum_transfer.transfer.config import add_own_keys
from momentum_transfer.transfer.detectron2_engine import load_initial
from momentum_transfer.transfer.detectron2_engine.data import detectron2_config
from momentum_transfer.transfer.detectron2_engine.engine import Detectron2Engine
from momentum_transfer.transfer.detectron2_engine.models import build_model
from momentum_transfer.transfer.detectron2_engine.train import trainer_class
from momentum_transfer.transfer.experiment import Experiment
from momentum_transfer.transfer.initial_weights import InitialWeights, read_detector
from momentum_transfer.transfer.tasks import open_task
from momentum_transfer.transfer.torchvision_engine.detectors import export_state, load_detector, names
from momentum_transfer.transfer.torchvision_engine.engine import TorchvisionEngine
from momentum_transfer.transfer.torchvision_engine.models import build_detector
from momentum_transfer.transfer.torchvision_engine.semantic_run import build as build_segmentor
from tests.config_headers import configs_of, header
from tests.process_group import outcome_in_own_group, signal_own_group
from tests.transfer import test_any_backbone as any_networks
from tests.transfer.torchvision_engine.test_semantic import labels_config
from tests.transfer.torchvision_engine.tiny import (
    DETECTORS,
    SEGMENTORS,
    predict_tiny,
    shapes_config,
    tiny_config,
    tiny_samples,
    train_tiny,
)

pytestmark = pytest.mark.detectron2

#: Every candidate is a detection, so that there is something to compare at random weights.
KEEP_ALL = [
    *("MODEL.ROI_HEADS.SCORE_THRESH_TEST", "0.0", "MODEL.RETINANET.SCORE_THRESH_TEST", "0.0"),
    *("MODEL.FCOS.SCORE_THRESH_TEST", "0.0"),
]
SIZES = ((64, 64), (48, 70), (90, 61))  # multiples of 32 and not


#: Detector, and the depth of its ResNet.
PAIRS = [(name, 10) for name in DETECTORS]
PAIRS += [(name, depth) for depth in (18, 101) for name in ("mask_rcnn", "mask_rcnn_c4", "retinanet", "fcos")]


def at_depth(depth):
    """Settings of another ResNet; 10 is that of the tiny detectors."""
    if depth == 10:
        return []
    channels = "64" if depth < 50 else "256"
    widths = ["MODEL.RESNETS.STEM_OUT_CHANNELS", "64", "MODEL.RESNETS.RES2_OUT_CHANNELS", channels]
    return ["MODEL.RESNETS.DEPTH", str(depth), *widths]


@pytest.fixture(params=PAIRS, ids=lambda pair: f"{pair[0]}-R{pair[1]}")
def pair(request):
    """Our model and Detectron2's, with the same random weights."""
    name, depth = request.param
    return parity.random_pair(tiny_config(name, *KEEP_ALL, *at_depth(depth)), tiny_samples(SIZES))


def test_both_compute_the_same(pair):
    ours, theirs = pair
    assert set(export_state(ours)) == set(theirs.state_dict())
    samples = tiny_samples(SIZES)
    samples[1].height, samples[1].width = 96, 140  # scaled back to another size
    found = parity.prediction_differences(ours, theirs, samples)
    assert found.pop("scores") <= 1e-6
    assert {"boxes"} <= set(found) <= {"proposals", "boxes", "masks"}
    assert found == dict.fromkeys(found, 0.0)
    losses = parity.loss_differences(ours, theirs, tiny_samples(SIZES))
    assert losses.pop("gradients") <= 1e-4
    assert {name for name, value in losses.items() if value > 1e-6} == set()


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("mask_rcnn", "MODEL.ROI_HEADS.IOU_THRESHOLDS [0.3,0.5] MODEL.ROI_HEADS.IOU_LABELS [0,-1,1]"),
        ("mask_rcnn", "MODEL.ROI_BOX_HEAD.BBOX_REG_LOSS_TYPE giou MODEL.ROI_BOX_HEAD.POOLER_TYPE ROIAlign"),
        ("mask_rcnn", "MODEL.ROI_MASK_HEAD.CLS_AGNOSTIC_MASK True MODEL.ROI_BOX_HEAD.CLS_AGNOSTIC_BBOX_REG True"),
        ("mask_rcnn", "MODEL.BACKBONE.FREEZE_AT 2 MODEL.RESNETS.NORM FrozenBN MODEL.FPN.NORM GN"),
        ("mask_rcnn", "MODEL.RPN.SMOOTH_L1_BETA 0.1 MODEL.ROI_HEADS.PROPOSAL_APPEND_GT False INPUT.FORMAT BGR"),
        ("mask_rcnn", "MODEL.BACKBONE.FROZEN True MODEL.FPN.NORM BN"),
        ("mask_rcnn", "MODEL.FPN.NORM LN MODEL.ROI_MASK_HEAD.NORM LN MODEL.RPN.CONV_DIMS [-1,-1]"),
        ("retinanet", "MODEL.RETINANET.NORM BN MODEL.RETINANET.BBOX_REG_LOSS_TYPE giou"),
        ("retinanet", "MODEL.RETINANET.NORM GN MODEL.FPN.OUT_CHANNELS 64 MODEL.ANCHOR_GENERATOR.OFFSET 0.5"),
        ("faster_rcnn_c4", "MODEL.ROI_HEADS.NAME Res5ROIHeads MODEL.ROI_BOX_HEAD.SMOOTH_L1_BETA 0.5"),
    ],
)
def test_settings_beside_the_papers_agree_too(name, settings):
    ours, theirs = parity.random_pair(tiny_config(name, *KEEP_ALL, *settings.split()), tiny_samples(SIZES))
    found = parity.prediction_differences(ours, theirs, tiny_samples(SIZES))
    found |= parity.loss_differences(ours, theirs, tiny_samples(SIZES))
    assert found.pop("gradients") <= 1e-4
    assert {name for name, value in found.items() if value > 1e-6} == set()


@pytest.mark.parametrize("detector", ["mask_rcnn", "cascade", "retinanet", "fcos"])
@pytest.mark.parametrize(
    ("architecture", "overrides"),
    [(any_networks.CONVNEXT, []), (any_networks.REGNET, []), (any_networks.SWIN, []), (any_networks.DINOV2, []),
     (any_networks.DINOV3, []), (any_networks.VIT, any_networks.WINDOWS), (any_networks.DINOV2, any_networks.WINDOWS)],
    ids=["convnext", "regnet", "swin", "dinov2", "dinov3", "vitdet", "vitdet-dinov2"],
)  # fmt: skip
def test_any_backbone_agrees_with_drop_path_in_training(detector, architecture, overrides):
    given = ["MODEL.BACKBONE.ARCH", architecture, "MODEL.FPN.NORM", "LN", "MODEL.BACKBONE.DROP_PATH", "0.3", *overrides]
    ours, theirs = parity.random_pair(tiny_config(detector, *KEEP_ALL, *given), tiny_samples(SIZES))
    own_vit = type(getattr(theirs.backbone, "net", None)).__module__ == "detectron2.modeling.backbone.vit"
    assert own_vit == bool(overrides)
    assert set(export_state(ours)) == set(theirs.state_dict())
    found = parity.prediction_differences(ours, theirs, tiny_samples(SIZES))
    found |= parity.loss_differences(ours, theirs, tiny_samples(SIZES))
    assert found.pop("gradients") <= 1e-4
    assert set(found.values()) == {0.0}


def test_a_frozen_squared_network_and_deeplab_on_a_network_of_timm_agree():
    given = ["MODEL.BACKBONE.ARCH", any_networks.CONVNEXT, "MODEL.BACKBONE.FROZEN", "True", "MODEL.FPN.NORM", "BN"]
    square = ["MODEL.BACKBONE.SQUARE", "128", "INPUT.MAX_SIZE_TRAIN", "128", "INPUT.MAX_SIZE_TEST", "128"]
    ours, theirs = parity.random_pair(tiny_config("mask_rcnn", *KEEP_ALL, *given, *square), tiny_samples(SIZES))
    assert set(parity.prediction_differences(ours, theirs, tiny_samples(SIZES)).values()) == {0.0}
    samples = tiny_samples(SIZES)
    for sample in samples:
        sample.labels = torch.randint(0, 3, sample.image.shape[1:])
    ours, theirs = parity.random_pair(tiny_config("stride16", *given[:2]), samples)
    assert set(export_state(ours)) == set(theirs.state_dict())
    assert parity.prediction_differences(ours, theirs, samples) == {"masks": 0.0}
    assert parity.loss_differences(ours, theirs, samples)["loss_sem_seg"] <= 1e-6


@pytest.mark.parametrize("loss", ["cross_entropy", "hard_pixel_mining"])
@pytest.mark.parametrize("name", SEGMENTORS)
def test_deeplabs_agree_at_both_strides(name, loss, tmp_path):
    bottlenecks = [*("MODEL.RESNETS.DEPTH", "50", "MODEL.RESNETS.STEM_OUT_CHANNELS", "64")]
    bottlenecks += ["MODEL.RESNETS.RES2_OUT_CHANNELS", "256", "MODEL.SEM_SEG_HEAD.LOSS_TYPE", loss]
    crop = ["INPUT.CROP.ENABLED", "True", "INPUT.CROP.TYPE", "absolute", "INPUT.CROP.SIZE", "[64,64]"]
    cfg = tiny_config(name, *bottlenecks, *crop)
    torch.manual_seed(3)
    theirs = build_model(detectron2_config(cfg, seed=0, out_dir=tmp_path)).train()
    theirs.sem_seg_head.predictor.weight.data.normal_(std=0.3)
    ours = build_segmentor(cfg).train()
    load_detector(ours, theirs.state_dict(), "theirs")
    assert set(export_state(ours)) == set(theirs.state_dict())
    generator = torch.Generator().manual_seed(0)
    samples = tiny_samples(((64, 64), (64, 64)))
    for sample in samples:
        sample.labels = torch.randint(0, 3, (64, 64), generator=generator)
        sample.labels[:8] = 255
    mine, other = ours(samples), training_losses(theirs, samples)
    assert mine["loss_sem_seg"].item() == pytest.approx(other["loss_sem_seg"].item(), abs=1e-6)
    mine["loss_sem_seg"].backward()
    other["loss_sem_seg"].backward()
    first = "backbone.bottom_up.layer3.0.conv2.weight"
    their_gradient = dict(theirs.named_parameters())[names(ours)[first]].grad
    torch.testing.assert_close(dict(ours.named_parameters())[first].grad, their_gradient, rtol=1e-3, atol=1e-7)
    ours.eval()
    theirs.eval()
    sample = tiny_samples([(128, 128)])[0]
    sample.height, sample.width = 100, 90
    with torch.no_grad():
        labels = ours([sample])[0]
        logits = theirs([{"image": sample.image, "height": 100, "width": 90}])[0]["sem_seg"]
    assert torch.equal(labels, logits.argmax(dim=0))
    assert len(labels.unique()) > 1


@pytest.mark.parametrize("name", DETECTORS)
def test_twenty_iterations_follow_the_same_losses(name, tmp_path):
    cfg = tiny_config(name)
    torch.manual_seed(3)
    theirs = build_model(detectron2_config(cfg, seed=0, out_dir=tmp_path)).train()
    ours = build_detector(cfg)
    load_detector(ours, theirs.state_dict(), "theirs")
    from detectron2.solver import build_optimizer

    from momentum_transfer.transfer.torchvision_engine.engine import build_training
    from momentum_transfer.transfer.torchvision_engine.training_state import Position

    their_optimizer = build_optimizer(detectron2_config(cfg, seed=0, out_dir=tmp_path), theirs)
    my_optimizer = build_training(cfg, ours, Position(0, (), ())).optimizer
    for step in range(20):
        samples = tiny_samples(seed=step)
        torch.manual_seed(step)
        mine = sum(ours(samples).values())
        torch.manual_seed(step)
        other = sum(training_losses(theirs, samples).values())
        assert mine.item() == pytest.approx(other.item(), rel=1e-4), step
        for loss, optimizer in ((mine, my_optimizer), (other, their_optimizer)):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def test_adamw_with_clipping_steps_as_detectron2s_own_of_the_lazy_configs(tmp_path):
    from detectron2.solver.build import get_default_optimizer_params

    settings = "SOLVER.OPTIMIZER AdamW SOLVER.BASE_LR 0.001 SOLVER.CLIP_GRADIENTS.ENABLED True SOLVER.WEIGHT_DECAY 0.1"
    cfg = tiny_config("retinanet", *settings.split(), "SOLVER.CLIP_GRADIENTS.CLIP_VALUE", "0.01")
    model = build_model(detectron2_config(cfg, seed=0, out_dir=tmp_path)).train()
    copied = copy.deepcopy(model)
    mine = trainer_class(None).build_optimizer(detectron2_config(cfg, seed=0, out_dir=tmp_path), model)
    groups = get_default_optimizer_params(copied, base_lr=0.001, weight_decay=0.1, weight_decay_norm=0.0)
    other = torch.optim.AdamW(groups, lr=0.001, betas=(0.9, 0.999))
    for step in range(3):
        for network, optimizer in ((model, mine), (copied, other)):
            optimizer.zero_grad()
            torch.manual_seed(step)
            sum(training_losses(network, tiny_samples(seed=step)).values()).backward()
            if optimizer is other:
                for parameter in network.parameters():
                    torch.nn.utils.clip_grad_value_(parameter, 0.01)
            optimizer.step()
    moved = [torch.equal(a, b) for a, b in zip(model.parameters(), copied.parameters(), strict=True)]
    assert all(moved)


def test_weights_of_each_engine_load_into_the_other(pair, tmp_path):
    ours, theirs = pair
    torch.save({"model": theirs.state_dict()}, tmp_path / "theirs.pth")
    torch.save({"model": export_state(ours)}, tmp_path / "ours.pth")
    load_detector(ours, read_detector(tmp_path / "theirs.pth"), "theirs")
    loaded, new = load_initial(theirs, InitialWeights("ours", detector=read_detector(tmp_path / "ours.pth")))
    assert new == []
    assert len(loaded) == len(theirs.state_dict())


SHORT = [
    *("SOLVER.MAX_ITER", "4", "SOLVER.STEPS", "()", "SOLVER.CHECKPOINT_PERIOD", "2"),
    *("TEST.PRECISE_BN.ENABLED", "True", "TEST.PRECISE_BN.NUM_ITER", "2"),
]


def test_it_trains_predicts_and_hands_over_to_the_other_engine(tmp_path):
    cfg = shapes_config("mask_rcnn", tmp_path, *SHORT, *KEEP_ALL)
    engine = Detectron2Engine()
    assert engine.unsupported(cfg) is None
    finetuned = train_tiny(engine, cfg, 0, tmp_path / "out")
    theirs = predict_tiny(engine, cfg, finetuned.weights, tmp_path / "theirs")[0]
    ours = predict_tiny(TorchvisionEngine(), cfg, finetuned.weights, tmp_path / "ours")[0]
    first, second = (json.loads(p.results.read_text()) for p in (theirs, ours))
    assert len(first) == len(second) > 0
    for one, other in zip(first, second, strict=True):
        assert (one["image_id"], one["category_id"], one["bbox"]) == (
            other["image_id"],
            other["category_id"],
            other["bbox"],
        )
        assert one["segmentation"] == other["segmentation"]
        assert one["score"] == pytest.approx(other["score"], abs=1e-6)
    events = event_accumulator.EventAccumulator(str(tmp_path / "out/tensorboard"))
    events.Reload()
    shown = {event.step: event.value for event in events.Scalars("total_loss")}
    last = json.loads((tmp_path / "out/metrics.json").read_text().splitlines()[-1])
    assert shown[last["iteration"] + 1] == pytest.approx(last["total_loss"])


def test_its_segmentation_hands_over_to_the_other_engine(tmp_path):
    bottlenecks = ["MODEL.RESNETS.DEPTH", "50", "MODEL.RESNETS.STEM_OUT_CHANNELS", "64"]
    bottlenecks += ["MODEL.RESNETS.RES2_OUT_CHANNELS", "256"]
    cfg = labels_config("stride16", tmp_path, *bottlenecks)
    finetuned = train_tiny(Detectron2Engine(), cfg, 0, tmp_path / "out")
    theirs = predict_tiny(Detectron2Engine(), cfg, finetuned.weights, tmp_path / "theirs")[0]
    ours = predict_tiny(TorchvisionEngine(), cfg, finetuned.weights, tmp_path / "ours")[0]
    files = sorted(theirs.results.iterdir())
    assert len(files) == 4
    assert [(ours.results / file.name).read_bytes() for file in files] == [file.read_bytes() for file in files]


def test_a_stopped_training_goes_on(tmp_path, monkeypatch):
    from detectron2.engine import SimpleTrainer

    cfg = shapes_config("retinanet", tmp_path, *SHORT)
    original = SimpleTrainer.run_step

    def run_step(self):
        original(self)
        if self.iter == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(SimpleTrainer, "run_step", run_step)
    with pytest.raises(Stopped, match="after iteration 2"):
        train_tiny(Detectron2Engine(), cfg, 0, tmp_path / "out")
    monkeypatch.setattr(SimpleTrainer, "run_step", original)
    with pytest.raises(InputError, match="--resume"):
        train_tiny(Detectron2Engine(), cfg, 0, tmp_path / "out")
    pointer = tmp_path / "out/last_checkpoint"
    checkpoint = tmp_path / "out" / pointer.read_text()
    whole = checkpoint.read_bytes()
    middle = len(whole) // 2
    for content in (whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :], whole[:middle], b""):
        checkpoint.write_bytes(content)
        with pytest.raises(InputError, match=f"{checkpoint.name}.* damaged"):
            train_tiny(Detectron2Engine(), cfg, 0, tmp_path / "out", resume=True)
    checkpoint.write_bytes(whole)
    pointer.write_text("../elsewhere.pth")
    with pytest.raises(InputError, match="to name a checkpoint beside it"):
        train_tiny(Detectron2Engine(), cfg, 0, tmp_path / "out", resume=True)
    pointer.write_text(checkpoint.name)
    finetuned = train_tiny(Detectron2Engine(), cfg, 0, tmp_path / "out", resume=True)
    assert finetuned.weights.is_file()


def test_a_training_of_the_torchvision_engine_is_not_begun_anew(tmp_path):
    (tmp_path / "out/checkpoints").mkdir(parents=True)
    (tmp_path / "out/checkpoints/last").write_text("step_0000002.pth")
    with pytest.raises(InputError, match="found one of the torchvision engine; resume with ENGINE torchvision"):
        train_tiny(Detectron2Engine(), shapes_config("retinanet", tmp_path, *SHORT), 0, tmp_path / "out", resume=True)


def _finetune_and_signal_the_group(cfg, folder):
    from detectron2.engine import SimpleTrainer

    original = SimpleTrainer.run_step

    def run_step(self):
        original(self)
        if self.iter == 1:
            signal_own_group()

    SimpleTrainer.run_step = run_step
    train_tiny(Detectron2Engine(), cfg, 0, folder)


def test_signal_to_the_whole_group_leaves_workers_alive_until_the_step_is_saved(tmp_path):
    cfg = shapes_config("retinanet", tmp_path, *SHORT, "DATALOADER.NUM_WORKERS", "2")
    outcome = outcome_in_own_group(_finetune_and_signal_the_group, cfg, tmp_path / "out")
    assert outcome.startswith("Stopped 143: stopped after iteration 2")
    assert (tmp_path / "out/last_checkpoint").read_text() == "model_0000001.pth"


def test_a_backbone_that_is_not_whole_is_refused(tmp_path):
    theirs = build_model(detectron2_config(tiny_config("mask_rcnn"), seed=0, out_dir=tmp_path))
    with pytest.raises(InputError, match="covers 1 of the backbone's"):
        load_initial(theirs, InitialWeights("mine", backbone={"stem.conv1.weight": torch.zeros(32, 3, 7, 7)}))


def test_what_it_cannot_run_is_said_before_any_compute():
    half = tiny_config("mask_rcnn", "SOLVER.AMP.ENABLED", "True")
    assert "mixed precision on a CPU" in Detectron2Engine().unsupported(half)
    assert "depth" in Detectron2Engine().unsupported(tiny_config("stride8")).lower()
    norms = tiny_config("mask_rcnn", "MODEL.BACKBONE.TRAINABLE", "norms")
    assert "MODEL.BACKBONE.TRAINABLE is the torchvision engine's" in Detectron2Engine().unsupported(norms)
    novel = ["FEW_SHOT.NOVEL", "['a']"]
    for few_shot in (novel, [*novel, "FEW_SHOT.STAGE", "all"], ["MODEL.ROI_BOX_HEAD.COSINE_SCALE", "20.0"]):
        assert Detectron2Engine().unsupported(tiny_config("mask_rcnn", *few_shot)) is None


CONFIGS = [path for room in ("transfer", "smoke") for path in configs_of(room) if "tools/transfer.py" in header(path)]


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_every_config_merges_into_detectron2_as_a_file_and_as_settings(file, tmp_path):
    cfg, listing = config.load(file), listing_of(file)
    merged = add_own_keys(get_cfg())
    merged.merge_from_file(str(listing or file))
    if listing is not None:  # a variant is no file that Detectron2 could read
        merged.merge_from_other_cfg(CfgNode(variants(listing)[file.stem]))
    theirs = detectron2_config(cfg, seed=0, out_dir=tmp_path)
    assert theirs.MODEL.ROI_HEADS.NAME == merged.MODEL.ROI_HEADS.NAME
    for key in ("SOLVER.STEPS", "SOLVER.BASE_LR", "MODEL.ANCHOR_GENERATOR.SIZES"):
        values = [functools.reduce(operator.getitem, key.split("."), one) for one in (merged, theirs, cfg)]
        assert values[0] == values[1] == values[2], key


def test_the_best_detector_is_kept(tmp_path):
    cfg = shapes_config("retinanet", tmp_path, *SHORT, "TEST.EVAL_PERIOD", "2")
    seen = []

    def score(predictions):
        seen.append(predictions.engine)
        return float(len(seen) == 1)

    train_tiny(Detectron2Engine(), cfg, 0, tmp_path / "out", score=score)
    assert len(seen) >= 2
    best = torch.load(tmp_path / "out/model_best.pth", weights_only=True)
    assert best["iteration"] == 1


def test_a_resumed_training_keeps_the_best_detector_of_before_unless_it_is_surpassed(tmp_path, monkeypatch):
    from detectron2.engine import SimpleTrainer

    cfg = shapes_config("retinanet", tmp_path, *SHORT, "SOLVER.MAX_ITER", "6", "TEST.EVAL_PERIOD", "2")
    scores, original = iter([0.9, 0.5, 0.95]), SimpleTrainer.run_step  # after steps 2, 4 and 6

    def run_step(self):
        original(self)
        if self.iter in (2, 4):
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(SimpleTrainer, "run_step", run_step)
    best = []
    for resume in (False, True):
        with pytest.raises(Stopped):
            train_tiny(Detectron2Engine(), cfg, 0, tmp_path / "out", resume=resume, score=lambda _: next(scores))
        best.append(torch.load(tmp_path / "out/model_best.pth", weights_only=True)["iteration"])
    note = tmp_path / "out/model_best.json"
    whole = note.read_text()
    note.write_text("[]")
    with pytest.raises(InputError, match=r"model_best\.json as a training wrote it, found it damaged"):
        train_tiny(Detectron2Engine(), cfg, 0, tmp_path / "out", resume=True, score=lambda _: next(scores))
    note.write_text(whole)
    train_tiny(Detectron2Engine(), cfg, 0, tmp_path / "out", resume=True, score=lambda _: next(scores))
    best.append(torch.load(tmp_path / "out/model_best.pth", weights_only=True)["iteration"])
    assert best == [1, 1, 6]  # as Detectron2 counts, from 0 but after the last step
    assert json.loads(note.read_text()) == {"score": 0.95, "iteration": 6}


def test_a_loss_that_is_not_finite_stops_and_names_the_images(tmp_path):
    cfg = shapes_config("retinanet", tmp_path, *SHORT, "SOLVER.BASE_LR", "1e30", "SOLVER.WARMUP_ITERS", "0")
    with pytest.raises(InputError, match=r"not finite at iteration \d+ .* on the images \d, \d; lower SOLVER.BASE_LR"):
        train_tiny(Detectron2Engine(), cfg, 0, tmp_path / "out")


@pytest.mark.parametrize("engine", [Detectron2Engine(), TorchvisionEngine()], ids=lambda engine: engine.name)
def test_a_gradient_beyond_reason_is_said_as_it_was_before_clipping(engine, tmp_path, caplog):
    architecture = "timm:convnext_atto?depths=(1,1,1,1)&dims=(16,24,32,48)"
    state = build_backbone(architecture).state_dict()
    state["stem.0.bias"].zero_()  # 66 px are padded to 96: LayerNorm of zeros
    initial = InitialWeights("file", architecture=architecture, backbone=state)
    settings = [
        "MODEL.BACKBONE.ARCH",
        architecture,
        "INPUT.MIN_SIZE_TRAIN",
        "[66]",
        "SOLVER.CLIP_GRADIENTS.ENABLED",
        "True",
        "TEST.PRECISE_BN.ENABLED",
        "False",
    ]
    cfg = shapes_config("retinanet", tmp_path, *SHORT, *settings)
    finetuned = engine.finetune(Experiment(cfg, open_task(cfg), initial), 0, tmp_path / "out")
    said = [text for text in caplog.messages if "expected gradients" in text]
    assert len(said) == 1
    assert re.search(r"up to 100000, found \d\S*e\+\d+ at iteration 1: the training diverges", said[0])
    assert float(read_detector(finetuned.weights)["backbone.bottom_up.stem.0.bias"].abs().max()) < 1


def test_a_picture_that_cannot_be_read_is_named(tmp_path):
    cfg = shapes_config("retinanet", tmp_path, *SHORT)
    (tmp_path / "data/images/002.png").write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"cannot read the image .*002\.png"):
        train_tiny(Detectron2Engine(), cfg, 0, tmp_path / "out")
