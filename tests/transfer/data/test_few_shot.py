"""Base and novel classes, and the shots that FsDet's seed files list or that are drawn here."""

import json
from pathlib import Path

import pytest
from PIL import Image

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.data.annotations import DetectionData, open_dataset
from momentum_transfer.transfer.data.check_annotations import check
from momentum_transfer.transfer.data.few_shot import FewShot, Pool
from momentum_transfer.transfer.tasks import open_task
from tests.transfer.torchvision_engine.tiny import tiny_config

NAMES = ("ant", "traffic light", "cow")


def a_set(folder: Path, name: str, images: list[tuple[str, list[int]]]) -> DetectionData:
    """A set of images (file name, ids of the objects' categories); object n's box begins at n, a crowd is -id."""
    (folder / name).mkdir(parents=True)
    entries: list[dict] = []
    for number, (_, objects) in enumerate(images, 1):
        for category in objects:
            place = len(entries) + 1
            entries.append({"id": place, "image_id": number, "category_id": abs(category), "bbox": [place, 1, 5, 5],
                            "area": 25.0, "iscrowd": int(category < 0)})  # fmt: skip
    listed = [{"id": n, "file_name": file, "height": 90, "width": 90} for n, (file, _) in enumerate(images, 1)]
    for image in listed:
        Image.new("L", (90, 90)).save(folder / name / image["file_name"])
    categories = [{"id": 3 * k, "name": word} for k, word in enumerate(NAMES, 1)]
    (folder / f"{name}.json").write_text(
        json.dumps({"images": listed, "annotations": entries, "categories": categories})
    )
    return open_dataset(name, folder / name, folder / f"{name}.json")


@pytest.fixture
def pool(tmp_path) -> Pool:
    first = a_set(tmp_path, "first", [("000005.jpg", [3, 6, 3]), ("000007.jpg", [9, -9]), ("000009.jpg", [6])])
    return Pool([first, a_set(tmp_path, "second", [("2008_000001.jpg", [9, 3, 9])])])


def shots(sets: list[DetectionData]) -> list[tuple[str, int, int]]:
    """(file, category, place of the object) of every shot; each is alone in its image."""
    found = []
    for data in sets:
        content = data.load()
        assert [image["id"] for image in content["images"]] == [entry["image_id"] for entry in content["annotations"]]
        assert check(data) == []
        found += [(image["file_name"], entry["category_id"], entry["bbox"][0])
                  for image, entry in zip(content["images"], content["annotations"], strict=True)]  # fmt: skip
    return found


def write_voc(folder: Path, shot: int, **lists: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in lists.items():
        (folder / f"box_{shot}shot_{name.replace('_', ' ')}_train.txt").write_text(lines)


def test_fsdets_voc_lists_give_exactly_their_shots(pool, tmp_path):
    seeds = tmp_path / "vocsplit"
    here = "datasets/VOC2007/JPEGImages"
    write_voc(seeds, 2, ant=f"{here}/000005.jpg\n", traffic_light=f"{here}/000009.jpg\n{here}/000005.jpg\n",
              cow="datasets/VOC2012/JPEGImages/2008_000001.jpg\n")  # fmt: skip
    drawn = FewShot(("cow",), "all", 2, str(seeds)).drawn(pool, 0)
    assert [data.name for data in drawn] == ["first", "second"]
    listed = [("000005.jpg", 3, 1), ("000005.jpg", 3, 3), ("000005.jpg", 6, 2), ("000009.jpg", 6, 6)]
    assert sorted(shots(drawn)) == [*listed, ("2008_000001.jpg", 9, 1), ("2008_000001.jpg", 9, 3)]
    write_voc(seeds / "seed3", 1, ant="000005\n", traffic_light="000009\n", cow="000007\n")
    one = shots(FewShot(("cow",), "all", 1, str(seeds)).drawn(pool, 3))
    assert [shot[:2] for shot in one] == [("000005.jpg", 3), ("000009.jpg", 6), ("000007.jpg", 9)]
    assert one == shots(FewShot(("cow",), "all", 1, str(seeds)).drawn(pool, 3))


def write_coco(folder: Path, name: str, category: int, *objects: tuple[str, int]) -> None:
    """FsDet's file of a class: images by COCO 2014's names, objects whose boxes begin at a place."""
    images = [{"id": 100 + k, "file_name": file} for k, (file, _) in enumerate(objects)]
    entries = [{"id": k, "image_id": 100 + k, "category_id": category, "bbox": [place, 1, 5, 5], "area": 25.0,
                "iscrowd": 0} for k, (_, place) in enumerate(objects)]  # fmt: skip
    content = {"images": images, "annotations": entries, "categories": [{"id": category, "name": name}]}
    (folder / f"full_box_1shot_{name}_trainval.json").write_text(json.dumps(content))


def test_fsdets_coco_files_give_exactly_their_shots(tmp_path):
    data = a_set(tmp_path, "coco", [("000000000009.jpg", [3, 6]), ("000000000025.jpg", [9, 9, 6])])
    write_coco(tmp_path, "ant", 3, ("COCO_train2014_000000000009.jpg", 1))
    write_coco(tmp_path, "traffic light", 6, ("COCO_val2014_000000000025.jpg", 5))
    write_coco(tmp_path, "cow", 9, ("COCO_train2014_000000000025.jpg", 4))
    few = FewShot(("cow",), "all", 1, str(tmp_path))
    listed = [("000000000009.jpg", 3, 1), ("000000000025.jpg", 6, 5), ("000000000025.jpg", 9, 4)]
    assert shots(few.drawn(Pool([data]), 0)) == listed
    novel = FewShot(("cow",), "novel", 1, str(tmp_path))
    assert shots(novel.drawn(Pool([novel.of_stage(data)]), 0)) == listed[2:]
    write_coco(tmp_path, "cow", 6, ("COCO_train2014_000000000025.jpg", 4))
    with pytest.raises(InputError, match=r"objects of category_id 9, 'cow', in .*cow_trainval\.json, found .* of 6"):
        few.drawn(Pool([data]), 0)


def test_objects_of_seed_files_are_checked_before_the_training(tmp_path):
    data = a_set(tmp_path, "coco", [("1.jpg", [3]), ("2.jpg", [6]), ("3.jpg", [9])])
    for name, category, file, place in (
        ("ant", 3, "1.jpg", 1),
        ("traffic light", 6, "2.jpg", 2),
        ("cow", 9, "3.jpg", 99),
    ):
        write_coco(tmp_path, name, category, (file, place))
    spec = f"{tmp_path}/coco:{tmp_path}/coco.json"
    few = [
        "FEW_SHOT.NOVEL",
        "['cow']",
        "FEW_SHOT.STAGE",
        "all",
        "FEW_SHOT.SHOTS",
        "1",
        "FEW_SHOT.SEED_FILES",
        str(tmp_path),
    ]
    cfg = tiny_config("retinanet", "DATASETS.TRAIN", f"('{spec}',)", "DATASETS.TEST", f"('{spec}',)", *few)
    with pytest.raises(
        InputError, match=rf"images and annotations that fit together in {tmp_path}, found 1 × box outside"
    ):
        open_task(cfg).check(cfg, overview=False)
    write_coco(tmp_path, "cow", 9, ("3.jpg", 9))
    open_task(cfg).check(cfg, overview=False)
    assert shots(list(open_task(cfg).with_shots(0).train)) == [("1.jpg", 3, 1), ("2.jpg", 6, 2), ("3.jpg", 9, 9)]
    assert open_task(cfg).with_shots(None).train[0].load() == data.load()


def test_own_draws_hold_k_objects_a_class_no_crowd_and_grow_with_k(pool):
    one, two = (set(shots(FewShot(("cow",), "all", k).drawn(pool, 0))) for k in (1, 2))
    assert [len([s for s in two if s[1] == category]) for category in (3, 6, 9)] == [2, 2, 2]
    assert one < two
    cows = {s for draw in range(30) for s in shots(FewShot(("cow",), "all", 1).drawn(pool, draw)) if s[1] == 9}
    assert cows == {("000007.jpg", 9, 4), ("2008_000001.jpg", 9, 1), ("2008_000001.jpg", 9, 3)}


def test_a_stage_has_its_classes_and_the_base_stage_all_their_objects(pool):
    base = FewShot(("cow",), "base")
    data = base.of_stage(pool.train[0])
    assert (data.classes, data.category_ids) == (("ant", "traffic light"), (3, 6))
    assert [entry["category_id"] for entry in data.load()["annotations"]] == [3, 6, 3, 6]
    assert len(data.load()["images"]) == 3
    assert base.drawn(Pool([data]), 0) == [data]
    assert FewShot(("cow",), "novel").of_stage(pool.train[0]).classes == ("cow",)


@pytest.mark.parametrize(
    ("novel", "said"),
    [
        (("cow", "zebra"), r"NOVEL among the classes of first: ant, traffic light, cow, found 'zebra'"),
        (NAMES, "base classes beside FEW_SHOT.NOVEL, found none"),
    ],
)
def test_novel_classes_are_some_of_the_datas(novel, said, pool):
    with pytest.raises(InputError, match=said):
        FewShot(novel, "all").of_stage(pool.train[0])


def test_too_few_objects_unknown_images_and_absent_files_are_named(pool, tmp_path):
    with pytest.raises(InputError, match=r"3 or more objects of 'traffic light' in first, second, found 2"):
        FewShot(("cow",), "all", 3).drawn(pool, 0)
    few = FewShot(("cow",), "all", 1, str(tmp_path))
    write_voc(tmp_path, 1, ant="000005\n000006\n")
    with pytest.raises(InputError, match=r"images of first, second in .*1shot_ant_train\.txt, found 1 .*'000006'"):
        few.drawn(pool, 0)
    write_voc(tmp_path, 1, ant="000005\n", traffic_light="000007\n")
    with pytest.raises(InputError, match=r"1 or more objects of 'traffic light' in .*light_train\.txt, found 0"):
        few.drawn(pool, 0)
    with pytest.raises(InputError, match=r"full_box_1shot_ant_trainval\.json or box_1shot_ant_train\.txt in .*seed7"):
        few.drawn(pool, 7)
