"""Whatever JSON the optional keys of a record hold, the page is made and parses."""

import json
from html.parser import HTMLParser
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from momentum_transfer.report.page import make_report, render_csv, render_html, render_markdown

TEXT = st.text(max_size=12) | st.sampled_from(
    ["<b>", "$x$", "a|b", "__x__", "svm/k=4", "coco/bbox", "../x/backbone.pkl", "\x00"]
)
JSON = st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.lists(st.integers(), max_size=2)
CHECKPOINT = {"name": JSON | st.sampled_from(["random", "m2"]), "sha256": JSON}
OPTIONAL = ("trial", "seed", "protocol", "network", "dataset", "config", "engine", "versions", "time", "command")
RECORDS = st.fixed_dictionaries(
    {
        "task": TEXT | st.sampled_from(["svm/k=1", "svm/k=4", "cka", "weight_norm"]),
        "metric": TEXT | st.sampled_from(["AP", "top1"]),
        "value": st.none() | st.floats(0, 100) | st.integers() | st.floats() | st.just(10**400),
        "checkpoint": st.fixed_dictionaries({}, optional=CHECKPOINT),
    },
    optional=dict.fromkeys((*OPTIONAL, "reference"), JSON),
)

VOID = {"wbr", "meta", "link", "br", "img", "path", "use", "col", "input", "hr", "line", "rect"}


class Balanced(HTMLParser):
    """Fails on a tag that closes another one than the last opened."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        """A self-closing tag opens nothing."""


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(RECORDS, min_size=1, max_size=6))
def test_any_optional_values_make_a_page_that_parses(tmp_path: Path, records: list[dict]):
    path = tmp_path / "results.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    report = make_report([path])
    Balanced(render_html(report))
    assert render_markdown(report).startswith("# Does it transfer?")
    assert render_csv(report.results).startswith("task,metric")
