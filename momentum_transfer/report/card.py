"""A checkpoint's scores as a model repository: card, ``.eval_results``, records and weights in one folder.

Card and ``.eval_results/*.yaml`` are written by huggingface_hub's own classes and read back with its parsers first. A
value is the mean over trials in percent; a card's entry holds its standard deviation, trials, protocol and settings in
``args``. A mirror folder can stand for the Hub.
"""

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from momentum_transfer.backbones import hub
from momentum_transfer.core.errors import InputError, extra
from momentum_transfer.core.files import atomic_path, write_text
from momentum_transfer.report.aggregate import Cell, Measure, Record, Results
from momentum_transfer.report.page import escape, markdown_row
from momentum_transfer.report.provenance import provenance

#: Files of the folder; a pull without a file looks for the weights first.
_RECORDS, _WEIGHTS = "results.jsonl", hub.PREFERRED[0]

#: The last words of every card, by which a folder of cards is known.
_SIGNATURE = "Measured with momentum-transfer."

_PURPOSE, _PUSHING = "results for the Hub", "pushing to the Hub"

#: Family of a task (the part before ``/``) -> the Hub's identifier of the task, and its name.
_TASKS = {
    "coco": ("object-detection", "Object detection"),
    "lvis": ("object-detection", "Object detection"),
    "voc": ("object-detection", "Object detection"),
    "semantic": ("image-segmentation", "Image segmentation"),
    "retrieval": ("image-feature-extraction", "Image retrieval"),
}
_CLASSIFICATION = ("image-classification", "Image classification")
#: Names of metrics that the Hub knows otherwise.
_METRICS = {"top1": "accuracy", "top5": "top_5_accuracy", "AP": "mean_average_precision", "mIoU": "mean_iou"}


#: The trials of a measure.
Scored = tuple[Measure, Cell]


def scores_of(results: Results, name: str) -> list[Scored]:
    """The measures of one checkpoint that score it; InputError if there is none."""
    found = [
        (measure, cells[name])
        for measure, cells in results.cells.items()
        if name in cells and measure.metric not in results.descriptive
    ]
    if not found:
        raise InputError(f"expected scores of {name!r}, found them of {', '.join(results.checkpoints) or 'nothing'}")
    return found


def _slug(text: str) -> str:
    """Small letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "unnamed"


def _card_results(scores: Sequence[Scored], datasets: Mapping[str, str]) -> list[Any]:
    """``huggingface_hub.EvalResult`` of every score, for a card's ``model-index``.

    Args:
        datasets: our title of a data set -> its identifier on the Hub; others go by a slug of their title.
    """
    kind = extra("huggingface_hub", _PURPOSE).EvalResult
    entries = []
    for measure, cell in scores:
        title = measure.dataset or "unnamed"
        masks = measure.task.partition("/")[2].startswith("segm")  # the Hub counts masks of instances as segmentation
        task, name = _TASKS["semantic"] if masks else _TASKS.get(measure.family, _CLASSIFICATION)
        args = {"task": measure.task, "protocol": measure.protocol, "engine": measure.engine,
                "settings": " ".join(sorted(cell.configs)), "unit": "percent", "trials": cell.trials,
                "std": None if cell.std is None else round(cell.std, 6)}  # fmt: skip
        entries.append(
            kind(
                task_type=task, task_name=name, dataset_type=datasets.get(title, _slug(title)), dataset_name=title,
                metric_type=_METRICS.get(measure.metric, _slug(measure.metric)), metric_value=round(cell.mean, 6),
                metric_name=" ".join(filter(None, (measure.task, measure.metric, measure.protocol))),
                metric_args={key: value for key, value in args.items() if value not in ("", None)},
            )
        )  # fmt: skip
    return entries


def _leaderboards(results: Results, name: str, scores: Sequence[Scored], datasets: Mapping[str, str]) -> dict[str, str]:
    """``.eval_results/*.yaml`` of the scores on data sets that the Hub has, a file a data set."""
    library = extra("huggingface_hub", _PURPOSE)
    date = max(str(record.get("time") or "") for record in results.records[name]) or None
    entries: dict[str, list[Any]] = {}
    for measure, cell in scores:
        if (identifier := datasets.get(measure.dataset)) is None:
            continue
        spread = f" ± {cell.std:.2f} over {cell.trials} trials" if cell.std is not None else ""
        notes = ", ".join(filter(None, (f"{measure.label}, percent{spread}", measure.protocol, measure.engine)))
        task, value = _slug(f"{measure.label} {measure.protocol}"), round(cell.mean, 6)
        entry = library.EvalResultEntry(dataset_id=identifier, task_id=task, value=value, date=date, notes=notes)
        entries.setdefault(identifier, []).append(entry)
    texts = {}
    for identifier, of_data in entries.items():
        text = yaml.safe_dump(library.eval_result_entries_to_yaml(of_data), sort_keys=False, allow_unicode=True)
        if library.parse_eval_result_entries(yaml.safe_load(text)) != of_data:
            raise RuntimeError(f"the results on {identifier} do not read back as they were written; this is a bug")
        texts[f".eval_results/{_slug(identifier)}.yaml"] = text
    return texts


def read_datasets(arguments: Sequence[str], results: Results) -> dict[str, str]:
    """``TITLE=org/name`` arguments as a mapping; InputError for another form, or a title that no record has."""
    titles = list(dict.fromkeys(measure.dataset for measure in results.cells))
    found = {}
    for argument in arguments:
        title, _, identifier = argument.rpartition("=")
        if not title or not re.fullmatch(r"[\w.-]+/[\w.-]+", identifier):
            raise InputError(f"expected --dataset TITLE=org/name, found {argument!r}")
        if title not in titles:
            raise InputError(f"expected a data set of the records, {', '.join(map(repr, titles))}, found {title!r}")
        found[title] = identifier
    return found


def card_text(
    name: str, results: Results, scores: Sequence[Scored], datasets: Mapping[str, str], license: str | None = None
) -> str:
    """The model card, front matter and Markdown; RuntimeError if huggingface_hub reads something else in it."""
    library = extra("huggingface_hub", _PURPOSE)
    entries = _card_results(scores, datasets)
    metadata = library.ModelCardData(
        license=license, library_name="momentum-transfer", pipeline_tag="image-feature-extraction",
        tags=["momentum-transfer", "transfer-learning"], datasets=sorted(set(datasets.values())) or None,
        metrics=sorted({entry.metric_type for entry in entries}), model_name=name, eval_results=entries,
    )  # fmt: skip
    text = f"---\n{metadata.to_yaml()}\n---\n\n{_body(name, results, scores)}"
    read = library.ModelCard(text).data.eval_results
    if sorted(map(repr, read)) != sorted(map(repr, entries)):  # the card groups them by data set
        raise RuntimeError(f"the card of {name} does not read back as it was written; this is a bug")
    return text


def _body(name: str, results: Results, scores: Sequence[Scored]) -> str:
    baselines = [other for other in results.checkpoints if other != name and results.kinds[other]]
    head = ["task", "metric", "dataset", "protocol", name, *baselines]
    lines = [f"# {escape(name)}", "", "Scores in percent, mean ± standard deviation over trials (their number).", "",
             markdown_row(head), markdown_row(["---"] * len(head))]  # fmt: skip
    for measure, _ in scores:
        unlike = results.unlike.get(measure, ())
        numbers = [
            ("≠ " if one in unlike else "") + _number(results.cells[measure].get(one)) for one in (name, *baselines)
        ]
        lines.append(markdown_row([measure.task, measure.metric, measure.dataset, measure.protocol or measure.engine,
                                   *numbers]))  # fmt: skip
    facts = next(block.facts for block in provenance(results) if block.name == name)
    lines += ["", "## Where the numbers come from", ""]
    lines += [f"- {heading}: {escape(', '.join(values))}" for heading, values in facts]
    lines += [f"- Notice: {escape(notice)}" for notice in results.notices]
    lines += ["", f"`{_RECORDS}` holds every record, one JSON object a line. {_SIGNATURE}", ""]
    return "\n".join(lines)


def _number(cell: Cell | None) -> str:
    if cell is None:
        return ""
    return f"{cell.mean:.2f}" if cell.std is None else f"{cell.mean:.2f} ± {cell.std:.2f} ({cell.trials})"


def write_folder(
    out: Path, name: str, results: Results, scores: Sequence[Scored], *, datasets: Mapping[str, str],
    license: str | None = None, weights: Any = None, files: Sequence[Path] = (),
) -> list[Path]:  # fmt: skip
    """Write the folder that a push uploads; the files, the card first. InputError: see ``_check``.

    Args:
        weights: a ``SourceBackbone``, written as ``backbone.safetensors``. files: further ones, copied as they are.
    """
    texts = {"README.md": card_text(name, results, scores, datasets, license)}
    texts[_RECORDS] = "".join(f"{json.dumps(_plain(record), sort_keys=True)}\n" for record in results.records[name])
    texts |= _leaderboards(results, name, scores, datasets)
    _check(out, results, weights, files, {*texts, *([_WEIGHTS] if weights is not None else [])})
    written = []
    for place, text in texts.items():
        write_text(out / place, text)
        written.append(out / place)
    if weights is not None:
        from momentum_transfer.backbones.convert import architecture_metadata, write

        write(out / _WEIGHTS, weights.state, weights.architecture, architecture_metadata(weights))
        written.append(out / _WEIGHTS)
    for file in files:
        with atomic_path(out / file.name) as temporary:
            shutil.copyfile(file, temporary)
        written.append(out / file.name)
    return written


def _plain(record: Record) -> dict[str, Any]:
    """A record as it stood in its file, without what reading adds: where it was read."""
    kept = {key: value for key, value in record.items() if key not in ("file", "settings")}
    if isinstance(kept.get("items"), Mapping):
        kept["items"] = {key: value for key, value in kept["items"].items() if key != "folder"}
    return kept


def _check(out: Path, results: Results, weights: Any, files: Sequence[Path], own: set[str]) -> None:
    """Raises InputError if the folder is a file, or has a README.md of other origin or a file that the card reads."""
    if out.exists() and not out.is_dir():
        raise InputError(f"expected --out FOLDER, found the file {out}; give another name")
    for number, file in enumerate(files):
        if not file.is_file():
            raise InputError(f"expected a file to add, found none at {file}")
        if file.name in own or file.name in {other.name for other in files[:number]}:
            raise InputError(f"expected files of other names than the folder's own, found two called {file.name}")
    card = out / "README.md"
    if card.is_file() and _SIGNATURE not in card.read_text(encoding="utf-8", errors="replace"):
        raise InputError(f"expected --out as a folder of its own, found {card} of other origin; give another name")
    sources = {str(record.get("file", "")) for records in results.records.values() for record in records}
    pairs = [(out / _RECORDS, Path(file)) for file in sources]
    pairs += [(out / _WEIGHTS, weights.path)] if weights is not None else []
    for place, source in pairs:
        if place.is_file() and source.is_file() and place.samefile(source):
            raise InputError(f"expected --out apart from what is published, found {source} in it; give another name")


def target(text: str) -> hub.HubName:
    """The repository that ``hf:org/name[@branch]`` means; InputError without a mirror, or network and login, for it."""
    name = hub.parse(text)
    if name.file:
        raise InputError(f"expected a repository to push to, hf:org/name[@branch], found the file {text}")
    if hub.mirror() is None:
        if not hub.reachable():
            where = f"no network to {hub.endpoint()}; push where there is one"
            raise InputError(f"{where}, or set {hub.MIRROR} to a folder that stands for the Hub")
        if extra("huggingface_hub", _PUSHING).get_token() is None:
            raise InputError("expected a login to push with, found none; `hf auth login`, or set HF_TOKEN")
    return name


def push(folder: Path, name: hub.HubName, written: Sequence[Path], *, private: bool = False) -> str:
    """Upload ``written``, files within ``folder``, to a repository that may be new; where they are now."""
    message = "Weights and scores by momentum-transfer"
    if (mirrored := hub.mirror()) is not None:
        repository = hub.mirrored_repository(mirrored, name)
        for file in written:
            with atomic_path(repository / file.relative_to(folder)) as temporary:
                shutil.copyfile(file, temporary)
        return str(repository)
    api = extra("huggingface_hub", _PUSHING).HfApi(endpoint=hub.endpoint())
    with hub.clear_errors(name, online=True):
        api.create_repo(name.repository, private=private, exist_ok=True)
        if name.revision:
            api.create_branch(name.repository, branch=name.revision, exist_ok=True)
        done = api.upload_folder(
            repo_id=name.repository, folder_path=str(folder), revision=name.revision or None, commit_message=message,
            allow_patterns=[file.relative_to(folder).as_posix() for file in written],
        )  # fmt: skip
    return str(done)
