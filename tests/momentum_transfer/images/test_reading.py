"""One reader: every kind of photograph becomes the same upright 8-bit RGB, or one line that names the file."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from momentum_transfer.errors import InputError
from momentum_transfer.images.labelled_images import FileImages
from momentum_transfer.images.reading import UnreadableImage, read_rgb, upright_size
from transfer.prediction.photographs import read_photograph
from transfer.torchvision_engine.data import Picture, read_image


def gradient() -> np.ndarray:
    """uint8 [12, 20, 3], no two corners alike."""
    y, x = np.mgrid[:12, :20]
    return np.stack([x * 12, y * 20, 120 + 0 * x], axis=2).astype(np.uint8)


def saved(path: Path, image: Image.Image, **options: object) -> Path:
    image.save(path, **options)
    return path


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_turned_photograph_is_upright_in_training_evaluation_and_prediction(orientation: int, tmp_path: Path):
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = Image.fromarray(gradient())
    path = saved(tmp_path / "a.png", stored, exif=exif.tobytes())
    with Image.open(path) as opened:
        wanted = np.asarray(ImageOps.exif_transpose(opened).convert("RGB"))
    height, width = wanted.shape[:2]
    assert upright_size(path) == (width, height)
    assert np.array_equal(read_rgb(path), wanted)
    assert np.array_equal(read_image(Picture(path, 1, height, width, ())), wanted)
    assert np.array_equal(read_photograph(path), wanted)
    assert np.array_equal(FileImages([path], [0], ["a"])[0][0], wanted)


def test_grey_palette_and_opaque_alpha_are_the_colours_that_they_show(tmp_path: Path):
    rgb = Image.fromarray(gradient())
    grey = rgb.convert("L")
    for name, image, wanted in (
        ("grey.png", grey, np.stack([np.asarray(grey)] * 3, axis=2)),
        ("grey_alpha.png", grey.convert("LA"), np.stack([np.asarray(grey)] * 3, axis=2)),
        ("rgba.png", rgb.convert("RGBA"), gradient()),
        ("palette.png", rgb.quantize(8), np.asarray(rgb.quantize(8).convert("RGB"))),
        ("black.png", grey.convert("1"), np.asarray(grey.convert("1").convert("RGB"))),
        ("cmyk.tif", rgb.convert("CMYK"), np.asarray(rgb.convert("CMYK").convert("RGB"))),
    ):
        found = read_rgb(saved(tmp_path / name, image))
        assert (found.mode, found.size) == ("RGB", (20, 12))
        assert np.array_equal(found, wanted), name


def test_transparent_pixels_are_white_whatever_colour_lies_under_them(tmp_path: Path):
    pixels = np.dstack([gradient(), np.full((12, 20), 255, np.uint8)])
    pixels[:4, :, 3] = 0
    found = np.asarray(read_rgb(saved(tmp_path / "a.png", Image.fromarray(pixels))))
    assert (found[:4] == 255).all()
    assert np.array_equal(found[4:], gradient()[4:])
    palette = Image.fromarray(gradient()).quantize(4)
    hidden = np.asarray(palette) == 1
    found = np.asarray(read_rgb(saved(tmp_path / "p.png", palette, transparency=1)))
    assert hidden.any()
    assert (found[hidden] == 255).all()
    assert np.array_equal(found[~hidden], np.asarray(palette.convert("RGB"))[~hidden])


def test_sixteen_bits_become_eight_by_their_high_byte(tmp_path: Path):
    values = (np.arange(240, dtype=np.uint16) * 273).reshape(12, 20)
    for name in ("a.png", "a.tif"):
        found = np.asarray(read_rgb(saved(tmp_path / name, Image.fromarray(values))))
        assert np.array_equal(found, np.stack([values >> 8] * 3, axis=2))


def test_what_is_no_photograph_is_one_line_with_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole = saved(tmp_path / "whole.jpg", Image.fromarray(gradient()))
    (tmp_path / "cut.jpg").write_bytes(whole.read_bytes()[:-200])
    (tmp_path / "text.png").write_text("no image")
    saved(tmp_path / "floats.tif", Image.fromarray(np.ones((3, 4), np.float32)))
    wrong = {"cut.jpg": "[Tt]runcated", "text.png": "recognised", "floats.tif": "mode F", "no.png": "No such"}
    for name, said in wrong.items():
        with pytest.raises(UnreadableImage, match=f"{re.escape(str(tmp_path / name))}.*{said}") as caught:
            read_rgb(tmp_path / name)
        assert "\n" not in str(caught.value)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(InputError, match=r"at most 200 pixels in .*whole\.jpg"):
        read_rgb(whole)


def test_a_panorama_beyond_pillows_warning_is_read_without_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = saved(tmp_path / "wide.png", Image.new("RGB", (400, 2), (9, 8, 7)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)  # 800 pixels lie between the warning and the refusal
    assert read_rgb(path).size == (400, 2)
