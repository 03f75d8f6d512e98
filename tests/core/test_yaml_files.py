"""YAML becomes plain values of a bounded size, or one line; time and memory do not grow with what aliases stand for."""

import time

import pytest
import yaml

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.untrusted import MOST_ENTRIES, parse_mapping, read_mapping


def test_plain_values_are_those_of_the_library():
    text = "a: [1, 2.5, true, null, x]\nb: &b {c: 2026-11-22}\nd: *b\ne: {<<: *b, f: 1}\n"
    assert parse_mapping(text, "here") == yaml.safe_load(text)


LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
MERGES = "a0: &a0 {k: v}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 12))
CHAIN = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 300))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LAUGHS, "entries"),
        (MERGES, "entries"),
        (CHAIN, "deeper nesting"),
        ("a: &a [*a]", "deeper nesting"),
        ("a: " + "[" * 5000, "nested too deeply"),
        ("a: 1\na: 2", r"a stands there twice \(line 2\)"),
        ('a: "b\\0"', "without NUL and half characters"),
        ('"\\ud800": b', "without NUL and half characters"),
        (f"a: {'9' * 5000}", "cannot be read"),
        ("a: 2026-99-99", "cannot be read"),
        ("a: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("a: 1\n---\nb: 2", "found another document"),
        ("", "found an empty file"),
        ("- a", "found list"),
    ],
)
def test_bombs_and_mistakes_are_one_line_in_no_time(text: str, message: str):
    began = time.process_time()
    with pytest.raises(InputError, match=message) as refused:
        parse_mapping(text, "here")
    assert time.process_time() - began < 5
    assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_a_long_list_is_refused_before_it_is_built(tmp_path):
    (tmp_path / "a.yaml").write_text("a: [" + "1," * MOST_ENTRIES + "1]")
    with pytest.raises(InputError, match="entries"):
        read_mapping(tmp_path / "a.yaml")
    (tmp_path / "a.yaml").write_text("#" * (5 << 20))
    with pytest.raises(InputError, match="bytes"):
        read_mapping(tmp_path / "a.yaml")
