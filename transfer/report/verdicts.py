"""The answer in a sentence for each checkpoint: on how many measures it is ahead of each baseline, and how clearly."""

from collections.abc import Sequence

from transfer.report.aggregate import Difference, Results, baseline, difference, mean_ranks
from transfer.report.tables import NOT_COMPARED

#: Baselines of the sentences, in this order, and what they are called there.
KINDS = {"random": "random weights", "pixels": "raw pixels", "supervised": "supervised weights", "none": "no weights"}

#: More sentences than these nobody reads; then only those against the first baseline are told.
SENTENCES = 6


def verdicts(results: Results) -> list[str]:
    """One sentence for every checkpoint that is to be judged and every baseline there is, the best one first."""
    bases = {kind: name for kind in KINDS if (name := baseline(results, kind))}
    judged = [name for name in results.checkpoints if not name.lower().startswith(NOT_COMPARED)]
    told = []
    if "random" not in bases:
        told.append("No baseline: none of the checkpoints is named random…, so there is nothing to say what transfers.")
    told += _best(results, judged)
    pairs = [(name, kind) for name in judged for kind in bases if name != bases[kind]]
    if len(pairs) > SENTENCES:
        pairs = [(name, kind) for name, kind in pairs if kind == next(iter(bases))]
    told += [_sentence(results, name, bases[kind], KINDS[kind]) for name, kind in pairs[:SENTENCES]]
    if len(pairs) > SENTENCES:
        told.append(f"{len(pairs) - SENTENCES} more checkpoints are in the tables.")
    return told


def _best(results: Results, judged: Sequence[str]) -> list[str]:
    """Where several checkpoints are judged: which has the best mean rank over the tasks."""
    ranks = {name: rank for name, rank in mean_ranks(results).items() if name in judged}
    if len(ranks) < 3:
        return []
    best = min(ranks, key=lambda name: ranks[name][0])
    return [
        f"Best mean rank: {best} ({ranks[best][0]:.1f} of {len(results.checkpoints)}, over {ranks[best][1]} measures)."
    ]


def _sentence(results: Results, name: str, base: str, called: str) -> str:
    columns = [results.cells[measure] for measure in results.headlines()]
    changes = [difference(cells[name], cells[base]) for cells in columns if name in cells and base in cells]
    subject = f"{name} and {base} ({called})"
    if not changes:
        return f"{subject} have no measure in common."
    parts = [
        _part("ahead", [change for change in changes if change.mean > 0], len(changes)),
        _part("behind", [change for change in changes if change.mean < 0], len(changes)),
    ]
    told = ", and ".join(part for part in parts if part) or "level with it on all measures"
    return f"Against {base} ({called}) {name} is {told}."


def _part(word: str, changes: Sequence[Difference], total: int) -> str:
    """``ahead on 7 of 9 measures (5 of them clearly)``, or nothing where there are none."""
    if not changes:
        return ""
    count = f"all {total}" if len(changes) == total else f"{len(changes)} of {total}"
    measures = "measure" if total == 1 else "measures"
    clear = sum(change.clear for change in changes)
    how = f" ({clear} of them clearly)" if clear else ""
    return f"{word} on {count} {measures}{how}"
