"""What the report reads beside records: curves, images and conversion reports of run folders, damaged ones too."""

import base64
import io
import json
import re
from pathlib import Path

import pytest
from PIL import Image

from momentum_transfer.core.errors import InputError, counted
from momentum_transfer.report.examples import galleries
from momentum_transfer.report.figures import training_figures
from momentum_transfer.report.page import build, render_html, render_markdown
from momentum_transfer.report.read_inputs import read_runs
from tests.report.report_records import small_records


def test_missing_run_folder_is_an_input_error_and_an_empty_one_is_a_notice(tmp_path: Path):
    with pytest.raises(InputError, match="run folder not found"):
        read_runs([tmp_path / "nowhere"])
    assert "no metrics.jsonl" in read_runs([tmp_path]).notices[0]


def test_damaged_images_and_curves_are_noticed_and_the_page_is_made(tmp_path: Path):
    run = tmp_path / "run"
    (run / "visuals").mkdir(parents=True)
    (run / "visuals" / "scene.png").write_bytes(b"no image")
    (run / "conversion.json").write_text("{", encoding="utf-8")
    (run / "metrics.jsonl").write_text('{"step": 0, "loss": 2.0}\n{"step": 1, "los\n{"step": 2, "loss": 1.0}\n')
    report = build(small_records(), runs=read_runs([run]))
    assert [plot.title for plot in report.curves] == ["Pretraining loss"]
    assert "run ends at 1" in report.curves[0].caption
    told = " ".join(report.notices)
    for problem in ("cannot read the image", "1 broken line left out", "conversion.json: not JSON"):
        assert problem in told
    assert "scene.png" in render_html(report)


def test_a_resumed_runs_repeated_steps_count_once(tmp_path: Path):
    lines = [{"step": 0, "loss": 5.0}, {"step": 1, "loss": 4.0}, {"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0}]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (curve,) = read_runs([tmp_path]).curves
    assert (curve.steps, curve.values) == ((0, 1, 2), (5.0, 3.0, 2.0))


def test_a_teachers_precision_and_recall_are_curves_and_its_images_have_their_heading(tmp_path: Path):
    rates = {"pseudo_recall": 30.0, "pseudo_boxes": 4.0}
    steps = ((20, None), (40, 50.0), (60, 60.0))
    lines = [{"step": s, "loss": 1.0, "loss_cls": 0.5, "pseudo_precision": p, **rates} for s, p in steps]
    run = tmp_path / "run"
    (run / "visuals").mkdir(parents=True)
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    Image.new("RGB", (300, 100)).save(run / "visuals/teacher_000001.png")
    found = read_runs([run])
    curves = {curve.key: (curve.steps, curve.values) for curve in found.curves}
    assert curves["pseudo_precision"] == ((40, 60), (50, 60))
    assert curves["pseudo_recall"] == ((20, 40, 60), (30, 30, 30))
    assert {"task_loss", "pseudo_boxes"} <= set(curves)
    assert [gallery.title for gallery in galleries(found.examples, [])] == [
        "what the teacher labels, beside the truth where that is known"
    ]


def test_an_accuracy_of_its_own_line_leaves_the_loss_and_the_seconds_of_the_same_step(tmp_path: Path):
    lines = []
    for step in (10, 20):
        lines += [{"step": step, "loss": 2.0, "embedding_std": 1.0, "seconds": 0.1}, {"step": step, "knn_top1": 50.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    curves = {curve.key: (curve.steps, curve.values) for curve in read_runs([tmp_path]).curves}
    assert curves["loss"] == ((10, 20), (2, 2))
    assert curves["seconds"] == ((10, 20), (0.1, 0.1))
    assert curves["knn_top1"] == ((10, 20), (50, 50))


def test_a_suites_folder_of_tasks_without_anything_to_show_is_no_mistake(tmp_path: Path):
    (tmp_path / "knn").mkdir()
    (tmp_path / "knn" / "suite_state.json").write_text('{"key": "a", "exit_code": 0}', encoding="utf-8")
    assert read_runs([tmp_path]).notices == []


def test_the_losses_of_pretraining_and_of_a_detector_are_two_plots(tmp_path: Path):
    (tmp_path / "mask_rcnn").mkdir()
    pretraining = [{"step": i, "loss": 2.0 - i, "lr": 0.1} for i in range(2)]
    detector = [{"step": i, "loss": 9.0 - i, "loss_rpn_cls": 1.0, "lr": 0.02} for i in range(2)]
    for path, lines in ((tmp_path, pretraining), (tmp_path / "mask_rcnn", detector)):
        (path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    plots = build(small_records(), runs=read_runs([tmp_path])).curves
    assert [plot.title for plot in plots] == ["Pretraining loss", "Learning rate", "Training loss: mask_rcnn"]
    assert plots[2].caption == f"{tmp_path.name} ends at 8"


def test_the_same_scene_of_two_runs_stands_side_by_side(tmp_path: Path):
    for run in ("momentum2", "random_init"):
        folder = tmp_path / run / "mask_rcnn" / "visuals"
        folder.mkdir(parents=True)
        for name in ("worst_2", "best_1", "other"):
            Image.new("RGB", (900, 600), "blue").save(folder / f"{name}.png")
    found = read_runs([tmp_path / "momentum2", tmp_path / "random_init"])
    same, best, worst = build(small_records(), runs=found).galleries
    assert {gallery.place for gallery in (same, best, worst)} == {"mask_rcnn"}
    assert same.title == "random images, the same for all"
    assert [shot.caption for shot in same.rows[0]] == ["momentum2 · other", "random_init · other"]
    assert best.title.startswith("the best of each")
    assert [[shot.caption for shot in row] for row in worst.rows] == [["momentum2 · 2", "random_init · 2"]]
    assert _width(best.rows[0][0].uri) == 480
    assert not best.wide


def _width(uri: str) -> int:
    return Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).width


def test_annotated_beside_detected_is_shown_twice_as_wide_and_runs_below_each_other(tmp_path: Path):
    for run in ("momentum2", "random_init"):
        (tmp_path / run / "visuals").mkdir(parents=True)
        Image.new("RGB", (2000, 900)).save(tmp_path / run / "visuals/scene.png")
    (gallery,) = build(small_records(), runs=read_runs([tmp_path / "momentum2", tmp_path / "random_init"])).galleries
    assert _width(gallery.rows[0][0].uri) == 960
    assert gallery.wide


def test_each_runs_own_best_stand_side_by_side_although_they_are_other_scenes(tmp_path: Path):
    for run, scenes in {"a": ("best_1", "best_2"), "b": ("best_8",)}.items():
        folder = tmp_path / run / "visuals"
        folder.mkdir(parents=True)
        for scene in scenes:
            Image.new("RGB", (8, 8)).save(folder / f"{scene}.png")
    (best,) = build(small_records(), runs=read_runs([tmp_path / "a", tmp_path / "b"])).galleries
    assert [[shot.caption for shot in row] for row in best.rows] == [["a · 1", "b · 8"], ["a · 2"]]


def test_images_beyond_the_budget_are_left_out_with_a_notice(tmp_path: Path, monkeypatch):
    (tmp_path / "visuals").mkdir()
    for index in range(3):
        Image.effect_noise((64, 64), 90).save(tmp_path / "visuals" / f"{index}.png")
    monkeypatch.setattr("momentum_transfer.report.examples._BUDGET", 9000)
    report = build(small_records(), runs=read_runs([tmp_path]))
    shown = sum(len(row) for gallery in report.galleries for row in gallery.rows)
    assert 0 < shown < 3
    assert any(f"{counted(3 - shown, 'image')} left out" in notice for notice in report.notices)


def test_conversion_report_lists_what_was_used_dropped_and_missing(tmp_path: Path):
    content = {
        "used": {f"layer{i}": f"res{i}" for i in range(10)},
        "dropped": {**{f"fc{i}": "the head" for i in range(9)}, "queue": "negatives"},
        "missing": {},
        "notes": ["one", "two"],
        "family": "ours",
    }
    (tmp_path / "conversion.json").write_text(json.dumps(content))
    (table,) = build(small_records(), runs=read_runs([tmp_path])).conversions
    cells = {row.label: [cell.main for cell in row.cells] for row in table.rows}
    assert cells["used"] == ["10", "layer0 → res0, layer1 → res1, layer2 → res2, layer3 → res3, … (6 more)"]
    assert cells["dropped"] == ["10", "9 × the head, 1 × negatives"]
    assert cells["missing"] == ["0", ""]
    assert cells["notes"] == ["2", "one, two"]
    assert cells["family"] == ["", "ours"]


def test_two_folders_of_one_name_are_not_mixed_and_the_second_is_a_notice(tmp_path: Path):
    for parent, loss in (("first", 1.0), ("second", 9.0)):
        run = tmp_path / parent / "momentum2"
        run.mkdir(parents=True)
        (run / "metrics.jsonl").write_text("\n".join(json.dumps({"step": i, "loss": loss}) for i in range(3)))
    found = read_runs([tmp_path / "first" / "momentum2", tmp_path / "second" / "momentum2"])
    assert [curve.values[-1] for curve in found.curves] == [1.0]
    assert "second/momentum2: left out, because" in found.notices[0]


def test_a_linked_run_has_the_name_of_the_link(tmp_path: Path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 0, "loss": 1}\n{"step": 1, "loss": 2}\n')
    (tmp_path / "other").symlink_to(tmp_path / "run")
    assert read_runs([tmp_path / "other"]).curves[0].run == "other"


def test_tasks_that_failed_or_have_not_ended_are_told_on_the_first_screen(tmp_path: Path):
    states = {
        "well": {"key": "a", "exit_code": 0},
        "failed": {"key": "a", "exit_code": 3, "note": "exit code 3: boom <b>"},
        "running": {"key": "a"},
    }
    for name, state in states.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "suite_state.json").write_text(json.dumps(state))
    report = build(small_records(), runs=read_runs([tmp_path]))
    failed, running = report.unfinished
    assert failed.startswith(f"{tmp_path.name}/failed failed")
    assert failed.endswith("(exit code 3: boom <b>)")
    assert f"{tmp_path.name}/running has not ended" in running
    page = render_html(report)
    assert "2 tasks did not end well" in page.split("</header>")[0]
    assert "boom &lt;b&gt;" in page


def test_curves_have_the_colour_of_their_checkpoint_and_each_detector_its_plot(tmp_path: Path):
    for run in ("momentum2_digits", "random_digits", "stranger"):
        for place in ("mask_rcnn", "fcos"):
            folder = tmp_path / run / place
            folder.mkdir(parents=True)
            lines = [{"step": i, "total_loss": 1.0} for i in range(3)]
            (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    runs = read_runs([tmp_path / run for run in ("stranger", "random_digits", "momentum2_digits")])
    plots = build(small_records(), runs=runs).curves
    assert [plot.title for plot in plots] == ["Training loss: fcos", "Training loss: mask_rcnn"]
    drawn = re.findall(r"stroke: var\(--series-(\d)\); stroke-width: 1.6", plots[0].svg)
    assert drawn[:3] == ["2", "1", "0"]  # the summary has momentum2_digits as 0 and random_digits as 1


def test_folder_names_are_escaped_in_every_output(tmp_path: Path):
    folder = tmp_path / "<b>run" / "<i>task"
    (folder / "visuals").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(folder / "visuals" / "<u>.png")
    (folder / "metrics.jsonl").write_text('{"step": 0, "loss": 1}\n{"step": 1, "loss": 2}\n')
    (folder / "conversion.json").write_text('{"<s>": {"<em>": "<q>"}}')
    report = build(small_records(), runs=read_runs([tmp_path / "<b>run"]))
    for text in (render_html(report), render_markdown(report)):
        assert "&lt;b&gt;run" in text
        assert not re.search("<(b|i|u|s|em|q)>[^/]", text.replace("<b>momentum2_digits</b>", "").replace("<b>+", ""))


def test_accuracies_on_the_way_have_plots_of_their_own(tmp_path):
    folder = tmp_path / "run" / "fixmatch"
    folder.mkdir(parents=True)
    lines = [{"step": s, "loss": 1.0, "coverage": 0.5, "student_top1": 50.0 + s, "teacher_top1": 40.0} for s in (1, 2)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    plots = {plot.title: plot.caption for plot in training_figures(read_runs([tmp_path / "run"]).curves, {})}
    assert plots["Accuracy of the student while training: fixmatch"] == "run ends at 52"
    assert plots["Accuracy of the teacher while training: fixmatch"] == "run ends at 40"
