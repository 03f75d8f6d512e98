"""One table a task, data set, protocol and engine, with the nearest published rows below."""

import pytest

from momentum_transfer.report.aggregate import Measure, aggregate
from momentum_transfer.report.details import detail_tables, published_rows
from momentum_transfer.report.differences import Comparisons
from momentum_transfer.report.reference import Published
from momentum_transfer.report.tables import TableView
from tests.report.report_records import record


def tables(records: list[dict], published=()) -> dict[str, TableView]:
    comparisons = Comparisons(aggregate(records))
    colours = {name: index for index, name in enumerate(comparisons.results.checkpoints)}
    found = detail_tables(comparisons, published, colours)
    assert len({table.title for table in found}) == len(found)
    return {table.title: table for table in found}


def test_boxes_and_masks_have_tables_and_other_tasks_of_a_family_stand_side_by_side():
    records = [record(name, f"coco/{part}", metric, 10.0) for name in ("a", "random") for part in ("bbox", "segm")
               for metric in ("AP", "AP50")]  # fmt: skip
    records += [record("a", f"svm/k={k}", metric, float(k)) for k in (8, 1) for metric in ("top1", "cost")]
    records += [record("a", task, "top1", 1.0) for task in ("linear", "linear/10%")]
    records += [record("a", "coco", "AP", 1.0), record("a", "knn/k=5", "top1", 1.0)]
    found = tables(records)
    assert set(found) == {
        "COCO-style detection", "COCO-style detection: boxes", "COCO-style detection: masks",
        "Low-shot classification (linear SVM)", "k-nearest neighbours", "Linear classification",
    }  # fmt: skip
    svm = found["Low-shot classification (linear SVM)"]
    assert sorted(svm.groups) == [("cost", 2), ("top1", 2)]
    assert svm.columns == ("k=1", "k=8", "k=1", "k=8")
    assert [cell.main for cell in svm.rows[0].cells] == ["1.0", "8.0", "1.0", "8.0"]
    linear = found["Linear classification"]
    assert (linear.groups, linear.columns) == ((("linear", 1), ("linear/10%", 1)), ("top1", "top1"))
    boxes = found["COCO-style detection: boxes"]
    assert boxes.groups == (("coco/bbox", 2),)
    assert boxes.caption == "coco/bbox · digits · imagenet/heldout · scikit-learn · a single trial"
    assert linear.caption == "digits · imagenet/heldout · scikit-learn · a single trial"
    assert [row.label for row in boxes.rows] == ["a", "random", "a − random"]
    assert [row.colour for row in boxes.rows] == [0, 1, None]


def test_tables_of_one_task_under_several_protocols_are_told_apart():
    records = [record("a", "knn/k=20", "top1", 1.0, protocol=protocol) for protocol in ("one", "two")]
    assert list(tables(records)) == ["k-nearest neighbours · one", "k-nearest neighbours · two"]
    assert list(tables(records[:1])) == ["k-nearest neighbours"]
    records.append(record("a", "knn/k=20", "top1", 1.0, protocol=""))
    assert set(tables(records)) == {f"k-nearest neighbours{end}" for end in ("", " · one", " · two")}


def test_the_caption_says_over_how_many_trials():
    records = [record("a", "knn/k=20", "top1", 1.0, trial=trial) for trial in range(3)]
    assert tables(records)["k-nearest neighbours"].caption.endswith("mean ± std over 3 trials each")
    records.append(record("b", "knn/k=20", "top1", 1.0))
    (table,) = tables(records).values()
    assert table.caption.endswith("mean ± std over n trials")
    assert [row.cells[0].trials for row in table.rows] == ["n=3", ""]


OURS = Measure("coco/bbox", "AP", "coco_2017_val", "fcos_1x", "torchvision")
AP50 = OURS._replace(metric="AP50")


def row(method: str, source: str = "A table 1", metric: str = "AP", mark: str = "", protocol: str = "fcos_1x",
        dataset: str = "COCO val2017", value: float = 40.0) -> Published:  # fmt: skip
    values = {"method": method, "source": source, "metric": metric, "mark": mark, "protocol": protocol,
              "dataset": dataset, "value": value, "task": "coco/bbox"}  # fmt: skip
    names = Published.__dataclass_fields__
    return Published(**{key: values.get(key, "") for key in names})


def labels(published: list[Published], data: dict | None = None) -> tuple[list[str], int]:
    found, left = published_rows([OURS, AP50], published, data or {"images": 5000, "classes": 80})
    return [view.label for view in found if view.kind == "published"], left


def test_the_nearest_rows_come_first():
    rows = [
        row("quoted", mark="§ quoted", source="E"),
        row("words in common", protocol="fcos_3x", source="B"),
        row("another protocol", protocol="mask_rcnn", source="C"),
        row("another data set", dataset="LVIS v1 val", source="D"),
        row("the same", source="F"),
    ]
    assert labels(rows)[0] == ["the same", "quoted", "another data set", "words in common", "another protocol"]
    filled = [row("half", source="G"), *(row("whole", source="H", metric=metric) for metric in ("AP", "AP50"))]
    assert labels(filled)[0] == ["whole", "half"]
    assert labels([row("quoted", mark="¶ a baseline", source="E"), row("own", source="F")])[0] == ["quoted", "own"]


def test_six_rows_are_shown_and_none_of_a_further_table_alone():
    one = [row(f"m{n}") for n in range(7)]
    assert labels(one) == ([f"m{n}" for n in range(6)], 1)
    assert labels(one[:6]) == ([f"m{n}" for n in range(6)], 0)
    assert labels(one[:1]) == (["m0"], 0)
    further = [row(f"n{n}", source="B") for n in range(2)]
    assert labels([*one[:5], *further]) == ([f"m{n}" for n in range(5)], 2)
    assert labels([*one[:5], *further[:1]]) == ([f"m{n}" for n in range(5)] + ["n0"], 0)
    assert labels([*one[:4], *further, row("n2", source="B")]) == ([f"m{n}" for n in range(4)] + ["n0", "n1"], 1)


def test_rows_of_another_protocol_or_data_are_marked_with_the_reason():
    def noted(published: Published, data: dict) -> tuple[str, bool]:
        (source, shown) = published_rows([OURS], [published], data)[0]
        assert (source.kind, source.label) == ("source", f"published: {published.source}")
        assert (shown.label, shown.cells[0].main) == (published.method, "40.0")
        return source.note, shown.cells[0].differs

    ours = {"images": 5000, "classes": 80}
    assert noted(row("m"), ours) == ("same protocol and data", False)
    assert noted(row("m", protocol="x"), ours) == ("≠ other protocol: x", True)
    assert noted(row("m", protocol=""), ours) == ("≠ other protocol: not named", True)
    assert noted(row("m", dataset="LVIS v1 val"), ours) == ("≠ other data: LVIS v1 val", True)
    note, differs = noted(row("m"), {"images": 5000})
    assert differs
    assert note.startswith("≠ data not known to be COCO val2017: the records do not say")
    note, _ = noted(row("m", protocol="x"), {"images": 12, "classes": 80})
    assert note == (
        "≠ other protocol: x, other data: COCO val2017 has 5000 images of 80 classes, here are 12 images of 80"
    )
    assert noted(row("m", mark="† of them"), ours)[0] == "same protocol and data; † of them"


def test_a_column_without_a_published_number_is_empty():
    (_, shown), left = published_rows([OURS, AP50], [row("m", metric="AP50", mark="†x"), row("n", metric="AR")], {})
    assert [(cell.main, cell.mark) for cell in shown.cells] == [("–", ""), ("40.0", "†")]
    assert left == 0
    assert published_rows([OURS], [], {}) == ([], 0)


@pytest.mark.parametrize("count", [6, 9])
def test_the_table_says_how_many_rows_it_leaves_out(count: int):
    records = [record("a", "coco/bbox", "AP", 1.0, dataset="coco_2017_val", protocol="fcos_1x")]
    (table,) = tables(records, [row(f"m{n}") for n in range(count)]).values()
    more = "3 more published rows of these measures are in configs/reference/."
    assert table.notes == ((more,) if count == 9 else ())
    assert len(table.rows) == 1 + 1 + 6
