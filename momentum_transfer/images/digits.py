"""The embedded images: handwritten digits of scikit-learn, placed on uneven backgrounds.

`sklearn.datasets.load_digits` (1797 images of 8x8, UCI "Optical Recognition of Handwritten Digits") is real handwriting
that needs no download. As it is, it is too easy: a random network separates the ten classes almost as well as a trained
one. A `DigitVariant` says how a digit is drawn instead: at a random place and scale, in a random light grey on a random
dark and slightly uneven grey, with pixel noise and, in one variant, fragments of strokes. A view of a digit
is a new drawing of it, so that what two views share is the handwriting and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import PIL.Image
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from momentum_transfer.core.errors import InputError
from momentum_transfer.images.augmentations import JoinedGenerators

GLYPH_SIDE = 8  # pixels of a scikit-learn digit
HELD_OUT = 0.3  # share of every class that is never trained on
SPLIT_SEED = 0
SPLITS = ("train", "val")

Array = NDArray[np.float32]
Generators = np.random.Generator | JoinedGenerators


@dataclass(frozen=True)
class DigitVariant:
    """How digits are drawn. Luminance runs from 0 (black) to 1 (white); lengths are shares of the image side.

    Attributes:
        side: range of the height of the rectangle that holds the digit.
        aspect: its width over its height lies in 1/(1 + aspect) .. 1 + aspect.
        slant: largest shift of a row to the side, per row above or below the middle.
        thinning: range of what is taken off the coverage by the digit; more makes thinner strokes.
        background: range of the mean luminance of the background.
        contrast: least difference between the luminance of the digit and of the background's mean.
        unevenness: standard deviation of the background's smooth part (a random 4x4 grid, enlarged).
        noise: standard deviation of the noise added to each pixel.
        strokes: number of straight fragments of strokes drawn behind the digit.
        stroke_contrast: range of the fragments' luminance over the background's mean.
        drawing: raised when `render_digits` changes what it draws, so that caches of features notice.
    """

    side: tuple[float, float] = (0.60, 0.85)
    aspect: float = 0.0
    slant: float = 0.0
    thinning: tuple[float, float] = (0.3, 0.3)
    background: tuple[float, float] = (0.05, 0.40)
    contrast: float = 0.5
    unevenness: float = 0.05
    noise: float = 0.05
    strokes: int = 0
    stroke_contrast: tuple[float, float] = (0.1, 0.3)
    drawing: int = 2


VARIANTS = {
    "placed": DigitVariant(),
    "written": DigitVariant(aspect=0.2, slant=0.35, thinning=(0.15, 0.45)),
    "strokes": DigitVariant(strokes=2),
}


def digit_variant(name: str) -> DigitVariant:
    """The drawing variant of that name; InputError when there is none."""
    if name not in VARIANTS:
        raise InputError(f"expected a digit variant among {', '.join(VARIANTS)}, found {name!r}")
    return VARIANTS[name]


@lru_cache(maxsize=1)
def _bundle() -> tuple[Array, NDArray[np.int64]]:
    digits = load_digits()
    return (digits.images / 16.0).astype(np.float32), digits.target.astype(np.int64)


def split_indices(split: str) -> NDArray[np.int64]:
    """Ascending indices into scikit-learn's digits of a split: "train" (70 %) or "val" (30 %), stratified by class."""
    if split not in SPLITS:
        raise InputError(f"expected a digits split among {', '.join(SPLITS)}, found {split!r}")
    labels = _bundle()[1]
    train, val = train_test_split(
        np.arange(len(labels)), test_size=HELD_OUT, stratify=labels, random_state=SPLIT_SEED, shuffle=True
    )
    return np.sort(train if split == "train" else val).astype(np.int64)


def load_glyphs(split: str) -> tuple[Array, NDArray[np.int64]]:
    """The digits of a split: coverage in 0..1 [N, 8, 8] and labels [N]."""
    images, labels = _bundle()
    chosen = split_indices(split)
    return images[chosen], labels[chosen]


def _placement(start: Array, length: Array, size: int) -> Array:
    """Linear interpolation [N…, size, 8] that puts 8 samples on [start, start + length) of `size` pixels; both [N…]."""
    centres = np.arange(size, dtype=np.float32) + np.float32(0.5)
    position = (centres - start[..., None]) * (GLYPH_SIDE / length)[..., None] - np.float32(0.5)
    distance = np.abs(position[..., None] - np.arange(GLYPH_SIDE, dtype=np.float32))
    return np.maximum(np.float32(1) - distance, np.float32(0))


def place_glyphs(
    glyphs: Array,
    top: Array,
    left: Array,
    height: Array,
    width: Array,
    size: int,
    slant: Array | None = None,
    thinning: Array | float = 0.3,
) -> Array:
    """Enlarge digits and put them on empty canvases.

    Args:
        glyphs: coverage in 0..1, [N, 8, 8].
        top, left, height, width: the rectangle that holds each digit, in pixels, [N]; it may begin between two pixels.
        size: side of the canvas in pixels.
        slant: shift to the right of each row, per row above the middle of the rectangle, [N].
        thinning: taken off the coverage, a number or [N].

    Returns:
        Coverage in 0..1, [N, size, size]; the slope at the edges is raised, since 8x8 pixels enlarge to a blur.
    """
    rows = _placement(top, height, size) @ glyphs
    if slant is None:
        coverage = rows @ _placement(left, width, size).transpose(0, 2, 1)
    else:
        above = (top + height / 2)[:, None] - np.arange(size, dtype=np.float32) - np.float32(0.5)
        starts = left[:, None] + slant[:, None] * above
        columns = _placement(starts, np.broadcast_to(width[:, None], starts.shape), size)
        coverage = (columns @ rows[..., None])[..., 0]
    taken = np.reshape(np.asarray(thinning, dtype=np.float32), (-1, 1, 1))
    return np.clip(coverage * np.float32(1.6) - taken, 0, 1)


@lru_cache(maxsize=8)
def _enlarge(cells: int, size: int) -> Array:
    """Linear interpolation [size, cells] from the nodes of a grid, whose first and last lie on the borders."""
    position = np.linspace(0, cells - 1, size, dtype=np.float32)
    return np.maximum(1 - np.abs(position[:, None] - np.arange(cells, dtype=np.float32)), 0).astype(np.float32)


def uneven_backgrounds(level: Array, amplitude: float, size: int, rng: Generators) -> Array:
    """Smooth backgrounds [N, size, size] of mean luminance `level` [N] and standard deviation about `amplitude`."""
    enlarge = _enlarge(4, size)
    grid = rng.standard_normal((len(level), 4, 4), dtype=np.float32) * np.float32(amplitude)
    return enlarge @ grid @ enlarge.T + level[:, None, None]


def draw_strokes(
    canvas: Array,
    luminance: Array,
    width: float,
    length: tuple[float, float],
    rng: Generators,
) -> None:
    """Draw K straight fragments of strokes onto each canvas, in place.

    Args:
        canvas: [N, size, size], luminance.
        luminance: of the fragments, [N, K].
        width: of the fragments, in pixels.
        length: range of the fragments' lengths, in pixels.
    """
    count, size = luminance.shape, canvas.shape[-1]
    grid = np.arange(size, dtype=np.float32) + np.float32(0.5)
    centre = rng.random((*count, 2), dtype=np.float32) * size
    angle = rng.random(count, dtype=np.float32) * np.float32(np.pi)
    half = (length[0] + (length[1] - length[0]) * rng.random(count, dtype=np.float32)) / 2
    down, right = np.sin(angle)[..., None, None], np.cos(angle)[..., None, None]
    dy = grid[:, None] - centre[..., 0, None, None]
    dx = grid[None, :] - centre[..., 1, None, None]
    along = np.maximum(np.abs(dy * down + dx * right) - half[..., None, None], 0)
    distance = np.hypot(along, dy * right - dx * down)
    coverage = np.clip(width / 2 + 0.5 - distance, 0, 1)
    for k in range(count[1]):
        canvas += coverage[:, k] * (luminance[:, k, None, None] - canvas)


def render_digits(
    glyphs: Array, size: int, variant: DigitVariant, *generators: np.random.Generator
) -> NDArray[np.uint8]:
    """Draw digits, each with its own random place, scale, luminance, background and noise.

    Args:
        glyphs: coverage in 0..1, [N, 8, 8].
        size: side of the images in pixels.
        generators: the only source of randomness: the same states give the same images. Of G the first draws the first
            N / G images, and so on, as it would draw them alone: one call is several times faster than G.

    Returns:
        Grey images [N, size, size], 0..255.
    """
    number, rng = len(glyphs), JoinedGenerators(generators)
    draws = rng.random((8, number), dtype=np.float32, axis=1)
    level = variant.background[0] + (variant.background[1] - variant.background[0]) * draws[0]
    lightest = level + variant.contrast
    luminance = lightest + (1 - lightest) * draws[1]
    side = (variant.side[0] + (variant.side[1] - variant.side[0]) * draws[2]) * size
    canvas = uneven_backgrounds(level, variant.unevenness, size, rng)
    if variant.strokes:
        low, high = variant.stroke_contrast
        lift = low + (high - low) * rng.random((number, variant.strokes), dtype=np.float32)
        draw_strokes(canvas, level[:, None] + lift, size / 14, (size / 6, size / 3), rng)
    width = side * np.exp((2 * draws[5] - 1) * np.float32(np.log1p(variant.aspect)))
    slant = (2 * draws[6] - 1) * np.float32(variant.slant) if variant.slant else None
    thinning = variant.thinning[0] + (variant.thinning[1] - variant.thinning[0]) * draws[7]
    coverage = place_glyphs(
        glyphs, draws[3] * (size - side), draws[4] * (size - width), side, width, size, slant, thinning
    )
    canvas += coverage * (luminance[:, None, None] - canvas)
    canvas += rng.standard_normal(canvas.shape, dtype=np.float32) * np.float32(variant.noise)
    return np.rint(np.clip(canvas, 0, 1) * 255).astype(np.uint8)


class DigitImages:
    """Fixed drawings of every digit of a split, one or several: `self[i] -> (PIL RGB image, int label)`.

    The drawing of index i depends on (seed, split, i) alone, so that features can be cached and compared.

    Args:
        split: "train" or "val" (held out).
        size: side of the images in pixels.
        variant: name in `VARIANTS`.
        seed: of the drawings.
        drawings: of each digit; all digits once, then all once more, so that the first are those of `drawings` 1.

    Attributes:
        entropy: with an index, what its drawing (of one size and variant) follows from.
    """

    def __init__(
        self, split: str = "train", size: int = 32, variant: str = "placed", seed: int = 0, drawings: int = 1
    ) -> None:
        self.variant = digit_variant(variant)
        self.glyphs, labels = load_glyphs(split)
        self.labels = np.tile(labels, drawings)
        self.classes = [str(digit) for digit in range(10)]
        self.size = size
        self.entropy = (seed, SPLITS.index(split))
        self._drawn: dict[int, NDArray[np.uint8]] = {}  # a kilobyte each at 32 px; drawing one anew takes .2 ms

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[PIL.Image.Image, int]:
        position = range(len(self))[index]  # negative indices count from the end, others raise IndexError
        if position not in self._drawn:
            rng = np.random.default_rng((*self.entropy, position))
            glyph = position % len(self.glyphs)
            self._drawn[position] = render_digits(self.glyphs[glyph : glyph + 1], self.size, self.variant, rng)[0]
        return PIL.Image.fromarray(self._drawn[position]).convert("RGB"), int(self.labels[position])
