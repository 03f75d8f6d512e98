"""Images of the page: small, side by side, and within its budget."""

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from momentum_transfer.core.errors import counted
from momentum_transfer.report import examples
from momentum_transfer.report.examples import data_uri, galleries
from momentum_transfer.report.read_inputs import Example


def saved(path: Path, width: int, height: int, noise: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    pixels = drawn if noise else np.zeros_like(drawn)
    Image.fromarray(pixels).save(path)
    return path


def decoded(uri: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))


@pytest.mark.parametrize(
    ("width", "height", "shown", "pair"),
    [(480, 480, (480, 480), False), (481, 481, (480, 480), False), (960, 480, (960, 480), True),
     (1200, 600, (960, 480), True), (1598, 1000, (480, 300), False), (1600, 1000, (768, 480), True),
     (300, 900, (160, 480), False), (20, 10, (20, 10), True)],
)  # fmt: skip
def test_an_image_is_shrunk_to_480_pixels_and_a_pair_to_twice_that_width(width, height, shown, pair, tmp_path: Path):
    uri, found = data_uri(saved(tmp_path / "a.png", width, height), [])
    assert (decoded(uri).size, found) == (shown, pair)


def test_drawings_are_kept_as_png_and_photographs_as_jpeg(tmp_path: Path):
    plain, _ = data_uri(saved(tmp_path / "a.png", 64, 64), [])
    noisy, _ = data_uri(saved(tmp_path / "b.png", 64, 64, noise=True), [])
    assert plain.startswith("data:image/png;base64,")
    assert noisy.startswith("data:image/jpeg;base64,")
    assert (decoded(plain).format, decoded(noisy).format) == ("PNG", "JPEG")


def test_what_is_missing_or_no_image_is_a_notice(tmp_path: Path):
    notices: list[str] = []
    (tmp_path / "text.png").write_text("no image")
    assert data_uri(tmp_path / "absent.png", notices) is data_uri(tmp_path / "text.png", notices) is None
    assert notices[0] == f"{tmp_path / 'absent.png'}: image missing"
    assert "cannot read the image" in notices[1]


def test_a_page_holds_as_many_bytes_as_its_budget_and_smaller_images_still_fit(monkeypatch, tmp_path: Path):
    files = {name: saved(tmp_path / f"{name}.png", side, side, noise=True)
             for name, side in (("1", 32), ("2", 64), ("3", 32), ("4", 32))}  # fmt: skip
    found = [Example("run", "fcos", name, path) for name, path in files.items()]
    sizes = {name: len(data_uri(path, [])[0]) for name, path in files.items()}
    two = 2 * sizes["1"]
    for budget, kept in ((two, ["1", "3"]), (two - 1, ["1"]), (sum(sizes.values()), ["1", "2", "3", "4"])):
        monkeypatch.setattr(examples, "_BUDGET", budget)
        notices: list[str] = []
        shots = [shot for gallery in galleries(found, notices) for row in gallery.rows for shot in row]
        assert [shot.caption for shot in shots] == [f"run · {name}" for name in kept]
        told = f"{counted(4 - len(kept), 'image')} left out: the page holds at most {budget / 1e6:.1f} MB of images"
        assert notices == ([told] if len(kept) < 4 else [])


def test_a_row_is_wide_where_several_of_it_are_pairs(tmp_path: Path):
    wide, narrow = saved(tmp_path / "w.png", 32, 16), saved(tmp_path / "n.png", 16, 16)
    for paths, expected in (((wide, wide), True), ((wide, narrow), True), ((narrow, narrow), False), ((wide,), False)):
        found = [Example(f"run{n}", ".", "scene", path) for n, path in enumerate(paths)]
        (gallery,) = galleries(found, [])
        assert (gallery.place, gallery.wide, len(gallery.rows)) == ("detector", expected, 1)
        assert gallery.rows[0][0].alt == ".: detections of run0 on scene"
