"""Attacks on settings: keys with impossible values, and YAML of every bad shape."""

from pathlib import Path

from hypothesis import strategies as st

import momentum_transfer.lowshot.config
import momentum_transfer.pretrain.config
import momentum_transfer.transfer.config
from momentum_transfer.core.settings import keys_of, load_config
from tests.attacks.outcome import outcome_of

ROOMS = {
    "pretrain": (momentum_transfer.pretrain.config.get_cfg, momentum_transfer.pretrain.config.check_settings),
    "transfer": (momentum_transfer.transfer.config.get_cfg, momentum_transfer.transfer.config.check_settings),
    "lowshot": (momentum_transfer.lowshot.config.get_cfg, momentum_transfer.lowshot.config.check_settings),
}
KEYS = sorted((room, key) for room, (defaults, _) in ROOMS.items() for key in keys_of(defaults()))
WORDS = st.sampled_from(
    ["", "0", "-1", "1", "1e400", "nan", "inf", "-inf", "1e-400", "10**9", "9" * 5000, "True", "None", "x", "x" * 5000,
     "[]", "[1]", "[-1, 2]", "['a']", "[[1]]", "{}", "{'a': 1}", "()", "(1, 2)", "[" * 300, "[" * 5000, "'", "\\", "..",
     "/dev/null/x", "/proc/x", "~nobody/x", "a\nb", "\u2028", "<script>", "1" + "0" * 400, "-0.0", "0x10", "1_000",
     "b'a'", "1j", "lambda: 1", "__import__('os')"]
) | st.text(max_size=8)  # fmt: skip
PAIRS = st.tuples(st.sampled_from(KEYS), WORDS)
LINES = st.sampled_from(
    ["SEED: 1", "SEED: 2", "OUTPUT_DIR: out", "SOLVER: {STEPS: 3}", "SOLVER:\n  STEPS: 3", "SOLVER: 5", "SEED: [1]",
     "SOLVER: &a {STEPS: 1}", "DATA: *a", "<<: {SEED: 3}", "? [a]\n: 1", "1: 2", "null: 1", "true: 1",
     "a: !!python/object:os.system x",
     "SEED: !!binary aGk=", "SEED: 2026-99-99", "SEED: 2026-01-01", f"SEED: {'9' * 5000}", "SEED: 1e999", "SEED: .nan",
     'OUTPUT_DIR: "a\\0b"', 'OUTPUT_DIR: "\\ud800"', f"OUTPUT_DIR: {'a/' * 3000}", "_BASE_: a.yaml", "_BASE_: [a.yaml]",
     "_BASE_: 5", "_BASE_: ''", '_BASE_: "a\\0"', f"_BASE_: {'x' * 5000}", "_BASE_: /", "_BASE_: ~nobody/x", "[" * 2000,
     "{a: " * 500, "- 1", "text", "\t", "%YAML 9.9", "---", "...", "\x07", "a: |\n x", "SEED: 1 # ok", "{", "'", '"',
     "_VARIANTS_: {b: {SEED: 1}}", "_VARIANTS_: {b: [5]}", "_VARIANTS_: {1: {}}", "_VARIANTS_:", "_BASE_: b",
     "_BASE_: [b, b]", "seed: 1", "SOLVER.STEPS: 4", "MODEL: null", "METHOD: {NAME: x}", "DATASETS: {TRAIN: [a, b]}"]
) | st.text(max_size=10)  # fmt: skip
FILES = st.tuples(st.sampled_from(sorted(ROOMS)), st.lists(LINES, max_size=4).map("\n".join))


class Settings:
    """A folder in which YAML files are tried."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "a.yaml"

    def pair(self, value: tuple[tuple[str, str], str]) -> str:
        """KEY VALUE of a command line."""
        (room, key), word = value
        defaults, check = ROOMS[room]
        return outcome_of(lambda: check(load_config(defaults(), None, [key, word])))

    def yaml(self, value: tuple[str, str]) -> str:
        """A file."""
        room, text = value
        self.file.write_bytes(text.encode("utf-8", "surrogatepass"))
        defaults, check = ROOMS[room]
        return outcome_of(lambda: check(load_config(defaults(), self.file)))
