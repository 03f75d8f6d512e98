"""The records behind a study's claims, as they ship: packed from a run, read back, and held against a run of today.

``studies/records/NAME.tar.xz`` holds ``results.jsonl`` with the records that the study asks for, the items that its
verdicts resample, the curves that its checks read (``pretrained/RUN/metrics.jsonl``), and ``machine.json``. A record
of another kind of CPU, or of a GPU, has ``cpu``.
"""

import json
import math
import platform
import re
import statistics
import tarfile
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, cast

from momentum_transfer.core.errors import InputError, one_line, shown
from momentum_transfer.core.files import atomic_path, write_text
from momentum_transfer.core.shipped import workplace
from momentum_transfer.core.untrusted import read_json
from momentum_transfer.report.aggregate import Record, checkpoint_of, trial_of
from momentum_transfer.report.read_inputs import Curve, read_runs
from momentum_transfer.report.study_page import Scores
from momentum_transfer.suites.study_entry import Study

RESULTS, _MACHINE, PRETRAINED = "results.jsonl", "machine.json", "pretrained"
#: A score of today may differ by this many standard deviations over seeds on another machine.
_DEVIATIONS = 3.0


def shipped(name: str) -> Path:
    """Where the records of a study ship."""
    return workplace() / "studies" / "records" / f"{name}.tar.xz"


def curves_of(output: Path) -> list[Curve]:
    """The curves of a study's pretrainings."""
    return read_runs(sorted(path for path in (output / PRETRAINED).glob("*") if path.is_dir())).curves


def pack(study: Study, scores: Scores, output: Path, target: Path) -> int:
    """Write what the study reads in ``output`` to the archive ``target``; returns its bytes."""
    asked = {tuple(side["y"].split()) for _, side in study.selections()}
    used = [record for record in scores.records if (record["task"], record["metric"]) in asked]
    if not used:
        raise InputError(f"expected records that the study asks for in {output}, found none; run it first")
    files = _resampled(study, scores)
    lines = [{key: value for key, value in record.items() if key not in ("file", "settings")} for record in used]
    for line in lines:
        if "command" in line:  # without folders of this machine
            line["command"] = line["command"].replace(str(output.absolute()), f"outputs/{output.name}")
        if isinstance(line.get("items"), dict):
            line["items"] = {key: value for key, value in line["items"].items() if key != "folder"}
        if _items_of(line) not in files:
            line.pop("items", None)
    machine = {"cpu": cpu_kind(), "versions": used[0].get("versions", {})}
    if (output / _MACHINE).is_file():  # unpacked from what ships
        machine = read_json(output / _MACHINE, "the machine of shipped records")
    with TemporaryDirectory() as temporary_folder:
        folder = Path(temporary_folder)
        write_text(folder / RESULTS, "".join(json.dumps(line, sort_keys=True) + "\n" for line in lines))
        write_text(folder / _MACHINE, json.dumps(machine, indent=1, sort_keys=True) + "\n")
        _write_curves(study, scores.curves, folder)
        with atomic_path(target) as temporary, tarfile.open(temporary, "w:xz", preset=9) as archive:
            made = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
            for base, names in ((folder, made), (output, files)):
                for name in sorted(names):
                    archive.add(base / name, name, filter=_plain)
    return target.stat().st_size


def _resampled(study: Study, scores: Scores) -> set[str]:
    """The items files that verdicts read: of keys with one record."""
    sides = [(side, one.name) for one in study.compare for side in one.sides()]
    alone = [same[0] for side, name in sides for same in scores.by_key(side, name).values() if len(same) == 1]
    return {file for file in map(_items_of, alone) if file}


def _items_of(record: Mapping[str, Any]) -> str:
    return str(record["items"].get("file", "")) if isinstance(record.get("items"), dict) else ""


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """The same bytes whoever packs, and whenever."""
    info.mtime, info.uid, info.gid, info.uname, info.gname, info.mode = 0, 0, 0, "", "", 0o644
    return info


def _write_curves(study: Study, curves: Sequence[Curve], folder: Path) -> None:
    wanted = {check.curve for check in study.checks}
    for curve in (curve for curve in curves if curve.key in wanted):
        file = folder / PRETRAINED / curve.run / "metrics.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file, "a", encoding="utf-8") as stream:
            for step, value in zip(curve.steps, curve.values, strict=True):
                stream.write(json.dumps({"step": step, curve.key: value}) + "\n")


def unpack(archive: Path, folder: Path) -> None:
    """Write an archive's files into ``folder``; InputError if it is missing or damaged."""
    if not archive.is_file():
        raise InputError(f"expected the records of the study in {archive}, found none; run the study")
    try:
        with tarfile.open(archive, "r:xz") as opened:
            for member in opened:  # extractall has no filter before Python 3.11.4
                place = folder / member.name
                if not member.isfile() or folder.resolve() not in place.resolve().parents:
                    raise tarfile.TarError(f"{shown(member.name)}, which is no file below it")
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(cast(IO[bytes], opened.extractfile(member)).read())
    except (tarfile.TarError, OSError, EOFError) as error:
        raise InputError(
            f"expected records of a study in {archive}, found {one_line(error)}; check it out again"
        ) from error


def cpu_kind() -> str:
    """The processor's name, family, model and stepping (kernels differ by them), and the machine's architecture."""
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0] if info.is_file() else ""
    known = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
    named = known.get("model name") or platform.processor() or "unknown"
    numbers = [f"{key.split()[-1]} {known[key]}" for key in ("cpu family", "model", "stepping") if key in known]
    return ", ".join([named, *numbers, platform.machine()])


def made_alike(folder: Path, before: Sequence[Record], again: Sequence[Record]) -> set[str]:
    """Checkpoints of the records unpacked in ``folder`` that have today's versions and CPU kind."""
    then = read_json(folder / _MACHINE, "the machine of shipped records")
    versions = [record.get("versions") for record in again]
    return {
        checkpoint_of(record)
        for record in before
        if record.get("cpu", then["cpu"]) == cpu_kind() and all(record.get("versions") == one for one in versions)
    }


def agreement(
    before: Sequence[Record], again: Sequence[Record], runs: Mapping[str, Any], same: Collection[str]
) -> list[tuple[str, str, float, float, str, bool]]:
    """Today's scores beside the shipped ones: checkpoint, measure, both values, a word, and whether they agree.

    A score is the mean over a checkpoint's samples of labels, and its noise the spread over the variant's seeds; where
    all seeds have one checkpoint, each is a row. A shipped score that a run of ``runs`` did not give (NaN) does not
    agree.
    ``same``: checkpoints of today's versions and CPU kind (``made_alike``), of which only equal bits agree.
    """
    today = {_identity(record): record["value"] for record in again}
    measures, ran = {identity[:-2] for identity in today}, {identity[0] for identity in today} & runs.keys()
    variants: dict[Any, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in before:
        variants[_kind(record, runs)][checkpoint_of(record)].append(record["value"])
    scores: dict[Any, list[tuple[float, float, Record]]] = defaultdict(list)
    for record in before:
        identity, alone = _identity(record), len(variants[_kind(record, runs)]) == 1
        if identity in today or identity[0] in ran or (not alone and identity[:-2] in measures):
            pair = (record["value"], today.get(identity, math.nan), record)
            scores[identity if alone else identity[:-2]].append(pair)
    rows = []
    for pairs in scores.values():
        record = pairs[0][-1]
        was, now = statistics.fmean(then for then, _, _ in pairs), statistics.fmean(value for _, value, _ in pairs)
        seeds = variants[_kind(record, runs)]
        values = [statistics.fmean(one) for one in seeds.values()] if len(seeds) > 1 else next(iter(seeds.values()))
        noise = _DEVIATIONS * statistics.stdev(values) if len(values) > 1 else math.nan
        if math.isnan(now):
            word, agrees = "not scored again", False
        elif all(then == value for then, value, _ in pairs):
            word, agrees = "bit-equal", True
        elif checkpoint_of(record) in same:
            word, agrees = "other bits on the same CPU kind", False
        elif len(values) < 2:  # a start of its own: nothing says how much another CPU may move it
            word, agrees = "not known: one seed", False
        else:
            agrees = abs(was - now) <= noise
            word = f"within seeds' noise (±{noise:.2g})" if agrees else f"apart (±{noise:.2g})"
        rows.append((checkpoint_of(record), f"{record['task']} {record['metric']}", was, now, word, agrees))
    return rows


def _identity(record: Record) -> tuple[Any, ...]:
    words = ("task", "metric", "protocol", "dataset", "network")
    return (
        checkpoint_of(record),
        *(str(record.get(word) or "") for word in words),
        record.get("seed"),
        trial_of(record),
    )


def _kind(record: Record, runs: Mapping[str, Any]) -> tuple[Any, ...]:
    name = checkpoint_of(record)
    variant = runs[name]["variant"] if name in runs else re.sub(r"_seed\d+", "", name)
    return (variant, *_identity(record)[1:-2])
