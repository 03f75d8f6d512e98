"""Predict on many images: read, run the detector, draw, store; a stopped command resumes."""

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
from momentum_transfer.transfer.detector_run import DetectorRun, Found
from momentum_transfer.transfer.prediction import outputs
from momentum_transfer.transfer.prediction.input_images import (
    InputImage,
    as_pixels,
    find_images,
    refuse_unreadable,
    unreadable,
)
from momentum_transfer.transfer.prediction.outputs import Store
from momentum_transfer.transfer.visuals import MIN_SCORE, draw, tinted

_AHEAD = 4  # images that are read while the detector is busy with others


@dataclass(frozen=True)
class Options:
    """Options of a prediction.

    Attributes:
        threshold: detections of a lower score are left out everywhere; None: the JSON keeps all that the detector
            gives, and visualizations and counts begin at 0.5.
        ids: an image's name → its id, from a COCO JSON; None: 1, 2, 3 …
    """

    threshold: float | None = None
    batch_size: int = 1
    visuals: bool = True
    skip_unreadable: bool = False
    ids: Mapping[str, int] | None = None

    @property
    def shown_from(self) -> float:
        """The lowest score in visualizations and counts."""
        return MIN_SCORE if self.threshold is None else self.threshold


def predict(run: DetectorRun, images: Sequence[str | Path], out: Path, options: Options) -> list[Path]:
    """Predict on files and folders of images, and return the files of results in ``out``.

    What ``out`` holds of the same detector and threshold is kept: only new images are predicted on. See ``outputs`` for
    the files; ``visuals/`` has every image with its detections, ``labels/`` label PNGs.

    Raises:
        InputError: no image, one that cannot be read, or ``out`` belongs to another detector or threshold.
    """
    inputs = [image for image in find_images(images) if out.resolve() not in image.path.resolve().parents]
    wrong = unreadable(inputs)
    if not options.skip_unreadable:
        refuse_unreadable(wrong)
    for image, why in wrong.items():
        warn(f"{why}; {image.name} is left out")
    ids = _ids(inputs, options.ids)
    with alone(out):
        origin = {"detector": run.sha256, "threshold": options.threshold, "classes": list(run.classes.names)}
        store = Store(out, origin)
        if other := [name for name, one in store.done.items() if ids.get(name, one.image_id) != one.image_id]:
            known = store.done[other[0]].image_id
            raise InputError(
                f"{out} has {other[0]} under the id {known}, --ids under {ids[other[0]]}; choose another --out"
            )
        waiting = [image for image in inputs if image not in wrong and not store.has(image)]
        if len(waiting) < len(inputs) - len(wrong):
            say(f"done already: {counted(len(inputs) - len(wrong) - len(waiting), 'image')}")
        if waiting:
            _run(run, waiting, ids, out, options, store)
        by_class, by_image = outputs.counts(run, store.done, options.shown_from)
        table(counted(len(store.done), "image"), ("class", "images", outputs.counted_unit(run)), by_class)
        scores = [entry["score"] for one in store.done.values() for entry in one.result.get("detections", ())]
        if scores and max(scores) < options.shown_from:
            say(
                f"nothing is drawn or counted: no score reaches {options.shown_from:g}, the highest is "
                f"{max(scores):.2f}; give a lower --threshold and another --out"
            )
        return [*outputs.write_results(out, run, store.done), *outputs.write_counts(out, run, by_class, by_image)]


def ids_of(file: str | Path) -> dict[str, int]:
    """File name → id of the images in a COCO JSON, so that predictions can be scored against it."""
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


def _ids(inputs: Sequence[InputImage], known: Mapping[str, int] | None) -> dict[str, int]:
    """Id of each image by its name or, if the names in the file have other folders, by its last part."""
    if known is None:
        return {}
    ends = Counter(name.rpartition("/")[2] for name in known)
    short = {end: number for name, number in known.items() if ends[end := name.rpartition("/")[2]] == 1}
    found = {image.name: known.get(image.name, short.get(image.path.name)) for image in inputs}
    missing = [name for name, number in found.items() if number is None]
    if missing:
        raise InputError(
            f"expected every image in the file of --ids, found {len(missing)} that it lacks ({missing[0]}); leave them "
            "out, or leave --ids out"
        )
    return {name: number for name, number in found.items() if number is not None}


def _run(
    run: DetectorRun, inputs: Sequence[InputImage], ids: Mapping[str, int], out: Path, options: Options, store: Store
) -> None:
    batch: list[tuple[InputImage, np.ndarray]] = []
    with ProgressLine("predict", len(inputs)) as progress:
        for place, (image, pixels) in enumerate(_read_ahead(inputs, options.skip_unreadable), start=1):
            if pixels is not None:
                batch.append((image, pixels))
            if len(batch) < options.batch_size and place < len(inputs):
                continue
            arrays = [pixels for _, pixels in batch]
            found = run.predict(arrays, threshold=options.threshold or 0.0, batch_size=options.batch_size)
            for (image, pixels), one in zip(batch, found, strict=True):
                result = _write_image(run, image.name, pixels, one, out, options)
                before = store.done.get(image.name)
                kept = before.image_id if before else store.next_id()
                store.add(image, ids.get(image.name, kept), result)
            progress.advance(len(batch))
            batch = []


def _write_image(
    run: DetectorRun, name: str, pixels: np.ndarray, found: Found, out: Path, options: Options
) -> dict[str, object]:
    """Write an image's label PNG and visualization; return its result."""
    image = Image.fromarray(pixels)
    if found.labels is not None:
        with atomic_path(out / "labels" / _renamed(name, (".png",))) as temporary:
            Image.fromarray(found.labels).save(temporary)
        result = outputs.label_result(found.labels, len(run.classes.names))
        drawn = tinted(image, found.labels) if options.visuals else None
    else:
        result = outputs.detection_result(found, *pixels.shape[:2])
        shown = [entry for entry in result["detections"] if entry["score"] >= options.shown_from]
        names = dict(zip(run.classes.ids, run.classes.names, strict=True))
        drawn = draw(image, shown, names) if options.visuals else None
    if drawn is not None:
        with atomic_path(out / "visuals" / _renamed(name, (".png", ".jpg", ".jpeg"))) as temporary:
            drawn.save(temporary, quality=92)  # of JPEG; PNG has no quality
    return result


def _renamed(name: str, endings: tuple[str, ...]) -> str:
    """The image's own name if it ends so, else with .png after it."""
    return name if name.lower().endswith(endings) else f"{name}.png"


def _read_ahead(inputs: Sequence[InputImage], skip: bool) -> Iterator[tuple[InputImage, np.ndarray | None]]:
    """Every image with its pixels, read by threads while the detector works; None for one that is skipped."""
    waiting: deque[tuple[InputImage, Future[np.ndarray]]] = deque()
    with ThreadPoolExecutor(max_workers=2) as pool:
        try:
            for image in inputs:
                waiting.append((image, pool.submit(as_pixels, image.path)))
                if len(waiting) > _AHEAD:
                    yield _read(*waiting.popleft(), skip)
            while waiting:
                yield _read(*waiting.popleft(), skip)
        finally:
            for _, future in waiting:
                future.cancel()


def _read(image: InputImage, future: Future[np.ndarray], skip: bool) -> tuple[InputImage, np.ndarray | None]:
    try:
        return image, future.result()
    except InputError as error:
        if not skip:
            raise
        warn(f"{error}; left out")
        return image, None
