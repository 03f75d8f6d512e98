"""The scenes' annotations are exact, and the reference readers of COCO and LVIS read them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
from pycocotools.coco import COCO

from momentum_transfer.images.digits import load_glyphs
from momentum_transfer.transfer.data import digit_scenes
from momentum_transfer.transfer.data.digit_scenes import (
    RECIPES,
    SceneRecipe,
    _box,
    _draw_scene,
    _overlap,
    _Scene,
    _write_scenes,
    ensure_scenes,
)

# pycocotools' own decode is the reference here; under NumPy 2 it makes its array by a protocol that NumPy will drop.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")

SMALL = replace(RECIPES["digit_scenes"], images=(30, 12))
UNIFORM = np.full(10, 0.1)


def scenes(recipe: SceneRecipe, number: int) -> list[_Scene]:
    glyphs, labels = load_glyphs("train")
    return [_draw_scene(recipe, glyphs, labels, UNIFORM, np.random.default_rng(k)) for k in range(number)]


@pytest.fixture(scope="module")
def folder() -> Path:
    return ensure_scenes(SMALL)


def test_every_scene_has_its_number_of_digits_and_disjoint_masks():
    drawn = scenes(SMALL, 40)
    numbers = [len(scene.digits) for scene in drawn]
    assert min(numbers) >= 3
    assert max(numbers) == 8
    for scene in drawn:
        assert scene.masks.sum(0).max() == 1
        assert scene.masks.any((1, 2)).all()


def test_masks_are_the_pixels_of_the_digits():
    clean = replace(SMALL, noise=0.0, strokes=0, unevenness=0.0, digits=(1, 1))  # so that no soft edges meet
    for scene in scenes(clean, 20):
        background = np.median(scene.image).astype(int)
        covered = scene.masks.any(0)
        raised = scene.image.astype(int) - background
        # A digit covers at least a quarter of the pixels of its mask, and less of all others.
        whole = raised.max()
        assert raised[covered].min() >= 0.25 * whole - 2
        assert raised[~covered].max() <= 0.25 * whole + 2


def test_later_digits_hide_at_most_the_stated_share(monkeypatch: pytest.MonkeyPatch):
    placed: list[digit_scenes._Placed] = []
    made = digit_scenes._Placed

    def remember(recipe: SceneRecipe) -> digit_scenes._Placed:
        placed.append(made(recipe))
        return placed[-1]

    monkeypatch.setattr(digit_scenes, "_Placed", remember)
    drawn = scenes(SMALL, 30)
    hidden = []
    for scene, state in zip(drawn, placed, strict=True):
        for visible, mask, whole in zip(state.visible, scene.masks, state.whole, strict=True):
            np.testing.assert_array_equal(visible, mask)
            hidden.append(1 - visible.sum() / whole.sum())
    assert 0 < max(hidden) <= SMALL.hidden  # some do hide


def test_json_boxes_areas_and_masks_are_those_of_the_scene(folder: Path):
    coco = COCO(str(folder / "annotations" / "train.json"))
    glyphs, labels = load_glyphs("train")
    for index, image_id in enumerate(sorted(coco.imgs)):
        scene = _draw_scene(SMALL, glyphs, labels, UNIFORM, np.random.default_rng((SMALL.seed, 0, index)))
        entry = coco.loadImgs([image_id])[0]
        picture = np.asarray(PIL.Image.open(folder / "train" / entry["file_name"]))
        np.testing.assert_array_equal(picture, np.repeat(scene.image[..., None], 3, 2))
        annotations = coco.loadAnns(coco.getAnnIds([image_id]))
        assert [a["category_id"] - 1 for a in annotations] == scene.digits.tolist()
        for annotation, mask in zip(annotations, scene.masks, strict=True):
            np.testing.assert_array_equal(coco.annToMask(annotation).astype(bool), mask)
            rows, columns = np.nonzero(mask)
            left, top = columns.min(), rows.min()
            assert annotation["bbox"] == [left, top, columns.max() + 1 - left, rows.max() + 1 - top]
            assert annotation["area"] == mask.sum()


def test_label_maps_are_the_masks_by_class(folder: Path):
    coco = COCO(str(folder / "annotations" / "val.json"))
    for image_id, entry in coco.imgs.items():
        labels = np.asarray(PIL.Image.open(folder / "labels" / "val" / entry["file_name"]))
        expected = np.zeros_like(labels)
        for annotation in coco.loadAnns(coco.getAnnIds([image_id])):
            expected[coco.annToMask(annotation) == 1] = annotation["category_id"]
        np.testing.assert_array_equal(labels, expected)


def test_splits_show_the_digits_of_their_own_split(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    asked: list[str] = []

    def glyphs(split: str) -> Any:
        asked.append(split)
        return load_glyphs(split)

    monkeypatch.setattr(digit_scenes, "load_glyphs", glyphs)
    for split in ("train", "val"):
        digit_scenes._write_split(replace(SMALL, images=(1, 1)), split, tmp_path)
    assert asked == ["train", "val"]


def test_scenes_repeat_with_their_seed(folder: Path, tmp_path: Path):
    _write_scenes(SMALL, tmp_path)
    for file in sorted(folder.rglob("*.*")):
        assert (tmp_path / file.relative_to(folder)).read_bytes() == file.read_bytes()


def test_cache_is_written_once_and_keyed_by_the_recipe(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(digit_scenes, "_write_scenes", None)
    assert ensure_scenes(SMALL) == folder
    monkeypatch.undo()
    assert ensure_scenes(replace(SMALL, images=(1, 1), seed=1)) != folder


def test_interrupted_writing_leaves_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("MOMENTUM_TRANSFER_CACHE", str(tmp_path))

    def full(recipe: SceneRecipe, folder: Path) -> None:
        (folder / "train").mkdir()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(digit_scenes, "_write_scenes", full)
    with pytest.raises(OSError, match="No space left"):
        ensure_scenes(SMALL)
    assert list((tmp_path / "scenes").iterdir()) == []


def test_a_faster_process_wins_without_harm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("MOMENTUM_TRANSFER_CACHE", str(tmp_path))
    recipe = replace(SMALL, images=(1, 1))
    real, nested = _write_scenes, []

    def slow(recipe: SceneRecipe, folder: Path) -> None:
        real(recipe, folder)
        if not nested:
            nested.append(True)
            ensure_scenes(recipe)

    monkeypatch.setattr(digit_scenes, "_write_scenes", slow)
    assert (ensure_scenes(recipe) / "annotations" / "val.json").is_file()
    assert len(list((tmp_path / "scenes").iterdir())) == 1


def test_the_default_long_tail_has_rare_common_and_frequent_classes():
    profile = digit_scenes._profile(RECIPES["digit_scenes_lt"], "train")
    glyphs, labels = load_glyphs("train")
    recipe = replace(RECIPES["digit_scenes_lt"], noise=0.0)
    seen = np.zeros(10, int)
    for index in range(recipe.images[0]):
        rng = np.random.default_rng((recipe.seed, 0, index))
        seen[np.unique(_draw_scene(recipe, glyphs, labels, profile, rng).digits)] += 1
    assert seen.min() >= 1
    assert (seen <= 10).sum() >= 2
    assert ((seen > 10) & (seen <= 100)).sum() >= 2
    assert (seen > 100).sum() >= 2


def test_overlap_of_boxes_is_that_of_their_pixels():
    for other in ((2, 3, 6, 9), (5, 8, 9, 12), (6, 3, 9, 9), (0, 9, 9, 12), (20, 30, 22, 33), (0, 0, 40, 40)):
        pixels = np.zeros((2, 40, 40), bool)
        for layer, (left, top, right, bottom) in zip(pixels, ((2, 3, 6, 9), other), strict=True):
            layer[top:bottom, left:right] = True
        assert _overlap((2, 3, 6, 9), other) == (pixels[0] & pixels[1]).sum() / (pixels[0] | pixels[1]).sum()
        assert _box(pixels[1]) == other
