"""The page from fixed records: expected tables, one file, escaping, damaged input, size and time."""

import csv
import html
import io
import json
import re
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

from momentum_transfer.core import records as records_file
from momentum_transfer.core.errors import InputError
from momentum_transfer.images.published_counts import same_dataset
from momentum_transfer.report.page import build, make_report, render_csv, render_html, render_markdown
from momentum_transfer.report.provenance import _block
from momentum_transfer.report.read_inputs import read_records, read_runs
from momentum_transfer.report.reference import load_tables, published
from momentum_transfer.report.tables import TableView
from tests.report.report_records import record, small_records


class Tables(HTMLParser):
    """The cells of every table of a page, row by row, and every address that the page would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.loads: list[str] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs) -> None:
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self._inside = True
        self.loads += [value for key, value in attrs if key in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.tables[-1][-1][-1] += data


def table_with(page: str, label: str) -> list[list[str]]:
    for table in Tables(page).tables:
        if any(row and row[0].startswith(label) for row in table):
            return [[" ".join(cell.split()) for cell in row] for row in table]
    raise AssertionError(f"no table has a row {label}")


def test_summary_equals_the_expected_table():
    rows = table_with(render_html(build(small_records())), "svm/k=4 top1")
    assert rows[0] == ["task", "momentum2_digits", "random_digits", "momentum2_digits − random_digits"]
    assert ["30.0", "5.0", "+25.0 one trial: no verdict"] in [row[1:] for row in rows]
    assert ["64.0 ± 1.0", "14.0 ± 1.0", "+50.0 [50.0, 50.0] better"] in [row[1:] for row in rows]
    assert rows[-1][1:3] == ["1.0 over 3", "2.0 over 3"]


def test_trials_are_counted_in_the_cells_where_they_differ_and_else_in_the_caption():
    same, mixed = (
        small_records(),
        [*small_records(), record("m2", "svm/k=4", "top1", 1.0, trial=1), record("m2", "svm/k=4", "top1", 2.0)],
    )
    assert "standard deviation over 3 trials" in build(same).summary.caption
    assert "standard deviation over n trials" in build(mixed).summary.caption
    assert {cell.trials for row in build(mixed).summary.rows for cell in row.cells} == {"", "n=2", "n=3"}


def test_every_spread_says_over_what_it_is_and_what_clear_means():
    report = build(small_records())
    reading = report.summary.reading
    assert "No interval covers the seed of pretraining where a checkpoint was pretrained once" in reading
    assert "after the correction over all headline measures and baselines of the page" in reading
    assert "this is about the checkpoint, not about its method" in html.unescape(render_html(report))
    assert reading in html.unescape(render_html(report))
    assert reading in html.unescape(render_markdown(report))
    captions = [plot.caption for plot in report.plots]
    assert any("whiskers are ±1 standard deviation over trials" in text for text in captions)
    assert any("whiskers are 95 % intervals over trials and test images" in text for text in captions)
    assert any("mean over 3 trials with k images per class" in text for text in captions)
    fewer = [*small_records(), record("m2", "svm/k=1", "top1", 1.0), record("m2", "svm/k=4", "top1", 2.0)]
    assert any("mean over 1 to 3 trials" in plot.caption for plot in build(fewer).plots)


def test_one_trial_without_outcomes_gives_no_verdict():
    (verdict,) = build(small_records()).verdicts
    assert verdict == (
        "Against random_digits (random weights) momentum2_digits is better on 2 of 3 measures "
        "(1 with one trial: no verdict); about this checkpoint."
    )
    single = [entry for entry in small_records() if entry["trial"] == 0]
    assert build(single).verdicts == (
        "Against random_digits (random weights) momentum2_digits has no verdict: 3 with one trial: no verdict.",
    )


def test_verdict_tells_what_is_worse_too_and_raw_pixels():
    records = small_records()
    records += [record("pixels", "svm/k=1", "top1", value, trial=i) for i, value in enumerate((88.0, 90.0, 92.0))]
    records += [record("pixels", "svm/k=4", "top1", 20.0)]
    assert build(records).verdicts[1] == (
        "Against pixels (raw pixels) momentum2_digits is worse on 1 of 2 measures "
        "(1 with one trial: no verdict); about this checkpoint."
    )


def test_without_a_random_baseline_the_page_says_so():
    (verdict,) = build([record("momentum2", "svm/k=4", "top1", 1.0)]).verdicts
    assert "No baseline" in verdict


def test_page_loads_nothing_from_elsewhere(tmp_path: Path):
    run = tmp_path / "run"
    (run / "visuals").mkdir(parents=True)
    Image.new("RGB", (20, 20), "red").save(run / "visuals" / "scene.png")
    page = render_html(build(small_records(), runs=read_runs([run])))
    loads = Tables(page).loads
    assert any(address.startswith("data:image/") for address in loads)
    assert all(address.startswith(("data:image/", "#")) for address in loads)
    assert "<script" not in page
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)


def test_published_rows_of_the_same_protocol_and_data_stand_unmarked_and_first():
    report = build(small_records(), reference=published(load_tables()))
    (boxes,) = [table for table in report.details if "boxes" in table.title]
    heading, *beside = [row for row in boxes.rows if row.kind in ("source", "published")]
    assert (heading.kind, heading.label) == ("source", "published: Momentum² Teacher table 9 (a)")
    assert heading.note == "same protocol and data"
    assert [cell.text for cell in beside[0].cells] == ["31.0", "49.5"]
    assert [row.label for row in beside[:5]] == [
        "random init.", "supervised", "MoCo 200e", "BYOL 300e", "Momentum² Teacher 300e",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            {"images": 72, "classes": 3},
            "≠ other data: ImageNet has 50000 images of 1000 classes, here are 72 images of 3",
        ),
        ({}, "≠ data not known to be ImageNet: the records do not say how many images and classes were tested"),
        ({"images": 50_000, "classes": 1000}, "same protocol and data"),
    ],
)
def test_a_title_is_no_evidence_of_the_data(data: dict, said: str):
    own = {"protocol": "imagenet/test/vissl", "dataset": "ImageNet"} | ({"data": data} if data else {})
    (table,) = build([record("m2", "svm/k=1", "top1", 73.3, **own)], reference=published(load_tables())).details
    heading, *beside = [row for row in table.rows if row.kind in ("source", "published")]
    assert heading.note == said
    assert all(cell.differs is ("same" not in said) for row in beside[:5] for cell in row.cells if cell.main != "–")


def test_a_published_number_of_another_protocol_is_marked_in_every_output():
    report = build(small_records(), reference=published(load_tables()))
    (svm,) = [table for table in report.details if "SVM" in table.title]
    (heading,) = [row for row in svm.rows if row.kind == "source"]
    assert heading.label == "published: EMAN table 5"
    assert heading.note == "≠ other protocol: imagenet/test/vissl, other data: ImageNet"
    beside = [row for row in svm.rows if row.kind == "published"]
    assert beside
    assert not any(cell.mark for row in beside for cell in row.cells)  # the paper's own rows before quoted ones
    assert all(cell.differs for row in beside for cell in row.cells if cell.main != "–")
    assert "≠" in render_html(report)
    assert re.search(r"published: Supervised, 90 epochs.*≠ 46\.8", render_markdown(report))


def test_names_from_files_are_escaped_everywhere():
    evil = '<img src=x onerror="alert(1)">|`$x$'
    records = [record(evil, "svm/k=4", "top1", 50.0, dataset=evil, protocol=evil), *small_records()]
    records += [record(evil, "svm/k=1", "top1", 40.0, dataset=evil, protocol=evil)]
    report = build(records, problems=[f"broken {evil}"], sources=[evil], command=evil, title=evil)
    page, markdown = render_html(report), render_markdown(report)
    assert "<img" not in page
    assert "&lt;img src=x onerror=" in page
    assert "<img" not in markdown
    rows = [line for line in markdown.splitlines() if line.startswith("|") and "&lt;img" in line]
    assert rows
    assert all("\\|`$x$" in line for line in rows)


def test_a_formula_as_a_name_is_inert_in_the_spreadsheet():
    text = render_csv(build([record("=HYPERLINK(1)", "svm/k=4", "top1", 1.5)]).results)
    assert "'=HYPERLINK(1)" in text


def test_a_nul_in_a_name_is_an_escape_in_the_spreadsheet():
    rows = list(csv.reader(io.StringIO(render_csv(build([record("a\0b", "svm/k=4", "top1", 1.5)]).results))))
    assert "a\\0b" in rows[1]


def test_plots_are_painted_by_the_pages_variables_only():
    report = build(small_records())
    assert [plot.title for plot in report.plots] == [
        "What is gained over random_digits", "From baseline to pretrained", "Low-shot curve",
    ]  # fmt: skip
    for plot in report.plots:
        assert not re.search(r"#[0-9a-f]{6}\b", plot.svg), "a fixed colour would not follow the dark page"
        assert "var(--series-0)" in plot.svg


def test_ids_of_the_plots_are_unique_on_the_page():
    ids = re.findall(r' id="([^"]+)"', render_html(build(small_records())))
    assert len(ids) == len(set(ids))


def test_counts_of_labels_stand_side_by_side_under_their_metric():
    records = [record("a", f"svm/k={k}", metric, 1.0) for k in (16, 4, 1) for metric in ("top5", "top1")]
    (table,) = build(records).details
    assert table.columns == ("k=1", "k=4", "k=16") * 2
    assert [span for _, span in table.groups] == [3, 3]


def test_spreadsheet_holds_every_cell_unrounded():
    rows = list(csv.DictReader(io.StringIO(render_csv(build(small_records()).results))))
    assert len(rows) == 8
    (row,) = [r for r in rows if r["task"] == "svm/k=4" and r["checkpoint"] == "momentum2_digits"]
    assert (row["mean"], row["std"], row["trials"], row["values"]) == ("64.0", "1.0", "3", "63.0 64.0 65.0")


def test_markdown_holds_the_summary_with_trials():
    text = render_markdown(build(small_records()))
    assert "**64.0 ± 1.0** | 14.0 ± 1.0 | +50.0 [50.0, 50.0] better |" in text
    widths = {line.count(" | ") for line in text.split("## Summary")[1].split("##")[0].splitlines() if "|" in line}
    assert len(widths) == 1


def test_broken_and_foreign_lines_are_listed_and_the_rest_is_kept(tmp_path: Path):
    path = tmp_path / "results.jsonl"
    records_file.append(path, small_records())
    other = {**small_records()[0], "format": 99}
    with open(path, "a", encoding="utf-8") as stream:
        stream.write('{"task": "half\n[1]\n' + json.dumps({"task": "x"}) + "\n" + json.dumps(other) + "\n")
    report = make_report([path, path])
    assert len(report.results.records["momentum2_digits"]) == 8  # the file counts once
    text = render_html(report)
    for told in ("not JSON", "expected an object", "keys missing", "format 99"):
        assert sum(told in notice for notice in report.notices) == 1
        assert told in text


def test_no_record_is_an_input_error_that_tells_the_first_problem(tmp_path: Path):
    empty = tmp_path / "empty.jsonl"
    empty.write_text("", encoding="utf-8")
    with pytest.raises(InputError, match=r"no record in .*empty\.jsonl; run an evaluating tool"):
        read_records([empty])
    empty.write_text("{\n", encoding="utf-8")
    with pytest.raises(InputError, match="first of 1 unreadable lines"):
        read_records([empty])
    with pytest.raises(InputError, match="results file not found"):
        read_records([tmp_path / "nowhere.jsonl"])


def test_ten_thousand_records_make_a_page_below_5_mb_in_5_s(tmp_path: Path):
    path = tmp_path / "results.jsonl"
    one = record("a", "svm/k=1", "top1", 1.0)
    records = [
        {
            **one,
            "checkpoint": {"name": f"ckpt{c}", "sha256": f"{c:064d}"},
            "task": f"svm/k={k}",
            "metric": metric,
            "value": float((c * 7 + k * 3 + t) % 97),
            "trial": t,
        }
        for c in range(20)
        for k in (1, 2, 4, 8, 16)
        for metric in ("top1", "top5")
        for t in range(50)
    ]
    path.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    began = time.process_time()
    page = render_html(make_report([path]))
    assert time.process_time() - began < 5
    assert len(page.encode()) < 5_000_000


def test_provenance_tells_a_networks_size_and_what_was_made_of_it():
    record = {"task": "coco/bbox", "checkpoint": {"name": "a"}, "protocol": "mask_rcnn", "parameters": 44_400_000,
              "trained_parameters": 20_000_000, "gflops": 187.66, "gflops_side": 800, "architecture": "timm:vit",
              "changes": ["patches of 14 px resampled to 16 px"]}  # fmt: skip
    facts = dict(_block("a", [record]).facts)
    assert facts["size"] == ("44.40 M parameters, 20.00 M trained; 187.66 G multiply-adds at 800 px (mask_rcnn)",)
    assert facts["architecture"] == ("timm:vit (coco)",)
    assert facts["made of it"] == ("patches of 14 px resampled to 16 px",)
    assert "size" not in dict(_block("a", [{"task": "knn", "checkpoint": {"name": "a"}}]).facts)


def test_provenance_names_what_was_labelled():
    record = {"task": "coco/bbox", "checkpoint": {"name": "a"}, "protocol": "p"}
    alone, taught = ({**record, "labels": {"labelled": 20, "unlabelled": count}} for count in (0, 380))
    facts = [dict(_block("a", [one]).facts).get("labels") for one in (alone, taught, record)]
    assert facts[0] == ("20 training images with labels (p)",)
    assert facts[1] == ("20 training images with labels, 380 more that its teacher labelled (p)",)
    assert facts[2] is None


def test_provenance_names_hash_engine_protocol_and_versions():
    page = render_html(build(small_records()))
    for told in ("abababababababab…", "torchvision", "mask_rcnn_fpn_1x (coco)", "torch "):
        assert told in page


@pytest.mark.parametrize(
    ("published_name", "ours", "same"),
    [
        ("COCO val2017", "coco_2017_val", True),
        ("VOC07 test", "voc_2007_test", True),
        ("LVIS v0.5 val", "lvis_v0.5_val", True),
        ("LVIS v0.5 val", "lvis_v1_val", False),
        ("STL-10 test", "stl10", True),
        ("ImageNet val", "imagenet", True),
        ("ImageNet val", "digits", False),
        ("ImageNet", "", False),
    ],
)
def test_dataset_names_are_compared_by_their_words(published_name: str, ours: str, same: bool):
    assert same_dataset(published_name, ours) is same


def test_cka_and_weight_norms_are_drawn_and_never_ranked():
    pair = {"reference": {"name": "runs/sgd/backbone.pkl", "network": "student"}, "protocol": "linear"}
    records = [record("lars", "cka", stage, value, **pair) for stage, value in (("stem", 99.0), ("res2", 80.0))]
    records += [record("lars", "cka", "stem", 50.0, reference={"name": "other"}, protocol="linear")]
    records += [record(name, "weight_norm", "conv1", norm) for name, norm in (("lars", 30.0), ("sgd", 3.0))]
    report = build([*small_records(), *records])
    assert [plot.title for plot in report.analyses] == ["CKA by stage", "Weight norms by layer"]
    cka, norms = report.analysis_tables
    assert [(row.label, [cell.main for cell in row.cells]) for row in cka.rows] == [
        ("lars vs. sgd (student)", ["99.0", "80.0"]),
        ("lars vs. other", ["50.0", "–"]),
    ]
    assert [row.cells[2].main for row in norms.rows] == ["30.00", "3.00"]
    same = "the same difference in every trial"  # of small_records
    assert all(same in each for each in report.notices)  # two references are no duplicates
    assert not [measure for measure in report.results.cells if measure.task in ("cka", "weight_norm")]
    assert "lars vs. sgd (student) | 99.0 | 80.0" in render_markdown(report)


def test_many_checkpoints_are_told_by_rank_and_against_random_only():
    names = ("a", "b", "c", "d", "supervised", "random")
    records = [record(name, "knn/k=20", "top1", 90.0 - 10 * place) for place, name in enumerate(names)]
    told = build(records).verdicts
    assert told[0] == "Best mean rank: a (1.0 of 6, over 1 measures)."
    assert all(sentence.startswith("Against random ") for sentence in told[1:])
    assert len(told) == 6


def test_a_task_under_two_protocols_is_two_lines_of_the_slope_chart():
    records = [
        record(name, "coco/bbox", "AP", value, protocol=protocol)
        for protocol, value in (("mask_rcnn_fpn_1x", 30.0), ("retinanet_1x", 20.0))
        for name in ("m2", "random")
    ]
    for plot in build(records).plots:
        assert "coco/bbox AP (mask_rcnn_fpn_1x)" in plot.svg
        assert "coco/bbox AP (retinanet_1x)" in plot.svg


def test_the_balance_counts_every_measure_once_by_its_word():
    records = small_records()
    records += [record("momentum2_digits", "knn/k=20", "top1", 1.0), record("random_digits", "knn/k=20", "top1", 3.0)]
    records += [record(name, "retrieval", "mAP", 5.0) for name in ("momentum2_digits", "random_digits")]
    report = build(records)
    (balance,) = report.balances
    assert [(kind, count) for kind, _, count in balance.parts] == [
        ("up-clear", 2), ("none", 3),
    ]  # fmt: skip
    assert (balance.total, balance.low, balance.middle, balance.high) == (5, -2.0, 25.0, 50.0)
    page = render_html(report)
    assert "of 5 measures: 2 better, 3 one trial: no verdict" in page
    assert "<b>+25.0</b> points in the median, −2.0 to +50.0" in page


def test_rows_of_the_summary_name_only_what_their_group_does_not_share():
    records = [
        record(name, "coco/bbox", "AP", 30.0, protocol=protocol, dataset="coco_2017_val", engine="torchvision")
        for protocol in ("fcos_1x", "retinanet_1x")
        for name in ("m2", "random")
    ]
    group, fcos, retinanet, rank = build(records).summary.rows
    assert (group.kind, group.label, group.note) == ("group", "COCO-style detection", "coco_2017_val · torchvision")
    assert [(row.label, row.note) for row in (fcos, retinanet)] == [
        ("coco/bbox AP", "fcos_1x"), ("coco/bbox AP", "retinanet_1x"),
    ]  # fmt: skip
    assert rank.kind == "rank"


def test_the_nearest_published_rows_are_those_of_the_same_detector():
    records = [
        record("m2", "coco/bbox", "AP", 30.0, protocol=f"{detector}_smoke", dataset="digit_scenes_val")
        for detector in ("fcos", "retinanet", "cascade_mask_rcnn_fpn", "mask_rcnn_c4")
    ]
    tables = build(records, reference=published(load_tables())).details
    first = {
        table.title.split(" · ")[-1]: next(row.label for row in table.rows if row.kind == "source") for table in tables
    }
    assert first == {
        "fcos_smoke": "published: Momentum² Teacher table 10 (c)",
        "retinanet_smoke": "published: Momentum² Teacher table 10 (a)",
        "cascade_mask_rcnn_fpn_smoke": "published: Momentum² Teacher table 9 (c)",
        "mask_rcnn_c4_smoke": "published: RCF table 1",
    }


def test_shares_of_the_labels_are_drawn_as_a_curve_too():
    tasks = {"linear/1%": 20.0, "linear/10%": 40.0, "linear": 60.0}
    records = [record("m2", task, "top1", value, protocol="eman") for task, value in tasks.items()]
    (plot,) = build(records).plots
    assert plot.title == "Linear classification with few labels"
    assert all(f">{tick}<" in plot.svg for tick in ("1", "10", "100"))


def test_unreadable_lines_are_shown_as_they_stand(tmp_path: Path):
    path = tmp_path / "results.jsonl"
    records_file.append(path, small_records())
    with open(path, "a", encoding="utf-8") as stream:
        stream.write('{"task": "of <b>1999</b>"}\n' + "x" * 900 + "\n")
    first, second, *_ = make_report([path]).notices
    assert first.endswith('keys missing: metric, value, checkpoint: {"task": "of <b>1999</b>"}')
    assert second.endswith("x" * 239 + "…")
    assert "<b>1999" not in render_html(make_report([path]))


def test_footnote_signs_of_quoted_numbers_are_explained_above_them():
    records = [
        record(
            "m2",
            "retrieval",
            metric,
            1.0,
            protocol="eman",
            dataset="imagenet",
            data={"images": 50_000, "classes": 1000},
        )
        for metric in ("mAP", "recall")
    ]
    tables = [table for table in load_tables() if (table.paper, table.number) == ("eman", 4)]
    only_quoted = [item for item in published(tables) if item.method in ("SwAV, 800 epochs", "PCL, 200 epochs")]
    (table,) = build(records, reference=only_quoted).details
    heading, *rows = [row for row in table.rows if row.kind in ("source", "published")]
    assert heading.note == "same protocol and data; † run by the EMAN authors from the pretrained model"
    assert [[cell.text for cell in row.cells] for row in rows] == [["39.5†", "24.2†"], ["35.9†", "17.5†"]]


def test_labels_that_say_nothing_alone_carry_their_columns_name():
    methods = {item.method for item in published(load_tables())}
    assert {"student BN, teacher EMAN", "EMAN, pretrained MoCo, schd. 1×", "S-MoCo v2+, asymmetry no"} <= methods
    assert "Supervised" in methods  # not "Supervised, supervised"


@pytest.mark.parametrize(
    ("checkpoints", "protocols", "told"), [(2, 400, ""), (150, 1, "8 of 150 checkpoints; the tables have all.")]
)
def test_many_protocols_or_checkpoints_are_drawn_up_to_a_number_and_listed_whole(checkpoints, protocols, told):
    one = record("a", "svm/k=1", "top1", 1.0)
    names = ["random", *(f"ckpt{index}" for index in range(1, checkpoints))]
    records = [
        {
            **one,
            "checkpoint": {"name": name, "sha256": name},
            "task": f"svm/k={k}",
            "protocol": f"p{p}",
            "value": 1.0 * c,
        }
        for c, name in enumerate(names)
        for k in (1, 4, 16)
        for p in range(protocols)
    ]
    began = time.process_time()
    report = build(records)
    page = render_html(report)
    assert time.process_time() - began < 5
    assert len(page.encode()) < 5_000_000
    assert len(report.plots) <= 14
    assert len(report.details) == protocols
    assert all(told in plot.caption for plot in report.plots if plot.title != "Which measure predicts which")
    assert all(name in page for name in names)


def test_our_own_number_with_other_settings_than_its_row_is_marked():
    records = [
        record(name, "coco/bbox", "AP", 30.0, protocol="fcos_1x", config=config)
        for name, config in (("m2", "short"), ("other", "usual"), ("random", "usual"))
    ]
    report = build(records)
    rows = [row for row in report.summary.rows if row.kind == "ours"]
    assert [cell.differs for cell in rows[0].cells[:3]] == [True, False, False]
    (table,) = report.details
    assert [row.cells[0].differs for row in table.rows if row.kind == "ours"] == [True, False, False]
    assert "≠ 30.0" in render_markdown(report)


def test_plan_and_truth_is_on_the_page_without_analyses_too():
    plan = TableView("Plan and truth: mine", "", "task", ("tasks done",), ())
    assert "Plan and truth: mine" in render_html(build(small_records(), costs=[plan]))
