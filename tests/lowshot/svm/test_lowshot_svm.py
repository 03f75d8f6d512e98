from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from lowshot.features.feature_set import FeatureSet, normalized
from lowshot.splits import draw_classes, draw_shots
from lowshot.svm import lowshot_svm as svm
from lowshot.svm.batched import fit_batched
from lowshot.svm.liblinear import fit_liblinear
from lowshot.svm.problem import LinearClassifiers, signed_targets
from momentum_transfer.errors import InputError
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
    value = svm.average_precision(relevant, decisions)
    assert value == pytest.approx(naive_average_precision(relevant, decisions), abs=1e-12)
    assert value == pytest.approx(average_precision_score(relevant, decisions), abs=1e-12)


def test_evaluate_equals_scoring_cost_by_cost_and_image_by_image():
    generator = np.random.default_rng(0)
    classifiers = LinearClassifiers(generator.standard_normal((3, 6, 16)), generator.standard_normal((3, 6)))
    found = svm.evaluate(classifiers, normalized(TEST.features), TEST.labels, ("top1", "top5"))
    for cost in range(3):
        decisions = normalized(TEST.features) @ classifiers.weights[cost].T + classifiers.biases[cost]
        ranked = np.argsort(-decisions, axis=1)
        assert found["top1"][cost] == pytest.approx(np.mean(ranked[:, 0] == TEST.labels))
        assert found["top5"][cost] == pytest.approx(np.mean((ranked[:, :5] == TEST.labels[:, None]).any(1)))


def test_scoring_tells_images_of_an_almost_collapsed_backbone_apart():
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
    assert np.allclose(svm.evaluate(fitted, scored, labels, ("top1",))["top1"], expected, atol=0.005)


def test_held_out_choice_scores_the_cost_that_does_best_on_held_out_images():
    setup = svm.LowShot(shots=(4,), draws=1, costs=(1e-3, 1.0), seed=3, solver="liblinear")
    (unit,) = svm.scores(setup, TRAIN, TEST, always)
    pool, held = svm.set_aside(TRAIN.labels, 20, 3)
    rows = pool[draw_shots(TRAIN.labels[pool], 4, 0, 3)]
    assert not set(rows) & set(held)
    fitted = fit_liblinear(normalized(TRAIN.features[rows]), signed_targets(TRAIN.labels[rows], 6), setup.costs)
    accuracy = svm.evaluate(fitted, normalized(TRAIN.features[held]), TRAIN.labels[held], ("top1",))["top1"]
    best = int(np.argmax(accuracy))
    assert unit[0].details["cost"] == setup.costs[best]
    on_test = svm.evaluate(fitted, normalized(TEST.features), TEST.labels, ("top1",))["top1"][best]
    assert unit[0].value == pytest.approx(100 * on_test)


def test_held_out_choice_does_not_look_at_the_test_set():
    """The cost chosen stays when the test labels are drawn anew, though another would then score better."""
    setup = svm.LowShot(shots=(2,), draws=4, solver="liblinear")
    shuffled = FeatureSet(TEST.features, np.random.default_rng(0).permutation(TEST.labels), "shuffled", "0" * 64)
    chosen, again = ([unit[0].details["cost"] for unit in svm.scores(setup, TRAIN, test, always)]
                     for test in (TEST, shuffled))  # fmt: skip
    assert chosen == again
    by_test = replace(setup, select_c="test")
    assert chosen != [unit[0].details["cost"] for unit in svm.scores(by_test, TRAIN, shuffled, always)]


def test_positives_weigh_twice_in_the_voc_protocol_alone():
    assert {name: protocol.positive_weight for name, protocol in svm.PROTOCOLS.items()} == {
        "imagenet": 1.0, "inaturalist": 1.0, "voc07": 2.0,
    }  # fmt: skip
    train, test = multi_label(1), multi_label(2)
    setup = svm.LowShot(protocol="voc07", shots=(8,), draws=1, costs=(1.0,), select_c="test")
    (unit,) = svm.scores(setup, train, test, always)
    chosen = draw_classes(train.labels, 8, 0, 0)
    rows = np.unique(np.concatenate(chosen))
    targets = np.where(train.labels[rows] > 0, 0, -1)
    for label, own in enumerate(chosen):
        targets[np.searchsorted(rows, own), label] = 1
    assert ((targets > 0).sum(axis=0) == 8).all(), "k shots are k positives, though more images show the class"
    arguments = normalized(train.features[rows]), targets, [1.0]
    weighted, plain = (
        svm.evaluate(fit_liblinear(*arguments, weight, tol=1e-8), normalized(test.features), test.labels, ("mAP",))[
            "mAP"
        ]
        for weight in (2.0, 1.0)
    )
    assert unit[0].value == pytest.approx(100 * weighted[0], abs=0.01)
    assert abs(weighted[0] - plain[0]) > 1e-3


def test_mean_average_precision_leaves_out_classes_without_a_positive():
    labels = np.array([[1, 0, 0], [0, 0, 1], [1, 0, 0]])
    decisions = np.random.default_rng(0).standard_normal((3, 3))
    expected = np.mean([naive_average_precision(labels[:, k], decisions[:, k]) for k in (0, 2)])
    assert svm.mean_average_precision(labels, decisions) == pytest.approx(expected, abs=1e-12)


def test_choosing_c_on_the_test_set_is_never_worse_and_says_so():
    arguments = {"shots": (2, 8), "draws": 2, "solver": "liblinear"}
    for unit in svm.scores(svm.LowShot(select_c="test", **arguments), TRAIN, TEST, always):
        assert unit[0].protocol == "imagenet/test"
        assert unit[0].details["select_c"] == "test"
        rows = draw_shots(TRAIN.labels, unit[0].details["shots"], unit[0].trial, 0)
        fitted = fit_liblinear(
            normalized(TRAIN.features[rows]), signed_targets(TRAIN.labels[rows], 6), svm.LowShot().costs
        )
        every_cost = svm.evaluate(fitted, normalized(TEST.features), TEST.labels, ("top1",))["top1"]
        assert unit[0].value == pytest.approx(100 * every_cost.max())


def test_every_draw_of_every_k_is_scored_once_and_done_ones_are_skipped():
    setup = svm.LowShot(shots=(1, 2), draws=3, costs=(1.0,))
    units = list(svm.scores(setup, TRAIN, TEST, lambda task, protocol, draw: (task, draw) != ("svm/k=2", 1)))
    assert [(unit[0].task, unit[0].trial) for unit in units] == [
        ("svm/k=1", 0), ("svm/k=1", 1), ("svm/k=1", 2), ("svm/k=2", 0), ("svm/k=2", 2),
    ]  # fmt: skip
    assert {score.metric for score in units[0]} == {"top1", "top5"}


def test_voc_protocol_gives_mean_average_precision_above_chance():
    units = list(svm.scores(svm.LowShot(protocol="voc07", shots=(8,), draws=2), multi_label(1), multi_label(2), always))
    chance = 100 * multi_label(2).labels.mean()
    assert all(unit[0].metric == "mAP" and unit[0].value > chance + 20 for unit in units)


def test_long_tail_protocol_takes_all_of_a_small_class():
    small = np.concatenate([np.flatnonzero(TRAIN.labels != 5), np.flatnonzero(TRAIN.labels == 5)[:3]])
    train = FeatureSet(TRAIN.features[small], TRAIN.labels[small], "tail", "0" * 64)
    with pytest.raises(InputError, match="class 5 has 2 images"):
        list(svm.scores(svm.LowShot(shots=(8,), draws=1), train, TEST, always))
    setup = svm.LowShot(protocol="inaturalist", shots=(8,), draws=1)
    (unit,) = svm.scores(setup, train, TEST, always)
    assert unit[0].details["images"] == 5 * 8 + 2


def test_class_without_an_image_is_never_predicted():
    labels = np.where(TRAIN.labels == 2, 7, TRAIN.labels)
    train = FeatureSet(TRAIN.features, labels, "gap", "0" * 64)
    test = FeatureSet(TEST.features, np.where(TEST.labels == 2, 7, TEST.labels), "gap", "0" * 64)
    setup = svm.LowShot(protocol="inaturalist", shots=(8,), draws=1)
    (with_gap,) = svm.scores(setup, train, test, always)
    assert with_gap[0].value > 50
    targets = signed_targets(labels[:30], 9)  # nobody shows classes 2, 6 and 8
    fitted = svm._fit_present(fit_liblinear, normalized(TRAIN.features[:30]), targets, [1.0], 1.0)
    decisions = normalized(TEST.features) @ fitted.weights[0].T + fitted.biases[0]
    assert (decisions[:, [2, 6, 8]] == -np.inf).all()
    assert np.isfinite(decisions[:, [0, 1, 3, 4, 5, 7]]).all()


@pytest.mark.parametrize("solver", ["batched", "liblinear"])
def test_class_that_every_drawn_image_shows_tells_no_image_from_another(solver):
    train, test = multi_label(1), multi_label(2)
    everywhere = FeatureSet(train.features, train.labels | np.eye(4, dtype=np.int64)[1], "voc", "0" * 64)
    setup = svm.LowShot(protocol="voc07", shots=(4,), draws=1, costs=(1.0,), solver=solver)
    (unit,) = svm.scores(setup, everywhere, test, always)
    assert 0 < unit[0].value < 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"protocol": "coco"}, "expected SVM.PROTOCOL of imagenet, inaturalist, voc07, found 'coco'"),
        ({"select_c": "train"}, "expected SVM.SELECT_C of heldout, test"),
        ({"solver": "magic"}, "expected SVM.SOLVER of"),
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
