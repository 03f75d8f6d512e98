"""The drawn digits are what their variant says."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import load_digits

from momentum_transfer.core.errors import InputError
from momentum_transfer.images.digits import (
    VARIANTS,
    DigitImages,
    DigitVariant,
    digit_variant,
    draw_strokes,
    load_glyphs,
    place_glyphs,
    render_digits,
    split_indices,
    uneven_backgrounds,
)


def test_splits_are_disjoint_complete_and_stratified():
    train, val = split_indices("train"), split_indices("val")
    assert sorted([*train, *val]) == list(range(1797))
    target = load_digits().target
    share = np.bincount(target[val]) / np.bincount(target)
    assert np.abs(share - 0.3).max() < 0.01


def test_glyphs_are_the_digits_of_their_split():
    glyphs, labels = load_glyphs("val")
    bundle, chosen = load_digits(), split_indices("val")
    np.testing.assert_array_equal(glyphs * 16, bundle.images[chosen])
    np.testing.assert_array_equal(labels, bundle.target[chosen])


def test_placed_glyph_covers_its_square_and_nothing_else():
    square = tuple(np.array([v], np.float32) for v in (4, 10, 16, 16))
    coverage = place_glyphs(np.ones((1, 8, 8), np.float32), square, size=32)
    inside = np.zeros((32, 32), bool)
    inside[4:20, 10:26] = True
    assert (coverage[0][inside] > 0).mean() > 0.9  # the enlarged corners fade
    # The fading edge reaches half a source pixel (one pixel here) beyond the square.
    grown = np.zeros((32, 32), bool)
    grown[3:21, 9:27] = True
    assert coverage[0][~grown].max() == 0
    assert coverage[0][8:16, 14:22].min() == 1


@pytest.mark.parametrize("slant", [None, 0.0, 0.4, -0.3])
def test_placement_interpolates_as_a_naive_loop_does(slant: float | None):
    rng = np.random.default_rng(0)
    glyph = rng.random((8, 8), dtype=np.float32)
    top, left, height, width, size = 2.3, 5.1, 20.7, 17.2, 32
    naive = np.zeros((size, size))
    for y in range(size):
        for x in range(size):
            shifted = left + (slant or 0) * (top + height / 2 - y - 0.5)
            v, u = (y + 0.5 - top) * 8 / height - 0.5, (x + 0.5 - shifted) * 8 / width - 0.5
            for j in range(8):
                for i in range(8):
                    naive[y, x] += max(0, 1 - abs(v - j)) * max(0, 1 - abs(u - i)) * glyph[j, i]
    naive = np.clip(naive * 1.6 - 0.2, 0, 1)
    place = tuple(np.array([value], np.float32) for value in (top, left, height, width))
    leaning = None if slant is None else np.array([slant], np.float32)
    placed = place_glyphs(glyph[None], place, size, leaning, thinning=0.2)
    np.testing.assert_allclose(placed[0], naive, atol=2e-5)


def test_backgrounds_have_the_asked_level_and_unevenness():
    level = np.full(400, 0.3, np.float32)
    drawn = uneven_backgrounds(level, 0.05, 32, np.random.default_rng(0))
    assert drawn.mean() == pytest.approx(0.3, abs=0.005)
    assert drawn[:, 0, 0].std() == pytest.approx(0.05, rel=0.15)  # a corner is a node of the grid


def test_strokes_cover_their_length_times_width():
    canvas = np.zeros((300, 64, 64), np.float32)
    draw_strokes(canvas, np.ones((300, 1), np.float32), 3.0, (12.0, 12.0), np.random.default_rng(0))
    whole = [
        drawn.sum()
        for drawn in canvas
        if not (drawn[0].any() or drawn[-1].any() or drawn[:, 0].any() or drawn[:, -1].any())
    ]
    # A capsule: the rectangle and two half discs.
    assert np.mean(whole) == pytest.approx(12 * 3 + np.pi * 1.5**2, rel=0.05)


@pytest.mark.parametrize("name", VARIANTS)
def test_digits_are_lighter_than_their_background_by_the_contrast(name: str):
    variant = VARIANTS[name]
    glyphs = load_glyphs("train")[0][:200]
    drawn = render_digits(glyphs, 64, variant, np.random.default_rng(0)) / 255
    for image in drawn:
        background = np.median(image)
        assert variant.background[0] - 0.15 < background < variant.background[1] + 0.15
        assert np.quantile(image, 0.98) - background > variant.contrast - 0.2


def test_rendering_depends_on_the_generator_alone():
    glyphs = load_glyphs("train")[0][:3]
    first, second, other = (render_digits(glyphs, 32, VARIANTS["placed"], np.random.default_rng(s)) for s in (1, 1, 2))
    np.testing.assert_array_equal(first, second)
    assert (first != other).mean() > 0.5


def test_evaluation_image_depends_on_seed_split_and_index_alone():
    one, two = DigitImages("val", seed=3), DigitImages("val", seed=3)
    _ = one[5], one[1]
    image, label = one[7]
    assert np.array_equal(np.asarray(image), np.asarray(two[7][0]))
    assert image.size == (32, 32)
    assert image.mode == "RGB"
    assert label == one.labels[7]
    assert not np.array_equal(np.asarray(image), np.asarray(DigitImages("val", seed=4)[7][0]))


def test_indexing_beyond_the_end_raises_so_that_iteration_stops():
    data = DigitImages("val")
    with pytest.raises(IndexError):
        data[len(data)]
    assert np.array_equal(np.asarray(data[-1][0]), np.asarray(data[len(data) - 1][0]))


def test_unknown_split_and_variant_are_named():
    with pytest.raises(InputError, match="split among train, val, found 'test'"):
        split_indices("test")
    with pytest.raises(InputError, match="variant among placed, written, strokes, found 'plain'"):
        digit_variant("plain")


def test_several_renderings_begin_with_the_only_one_and_are_all_different():
    one, three = DigitImages("val", 16, seed=3), DigitImages("val", 16, seed=3, renderings=3)
    assert len(three) == 3 * len(one)
    assert three.labels.tolist() == 3 * one.labels.tolist()
    for index in (0, 7, len(one) - 1):
        drawn = [np.asarray(three[index + len(one) * again][0]) for again in range(3)]
        assert np.array_equal(drawn[0], np.asarray(one[index][0]))
        assert not np.array_equal(drawn[0], drawn[1])
        assert not np.array_equal(drawn[1], drawn[2])
        assert three[index + len(one)][1] == one[index][1]
    again = three[5][0]
    assert np.array_equal(np.asarray(again), np.asarray(three[5][0])), "a drawing that was kept is the same drawing"


def bounds(image: np.ndarray, over: float = 0.5) -> tuple[int, int]:
    """Height and width in pixels of what is brighter than ``over``."""
    rows, columns = (np.flatnonzero((image > over).any(axis)) for axis in (1, 0))
    return rows[-1] - rows[0] + 1, columns[-1] - columns[0] + 1


def squares(variant: DigitVariant, count: int = 600, size: int = 64) -> np.ndarray:
    """Full glyphs, so that what is drawn is the rectangle that holds a digit, without background and noise."""
    plain = replace(variant, background=(0.0, 0.0), contrast=1.0, unevenness=0.0, noise=0.0)
    return render_digits(np.ones((count, 8, 8), np.float32), size, plain, np.random.default_rng(0)) / 255


def test_digits_have_the_heights_and_proportions_of_their_variant_and_lie_inside_the_image():
    placed = np.array([bounds(image) for image in squares(VARIANTS["placed"])]) / 64
    assert (placed[:, 0] == placed[:, 1]).mean() > 0.3  # squares, that begin between two pixels
    assert np.abs(placed[:, 0] - placed[:, 1]).max() < 2.5 / 64
    for quantile, height in ((0.01, 0.60), (0.5, 0.725), (0.99, 0.85)):
        assert np.quantile(placed[:, 0], quantile) == pytest.approx(height, abs=0.03)
    stretched = squares(replace(DigitVariant(), aspect=0.5, side=(0.4, 0.4)))
    ratios = np.log([width / height for height, width in map(bounds, stretched)])
    assert np.quantile(ratios, [0.01, 0.5, 0.99]) == pytest.approx([-np.log(1.5), 0, np.log(1.5)], abs=0.09)
    rows, columns = (np.array([np.flatnonzero((image > 0.5).any(axis))[[0, -1]] for image in stretched])
                     for axis in (1, 0))  # fmt: skip
    for ends in (rows, columns):  # anywhere, whole
        assert ends[:, 0].min() <= 2
        assert ends[:, 1].max() >= 61
        assert (ends[:, 0] + ends[:, 1]).mean() / 2 == pytest.approx(31.5, abs=1.5)


def test_slanted_digits_lean_to_either_side_by_at_most_the_slant():
    drawn = squares(replace(DigitVariant(), slant=0.4, side=(0.5, 0.5)))
    middles = []
    for image in drawn:
        rows = np.flatnonzero((image > 0.5).sum(1) > 10)[[4, -5]]
        centres = [np.flatnonzero(image[row] > 0.5).mean() for row in rows]
        middles.append((centres[0] - centres[1]) / (rows[1] - rows[0]))
    assert np.quantile(middles, [0.02, 0.5, 0.98]) == pytest.approx([-0.384, 0, 0.384], abs=0.06)


def test_luminances_and_thinning_spread_over_the_ranges_of_their_variant():
    variant = replace(DigitVariant(), noise=0.0, unevenness=0.0, contrast=0.3, side=(0.4, 0.4))
    drawn = render_digits(np.ones((600, 8, 8), np.float32), 64, variant, np.random.default_rng(0)) / 255
    level, digit = drawn.min((1, 2)), drawn.max((1, 2))
    assert np.quantile(level, [0.0, 0.5, 1.0]) == pytest.approx([0.05, 0.225, 0.40], abs=0.02)
    above = (digit - level - 0.3) / (1 - level - 0.3)  # from the least contrast to white
    assert np.quantile(above, [0.0, 0.5, 1.0]) == pytest.approx([0, 0.5, 1], abs=0.05)
    half = np.full((600, 8, 8), 0.5, np.float32)
    plain = {"noise": 0.0, "unevenness": 0.0, "background": (0.0, 0.0), "contrast": 1.0, "side": (0.4, 0.4)}
    thin = render_digits(half, 64, replace(DigitVariant(), thinning=(0.1, 0.5), **plain), np.random.default_rng(0))
    assert np.quantile(thin.max((1, 2)) / 255, [0.0, 0.5, 1.0]) == pytest.approx([0.3, 0.5, 0.7], abs=0.02)


def test_fragments_of_strokes_are_lighter_than_their_background_by_their_contrast():
    variant = replace(VARIANTS["strokes"], noise=0.0, unevenness=0.0, background=(0.2, 0.2))
    drawn = render_digits(np.zeros((600, 8, 8), np.float32), 56, variant, np.random.default_rng(0)) / 255
    assert drawn.min() == pytest.approx(0.2, abs=0.003)
    lift = drawn.max((1, 2)) - 0.2  # the lighter of two strokes
    assert 0.1 < np.quantile(lift, 0.02) < np.quantile(lift, 0.98) < 0.302
    assert np.median(lift) == pytest.approx(0.1 + 0.2 * 0.5**0.5, abs=0.02)
    # two capsules as thick as a 14th of the image and a sixth to a third of it long, some of them cut by its border
    whole = 2 * (56 / 4 * 56 / 14 + np.pi * (56 / 28) ** 2)
    covered = (drawn > 0.25).sum((1, 2))
    assert 0.75 * whole < covered.mean() < whole


def test_noise_has_its_standard_deviation_in_every_pixel():
    variant = replace(DigitVariant(), noise=0.05, unevenness=0.0, background=(0.3, 0.3))
    drawn = render_digits(np.zeros((200, 8, 8), np.float32), 16, variant, np.random.default_rng(0)) / 255
    assert drawn.std() == pytest.approx(0.05, rel=0.03)
    assert drawn.std(axis=0).min() > 0.035


def test_several_generators_draw_what_each_would_draw_alone():
    glyphs = load_glyphs("train")[0][:6]
    together = render_digits(glyphs, 24, VARIANTS["strokes"], *map(np.random.default_rng, (5, 6, 7)))
    alone = [render_digits(glyphs[2 * n : 2 * n + 2], 24, VARIANTS["strokes"], np.random.default_rng(5 + n))
             for n in range(3)]  # fmt: skip
    np.testing.assert_array_equal(together, np.concatenate(alone))


@pytest.mark.parametrize("seed", range(6))
def test_the_first_eight_random_numbers_of_an_image_are_its_light_size_and_place(seed: int):
    """Whoever changes this order changes every cached feature: then `DigitVariant.drawing` has to grow."""
    variant = DigitVariant(side=(0.3, 0.5), aspect=0.6, slant=0.0, contrast=0.4, unevenness=0.0, noise=0.0)
    drawn = render_digits(np.ones((1, 8, 8), np.float32), 100, variant, np.random.default_rng(seed))[0] / 255
    dark, light, tall, down, right, wide, _, _ = np.random.default_rng(seed).random((8, 1), dtype=np.float32)[:, 0]
    level = 0.05 + 0.35 * dark
    assert drawn.min() == pytest.approx(level, abs=0.003)
    assert drawn.max() == pytest.approx(level + 0.4 + (0.6 - level) * light, abs=0.003)
    height = 100 * (0.3 + 0.2 * tall)
    width = height * 1.6 ** (2 * wide - 1)
    inside = drawn > (drawn.min() + drawn.max()) / 2
    rows, columns = np.flatnonzero(inside.any(1)), np.flatnonzero(inside.any(0))
    assert (rows[0] + rows[-1] + 1) / 2 == pytest.approx(down * (100 - height) + height / 2, abs=1)
    assert (columns[0] + columns[-1] + 1) / 2 == pytest.approx(right * (100 - width) + width / 2, abs=1)
    assert len(rows) == pytest.approx(height, abs=3)
    assert len(columns) == pytest.approx(width, abs=3)


def test_backgrounds_are_interpolated_between_16_nodes_from_border_to_border():
    level = np.array([0.2, 0.7], np.float32)
    drawn = uneven_backgrounds(level, 0.1, 11, np.random.default_rng(4))
    nodes = 0.1 * np.random.default_rng(4).standard_normal((2, 4, 4), dtype=np.float32)
    places = np.linspace(0, 3, 11)
    for image, grid, own in zip(drawn, nodes, level, strict=True):
        rows = np.stack([np.interp(places, range(4), column) for column in grid.T], axis=1)
        naive = np.stack([np.interp(places, range(4), row) for row in rows]) + own
        np.testing.assert_allclose(image, naive, atol=1e-6)


def test_every_pixel_is_covered_by_its_distance_to_a_stroke():
    """One of the fragments lies over the other; the random numbers are place, angle and length, in this order."""
    size, width, shortest, longest = 24, 2.6, 4.0, 9.0
    canvas, luminance = np.full((2, size, size), 0.3, np.float32), np.array([[0.9, 0.5], [0.1, 1.0]], np.float32)
    draw_strokes(canvas, luminance, width, (shortest, longest), np.random.default_rng(3))
    rng = np.random.default_rng(3)
    centres, angles, lengths = (rng.random((2, 2, *more), dtype=np.float32) for more in ((2,), (), ()))
    for n in range(2):
        naive = np.full((size, size), 0.3)
        for k in range(2):
            middle, angle = size * centres[n, k], np.pi * angles[n, k]
            half = (shortest + (longest - shortest) * lengths[n, k]) / 2
            along = np.array([np.sin(angle), np.cos(angle)])
            for y in range(size):
                for x in range(size):
                    there = np.array([y + 0.5, x + 0.5]) - middle
                    nearest = np.clip(there @ along, -half, half) * along
                    covered = np.clip(width / 2 + 0.5 - np.linalg.norm(there - nearest), 0, 1)
                    naive[y, x] += covered * (luminance[n, k] - naive[y, x])
        np.testing.assert_allclose(canvas[n], naive, atol=1e-5)
