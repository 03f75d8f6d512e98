"""Whatever stands in a suite's file, it is read or refused in one line: by a list of mistakes, and by a fuzzer."""

import copy
import json
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from momentum_transfer.core.errors import InputError
from momentum_transfer.suites.planning import plan
from momentum_transfer.suites.suite import load_suite

COMMAND = "tools/lowshot.py knn --config configs/smoke/lowshot_digits.yaml --weights {weights} --results {results}"
WHOLE = {
    "name": "whole",
    "pretrain": {
        "config": "configs/smoke/momentum2_digits.yaml",
        "grid": {"NORM.GROUP_SIZE": [8, 16]},
        "variants": {"slow": {"SOLVER.STEPS": 5}},
        "seeds": [0, 1],
        "settings": {"DATA.WORKERS": 0},
        "exports": {"every": 1, "last": 2},
        "gpu_hours": 0.1,
    },
    "presets": {"m2": {"more": "KNN.K 20"}, "moco": {"more": ""}},
    "tasks": [
        {"name": "knn", "command": COMMAND + " {more}", "gpu_hours": 0.5, "cpus": 1, "minutes": 5},
        {"name": "again", "command": COMMAND, "needs": ["knn"], "distributed": False},
    ],
    "plots": [{"title": "t", "y": "knn/k=20 top1", "x": "NORM.GROUP_SIZE", "by": "variant", "log": True}],
}


def written(folder: Path, content: object) -> Path:
    path = folder / "suite.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
    return path


def refusal(folder: Path, content: object) -> str:
    with pytest.raises(InputError) as refused:
        load_suite(written(folder, content))
    message = str(refused.value)
    assert "\n" not in message
    assert len(message) < 1200
    return message


MISTAKES = {
    "command": {
        "": "expected a command such as",
        "   ": "expected a command such as",
        "tools/lowshot.py 'knn": "No closing quotation",
        "/bin/ls": "no other",
        "../../../bin/ls": "no other",
        "tools/../../../../../../../../bin/ls": "no other",
        "tools": "which is no file",
        ".": "which is no file",
        "README.md": "no other",
        "x" * 5000: "which is no file",
        "~/x.py": "which is no file",
        "tools/lowshot.py \0": "without NUL",
        "tools/lowshot.py {}": "unknown place {}",
        3: "expected command as text, found 3; put it in quotes",
        1.5: "expected command as text, found 1.5",
        ("tools/lowshot.py", "knn"): "expected command as text, found ['tools/lowshot.py', 'knn']",
        None: "expected command as text, found None",
        True: "expected command as text, found True",
    },
    "name": {
        "..": "expected a name of letters",
        ".": "expected a name of letters",
        "...": "expected a name of letters",
        "": "expected a name of letters",
        "a/b": "expected a name of letters",
        "a b": "expected a name of letters",
        "n" * 300: "no longer than 200",
        "rescaled": "which is taken",
        7: "expected name as text, found 7; put it in quotes",
        None: "expected name as text",
        ("a",): "expected name as text",
    },
    "needs": {
        3: "expected needs as text or a list, found 3",
        "later": "needs 'later', which is no task before it",
        (1,): "expected needs[0] as text, found 1",
        (("knn",),): "expected needs[0] as text",
        None: "expected needs as text or a list",
        True: "expected needs as text or a list",
    },
    "gpu_hours": {
        -1: "expected gpu_hours as a number >= 0",
        float("nan"): "expected gpu_hours as a number >= 0",
        float("inf"): "expected gpu_hours as a number <=",
        "3": "expected gpu_hours as a number, found '3'",
        True: "expected gpu_hours as a number, found True",
        10**400: "gpu_hours",
    },
    "cpus": {"x": "expected cpus as a whole number, found 'x'", 0: ">= 1", -4: ">= 1", 1.5: "found 1.5", 10**30: "<="},
    "minutes": {"x": "expected minutes as a whole number", 0: ">= 1", 10**9: "<=", "1:30:00": "found '1:30:00'"},
    "distributed": {"no": "expected distributed as true or false, found 'no'", 1: "found 1", None: "found None"},
}


@pytest.mark.parametrize("key", MISTAKES)
def test_a_wrong_value_of_a_task_is_one_line_that_names_it(tmp_path: Path, key: str):
    for value, message in MISTAKES[key].items():
        entry = {"name": "task", "command": COMMAND, key: json.loads(json.dumps(value))}
        said = refusal(tmp_path, json.dumps({"tasks": [entry]}))  # JSON is YAML, NaN and Infinity are not
        if isinstance(value, float) and value != 1.5:
            said = refusal(tmp_path, yaml.safe_dump({"tasks": [{**entry, key: value}]}))
        expected = "expected a command that begins with a Python script" if message == "no other" else message
        assert expected in said or "which is no file" in said, f"{value!r}: {said}"
        assert f"{tmp_path}/suite.yaml" in said


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "found an empty file"),
        ("[]", "found list"),
        ("3", "found int"),
        ("tasks: [", "cannot be read"),
        ("tasks: []\ntasks: []", "duplicate key"),
        ("a: " + "[" * 5000, "nesting"),
        ("tasks: " + "[" * 300 + "]" * 300, "deeper nesting"),
        ("tasks: &a [*a]", "deeper nesting"),
        ("tasks: \0", "cannot be read"),
        ('name: "\\ud800"\ntasks: []', "found invalid Unicode character"),
        ("".join(f"k{i}: &k{i} [{', '.join([f'*k{i - 1}'] * 9 if i else ['x'] * 9)}]\n" for i in range(9)), "entries"),
        ("tasks:", "expected something under tasks, found nothing"),
        ("name: x", "found no task"),
        ("tasks: 3", "expected tasks as a list or nothing, found 3"),
        ("tasks: [3]", "task 1: expected a mapping, found 3"),
        ("tasks: [{name: a}]", "task 1: expected at least command"),
        ("tasks: [{1: a}]", "as text; put it in quotes"),
        ("name: 3\ntasks: [{name: a, command: tools/lowshot.py}]", "expected name as text"),
        ("name: 2026-11-22\ntasks: [{name: a, command: tools/lowshot.py}]", "put it in quotes"),
        (f"tasks:\n  - &a [{','.join('1' * 900)}]\n" + "  - *a\n" * 900, "entries"),
        ("name: ..\ntasks: [{name: a, command: tools/lowshot.py}]", "name: expected a name of letters"),
        ("include: 3", "expected include as text"),
        ("include: nowhere", "suite not found: nowhere"),
        ("include: suite.yaml", "includes none itself"),
        ("include: full", "full.yaml, task 4: unknown place {linear}"),
        ("task: []", "unknown key 'task'; did you mean 'tasks'?"),
        ("plots: 3\ninclude: smoke", "expected plots as a list, found 3"),
        ("plots: [3]\ninclude: smoke", "plot 1: expected a mapping, found 3"),
        ("plots: [{title: [1]}]\ninclude: smoke", "plot 1: expected title as text"),
        ("presets: 3\ninclude: smoke", "presets: expected a mapping"),
        ("presets: {a: {1: b}}\ninclude: smoke", "as text; put it in quotes"),
        ("presets: {a: {w: \"'\"}}\ntasks: [{name: a, command: 'tools/lowshot.py {w}'}]", "No closing quotation"),
        ("pretrain: 3\ninclude: smoke", "pretrain: expected a mapping"),
        ("pretrain: {config: 3}\ninclude: smoke", "pretrain: expected config as text"),
        ("pretrain: {config: x, variants: {..: {}}}\ninclude: smoke", "expected a name of letters"),
        (
            "pretrain: {config: x, variants: {a: {config: 3}}}\ninclude: smoke",
            "expected the config of a variant as text",
        ),
        ("pretrain: {config: x, variants: {a: {}}, command: /bin/ls}\ninclude: smoke", "begins with"),
        ("pretrain: {config: x, variants: {a: {}}, command: ''}\ninclude: smoke", "expected a command such as"),
        ("pretrain: {config: x, variants: {a: {}}, gpu_hours: .nan}\ninclude: smoke", "gpu_hours as a number >= 0"),
        ("pretrain: {config: x, variants: {a: {}}, cpus: x}\ninclude: smoke", "cpus as a whole number"),
        ("pretrain: {config: x, variants: {a: {}}, distributed: 'no'}\ninclude: smoke", "distributed as true or false"),
        (
            "pretrain: {config: x, variants: {a: {}}, exports: {every: .nan, last: 1}}\ninclude: smoke",
            "expected exports",
        ),
        ("pretrain: {config: x, variants: {a: {}}, exports: {every: 1.0e-300, last: 1}}\ninclude: smoke", "at most"),
        ("pretrain: {config: x, grid: {A: [" + "x" * 300 + "]}}\ninclude: smoke", "name that is too long"),
        (
            f"pretrain: {{config: x, grid: {{{', '.join(f'K{i}: [1, 2, 3, 4, 5, 6, 7, 8]' for i in range(9))}}}}}\n"
            "include: smoke",
            "expected at most 200000 checkpoints, found 134217728",
        ),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(
    tmp_path: Path, content: str, message: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert message in refusal(tmp_path, content)


def test_a_script_in_the_suites_folder_may_be_run_and_one_outside_may_not(tmp_path: Path):
    (tmp_path / "suites").mkdir()
    for folder in (tmp_path, tmp_path / "suites"):
        (folder / "own.py").write_text("", encoding="utf-8")
    own, outside = tmp_path / "suites" / "own.py", tmp_path / "own.py"
    assert load_suite(written(own.parent, {"tasks": [{"name": "a", "command": str(own)}]})).tasks[0].name == "a"
    link = own.with_name("link.py")
    link.symlink_to(outside)
    for script in (outside, own.parent / ".." / "own.py", link):
        said = refusal(own.parent, {"tasks": [{"name": "a", "command": str(script)}]})
        assert "expected a command that begins with a Python script of this repository" in said


def test_the_whole_suite_that_the_fuzzer_starts_from_is_read(tmp_path: Path):
    jobs = plan(load_suite(written(tmp_path, WHOLE)), ["pixels"], tmp_path / "out")
    assert len(jobs) == 4 * (1 + 2 * 2) + 2


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(
        ["", "..", "/bin/ls", "a b'", "{weights}", "{", "\0", "knn", "tools/lowshot.py", "configs", "\ud800"]
    ),
)
JUNK = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(LEAVES, inner, max_size=3), max_leaves=8
)


def places(tree: object, path: tuple = ()) -> list[tuple]:
    """The path of every node of a suite, the root left out."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [found for key, value in items for found in ((*path, key), *places(value, (*path, key)))]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_suite_with_anything_anywhere_is_planned_or_refused_in_one_line(tmp_path: Path, data: st.DataObject):
    content = copy.deepcopy(WHOLE)
    for _ in range(data.draw(st.integers(1, 3))):
        node, (*above, last) = content, data.draw(st.sampled_from(places(content)))
        for key in above:
            node = node[key]
        if data.draw(st.booleans()):
            node[last] = data.draw(JUNK)
        elif isinstance(node, dict):
            node[data.draw(LEAVES)] = node.pop(last)
        else:
            del node[last]
        if not places(content):
            break
    try:
        text = yaml.dump(content, Dumper=yaml.SafeDumper)
        text.encode()
    except (
        yaml.YAMLError,
        UnicodeEncodeError,
        TypeError,
    ):  # half characters cannot be written; keys of two kinds sorted
        text = repr(content).encode("utf-8", "backslashreplace").decode()
    said = ""
    try:
        plan(load_suite(written(tmp_path, text)), ["pixels"], tmp_path / "out")
    except InputError as error:
        said = str(error)
    assert "\n" not in said
    assert len(said) < 2000


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(alphabet="tasksnme:-[]{}&*!|>'\"#%@`, \n\t0.~<=?\\", max_size=60) | st.binary(max_size=40))
def test_a_file_of_any_characters_is_refused_in_one_line(tmp_path: Path, text: str | bytes):
    path = tmp_path / "suite.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError) as refused:
        load_suite(path)
    assert "\n" not in str(refused.value)
