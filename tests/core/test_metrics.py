import json

from momentum_transfer.core.loggers import Metrics, read


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
