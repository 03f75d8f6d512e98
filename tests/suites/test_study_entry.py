import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.shipped import CONFIGS
from momentum_transfer.suites.study_entry import read_study
from momentum_transfer.suites.suite import load_suite

SIDES = {"first": {"protocol": "a"}, "second": {"protocol": "b"}}
KNOWN = {"NORM.GROUP_SIZE": None, "SEED": None}


def entry(**difference):
    return {"claim": "why?", "compare": [{"name": "one", "y": "knn top1", **SIDES, **difference}]}


def test_a_side_says_what_its_comparison_leaves_open():
    study = read_study(entry(first={"y": "svm top1", "NORM.GROUP_SIZE": 8}), "suite", KNOWN)
    assert study.compare[0].sides() == ({"y": "svm top1", "NORM.GROUP_SIZE": 8}, {"y": "knn top1", "protocol": "b"})


def test_a_line_has_its_place_in_texts_and_numbers():
    lines = {"title": "t", "x": [8, 16.5], "of": {"BN": {"y": "noise/n={x} top1", "NORM.GROUP_SIZE": ["x"]}}}
    study = read_study({**entry(), "lines": [lines]}, "suite", KNOWN)
    assert study.lines[0].at("BN", 8) == {"y": "noise/n=8 top1", "NORM.GROUP_SIZE": 8}
    assert study.lines[0].at("BN", 16.5) == {"y": "noise/n=16.5 top1", "NORM.GROUP_SIZE": 16.5}


@pytest.mark.parametrize(
    ("study", "message"),
    [
        ({"claim": "why?"}, "at least one comparison"),
        ({"compare": []}, "at least claim"),
        (entry(y="knn"), "expected y as TASK METRIC"),
        (entry(first={"protocl": "a"}), "found 'protocl'"),
        (entry(first={"NORM.STUDENT": "BN"}), r"NORM.GROUP_SIZE, SEED, found 'NORM.STUDENT'"),
        (entry(first={"checkpoint": "a*b*"}), r"at most one \*"),
        (entry(first={"protocol": 3}), "expected protocol as text, found 3"),
        ({"claim": "why?", "compare": [entry()["compare"][0]] * 2}, "of different names"),
        ({**entry(), "lines": [{"title": "t", "x": [], "of": {}}]}, "as a list of at least one, found \\[\\]"),
        ({**entry(), "lines": [{"title": "t", "x": [1], "of": {"a": {}}}]}, "expected y as TASK METRIC"),
        (entry(primary=True, expected="better", margin=1), "expected of better, worse, equal, a margin, and the seeds"),
        ({**entry(primary=True, expected="better"), "seeds": 8}, "found 'better', None and 8"),
        ({**entry(), "checks": [{"name": "c", "below": 1}]}, "either a curve and a step, or first"),
        ({**entry(), "checks": [{"name": "c", "curve": "loss"}]}, "above, below or both"),
        (
            {**entry(), "orders": [{"name": "o", "y": "knn top1", "of": [], "least": 0.4}]},
            "expected orders\\[0\\].of as a list of at least one",
        ),
        ({**entry(), "orders": [{"name": "o", "y": "knn", "of": ["a b"], "least": 0.4}]}, "expected y as TASK METRIC"),
        ({**entry(), "trends": [{"name": "t", "y": "knn top1", "x": [1, 2], **SIDES}]}, "three x or more"),
    ],
)
def test_a_study_that_means_nothing_is_refused(study, message):
    with pytest.raises(InputError, match=message):
        read_study(study, "suite.yaml", KNOWN)


def test_every_study_that_ships_asks_and_says_before_the_run_what_is_expected():
    files = sorted((CONFIGS / "suites").glob("study_*.yaml"))
    assert files
    for file in files:
        suite = load_suite(file)
        assert suite.study is not None, file
        assert suite.name == file.stem
        header = file.read_text(encoding="utf-8").partition("\nname:")[0]
        assert "# Expected (before the run):" in header, file
        assert f"# Command: momentum-transfer study {file.stem.removeprefix('study_')}" in header, file
