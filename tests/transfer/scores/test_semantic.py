import math
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.scores import semantic


def write(path: Path, labels) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(labels, dtype=np.uint8)).save(path)
    return path


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Four random pairs: labels 0 … 4, of which the ground truth has 0 … 2, and ignored pixels in both."""
    random = np.random.default_rng(0)
    for number in range(4):
        truth = random.choice([0, 1, 2, 255], (13, 17), p=[0.5, 0.2, 0.1, 0.2])
        predicted = np.where(random.random(truth.shape) < 0.6, truth, random.choice([0, 1, 2, 3, 255], truth.shape))
        write(tmp_path / "gt" / "city" / f"{number}.png", truth)
        write(tmp_path / "predicted" / "city" / f"{number}.png", predicted)
    return tmp_path / "gt", tmp_path / "predicted"


def naive_counts(folders: tuple[Path, Path], classes: int) -> list[dict[str, int]]:
    counts = [{"true positive": 0, "false positive": 0, "false negative": 0} for _ in range(classes)]
    for file in sorted(folders[0].rglob("*.png")):
        pair = [np.asarray(Image.open(folder / "city" / file.name)) for folder in folders]
        for true, predicted in zip(*(image.ravel().tolist() for image in pair), strict=True):
            if true == 255:
                continue
            if true == predicted:
                counts[true]["true positive"] += 1
                continue
            counts[true]["false negative"] += 1
            if predicted != 255:
                counts[predicted]["false positive"] += 1
    return counts


def test_scores_equal_pixel_by_pixel_counting(folders):
    counts = naive_counts(folders, 5)
    scores = semantic.evaluate(*folders, classes=5)
    iou = [c["true positive"] / sum(c.values()) if sum(c.values()) else math.nan for c in counts]
    pixels = [c["true positive"] + c["false negative"] for c in counts]
    np.testing.assert_allclose([scores.per_class[str(k)] for k in range(5)], 100 * np.array(iou))
    assert math.isnan(iou[4])
    assert iou[3] == 0  # predicted, but in no ground truth
    hits = [c["true positive"] for c in counts]
    assert scores.metrics == pytest.approx(
        {
            "mIoU": 100 * np.mean(iou[:3]),
            "mIoU_ground_truth": 100 * np.mean(iou[:3]),
            "mIoU_union": 100 * np.mean(iou[:4]),
            "fwIoU": 100 * np.dot(iou[:3], pixels[:3]) / sum(pixels),
            "mACC": 100 * np.mean([hit / count for hit, count in zip(hits[:3], pixels[:3], strict=True)]),
            "pACC": 100 * sum(hits) / sum(pixels),
        }
    )


def test_the_convention_for_absent_classes_decides_what_miou_is(folders):
    truth_only = semantic.evaluate(*folders).metrics
    union = semantic.evaluate(*folders, absent_classes="union").metrics
    assert truth_only["mIoU"] == truth_only["mIoU_ground_truth"]
    assert union["mIoU"] == union["mIoU_union"] == pytest.approx(truth_only["mIoU"] * 3 / 4)


def test_without_a_number_of_classes_the_largest_label_decides(folders):
    by_label, by_number = semantic.evaluate(*folders), semantic.evaluate(*folders, classes=4)
    np.testing.assert_array_equal(by_label.confusion, by_number.confusion)
    assert by_label.confusion.shape == (4, 5)


def test_labels_that_appear_late_enlarge_the_table(tmp_path: Path):
    write(tmp_path / "gt" / "a.png", [[0, 0]])
    write(tmp_path / "gt" / "b.png", [[2, 0]])
    write(tmp_path / "p" / "a.png", [[0, 255]])
    write(tmp_path / "p" / "b.png", [[2, 1]])
    confusion = semantic.evaluate(tmp_path / "gt", tmp_path / "p").confusion
    np.testing.assert_array_equal(confusion, [[1, 1, 0, 1], [0, 0, 0, 0], [0, 0, 1, 0]])


def test_a_perfect_prediction_scores_one_hundred(folders):
    scores = semantic.evaluate(folders[0], folders[0], classes=("road", "car", "sky"))
    assert scores.metrics == pytest.approx(dict.fromkeys(scores.metrics, 100))
    assert scores.per_class == {"road": 100, "car": 100, "sky": 100}


def test_only_ignored_pixels_leave_every_score_undefined(tmp_path: Path):
    image = write(tmp_path / "a.png", [[255, 255]])
    scores = semantic.evaluate([image], [image], classes=2)
    assert all(math.isnan(value) for value in scores.metrics.values())


def test_cityscapes_names_are_paired_and_palette_images_are_read(tmp_path: Path):
    write(tmp_path / "gt" / "ulm" / "ulm_1_gtFine_labelTrainIds.png", [[0, 1]])
    predicted = Image.fromarray(np.array([[0, 1]], dtype=np.uint8), mode="P")
    predicted.putpalette([0, 0, 0, 255, 0, 0])
    (tmp_path / "p" / "ulm").mkdir(parents=True)
    predicted.save(tmp_path / "p" / "ulm" / "ulm_1_leftImg8bit.png")
    assert semantic.evaluate(tmp_path / "gt", tmp_path / "p").metrics["pACC"] == 100


def test_a_text_file_and_a_list_of_paths_give_the_scores_of_the_folders(folders, tmp_path: Path):
    lists = [[folder / "city" / f"{number}.png" for number in range(4)] for folder in folders]
    expected = semantic.evaluate(*folders).metrics
    assert semantic.evaluate(*lists).metrics == expected
    text = tmp_path / "gt.txt"
    text.write_text("\n".join(str(path.relative_to(tmp_path)) for path in lists[0]) + "\n\n")
    assert semantic.evaluate(text, lists[1]).metrics == expected


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: (p / "city" / "2.png").unlink(), r"no prediction for .*2\.png \(1 missing in"),
        (lambda p: write(p / "city" / "9.png", [[0]]), r"no ground truth for .*9\.png \(1 unknown to"),
        (lambda p: write(p / "city" / "1.png", [[0]]), r"expected the size of .*1\.png \(height, width \(13, 17\)\)"),
        (lambda p: write(p / "city" / "0.png", np.full((13, 17), 7)), r"expected labels 0 … 4 .* in .*0\.png, found 7"),
        (
            lambda p: write(p / "city" / "0.png", np.zeros((13, 17, 3))),
            r"single-channel label image in .*0\.png, found",
        ),
        (
            lambda p: (p / "city" / "0.png").write_bytes(b"no image"),
            r"cannot read the image .*0\.png: it is not recognised as PNG",
        ),
        (lambda p: write(p / "city" / "0_leftImg8bit.png", [[0]]), "label the same image"),
    ],
)
def test_wrong_predictions_are_named(folders, damage, message: str):
    damage(folders[1])
    with pytest.raises(InputError, match=message):
        semantic.evaluate(*folders, classes=5)


def test_a_truncated_label_image_is_named(folders):
    file = folders[1] / "city" / "0.png"
    file.write_bytes(file.read_bytes()[:60])
    with pytest.raises(InputError, match=r"cannot read the image .*0\.png: image file is truncated"):
        semantic.evaluate(*folders)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"absent_classes": "all"}, "expected absent_classes ground-truth or union"),
        ({"classes": 0}, "expected 1 to 4096 classes, found 0"),
        ({"classes": 10**12}, "expected 1 to 4096 classes, found 1000000000000"),
        ({"classes": ["road", "sky", "road"]}, "expected each class name once, found 'road' more often"),
        ({"ground_truth": [], "predictions": []}, "expected label images in .*, found none"),
        (
            {"predictions": "dt.json"},
            "expected label images, found dt.json; JSON files are scored by coco, lvis and voc",
        ),
        ({"predictions": "nowhere"}, "label images not found: nowhere"),
        ({"predictions": ["a.png"]}, "expected as many predictions as ground truth images, found 1 and 4"),
    ],
)
def test_wrong_arguments_are_refused(folders, arguments, message: str):
    with pytest.raises(InputError, match=message):
        semantic.evaluate(**{"ground_truth": folders[0], "predictions": folders[1], **arguments})


def test_an_empty_folder_is_refused(folders, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"expected label images \(\*\.png\) in"):
        semantic.evaluate(tmp_path / "empty", folders[1])


def test_an_empty_list_file_is_refused(tmp_path: Path):
    (tmp_path / "list.txt").write_text("\n")
    with pytest.raises(InputError, match=r"expected label images in .*list\.txt.*, found none"):
        semantic.evaluate(tmp_path / "list.txt", tmp_path / "list.txt")


@pytest.mark.parametrize("classes", [None, 2, np.int64(2)])
def test_sixteen_bit_labels_with_a_high_ignore_label_are_counted(tmp_path: Path, classes):
    # A table of 65536 x 65536 counters would take 32 GiB.
    for name, labels in (("gt", [[0, 1, 1, 65535]]), ("p", [[0, 1, 65535, 1]])):
        Image.fromarray(np.array(labels, dtype=np.uint16)).save(tmp_path / f"{name}.png")
    scores = semantic.evaluate([tmp_path / "gt.png"], [tmp_path / "p.png"], classes, ignore_label=65535)
    np.testing.assert_array_equal(scores.confusion, [[1, 0, 0], [0, 1, 1]])


def test_labels_far_beyond_any_number_of_classes_are_refused(tmp_path: Path):
    Image.fromarray(np.array([[0, 65535]], dtype=np.uint16)).save(tmp_path / "ids.png")
    with pytest.raises(
        InputError, match=r"expected labels below 4096 or the ignore label 255 in .*ids\.png.* found 65535"
    ):
        semantic.evaluate([tmp_path / "ids.png"], [tmp_path / "ids.png"])


def test_no_image_takes_a_table_of_more_than_32_mib_and_sorting_counts_the_same():
    """Labels up to 2048 on both sides would take 2049 x 2049 counters, just over 2^22."""
    random = np.random.default_rng(0)
    truth, predicted = random.integers(0, 2049, (2, 30, 40))
    truth[0, 0] = predicted[0, 0] = 2048
    tracemalloc.start()
    label, other, pixels = semantic._joint(truth, predicted)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
    expected = Counter(zip(truth.ravel().tolist(), predicted.ravel().tolist(), strict=True))
    assert dict(zip(zip(label.tolist(), other.tolist(), strict=True), pixels.tolist(), strict=True)) == expected
    few = [column.tolist() for column in semantic._joint(truth % 3, predicted % 4)]  # by a table
    expected = Counter(zip((truth % 3).ravel().tolist(), (predicted % 4).ravel().tolist(), strict=True))
    assert dict(zip(zip(few[0], few[1], strict=True), few[2], strict=True)) == expected
