"""Metrics are whole lines, and reach TensorBoard, Weights & Biases and MLflow."""

import json
import math
import os
import sys
import threading
import time
import types

import pytest

from momentum_transfer.core import records
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.loggers import Metrics, open_loggers, read, suite_run


@pytest.fixture
def wandb(monkeypatch):
    """Stands in for the package: keeps what it is given."""
    runs = []

    class Run:
        def __init__(self, **asked):
            self.asked, self.id, self.axes, self.logged, self.ended = (
                asked,
                asked["id"] or f"id{len(runs)}",
                [],
                [],
                False,
            )
            runs.append(self)

        def define_metric(self, name, step_metric=None):
            self.axes.append((name, step_metric))

        def log(self, figures):
            self.logged.append(figures)

        def finish(self):
            self.ended = True

    class Error(Exception):
        pass

    module = types.SimpleNamespace(init=Run, errors=types.SimpleNamespace(Error=Error), runs=runs)
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    monkeypatch.delenv("WANDB_NAME", raising=False)
    return module


def test_weights_and_biases_gets_every_figure_and_a_resumed_training_goes_on_in_its_run(wandb, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text("SOLVER: {BASE_LR: 0.1}\n")
    with Metrics(folder) as metrics:
        metrics.write(1, {"loss": 0.5})
        metrics.write(2, {"loss": 0.25, "lr": 0.1})
    with Metrics(folder, first_step=1) as metrics:
        metrics.write(2, {"loss": 0.125})
    with Metrics(folder):
        pass
    first, resumed, anew = wandb.runs
    assert first.asked == {"project": "mine", "name": "run", "dir": str(folder), "id": None, "resume": None,
                           "config": {"SOLVER": {"BASE_LR": 0.1}}}  # fmt: skip
    assert first.logged == [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25, "lr": 0.1}]
    assert first.axes == [("step", None), ("*", "step")]
    assert (resumed.asked["id"], resumed.asked["resume"]) == (first.id, "allow")
    assert anew.asked["id"] is None
    assert all(run.ended for run in wandb.runs)


def test_no_login_is_one_line_before_the_first_step(wandb, tmp_path, monkeypatch):
    def refuse(**_):
        raise wandb.errors.Error("api_key not configured\n(no-tty)")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(
        InputError, match=r"cannot be reached: api_key not configured \(no-tty\); unset it, or .*offline"
    ):
        open_loggers(tmp_path)


def test_a_project_without_the_package_says_which_extra_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    monkeypatch.setitem(sys.modules, "wandb", None)  # as where it is not installed
    with pytest.raises(InputError, match=r'WANDB_PROJECT is set: .*pip install "momentum-transfer\[wandb\]"'):
        Metrics(tmp_path)


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """A real store's folder: SQLite makes its tables once, which takes seconds."""
    return tmp_path_factory.mktemp("mlflow")


@pytest.fixture
def store(database, monkeypatch):
    """The client of the real store."""
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{database}/mlflow.db")
    monkeypatch.chdir(database)  # artifacts of the default experiment go to ./mlruns
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return mlflow.MlflowClient(os.environ["MLFLOW_TRACKING_URI"])


def in_store(store, run):
    """{step: {name: value}} of all metrics of a run."""
    found = {}
    for name in store.get_run(run).data.metrics:
        for metric in store.get_metric_history(run, name):
            found.setdefault(metric.step, {})[name] = None if math.isnan(metric.value) else metric.value
    return found


def test_mlflows_store_holds_every_metric_the_settings_and_the_files_and_a_resumed_training_goes_on(store, tmp_path):
    folder = tmp_path / "suite" / "m2" / "linear"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("SOLVER: {BASE_LR: 0.1, STEPS: [1, 2]}\n")
    with Metrics(folder) as metrics:
        metrics.write(1, {"loss": 0.5})
        metrics.write(2, {"loss": 0.25, "lr": 0.1, "top1 (k=5)": float("nan")})
    run = (folder / "mlflow_run.txt").read_text().strip()
    assert store.get_run(run).info.status == "FINISHED"
    with pytest.raises(KeyError), Metrics(folder, first_step=2) as metrics:
        metrics.write(3, {"loss": 0.125})
        raise KeyError("broken")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    renamed = {
        line.pop("step"): {key.replace("(k=5)", "_k_5_"): value for key, value in line.items()} for line in lines
    }
    assert in_store(store, run) == renamed
    assert len(renamed) == 3
    kept = store.get_run(run)
    assert kept.data.params == {"SOLVER.BASE_LR": "0.1", "SOLVER.STEPS": "[1, 2]"}
    assert (kept.info.run_name, kept.info.status) == ("m2/linear", "FAILED")
    assert {file.path for file in store.list_artifacts(run)} == {"config.yaml", "metrics.jsonl"}


def test_a_suite_is_one_mlflow_run_with_its_scores_whose_children_its_tasks_are(store, tmp_path):
    results = tmp_path / "results.jsonl"
    for trial in range(2):
        with suite_run(tmp_path), Metrics(tmp_path / f"task{trial}") as metrics:
            metrics.write(1, {"loss": 1.0})
            about = {"checkpoint": {"name": "m2", "sha256": ""}, "network": "teacher", "protocol": "eman"}
            records.append(results, [records.make_record("knn/k=20", "top1", 50.0 + trial, trial=trial, **about)])
        assert "MOMENTUM_TRANSFER_MLFLOW_PARENT" not in os.environ
    run = (tmp_path / "mlflow_run.txt").read_text().strip()
    scores = store.get_metric_history(run, "m2/teacher/knn/k_20/eman/top1")
    assert [(score.step, score.value) for score in scores] == [(0, 50.0), (1, 51.0)]
    for trial in range(2):
        child = store.get_run((tmp_path / f"task{trial}" / "mlflow_run.txt").read_text().strip())
        assert child.data.tags["mlflow.parentRunId"] == run
    assert [file.path for file in store.list_artifacts(run)] == ["results.jsonl"]


def test_shards_that_begin_at_once_are_one_mlflow_run_with_each_score_once(store, tmp_path, monkeypatch):
    true, begun, barrier = store.__class__.create_run, [], threading.Barrier(3)
    monkeypatch.setattr(
        store.__class__, "create_run", lambda *a, **k: begun.append(k) or time.sleep(0.3) or true(*a, **k)
    )

    def shard() -> None:
        barrier.wait()
        with suite_run(tmp_path):
            barrier.wait()
            record = records.make_record("knn/k=20", "top1", 50.0, checkpoint={"name": "m3", "sha256": ""})
            records.append(tmp_path / "results.jsonl", [record])
            barrier.wait()

    shards = [threading.Thread(target=shard) for _ in range(3)]
    for one in shards:
        one.start()
    for one in shards:
        one.join()
    assert len(begun) == 1
    run = (tmp_path / "mlflow_run.txt").read_text().strip()
    assert len(store.get_metric_history(run, "m3/knn/k_20/top1")) == len(
        (tmp_path / "results.jsonl").read_text().splitlines()
    )
    assert store.get_run(run).info.status == "FINISHED"


def test_a_store_that_goes_away_ends_no_training_and_gets_everything_at_the_end(store, tmp_path, monkeypatch, caplog):
    import mlflow

    true, asked = mlflow.MlflowClient.log_batch, []

    def away(self, run_id, **batch):
        asked.append(batch)
        if len(asked) < 2:
            raise mlflow.exceptions.MlflowException("connection refused")
        return true(self, run_id, **batch)

    monkeypatch.setattr(mlflow.MlflowClient, "log_batch", away)
    with caplog.at_level("WARNING", "momentum_transfer"), Metrics(tmp_path / "run") as metrics:
        for step in (1, 2, 3):
            metrics.write(step, {"loss": step / 2})
    assert "MLflow: connection refused; nothing is lost" in caplog.text
    assert len(asked) == 2  # a step does not wait for a store that is away
    run = (tmp_path / "run" / "mlflow_run.txt").read_text().strip()
    assert in_store(store, run) == {1: {"loss": 0.5}, 2: {"loss": 1.0}, 3: {"loss": 1.5}}


def test_a_store_that_cannot_be_opened_is_one_line_before_the_first_step(store, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mlflow_run.txt").write_text("0123\n")  # of another store
    with pytest.raises(InputError, match=r"MLFLOW_TRACKING_URI is set, but MLflow's run cannot begin or go on: .*0123"):
        Metrics(tmp_path / "run", first_step=3)


def test_a_store_without_the_package_says_which_extra_to_install_and_without_one_nothing_is_imported(
    tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "mlflow", None)  # as where it is not installed
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///m.db")
    with pytest.raises(InputError, match=r'MLFLOW_TRACKING_URI is set: .*pip install "momentum-transfer\[mlflow\]"'):
        open_loggers(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    with suite_run(tmp_path), Metrics(tmp_path) as metrics:
        metrics.write(1, {"loss": 0.5})
    assert not (tmp_path / "mlflow_run.txt").exists()


def test_tensorboard_shows_the_figures_of_metrics_jsonl_and_drops_what_a_killed_run_left(tmp_path, monkeypatch):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    # Files of one second and process are sorted by a counter as text, 10 before 9.
    writer = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    monkeypatch.setattr(writer, "_global_uid", writer.AtomicCounter(0))
    with Metrics(tmp_path) as metrics:
        for step in (1, 2, 3):
            metrics.write(step, {"loss": step / 2})
    with Metrics(tmp_path, first_step=1) as metrics:
        metrics.write(2, {"loss": 7.0})
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    shown = [(event.step, event.value) for event in events.Scalars("loss")]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert shown == [(line["step"], line["loss"]) for line in lines] == [(1, 0.5), (2, 7.0)]


def test_figures_are_one_line_a_step(tmp_path):
    with Metrics(tmp_path) as metrics:
        metrics.write(1, {"loss": 0.5})
        metrics.write(2, {"loss": 0.25})
    assert [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [
        {"step": 1, "loss": 0.5},
        {"step": 2, "loss": 0.25},
    ]


def test_lines_after_the_resumed_step_and_a_cut_line_are_removed(tmp_path):
    with Metrics(tmp_path) as metrics:
        for step in (10, 20, 30):
            metrics.write(step, {"loss": step})
    with open(tmp_path / "metrics.jsonl", "a") as stream:
        stream.write('{"step": 40, "lo')
    with Metrics(tmp_path, first_step=20) as metrics:
        metrics.write(30, {"loss": -1})
    assert [line["loss"] for line in read(tmp_path / "metrics.jsonl")] == [10, 20, -1]


def test_what_json_cannot_hold_is_null(tmp_path):
    with Metrics(tmp_path) as metrics:
        metrics.write(1, {"loss": 0.5, "accuracy": float("nan"), "scale": float("inf")})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "loss": 0.5, "accuracy": null, "scale": null}\n'
