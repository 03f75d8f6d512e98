"""The embedded images: handwritten digits of scikit-learn, rendered on uneven backgrounds.

`sklearn.datasets.load_digits` (1797 images of 8x8, UCI "Optical Recognition of Handwritten Digits") is real handwriting
without a download, but too easy as it is: a random network separates the ten classes almost as well as a trained one.
A `DigitVariant` says how a digit is rendered instead: at a random place and scale, in a random light grey on a random
dark and slightly uneven grey, with pixel noise and, in one variant, fragments of strokes. Each view of a digit is a new
rendering, so that two views have the handwriting in common and nothing else.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from momentum_transfer.core.errors import InputError
from momentum_transfer.images.augmentations import JoinedGenerators

_GLYPH_SIDE = 8  # pixels of a scikit-learn digit
_HELD_OUT = 0.3  # fraction of every class that is never trained on
SPLITS = ("train", "val")

Array = NDArray[np.float32]
Bytes = NDArray[np.uint8]
_Generators = np.random.Generator | JoinedGenerators
#: Top, left, height and width, each [N].
Rectangles = tuple[Array, Array, Array, Array]


@dataclass(frozen=True)
class DigitVariant:
    """How digits are rendered. Luminance runs from 0 (black) to 1 (white); lengths are fractions of the image side."""

    side: tuple[float, float] = (0.60, 0.85)  #: range of the height of the rectangle that holds the digit
    aspect: float = 0.0  #: its width over its height lies in 1/(1 + aspect) .. 1 + aspect
    slant: float = 0.0  #: largest shift of a row to the side, per row above or below the middle
    thinning: tuple[float, float] = (0.3, 0.3)  #: range of what is taken off the coverage: more makes thinner strokes
    background: tuple[float, float] = (0.05, 0.40)  #: range of the background's mean
    contrast: float = 0.5  #: least difference between the digit and the background's mean
    unevenness: float = 0.05  #: standard deviation of the background's smooth part, an enlarged random 4x4 grid
    noise: float = 0.05  #: standard deviation of the noise added to each pixel
    strokes: int = 0  #: number of fragments of strokes behind the digit
    stroke_contrast: tuple[float, float] = (0.1, 0.3)  #: range of their luminance over the background's mean
    drawing: int = 2  #: increased when `render_digits` changes what it renders, so that caches of features notice


VARIANTS = {
    "placed": DigitVariant(),
    "written": DigitVariant(aspect=0.2, slant=0.35, thinning=(0.15, 0.45)),
    "strokes": DigitVariant(strokes=2),
}


def digit_variant(name: str) -> DigitVariant:
    """The variant of that name; InputError when there is none."""
    if name not in VARIANTS:
        raise InputError(f"expected a digit variant among {', '.join(VARIANTS)}, found {name!r}")
    return VARIANTS[name]


@lru_cache(maxsize=1)
def _bundle() -> tuple[Array, NDArray[np.int64]]:
    from sklearn.datasets import load_digits  # takes a second, and other data do not need it

    digits = load_digits()
    return (digits.images / 16.0).astype(np.float32), digits.target.astype(np.int64)


def split_indices(split: str) -> NDArray[np.int64]:
    """Ascending indices into scikit-learn's digits of a split: "train" (70 %) or "val" (30 %), stratified by class."""
    if split not in SPLITS:
        raise InputError(f"expected a digits split among {', '.join(SPLITS)}, found {split!r}")
    from sklearn.model_selection import train_test_split

    labels = _bundle()[1]
    every = np.arange(len(labels))
    train, val = train_test_split(every, test_size=_HELD_OUT, stratify=labels, random_state=0, shuffle=True)
    return np.sort(train if split == "train" else val).astype(np.int64)


def load_glyphs(split: str) -> tuple[Array, NDArray[np.int64]]:
    """The digits of a split: coverage in 0..1 [N, 8, 8] and labels [N]."""
    images, labels = _bundle()
    chosen = split_indices(split)
    return images[chosen], labels[chosen]


def _placement(start: Array, length: Array, size: int) -> Array:
    """Linear interpolation [N…, size, 8] that puts 8 samples on [start, start + length) of `size` pixels; both [N…]."""
    centres = np.arange(size, dtype=np.float32) + np.float32(0.5)
    position = (centres - start[..., None]) * (_GLYPH_SIDE / length)[..., None] - np.float32(0.5)
    distance = np.abs(position[..., None] - np.arange(_GLYPH_SIDE, dtype=np.float32))
    return np.maximum(np.float32(1) - distance, np.float32(0))


def place_glyphs(
    glyphs: Array, rectangles: Rectangles, size: int, slant: Array | None = None, thinning: Array | float = 0.3
) -> Array:
    """Enlarge digits, coverage in 0..1 [N, 8, 8], and put them on empty canvases of ``size`` pixels.

    ``rectangles`` may begin between two pixels; ``slant`` [N] is the shift to the right of each row, per row above the
    middle of the rectangle; ``thinning`` (or [N]) is taken off the coverage. Returns the coverage in 0..1,
    [N, size, size], with a raised slope at the edges, since 8x8 pixels enlarge to a blur.
    """
    top, left, height, width = rectangles
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


def uneven_backgrounds(level: Array, amplitude: float, size: int, rng: _Generators) -> Array:
    """Smooth backgrounds [N, size, size] of mean luminance `level` [N] and standard deviation about `amplitude`."""
    enlarge = _enlarge(4, size)
    grid = rng.standard_normal((len(level), 4, 4), dtype=np.float32) * np.float32(amplitude)
    return enlarge @ grid @ enlarge.T + level[:, None, None]


def draw_strokes(canvas: Array, luminance: Array, width: float, length: tuple[float, float], rng: _Generators) -> None:
    """Draw K fragments of strokes of ``luminance`` [N, K] on each canvas [N, size, size], in place; sizes in pixels."""
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


def render_digits(glyphs: Array, size: int, variant: DigitVariant, *generators: np.random.Generator) -> Bytes:
    """Render digits, coverage in 0..1 [N, 8, 8], each with its own place, scale, luminance, background and noise.

    The ``generators`` are the only source of randomness. Of G the first renders the first N / G images, and so on, as
    it would alone: one call is several times faster than G. Returns grey images [N, size, size], 0..255.
    """
    count, rng = len(glyphs), JoinedGenerators(generators)
    numbers = rng.random((8, count), dtype=np.float32, axis=1)
    level = variant.background[0] + (variant.background[1] - variant.background[0]) * numbers[0]
    lightest = level + variant.contrast
    luminance = lightest + (1 - lightest) * numbers[1]
    side = (variant.side[0] + (variant.side[1] - variant.side[0]) * numbers[2]) * size
    canvas = uneven_backgrounds(level, variant.unevenness, size, rng)
    if variant.strokes:
        low, high = variant.stroke_contrast
        lift = low + (high - low) * rng.random((count, variant.strokes), dtype=np.float32)
        draw_strokes(canvas, level[:, None] + lift, size / 14, (size / 6, size / 3), rng)
    width = side * np.exp((2 * numbers[5] - 1) * np.float32(np.log1p(variant.aspect)))
    slant = (2 * numbers[6] - 1) * np.float32(variant.slant) if variant.slant else None
    thinning = variant.thinning[0] + (variant.thinning[1] - variant.thinning[0]) * numbers[7]
    rectangles = numbers[3] * (size - side), numbers[4] * (size - width), side, width
    coverage = place_glyphs(glyphs, rectangles, size, slant, thinning)
    canvas += coverage * (luminance[:, None, None] - canvas)
    canvas += rng.standard_normal(canvas.shape, dtype=np.float32) * np.float32(variant.noise)
    return np.rint(np.clip(canvas, 0, 1) * 255).astype(np.uint8)


class DigitImages:
    """Fixed renderings of every digit of a split, one or several: `self[i] -> (PIL RGB image, int label)`.

    Image i depends on (seed, split, i) alone, so that features can be cached and compared. With several ``renderings``
    all digits come once, then all once more, so that the first are those of one. ``entropy`` is the rest of what an
    image's rendering (of one size and variant) follows from besides its index.
    """

    def __init__(
        self, split: str = "train", size: int = 32, variant: str = "placed", seed: int = 0, renderings: int = 1
    ) -> None:
        self.variant = digit_variant(variant)
        self.glyphs, labels = load_glyphs(split)
        self.labels = np.tile(labels, renderings)
        self.classes = [str(digit) for digit in range(10)]
        self.size = size
        self.entropy = (seed, SPLITS.index(split))
        self._rendered: dict[int, NDArray[np.uint8]] = {}  # a kilobyte each at 32 px; rendering one takes .2 ms

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[PIL.Image.Image, int]:
        position = range(len(self))[index]  # negative indices count from the end, others raise IndexError
        if position not in self._rendered:
            rng = np.random.default_rng((*self.entropy, position))
            glyph = position % len(self.glyphs)
            self._rendered[position] = render_digits(self.glyphs[glyph : glyph + 1], self.size, self.variant, rng)[0]
        return PIL.Image.fromarray(self._rendered[position]).convert("RGB"), int(self.labels[position])
