#!/usr/bin/env python3
"""How many random faults in the product its mirrored tests find.

python benchmarks/mutants.py [--number 300] [--seed 0] [--jobs 2] [--root CHECKOUT] [--out FILE.jsonl]
python benchmarks/mutants.py --again FILE.jsonl --out NEW.jsonl     only those that survived before

A mutant is one change in one product file: a comparison, arithmetic or Boolean operator, a number or truth value, or
the condition of a branch, but for ``zip``'s ``strict``; all places have the same chance. It is made in a copy of the
repository, where the tests that import its module run until one fails. A mutant that runs out of time counts as killed.
Tests run in forks of a process that has imported torch. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOMS = ("momentum_transfer", "pretrain", "transfer", "lowshot")
LINKED = ("pretrain", "transfer", "lowshot", "tools")
#: Most test files that are run on a mutant: those of its own name first.
MOST_TESTS = 8

SWAPS: dict[type, str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not",
    ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in", ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*",
    ast.FloorDiv: "*", ast.Mod: "*", ast.Pow: "*", ast.And: "or", ast.Or: "and",
}  # fmt: skip
TOKENS: dict[type, str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.Is: "is",
    ast.IsNot: r"is\s+not", ast.In: "in", ast.NotIn: r"not\s+in", ast.Add: r"\+", ast.Sub: "-", ast.Mult: r"\*",
    ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: r"\*\*", ast.And: "and", ast.Or: "or",
}  # fmt: skip


def mutants(text: str) -> Iterator[tuple[int, int, str]]:
    """(start, end, replacement) in the UTF-8 bytes of every change that can be made to a module."""
    data = text.encode()
    starts = [0]
    for line in data.split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)

    def place(line: int, column: int) -> int:
        return starts[line - 1] + column

    def between(left: ast.AST, right: ast.AST, operator: ast.AST) -> Iterator[tuple[int, int, str]]:
        start = place(left.end_lineno or 0, left.end_col_offset or 0)  # type: ignore[attr-defined]  # expressions
        end = place(right.lineno, right.col_offset)  # type: ignore[attr-defined]  # have places
        found = re.search(TOKENS[type(operator)].encode(), data[start:end])
        if found and type(operator) in SWAPS:
            yield start + found.start(), start + found.end(), SWAPS[type(operator)]

    tree = ast.parse(text)
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.AnnAssign) and node.annotation):
            inside = ast.walk(node if isinstance(node, ast.JoinedStr) else node.annotation)
            skipped |= {id(part) for part in inside}
        if isinstance(node, ast.keyword) and node.arg == "strict":  # zip's, of what is equally long
            skipped.add(id(node.value))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            for annotation in [argument.annotation for argument in arguments] + [node.returns]:
                skipped |= {id(part) for part in ast.walk(annotation)} if annotation else set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Compare):
            for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
                yield from between(left, right, operator)
        elif isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
            yield from between(node.left, node.right, node.op)
        elif isinstance(node, ast.BoolOp):
            for left, right in zip(node.values, node.values[1:], strict=False):
                yield from between(left, right, node.op)
        elif isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
            start, end = place(node.lineno, node.col_offset), place(node.end_lineno or 0, node.end_col_offset or 0)
            yield start, end, str(not node.value) if isinstance(node.value, bool) else repr(node.value + 1)
        elif isinstance(node, (ast.If, ast.IfExp, ast.While)) and "TYPE_CHECKING" not in ast.unparse(node.test):
            test = node.test
            start, end = place(test.lineno, test.col_offset), place(test.end_lineno or 0, test.end_col_offset or 0)
            yield start, end, f"(not ({data[start:end].decode()}))"


def tests_of(path: str, root: Path, texts: dict[str, str]) -> list[str]:
    """Test files that import a product file's module, those of its own name first."""
    dotted = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    names = {dotted, f"momentum_transfer.{dotted}" if dotted.split(".")[0] in LINKED else dotted}
    stem = Path(path).stem
    patterns = []
    for name in names:
        parent, _, leaf = name.rpartition(".")
        patterns += [rf"(?<![\w.]){re.escape(name)}(?!\w)", rf"from {re.escape(parent)} import [^\n]*\b{leaf}\b"]
    texts = {file: text for file, text in texts.items() if Path(file).name.startswith("test_")}
    users = [file for file, text in texts.items() if any(re.search(pattern, text) for pattern in patterns)]
    own = [file for file in texts if Path(file).name == f"test_{stem}.py"]
    room = path.replace("momentum_transfer/", "").split("/")[0]
    near = [file for file in users if f"/{room}/" in file]
    ordered = list(dict.fromkeys([file for file in own if file in users or f"/{room}/" in file] + near + users))
    folder = Path("tests", path.removeprefix("momentum_transfer/")).parent
    while not ordered:  # no test imports the module itself: those of its folder, or of the nearest one above
        ordered = [file for file in texts if Path(file).parent == folder]
        folder = folder.parent
    return ordered[:MOST_TESTS]


def described(text: str, file: str, start: int, end: int, new: str) -> tuple[str, int, str, str]:
    """File, line, old and new text of a mutant."""
    data = text.encode()
    return file, data[:start].count(b"\n") + 1, data[start:end].decode(), new


def run_tests(copy: Path, files: list[str], seconds: float) -> str:
    """What became of the tests of one mutant: killed, survived or, after ``seconds``, timeout."""
    process = os.fork()
    if process == 0:
        os.setsid()
        os.chdir(copy)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        sys.path.insert(0, str(copy))
        import pytest

        code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout", "120", *files])
        os._exit(0 if code in (0, 5) else 1)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return "survived" if status == 0 else "killed"
        time.sleep(0.05)
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return "timeout"


def main(args: argparse.Namespace) -> None:
    """Make the mutants, run their tests, print how many are found in each room."""
    root = args.root.resolve()
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=root, capture_output=True, text=True, check=True).stdout
    files = [file for file in listed.split() if not (root / file).is_symlink()]
    texts = {file: (root / file).read_text(encoding="utf-8") for file in files if file.startswith("tests/")}
    product = {file: (root / file).read_text(encoding="utf-8") for file in files if file.split("/")[0] in ROOMS}
    places = [(file, *mutant) for file, text in sorted(product.items()) for mutant in mutants(text)]
    chosen = random.Random(args.seed).sample(places, min(args.number, len(places)))
    if args.again:
        lines = args.again.read_text(encoding="utf-8").splitlines()
        alive = {tuple(entry[key] for key in ("file", "line", "old", "new"))
                 for entry in map(json.loads, lines) if entry["outcome"] == "survived"}  # fmt: skip
        chosen = [place for place in places if described(product[place[0]], *place) in alive]
    print(f"{len(places)} places in {len(product)} files, {len(chosen)} mutants", flush=True)
    import torch  # imported before the forks, as what follows

    torch.set_num_threads(1)
    for module in ("torchvision", "scipy.stats", "sklearn.svm", "pycocotools.coco", "matplotlib", "timm", "hypothesis"):
        __import__(module)
    copies = [Path(tempfile.mkdtemp(prefix="mutants-")) / "copy" for _ in range(args.jobs)]
    for copy in copies:
        ignored = shutil.ignore_patterns(".git", ".venv", ".matrix", "outputs", "__pycache__")
        shutil.copytree(root, copy, symlinks=True, ignore=ignored)
    free = list(copies)

    def one(number: int) -> dict[str, object]:
        file, start, end, new = chosen[number]
        copy = free.pop()
        data = product[file].encode()
        try:
            (copy / file).write_bytes(data[:start] + new.encode() + data[end:])
            outcome = run_tests(copy, tests_of(file, root, texts), args.seconds)
        finally:
            (copy / file).write_bytes(data)
            free.append(copy)
        place = described(product[file], file, start, end, new)
        found = {**dict(zip(("file", "line", "old", "new"), place, strict=True)), "outcome": outcome}
        with open(args.out, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(found) + "\n")
        return found

    args.out.unlink(missing_ok=True)
    with ThreadPoolExecutor(args.jobs) as pool:
        results = list(pool.map(one, range(len(chosen))))
    for copy in copies:
        shutil.rmtree(copy.parent)
    rooms: dict[str, Counter[str]] = {}
    for result in results:
        path = str(result["file"]).removeprefix("momentum_transfer/").split("/")
        rooms.setdefault(path[0], Counter())[str(result["outcome"])] += 1
    for room, counts in sorted(rooms.items()):
        print(f"{room:12} {dict(counts)}")
    killed = sum(result["outcome"] in ("killed", "timeout") for result in results)
    print(f"killed {killed} of {len(results)}: {100 * killed / len(results):.1f} %; survivors in {args.out}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=600.0, help="at most for a mutant")
    parser.add_argument("--again", type=Path, help="the --out of an earlier run: its survivors, instead of a sample")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], help="the repository")
    parser.add_argument("--out", type=Path, default=Path("outputs/mutants.jsonl"))
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    main(args)
