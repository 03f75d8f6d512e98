"""Pictures as data URIs, small enough that the whole page stays below a few megabytes."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from momentum_transfer.core.errors import counted
from momentum_transfer.images.reading import UnreadableImage, opened
from momentum_transfer.report.runs import Picture

#: All pictures of a page together, in bytes of base64 text.
BUDGET = 2_500_000

#: The longest side of a picture on the page, in pixels; one as wide as two (annotated beside detected) has twice that.
LONGEST = 480
_PAIR = 1.6

#: File names of pictures that were chosen for one detector begin so; the others show the same scenes for all.
CHOSEN = ("best_", "worst_")

_HEADINGS = {
    "": "random images, the same for all",
    "best_": "the best of each (F1 at IoU 0.5 on the image)",
    "worst_": "the worst of each",
}


@dataclass(frozen=True)
class Shot:
    """One picture on the page."""

    caption: str
    alt: str
    uri: str
    pair: bool = False


@dataclass(frozen=True)
class Gallery:
    """Pictures of one detector (``place``) under one heading; a row holds one picture of each run."""

    place: str
    title: str
    rows: tuple[tuple[Shot, ...], ...]

    @property
    def wide(self) -> bool:
        """Whether a row needs the whole width of the page: several pictures as wide as two."""
        return any(len(row) > 1 and any(shot.pair for shot in row) for row in self.rows)


def galleries(pictures: Sequence[Picture], notices: list[str]) -> list[Gallery]:
    """Pictures by place (the detector) and by what they were chosen for; runs stand side by side.

    What is unreadable or beyond the budget goes to ``notices``.
    """
    runs = list(dict.fromkeys(picture.run for picture in pictures))
    spent = left_out = 0
    found: dict[tuple[str, str], dict[str, dict[str, Shot]]] = {}
    for picture in sorted(pictures, key=lambda p: (p.place, _order(p.name), p.name, runs.index(p.run))):
        made = data_uri(picture.path, notices)
        if made is None:
            continue
        uri, pair = made
        if spent + len(uri) > BUDGET:
            left_out += 1
            continue
        spent += len(uri)
        kind = _kind(picture.name)
        rows = found.setdefault((picture.place, kind), {})
        scene = picture.name.removeprefix(kind)
        # Each run has its own best images: its n-th stands beside the others' n-th.
        row = str(sum(picture.run in shots for shots in rows.values())) if kind else scene
        shot = Shot(f"{picture.run} · {scene}", f"{picture.place}: detections of {picture.run} on {scene}", uri, pair)
        rows.setdefault(row, {})[picture.run] = shot
    if left_out:
        notices.append(f"{counted(left_out, 'image')} left out: the page holds at most {BUDGET / 1e6:.1f} MB of images")
    shown = []
    for (place, kind), rows in found.items():
        in_order = tuple(tuple(shots[run] for run in runs if run in shots) for shots in rows.values())
        shown.append(Gallery("detector" if place == "." else place, _HEADINGS[kind], in_order))
    return shown


def _is_pair(size: tuple[int, int]) -> bool:
    return size[0] >= _PAIR * size[1]


def _kind(name: str) -> str:
    return next((kind for kind in CHOSEN if name.startswith(kind)), "")


def _order(name: str) -> int:
    return ("", *CHOSEN).index(_kind(name))


def data_uri(path: Path, notices: list[str]) -> tuple[str, bool] | None:
    """The picture as a ``data:`` URI, small enough, and whether it is as wide as two; None with a notice where it
    cannot be read."""
    if not path.exists():
        notices.append(f"{path}: picture missing")
        return None
    try:
        with opened(path, ("JPEG", "PNG")) as image:
            picture = image.convert("RGB")
    except UnreadableImage as error:
        notices.append(str(error))
        return None
    longest = 2 * LONGEST if _is_pair(picture.size) else LONGEST
    picture.thumbnail((longest, LONGEST), Image.Resampling.LANCZOS)
    kind, data = _smallest(picture)
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}", _is_pair(picture.size)


def _smallest(picture: Image.Image) -> tuple[str, bytes]:
    """Format and file. PNG's best compression, which takes long, is tried where its quickest comes near to JPEG."""
    made: dict[str, io.BytesIO] = {}
    for kind, options in (("jpeg", {"quality": 88}), ("png", {"compress_level": 1})):
        made[kind] = io.BytesIO()
        picture.save(made[kind], kind, **options)
    if made["png"].tell() < 2 * made["jpeg"].tell():
        made["png"] = io.BytesIO()
        picture.save(made["png"], "png", optimize=True)
    kind = min(("png", "jpeg"), key=lambda name: made[name].tell())
    return kind, made[kind].getvalue()
