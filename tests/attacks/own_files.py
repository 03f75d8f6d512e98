"""Attacks on files of a user's own: labels in VOC's and YOLO's form, data.yaml, lists, shards, a suite's notes."""

import contextlib
import io
import itertools
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import PIL.Image
import safetensors.torch
import torch
from hypothesis import strategies as st

from momentum_transfer.backbones.containers import INDEX, read_shards
from momentum_transfer.core.files import write_text
from momentum_transfer.images.groups import read_groups
from momentum_transfer.images.subsets import read_taxonomy
from momentum_transfer.images.taxonomies import read_hierarchy
from momentum_transfer.lowshot.labelled_data import from_file_list
from momentum_transfer.report.file_verdict import verdict
from momentum_transfer.suites.choose.run import as_begun, keep_question, make_plan
from momentum_transfer.suites.choose.stages import DETECTION, Candidate, Plan, Question, rows, training_step
from momentum_transfer.suites.executors import SUBMITTED
from momentum_transfer.suites.progress import PLAN, standings
from momentum_transfer.suites.task import STATE
from momentum_transfer.tools.status import show
from momentum_transfer.transfer.data.own import labelled, voc_xml, yolo
from tests.attacks.annotations import changed
from tests.attacks.outcome import DONE, LINE, outcome_of

XML = """<annotation><filename>a.png</filename><size><width>20</width><height>10</height><depth>3</depth></size>
<object><name>a</name><difficult>0</difficult><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox>
</object></annotation>"""
WORDS = st.sampled_from(
    ["", "0", "-1", "1", "0.5", "2", "nan", "inf", "-inf", "1e400", "1e-400", "1e308", "9" * 5000, "0." + "3" * 5000,
     "0e" + "9" * 5000, "x", "x" * 5000, "\u0660", "\u00b2", "1_0", "0x1", "\0", "\ufeff", "-0.0", "50%", "\u2028",
     "<a>", "&a;", "]]>", "<!--", "a b", "../../etc/passwd", "/dev/zero", "~nobody", "[", "{", "*a", "&a [*a]", "'",
     "\t", "- 1"]
) | st.text(max_size=6)  # fmt: skip
TABLES = st.lists(st.lists(WORDS, max_size=3), max_size=3)
LABELS = st.lists(st.lists(WORDS, max_size=8).map(" ".join), max_size=3).map("\n".join)
BYTES = LABELS.map(lambda text: text.encode("utf-8", "surrogatepass")) | st.binary(max_size=12)
#: Which number, name or tag of the XML is replaced, by what, under which encoding.
XMLS = st.tuples(
    st.integers(0, 40), WORDS, st.sampled_from(["", "utf-8", "latin-1", "shift_jis", "hex", "zip", "utf-7"])
)
KEYS = st.sampled_from(["names", "nc", "train", "val", "test", "path", "kpt_shape", "<<", "a"])
YAMLS = st.lists(st.tuples(KEYS, WORDS | st.just("images") | st.just("[a, b]")), max_size=4)
PLACED = st.lists(
    st.tuples(st.floats(0, 0.999), st.one_of(
        st.sampled_from([None, True, -1, 10**400, float("nan"), "", "..", "a\0b", "\ud800", "x" * 5000, [], {}, [[]],
                         "DELETE"]), st.text(max_size=4))), min_size=1, max_size=2)  # fmt: skip
TASK = {"title": "t", "weights": "a", "task": "knn", "key": "k", "folder": "t", "needs": [], "gpu_hours": 1.0,
        "source": "s"}  # fmt: skip
NOTES: dict[str, Any] = {
    PLAN: {"tasks": [TASK]},
    f"t/{STATE}": {"key": "k", "began": 1.0, "seconds": 2.0, "gpus": 1, "note": "n", "stopped": "SIGTERM"},
    SUBMITTED: {"number": "1", "on": "Slurm", "jobs": [["t", "k"]]},
}

ASKED = Question(
    Path(), DETECTION, "cells", (40, 30), 224, (Candidate("a", "/a.pth", "1", "resnet50", "random_1"),), 30.0,
    settings=("SOLVER.IMS_PER_BATCH", "4"), longest=500,
)  # fmt: skip
CHOICE: dict[str, Any] = {
    "plan.json": {
        "lengths": {"frozen": 20, "finetuned": 40}, "images": {"resnet50": 3.0},
        "times": {stage: {"resnet50": {"around": 1.0, "each": 0.5}} for stage in ("frozen", "finetuned")},
    },
    "question.json": None,  # as it is written
}  # fmt: skip


class OwnFiles:
    """A folder with an image, beside which files of each kind are tried."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("images", "masks", "labels", "t", "shards"):
            (folder / name).mkdir()
        PIL.Image.new("RGB", (20, 10)).save(folder / "images/a.png")
        for number in (1, 2):
            safetensors.torch.save_file({f"t{number}": torch.zeros(2)}, folder / f"shards/{number}.safetensors")

    def outcomes(self, table: list[list[str]]) -> str:
        """A CSV file of outcomes beside a good one, then as groups of its items."""
        good, file = self.folder / "good.csv", self.folder / "outcomes.csv"
        good.write_text("image,acc\n" + "".join(f"{item},{item % 2}\n" for item in range(12)))
        rows = [["image", "acc"], *([str(item), "0.5"] for item in range(12)), *table]
        file.write_bytes("\n".join(map(",".join, rows)).encode("utf-8", "surrogatepass"))
        ends = [outcome_of(lambda: verdict(good, file)), outcome_of(lambda: read_groups(file, [("1",), ("2",)]))]
        return next((end for end in ends if end not in (DONE, LINE)), ends[0])

    def yolo(self, content: bytes) -> str:
        """A text file of labels, then one of names."""
        (self.folder / "data.yaml").write_text("names: [a, b]\ntrain: images\n")
        (self.folder / "labels/a.txt").write_bytes(content)
        end = outcome_of(lambda: yolo.read_yolo(self.folder / "data.yaml"))
        (self.folder / "labels/a.txt").unlink()
        return end

    def data_yaml(self, pairs: list[tuple[str, str]]) -> str:
        """A data.yaml."""
        text = "".join(f"{key}: {value}\n" for key, value in pairs)
        (self.folder / "data.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
        return outcome_of(lambda: yolo.read_yolo(self.folder / "data.yaml"))

    def voc(self, change: tuple[int, str, str]) -> str:
        """An XML with another word in one place."""
        place, word, encoding = change
        parts = re.split(r"(\w+)", XML)
        parts[2 * (place % (len(parts) // 2)) + 1] = word
        head = f'<?xml version="1.0" encoding="{encoding}"?>' if encoding else ""
        (self.folder / "images/a.xml").write_bytes((head + "".join(parts)).encode("utf-8", "surrogatepass"))
        end = outcome_of(lambda: voc_xml.settle_corners([voc_xml.read_voc(self.folder / "images")]))
        (self.folder / "images/a.xml").unlink()
        return end

    def lists(self, content: bytes) -> str:
        """A list of anything, read by all that read lists."""
        file = self.folder / "list.txt"
        file.write_bytes(content)
        ends = [
            outcome_of(lambda: read_taxonomy(file, ["a"])),
            outcome_of(lambda: read_hierarchy(file)),
            outcome_of(lambda: from_file_list(file, ["a.png"])),
            outcome_of(lambda: labelled.read_names(file)),
        ]
        return _worst(ends)

    def index(self, changes: list[tuple[float, Any]]) -> str:
        """An index of shards with other values."""
        whole = {"metadata": {"total_size": 8}, "weight_map": {"t1": "1.safetensors", "t2": "2.safetensors"}}
        file = self.folder / f"shards/model{INDEX}"
        file.write_text(json.dumps(changed(whole, changes)))
        return outcome_of(lambda: read_shards(file))

    def notes(self, value: tuple[str, list[tuple[float, Any]]]) -> str:
        """What a suite left, with other values in one file, shown by status."""
        attacked, changes = value
        for name, content in NOTES.items():
            tried = changed(content, changes) if name == attacked else content
            (self.folder / name).write_text(json.dumps(tried) + "\n")

        def status() -> None:
            with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8")):
                show(standings(self.folder), everything=True)

        return outcome_of(status)

    def choice(self, value: tuple[str, list[tuple[float, Any]]]) -> str:
        """What a choice left, with other values in one file, up to the commands that follow from it."""
        attacked, changes = value
        asked = replace(ASKED, out=self.folder / "choice")
        for part in ("train", "val"):
            write_text(asked.out / f"images/{part}.txt", "a.png 0\n")
        (asked.out / "question.json").unlink(missing_ok=True)
        (asked.out / "plan.json").write_text(json.dumps(CHOICE["plan.json"]))
        keep_question(asked)
        file = asked.out / attacked
        file.write_text(json.dumps(changed(json.loads(file.read_text()), changes)))

        def go_on() -> None:
            kept = as_begun(asked)
            plan = make_plan(kept, Plan({}, {}), 1.0)
            rows(kept, plan)
            trained = [training_step(kept, one, stage, plan.lengths[stage]) for stage in kept.stages
                       for one in kept.everyone]  # fmt: skip
            for step in itertools.chain(*trained):
                assert all(os.fsencode(word) and b"\0" not in os.fsencode(word) for word in step.command)

        return outcome_of(go_on)


def _worst(ends: list[str]) -> str:
    return next((end for end in ends if end not in (DONE, LINE)), LINE if LINE in ends else DONE)


CHOICE_NOTES = st.tuples(st.sampled_from(sorted(CHOICE)), PLACED)
SUITE_NOTES = st.tuples(st.sampled_from(sorted(NOTES)), PLACED)
