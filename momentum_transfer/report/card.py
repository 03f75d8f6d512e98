"""A checkpoint's scores as a model repository: card, ``.eval_results``, records and weights in one folder.

The card's ``model-index`` and the ``.eval_results`` files are read back with huggingface_hub's own parsers before
anything is written.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from momentum_transfer.backbones.hub_pull import PREFERRED
from momentum_transfer.core.errors import InputError
from momentum_transfer.core.extras import extra
from momentum_transfer.core.files import atomic_path, write_text
from momentum_transfer.report.aggregate import Cell, Results
from momentum_transfer.report.hub_scores import PURPOSE, Scored, card_results, leaderboard_entries, slug
from momentum_transfer.report.markdown import escape
from momentum_transfer.report.provenance import provenance

RECORDS = "results.jsonl"
#: The last words of every card, by which a folder of cards is known.
_SIGNATURE = "Measured with momentum-transfer."
#: The name of the weights in the folder: what a pull without a file looks for first.
WEIGHTS = PREFERRED[0]


def card_text(
    name: str, results: Results, scores: Sequence[Scored], datasets: Mapping[str, str], license: str | None = None
) -> str:
    """The model card, front matter and Markdown.

    Raises:
        RuntimeError: huggingface_hub's parser reads something else in it than was written.
    """
    hub = extra("huggingface_hub", PURPOSE)
    entries = card_results(scores, datasets)
    metadata = hub.ModelCardData(
        license=license, library_name="momentum-transfer", pipeline_tag="image-feature-extraction",
        tags=["momentum-transfer", "transfer-learning"], datasets=sorted(set(datasets.values())) or None,
        metrics=sorted({entry.metric_type for entry in entries}), model_name=name, eval_results=entries,
    )  # fmt: skip
    text = f"---\n{metadata.to_yaml()}\n---\n\n{_body(name, results, scores)}"
    if sorted(map(repr, hub.ModelCard(text).data.eval_results)) != sorted(map(repr, entries)):  # grouped by data set
        raise RuntimeError(f"the card of {name} does not read back as it was written; this is a bug")
    return text


def _body(name: str, results: Results, scores: Sequence[Scored]) -> str:
    baselines = [other for other in results.checkpoints if other != name and results.kind(other)]
    head = ["task", "metric", "dataset", "protocol", name, *baselines]
    lines = [f"# {escape(name)}", "", "Scores in percent, mean ± standard deviation over trials (their number).", "",
             _row(head), _row(["---"] * len(head))]  # fmt: skip
    for measure, cell in scores:
        beside = [results.cells[measure].get(other) for other in baselines]
        lines.append(_row([measure.task, measure.metric, measure.dataset, measure.protocol or measure.engine,
                           *(_number(one) for one in (cell, *beside))]))  # fmt: skip
    facts = next(block.facts for block in provenance(results) if block.name == name)
    lines += ["", "## Where the numbers come from", ""]
    lines += [f"- {heading}: {escape(', '.join(values))}" for heading, values in facts]
    lines += ["", f"`{RECORDS}` holds every record, one JSON object a line. {_SIGNATURE}", ""]
    return "\n".join(lines)


def _number(cell: Cell | None) -> str:
    if cell is None:
        return ""
    return f"{cell.mean:.2f}" if cell.std is None else f"{cell.mean:.2f} ± {cell.std:.2f} ({cell.trials})"


def _row(words: Sequence[str]) -> str:
    return f"| {' | '.join(map(escape, words))} |"


def write_folder(
    out: Path,
    name: str,
    results: Results,
    scores: Sequence[Scored],
    *,
    datasets: Mapping[str, str],
    license: str | None = None,
    weights: Any = None,
    files: Sequence[Path] = (),
) -> list[Path]:
    """Write the folder that a push uploads.

    Args:
        weights: a ``SourceBackbone``, written as ``backbone.safetensors``. files: further ones, copied as they are.

    Returns:
        What was written, the card first.

    Raises:
        InputError: ``out`` is a file, holds what is read here or a README.md of another origin, or a further file is
            missing or takes the name of one of the folder's own.
    """
    texts = {"README.md": card_text(name, results, scores, datasets, license)}
    texts[RECORDS] = "".join(f"{json.dumps(_plain(record), sort_keys=True)}\n" for record in results.records[name])
    texts |= _leaderboards(results, name, scores, datasets)
    _check(out, files, {*texts, *([WEIGHTS] if weights is not None else [])})
    _check_overwritten(out, results, weights)
    written = []
    for place, text in texts.items():
        write_text(out / place, text)
        written.append(out / place)
    if weights is not None:
        from momentum_transfer.backbones.convert import metadata_of, write

        write(out / WEIGHTS, weights.state, weights.architecture, metadata_of(weights))
        written.append(out / WEIGHTS)
    for file in files:
        with atomic_path(out / file.name) as temporary:
            shutil.copyfile(file, temporary)
        written.append(out / file.name)
    return written


def _leaderboards(results: Results, name: str, scores: Sequence[Scored], datasets: Mapping[str, str]) -> dict[str, str]:
    """``.eval_results/*.yaml``, a file a data set of the Hub."""
    hub = extra("huggingface_hub", PURPOSE)
    date = max(str(record.get("time") or "") for record in results.records[name])
    texts = {}
    for identifier, entries in leaderboard_entries(scores, datasets, date).items():
        text = yaml.safe_dump(hub.eval_result_entries_to_yaml(entries), sort_keys=False, allow_unicode=True)
        if hub.parse_eval_result_entries(yaml.safe_load(text)) != entries:
            raise RuntimeError(f"the results on {identifier} do not read back as they were written; this is a bug")
        texts[f".eval_results/{slug(identifier)}.yaml"] = text
    return texts


def _plain(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record as it stood in its file, without what reading adds: where it was read."""
    kept = {key: value for key, value in record.items() if key not in ("file", "settings")}
    if isinstance(kept.get("items"), Mapping):
        kept["items"] = {key: value for key, value in kept["items"].items() if key != "folder"}
    return kept


def _check_overwritten(out: Path, results: Results, weights: Any) -> None:
    """InputError where the folder has a README.md of another origin, or files that the card is made from."""
    card = out / "README.md"
    if card.is_file() and _SIGNATURE not in card.read_text(encoding="utf-8", errors="replace"):
        raise InputError(f"expected --out as a folder of its own, found {card}, which is no card; give another name")
    sources = {str(record.get("file", "")) for records in results.records.values() for record in records}
    pairs = [(out / RECORDS, Path(file)) for file in sources]
    pairs += [(out / WEIGHTS, weights.path)] if weights is not None else []
    for place, source in pairs:
        if place.is_file() and source.is_file() and place.samefile(source):
            raise InputError(f"expected --out apart from what is published, found {source} in it; give another name")


def _check(out: Path, files: Sequence[Path], own: set[str]) -> None:
    if out.exists() and not out.is_dir():
        raise InputError(f"expected --out FOLDER, found the file {out}; give another name")
    for number, file in enumerate(files):
        if not file.is_file():
            raise InputError(f"expected a file to add, found none at {file}")
        if file.name in own or file.name in {other.name for other in files[:number]}:
            raise InputError(f"expected files of other names than the folder's own, found two called {file.name}")
