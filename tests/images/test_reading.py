"""One reader: every kind of photograph becomes the same upright 8-bit RGB, or one line that names the file."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image, ImageOps
from torchvision.datasets.folder import IMG_EXTENSIONS

from momentum_transfer.backbones import compare_backbones
from momentum_transfer.core.errors import InputError
from momentum_transfer.images import reading
from momentum_transfer.images.labelled_images import FileImages
from momentum_transfer.images.reading import UnreadableImage, image_files, read_rgb, upright_size
from momentum_transfer.report import examples
from momentum_transfer.transfer.data.semantic_datasets import _IMAGE_SUFFIXES
from momentum_transfer.transfer.prediction.input_images import as_pixels
from momentum_transfer.transfer.scores import semantic
from momentum_transfer.transfer.torchvision_engine.data import AnnotatedImage, read_image

ROOT = Path(__file__).resolve().parents[2]


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
    assert np.array_equal(read_image(AnnotatedImage(path, 1, height, width, ())), wanted)
    assert np.array_equal(as_pixels(path), wanted)
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
    wrong = {
        "cut.jpg": "[Tt]runcated",
        "text.png": "it is not recognised as JPEG, PNG, ",
        "floats.tif": "mode F",
        "no.png": "No such",
    }
    for name, said in wrong.items():
        with pytest.raises(UnreadableImage, match=f"{re.escape(str(tmp_path / name))}.*{said}") as caught:
            read_rgb(tmp_path / name)
        assert "\n" not in str(caught.value)


#: Every function that opens an image file.
READERS = {
    "read_rgb": read_rgb,
    "upright_size": upright_size,
    "verified_size": reading.verified_size,
    "stored_orientation": reading.stored_orientation,
    "stored_values": reading.stored_values,
    "a label image that is scored": semantic._read,
    "an image to predict on": as_pixels,
}


@pytest.mark.parametrize("reader", READERS)
def test_postscript_named_as_an_image_starts_no_ghostscript(reader: str, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_: pytest.fail("Ghostscript was started"))
    for name in ("photograph.jpg", "labels.png"):
        Image.fromarray(gradient()).save(tmp_path / name, "EPS")
        with pytest.raises(
            UnreadableImage, match=rf"cannot read the image .*{name}: it is not recognised as (JPEG, )?PNG"
        ):
            READERS[reader](tmp_path / name)
    notices: list[str] = []
    assert examples.data_uri(tmp_path / "photograph.jpg", notices) is None
    assert "it is not recognised as JPEG, PNG" in notices[0]


def test_no_other_code_opens_image_files():
    product = [file for room in ("momentum_transfer", "pretrain", "lowshot", "transfer", "tools")
               for file in (ROOT / room).rglob("*.py")]  # fmt: skip
    opening = re.compile(r"\bImage\.open\(|imread\(|torchvision\.io|default_loader")
    assert [file.name for file in product if opening.search(file.read_text())] == ["reading.py"]


def test_every_ending_that_is_looked_for_has_a_format():
    assert set(compare_backbones._SUFFIXES) | set(IMG_EXTENSIONS) | set(_IMAGE_SUFFIXES) <= set(reading.FORMATS)
    for suffix, known in reading.FORMATS.items():
        assert Image.registered_extensions()[suffix] == known


def test_an_image_of_another_listed_format_than_its_ending_is_read(tmp_path: Path):
    """ImageNet has a PNG named .JPEG, phones write several pictures into one JPEG (MPO)."""
    Image.fromarray(gradient()).save(tmp_path / "n02105855_2933.JPEG", "PNG")
    assert np.array_equal(read_rgb(tmp_path / "n02105855_2933.JPEG"), gradient())
    other = Image.fromarray(gradient()[::-1])
    Image.fromarray(gradient()).save(tmp_path / "phone.jpg", "MPO", save_all=True, append_images=[other], quality=95)
    assert np.abs(np.asarray(read_rgb(tmp_path / "phone.jpg")).astype(int) - gradient()).mean() < 12


def test_more_pixels_than_the_setting_are_refused_with_both_numbers(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)  # put back afterwards
    path = saved(tmp_path / "wide.png", Image.new("L", (400, 2)))
    assert reading.max_pixels() == Image.MAX_IMAGE_PIXELS == 89_478_485
    for most, read in (("800", True), ("799", False), ("300", False), ("500000000", True)):
        monkeypatch.setenv(reading.LIMIT, most)
        for reader in READERS.values():
            if read:
                reader(path)
                continue
            with pytest.raises(
                UnreadableImage, match=rf"at most {most} pixels in .*wide\.png, found 400 × 2; .*{reading.LIMIT}"
            ):
                reader(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 300)  # Pillow's own refusal, of twice as many
    monkeypatch.setenv(reading.LIMIT, "300")
    with pytest.raises(UnreadableImage, match=r"at most 300 pixels in .*, found 800; "):
        read_rgb(path)
    for wrong in ("0", "-1", "1e9", "many"):
        monkeypatch.setenv(reading.LIMIT, wrong)
        with pytest.raises(InputError, match=f"expected a number of pixels in {reading.LIMIT}, found '{wrong}'"):
            read_rgb(path)


def test_a_panorama_beyond_pillows_warning_is_read_without_a_word_where_the_setting_allows_it(tmp_path, monkeypatch):
    path = saved(tmp_path / "wide.png", Image.new("RGB", (400, 2), (9, 8, 7)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(UnreadableImage, match=r"at most 100 pixels in .*, found 800; "):
        read_rgb(path)
    monkeypatch.setenv(reading.LIMIT, "800")
    assert read_rgb(path).size == (400, 2)


def test_links_are_followed_and_one_that_leads_back_ends(tmp_path: Path):
    for place in ("set/a.png", "elsewhere/b.JPG", "elsewhere/deep/c.png", "set/.hidden/d.png", "set/.e.png"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).touch()
    folder = tmp_path / "set"
    (folder / "more").symlink_to(tmp_path / "elsewhere")
    (folder / "more/round").symlink_to(folder)
    assert [str(file.relative_to(folder)) for file in image_files(folder)] == ["a.png", "more/b.JPG", "more/deep/c.png"]
