"""Settings to evaluations: names in records, refusals before compute, folders of trials."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from momentum_transfer.backbones.resnet import Architecture, build_resnet
from momentum_transfer.backbones.source import of_network
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.settings import with_values
from momentum_transfer.images.views import eval_transform
from momentum_transfer.lowshot import evaluations
from momentum_transfer.lowshot.classifier import Result
from momentum_transfer.lowshot.config import get_cfg
from momentum_transfer.lowshot.evaluations import CHECKS, ON_FEATURES, _check_batch, evaluate_diagnostics, percent
from momentum_transfer.lowshot.labelled_data import LabelledData
from tests.lowshot.toy_data import bright_or_dark, clusters


def config(*words: object):
    cfg = get_cfg()
    cfg.merge_from_list(list(words))
    return cfg


def every(*_) -> bool:
    return True


def test_a_fraction_of_the_labels_is_named_in_percent():
    assert [percent(fraction) for fraction in (1, 0.1, 0.01, 0.005)] == ["", "/10%", "/1%", "/0.5%"]


@pytest.mark.parametrize(
    ("batch", "images", "processes", "said"),
    [
        (8, 8, 1, ""),
        (9, 8, 1, "at most 8 .* found 9"),
        (2, 8, 1, ""),
        (1, 8, 1, "at least two images a process"),
        (4, 8, 2, ""),
        (2, 8, 2, "at least two images a process, the same number on each of 2, found 2"),
        (5, 8, 2, "found 5"),
    ],
)
def test_a_batch_is_filled_with_different_images_two_a_process(batch, images, processes, said):
    if not said:
        _check_batch("LINEAR.BATCH_SIZE", batch, images, processes)
        return
    with pytest.raises(InputError, match=rf"LINEAR\.BATCH_SIZE .*{said}"):
        _check_batch("LINEAR.BATCH_SIZE", batch, images, processes)


def test_neighbours_that_the_images_do_not_have_are_refused():
    for name in ("knn", "retrieval"):
        CHECKS[name](config("KNN.PRESETS", ["majority-6"]), np.zeros(6, int), "train")
        with pytest.raises(InputError, match="majority-7 asks for 7 neighbours, train has 6 images"):
            CHECKS[name](config("KNN.PRESETS", ["majority-7"]), np.zeros(6, int), "train")
    several = np.zeros((6, 3), int)
    CHECKS["retrieval"](config("KNN.PRESETS", ["majority-7"]), several, "train")  # no kNN there
    with pytest.raises(InputError, match="multi-hot labels in train; use retrieval"):
        CHECKS["knn"](config(), several, "train")
    with pytest.raises(InputError, match=r"at least one of eman, dino, .* in KNN\.PRESETS, found none"):
        CHECKS["knn"](config("KNN.PRESETS", []), np.zeros(6, int), "train")


def test_one_search_gives_retrieval_and_knns_presets_that_are_wanted(monkeypatch):
    searched = []
    original = evaluations.search
    monkeypatch.setattr(evaluations, "search", lambda *a, **b: searched.append(a[2]) or original(*a, **b))
    train, test = clusters(0, 60), clusters(1, 24)
    cfg = config("KNN.PRESETS", ["majority-5", "weighted-9"], "RETRIEVAL.TOP", 30)

    def found(name, wanted=every):
        return [(one.task, one.protocol, one.metric, one.value) for u in ON_FEATURES[name](cfg, train, test, wanted)
                for one in u]  # fmt: skip

    both = found("retrieval")
    assert {task for task, *_ in both} == {"knn/k=5", "knn/k=9", "retrieval"}
    assert [one for one in both if one[0] != "retrieval"] == found("knn")
    assert searched == [30, 9]
    assert {one[0] for one in found("retrieval", lambda task, *_: task == "retrieval")} == {"retrieval"}
    assert {one[0] for one in found("knn", lambda task, name, trial: name == "weighted-9")} == {"knn/k=9"}
    assert found("knn", lambda *_: False) == []
    assert searched == [30, 9, 30, 9]  # nothing is searched for nothing
    cfg.RETRIEVAL.TOP = 1000
    found("retrieval")
    assert searched[-1] == 60  # the images that there are


def test_diagnostics_know_two_views_of_the_images():
    test, other = clusters(1, 24), clusters(2, 24)
    asked = []

    def wanted(*key):
        asked.append(key)
        return True

    (alone,) = evaluate_diagnostics(config(), test, test, wanted)
    (both,) = evaluate_diagnostics(config(), test, test, every, (test, other))
    assert asked == [("diagnostics", "test", 0)]
    assert "alignment" not in {score.metric for score in alone}
    unit = [one.features / np.linalg.norm(one.features, axis=1, keepdims=True) for one in (test, other)]
    wanted_value = ((unit[0] - unit[1]) ** 2).sum(1).mean()
    assert next(s.value for s in both if s.metric == "alignment") == pytest.approx(wanted_value, rel=1e-5)
    assert list(evaluate_diagnostics(config(), test, test, lambda *_: False)) == []


def test_other_weights_settings_images_rows_and_trials_have_folders_of_their_own(tmp_path):
    cfg = config("OUTPUT_DIR", str(tmp_path))
    rows = np.arange(4)
    first = evaluations._run_folder(cfg, None, "linear/1%", 0, rows, {})
    assert first == evaluations._run_folder(cfg, None, "linear/1%", 0, np.arange(4), {})
    assert first.parent == tmp_path / "trials"
    assert first.name.startswith("linear_1_")
    assert first.name.endswith("_0")
    others = [
        evaluations._run_folder(cfg, None, "linear/1%", 1, rows, {}),
        evaluations._run_folder(cfg, None, "linear/10%", 0, rows, {}),
        evaluations._run_folder(cfg, None, "linear/1%", 0, rows + 1, {}),
        evaluations._run_folder(config("OUTPUT_DIR", str(tmp_path), "SEED", 5), None, "linear/1%", 0, rows, {}),
        evaluations._run_folder(cfg, None, "linear/1%", 0, rows, {"labels": "corrected"}),
    ]
    assert len({first, *others}) == 6


def test_what_a_config_changes_of_fixmatchs_preset_is_part_of_the_protocol():
    def protocol(*words):
        cfg = config("FIXMATCH.PRESET", "eman", "FIXMATCH.SCHEDULE", "1x", *words)
        return evaluations._fixmatch_protocol(cfg.FIXMATCH)

    assert protocol() == protocol("FIXMATCH.STRONG_LEVELS", "eman") == "eman-1x"
    assert protocol("FIXMATCH.STRONG_LEVELS", "uniform") == "eman-1x/strong_levels=uniform"


def test_a_linear_classifier_from_scratch_stands_on_another_calibrated_network_in_every_trial(tmp_path, monkeypatch):
    cfg = config("MODEL.ARCH", "resnet10", "MODEL.WIDTH", 4, "FEATURES.PRECISION", "fp32", "FEATURES.BATCH_SIZE", 16,
                 "LINEAR.TRIALS", 2, "LINEAR.BATCH_SIZE", 8, "OUTPUT_DIR", str(tmp_path), "SEED", 5)  # fmt: skip
    view = eval_transform("digits", 32)
    data = LabelledData(bright_or_dark(40, 0), bright_or_dark(8, 1), view, view)
    seen, build = [], evaluations.StageFeatures
    monkeypatch.setattr(evaluations, "StageFeatures", lambda *words: seen.append(build(*words)) or seen[-1])
    hits = {name: np.ones(8, bool) for name in ("top1", "top5")}
    monkeypatch.setattr(evaluations, "evaluate_linear", lambda *_: Result(1.0, 1.0, 0.1, hits))
    images = SimpleNamespace(labelled=lambda workers: data)
    assert len(list(evaluations.ON_IMAGES["linear"](cfg, None, images, every))) == 2
    pixels = torch.stack([view(data.train[row][0]) for row in range(40)])
    for trial, network in enumerate(each.backbone for each in seen):
        torch.manual_seed(5 + trial)
        fresh = build_resnet(Architecture("resnet10", 4))
        assert torch.equal(network.conv1.weight, fresh.conv1.weight)
        with torch.no_grad():
            maps = fresh.conv1(pixels)
        torch.testing.assert_close(network.bn1.running_mean, maps.mean((0, 2, 3)), atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(network.bn1.running_var, maps.var((0, 2, 3)), atol=1e-4, rtol=1e-2)
    assert len(seen) == 2
    thirteen = with_values(cfg, {"FEATURES.BATCH_SIZE": 13})
    evaluations._frozen(thirteen, None, data, 5)  # a last batch of one image has no statistics
    seen.pop()
    source = of_network(seen[0].backbone)
    assert len(list(evaluations.ON_IMAGES["linear"](cfg, source, images, every))) == 2
    assert len(seen) == 3  # given weights are one network for all trials
    assert torch.equal(seen[2].backbone.bn1.running_mean, seen[0].backbone.bn1.running_mean)
