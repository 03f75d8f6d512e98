"""Settings that follow from custom data: written-out rules at their borders."""

from pathlib import Path

import pytest

from momentum_transfer.core.distributed import rank
from momentum_transfer.transfer import config
from momentum_transfer.transfer.data.annotations import DetectionData
from momentum_transfer.transfer.fit import FittedSetting, Machine, _aspect, _batch, fit, settings_of_data, this_machine
from tests.two_processes import as_torchrun


def dataset(
    boxes: list[tuple[float, float]], size: tuple[int, int] = (640, 480), images: int = 1, **entry
) -> DetectionData:
    """Images of one size; the boxes' (width, height) lie in turn on them."""
    listed = [{"id": k, "file_name": f"{k}.jpg", "width": size[0], "height": size[1]} for k in range(images)]
    annotations = [{"id": k, "image_id": k % images, "category_id": 1, "bbox": [0, 0, *box], **entry}
                   for k, box in enumerate(boxes)]  # fmt: skip
    content = {"images": listed, "annotations": annotations, "categories": [{"id": 1, "name": "a"}]}
    return DetectionData("own", Path("x"), Path("x.json"), ("a", "b"), (1, 2), "coco", content)


def fitted(data: DetectionData, machine: Machine, *words: str, given: tuple[str, ...] = ()) -> dict[str, object]:
    cfg = config.load(None, list(words))
    return {one.key: one.value for one in fit(cfg, [data], machine, given)}


CPU, GPU = Machine("cpu", 64e9), Machine("cuda", 80e9)
FPN = ["MODEL.ANCHOR_GENERATOR.SIZES", "[[32],[64],[128],[256],[512]]"]


@pytest.mark.parametrize(
    ("box", "machine", "side", "smallest"),  # of images with a shorter side of 480
    [
        (48, CPU, 256, 32),
        (24, CPU, 480, 32),
        (22, CPU, 480, 32),
        (21, CPU, 480, 16),
        (11, CPU, 480, 16),
        (10, CPU, 480, 8),
        (24, GPU, 480, 32),
        (20, GPU, 576, 32),
        (10, GPU, 800, 16),
        (4, GPU, 800, 8),
    ],
)
def test_small_boxes_get_24_pixels_within_the_devices_limits(box, machine, side, smallest):
    found = fitted(dataset([(box, box)] * 9), machine, *FPN)
    assert found["INPUT.MIN_SIZE_TEST"] == side
    assert found["INPUT.MIN_SIZE_TRAIN"] == [side - 64, side - 32, side]
    assert found["MODEL.ANCHOR_GENERATOR.SIZES"] == [[smallest * 2**k] for k in range(5)]
    assert found["INPUT.MAX_SIZE_TEST"] == found["INPUT.MAX_SIZE_TRAIN"] == int(side * 5 / 3)


def test_a_box_is_small_by_its_area_and_one_in_ten_counts():
    square, long = fitted(dataset([(24, 24)] * 9), GPU), fitted(dataset([(12, 48)] * 9), GPU)
    assert square["INPUT.MIN_SIZE_TEST"] == long["INPUT.MIN_SIZE_TEST"] == 480
    mixed = fitted(dataset([(24, 24)] * 2 + [(240, 240)] * 9 + [(0, 5), (5, 0)]), GPU)
    assert mixed["INPUT.MIN_SIZE_TEST"] == 480  # boxes without a side do not count
    assert fitted(dataset([(24, 24)] + [(240, 240)] * 99), GPU)["INPUT.MIN_SIZE_TEST"] == 256
    assert fitted(dataset([(0, 0)]), GPU)["INPUT.MIN_SIZE_TEST"] == 256  # as for a tenth of the side
    assert "MODEL.ANCHOR_GENERATOR.SIZES" not in square  # one level: not a pyramid


@pytest.mark.parametrize(
    ("images", "batch", "views"),
    [(1, 1, 1008), (2, 2, 1016), (3, 2, 1024), (4, 4, 1032), (500, 4, 5000), (1375, 4, 12000), (2000, 4, 12000)],
)
def test_views_grow_with_the_images_to_a_limit(images, batch, views):
    found = fitted(dataset([(48, 48)] * images, images=images), CPU)
    assert (found["SOLVER.IMS_PER_BATCH"], found["SOLVER.MAX_ITER"]) == (batch, views // batch)
    on_gpu = fitted(dataset([(48, 48)] * images, images=images), GPU)
    assert on_gpu["SOLVER.MAX_ITER"] == 4 * views // on_gpu["SOLVER.IMS_PER_BATCH"]
    assert found["SOLVER.BASE_LR"] == pytest.approx(0.005 * batch)
    assert on_gpu["SOLVER.BASE_LR"] == pytest.approx(min(0.005 * on_gpu["SOLVER.IMS_PER_BATCH"], 0.02))
    steps = views // batch
    assert found["SOLVER.WARMUP_ITERS"] == min(100, steps // 10)
    assert found["SOLVER.CHECKPOINT_PERIOD"] == max(steps // 4, 50)
    assert found["TEST.PRECISE_BN.NUM_ITER"] == min(50, max(-(-images // batch), 10))


def test_what_was_given_by_hand_is_kept_and_the_rest_follows_from_it():
    data = dataset([(48, 48)] * 100, images=100)
    batch = fitted(data, CPU, "SOLVER.IMS_PER_BATCH", "2", given=("SOLVER.IMS_PER_BATCH",))
    assert (batch["SOLVER.IMS_PER_BATCH"], batch["SOLVER.BASE_LR"], batch["SOLVER.MAX_ITER"]) == (2, 0.01, 900)
    run = fitted(data, CPU, "SOLVER.MAX_ITER", "30", given=("SOLVER.MAX_ITER",))
    assert (run["SOLVER.WARMUP_ITERS"], run["SOLVER.CHECKPOINT_PERIOD"]) == (3, 50)
    assert fitted(data, CPU, "SOLVER.MAX_ITER", "5", given=("SOLVER.MAX_ITER",))["SOLVER.WARMUP_ITERS"] == 1
    assert fitted(data, CPU, "FIT_RATE", "0.1")["SOLVER.BASE_LR"] == pytest.approx(0.002)


@pytest.mark.parametrize(
    ("shapes", "aspect"),
    [([(100, 100)], 5 / 3), ([(300, 100)] * 3, 3.0), ([(100, 250)], 2.5), ([(900, 100)] * 5, 4.0),
     ([(100, 200)] * 99 + [(100, 390)], 2.0)],
)  # fmt: skip
def test_images_may_be_as_long_as_nineteen_of_twenty(shapes, aspect):
    assert _aspect(shapes) == pytest.approx(aspect)


def bytes_of(batch: int, side: int) -> float:
    """1.5 GB and 7000 bytes a pixel of a batch of square images."""
    return 1.5e9 + 7000 * batch * side * side


@pytest.mark.parametrize(
    ("needed", "off", "batch", "side"),
    [
        ((4, 480), 1, 4, 480),
        ((4, 480), -1, 2, 480),
        ((2, 480), -1, 1, 480),
        ((1, 480), 1, 1, 480),
        ((1, 480), -1, 1, 448),
        ((1, 160), -1, 1, 128),
        ((1, 128), -1, 1, 128),  # no further
    ],
)
def test_the_batch_shrinks_before_the_side_until_both_fit(needed, off, batch, side):
    machine = Machine("cpu", (bytes_of(*needed) + off) / 0.7)
    found, shorter, why = _batch(99, 480, 1.0, machine, None)
    assert (found, shorter) == (batch, side)
    assert ("less than usual" in why) == (batch < 4)


def test_a_batch_has_no_more_images_than_there_are_and_the_least_at_least():
    assert _batch(3, 256, 1.0, CPU, None)[0] == 2
    assert _batch(1, 256, 1.0, CPU, None, least=2)[0] == 2
    assert _batch(1, 256, 1.0, Machine("cpu", 1.0), None, least=2)[:2] == (2, 128)
    assert _batch(1, 256, 1.0, Machine("cpu", 1.0), 8)[:2] == (8, 128)  # a given one stays
    assert _batch(99, 256, 1.0, GPU, None)[0] == 8
    assert "less than usual" not in _batch(3, 256, 1.0, CPU, None)[2]


def test_masks_are_left_out_where_the_set_has_boxes_only():
    cfg = config.load(None, ["MODEL.MASK_ON", "True"])

    def found(*data: DetectionData, cfg=cfg) -> dict[str, object]:
        return {one.key: one.value for one in settings_of_data(cfg, data)}

    polygons, coded = dataset([(5, 5)], segmentation=[[1, 2, 3, 4, 5, 6]]), dataset([(5, 5)], segmentation={"size": []})
    boxes = dataset([(5, 5)])
    count = {"MODEL.ROI_HEADS.NUM_CLASSES": 2}
    assert found(polygons) == count
    assert found(boxes) == found(polygons, boxes) == {**count, "MODEL.MASK_ON": False}
    assert found(polygons, coded) == {**count, "INPUT.MASK_FORMAT": "bitmask"}
    assert found(boxes, cfg=config.load(None, [])) == count
    words = ["MODEL.META_ARCHITECTURE", "SemanticSegmentor", "MODEL.MASK_ON", "True"]
    assert found(boxes, cfg=config.load(None, words)) == {"MODEL.SEM_SEG_HEAD.NUM_CLASSES": 2}


def test_settings_are_words_of_a_command_line():
    assert FittedSetting("A.B", [1, 2], "").words == ["A.B", "[1, 2]"]
    assert FittedSetting("A.B", "bitmask", "").words == ["A.B", "bitmask"]


def test_a_teacher_labels_as_many_images_and_averages_over_a_fifth_of_the_run():
    words = [*FPN, "SEMI.TEACHER", "True", "MODEL.MASK_ON", "True"]
    found = fitted(dataset([(24, 24)] * 24, images=24), CPU, *words)
    assert (found["SOLVER.IMS_PER_BATCH"], found["SOLVER.MAX_ITER"]) == (4, (1000 + 8 * 24) // 4)
    assert (found["SEMI.IMS_PER_BATCH"], found["SEMI.BURN_IN"], found["SEMI.EMA"]) == (4, 99, round(1 - 5 / 298, 4))
    given = fitted(dataset([(24, 24)] * 24), CPU, *words, "SOLVER.MAX_ITER", "90", given=("SOLVER.MAX_ITER",))
    assert given["SEMI.BURN_IN"] == 30
    masks = dataset([(24, 24)], segmentation=[[0, 0, 9, 0, 9, 9]])
    assert {one.key: one.value for one in settings_of_data(config.load(None, words), [masks])}["MODEL.MASK_ON"] is False


def fit_with_own_memory() -> tuple[float, object]:
    """The memory that a process fits to, and what it comes to; that of rank 1 is a tenth."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("momentum_transfer.transfer.fit.available_memory", lambda: 20e9 / (1 + 9 * rank()))
        machine = this_machine("cpu")
    return machine.free, fitted(dataset([(24, 24)] * 9, images=9), machine)["SOLVER.IMS_PER_BATCH"]


def test_processes_of_torchrun_fit_to_the_memory_of_the_first():
    assert as_torchrun(fit_with_own_memory) == ((20e9, 4), (20e9, 4))
    alone = fitted(dataset([(24, 24)] * 9, images=9), Machine("cpu", 2e9))
    assert alone["SOLVER.IMS_PER_BATCH"] == 1  # what rank 1 would have come to
