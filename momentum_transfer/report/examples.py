"""Example images of detections as data URIs, small enough that the whole page stays below a few megabytes."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from momentum_transfer.core.errors import counted
from momentum_transfer.images.reading import UnreadableImage, opened
from momentum_transfer.report.read_inputs import Example

#: All images of a page together, in bytes of base64 text.
_BUDGET = 2_500_000

#: The longest side of an image on the page, in pixels; one as wide as two (annotated beside detected) has twice that.
_LONGEST, _PAIR = 480, 1.6

#: By the beginning of a file name what its image was chosen for; "" shows the same scenes for all detectors.
_HEADINGS = {
    "": "random images, the same for all",
    "best_": "the best of each (F1 at IoU 0.5 on the image)",
    "worst_": "the worst of each",
    "teacher_": "what the teacher labels, beside the truth where that is known",
}


@dataclass(frozen=True)
class Shot:
    """One image on the page; a ``pair`` is as wide as two."""

    caption: str
    alt: str
    uri: str
    pair: bool = False


@dataclass(frozen=True)
class Gallery:
    """Images of one detector (``place``) under one heading; a row holds one image of each run."""

    place: str
    title: str
    rows: tuple[tuple[Shot, ...], ...]

    @property
    def wide(self) -> bool:
        """Whether a row needs the whole width of the page: several images as wide as two."""
        return any(len(row) > 1 and any(shot.pair for shot in row) for row in self.rows)


def galleries(examples: Sequence[Example], notices: list[str]) -> list[Gallery]:
    """Images by place (the detector) and by what they were chosen for; runs stand side by side.

    What is unreadable or beyond the budget goes to ``notices``.
    """
    runs = list(dict.fromkeys(example.run for example in examples))
    kinds = list(_HEADINGS)

    def kind_of(name: str) -> str:
        return next((kind for kind in kinds[1:] if name.startswith(kind)), "")

    spent = left_out = 0
    found: dict[tuple[str, str], dict[str, dict[str, Shot]]] = {}
    for one in sorted(examples, key=lambda e: (e.place, kinds.index(kind_of(e.name)), e.name, runs.index(e.run))):
        if (image := data_uri(one.path, notices)) is None:
            continue
        uri, pair = image
        if spent + len(uri) > _BUDGET:
            left_out += 1
            continue
        spent += len(uri)
        kind = kind_of(one.name)
        rows = found.setdefault((one.place, kind), {})
        scene = one.name.removeprefix(kind)
        # Each run has its own best images: its n-th stands beside the others' n-th.
        row = str(sum(one.run in shots for shots in rows.values())) if kind else scene
        shot = Shot(f"{one.run} · {scene}", f"{one.place}: detections of {one.run} on {scene}", uri, pair)
        rows.setdefault(row, {})[one.run] = shot
    if left_out:
        budget = f"{_BUDGET / 1e6:.1f} MB"
        notices.append(f"{counted(left_out, 'image')} left out: the page holds at most {budget} of images")
    shown = []
    for (place, kind), rows in found.items():
        in_order = tuple(tuple(shots[run] for run in runs if run in shots) for shots in rows.values())
        shown.append(Gallery("detector" if place == "." else place, _HEADINGS[kind], in_order))
    return shown


def data_uri(path: Path, notices: list[str]) -> tuple[str, bool] | None:
    """The image as a small ``data:`` URI, and whether it is as wide as two; None with a notice if unreadable."""
    if not path.exists():
        notices.append(f"{path}: image missing")
        return None
    try:
        with opened(path, ("JPEG", "PNG")) as file:
            image = file.convert("RGB")
    except UnreadableImage as error:
        notices.append(str(error))
        return None
    pair = image.width >= _PAIR * image.height
    image.thumbnail((2 * _LONGEST if pair else _LONGEST, _LONGEST), Image.Resampling.LANCZOS)
    kind, data = _smallest(image)
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}", pair


def _smallest(image: Image.Image) -> tuple[str, bytes]:
    """Format and file. PNG's best compression, which takes long, is tried where its quickest comes near to JPEG."""

    def encoded(kind: str, **options: int | bool) -> bytes:
        file = io.BytesIO()
        image.save(file, kind, **options)
        return file.getvalue()

    jpeg, png = encoded("jpeg", quality=88), encoded("png", compress_level=1)
    if len(png) < 2 * len(jpeg):
        png = encoded("png", optimize=True)
    return ("png", png) if len(png) <= len(jpeg) else ("jpeg", jpeg)
