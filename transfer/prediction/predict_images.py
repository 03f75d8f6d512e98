"""Predict on many photographs: read, run the detector, draw, keep; stopped commands go on where they were."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from momentum_transfer.core.errors import InputError, counted, one_line
from momentum_transfer.core.files import atomic_path
from momentum_transfer.core.log import ProgressLine, say, table, warn
from momentum_transfer.core.run_lock import alone
from momentum_transfer.core.untrusted import read_json
from momentum_transfer.transfer.data.overview import tinted
from momentum_transfer.transfer.detector_run import DetectorRun, Found
from momentum_transfer.transfer.prediction import outputs
from momentum_transfer.transfer.prediction.input_images import (
    InputImage,
    find_images,
    read_pixels,
    refuse_unreadable,
    unreadable,
)
from momentum_transfer.transfer.prediction.outputs import Store
from momentum_transfer.transfer.visuals import MIN_SCORE, draw

#: Images that are read while the detector is busy with others.
AHEAD = 4


@dataclass(frozen=True)
class Wanted:
    """What is asked of a prediction.

    threshold: detections of a lower score are left out everywhere; None: the JSON keeps all that the detector gives,
    and pictures and counts begin at 0.5. ids: name of an image to its id, from a COCO JSON; None: 1, 2, 3 …
    """

    threshold: float | None = None
    batch_size: int = 1
    visuals: bool = True
    skip_unreadable: bool = False
    ids: Mapping[str, int] | None = None

    @property
    def shown_from(self) -> float:
        """The lowest score in pictures and counts."""
        return MIN_SCORE if self.threshold is None else self.threshold


def predict(run: DetectorRun, images: Sequence[str | Path], out: Path, wanted: Wanted) -> list[Path]:
    """Predict on files and folders of images; the files of results written into ``out``.

    What ``out`` holds of the same detector and threshold is kept: images that are done are not done again, new ones are
    added. See ``outputs`` for the files; ``visuals/`` has a picture of each image, ``labels/`` label PNGs.

    Raises:
        InputError: no image, one that cannot be read, or ``out`` belongs to another detector or threshold.
    """
    photos = [photo for photo in find_images(images) if out.resolve() not in photo.path.resolve().parents]
    wrong = unreadable(photos)
    if not wanted.skip_unreadable:
        refuse_unreadable(wrong)
    for photo, why in wrong.items():
        warn(f"{why}; {photo.name} is left out")
    ids = _ids(photos, wanted.ids)
    with alone(out):
        origin = {"detector": run.sha256, "threshold": wanted.threshold, "classes": list(run.classes.names)}
        store = Store(out, origin)
        waiting = [photo for photo in photos if photo not in wrong and not store.has(photo)]
        if len(waiting) < len(photos) - len(wrong):
            say(f"done already: {counted(len(photos) - len(wrong) - len(waiting), 'image')}")
        if waiting:
            _run(run, waiting, ids, out, wanted, store)
        by_class, by_image = outputs.counts(run, store.done, wanted.shown_from)
        table(counted(len(store.done), "image"), ("class", "images", outputs.what_is_counted(run)), by_class)
        scores = [entry["score"] for one in store.done.values() for entry in one.result.get("detections", ())]
        if scores and max(scores) < wanted.shown_from:
            say(
                f"nothing is drawn or counted: no score reaches {wanted.shown_from:g}, the highest is "
                f"{max(scores):.2f}; give a lower --threshold and another --out"
            )
        return [*outputs.write_results(out, run, store.done), *outputs.write_counts(out, run, by_class, by_image)]


def ids_of(file: str | Path) -> dict[str, int]:
    """File name to id of the images in a COCO JSON, so that predictions can be scored against it.

    Raises:
        InputError: the file is missing or has no such list.
    """
    try:
        content = read_json(Path(file), "image ids")
        pairs = [(image["file_name"], image["id"]) for image in content["images"]]
        if not all(isinstance(name, str) and type(number) is int for name, number in pairs):
            raise ValueError("a name that is no text, or an id that is no whole number")
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"expected a COCO JSON with images of file_name and id in {file}, found something else: {one_line(error)}"
        ) from error
    if len(dict(pairs)) < len(pairs) or len({number for _, number in pairs}) < len(pairs):
        raise InputError(f"expected every file_name and every id once in {file}, found one twice; give each its own")
    return dict(pairs)


def _ids(photos: Sequence[InputImage], known: Mapping[str, int] | None) -> dict[str, int]:
    """Id of each image by its name or, where the file's names have other folders, by the last part of it."""
    if known is None:
        return {}
    ends = Counter(name.rpartition("/")[2] for name in known)
    short = {end: number for name, number in known.items() if ends[end := name.rpartition("/")[2]] == 1}
    found = {photo.name: known.get(photo.name, short.get(photo.path.name)) for photo in photos}
    missing = [name for name, number in found.items() if number is None]
    if missing:
        raise InputError(
            f"expected every image in the file of --ids, found {len(missing)} that it lacks ({missing[0]}); leave them "
            "out, or leave --ids out"
        )
    return {name: number for name, number in found.items() if number is not None}


def _run(
    run: DetectorRun, photos: Sequence[InputImage], ids: Mapping[str, int], out: Path, wanted: Wanted, store: Store
) -> None:
    names = dict(zip(run.classes.ids, run.classes.names, strict=True))
    batch: list[tuple[InputImage, np.ndarray]] = []
    with ProgressLine("predict", len(photos)) as progress:
        for place, (photo, pixels) in enumerate(_read_ahead(photos, wanted.skip_unreadable), start=1):
            if pixels is not None:
                batch.append((photo, pixels))
            if len(batch) < wanted.batch_size and place < len(photos):
                continue
            found = run.predict([pixels for _, pixels in batch], threshold=wanted.threshold or 0.0,
                                batch_size=wanted.batch_size)  # fmt: skip
            for (photo, pixels), one in zip(batch, found, strict=True):
                result = _written(run, photo, pixels, one, out, wanted, names)
                before = store.done.get(photo.name)
                kept = before.image_id if before else store.next_id()
                number = ids.get(photo.name, kept)
                store.add(photo, number, result)
            progress.advance(len(batch))
            batch = []


def _written(
    run: DetectorRun, photo: InputImage, pixels: np.ndarray, found: Found, out: Path, wanted: Wanted,
    names: Mapping[int, str],
) -> dict[str, object]:  # fmt: skip
    """Write an image's picture and label PNG; its line."""
    image = Image.fromarray(pixels)
    if found.labels is not None:
        with atomic_path(out / "labels" / _renamed(photo.name, (".png",))) as temporary:
            Image.fromarray(found.labels).save(temporary)
        result = outputs.label_line(found.labels, len(run.classes.names))
        drawn = tinted(image, found.labels) if wanted.visuals else None
    else:
        result = outputs.line_of(found, *pixels.shape[:2])
        shown = [entry for entry in result["detections"] if entry["score"] >= wanted.shown_from]
        drawn = draw(image, shown, names) if wanted.visuals else None
    if drawn is not None:
        path = out / "visuals" / _renamed(photo.name, (".png", ".jpg", ".jpeg"))
        with atomic_path(path) as temporary:
            drawn.save(temporary, quality=92)  # of JPEG; PNG has no quality
    return result


def _renamed(name: str, endings: Sequence[str]) -> str:
    """The image's own name where it ends so, else with .png after it."""
    return name if name.lower().endswith(tuple(endings)) else f"{name}.png"


def _read_ahead(photos: Sequence[InputImage], skip: bool) -> Iterator[tuple[InputImage, np.ndarray | None]]:
    """Every photograph with its pixels, read by a thread while the detector works; None for one that is skipped."""
    waiting: deque[tuple[InputImage, Future[np.ndarray]]] = deque()
    with ThreadPoolExecutor(max_workers=2) as pool:
        try:
            for photo in photos:
                waiting.append((photo, pool.submit(read_pixels, photo.path)))
                if len(waiting) > AHEAD:
                    yield _taken(*waiting.popleft(), skip)
            while waiting:
                yield _taken(*waiting.popleft(), skip)
        finally:
            for _, future in waiting:
                future.cancel()


def _taken(photo: InputImage, future: Future[np.ndarray], skip: bool) -> tuple[InputImage, np.ndarray | None]:
    try:
        return photo, future.result()
    except InputError as error:
        if not skip:
            raise
        warn(f"{error}; left out")
        return photo, None
