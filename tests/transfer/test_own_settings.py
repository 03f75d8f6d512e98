"""A set of one's own: class count, masks, sizes and schedule follow from it; three exports give one AP, bit for bit."""

import json
from pathlib import Path

import pytest
import torch

from momentum_transfer.backbones import read as backbone_reading
from momentum_transfer.backbones.resnet import Architecture, build_resnet
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.settings import dump, value_of
from momentum_transfer.transfer import config, fit, own_settings
from momentum_transfer.transfer.config import identity
from momentum_transfer.transfer.cost import Estimate
from momentum_transfer.transfer.data import annotations
from momentum_transfer.transfer.data.own.open import open_own
from momentum_transfer.transfer.experiment import Experiment
from momentum_transfer.transfer.initial_weights import read_initial
from momentum_transfer.transfer.own_settings import OwnSource, _begun, kept_schedule, load_for, timed_schedule
from momentum_transfer.transfer.run import Request, run
from momentum_transfer.transfer.tasks import open_task
from tests.tools.in_process import run_tool
from tests.transfer import own_set

SMALL = [
    *("DATALOADER.NUM_WORKERS", "0", "MODEL.FPN.OUT_CHANNELS", "32", "MODEL.ROI_BOX_HEAD.FC_DIM", "32"),
    *("INPUT.MIN_SIZE_TRAIN", "[64]", "INPUT.MIN_SIZE_TEST", "64", "SOLVER.IMS_PER_BATCH", "2", "SOLVER.MAX_ITER", "3"),
    *("TEST.PRECISE_BN.NUM_ITER", "1", "MODEL.RPN.POST_NMS_TOPK_TEST", "20", "TEST.VISUALS", "0"),
    *("MODEL.DEVICE", "cpu", "ENGINE", "torchvision"),
    *("MODEL.ANCHOR_GENERATOR.SIZES", "[[8],[16],[32],[64],[128]]"),
]  # fmt: skip


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own") / "garden"
    own_set.write_all(folder, 12)
    return folder


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "tiny.pth"
    torch.manual_seed(0)
    torch.save(build_resnet(Architecture("resnet10", 8)).state_dict(), path)
    return path


def test_three_exports_of_one_set_train_and_score_alike_to_the_last_bit(forms: Path, weights: Path, tmp_path: Path):
    found = []
    for form in ("voc", "yolo", "coco_boxes"):
        out = tmp_path / form
        own = ["--train", forms / form, "--split", "0.7", "--title", "garden", "OUTPUT_DIR", out]
        done = run_tool("transfer", "--config", "transfer/own_small", "--weights", weights, *own, *SMALL)
        assert done.returncode == 0, done.stdout + done.stderr
        records = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
        found.append([(r["metric"], r["value"], r["dataset"], r["config"], r["data"]) for r in records])
    assert found[0][0][2] == "garden_val"
    assert found[0][0][4]["classes"] == 3
    assert any(value for _, value, *_ in found[0])
    assert found[1] == found[0]
    assert found[2] == found[0]
    classes = json.loads((tmp_path / "voc" / "classes.json").read_text())["classes"]
    assert [one["name"] for one in classes] == ["flower", "pagoda", "tree"]


def test_settings_follow_from_data_and_weights_and_given_words_win(forms: Path, weights: Path, capsys):
    source = OwnSource(str(forms / "coco"), split=0.7)
    cfg = load_for("transfer/own_small", ["SOLVER.BASE_LR", "0.1"], source, weights=str(weights))[0]
    assert (cfg.MODEL.ROI_HEADS.NUM_CLASSES, cfg.MODEL.MASK_ON, cfg.SOLVER.BASE_LR) == (3, True, 0.1)
    assert (cfg.MODEL.RESNETS.DEPTH, cfg.MODEL.RESNETS.STEM_OUT_CHANNELS) == (10, 8)
    assert "SOLVER.BASE_LR" not in capsys.readouterr().out
    boxes = load_for("transfer/mask_rcnn_fpn_1x", (), OwnSource(str(forms / "voc")))[0]
    assert (boxes.MODEL.ROI_HEADS.NUM_CLASSES, boxes.MODEL.MASK_ON, boxes.SOLVER.MAX_ITER) == (3, False, 90000)
    with pytest.raises(InputError, match="expected --train FOLDER_OR_FILE with --val"):
        OwnSource(split=0.5)


def test_label_pngs_train_a_segmenter(forms: Path):
    cfg = load_for("smoke/deeplab_v3_digits", ("TEST.VISUALS", "0"), OwnSource(str(forms / "labels")))[0]
    task = open_task(cfg)
    assert (cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES, [data.name for data in task.sets()]) == (
        4,
        ["garden_train", "garden_val"],
    )
    assert [len(data.pairs) for data in task.sets()] == [8, 4]
    with pytest.raises(InputError, match="expected --val FOLDER with label PNGs, found --split"):
        load_for("smoke/deeplab_v3_digits", (), OwnSource(str(forms / "labels"), split=0.5))
    with pytest.raises(InputError, match="expected folders of images"):
        load_for("smoke/deeplab_v3_digits", (), OwnSource(str(forms / "voc")))


def test_sizes_batch_and_schedule_scale_with_boxes_memory_and_images(forms: Path):
    data = open_own(forms / "voc").train
    cfg = load_for("transfer/own_small", (), OwnSource(str(forms / "voc")))[0]

    def fitted(machine: fit.Machine) -> dict[str, object]:
        return {one.key: one.value for one in fit.fit(cfg, [data], machine)}

    cpu, gpu, poor = (fitted(fit.Machine(*m)) for m in (("cpu", 30e9), ("cuda", 80e9), ("cpu", 2.6e9)))
    assert cpu["SOLVER.IMS_PER_BATCH"] == 4
    assert gpu["SOLVER.IMS_PER_BATCH"] == 8
    assert poor["SOLVER.IMS_PER_BATCH"] == 1
    assert poor["INPUT.MIN_SIZE_TEST"] < cpu["INPUT.MIN_SIZE_TEST"] <= gpu["INPUT.MIN_SIZE_TEST"]
    assert cpu["SOLVER.MAX_ITER"] == (fit.VIEWS + 8 * fit.VIEWS_PER_IMAGE) // 4
    for keys in (cpu, gpu, poor):
        assert all(value_of(cfg, key) is not None for key in keys)


def test_rate_and_schedule_follow_a_given_batch(forms: Path, capsys):
    source = OwnSource(str(forms / "voc"))
    cfg = load_for("transfer/own_small", ["SOLVER.IMS_PER_BATCH", "2"], source)[0]
    views = fit.VIEWS + 8 * fit.VIEWS_PER_IMAGE
    assert (2, 0.01, views // 2) == (cfg.SOLVER.IMS_PER_BATCH, cfg.SOLVER.BASE_LR, cfg.SOLVER.MAX_ITER)
    said = capsys.readouterr().out
    assert "SOLVER.BASE_LR 0.01: 0.005 an image of a batch of 2" in said
    assert "SOLVER.IMS_PER_BATCH" not in said
    words = ["SOLVER.IMS_PER_BATCH", "2", "SOLVER.BASE_LR", "0.3", "SOLVER.MAX_ITER", "40"]
    solver = load_for("transfer/own_small", words, source)[0].SOLVER
    assert (solver.IMS_PER_BATCH, solver.BASE_LR, solver.MAX_ITER, solver.WARMUP_ITERS) == (2, 0.3, 40, 4)


def test_a_segmenters_sizes_crop_and_schedule_follow_from_label_pngs(forms: Path, weights: Path, capsys):
    labels = OwnSource(str(forms / "labels"))
    views = fit.VIEWS + 8 * fit.VIEWS_PER_IMAGE
    cfg = load_for("transfer/own_small_segmentation", ("MODEL.DEVICE", "cpu"), labels, weights=str(weights))[0]
    assert (list(cfg.INPUT.MIN_SIZE_TRAIN), cfg.INPUT.MIN_SIZE_TEST) == ([192, 224, 256], 256)  # files of 320 × 240 px
    assert (cfg.INPUT.CROP.ENABLED, cfg.MODEL.RESNETS.DEPTH) == (False, 10)
    assert (4, views // 4, 0.01) == (cfg.SOLVER.IMS_PER_BATCH, cfg.SOLVER.MAX_ITER, cfg.SOLVER.BASE_LR)
    assert "INPUT.CROP.ENABLED False: images are seen whole" in capsys.readouterr().out
    task = open_task(cfg)
    task.check(cfg, overview=False)

    words = ["SOLVER.IMS_PER_BATCH", "2", "INPUT.MIN_SIZE_TEST", "96"]
    published = load_for("transfer/deeplab_v3_stride16", words, labels)[0]
    assert (published.INPUT.MIN_SIZE_TEST, published.INPUT.CROP.ENABLED) == (96, False)
    assert (0.005, views // 2) == (published.SOLVER.BASE_LR, published.SOLVER.MAX_ITER)
    assert "crops of [512, 1024] do not fit these images" in capsys.readouterr().out
    alone = load_for("transfer/deeplab_v3_stride16", words, labels, weights=str(weights), eval_only=True)[0]
    assert not alone.INPUT.CROP.ENABLED  # also without a config.yaml beside the weights

    linear = load_for("transfer/linear_segmentation_cityscapes", ("FIT_TO_DATA", "True"), labels)[0]
    assert (list(linear.INPUT.MIN_SIZE_TRAIN), linear.SOLVER.BASE_LR) == ([256], 0.001)  # one size: features are kept
    whole = ("INPUT.CROP.ENABLED", "False")
    assert load_for("transfer/deeplab_v3_stride16", whole, labels)[0].SOLVER.MAX_ITER == 90000
    with pytest.raises(InputError, match=r"INPUT\.CROP\.SIZE"):  # a crop that was given stays, and is refused
        refused = load_for("transfer/deeplab_v3_stride16", ("INPUT.CROP.SIZE", "[640, 640]"), labels)[0]
        open_task(refused).check(refused, overview=False)
    own_crop = ["INPUT.CROP.SIZE", "[96, 96]", "INPUT.CROP.ENABLED", "True"]
    assert load_for("transfer/own_small_segmentation", own_crop, labels)[0].INPUT.CROP.ENABLED


def within_minutes(cfg, weights, minutes, place, resume=False):
    """The settings with a schedule that was kept, or else with a timed one."""
    kept = kept_schedule(cfg, minutes, place, resume)
    return kept or timed_schedule(Experiment(cfg, open_task(cfg), read_initial(weights, cfg)), minutes, place)


@pytest.fixture
def seconds_a_step(monkeypatch) -> list[float]:
    """What the next timings find."""
    waiting: list[float] = []

    def timed(experiment):
        return Estimate(waiting.pop(0), 0.0, experiment.cfg.SOLVER.MAX_ITER, 0, 0, 0.0, "cpu")

    monkeypatch.setattr("momentum_transfer.transfer.cost.estimate", timed)
    return waiting


def test_the_first_run_decides_the_schedule_of_a_comparison(forms, weights, tmp_path, seconds_a_step, capsys):
    seconds_a_step += [1.0, 9.0, 9.0]
    found, place = [], tmp_path / "outputs"
    for name in (str(weights), f"random-of:{weights}"):
        words = [*SMALL, "SOLVER.MAX_ITER", "300", "OUTPUT_DIR", str(place / str(len(found)))]
        cfg = load_for("transfer/own_small", words, OwnSource(str(forms / "voc"), split=0.7), weights=name)[0]
        found.append(within_minutes(cfg, name, 1.0, place))
    assert [cfg.SOLVER.MAX_ITER for cfg in found] == [60, 60]
    assert identity(found[0]) == identity(found[1])
    assert "decided by the first run of this comparison" in capsys.readouterr().out
    assert seconds_a_step == [9.0, 9.0]  # the second run timed nothing

    assert within_minutes(cfg, name, 2.0, place).SOLVER.MAX_ITER == 13  # other minutes are another comparison
    assert within_minutes(cfg, name, 1.0, tmp_path / "elsewhere").SOLVER.MAX_ITER == 6
    (file,) = (tmp_path / "elsewhere").glob("schedule_*.json")
    for damaged in ("[1]", "{}", '{"MAX_ITER": 0, "STEPS": [], "WARMUP_ITERS": 1}', '{"MAX_ITER": "6"}', "{"):
        file.write_text(damaged)
        with pytest.raises(InputError, match=r"expected .*schedule"):
            within_minutes(cfg, name, 1.0, tmp_path / "elsewhere")


def test_a_resumed_run_keeps_the_schedule_that_it_began_with(forms, weights, tmp_path, seconds_a_step):
    seconds_a_step.append(1.0)
    words = [*SMALL, "SOLVER.MAX_ITER", "300", "SOLVER.STEPS", "[100, 200]", "OUTPUT_DIR", str(tmp_path / "run")]
    cfg = load_for("transfer/own_small", words, OwnSource(str(forms / "voc"), split=0.7), weights=str(weights))[0]
    begun = within_minutes(cfg, str(weights), 1.0, tmp_path)
    assert (begun.SOLVER.MAX_ITER, list(begun.SOLVER.STEPS)) == (60, [20, 40])
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.yaml").write_text(begun.dump())
    for file in tmp_path.glob("schedule_*.json"):
        file.unlink()
    assert identity(within_minutes(cfg, str(weights), 1.0, tmp_path, resume=True)) == identity(begun)


def test_a_teachers_burn_in_is_as_much_of_a_shortened_run_as_of_the_whole(forms, weights, tmp_path, seconds_a_step):
    seconds_a_step.append(1.0)
    words = [*SMALL, "SOLVER.MAX_ITER", "300", "SEMI.TEACHER", "True", "SEMI.BURN_IN", "120"]
    words += ["OUTPUT_DIR", str(tmp_path / "run")]
    cfg = load_for("transfer/own_small", words, OwnSource(str(forms / "voc"), split=0.7), weights=str(weights))[0]
    begun = within_minutes(cfg, str(weights), 1.0, tmp_path)
    assert (begun.SOLVER.MAX_ITER, begun.SEMI.BURN_IN) == (60, 24)
    assert identity(within_minutes(cfg, str(weights), 1.0, tmp_path)) == identity(begun)  # of a comparison's second run
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.yaml").write_text(dump(begun))
    (file,) = tmp_path.glob("schedule_*.json")
    kept = json.loads(file.read_text())
    file.unlink()
    assert identity(within_minutes(cfg, str(weights), 1.0, tmp_path, resume=True)) == identity(begun)
    file.write_text(json.dumps({**kept, "BURN_IN": 120}))
    with pytest.raises(InputError, match=r"SEMI\.BURN_IN below SOLVER\.MAX_ITER 60, found 120"):
        kept_schedule(cfg, 1.0, tmp_path)


def test_what_cannot_be_timed_says_why(forms, weights, tmp_path):
    source = OwnSource(str(forms / "voc"), split=0.7)
    words = ["MODEL.RESNETS.DEPTH", "10", "MODEL.DEVICE", "cpu", "MODEL.RESNETS.RES2_OUT_CHANNELS", "256"]
    cfg = load_for("transfer/own_small", words, source, weights="none")[0]
    with pytest.raises(InputError, match=r"with --minutes, found another: .*STEM_OUT_CHANNELS"):
        within_minutes(cfg, "none", 1.0, tmp_path)
    labels = load_for("transfer/own_small_segmentation", ("MODEL.DEVICE", "cpu"), OwnSource(str(forms / "labels")))[0]
    with pytest.raises(InputError, match="a segmenter, whose steps are not timed beforehand"):
        within_minutes(labels, "none", 1.0, tmp_path)


def test_an_evaluation_has_the_sizes_and_anchors_of_its_detectors_training(forms, tmp_path, monkeypatch):
    source, words = OwnSource(str(forms / "voc")), ["MODEL.DEVICE", "cpu", "OUTPUT_DIR", str(tmp_path / "eval")]
    monkeypatch.setattr(own_settings, "this_machine", lambda _: fit.Machine("cuda", 80e9))
    on_gpu = load_for("transfer/own_small", words, source)[0]
    run_folder = tmp_path / "run"
    run_folder.mkdir()
    (run_folder / "config.yaml").write_text(dump(on_gpu))
    monkeypatch.setattr(own_settings, "this_machine", lambda _: fit.Machine("cpu", 1e9))
    on_cpu = load_for("transfer/own_small", words, source)[0]
    keys = ["INPUT.MIN_SIZE_TEST", "INPUT.MAX_SIZE_TEST", "MODEL.ANCHOR_GENERATOR.SIZES"]
    assert all(value_of(on_gpu, key) != value_of(on_cpu, key) for key in keys)
    for given in (run_folder, run_folder / "model_best.pth"):
        for more, weights in (([], str(given)), (["MODEL.WEIGHTS", str(given)], "")):
            named = [*words, "MODEL.BACKBONE.ARCH", "", *more]  # so that the weights need not be read
            cfg = load_for("transfer/own_small", named, source, weights=weights, eval_only=True)[0]
            assert [value_of(cfg, key) for key in keys] == [value_of(on_gpu, key) for key in keys]
    with pytest.raises(InputError, match=r"config\.yaml beside --weights .* found no .*elsewhere/config\.yaml; give"):
        load_for("transfer/own_small", words, source, weights=str(tmp_path / "elsewhere/a.pth"), eval_only=True)


def test_the_network_at_random_of_a_checkpoint_gets_its_depth_and_widths(forms, weights):
    source = OwnSource(str(forms / "voc"), split=0.7)
    given, random = (load_for("transfer/own_small", SMALL, source, weights=f"{before}{weights}")[0]
                     for before in ("", "random-of:"))  # fmt: skip
    assert (random.MODEL.RESNETS.DEPTH, random.MODEL.RESNETS.STEM_OUT_CHANNELS) == (10, 8)
    assert identity(random) == identity(given)


def test_data_and_weights_are_opened_once_with_minutes_and_a_begun_training_is_refused_before_a_step_is_timed(
    forms, weights, tmp_path, seconds_a_step, monkeypatch
):
    read, seconds_a_step[:] = [], [1e9, 1e9]
    for module, name in ((backbone_reading, "sha256_of"), (annotations, "read_annotations")):
        original = getattr(module, name)
        monkeypatch.setattr(module, name, lambda file, original=original: read.append(file) or original(file))
    words = [*SMALL, "OUTPUT_DIR", str(tmp_path / "run/one")]
    cfg, opened = load_for("transfer/own_small", words, OwnSource(str(forms / "voc"), split=0.7), weights=str(weights))
    run(cfg, Request(str(weights), minutes=1.0), opened)
    assert len(seconds_a_step) == 1
    assert (read.count(weights), len(read)) == (1, 3)  # the part that trains, and the part that tests
    for file in tmp_path.glob("run/one/*.json*"):
        if file.name.startswith(("schedule", "results")):
            file.unlink()
    with pytest.raises(InputError, match="holds a training already"):
        run(cfg, Request(str(weights), minutes=1.0), opened)
    assert len(seconds_a_step) == 1


def test_what_several_trials_began_with_is_that_of_the_first(tmp_path):
    cfg = config.load("transfer/own_small", ["OUTPUT_DIR", str(tmp_path)])
    assert _begun(cfg) == tmp_path / "config.yaml"
    (tmp_path / "trial_0").mkdir()
    (tmp_path / "trial_0/config.yaml").touch()
    assert _begun(cfg) == tmp_path / "trial_0/config.yaml"
    (tmp_path / "config.yaml").touch()
    assert _begun(cfg) == tmp_path / "config.yaml"
