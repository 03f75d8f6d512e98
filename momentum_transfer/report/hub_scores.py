"""Records as the Hub's two forms of evaluation results: ``model-index`` of a model card, and ``.eval_results/*.yaml``.

Both are written by huggingface_hub's own classes. A value is the mean over trials in the units of the records
(fractions as percent); a card's entry holds its standard deviation, trials, protocol and settings in ``args``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.extras import extra
from momentum_transfer.report.aggregate import DESCRIPTIVE, Cell, Measure, Results

PURPOSE = "results for the Hub"

#: Family of a task (the part before ``/``) -> the Hub's identifier of the task, and its words.
TASKS = {
    "coco": ("object-detection", "Object detection"),
    "lvis": ("object-detection", "Object detection"),
    "voc": ("object-detection", "Object detection"),
    "semantic": ("image-segmentation", "Image segmentation"),
    "retrieval": ("image-feature-extraction", "Image retrieval"),
}
CLASSIFICATION = ("image-classification", "Image classification")
#: The Hub counts masks of instances as segmentation.
_MASKS = "segm"
#: Names of metrics that the Hub knows otherwise.
METRICS = {"top1": "accuracy", "top5": "top_5_accuracy", "AP": "mean_average_precision", "mIoU": "mean_iou"}


class Scored(NamedTuple):
    """The trials of one measure."""

    measure: Measure
    cell: Cell


def scores_of(results: Results, name: str) -> list[Scored]:
    """What the records say of one checkpoint, without the figures that only describe it.

    Raises:
        InputError: no record is about it.
    """
    found = [
        Scored(measure, cells[name])
        for measure, cells in results.cells.items()
        if name in cells and measure.metric not in DESCRIPTIVE
    ]
    if not found:
        raise InputError(f"expected scores of {name!r}, found them of {', '.join(results.checkpoints) or 'nothing'}")
    return found


def slug(text: str) -> str:
    """Small letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "unnamed"


def task_of(measure: Measure) -> tuple[str, str]:
    """The Hub's identifier of a measure's task, and its words."""
    family, _, rest = measure.task.partition("/")
    return TASKS["semantic"] if rest.startswith(_MASKS) else TASKS.get(family, CLASSIFICATION)


def card_results(scores: Sequence[Scored], datasets: Mapping[str, str]) -> list[Any]:
    """``huggingface_hub.EvalResult`` of every score, for a card's ``model-index``.

    Args:
        datasets: our title of a data set -> its identifier on the Hub; others go by a slug of their title.
    """
    kind = extra("huggingface_hub", PURPOSE).EvalResult
    made = []
    for measure, cell in scores:
        title = measure.dataset or "unnamed"
        task, words = task_of(measure)
        told = {"task": measure.task, "protocol": measure.protocol, "engine": measure.engine,
                "settings": " ".join(sorted(cell.configs)), "unit": "percent", "trials": cell.trials,
                "std": None if cell.std is None else round(cell.std, 6)}  # fmt: skip
        made.append(
            kind(
                task_type=task, task_name=words, dataset_type=datasets.get(title, slug(title)), dataset_name=title,
                metric_type=METRICS.get(measure.metric, slug(measure.metric)), metric_value=round(cell.mean, 6),
                metric_name=" ".join(filter(None, (measure.task, measure.metric, measure.protocol))),
                metric_args={key: value for key, value in told.items() if value not in ("", None)},
            )
        )  # fmt: skip
    return made


def leaderboard_entries(scores: Sequence[Scored], datasets: Mapping[str, str], date: str) -> dict[str, list[Any]]:
    """``huggingface_hub.EvalResultEntry`` of the scores on data sets that the Hub has, by their identifiers.

    Args:
        datasets: our title of a data set -> its identifier on the Hub, ``org/name``.
        date: when the newest record was written, ISO 8601.
    """
    kind = extra("huggingface_hub", PURPOSE).EvalResultEntry
    entries: dict[str, list[Any]] = {}
    for measure, cell in scores:
        if (identifier := datasets.get(measure.dataset)) is None:
            continue
        spread = f" ± {cell.std:.2f} over {cell.trials} trials" if cell.std is not None else ""
        words = f"{measure.task} {measure.metric}, percent{spread}"
        notes = ", ".join(filter(None, (words, measure.protocol, measure.engine)))
        task = slug(" ".join((measure.task, measure.metric, measure.protocol)))
        entries.setdefault(identifier, []).append(
            kind(dataset_id=identifier, task_id=task, value=round(cell.mean, 6), date=date or None, notes=notes)
        )
    return entries


def read_datasets(words: Sequence[str], results: Results) -> dict[str, str]:
    """``TITLE=org/name`` words as a mapping.

    Raises:
        InputError: another form, or a title that no record has.
    """
    titles = list(dict.fromkeys(measure.dataset for measure in results.cells))
    found = {}
    for word in words:
        title, _, identifier = word.rpartition("=")
        if not title or not re.fullmatch(r"[\w.-]+/[\w.-]+", identifier):
            raise InputError(f"expected --dataset TITLE=org/name, found {word!r}")
        if title not in titles:
            raise InputError(f"expected a data set of the records, {', '.join(map(repr, titles))}, found {title!r}")
        found[title] = identifier
    return found
