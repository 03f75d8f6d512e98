import json

import pytest
import torch

from momentum_transfer.core.command import Stopped
from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.initial_weights import read_initial
from momentum_transfer.transfer.scores import coco
from momentum_transfer.transfer.torchvision_engine import train
from momentum_transfer.transfer.torchvision_engine.engine import TorchvisionEngine
from tests.process_group import outcome_in_own_group, signal_own_group
from tests.transfer.torchvision_engine.test_semantic import labels_config
from tests.transfer.torchvision_engine.tiny import DETECTORS, SEGMENTORS, predict_tiny, shapes_config, train_tiny

SHORT = ["SOLVER.MAX_ITER", "4", "SOLVER.STEPS", "(3,)", "SOLVER.WARMUP_ITERS", "2", "SOLVER.BASE_LR", "0.01"]
PRECISE = ["TEST.PRECISE_BN.ENABLED", "True", "TEST.PRECISE_BN.NUM_ITER", "2"]
#: Detector → iterations on four training scenes, and the box and mask AP (percent) that it must reach.
OVERFIT = {
    "mask_rcnn": (40, 20, 20),
    "mask_rcnn_4conv1fc": (60, 40, 15),
    "cascade": (50, 30, 20),
    "retinanet": (40, 60, None),
    "fcos": (40, 60, None),
    "faster_rcnn_c4": (40, 20, None),
    "mask_rcnn_c4": (40, 20, 10),
}


#: Several sizes, flips and rare images repeated: all that is drawn at random in the data path.
RANDOM_DATA = ["INPUT.RANDOM_FLIP", "horizontal", "INPUT.MIN_SIZE_TRAIN", "[48, 64]"]
RANDOM_DATA += ["DATALOADER.SAMPLER_TRAIN", "RepeatFactorTrainingSampler", "DATALOADER.REPEAT_THRESHOLD", "1.0"]


def resumable(name, folder):
    """Settings of a detector or of DeepLab with all randomness that its data path knows."""
    if name in DETECTORS:
        return shapes_config(name, folder, *SHORT, *PRECISE, *RANDOM_DATA)
    crop = ["INPUT.CROP.ENABLED", "True", "INPUT.CROP.TYPE", "absolute", "INPUT.CROP.SIZE", "[48, 48]"]
    dropout = ["MODEL.SEM_SEG_HEAD.ASPP_DROPOUT", "0.1"]
    return labels_config(name, folder, *SHORT, *PRECISE, *RANDOM_DATA[:2], *crop, *dropout)


@pytest.mark.parametrize("name", DETECTORS | SEGMENTORS)
def test_stopped_and_resumed_equals_uninterrupted_bit_for_bit(name, tmp_path, stop_after):
    cfg = resumable(name, tmp_path)
    engine = TorchvisionEngine()
    whole = train_tiny(engine, cfg, 3, tmp_path / "whole")
    undo = stop_after(2)
    with pytest.raises(Stopped, match=r"stopped after iteration 2; .*--resume") as stopped:
        train_tiny(engine, cfg, 3, tmp_path / "parts")
    assert stopped.value.exit_code == 143
    undo()
    torch.manual_seed(99)  # whatever happened in between
    parts = train_tiny(engine, cfg, 3, tmp_path / "parts", resume=True)
    first, second = (torch.load(f.weights, weights_only=True)["model"] for f in (whole, parts))
    assert set(first) == set(second)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert (whole.loaded, whole.new) == (parts.loaded, parts.new)


def _finetune_and_signal_the_group(cfg, folder):
    step = train._step

    def interrupt(model, samples, training, number):
        losses = step(model, samples, training, number)
        if number == 1:
            signal_own_group()
        return losses

    train._step = interrupt
    train_tiny(TorchvisionEngine(), cfg, 3, folder)


@pytest.mark.parametrize("name", ["retinanet", *SEGMENTORS][:2])
def test_signal_to_the_whole_group_leaves_workers_alive_until_the_step_is_saved(name, tmp_path):
    cfg = resumable(name, tmp_path)
    cfg.defrost()
    cfg.DATALOADER.NUM_WORKERS = 2
    outcome = outcome_in_own_group(_finetune_and_signal_the_group, cfg, tmp_path / "parts")
    assert outcome.startswith("Stopped 143: stopped after iteration 2")
    parts = train_tiny(TorchvisionEngine(), cfg, 3, tmp_path / "parts", resume=True)
    whole = train_tiny(TorchvisionEngine(), cfg, 3, tmp_path / "whole")
    first, second = (torch.load(f.weights, weights_only=True)["model"] for f in (whole, parts))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_another_seed_gives_another_detector(tmp_path):
    cfg = shapes_config("retinanet", tmp_path, *SHORT, "SOLVER.MAX_ITER", "1", "SOLVER.STEPS", "()")
    weights = [
        torch.load(train_tiny(TorchvisionEngine(), cfg, seed, tmp_path / str(seed)).weights, weights_only=True)
        for seed in (0, 1)
    ]
    assert not torch.equal(*(w["model"]["head.cls_score.weight"] for w in weights))


def test_a_folder_with_a_training_is_not_overwritten(tmp_path):
    cfg = shapes_config("retinanet", tmp_path, *SHORT)
    engine = TorchvisionEngine()
    first = train_tiny(engine, cfg, 0, tmp_path / "out")
    with pytest.raises(InputError, match="holds a training already; go on with --resume"):
        train_tiny(engine, cfg, 0, tmp_path / "out")
    stamp = first.weights.stat().st_mtime_ns
    assert train_tiny(engine, cfg, 0, tmp_path / "out", resume=True).weights.stat().st_mtime_ns == stamp


def test_resuming_with_other_settings_names_the_first_difference(tmp_path, stop_after):
    cfg = shapes_config("retinanet", tmp_path, *SHORT)
    stop_after(1)
    with pytest.raises(Stopped):
        train_tiny(TorchvisionEngine(), cfg, 0, tmp_path / "out")
    other = shapes_config("retinanet", tmp_path, *SHORT, "SOLVER.BASE_LR", "0.02")
    with pytest.raises(InputError, match=r"SOLVER.BASE_LR was 0.01 and is 0.02"):
        train_tiny(TorchvisionEngine(), other, 0, tmp_path / "out", resume=True)


def test_a_training_of_detectron2_is_not_begun_anew(tmp_path):
    cfg = shapes_config("retinanet", tmp_path, *SHORT)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/last_checkpoint").write_text("model_0000001.pth")
    with pytest.raises(InputError, match=r"found a last_checkpoint of Detectron2; resume with the engine that wrote"):
        train_tiny(TorchvisionEngine(), cfg, 0, tmp_path / "out", resume=True)


def test_a_checkpoint_on_the_way_is_a_detector_that_either_engine_reads(tmp_path, stop_after):
    cfg = shapes_config("retinanet", tmp_path, *SHORT)
    stop_after(1)
    with pytest.raises(Stopped):
        train_tiny(TorchvisionEngine(), cfg, 0, tmp_path / "out")
    checkpoint = tmp_path / "out/checkpoints/step_0000001.pth"
    assert (checkpoint.parent / "last").read_text() == "step_0000001.pth\n"
    initial = read_initial(str(checkpoint))
    assert initial.name == "out"
    assert "head.cls_score.weight" in initial.detector


def test_a_truncated_checkpoint_is_refused(tmp_path, stop_after):
    cfg = shapes_config("retinanet", tmp_path, *SHORT)
    stop_after(1)
    with pytest.raises(Stopped):
        train_tiny(TorchvisionEngine(), cfg, 0, tmp_path / "out")
    checkpoint = tmp_path / "out/checkpoints/step_0000001.pth"
    checkpoint.write_bytes(checkpoint.read_bytes()[:1000])
    with pytest.raises(InputError, match=r"expected a whole checkpoint, found .*step_0000001.pth truncated"):
        train_tiny(TorchvisionEngine(), cfg, 0, tmp_path / "out", resume=True)


def test_a_loss_that_is_not_finite_stops_and_names_the_images(tmp_path):
    cfg = shapes_config("retinanet", tmp_path, *SHORT, "SOLVER.BASE_LR", "1e30", "SOLVER.WARMUP_ITERS", "0")
    with pytest.raises(
        InputError, match=r"not finite at iteration \d \(.*\) on the images \d, \d; lower SOLVER.BASE_LR"
    ):
        train_tiny(TorchvisionEngine(), cfg, 0, tmp_path / "out")


def test_metrics_hold_losses_rate_and_times(tmp_path):
    cfg = shapes_config("mask_rcnn", tmp_path, *SHORT)
    finetuned = train_tiny(TorchvisionEngine(), cfg, 0, tmp_path / "out")
    lines = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    assert lines[0]["step"] == 1
    losses = [value for name, value in lines[0].items() if name.startswith("loss_")]
    assert lines[0]["loss"] == pytest.approx(sum(losses), rel=1e-5)
    assert lines[0]["lr"] == pytest.approx(0.01 * 0.001)
    assert 0 < lines[0]["data_seconds"] < lines[0]["seconds"]
    assert finetuned.seconds_per_step > 0


def test_mixed_precision_trains_in_bfloat16(tmp_path):
    cfg = shapes_config("mask_rcnn", tmp_path, *SHORT, "SOLVER.AMP.ENABLED", "True", "SOLVER.AMP.PRECISION", "bfloat16")
    finetuned = train_tiny(TorchvisionEngine(), cfg, 0, tmp_path / "out")
    state = torch.load(finetuned.weights, weights_only=True)["model"]
    assert {value.dtype for value in state.values()} <= {torch.float32, torch.int64}


@pytest.mark.parametrize(
    "detector",
    [
        pytest.param(one, marks=pytest.mark.slow) if one in ("mask_rcnn_4conv1fc", "mask_rcnn_c4") else one
        for one in OVERFIT
    ],
)
def test_each_detector_overfits_four_scenes(detector, tmp_path):
    iterations, *least = OVERFIT[detector]
    settings = ["SOLVER.IMS_PER_BATCH", "4", "SOLVER.MAX_ITER", str(iterations), "SOLVER.STEPS", f"({iterations - 8},)"]
    settings += ["SOLVER.BASE_LR", "0.02", "MODEL.RPN.POST_NMS_TOPK_TRAIN", "20", "MODEL.RPN.POST_NMS_TOPK_TEST", "20"]
    settings += ["MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE", "8"]
    if detector.endswith("c4"):
        settings += ["MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION", "8"]
    cfg = shapes_config(detector, tmp_path, *settings, "SOLVER.WARMUP_ITERS", "10", *PRECISE)
    engine = TorchvisionEngine()
    finetuned = train_tiny(engine, cfg, 0, tmp_path / "out")
    predictions = predict_tiny(engine, cfg, finetuned.weights, tmp_path / "out")[0]
    truth = cfg.DATASETS.TEST[0].rpartition(":")[2]
    for iou_type, wanted in zip(("bbox", "segm"), least, strict=True):
        if wanted is not None:
            assert coco.evaluate(truth, str(predictions.results), iou_type).metrics["AP"] >= wanted
