"""Metrics are whole lines, and reach TensorBoard and Weights & Biases."""

import json
import sys
import types

import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.loggers import Metrics, open_loggers, read


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


def test_tensorboard_shows_the_figures_of_metrics_jsonl_and_drops_what_a_killed_run_left(tmp_path, monkeypatch):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
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
