"""The command line as a user runs it: records, resuming, one-line errors."""

import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch

from momentum_transfer.backbones.resnet import Architecture, build_resnet
from momentum_transfer.core import records as items
from momentum_transfer.core.files import weights_name
from momentum_transfer.core.run_lock import alone
from momentum_transfer.core.settings import kept
from momentum_transfer.lowshot import inputs
from tests.tools.in_process import run_tool
from tests.two_processes import in_two_processes

ROOT = Path(__file__).resolve().parents[2]
CONFIG = str(ROOT / "configs" / "smoke" / "lowshot_digits.yaml")


@pytest.fixture
def lowshot(tmp_path):
    """Run tools/lowshot.py with these arguments; results and runs go to tmp_path."""

    def run(*arguments):
        done = run_tool("lowshot", *arguments, "--config", CONFIG, "--results", tmp_path / "results.jsonl")
        sys.stdout.write(done.stdout)
        sys.stderr.write(done.stderr)
        return done.returncode

    return run


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "backbone.pth"
    torch.manual_seed(0)
    torch.save(build_resnet(Architecture("resnet10", 8)).state_dict(), path)
    return path


def records(tmp_path):
    return [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]


@pytest.fixture
def npz(tmp_path):
    generator = np.random.default_rng(0)
    centres = generator.standard_normal((6, 8))
    for name, count in (("train", 200), ("test", 50)):
        labels = np.arange(count) % 6
        np.savez(
            tmp_path / f"{name}.npz", features=centres[labels] + generator.standard_normal((count, 8)), labels=labels
        )
    return "--features", tmp_path / "train.npz", "--test-features", tmp_path / "test.npz"


def test_given_features_need_no_weights_and_every_score_is_recorded(lowshot, npz, tmp_path):
    assert lowshot("knn", *npz, "KNN.PRESETS", "['eman']") == 0
    assert lowshot("retrieval", *npz, "KNN.PRESETS", "['eman']") == 0
    assert lowshot("svm", *npz, "SVM.TRIALS", "2", "SVM.SHOTS", "[1,4]") == 0
    found = {(record["task"], record["metric"], record["trial"]) for record in records(tmp_path)}
    assert {("knn/k=20", "top1", 0), ("retrieval", "mAP", 0), ("svm/k=4", "top1", 1)} <= found
    assert all(record["checkpoint"]["name"] == "train.npz" for record in records(tmp_path))
    assert all(0 <= record["value"] <= 100 for record in records(tmp_path))


def test_the_network_at_random_of_a_checkpoint_is_evaluated_like_it_and_its_records_say_so(lowshot, weights, tmp_path):
    """And the settings that a record's hash names lie beside it."""
    preset = ("KNN.PRESETS", "['eman']", "INPUT.IMAGE_SIZE", "16")
    assert lowshot("knn", "--weights", weights, *preset) == 0
    assert lowshot("knn", "--weights", f"random-of:{weights}", *preset) == 0
    name = weights_name(weights)
    given, random = ([record for record in records(tmp_path) if record["checkpoint"]["name"] == one]
                     for one in (name, f"random-of-{name}"))  # fmt: skip
    assert len(given) == len(random) > 0
    assert (random[0]["checkpoint"]["method"], random[0]["checkpoint"]["random_seed"]) == ("random", "0")
    assert random[0]["config"] == given[0]["config"]
    assert random[0]["value"] != given[0]["value"]
    assert kept(tmp_path, random[0]["config"])["INPUT"]["IMAGE_SIZE"] == 16
    assert lowshot("knn", "--weights", "random-of:absent.pth", *preset) == 2


def test_every_score_of_hits_keeps_its_items_and_their_mean_is_the_value(lowshot, npz, tmp_path):
    assert lowshot("retrieval", *npz, "KNN.PRESETS", "['eman']") == 0
    assert lowshot("svm", *npz, "SVM.TRIALS", "2", "SVM.SHOTS", "[4]") == 0
    found = [record for record in records(tmp_path) if record["metric"] != "mean_per_class"]
    assert len(found) == 2 + 2 + 4  # top1 and top5 by kNN, mAP and recall, two trials of top1 and top5
    for record in found:
        outcomes = items.read_items(tmp_path, record["items"])
        assert 100 * outcomes.values[record["metric"]].mean() == pytest.approx(record["value"], rel=1e-12)
        assert outcomes.images == 50


def test_drawings_of_one_digit_are_one_item_to_verdicts(lowshot, tmp_path):
    assert lowshot("knn", "--weights", "pixels", "DATASETS.RENDERINGS", "3") == 0
    for record in records(tmp_path):
        if record["metric"] not in ("top1", "top5"):
            continue
        values = items.read_items(tmp_path, record["items"]).values[record["metric"]]
        assert (len(values), record["data"]["images"]) == (540, 1620)
        assert {1, 2, 3} <= set(np.round(3 * values)) <= {0, 1, 2, 3}
        assert 100 * values.mean() == pytest.approx(record["value"])


def test_the_part_of_a_split_that_tests_has_one_drawing_of_each_digit(lowshot, tmp_path):
    words = ("DATASETS.SPLIT", "0.7", "DATASETS.RENDERINGS", "3", "KNN.PRESETS", "['eman']")
    assert lowshot("knn", "--weights", "pixels", *words) == 0
    record = next(record for record in records(tmp_path) if record["metric"] == "top1")
    values = items.read_items(tmp_path, record["items"]).values["top1"]
    assert len(values) == record["data"]["images"] < 400  # of 1257 that train without a split
    assert set(values.tolist()) == {0, 1}


def test_diagnostics_are_recorded_with_alignment_where_there_are_images(lowshot, npz, weights, tmp_path):
    assert lowshot("diagnostics", *npz) == 0
    assert lowshot("diagnostics", "--weights", weights, "FEATURES.CACHE", tmp_path / "cache") == 0
    given, network = (
        [r["metric"] for r in records(tmp_path) if (r["dataset"] == "test.npz") == n] for n in (True, False)
    )
    assert "alignment" not in given
    assert {*given, "alignment"} == set(network)


def test_second_run_skips_what_is_recorded(lowshot, npz, tmp_path, capsys):
    arguments = ("svm", *npz, "SVM.TRIALS", "2", "SVM.SHOTS", "[2]")
    assert lowshot(*arguments) == 0
    file = tmp_path / "results.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    assert lowshot(*arguments) == 0
    assert "already" in capsys.readouterr().out
    file.write_text("".join(lines[:2]))  # as if killed after the first trial
    assert lowshot(*arguments) == 0
    assert [record["trial"] for record in records(tmp_path)] == [0, 0, 1, 1]


def test_checkpoint_gives_features_knn_and_a_linear_classifier(lowshot, weights, tmp_path):
    assert lowshot("features", "--weights", weights) == 0
    assert lowshot("knn", "--weights", weights) == 0
    short = ["LINEAR.EPOCHS", "1", "LINEAR.TRIALS", "1", "OUTPUT_DIR", tmp_path]
    assert lowshot("linear", "--weights", weights, *short) == 0
    assert lowshot("linear", "--weights", weights, *short, "LINEAR.CACHED", "True") == 0
    found = {(record["task"], record["protocol"]) for record in records(tmp_path)}
    assert {("knn/k=20", "eman"), ("linear/10%", "eman"), ("linear/10%", "eman/cached")} <= found
    assert {record["network"] for record in records(tmp_path)} == {"backbone"}


def test_fixmatch_records_the_student_as_the_result_and_the_teacher_beside_it_once(lowshot, weights, tmp_path, capsys):
    short = ["FIXMATCH.STEPS", "1", "FIXMATCH.TRIALS", "1", "FIXMATCH.BATCH_SIZE", "4", "OUTPUT_DIR", tmp_path]
    assert lowshot("fixmatch", "--weights", weights, *short) == 0
    found = [(r["metric"], r["network"], r["start_network"]) for r in records(tmp_path)]
    scored = [(metric, name) for name in ("student", "teacher") for metric in ("top1", "top5")]
    scored += [("pseudo_top1", "teacher"), ("pseudo_accuracy", "teacher")]
    assert found == [(metric, name, "backbone") for metric, name in scored]
    (test_set,) = {items.read_items(tmp_path, r["items"]).test_set for r in records(tmp_path) if "items" in r}
    assert test_set, "of teachers and students alike, so that verdicts may pair any two of them"
    assert lowshot("fixmatch", "--weights", weights, *short) == 0
    assert "already" in capsys.readouterr().out
    assert len(records(tmp_path)) == 6


def test_fixmatch_from_scratch_starts_every_trial_anew_and_labels_weak_views(lowshot, tmp_path, monkeypatch):
    starts = []
    build = inputs.build_backbone
    monkeypatch.setattr(inputs, "build_backbone", lambda arch: starts.append(build(arch)) or starts[-1])
    words = ["FIXMATCH.STEPS", "1", "FIXMATCH.TRIALS", "2", "FIXMATCH.BATCH_SIZE", "4", "FIXMATCH.PRESET", "ema-bn"]
    words += ["MODEL.WIDTH", "4", "FIXMATCH.TEACHER_GROUP", "6", "FIXMATCH.WEAK_BATCHES", "[8]", "OUTPUT_DIR", tmp_path]
    assert lowshot("fixmatch", "--weights", "scratch", *words) == 0
    assert not torch.equal(starts[-1].conv1.weight, starts[-2].conv1.weight)
    kept = records(tmp_path)
    assert {record["protocol"] for record in kept} == {"ema-bn-1x/teacher_group=6"}
    weak = [(record["task"], record["trial"]) for record in kept if record["task"].count("/") == 2]
    assert weak == [(f"fixmatch/10%/{way}", trial) for trial in (0, 1) for way in ("running", "n=8")]


def test_pixels_need_no_backbone(lowshot, tmp_path):
    assert lowshot("knn", "--weights", "pixels", "KNN.PRESETS", "['eman']") == 0
    top1 = records(tmp_path)[0]
    assert (top1["metric"], top1["checkpoint"]["name"]) == ("top1", "pixels")
    assert top1["value"] > 30


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("knn",), "expected --weights CHECKPOINT, or --features"),
        (("knn", "--features", "a.npz"), "expected both --features TRAIN.npz and --test-features"),
        (("linear", "--features", "a.npz", "--test-features", "b.npz"), "works on images, not on --features"),
        (("linear", "--weights", "pixels"), "means nothing to linear"),
        (("knn", "--weights", "scratch"), "means nothing to knn"),
        (("knn", "--weights", "no/such/file.pt"), "no/such/file.pt"),
        (
            ("knn", "--weights", "pixels", "KNN.PRESETS", "['best']"),
            "KNN.PRESETS as a list of words of eman, dino",
        ),
        (("svm", "--weights", "pixels", "SVM.SHOTS", "[500]"), "expected at least 500"),
        (("linear", "--weights", "scratch", "LINEAR.PRESET", "best"), "expected LINEAR.PRESET of m2"),
        (("fixmatch", "--weights", "scratch", "FIXMATCH.SCHEDULE", "2x"), "expected FIXMATCH.SCHEDULE of 1x, 3x"),
        (("knn", "--weights", "pixels", "DATASETS.NAME", "imagefolder", "DATASETS.ROOT", "nowhere"), "nowhere"),
        (("linear", "--weights", "scratch", "LINEAR.TRIALS", "0"), "expected LINEAR.TRIALS of at least 1"),
        (
            ("finetune", "--weights", "scratch", "FINETUNE.BATCH_SIZE", "100000"),
            "expected FINETUNE.BATCH_SIZE of at most",
        ),
        (("fixmatch", "--weights", "scratch", "FIXMATCH.TEACHER_GROUP", "7"), "divide the 48 weak views"),
        (("fixmatch", "--weights", "scratch", "FIXMATCH.WEAK_BATCHES", "[541]"), "WEAK_BATCHES of at most 540"),
        (("fixmatch", "--weights", "scratch", "FIXMATCH.PRESET", "in"), "more than 32 px for instance normalisation"),
        (
            ("retrieval", "--weights", "pixels", "RETRIEVAL.TOP", "-5"),
            "RETRIEVAL.TOP of at least 1 neighbours, found -5",
        ),
        (("knn", "--weights", "pixels", "SEARCH.DATABASE_CHUNK", "0"), "expected SEARCH.DATABASE_CHUNK of at least 1"),
        (("knn", "--weights", "pixels", "KNN.PRESETS", "[3]"), "KNN.PRESETS as a list of words of eman, dino"),
        (("knn", "--weights", "pixels", "KNN.PRESETS", "[]"), "in KNN.PRESETS, found none"),
        (
            ("svm", "--weights", "pixels", "SVM.SHOTS", "[1.5]"),
            "SVM.SHOTS as a list of one or more whole numbers",
        ),
        (("knn", "--weights", "a.pt", "--features", "a.npz", "--test-features", "b.npz"), "found both"),
        (("knn", "--weights", "pixels", "DATASETS.NAM", "x"), "nearest known key is DATASETS.NAME"),
    ],
)
def test_wrong_input_is_one_line_and_code_2(lowshot, capsys, arguments, message):
    assert lowshot(*arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "setting", "message"),
    [
        ("knn", ("KNN.PRESETS", "['majority-2000']"), "asks for 2000 neighbours, digits train has 1257 images"),
        ("knn", ("SEARCH.PRECISION", "fp8"), "expected SEARCH.PRECISION of fp32, bf16"),
        ("svm", ("SVM.SOLVER", "magic"), "expected SVM.SOLVER of batched, liblinear"),
        ("svm", ("SVM.SHOTS", "[500]"), "images to sample from, expected at least 500"),
        ("svm", ("SVM.PRESET", "voc07"), "does not fit digits train"),
    ],
)
def test_settings_are_checked_before_features_are_extracted(
    lowshot, weights, capsys, monkeypatch, command, setting, message
):
    monkeypatch.setattr("momentum_transfer.lowshot.inputs.extract", lambda *_, **__: pytest.fail("extracted"))
    assert lowshot(command, "--weights", weights, *setting) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state | {"conv1.weight": state["conv1.weight"] * torch.nan}, "conv1.weight"),
        (
            lambda state: {"blocks.0.attn.qkv.weight": torch.ones(9, 3), "patch_embed.proj.weight": torch.ones(3)},
            "expected the names of a known family",
        ),
        (lambda state: {name: tensor for name, tensor in state.items() if "layer3" not in name}, "(1, 1, 0, 1) blocks"),
    ],
    ids=["NaN", "two tensors of a transformer", "a stage is missing"],
)
def test_weights_that_make_no_backbone_are_refused(lowshot, weights, tmp_path, capsys, change, message):
    torch.save(change(torch.load(weights, weights_only=True)), tmp_path / "bad.pth")
    assert lowshot("svm", "--weights", tmp_path / "bad.pth") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "results.jsonl").exists()


def test_evaluation_that_ends_in_an_error_leaves_no_results_file(lowshot, npz, tmp_path):
    assert lowshot("knn", *npz, "KNN.PRESETS", "['best']") == 2
    assert not (tmp_path / "results.jsonl").exists()


def _exit_code(*words):
    return run_tool("lowshot", *words).returncode


@pytest.mark.parametrize(("command", "setting"), [("knn", "KNN.PRESETS=['eman']"), ("svm", "SVM.SHOTS=[2]")])
def test_two_processes_record_what_one_does_and_once(npz, tmp_path, command, setting):
    found = []
    for name, run in (("one", _exit_code), ("two", partial(in_two_processes, _exit_code))):
        file = tmp_path / f"{name}.jsonl"
        words = [command, *npz, "--config", CONFIG, "--results", file, *setting.split("=")]
        assert run(*words) in (0, (0, 0))
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        found.append([(line["task"], line["metric"], line["trial"], line["value"]) for line in lines])
    assert found[0] == found[1]
    assert len(set(found[0])) == len(found[0]) > 0


def test_another_test_file_is_another_result(lowshot, npz, tmp_path):
    arguments = ("knn", *npz, "KNN.PRESETS", "['eman']")
    assert lowshot(*arguments) == 0
    first = len(records(tmp_path))
    with np.load(tmp_path / "test.npz") as test:
        np.savez(tmp_path / "test.npz", features=test["features"][:20], labels=test["labels"][:20])
    assert lowshot(*arguments) == 0
    assert len(records(tmp_path)) == 2 * first


def test_results_that_cannot_be_written_are_refused_before_any_work(lowshot, npz, tmp_path, capsys):
    (tmp_path / "results.jsonl").mkdir()
    assert lowshot("knn", *npz) == 2
    assert "cannot write results" in capsys.readouterr().err


def test_files_that_are_no_npz_are_one_line(lowshot, npz, tmp_path, capsys):
    np.save(tmp_path / "array.npy", np.ones((3, 2)))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "train.npz").read_bytes()[:500])
    for name in ("array.npy", "cut.npz"):
        assert lowshot("knn", "--features", tmp_path / name, "--test-features", tmp_path / "test.npz") == 2
        assert "expected a NumPy .npz without pickled objects" in capsys.readouterr().err


def test_multi_hot_labels_are_refused_where_they_cannot_be_scored(lowshot, npz, tmp_path, capsys):
    for name in ("train", "test"):
        with np.load(tmp_path / f"{name}.npz") as found:
            features, labels = found["features"], np.eye(6, dtype=np.int64)[found["labels"]]
        np.savez(tmp_path / f"{name}.npz", features=features, labels=labels)
    assert lowshot("knn", *npz, "KNN.PRESETS", "['majority-5']") == 2
    assert "found multi-hot labels" in capsys.readouterr().err
    np.savez(tmp_path / "test.npz", features=features, labels=0 * labels)
    assert lowshot("svm", *npz, "SVM.PRESET", "voc07") == 2
    assert "carries a label" in capsys.readouterr().err


def test_evaluations_whose_records_go_to_a_folder_are_alone_in_it_and_a_results_file_elsewhere_is_shared(npz, tmp_path):
    words = ("knn", "--config", CONFIG, *npz, "KNN.PRESETS", "['eman']", "OUTPUT_DIR", tmp_path / "out")
    with alone(tmp_path / "out"):
        refused = run_tool("lowshot", *words)
        assert refused.returncode == 2
        assert refused.stderr.count("\n") == 1
        assert "found process" in refused.stderr
        assert run_tool("lowshot", *words, "--results", tmp_path / "shared/results.jsonl").returncode == 0
    assert not (tmp_path / "out").exists()
    assert run_tool("lowshot", *words).returncode == 0
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["items", "results.jsonl", "settings"]


def test_a_refused_evaluation_leaves_no_folder_it_would_have_made(tmp_path):
    words = ("--config", CONFIG, "--weights", tmp_path / "none.pth", "OUTPUT_DIR", tmp_path / "new/folder/out")
    assert [run_tool("lowshot", command, *words).returncode for command in ("knn", "linear")] == [2, 2]
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def leaking(tmp_path):
    """Class folders of which three of six test images are training images under other names."""
    for part, numbers in (("train", range(40)), ("val", (0, 1, 2, 90, 91, 92))):
        for place, number in enumerate(numbers):
            folder = tmp_path / "data" / part / f"class_{number % 2}"
            folder.mkdir(parents=True, exist_ok=True)
            pixels = np.random.default_rng(number).integers(0, 256, (16, 16, 3)).astype(np.uint8)
            PIL.Image.fromarray(pixels).save(folder / f"{part}_{place}.png")
    return "--train", tmp_path / "data", "DATASETS.TITLE", "leaking", "FEATURES.CACHE", tmp_path / "cache"


@pytest.mark.parametrize(
    "words",
    [
        ("knn", "--weights", "pixels", "KNN.PRESETS", "['majority-5']"),
        ("svm", "--weights", "pixels", "SVM.SHOTS", "[2]", "SVM.TRIALS", "1", "SVM.HELD_OUT_PER_CLASS", "5"),
        ("retrieval", "--weights", "pixels", "KNN.PRESETS", "['majority-5']"),
        ("linear", "--weights", "scratch", "LINEAR.EPOCHS", "1", "LINEAR.BATCH_SIZE", "8", "LINEAR.FRACTION", "1.0"),
        ("finetune", "--weights", "scratch", "FINETUNE.EPOCHS", "1", "FINETUNE.BATCH_SIZE", "8",
         "FINETUNE.FRACTION", "1.0"),
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_training_images_that_test_are_told_kept_in_the_record_and_refused_on_demand(
    lowshot, leaking, tmp_path, capsys, words
):
    command, *rest = [*words, *leaking, "MODEL.WIDTH", "4", "OUTPUT_DIR", tmp_path / "out"]
    assert lowshot(command, *rest, "--forbid-overlap") == 2
    error = capsys.readouterr().err
    assert "found 3 of 6 test images are byte for byte training images (first: " in error
    assert error.count("\n") == 1
    assert not (tmp_path / "results.jsonl").exists()
    assert lowshot(command, *rest) == 0
    assert "warning: 3 of 6 test images are byte for byte training images" in capsys.readouterr().err
    assert {record["overlap"] for record in records(tmp_path)} == {3}


def test_embedded_digits_share_no_image(lowshot, tmp_path, capsys):
    assert lowshot("knn", "--weights", "pixels", "KNN.PRESETS", "['eman']", "--forbid-overlap") == 0
    assert {record["overlap"] for record in records(tmp_path)} == {0}
    assert capsys.readouterr().err == ""
    assert lowshot("knn", "--weights", "pixels", "DATASETS.TEST", "train", "--forbid-overlap") == 2
    assert "1257 of 1257 test images" in capsys.readouterr().err


def test_rows_that_train_and_test_are_told_as_features(lowshot, npz, tmp_path, capsys):
    with np.load(tmp_path / "train.npz") as train:
        np.savez(tmp_path / "test.npz", features=train["features"][:50], labels=train["labels"][:50])
    words = ("knn", *npz, "KNN.PRESETS", "['eman']")
    assert lowshot(*words, "--forbid-overlap") == 2
    assert "50 of 50 rows of the test features are also rows of the training features" in capsys.readouterr().err
    assert lowshot(*words) == 0
    assert {record["overlap"] for record in records(tmp_path)} == {50}
    assert lowshot("diagnostics", *npz, "--forbid-overlap") == 0  # nothing trains


@pytest.mark.parametrize("command", ["knn", "svm", "retrieval"])
def test_features_that_are_the_same_for_all_images_are_refused(lowshot, npz, tmp_path, capsys, command):
    for name in ("train", "test"):
        with np.load(tmp_path / f"{name}.npz") as found:
            constant = 3 + 1e-7 * np.random.default_rng(0).standard_normal(found["features"].shape)
            np.savez(tmp_path / f"{name}.npz", features=constant, labels=found["labels"])
    assert lowshot(command, *npz, "KNN.PRESETS", "['eman']") == 2
    error = capsys.readouterr().err
    assert "expected features that differ between images, found the same for all 200 of train.npz" in error
    assert not (tmp_path / "results.jsonl").exists()
    assert lowshot("diagnostics", *npz) == 0


def collapsed(weights, path):
    """A network whose features are the same for every image, though none of its tensors is constant."""
    state = torch.load(weights, weights_only=True)
    last = [
        name for name in state if name.startswith("layer4") and name.endswith(("bn2.weight", "downsample.1.weight"))
    ]
    torch.save(state | {name: torch.zeros_like(state[name]) for name in last}, path)
    return path


@pytest.mark.parametrize("cached", ["True", "False"])
def test_a_linear_classifier_on_a_collapsed_network_is_refused(lowshot, weights, tmp_path, capsys, cached):
    bad = collapsed(weights, tmp_path / "bad.pth")
    words = ("LINEAR.CACHED", cached, "OUTPUT_DIR", tmp_path, "FEATURES.CACHE", tmp_path / "cache")
    assert lowshot("linear", "--weights", bad, *words) == 2
    assert "expected features that differ between images" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["finetune", "fixmatch"])
@pytest.mark.parametrize(
    ("scale", "message"), [(0.0, "expected features that differ between images"), (1e38, "hold NaN or infinite values")]
)
def test_weights_whose_features_say_nothing_are_refused_before_training(
    lowshot, weights, tmp_path, capsys, command, scale, message
):
    bad, state = collapsed(weights, tmp_path / "bad.pth"), torch.load(weights, weights_only=True)
    if scale:
        scaled = {name: value * scale for name, value in state.items() if name.startswith("layer") and "conv" in name}
        torch.save(state | scaled, bad)
    assert lowshot(command, "--weights", bad, "OUTPUT_DIR", tmp_path, "--results", tmp_path / "r.jsonl") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "trials").exists()


@pytest.mark.parametrize(("part", "code"), [("all", 0), ("norms", 0), ("frozen", 2)])
def test_statistics_that_do_not_fit_the_weights_matter_where_they_are_kept(
    lowshot, weights, tmp_path, capsys, part, code
):
    state = torch.load(weights, weights_only=True)
    wide = {name: value * 1e16 for name, value in state.items() if name.endswith("running_var")}
    shifts = {name: value + 0.1 for name, value in state.items() if name.endswith(".bias")}
    torch.save(state | wide | shifts, tmp_path / "rescaled.pth")
    words = ["FINETUNE.TRAINABLE", part, "FINETUNE.EPOCHS", 1, "FINETUNE.BATCH_SIZE", 8, "FINETUNE.TRIALS", 1]
    assert lowshot("finetune", "--weights", tmp_path / "rescaled.pth", *words, "OUTPUT_DIR", tmp_path) == code
    assert ("expected features that differ between images" in capsys.readouterr().err) == bool(code)


def test_a_file_of_groups_beside_the_test_images_is_kept_with_their_outcomes(lowshot, leaking, tmp_path, capsys):
    names = [f"class_{n % 2}/val_{place}.png" for place, n in enumerate((0, 1, 2, 90, 91, 92))]
    groups = dict(zip(names, "bcabca", strict=True))
    file = tmp_path / "data" / "val" / "groups.csv"
    file.write_text("".join(f"{name},{group}\n" for name, group in groups.items()), encoding="utf-8")
    words = ["knn", "--weights", "pixels", "KNN.PRESETS", "['majority-5']", *leaking, "OUTPUT_DIR", tmp_path / "out"]
    assert lowshot(*words) == 0
    kept = items.read_items(tmp_path, records(tmp_path)[0]["items"])
    assert kept.clusters.tolist() == ["abc".index(groups[name]) for name in sorted(names)]  # in the order of folders
    file.write_text("x.png,a\n", encoding="utf-8")
    assert lowshot(*words, "--results", tmp_path / "other.jsonl") == 2
    assert "found 6 of 6 absent, first 'class_0/val_0.png'" in capsys.readouterr().err
