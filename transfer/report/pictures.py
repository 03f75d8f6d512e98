"""Pictures as data URIs, small enough that the whole page stays below a few megabytes."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from transfer.report.runs import Picture

#: All pictures of a page together, in bytes of base64 text.
BUDGET = 2_500_000

#: The longest side of a picture on the page, in pixels.
LONGEST = 480

#: File names begin with what the picture was chosen for; other names stand under "detections".
KINDS = ("best", "worst", "random")


@dataclass(frozen=True)
class Scene:
    """The same scene as several runs saw it: ``shots`` holds (run, data URI)."""

    kind: str
    name: str
    shots: tuple[tuple[str, str], ...]


def scenes(pictures: Sequence[Picture], notices: list[str]) -> list[Scene]:
    """Pictures grouped by name, runs side by side; what is unreadable or beyond the budget goes to ``notices``."""
    groups: dict[str, list[Picture]] = {}
    for picture in pictures:
        groups.setdefault(picture.name, []).append(picture)
    found: list[Scene] = []
    spent = left_out = 0
    for name, same in sorted(groups.items(), key=lambda item: (_rank(item[0]), item[0])):
        shots = []
        for picture in same:
            uri = data_uri(picture.path, notices)
            if uri is None:
                continue
            if spent + len(uri) > BUDGET:
                left_out += 1
                continue
            spent += len(uri)
            shots.append((picture.run, uri))
        if shots:
            found.append(Scene(_kind(name), name, tuple(shots)))
    if left_out:
        notices.append(f"{left_out} picture(s) left out: the page holds at most {BUDGET / 1e6:.1f} MB of pictures")
    return found


def _kind(name: str) -> str:
    return next((kind for kind in KINDS if name.lower().startswith(kind)), "detections")


def _rank(name: str) -> int:
    kind = _kind(name)
    return KINDS.index(kind) if kind in KINDS else len(KINDS)


def data_uri(path: Path, notices: list[str]) -> str | None:
    """The picture as a ``data:`` URI, at most LONGEST pixels; None with a notice where it cannot be read."""
    try:
        with Image.open(path) as image:
            picture = image.convert("RGB")
    except FileNotFoundError:
        notices.append(f"{path}: picture missing")
        return None
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
        notices.append(f"{path}: not a readable picture ({error})")
        return None
    picture.thumbnail((LONGEST, LONGEST), Image.Resampling.LANCZOS)
    png, jpeg = io.BytesIO(), io.BytesIO()
    picture.save(png, "PNG", optimize=True)
    picture.save(jpeg, "JPEG", quality=88)
    kind, data = min((("png", png), ("jpeg", jpeg)), key=lambda pair: pair[1].tell())
    return f"data:image/{kind};base64,{base64.b64encode(data.getvalue()).decode('ascii')}"
