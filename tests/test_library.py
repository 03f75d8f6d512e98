"""The public names: quick and silent to import, true to their list, and every snippet of docs/library.md runs."""

import ast
import json
import logging
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.neighbors import KNeighborsClassifier

import momentum_transfer as mt
from momentum_transfer.backbones.resnet import Architecture, build_resnet
from tests.transfer.test_detector_run import write_run

ROOT = Path(__file__).resolve().parents[1]
SNIPPETS = re.findall(r"```python\n(.*?)```", (ROOT / "docs/library.md").read_text(encoding="utf-8"), re.S)

IMPORTED = """
import os, sys, time
before, began = dict(os.environ), time.process_time()
import momentum_transfer as mt
seconds = time.process_time() - began  # of this process: other work on the machine does not count
assert dict(os.environ) == before
heavy = {"torch", "numpy", "fvcore", "rich", "matplotlib", "sklearn"} & set(sys.modules)
assert not heavy, heavy
assert set(mt.__all__) <= set(dir(mt))
assert "torch" not in sys.modules
mt.InputError, mt.score_coco, mt.read_records
assert "torch" not in sys.modules
assert dict(os.environ) == before
sys.exit(seconds >= 0.3)
"""


def test_importing_is_quick_and_silent_and_leaves_the_environment_alone():
    ran = subprocess.run([sys.executable, "-c", IMPORTED], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_type_checkers_see_the_same_names_as_python():
    tree = ast.parse((ROOT / "momentum_transfer/__init__.py").read_text(encoding="utf-8"))
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.asname or alias.name: f"{node.module}:{alias.name}"
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == mt._PUBLIC
    assert sorted([*seen, "__version__"]) == sorted(mt.__all__)


@pytest.mark.parametrize("name", sorted(mt._PUBLIC))
def test_every_public_name_is_there_and_says_what_it_is(name: str):
    assert getattr(mt, name).__doc__
    module, _, attribute = mt._PUBLIC[name].partition(":")
    assert getattr(mt, name) is getattr(import_module(module), attribute)


def test_an_unknown_name_is_an_attribute_error_that_lists_the_known():
    with pytest.raises(AttributeError, match="'nowhere'; it has InputError"):
        _ = mt.nowhere


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the snippets name."""
    folder = tmp_path_factory.mktemp("library")
    torch.manual_seed(0)
    for name in ("checkpoint", "lars", "sgd"):
        state = build_resnet(Architecture("resnet18")).state_dict()
        state |= {key: torch.rand_like(value) for key, value in state.items() if key.endswith("bias")}  # as if trained
        torch.save(state, folder / f"{name}.pth")
    box = {"image_id": 1, "category_id": 1, "bbox": [1, 1, 6, 6]}
    truth = {
        "images": [{"id": 1, "height": 9, "width": 9, "neg_category_ids": [], "not_exhaustive_category_ids": []}],
        "categories": [{"id": 1, "name": "cat", "frequency": "r"}],
        "annotations": [{"id": 1, "area": 36, "iscrowd": 0, "segmentation": [[1, 1, 7, 1, 7, 7]], **box}],
    }
    for name in ("annotations", "lvis"):
        (folder / f"{name}.json").write_text(json.dumps(truth), encoding="utf-8")
    (folder / "predictions.json").write_text(json.dumps([{**box, "score": 0.9}]), encoding="utf-8")
    write_run(folder / "outputs/detector", "retinanet")
    Image.new("RGB", (40, 30)).save(folder / "photo.jpg")
    return folder


def arrays() -> dict[str, object]:
    """The arrays that the snippets name."""
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 10)
    features = random.normal(size=(80, 16)).astype(np.float32) + 2 * np.eye(16)[np.tile(labels, 2)]
    views = [(torch.rand(4, 3, 32, 32), torch.rand(4, 3, 32, 32)) for _ in range(2)]
    split = {"train": features[:40], "test": features[40:], "train_labels": labels, "test_labels": labels}
    hits = {"hits_a": random.random(60) < 0.6, "hits_b": random.random(60) < 0.7, "films": np.arange(60) // 6}
    return {**hits, "mt": mt, "torch": torch, "images": torch.rand(6, 3, 32, 32), "batches": views, **split}


def test_there_are_at_least_eight_snippets_of_at_most_five_lines():
    assert len(SNIPPETS) >= 8
    assert max(len(snippet.strip().splitlines()) for snippet in SNIPPETS) <= 5


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_a_snippet_of_the_docs_runs(number: int, prepared: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(prepared)
    names = arrays()
    exec(compile(SNIPPETS[number], f"snippet {number}", "exec"), names)
    facts = {
        "network": lambda: torch.equal(names["network"].conv1.weight, torch.load("checkpoint.pth")["conv1.weight"]),
        "written": lambda: Path("detectron2.pkl").is_file(),
        "rescaled": lambda: all(
            torch.isclose(value.norm(), names["sgd"].state[name].norm())
            for name, value in names["rescaled"].items()
            if value.dim() == 4
        ),
        "features": lambda: names["features"].shape == (6, 512),
        "found": lambda: len(names["found"].names) == len(names["found"].boxes),
        "figures": lambda: np.isfinite(names["figures"]["loss"]),
        "records": lambda: names["records"][0]["value"] == 74.6 and "74.6" in Path("report.html").read_text("utf-8"),
    }
    assert all(fact() for name, fact in facts.items() if name in names)


def test_a_library_call_prints_nothing_until_logging_asks_for_it(prepared: Path, capsys, monkeypatch):
    logger = logging.getLogger("momentum_transfer")
    monkeypatch.setattr(logger, "handlers", [h for h in logger.handlers if isinstance(h, logging.NullHandler)])
    monkeypatch.setattr(logger, "level", logging.NOTSET)
    monkeypatch.setattr(logger, "propagate", True)
    logger.manager._clear_cache()  # levels are cached
    mt.convert(prepared / "checkpoint.pth", prepared / "silent.pkl")
    assert capsys.readouterr() == ("", "")
    logger.setLevel(logging.INFO)
    logger.addHandler(said := _Said())
    mt.convert(prepared / "checkpoint.pth", prepared / "silent.pkl")
    assert any("wrote" in line for line in said.lines)
    assert capsys.readouterr() == ("", "")
    logger.setLevel(logging.ERROR)
    said.lines.clear()
    mt.convert(prepared / "checkpoint.pth", prepared / "silent.pkl")
    assert not said.lines
    logger.manager._clear_cache()


class _Said(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def test_loading_into_a_network_of_another_depth_changes_nothing(prepared: Path):
    other = build_resnet(Architecture("resnet10"))
    before = other.conv1.weight.clone()
    with pytest.raises(mt.InputError, match=r"it lacks layer1\.1\.conv1\.weight"):
        mt.load(prepared / "checkpoint.pth", into=other)
    assert torch.equal(other.conv1.weight, before)


def test_knn_of_arrays_agrees_with_scikit_learn():
    names = arrays()
    train, test = (names[side] / np.linalg.norm(names[side], axis=1, keepdims=True) for side in ("train", "test"))
    theirs = KNeighborsClassifier(1).fit(train, names["train_labels"]).score(test, names["test_labels"])
    ours = mt.knn(names["train"], names["train_labels"], names["test"], names["test_labels"], k=1)
    assert ours["top1"] == pytest.approx(100 * theirs)


def test_svm_of_arrays_gives_one_value_a_trial_and_mean_ap_for_several_labels():
    names = arrays()
    given = [names[key] for key in ("train", "train_labels", "test", "test_labels")]
    found = mt.svm(*given, shots=(1, 4), trials=3, select_c="test")
    assert {k: len(values) for k, values in found.items()} == {1: 3, 4: 3}
    assert np.mean(found[4]) > 25.0  # of four classes
    many = np.eye(4, dtype=int)[names["train_labels"]]
    found = mt.svm(names["train"], many, names["test"], many, shots=(2,), trials=1, select_c="test")
    assert 25.0 < found[2][0] <= 100.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_labels": np.zeros(40)}, "expected the labels of train as whole numbers, found float64"),
        ({"test": np.zeros((40, 3))}, "both must come from the same backbone"),
        ({"test": np.full((40, 16), np.nan)}, "NaN or infinite"),
        ({"k": 41}, "expected 1 ≤ k ≤ 40"),
    ],
)
def test_wrong_arrays_are_refused(change: dict, message: str):
    names = {key: value for key, value in arrays().items() if key.startswith(("train", "test"))}
    with pytest.raises(mt.InputError, match=message):
        mt.knn(**{**names, **change})


@pytest.mark.parametrize(
    ("call", "change", "message"),
    [
        (mt.linear, {"epochs": -1}, "epochs above 0, found -1"),
        (mt.linear, {"learning_rates": (0.1, 0.0)}, "learning_rates above 0, found 0"),
        (mt.linear, {"learning_rates": ()}, "expected learning_rates, found an empty list"),
        (mt.linear, {"batch_size": 0}, "batch_size .*at least 1, found 0"),
        (mt.svm, {"trials": 0}, "trials .*at least 1, found 0"),
    ],
)
def test_numbers_that_are_none_are_refused(call, change: dict, message: str):
    names = {key: value for key, value in arrays().items() if key.startswith(("train", "test"))}
    with pytest.raises(mt.InputError, match=message):
        call(**names, **change)


def test_features_leave_the_networks_mode_as_it_was_and_take_batches_with_labels():
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.5)).train()
    images = torch.rand(5, 3, 2, 2)
    batches = [(images[:3], torch.zeros(3)), (images[3:], torch.zeros(2))]
    assert np.array_equal(mt.extract_features(network, batches), images.flatten(1).numpy())
    assert network.training
    with pytest.raises(mt.InputError, match="expected batches of images"):
        mt.extract_features(network, torch.rand(4, 5))
    for network_given, images_given in ((None, 3), (network, 3), (3, torch.rand(1, 3, 4, 4))):
        with pytest.raises(mt.InputError, match="expected"):
            mt.extract_features(network_given, images_given)


@pytest.mark.parametrize("name", ["momentum2", "byol_eman", "moco_eman", "simsiam"])
def test_a_step_of_ones_own_loop_learns_and_moves_the_teacher(name: str):
    torch.manual_seed(0)
    settings = {"HEAD.HIDDEN": 16, "HEAD.OUTPUT": 8} | ({"MOCO.QUEUE": 8} if name == "moco_eman" else {})
    method = mt.build_method(name, arch="resnet10", width=8, stem="small", settings=settings)
    optimizer = torch.optim.SGD(method.parameters(), lr=0.1)
    before = {key: value.clone() for key, value in method.state_dict().items()}
    view1, view2 = torch.rand(2, 4, 3, 16, 16)
    figures = [mt.train_step(method, optimizer, view1, view2, progress=step / 3) for step in range(3)]
    assert all(np.isfinite(figure["loss"]) for figure in figures)
    moved = {key.split(".")[0] for key, value in method.state_dict().items() if not torch.equal(value, before[key])}
    assert {"student", *(["teacher"] if hasattr(method, "teacher") else [])} <= moved
    with pytest.raises(mt.InputError, match="it is the fraction of the run"):
        mt.train_step(method, optimizer, view1, view2, progress=3)


def test_an_unknown_method_names_the_known_ones():
    with pytest.raises(mt.InputError, match=r"expected a method of momentum2, byol, .* found 'momentum3'"):
        mt.build_method("momentum3")
