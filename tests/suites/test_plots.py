import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.suites.sweep import PlotRequest, read_plots

KNOWN = {"NORM.GROUP": None, "SEED": None}


def test_plots_over_settings_measures_and_steps_are_read():
    asked = [
        {"title": "a", "y": "svm/k=16 top1", "x": "NORM.GROUP", "by": "variant", "log": True},
        {"title": "b", "y": "finetune top1 @ CIFAR-10-LT", "x": "linear top1"},
        {"title": "c", "curve": "knn_top1", "x": "seconds", "by": "NORM.GROUP"},
    ]
    assert read_plots(asked, "suite", KNOWN) == tuple(PlotRequest(**entry) for entry in asked)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"y": "a b", "x": "c d"}, "expected at least title"),
        ({"title": "t", "y": "a b", "x": "NORM.TEACHER"}, r"the pretrainings differ in \(NORM.GROUP, SEED\)"),
        ({"title": "t", "y": "a b", "x": "c d", "by": "LR"}, "expected by as variant or a setting"),
        ({"title": "t", "y": "knn", "x": "variant"}, "expected y as TASK METRIC"),
        ({"title": "t", "y": "knn top1 @ ", "x": "variant"}, "expected y as TASK METRIC"),
        ({"title": "t", "y": "knn top1", "x": "linear"}, "expected x as TASK METRIC"),
        ({"title": "t"}, "either y, a measure, or curve"),
        ({"title": "t", "y": "a b", "curve": "loss"}, "either y, a measure, or curve"),
        ({"title": "t", "curve": "loss", "x": "epochs"}, "step or seconds"),
        ({"title": "t", "y": "a b", "x": "variant", "log": 1}, "expected log as true or false, found 1"),
        ({"title": "t", "y": 3, "x": "variant"}, "expected y as text"),
        ({"title": "t", "z": "a b"}, "unknown key 'z'"),
    ],
)
def test_a_plot_that_means_nothing_is_refused(entry, message):
    with pytest.raises(InputError, match=message):
        read_plots([entry], "suite.yaml", KNOWN)
