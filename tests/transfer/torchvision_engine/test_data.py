import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.data.detection_datasets import get_dataset
from momentum_transfer.transfer.torchvision_engine.data import (
    AnnotatedImage,
    Annotation,
    Mapper,
    TrainingSamples,
    annotated_images,
    output_size,
    read_image,
    with_objects,
)
from tests.transfer.torchvision_engine.tiny import write_shapes


def mapper(**changes):
    settings = {"bgr": False, "mask_format": "bitmask", "flip": False}
    return Mapper([32], 1333, **{**settings, **changes})


@pytest.fixture
def pictures(tmp_path):
    return annotated_images(get_dataset(write_shapes(tmp_path / "data", images=3)))


@pytest.mark.parametrize(
    ("height", "width", "short", "longest", "expected"),
    [(480, 640, 800, 1333, (800, 1067)), (640, 480, 800, 1333, (1067, 800)), (300, 1000, 800, 1333, (400, 1333)),
     (427, 640, 640, 1333, (640, 959)), (100, 100, 128, 1333, (128, 128))],
)  # fmt: skip
def test_sizes_are_those_of_detectron2(height, width, short, longest, expected):
    assert output_size(height, width, short, longest) == expected


def test_classes_are_numbered_in_the_order_of_their_ids(pictures):
    assert {a.category for p in pictures for a in p.annotations} == {0, 1, 2}


def test_boxes_and_masks_move_with_the_image(pictures):
    random = np.random.default_rng(0)
    whole, half = Mapper([64], 1333, bgr=False, mask_format="bitmask", flip=False), mapper()
    before, after = whole.train(pictures[0], random), half.train(pictures[0], random)
    assert after.image.shape == (3, 32, 32)
    torch.testing.assert_close(after.target.boxes, before.target.boxes / 2)
    assert abs(after.target.masks.bitmaps.sum() * 4 - before.target.masks.bitmaps.sum()) < 60
    for box, bitmap in zip(before.target.boxes, before.target.masks.bitmaps, strict=True):
        rows, columns = torch.where(bitmap)
        assert columns.min() >= box[0] - 1
        assert rows.max() <= box[3]


def test_a_flip_mirrors_image_boxes_and_masks_alike(pictures):
    plain = mapper().train(pictures[0], np.random.default_rng(0))
    flipping = mapper(flip=True)
    flipped = next(
        s for s in (flipping.train(pictures[0], np.random.default_rng(k)) for k in range(20))
        if not torch.equal(s.image, plain.image)
    )  # fmt: skip
    assert torch.equal(flipped.image, plain.image.flip(2))
    torch.testing.assert_close(flipped.target.boxes[:, [2, 1, 0, 3]], plain.target.boxes * torch.tensor([-1, 1, -1, 1])
                               + torch.tensor([32.0, 0.0, 32.0, 0.0]))  # fmt: skip
    overlap = (flipped.target.masks.bitmaps & plain.target.masks.bitmaps.flip(2)).sum()
    assert overlap > 0.85 * plain.target.masks.bitmaps.sum()  # pycocotools rounds a mirrored polygon differently


def test_a_run_length_mask_is_mirrored_with_its_box(pictures):
    runs = {"size": [64, 64], "counts": [64 * 8, 64 * 16, 64 * 40]}  # columns 8 to 23
    picture = AnnotatedImage(pictures[0].file, 1, 64, 64, (Annotation((8.0, 0.0, 24.0, 64.0), 0, runs, crowd=False),))
    whole = Mapper([64], 1333, bgr=False, mask_format="bitmask", flip=True)
    seen = set()
    for seed in range(12):
        target = whole.train(picture, np.random.default_rng(seed)).target
        columns = torch.nonzero(target.masks.bitmaps[0].any(dim=0)).squeeze(1)
        left, _, right, _ = target.boxes[0].tolist()
        assert (columns[0], columns[-1] + 1) == (left, right)
        seen.add((left, right))
    assert seen == {(8.0, 24.0), (40.0, 56.0)}


#: EXIF orientation → what turns the stored pixels upright, by numpy.
TURNS = {
    1: lambda x: x, 2: lambda x: x[:, ::-1], 3: lambda x: x[::-1, ::-1], 4: lambda x: x[::-1],
    5: lambda x: x.swapaxes(0, 1), 6: lambda x: np.rot90(x, -1), 7: lambda x: np.rot90(x, 2).swapaxes(0, 1),
    8: lambda x: np.rot90(x, 1),
}  # fmt: skip


@pytest.mark.parametrize("orientation", TURNS)
def test_a_photograph_is_turned_as_its_exif_says(orientation, tmp_path):
    stored = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(stored).save(tmp_path / "a.png", exif=exif)
    upright = TURNS[orientation](stored)
    picture = AnnotatedImage(tmp_path / "a.png", 1, *upright.shape[:2], ())
    assert np.array_equal(read_image(picture), upright)


def test_channels_are_in_the_order_of_the_settings(tmp_path):
    Image.new("RGB", (32, 32), (200, 100, 50)).save(tmp_path / "a.png")
    picture = AnnotatedImage(tmp_path / "a.png", 1, 32, 32, ())
    assert mapper().test(picture).image[:, 0, 0].tolist() == [200, 100, 50]
    assert mapper(bgr=True).test(picture).image[:, 0, 0].tolist() == [50, 100, 200]


def test_polygons_without_three_corners_are_dropped_and_objects_without_others_too(tmp_path):
    data = get_dataset(write_shapes(tmp_path / "data", images=1))
    content = json.loads(data.annotation_file.read_text())
    whole = content["annotations"][0]["segmentation"][0]
    content["annotations"][0]["segmentation"] = [whole, [1.0, 1.0, 5.0, 5.0], [*whole, 3.0]]
    content["annotations"][1]["segmentation"] = [[1.0, 1.0, 5.0, 5.0]]
    data.annotation_file.write_text(json.dumps(content))
    found = annotated_images(get_dataset(f"{data.images_dir}:{data.annotation_file}"))[0].annotations
    assert [a.segmentation for a in found] == [[whole]]


def test_bgr_reverses_the_channels(pictures):
    rgb, bgr = mapper().test(pictures[0]), mapper(bgr=True).test(pictures[0])
    assert torch.equal(rgb.image.flip(0), bgr.image)


def test_polygons_and_bitmaps_give_the_same_targets_up_to_rasterisation(pictures):
    random = np.random.default_rng(0)
    polygons = mapper(mask_format="polygon").train(pictures[0], random).target
    bitmaps = mapper().train(pictures[0], random).target
    objects = torch.arange(len(bitmaps.boxes))
    a, b = (target.masks.crop_and_resize(target.boxes, objects, 14) for target in (polygons, bitmaps))
    assert (a == b).float().mean() > 0.85


def test_a_sample_is_a_pure_function_of_seed_and_place(pictures):
    samples = TrainingSamples(pictures, Mapper([32, 40, 48], 1333, bgr=False, mask_format=None, flip=True), seed=4)
    first, again = samples[(17, 2)], samples[(17, 2)]
    assert torch.equal(first.image, again.image)
    shapes = {tuple(samples[(place, 2)].image.shape) for place in range(30)}
    assert shapes == {(3, 32, 32), (3, 40, 40), (3, 48, 48)}


def test_crowds_and_empty_boxes_are_no_targets(pictures):
    square = pictures[0].annotations[0]
    crowd = Annotation(square.box, 1, square.segmentation, crowd=True)
    empty = Annotation((5.0, 5.0, 5.0, 9.0), 1, square.segmentation, crowd=False)
    picture = AnnotatedImage(pictures[0].file, 1, 64, 64, (crowd, square, empty))
    target = mapper().train(picture, np.random.default_rng(0)).target
    assert target.classes.tolist() == [square.category]
    assert len(target.masks) == 1
    only_crowd = AnnotatedImage(pictures[0].file, 2, 64, 64, (crowd,))
    assert with_objects([picture, only_crowd]) == [picture]


def test_an_unreadable_image_is_named(pictures):
    Path(pictures[1].file).write_bytes(b"no image")
    with pytest.raises(InputError, match=r"cannot read the image .*001\.png"):
        mapper().test(pictures[1])


def test_an_image_of_another_size_than_its_data_set_says_is_named(pictures):
    Image.new("RGB", (30, 20)).save(pictures[1].file)
    with pytest.raises(InputError, match=r"expected 64×64 pixels in .*001\.png .* found 30×20"):
        mapper().test(pictures[1])


def test_run_length_masks_need_the_bitmap_format(pictures):
    coded = Annotation((0.0, 0.0, 8.0, 8.0), 0, {"size": [64, 64], "counts": [0, 128, 64 * 62]}, crowd=False)
    picture = AnnotatedImage(pictures[0].file, 1, 64, 64, (coded,))
    target = mapper().train(picture, np.random.default_rng(0)).target
    assert target.masks.bitmaps[0].sum() == 32  # two of 64 columns become one of 32
    with pytest.raises(InputError, match=r"INPUT.MASK_FORMAT bitmask"):
        mapper(mask_format="polygon").train(picture, np.random.default_rng(0))
