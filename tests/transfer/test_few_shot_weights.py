"""From base to novel classes: rows keep their classes, what is frozen stays, and two stages run one after another."""

import json

import pytest
import torch

from momentum_transfer.core import records as results
from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.initial_weights import InitialWeights, read_detector
from momentum_transfer.transfer.run import Request, run
from momentum_transfer.transfer.torchvision_engine import train
from momentum_transfer.transfer.torchvision_engine.detectors import LAST_LAYERS, export_state
from momentum_transfer.transfer.torchvision_engine.engine import build, initialise
from tests.process_group import kill_at
from tests.transfer.torchvision_engine.tiny import shapes_config, tiny_config, tiny_samples

SHORT = ["SOLVER.MAX_ITER", "2", "SOLVER.STEPS", "()", "ENGINE", "torchvision", "PROTOCOL", "tiny"]
COUNTS = ("MODEL.ROI_HEADS.NUM_CLASSES", "MODEL.RETINANET.NUM_CLASSES", "MODEL.FCOS.NUM_CLASSES")


def with_classes(detector: str, count: int, *overrides: str):
    return build(tiny_config(detector, *[word for key in COUNTS for word in (key, str(count))], *overrides))


def logits(detector):
    """Class logits of a fixed input: [regions, classes (and background)] or [cells × anchors, classes]."""
    torch.manual_seed(5)
    if hasattr(detector, "heads"):
        maps = [torch.randn(1, detector.backbone.channels["p3"], 4, 4)]
        return detector.heads.head(maps)[0][0][0]
    predictors = detector.roi_heads.box_predictor
    one = predictors[1] if isinstance(predictors, torch.nn.ModuleList) else predictors
    return one(torch.randn(6, one.cls_score.in_features))[0]


@pytest.mark.parametrize("detector", ["mask_rcnn", "cascade", "retinanet", "fcos", "faster_rcnn_c4"])
def test_a_detector_of_more_classes_scores_the_old_ones_as_before(detector):
    torch.manual_seed(0)
    base, second, whole = (with_classes(detector, count) for count in (3, 2, 5))
    start = InitialWeights("base", detector=export_state(base), places=(0, 2, 3), rest=(1, 4))
    fresh, old, dense = logits(whole), logits(base), hasattr(whole, "heads")
    initialise(whole, start)
    found = logits(whole)
    assert torch.allclose(found[:, [0, 2, 3]], old[:, :3], atol=1e-5)
    if not dense:  # a tower before the new rows comes from the base detector too
        assert torch.allclose(found[:, 5], old[:, 3], atol=1e-6)  # background
        assert torch.allclose(found[:, [1, 4]], fresh[:, [1, 4]], atol=1e-6)
    state, given, novel = export_state(whole), export_state(base), export_state(second)
    assert all(torch.equal(state[name], given[name]) for name in given if state[name].shape == given[name].shape)
    if detector == "mask_rcnn":
        boxes = "roi_heads.box_predictor.bbox_pred.weight"
        assert torch.equal(state[boxes].view(5, 4, -1)[[0, 2, 3]], given[boxes].view(3, 4, -1))
        assert torch.equal(
            state["roi_heads.mask_head.predictor.bias"][[0, 2, 3]], given["roi_heads.mask_head.predictor.bias"]
        )
    initialise(whole, InitialWeights("base", detector=given, places=(0, 2, 3), rest=(1, 4), novel=novel))
    state = export_state(whole)
    for name in novel:
        if "cls_score.weight" in name and not name.startswith("head."):
            assert torch.equal(state[name][[1, 4]], novel[name][:2])
            assert torch.equal(state[name][5], given[name][3])  # background: the base detector's


def test_rows_of_another_number_of_classes_are_refused_and_a_cosine_classifier_drops_the_bias():
    base = with_classes("mask_rcnn", 3)
    with pytest.raises(InputError, match=r"expected \d+ rows for 2 classes in roi_heads"):
        initialise(with_classes("mask_rcnn", 5),
                   InitialWeights("base", detector=export_state(base), places=(0, 1), rest=(2, 3, 4)))  # fmt: skip
    cosine = with_classes("mask_rcnn", 5, "MODEL.ROI_BOX_HEAD.COSINE_SCALE", "20.0")
    initialise(cosine, InitialWeights("base", detector=export_state(base), places=(0, 1, 2), rest=(3, 4)))
    given = base.roi_heads.box_predictor.cls_score.weight
    assert torch.equal(cosine.roi_heads.box_predictor.cls_score.weight[[0, 1, 2, 5]], given)


@pytest.mark.parametrize("detector", ["mask_rcnn_4conv1fc", "cascade", "retinanet", "fcos", "mask_rcnn_c4"])
def test_only_the_last_layers_take_gradients_and_frozen_norms_keep_their_statistics(detector):
    network = build(tiny_config(detector, "FEW_SHOT.NOVEL", "['a']", "FEW_SHOT.TRAINED", "last"))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    sum(network.train()(tiny_samples()).values()).backward()
    with_gradient = {name for name, value in network.named_parameters() if value.grad is not None}
    assert with_gradient
    assert with_gradient == {name for name, _ in network.named_parameters() if LAST_LAYERS.search(name)}
    after = network.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before if not name.endswith("loss_normalizer.value"))


def stage(folder, name, *overrides, novel="['triangle']", classes=2):
    count = ["MODEL.ROI_HEADS.NUM_CLASSES", str(classes)]
    few = ["FEW_SHOT.NOVEL", novel, "FEW_SHOT.STAGE", name, "FEW_SHOT.SHOTS", "2", "OUTPUT_DIR", str(folder / name)]
    return shapes_config("mask_rcnn", folder, *SHORT, "MODEL.MASK_ON", "False", *count, *few, *overrides)


TFA = ["FEW_SHOT.TRAINED", "last", "MODEL.ROI_BOX_HEAD.COSINE_SCALE", "20.0"]


def test_two_stages_leave_records_of_base_novel_and_all_classes_by_draw(tmp_path):
    run(stage(tmp_path, "base"), Request("none"))
    base = tmp_path / "base/model_final.pth"
    assert {record["task"] for record in results.read(tmp_path / "base/results.jsonl")[0]} == {"coco/bbox/base"}
    run(stage(tmp_path, "novel", *TFA[:2], classes=1), Request(str(base)))
    second = ["FEW_SHOT.NOVEL_WEIGHTS", str(tmp_path / "novel")]  # a run's folder is its detector
    few = ["TRIALS", "3", "FEW_SHOT.SEEDS", "2", "FEW_SHOT.DRAW", "4", *TFA, *second]
    run(stage(tmp_path, "all", *few, classes=3), Request(str(tmp_path / "base")))
    found = results.read(tmp_path / "all/results.jsonl")[0]
    assert {record["task"] for record in found} == {f"coco/bbox{part}" for part in ("", "/base", "/novel")}
    ap = [record for record in found if (record["task"], record["metric"]) == ("coco/bbox", "AP")]
    assert [(r["trial"], r["seed"], r["draw"], r["shots"]) for r in ap] == [(0, 0, 4, 2), (1, 1, 4, 2), (2, 2, 5, 2)]
    before, after = read_detector(base), read_detector(tmp_path / "all/trial_0/model_final.pth")
    changed = {name for name in after if not torch.equal(before.get(name, torch.zeros(0)), after[name])}
    assert changed == {name for name in after if LAST_LAYERS.search(name)}


@pytest.mark.slow
def test_draws_killed_in_the_second_trial_and_resumed_equal_uninterrupted_ones_bit_for_bit(tmp_path):
    run(stage(tmp_path, "base"), Request("none"))
    base = str(tmp_path / "base/model_final.pth")
    few = ["TRIALS", "2", "SOLVER.MAX_ITER", "4", "SOLVER.CHECKPOINT_PERIOD", "1", "INPUT.MIN_SIZE_TRAIN", "[48,64]"]
    whole, parts = (
        stage(tmp_path, "all", *few, *TFA, "OUTPUT_DIR", str(tmp_path / name), classes=3) for name in ("whole", "parts")
    )
    run(whole, Request(base))
    kill_at(train.Log, "add", 7, run, parts, Request(base))
    assert (tmp_path / "parts/trial_0/model_final.pth").exists()
    assert (tmp_path / "parts/trial_1/checkpoints/last").read_text().strip() == "step_0000002.pth"
    run(parts, Request(base, resume=True))
    for trial in ("trial_0", "trial_1"):
        first, second = (read_detector(tmp_path / name / trial / "model_final.pth") for name in ("whole", "parts"))
        assert all(torch.equal(first[name], second[name]) for name in first)
    values = [
        [(r["trial"], r["draw"], r["task"], r["metric"], r["value"]) for r in results.read(folder / "results.jsonl")[0]]
        for folder in (tmp_path / "whole", tmp_path / "parts")
    ]
    assert len(values[0]) > 0
    assert repr(values[0]) == repr(values[1])  # NaN equals itself


def test_what_does_not_fit_the_base_detector_is_refused_before_the_training(tmp_path):
    run(stage(tmp_path, "base"), Request("none"))
    base = str(tmp_path / "base/model_final.pth")
    with pytest.raises(InputError, match=r"novel classes that .* does not know, found 'square' among its base classes"):
        run(stage(tmp_path, "all", novel="['square']", classes=3), Request(base))
    with pytest.raises(InputError, match=r"expected a detector of the stage base .* found none"):
        run(stage(tmp_path, "all", *TFA, classes=3), Request("none"))
    with pytest.raises(InputError, match=r"expected the novel classes triangle in .*, found square, diamond"):
        run(stage(tmp_path, "all", *TFA, "FEW_SHOT.NOVEL_WEIGHTS", base, classes=3), Request(base))
    with pytest.raises(InputError, match=r"9 or more objects of 'square'"):
        run(stage(tmp_path, "all", "FEW_SHOT.SHOTS", "9", classes=3), Request(base))
    note = tmp_path / "base/classes.json"
    content = json.loads(note.read_text())
    content["classes"][0]["name"] = "circle"
    note.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"base classes square, diamond in .*, found one that differs in 'circle'"):
        run(stage(tmp_path, "all", classes=3), Request(base))
    assert not (tmp_path / "all/model_final.pth").exists()
