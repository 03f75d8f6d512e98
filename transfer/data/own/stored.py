"""Labels of images as they are stored, turned as EXIF turns the images.

Some tools show a photograph as its pixels lie in the file and write boxes of that; every reader here turns it upright.
Only a label whose width and height are swapped shows it: of square images, and of those upside down, nothing does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from momentum_transfer.core.errors import InputError, counted
from momentum_transfer.transfer.data.own.labelled import Box, LabelledImage, LabelledSet
from momentum_transfer.transfer.data.run_lengths import decode_mask, encode_mask

Point = tuple[float, float]
#: EXIF's orientation -> where the point (x, y) of a stored image of w x h comes to lie.
_POINTS: dict[int, Callable[[float, float, int, int], Point]] = {
    5: lambda x, y, w, h: (y, x),
    6: lambda x, y, w, h: (h - y, x),
    7: lambda x, y, w, h: (h - y, w - x),
    8: lambda x, y, w, h: (y, w - x),
}
#: The same of an array [h, w].
_MASKS: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    5: lambda mask: mask.T,
    6: lambda mask: mask.T[:, ::-1],
    7: lambda mask: mask.T[::-1, ::-1],
    8: lambda mask: mask.T[::-1],
}


def all_upright(sets: Sequence[LabelledSet]) -> list[LabelledSet]:
    """The sets with the labels of every stored image turned; how many were is noted."""
    return [_upright_set(one) for one in sets]


def _upright_set(one: LabelledSet) -> LabelledSet:
    lying = [image for image in one.images if image.orientation != 1]
    if not lying:
        return one
    said = (
        f"{counted(len(lying), 'image')} labelled as stored, first {lying[0].file.name}: boxes are turned as EXIF says"
    )
    return replace(one, images=tuple(upright(image) for image in one.images), notes=(*one.notes, said))


def upright(image: LabelledImage) -> LabelledImage:
    """An image with its size and objects as they are once the image is turned."""
    if image.orientation == 1:
        return image
    objects = tuple(_turned(box, image) for box in image.objects)
    return replace(image, width=image.height, height=image.width, objects=objects, orientation=1)


def _turned(box: Box, image: LabelledImage) -> Box:
    def point(x: float, y: float) -> Point:
        return _POINTS[image.orientation](x, y, image.width, image.height)

    x, y, across, down = box.box
    (x1, y1), (x2, y2) = point(x, y), point(x + across, y + down)
    corners = (min(x1, x2), min(y1, y2), down, across)
    return replace(box, box=corners, segmentation=_turned_mask(box, image, point))


def _turned_mask(box: Box, image: LabelledImage, point: Callable[[float, float], Point]) -> Any:
    found = box.segmentation
    try:
        if isinstance(found, dict):
            return encode_mask(_MASKS[image.orientation](decode_mask(found, image.height, image.width)))
        if found is None:
            return None
        return [[value for x, y in zip(part[::2], part[1::2], strict=True) for value in point(x, y)] for part in found]
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise InputError(
            f"expected COCO's polygons or run lengths in {box.where}, found: {error}; correct it"
        ) from error
