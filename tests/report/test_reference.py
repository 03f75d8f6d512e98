"""The transcribed tables: all there, in shape, in range, and right in spot values read from the papers' prose."""

import re
from collections import Counter
from itertools import product
from pathlib import Path

import pytest
import yaml

from momentum_transfer.core.errors import InputError
from momentum_transfer.images.published_counts import _COUNTS, published_counts, same_dataset
from momentum_transfer.lowshot import knn, presets
from momentum_transfer.lowshot.evaluations import ON_IMAGES, percent
from momentum_transfer.lowshot.svm import lowshot_svm as svm
from momentum_transfer.report.aggregate import Measure
from momentum_transfer.report.details import published_rows
from momentum_transfer.report.reference import (
    REFERENCE_DIR,
    ReferenceTable,
    load_table,
    load_tables,
    published,
)
from momentum_transfer.report.tables import DETECTION
from momentum_transfer.transfer import config

#: (paper, table) to (rows, columns), counted in the papers; columns of our own (Protocol, Metric) included.
SHAPES = {
    ("momentum2", 1): (6, 4),
    ("momentum2", 2): (4, 5),
    ("momentum2", 3): (2, 4),
    ("momentum2", 4): (2, 8),
    ("momentum2", 5): (4, 5),
    ("momentum2", 6): (6, 3),
    ("momentum2", 7): (6, 3),
    ("momentum2", 8): (18, 4),
    ("momentum2", 9): (5, 25),
    ("momentum2", 10): (5, 13),
    ("momentum2", 11): (4, 4),
    ("momentum2", 12): (16, 7),
    ("rcf", 1): (7, 8),
    ("rcf", 2): (4, 11),
    ("rcf", 3): (4, 13),
    ("rcf", 4): (3, 10),
    ("rcf", 6): (9, 9),
    ("rcf", 7): (6, 9),
    ("rcf", 8): (5, 7),
    ("eman", 1): (7, 6),
    ("eman", 2): (17, 9),
    ("eman", 3): (11, 7),
    ("eman", 4): (11, 5),
    ("eman", 5): (19, 10),
    ("eman", 6): (9, 8),
    ("eman", 7): (7, 6),
    ("eman", 8): (9, 6),
    ("fsdet", 0): (10, 12),
    ("fsdet_voc", 0): (33, 14),
    ("unbiased_teacher", 1): (3, 6),
    ("soft_teacher", 0): (3, 4),
}

#: Numbers that the prose of the papers repeats: (paper, table, labels of the row, column, group, value).
SPOTS = [
    ("momentum2", 1, ("BN", "Momentum BN"), "Top1", "", 88.18),
    ("momentum2", 1, ("BN", "BN"), "Sec./Iter", "", 0.24),
    ("momentum2", 2, ("BYOL w/o Synced BN",), "Top1", "", 61.5),
    ("momentum2", 8, ("Ours", 1000), "Top-1", "", 74.5),
    ("momentum2", 12, ("Ours", 1000), "1%", "Top-1", 62.3),
    ("momentum2", 11, ("Ours 300e",), "AP^mk", "", 26.1),
    ("rcf", 3, ("BYOL-NR",), "AP75", "VOC07+12", 62.9),
    ("rcf", 7, ("ResNet-101", "MoCo v2"), "Acc", "ImageNet", 65.0),
    ("rcf", 7, ("ResNet-18", "MoCo v2+"), "Acc", "ImageNet", 57.3),
    ("eman", 3, ("BYOL-EMAN", 200), "top-1", "10% labels", 68.1),
    ("eman", 5, ("ImageNet", "MoCo-EMAN", 800), "k=1", "", 35.8),
    ("eman", 6, ("EMAN", "MoCo-EMAN", "3×"), "top-1", "1% labels", 63.0),
    ("eman", 8, ("BN", "EMAN"), "FixMatch", "", 69.2),
    ("fsdet", 0, ("TFA w/ cos", "10 shots"), "nAP", "", 10.0),
    ("fsdet", 0, ("TFA w/ cos", "30 shots"), "nAP", "", 13.7),
    ("fsdet_voc", 0, ("TFA w/ cos", "1 shot", "split 1", "one sample"), "nAP50", "", 39.8),
    ("fsdet_voc", 0, ("TFA w/ cos", "10 shots", "split 3", "30 samples"), "AP", "", 45.0),
]

#: (paper, table) to (how many numbers, their sum), added up from the papers' own text, in which every printed row
#: was found again number by number; with the cells that the notes of EMAN 2 and RCF 3 take from other tables.
SUMS = {
    ("eman", 1): (19, 1065.4),
    ("eman", 2): (102, 7542.1),
    ("eman", 3): (38, 2653.7),
    ("eman", 4): (29, 1237.6),
    ("eman", 5): (95, 4570.1),
    ("eman", 6): (28, 2145.2),
    ("eman", 7): (18, 1241.5),
    ("eman", 8): (23, 1338.0),
    ("momentum2", 1): (12, 526.54),
    ("momentum2", 2): (11, 638.75),
    ("momentum2", 3): (6, 311.2),
    ("momentum2", 4): (9, 631.6),
    ("momentum2", 5): (7, 498.2),
    ("momentum2", 6): (12, 944.5),
    ("momentum2", 7): (12, 961.5),
    ("momentum2", 8): (27, 1999.1),
    ("momentum2", 9): (120, 5553.5),
    ("momentum2", 10): (60, 2597.1),
    ("momentum2", 11): (12, 350.1),
    ("momentum2", 12): (50, 3511.9),
    ("rcf", 1): (49, 2685.7),
    ("rcf", 2): (32, 1779.8),
    ("rcf", 3): (40, 2080.2),
    ("rcf", 4): (24, 1379.3),
    ("rcf", 6): (72, 3646.7),
    ("rcf", 7): (24, 1459.3),
    ("rcf", 8): (30, 1839.3),
    ("fsdet", 0): (84, 2340.8),
    ("fsdet_voc", 0): (279, 13230.1),
    ("soft_teacher", 0): (9, 232.72),
    ("unbiased_teacher", 1): (7, 170.0),  # not from the paper's text: see its notes
}


@pytest.fixture(scope="module")
def tables() -> dict[tuple[str, int], ReferenceTable]:
    return {(table.paper, table.number): table for table in load_tables()}


def cell(table: ReferenceTable, labels: tuple, column: str, group: str) -> float:
    (index,) = [i for i, c in enumerate(table.columns) if (c.name, c.group) == (column, group)]
    (row,) = [row for row in table.rows if Counter(labels) <= Counter(row)]
    return row[index]


def test_every_results_table_of_the_papers_is_there_in_its_printed_shape(tables):
    found = {key: (len(table.rows), len(table.columns)) for key, table in tables.items()}
    assert found == SHAPES


def test_the_numbers_of_every_table_add_up_to_the_papers(tables):
    found = {}
    for key, table in tables.items():
        results = [index for index, column in enumerate(table.columns) if column.kind == "result"]
        numbers = [row[index] for row in table.rows for index in results if row[index] is not None]
        found[key] = (len(numbers), round(sum(numbers), 2))
    assert found == SUMS


@pytest.mark.parametrize(("paper", "number", "labels", "column", "group", "value"), SPOTS)
def test_spot_values_equal_the_papers(tables, paper, number, labels, column, group, value):
    assert cell(tables[paper, number], labels, column, group) == value


def test_scores_are_percentages_and_times_are_seconds(tables):
    for table in tables.values():
        for index, column in enumerate(table.columns):
            if column.kind == "result":
                values = [row[index] for row in table.rows if row[index] is not None]
                high = 10 if column.unit == "seconds per iteration" else 100
                assert values, f"{table.source}: column {column.name} is empty"
                assert all(0 < value < high for value in values), (table.source, column.name)
                assert column.unit in ("percent", "seconds per iteration")


def test_looser_thresholds_score_higher_in_every_row(tables):
    """AP50 ≥ AP75, AP50 ≥ AP and top-5 ≥ top-1, wherever a row prints both: catches a slipped column."""
    compared = 0
    for table in tables.values():
        for row in table.rows:
            scores: dict[tuple[str, ...], dict[str, float]] = {}
            for column, value in zip(table.columns, row, strict=True):
                if column.kind == "result" and column.task and value is not None:
                    place = (column.task, column.dataset, column.protocol)
                    scores.setdefault(place, {})[column.metric] = value
            for found in scores.values():
                for loose, strict in (("AP50", "AP75"), ("AP50", "AP"), ("top5", "top1")):
                    if loose in found and strict in found:
                        assert found[loose] > found[strict], (table.source, row)
                        compared += 1
    assert compared > 100


def test_rescaling_by_the_sgd_model_is_norm_rescale_of_table_3(tables):
    rescaled = tables["rcf", 8].rows[1][1:]
    assert tables["rcf", 3].rows[3][1:7] == rescaled


def test_gains_over_supervised_equal_the_printed_ones(tables):
    rows = {row[0]: row[1:] for row in tables["momentum2", 11].rows}
    gains = [round(a - b, 1) for a, b in zip(rows["Ours 300e"], rows["supervised"], strict=True)]
    assert gains == [1.7, 2.0, 2.3]


def test_numbers_lost_in_the_text_versions_are_empty_with_a_notice(tables):
    lost = tables["rcf", 3]
    assert lost.rows[0].count(None) == 8
    assert any("lost" in note for note in lost.notes)
    half = tables["rcf", 7]
    assert all(row.count(None) == 3 for row in half.rows)
    assert any("not estimated" in note for note in half.notes)


def test_known_misprints_are_noted(tables):
    assert any("misprint" in note for note in tables["momentum2", 2].notes)
    assert any("[9]" in note for note in tables["momentum2", 2].notes)
    assert any("76.4" in note for note in tables["rcf", 2].notes)


def test_published_rows_carry_task_data_and_marks(tables):
    rows = published(list(tables.values()))
    swav = [row for row in rows if row.source == "EMAN table 4" and row.method == "SwAV, 800 epochs"]
    assert {(row.task, row.metric, row.value) for row in swav} == {
        ("knn/k=20", "top1", 59.2),
        ("retrieval", "mAP", 35.9),
        ("retrieval", "recall", 17.5),
    }
    assert {row.metric: row.mark[0] for row in swav} == {"top1": "§", "mAP": "†", "recall": "†"}
    voc = [row for row in rows if row.task == "svm/k=1" and row.dataset == "VOC07"]
    assert {row.metric for row in voc} == {"mAP"}
    assert len(voc) == 6


def test_the_label_of_a_row_gives_its_task(tables):
    rows = [row for row in published([tables["eman", 2]]) if row.method == "MoCo-EMAN (800)"]
    assert {(row.task, row.value) for row in rows if row.metric == "top1"} == {
        ("linear/1%", 55.4),
        ("linear/10%", 64.0),
        ("linear", 70.1),
        ("finetune/1%", 57.4),
        ("finetune/10%", 68.1),
        ("finetune", 77.4),
    }


def test_no_two_numbers_of_a_table_land_in_one_cell_of_a_page(tables):
    """The cell is what details.published_rows files a number under."""
    rows = published(list(tables.values()))
    cells = Counter((row.source, row.method, row.task, row.metric, row.dataset, row.protocol) for row in rows)
    assert [cell for cell, count in cells.items() if count > 1] == []
    assert {row.method: row.value for row in rows if row.source == "EMAN table 1" and row.task == "linear/10%"} == {
        "student default, teacher default, MoCo": 54.4,
        "student default, teacher default, BYOL": 55.4,
        "student BN, teacher BN, MoCo": 52.5,
        "student BN, teacher BN, BYOL": 52.0,
        "student SyncBN, teacher SyncBN, MoCo": 53.3,
        "student SyncBN, teacher SyncBN, BYOL": 55.4,
        "student BN, teacher ShuffleBN, MoCo": 54.4,
        "student BN, teacher ShuffleBN, BYOL": 52.6,
        "student GN, teacher GN, MoCo": 49.3,  # the one number of its row, and yet not BYOL's
        "student IN, teacher IN, MoCo": 46.5,
        "student BN, teacher EMAN, MoCo": 55.8,
        "student BN, teacher EMAN, BYOL": 56.2,
    }
    small = {row.method: row.value for row in rows if row.source in [f"Momentum² Teacher table {n}" for n in (4, 5)]}
    assert small["BYOL, batch size 64"] == 59.7
    assert small["Momentum² Teacher, batch size 128"] == 72.9
    assert small["Momentum² Teacher, 1024 samples, 200e"] == 72.7
    assert {row.method for row in rows if row.source == "EMAN table 1" and row.task == "fixmatch/10%"} == {
        f"student {student}, teacher {teacher}"
        for student, teacher in [
            *((norm, norm) for norm in ("default", "BN", "SyncBN", "GN", "IN")),
            *(("BN", norm) for norm in ("ShuffleBN", "EMAN")),
        ]
    }


def test_ours_of_a_paper_is_called_by_the_papers_name(tables):
    methods = {row.method for row in published([tables["momentum2", 9]])}
    assert "Momentum² Teacher 300e" in methods
    assert not [method for method in methods if "Ours" in method]


def test_a_row_of_another_length_is_an_error_that_names_file_and_row(tmp_path: Path):
    content = yaml.safe_load((REFERENCE_DIR / "eman_table_01.yaml").read_text(encoding="utf-8"))
    content["rows"][2].append(1.0)
    path = tmp_path / "table.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    with pytest.raises(InputError, match=r"table\.yaml: row 3 has 7 cells, expected 6"):
        load_table(path)


def test_a_word_in_a_result_column_is_an_error(tmp_path: Path):
    content = yaml.safe_load((REFERENCE_DIR / "eman_table_01.yaml").read_text(encoding="utf-8"))
    content["rows"][0][3] = "failed"
    path = tmp_path / "table.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    with pytest.raises(InputError, match="column 'FixMatch': unexpected 'failed'"):
        load_table(path)


@pytest.mark.parametrize("text", ["[1, 2", "just text", "source: {key: x}\n"])
def test_a_file_that_is_no_table_is_an_input_error(tmp_path: Path, text: str):
    path = tmp_path / "other.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"is not a reference table|expected a YAML mapping .*other\.yaml"):
        load_table(path)


def test_an_empty_folder_is_an_input_error(tmp_path: Path):
    with pytest.raises(InputError, match="no reference tables"):
        load_tables(tmp_path)


def test_rows_quoted_from_other_papers_are_marked(tables):
    rows = [row for row in published([tables["momentum2", 8]]) if row.metric == "top1"]
    assert {row.method for row in rows if not row.mark} == {
        "Momentum² Teacher, 300 epochs",
        "Momentum² Teacher, 1000 epochs",
    }
    assert all("quoted" in row.mark for row in rows if row.mark)


def test_every_mark_points_at_rows_that_are_there(tables):
    for table in tables.values():
        for mark in table.marks:
            labels = {cell for row in table.rows for cell in row if isinstance(cell, str)}
            assert set(mark["rows"]) <= labels, (table.source, mark)


#: Teachers' norms of EMAN's table 1 that this project does not offer in FixMatch.
NOT_OFFERED = {"syncbn-1x", "shufflebn-1x", "gn-1x", "in-1x"}


def low_shot_measures() -> set[tuple[str, str, str]]:
    """(task, metric, protocol) that tools/lowshot.py can write, from the evaluators' own tables of presets."""
    names = [f"{preset}-{schedule}" for preset in presets.FIXMATCH for schedule in presets.FIXMATCH_SCHEDULES]
    trained = {"linear": list(presets.LINEAR), "finetune": list(presets.FINETUNE), "fixmatch": names}
    assert set(trained) == set(ON_IMAGES)
    made = {
        (command + percent(fraction), metric, protocol)
        for command, protocols in trained.items()
        for protocol in protocols
        for fraction in (0.01, 0.1, 1.0)
        for metric in ("top1", "top5")
    }
    made |= {(f"knn/k={preset.k}", metric, name) for name, preset in knn.PRESETS.items() for metric in ("top1", "top5")}
    made |= {("retrieval", metric, "eman") for metric in ("mAP", "recall")}
    chosen = product(svm.PROTOCOLS, ("heldout", "test"), svm.CLASS_WEIGHTS)
    for setup in (svm.LowShot(name, select_c=how, class_weights=weights) for name, how, weights in chosen):
        metrics = svm.PROTOCOLS[setup.protocol].metrics
        made |= {(f"svm/k={k}", metric, setup.name) for metric in metrics for k in setup.shots}
    return made


def test_every_low_shot_column_is_a_measure_that_the_tool_can_write(tables):
    made = low_shot_measures()
    joined = [
        item for item in published(list(tables.values())) if item.task.split("/")[0] not in (*DETECTION, "semantic")
    ]
    assert len(joined) > 200
    for item in joined:
        if item.protocol not in NOT_OFFERED:
            assert (item.task, item.metric, item.protocol) in made, item


def test_every_dense_column_is_a_measure_that_its_config_gives(tables):
    """Task, metric and data of a published detection or segmentation number are those of the config it names."""
    folder = REFERENCE_DIR.parent / "transfer"
    dense = [item for item in published(list(tables.values())) if item.task.split("/")[0] in (*DETECTION, "semantic")]
    assert len(dense) > 200
    configs = {protocol: config.load(folder / f"{protocol}.yaml") for protocol in {item.protocol for item in dense}}
    for item in dense:
        cfg = configs[item.protocol]
        (name,) = cfg.DATASETS.TEST
        part = "/segm" if item.task.endswith("/segm") else "/bbox"
        few = "".join(end for end in ("/base", "/novel") if item.task.endswith(end) and cfg.FEW_SHOT.NOVEL)
        kind = "semantic" if cfg.MODEL.META_ARCHITECTURE == "SemanticSegmentor" else name.split("_")[0] + part
        assert cfg.MODEL.MASK_ON or part != "/segm", item
        assert (item.task, cfg.PROTOCOL) == (kind + few, item.protocol)
        assert same_dataset(item.dataset, name), item
        assert item.metric in (("mIoU",) if kind == "semantic" else ("AP", "AP50", "AP75")), item


def test_every_data_set_of_the_tables_has_its_counts(tables):
    named = {row.dataset for row in published(list(tables.values()))}
    assert {name for name in named if published_counts(name) is None} == {"CIFAR-10-LT", "CIFAR-100-LT"} & named
    assert not [(a, b) for a in _COUNTS for b in _COUNTS if a != b and same_dataset(a, b)]


@pytest.mark.parametrize(
    ("task", "protocol", "metric", "count"),
    [
        ("linear/1%", "eman", "top1", 8),
        ("linear", "eman", "top5", 8),
        ("finetune", "eman", "top1", 8),
        ("finetune", "supervised", "top1", 1),
        ("fixmatch/10%", "fixmatch-1x", "top1", 4),
        ("fixmatch/1%", "eman-3x", "top1", 5),
        ("linear", "rcf-lars", "top1", 2),
    ],
)
def test_a_record_of_ours_finds_its_published_rows(tables, task, protocol, metric, count):
    rows = [
        row
        for row in published(list(tables.values()))
        if (row.task, row.protocol, row.metric) == (task, protocol, metric)
    ]
    assert len(rows) == count
    ours = Measure(task, metric, "ImageNet val", protocol, "torch")
    shown, _ = published_rows([ours], rows, {"images": 50_000, "classes": 1000})
    assert [row for row in shown if row.kind == "published"]
    assert not any(cell.differs for row in shown for cell in row.cells)
    assert all("same protocol and data" in row.note for row in shown if row.kind == "source")


def test_expected_scores_in_the_readme_of_the_configs_are_the_papers(tables):
    """Every number of that table is printed under its config's name, for the same weights, in a reference table."""
    names = {"random": ("random init.",), "supervised": ("supervised", "Supervised-1000")}
    measures = {
        "box AP": ("bbox", "AP"),
        "mask AP": ("segm", "AP"),
        "box AP50": ("bbox", "AP50"),
        "mIoU": ("semantic", "mIoU"),
    }
    text = (REFERENCE_DIR.parent / "README.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if re.match(r"\| `transfer/\w", line)]
    assert len(lines) > 10
    for line in lines:
        config_name, measure, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        wanted = [measures[word if "AP" in word or word == "mIoU" else f"{word} AP"] for word in measure.split(" / ")]
        for column, cell in zip(("random", "supervised", ""), cells, strict=True):
            methods = names.get(column) or (re.sub(r" [0-9.]+( / [0-9.]+)?$", "", cell),)
            numbers = [float(word) for word in re.findall(r"[0-9]+\.[0-9]", cell)]
            assert len(numbers) == (0 if cell == "–" else len(wanted)), line
            for number, (part, metric) in zip(numbers, wanted, strict=False):
                printed = [
                    item.value
                    for item in published(list(tables.values()))
                    if item.protocol == config_name.strip("`").removeprefix("transfer/")
                    and item.task.endswith(part)
                    and item.metric == metric
                    and (item.method in methods or f"({methods[0]})" in item.method)
                ]
                assert number in printed, (line, methods, printed)
