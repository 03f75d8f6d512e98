"""Provenance: one block a checkpoint, enough to run each number again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from momentum_transfer.report.aggregate import Results


@dataclass(frozen=True)
class Provenance:
    """What the records of one checkpoint say about themselves; each fact is (heading, distinct values)."""

    name: str
    records: int
    facts: tuple[tuple[str, tuple[str, ...]], ...]
    commands: tuple[str, ...]


def provenance(results: Results) -> list[Provenance]:
    """One block for every checkpoint, in the order of the columns."""
    return [_block(name, records) for name, records in results.records.items()]


def _block(name: str, records: Sequence[Mapping[str, Any]]) -> Provenance:
    facts: dict[str, list[Any]] = {
        "weights (SHA-256)": [_hash(record) for record in records],
        "network": [record.get("network") for record in records],
        "architecture": [_by_family(record, "architecture") for record in records],
        "made of it": [change for record in records for change in record.get("changes") or ()],
        "size": [_size(record) for record in records],
        "dataset": [record.get("dataset") for record in records],
        "engine": [record.get("engine") for record in records],
        "protocol": [_by_family(record, "protocol") for record in records],
        "config (hash)": [_by_family(record, "config") for record in records],
        "seed": [record.get("seed") for record in records],
        # Records that were read share their versions: each is spelled once.
        "versions": [
            _versions(one)
            for one in {id(record.get("versions")): record.get("versions") for record in records}.values()
        ],
        "measured": _span([str(record.get("time") or "") for record in records]),
    }
    told = tuple((heading, values) for heading, found in facts.items() if (values := _distinct(found)))
    return Provenance(name, len(records), told, _distinct([record.get("command") for record in records]))


def _distinct(values: Sequence[Any]) -> tuple[str, ...]:
    """Distinct non-empty values as text, in the order of their first appearance."""
    return tuple(dict.fromkeys(str(value) for value in values if value not in (None, "")))


def _hash(record: Mapping[str, Any]) -> str:
    sha = str(record["checkpoint"].get("sha256") or "")
    return f"{sha[:16]}… ({str(record['task']).split('/')[0]})" if sha else ""


def _by_family(record: Mapping[str, Any], key: str) -> str:
    value = record.get(key)
    return f"{value} ({str(record['task']).split('/')[0]})" if value else ""


def _size(record: Mapping[str, Any]) -> str:
    """Parameters and multiply-adds of a detector or segmentor."""
    if not isinstance(parameters := record.get("parameters"), int):
        return ""
    side = record.get("gflops_side")
    counted = f"{parameters / 1e6:.2f} M parameters, {record.get('trained_parameters', parameters) / 1e6:.2f} M trained"
    return f"{counted}; {record.get('gflops', 0):.2f} G multiply-adds at {side} px ({record.get('protocol')})"


def _versions(versions: Any) -> str:
    if not isinstance(versions, Mapping):
        return ""
    return ", ".join(f"{package} {version}" for package, version in sorted(versions.items()))


def _span(times: Sequence[str]) -> list[str]:
    known = sorted(time for time in times if time)
    if not known:
        return []
    return [known[0] if known[0] == known[-1] else f"{known[0]} to {known[-1]}"]
