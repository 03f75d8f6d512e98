from dataclasses import fields, replace

import numpy as np
import pytest
from sklearn.metrics import average_precision_score
from sklearn.svm import LinearSVC

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.neighbours import normalized
from momentum_transfer.lowshot.config import SETTINGS
from momentum_transfer.lowshot.features.feature_set import FeatureSet
from momentum_transfer.lowshot.labelled_data import sample_classes, sample_negatives, set_aside
from momentum_transfer.lowshot.svm import lowshot_svm as svm
from momentum_transfer.lowshot.svm.lowshot_svm import (
    _average_precision,
    _mean_average_precision,
    _sample_labelled,
    evaluate,
)
from momentum_transfer.lowshot.svm.solvers import LinearClassifiers, fit_batched, fit_liblinear, signed_targets
from tests.lowshot.toy_data import clusters

TRAIN, TEST = clusters(1, 400), clusters(2, 150)


def multi_label(seed, count=200, classes=4, dim=12):
    generator = np.random.default_rng(seed)
    directions = np.random.default_rng(98).standard_normal((classes, dim))
    labels = (generator.random((count, classes)) < 0.3).astype(np.int64)
    features = labels @ directions + 0.7 * generator.standard_normal((count, dim))
    return FeatureSet(features.astype(np.float32), labels, f"voc {seed}", "0" * 64)


def always(*_):
    return True


def sample_shots(labels, shots, trial, seed):
    return np.unique(np.concatenate(sample_classes(labels, shots, trial, seed)))


def naive_average_precision(relevant, decisions):
    total = 0.0
    previous_recall = 0.0
    for threshold in sorted(set(decisions), reverse=True):
        chosen = decisions >= threshold
        precision = relevant[chosen].sum() / chosen.sum()
        recall = relevant[chosen].sum() / relevant.sum()
        total += (recall - previous_recall) * precision
        previous_recall = recall
    return total


@pytest.mark.parametrize("seed", range(5))
def test_average_precision_equals_a_naive_loop_and_scikit_learn_with_ties(seed):
    generator = np.random.default_rng(seed)
    decisions = np.round(generator.standard_normal(200), 1)
    relevant = (generator.random(200) < 0.3).astype(np.int64)
    value = _average_precision(relevant, decisions, envelope=False)
    assert value == pytest.approx(naive_average_precision(relevant, decisions), abs=1e-12)
    assert value == pytest.approx(average_precision_score(relevant, decisions), abs=1e-12)


def published_average_precision(relevant, decisions):
    """The rule of VISSL and PCL, image by image: precision's envelope from the right, area over the steps of recall."""
    hits, recall, precision = 0, [0.0], [0.0]
    for seen, image in enumerate(np.argsort(decisions)[::-1], 1):
        hits += relevant[image]
        recall.append(hits / relevant.sum())
        precision.append(hits / seen)
    recall.append(1.0)
    precision.append(0.0)
    for i in range(len(precision) - 2, -1, -1):
        precision[i] = max(precision[i], precision[i + 1])
    return sum((recall[i] - recall[i - 1]) * precision[i] for i in range(1, len(recall)) if recall[i] != recall[i - 1])


@pytest.mark.parametrize("seed", range(5))
def test_average_precision_under_the_envelope_is_the_published_rule(seed):
    generator = np.random.default_rng(seed)
    decisions = generator.standard_normal(200)
    relevant = (generator.random(200) < 0.1 + 0.2 * (decisions > 0)).astype(np.int64)
    value = _average_precision(relevant, decisions, envelope=True)
    assert value == pytest.approx(published_average_precision(relevant, decisions), abs=1e-12)
    assert value > _average_precision(relevant, decisions, envelope=False) + 0.001


@pytest.mark.parametrize(
    ("scores", "steps", "enveloped"),
    [([3, 2, 2, 1], 5 / 12, 1 / 2), ([1, 1, 1, 1], 1 / 2, 1 / 2), ([1, -np.inf, -np.inf, -np.inf], 1 / 2, 1 / 2)],
)
def test_images_of_equal_score_count_together_whatever_their_order(scores, steps, enveloped):
    relevant, decisions = np.array([0, 1, 0, 1]), np.array(scores, dtype=float)
    for order in ([0, 1, 2, 3], [0, 2, 1, 3], [3, 2, 1, 0]):
        assert _average_precision(relevant[order], decisions[order], envelope=False) == pytest.approx(steps)
        assert _average_precision(relevant[order], decisions[order], envelope=True) == pytest.approx(enveloped)


def test_evaluate_equals_scoring_cost_by_cost_and_image_by_image():
    generator = np.random.default_rng(0)
    classifiers = LinearClassifiers(generator.standard_normal((3, 6, 16)), generator.standard_normal((3, 6)))
    found = evaluate(classifiers, normalized(TEST.features), TEST.labels, ("top1", "top5"))
    for cost in range(3):
        decisions = normalized(TEST.features) @ classifiers.weights[cost].T + classifiers.biases[cost]
        ranked = np.argsort(-decisions, axis=1)
        assert found["top1"][cost] == pytest.approx(np.mean(ranked[:, 0] == TEST.labels))
        assert found["top5"][cost] == pytest.approx(np.mean((ranked[:, :5] == TEST.labels[:, None]).any(1)))


def test_scoring_distinguishes_images_of_an_almost_collapsed_backbone():
    """All cosines above 0.9999: float32 scores of the features as they are would be mostly rounding."""
    generator = np.random.default_rng(0)
    means = generator.standard_normal((10, 256))
    rows, labels = np.repeat(np.arange(10), 4), np.repeat(np.arange(10), 50)
    fitted_on, scored = (
        normalized(1 + 1e-3 * (means[index] + generator.standard_normal((len(index), 256)))) for index in (rows, labels)
    )
    fitted = fit_batched(fitted_on, signed_targets(rows, 10), [2.0**-5, 1.0], double=True)
    exact = np.einsum("nd,scd->snc", scored.astype(np.float64), fitted.weights) + fitted.biases[:, None]
    expected = (exact.argmax(2) == labels).mean(axis=1)
    assert (expected > 0.9).all()
    assert np.allclose(evaluate(fitted, scored, labels, ("top1",))["top1"], expected, atol=0.005)


def test_held_out_choice_scores_the_cost_that_does_best_on_held_out_images():
    setup = svm.LowShot(shots=(4,), trials=1, costs=(1e-3, 1.0), seed=3, solver="liblinear")
    (unit,) = svm.scores(setup, TRAIN, TEST, always)
    pool, held = set_aside(TRAIN.labels, 20, 3)
    rows = pool[sample_shots(TRAIN.labels[pool], 4, 0, 3)]
    assert not set(rows) & set(held)
    fitted = fit_liblinear(normalized(TRAIN.features[rows]), signed_targets(TRAIN.labels[rows], 6), setup.costs)
    accuracy = evaluate(fitted, normalized(TRAIN.features[held]), TRAIN.labels[held], ("top1",))["top1"]
    best = int(np.argmax(accuracy))
    assert unit[0].details["cost"] == setup.costs[best]
    on_test = evaluate(fitted, normalized(TEST.features), TEST.labels, ("top1",))["top1"][best]
    assert unit[0].value == pytest.approx(100 * on_test)


def test_held_out_choice_does_not_look_at_the_test_set():
    """The cost chosen stays when the test labels are permuted, though another would then score better."""
    setup = svm.LowShot(shots=(2,), trials=4, solver="liblinear")
    shuffled = FeatureSet(TEST.features, np.random.default_rng(0).permutation(TEST.labels), "shuffled", "0" * 64)
    chosen, again = ([unit[0].details["cost"] for unit in svm.scores(setup, TRAIN, test, always)]
                     for test in (TEST, shuffled))  # fmt: skip
    assert chosen == again
    by_test = replace(setup, select_c="test")
    assert chosen != [unit[0].details["cost"] for unit in svm.scores(by_test, TRAIN, shuffled, always)]


def fitted_by_hand(train, rows, targets, costs, weight):
    return fit_liblinear(normalized(train.features[rows]), targets, costs, weight, tol=1e-8)


@pytest.mark.parametrize(("weights", "weight"), [("", 2.0), ("vissl", 2.0), ("plain", 1.0)])
def test_pcl_shots_are_the_union_of_the_sampled_images_with_all_labels(weights, weight):
    train, test = multi_label(1), multi_label(2)
    setup = svm.LowShot("voc07", (8,), trials=1, costs=(1.0,), select_c="test", class_weights=weights)
    (unit,) = svm.scores(setup, train, test, always)
    rows = sample_shots(train.labels, 8, 0, 0)
    targets = np.where(train.labels[rows] > 0, 1, -1)
    assert (targets > 0).sum(axis=0).min() > 8, "the images show each class more often than it was sampled"
    fitted = fitted_by_hand(train, rows, targets, (1.0,), weight)
    expected = evaluate(fitted, normalized(test.features), test.labels, ("mAP",), envelope=True)["mAP"][0]
    assert unit[0].value == pytest.approx(100 * expected, abs=0.01)
    assert unit[0].protocol == ("voc07/test/plain" if weight == 1 else "voc07/test")


def test_vissl_shots_are_k_positives_and_sampled_negatives_of_each_class():
    train, test = multi_label(1), multi_label(2)
    setup = svm.LowShot("voc07", (8,), trials=1, costs=(1.0,), select_c="test", voc_shots="vissl")
    rows, targets = _sample_labelled(setup, train, np.arange(200), 8, 0)
    assert ((targets > 0).sum(axis=0) == 8).all()
    assert ((targets < 0).sum(axis=0) == 3 * 8).all()
    shown = train.labels[rows] > 0
    assert shown[targets > 0].all()
    assert not shown[targets < 0].any()
    (unit,) = svm.scores(setup, train, test, always)
    decisions = []
    for label in range(4):  # class by class, on its own images alone
        own = targets[:, label] != 0
        machine = LinearSVC(C=1.0, class_weight={1: 2, -1: 1}, tol=1e-8, max_iter=10**6)
        machine.fit(normalized(train.features[rows[own]]).astype(float), targets[own, label])
        decisions.append(machine.decision_function(normalized(test.features).astype(float)))
    expected = np.mean([published_average_precision(test.labels[:, k], decisions[k]) for k in range(4)])
    assert unit[0].value == pytest.approx(100 * expected, abs=0.01)
    assert unit[0].protocol == "voc07/test/vissl-shots"
    (by_name,) = svm.scores(replace(setup, protocol="voc07-sklearn"), train, test, always)
    without = np.mean([average_precision_score(test.labels[:, k], decisions[k]) for k in range(4)])
    assert by_name[0].value == pytest.approx(100 * without, abs=0.01)
    assert by_name[0].protocol == "voc07-sklearn/test/vissl-shots"
    assert expected > without + 0.001


def test_negatives_are_sampled_anew_in_every_trial_and_are_all_there_are_where_too_few():
    labels = multi_label(1).labels
    first, second = (sample_negatives(labels, 10, trial, 0) for trial in (0, 1))
    assert all(len(np.unique(own)) == 10 for own in first)
    assert any(not np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    everything = sample_negatives(labels, 1000, 0, 0)
    assert [len(own) for own in everything] == (labels == 0).sum(axis=0).tolist()


@pytest.mark.parametrize(("weights", "weight", "name"), [("", 1.0, ""), ("plain", 1.0, ""), ("vissl", 2.0, "/vissl")])
def test_positives_of_single_label_data_weigh_one_unless_vissls_weights_are_asked_for(weights, weight, name):
    setup = svm.LowShot("inaturalist", (4,), trials=1, costs=(1.0,), select_c="test", class_weights=weights)
    (unit,) = svm.scores(setup, TRAIN, TEST, always)
    rows = sample_shots(TRAIN.labels, 4, 0, 0)
    fitted = fitted_by_hand(TRAIN, rows, signed_targets(TRAIN.labels[rows], 6), (1.0,), weight)
    expected = evaluate(fitted, normalized(TEST.features), TEST.labels, ("top1",))["top1"][0]
    assert unit[0].value == pytest.approx(100 * expected)
    assert unit[0].protocol == f"inaturalist/test{name}"
    assert unit[0].details["class_weights"] == (weights or "plain")


def test_mean_average_precision_leaves_out_classes_without_a_positive():
    labels = np.array([[1, 0, 0], [0, 0, 1], [1, 0, 0]])
    decisions = np.random.default_rng(0).standard_normal((3, 3))
    expected = np.mean([naive_average_precision(labels[:, k], decisions[:, k]) for k in (0, 2)])
    assert _mean_average_precision(labels, decisions, envelope=False) == pytest.approx(expected, abs=1e-12)


def test_the_test_set_chooses_one_c_for_all_trials_by_their_mean():
    """Not the best of every trial: that would be higher in the mean, and is no protocol of the papers."""
    setup = svm.LowShot(shots=(2, 8), trials=4, select_c="test", solver="liblinear")
    best_of_each = 0.0
    for k, unit in zip(setup.shots, svm.scores(setup, TRAIN, TEST, always), strict=True):
        by_trial = []
        for trial in range(4):
            rows = sample_shots(TRAIN.labels, k, trial, 0)
            targets = signed_targets(TRAIN.labels[rows], 6)
            fitted = fit_liblinear(normalized(TRAIN.features[rows]), targets, setup.costs)
            by_trial.append(evaluate(fitted, normalized(TEST.features), TEST.labels, ("top1",))["top1"])
        best = int(np.argmax(np.mean(by_trial, axis=0)))
        top1 = [score for score in unit if score.metric == "top1"]
        assert [score.trial for score in top1] == [0, 1, 2, 3]
        assert [score.value for score in top1] == pytest.approx([100 * values[best] for values in by_trial])
        assert {(score.details["cost"], score.details["select_c"]) for score in unit} == {(setup.costs[best], "test")}
        assert {score.protocol for score in unit} == {"imagenet/test"}
        best_of_each += np.mean(np.max(by_trial, axis=1)) - np.mean(by_trial, axis=0)[best]
    assert best_of_each > 0


def test_trials_with_a_common_c_are_scored_again_together_or_not_at_all():
    setup = svm.LowShot(shots=(1, 2), trials=3, costs=(1.0,), select_c="test")
    units = list(svm.scores(setup, TRAIN, TEST, lambda task, protocol, trial: (task, trial) == ("svm/k=2", 1)))
    assert [(score.task, score.trial) for score in units[0] if score.metric == "top1"] == [
        ("svm/k=2", 0), ("svm/k=2", 1), ("svm/k=2", 2),
    ]  # fmt: skip
    assert len(units) == 1


def test_every_trial_of_every_k_is_scored_once_and_done_ones_are_skipped():
    setup = svm.LowShot(shots=(1, 2), trials=3, costs=(1.0,))
    units = list(svm.scores(setup, TRAIN, TEST, lambda task, protocol, trial: (task, trial) != ("svm/k=2", 1)))
    assert [(unit[0].task, unit[0].trial) for unit in units] == [
        ("svm/k=1", 0), ("svm/k=1", 1), ("svm/k=1", 2), ("svm/k=2", 0), ("svm/k=2", 2),
    ]  # fmt: skip
    assert {score.metric for score in units[0]} == {"top1", "top5"}


def test_voc_protocol_gives_mean_average_precision_above_chance():
    units = list(
        svm.scores(svm.LowShot(protocol="voc07", shots=(8,), trials=2), multi_label(1), multi_label(2), always)
    )
    chance = 100 * multi_label(2).labels.mean()
    assert all(unit[0].metric == "mAP" and unit[0].value > chance + 20 for unit in units)


def test_long_tail_protocol_takes_all_of_a_small_class():
    small = np.concatenate([np.flatnonzero(TRAIN.labels != 5), np.flatnonzero(TRAIN.labels == 5)[:3]])
    train = FeatureSet(TRAIN.features[small], TRAIN.labels[small], "tail", "0" * 64)
    with pytest.raises(InputError, match="class 5 has 2 images"):
        list(svm.scores(svm.LowShot(shots=(8,), trials=1), train, TEST, always))
    setup = svm.LowShot(protocol="inaturalist", shots=(8,), trials=1)
    (unit,) = svm.scores(setup, train, TEST, always)
    assert unit[0].details["images"] == 5 * 8 + 2


def test_class_without_an_image_is_never_predicted():
    labels = np.where(TRAIN.labels == 2, 7, TRAIN.labels)
    train = FeatureSet(TRAIN.features, labels, "gap", "0" * 64)
    test = FeatureSet(TEST.features, np.where(TEST.labels == 2, 7, TEST.labels), "gap", "0" * 64)
    setup = svm.LowShot(protocol="inaturalist", shots=(8,), trials=1)
    (with_gap,) = svm.scores(setup, train, test, always)
    assert with_gap[0].value > 50
    targets = signed_targets(labels[:30], 9)  # nobody shows classes 2, 6 and 8
    fitted = svm._fit_present(fit_liblinear, normalized(TRAIN.features[:30]), targets, [1.0], 1.0)
    decisions = normalized(TEST.features) @ fitted.weights[0].T + fitted.biases[0]
    assert (decisions[:, [2, 6, 8]] == -np.inf).all()
    assert np.isfinite(decisions[:, [0, 1, 3, 4, 5, 7]]).all()


@pytest.mark.parametrize("solver", ["batched", "liblinear"])
def test_class_that_every_sampled_image_shows_scores_all_images_alike(solver):
    train, test = multi_label(1), multi_label(2)
    everywhere = FeatureSet(train.features, train.labels | np.eye(4, dtype=np.int64)[1], "voc", "0" * 64)
    setup = svm.LowShot(protocol="voc07", shots=(4,), trials=1, costs=(1.0,), solver=solver)
    (unit,) = svm.scores(setup, everywhere, test, always)
    assert 0 < unit[0].value < 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"protocol": "coco"},
            "expected SVM.PRESET of imagenet, .*, voc07, voc07-sklearn, found 'coco'",
        ),
        ({"select_c": "train"}, "expected SVM.SELECT_C of heldout, test"),
        ({"solver": "magic"}, "expected SVM.SOLVER of"),
        ({"class_weights": "2"}, r"expected SVM\.CLASS_WEIGHTS of .*plain, vissl, found '2'"),
        ({"voc_shots": "all"}, r"expected SVM\.VOC_SHOTS of pcl, vissl, found 'all'"),
        ({"voc_shots": "vissl"}, r"expected SVM\.VOC_SHOTS pcl under SVM\.PRESET imagenet, found vissl"),
        ({"shots": (0,)}, r"SVM\.SHOTS as a list of one or more whole numbers .*found \(0,\)"),
        ({"costs": (0.0,)}, r"SVM\.COSTS as a list of one or more numbers above 0, found"),
    ],
)
def test_settings_that_mean_nothing_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        svm.LowShot(**arguments)


def test_protocol_that_does_not_fit_the_labels_is_refused():
    with pytest.raises(InputError, match="voc07 does not fit set 1, which has one class an image"):
        list(svm.scores(svm.LowShot(protocol="voc07"), TRAIN, TEST, always))


@pytest.mark.parametrize("fit", [fit_batched, fit_liblinear])
def test_images_left_out_of_a_class_make_it_neither_shown_nor_hidden(fit):
    """Targets of VISSL's shots: 0 is no negative and no positive."""
    features = normalized(TRAIN.features[:12])
    targets = np.array([[1, -1] * 6, [1, 0] * 6, [-1, 0] * 6, [0] * 12, [1, -1, 0] * 4], dtype=np.int8).T
    found = svm._fit_present(fit, features, targets, [0.5, 2.0], 1.0)
    assert found.weights.shape == (2, 5, features.shape[1])
    decisions = np.einsum("nd,skd->snk", features, found.weights) + found.biases[:, None]
    assert (decisions[:, :, 1] == 1).all()  # all images that count show it
    assert (decisions[:, :, [2, 3]] == -np.inf).all()
    alone = fit(features, targets[:, [0, 4]], [0.5, 2.0], 1.0)
    np.testing.assert_array_equal(found.weights[:, [0, 4]], alone.weights)
    np.testing.assert_array_equal(found.biases[:, [0, 4]], alone.biases)


def test_without_arguments_the_settings_defaults_hold():
    setup, names = svm.LowShot(), {"protocol": "PRESET"}
    for field in fields(setup):
        if (key := f"SVM.{names.get(field.name, field.name.upper())}") in SETTINGS:
            value, default = getattr(setup, field.name), SETTINGS[key].default
            assert (list(value) if isinstance(value, tuple) else value) == default, key
    assert (setup.seed, setup.device, setup.name) == (0, "cpu", "imagenet/heldout")


@pytest.mark.parametrize(
    ("arguments", "name", "weights"),
    [
        ({"protocol": "voc07"}, "voc07/heldout", "vissl"),
        ({"protocol": "voc07", "class_weights": "vissl"}, "voc07/heldout", "vissl"),
        ({"protocol": "voc07-sklearn", "class_weights": "plain"}, "voc07-sklearn/heldout/plain", "plain"),
        ({"protocol": "own", "class_weights": "plain", "select_c": "test"}, "own/test", "plain"),
        (
            {"protocol": "voc07", "voc_shots": "vissl", "class_weights": "plain"},
            "voc07/heldout/plain/vissl-shots",
            "plain",
        ),
    ],
)
def test_a_protocols_name_ends_in_what_is_not_its_own(arguments, name, weights):
    setup = svm.LowShot(**arguments)
    assert (setup.name, setup.weights) == (name, weights)


def test_a_class_as_high_as_the_right_one_makes_an_image_wrong():
    """Seven classes of which some have the right one's decision: it is among the best five where at most four do."""
    weights = np.zeros((1, 7, 2))
    weights[0, :, 0] = [3, 3, 2, 2, 2, 2, 1]
    hits: dict[str, np.ndarray] = {}
    features = np.tile(np.array([[1.0, 0.0], [-1.0, 0.0]], np.float32), (7, 1))
    labels = np.repeat(np.arange(7), 2)
    found = evaluate(LinearClassifiers(weights, np.zeros((1, 7))), features, labels, ("top5",), hits=hits)
    assert hits["top1"][::2, 0].tolist() == [False] * 7
    assert hits["top5"][::2, 0].tolist() == [True, True, False, False, False, False, False]
    assert hits["top1"][1::2, 0].tolist() == [False] * 6 + [True]
    assert hits["top5"][1::2, 0].tolist() == [False, False, True, True, True, True, True]
    assert {name: values.tolist() for name, values in found.items()} == {"top1": [1 / 14], "top5": [0.5]}
