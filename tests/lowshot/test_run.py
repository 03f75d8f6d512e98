"""An evaluation from settings to records: what is refused before it, written once, and locked."""

import itertools
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.run_lock import alone_in
from momentum_transfer.lowshot.config import get_cfg
from momentum_transfer.lowshot.identity import Score, Subject
from momentum_transfer.lowshot.run import Request, _counts, _recorded, _show, run
from tests.lowshot.toy_data import clusters


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    found = {}
    for key, seed, count in (("features", 0, 60), ("test_features", 1, 24)):
        data = clusters(seed, count)
        np.savez(tmp_path / f"{key}.npz", features=data.features, labels=data.labels)
        found[key] = str(tmp_path / f"{key}.npz")
    return found


def config(folder: Path, *words: object):
    cfg = get_cfg()
    cfg.merge_from_list(["OUTPUT_DIR", str(folder / "out"), "KNN.PRESETS", ["eman"], *words])
    return cfg


def lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_new_scores_are_recorded_once_and_told(files, tmp_path, capsys):
    cfg = config(tmp_path)
    scores = run(cfg, Request("knn", **files))
    file = tmp_path / "out/results.jsonl"
    assert {(r["task"], r["metric"], r["value"]) for r in lines(file)} == {(s.task, s.metric, s.value) for s in scores}
    assert {r["dataset"] for r in lines(file)} == {"test_features.npz"}
    assert (lines(file)[0]["data"], lines(file)[0]["overlap"]) == ({"images": 24, "classes": 6}, 0)
    assert f"records appended to {file}" in capsys.readouterr().out
    before = file.read_text()
    assert run(cfg, Request("knn", **files)) == []
    assert file.read_text() == before
    assert f"every score of these weights and settings is in {file} already" in capsys.readouterr().out
    elsewhere = tmp_path / "other/results.jsonl"
    assert len(run(cfg, Request("knn", results=elsewhere, **files))) == len(scores)
    assert len(lines(elsewhere)) == len(lines(file))
    swapped = {"features": files["features"], "test_features": files["features"]}
    with pytest.raises(InputError, match="60"):
        run(cfg, Request("knn", forbid_overlap=True, **swapped))


def test_an_output_folder_has_one_writer_and_a_results_file_elsewhere_several(files, tmp_path):
    cfg = config(tmp_path)
    with alone_in(cfg.OUTPUT_DIR):
        with pytest.raises(InputError, match="out"):
            run(cfg, Request("knn", **files))
        assert run(cfg, Request("knn", results=tmp_path / "r.jsonl", **files))
    assert run(cfg, Request("knn", **files))


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"command": "svn"}, "expected an evaluation of .*knn.* found 'svn'"),
        ({"command": "knn"}, "expected --weights CHECKPOINT, or --features TRAIN.npz"),
        ({"command": "knn", "features": "a.npz"}, "both --features TRAIN.npz and --test-features"),
        ({"command": "knn", "test_features": "a.npz"}, "both --features TRAIN.npz and --test-features"),
        (
            {"command": "knn", "features": "a", "test_features": "b", "weights": "c"},
            "found both; leave one out",
        ),
        ({"command": "linear", "features": "a", "test_features": "b"}, "linear works on images"),
        ({"command": "knn", "weights": "scratch"}, "--weights scratch means nothing to knn"),
        ({"command": "finetune", "weights": "pixels"}, "--weights pixels means nothing to finetune"),
    ],
)
def test_what_does_not_fit_together_is_refused_and_leaves_nothing(request_, said, tmp_path):
    with pytest.raises(InputError, match=said):
        run(config(tmp_path), Request(**request_))
    assert not (tmp_path / "out/results.jsonl").exists()


def test_a_results_file_that_cannot_be_written_is_refused_before_the_features_are_read(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write results to .*file/results\.jsonl"):
        run(config(tmp_path), Request("knn", features="a", test_features="b", results=tmp_path / "file/results.jsonl"))


def test_classes_are_the_named_ones_else_those_up_to_the_highest_label():
    assert _counts(np.array([0, 4, 2])) == {"images": 3, "classes": 5}
    assert _counts(np.array([0, 4, 2]), ["a"] * 9) == {"images": 3, "classes": 9}
    assert _counts(np.zeros((4, 7), int)) == {"images": 4, "classes": 7}
    assert _counts(np.zeros(0, int)) == {"images": 0, "classes": 0}


def subject(classes: int) -> Subject:
    checkpoint = {"name": "backbone", "sha256": "0" * 64}
    return Subject(checkpoint, "student", "digits", "c0ffee", {"images": 2, "classes": classes}, get_cfg())


@pytest.mark.parametrize(("classes", "metrics"), [(5, ["top1"]), (6, ["top1", "top5"])])
def test_five_guesses_of_five_classes_are_no_score(classes: int, metrics: list[str], tmp_path: Path):
    hits = {"items": np.array([True, False]), "test_set": "abc"}
    unit = [Score("linear", "top1", 50.0, "eman", **hits), Score("linear", "top5", 100.0, "eman")]
    found = [*_recorded([unit], tmp_path / "results.jsonl", subject(classes), alone=True)]
    assert [score.metric for score in found] == metrics
    records = lines(tmp_path / "results.jsonl")
    assert [r["metric"] for r in records] == metrics
    assert "items" in records[0]
    assert all("items" not in r for r in records[1:])  # no mean over images


def test_the_table_holds_mean_and_spread_of_the_trials_that_are_finite(capsys):
    values = {"top1": [40.0, 50.0, 60.0], "pseudo": [math.nan, 8.0], "none": [math.nan]}
    scores = [Score("fixmatch", m, v, "eman", trial=t, network="student") for m, vs in values.items()
              for t, v in enumerate(vs)]  # fmt: skip
    _show("fixmatch", subject(10), scores, Path("results.jsonl"))
    _, heads, *lines = capsys.readouterr().out.splitlines()
    ends = [head.end() for head in re.finditer(r"\S+( \S+)*", heads)]  # of the columns, which end on the right
    ends[0] = len("fixmatch")
    rows = [[line[a:b].strip() for a, b in itertools.pairwise(ends)] for line in lines if line.startswith("fixmatch")]
    assert [row[:1] + row[2:5] for row in rows] == [
        ["top1 (student)", "50.00", "10.00", "3"],
        ["pseudo (student)", "8.00", "", "1"],
        ["none (student)", "", "", "0"],
    ]
