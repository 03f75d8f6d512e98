"""Exported files of other content than was written, or of other people: refused in one line, or what was written."""

import io
import json
import os
import pickle
import random
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.export import pt2_archive
from momentum_transfer.transfer.export import write as exporting
from momentum_transfer.transfer.export.exported import BLANK, SEAL_KEY, InputSpec, check_seal, load_exported, seal
from tests.attacks.outcome import DONE, LINE, outcome_of

WANTS = InputSpec(("a",), (1,), 64, 96, 32, (1.0, 2.0, 3.0), (64, 96))
SMALL = InputSpec(("a",), (1,), 32, 32, 32, (1.0, 2.0, 3.0), (32, 32))


def test_no_byte_of_a_sealed_file_can_change_unseen(tmp_path):
    file = tmp_path / "a.onnx"
    file.write_bytes(b"weights" + SEAL_KEY.encode() + b"\x12\x40" + BLANK.encode() + b"more weights")
    seal(file)
    content = file.read_bytes()
    check_seal(content, file)
    for place in range(len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        with pytest.raises(InputError, match=r"cannot read .*a\.onnx as ONNX"):
            check_seal(bytes(flipped), file)


@pytest.mark.parametrize("key", ["classes", "category_ids", "short_edge", "long_edge", "multiple", "pad", "size", None])
def test_wants_of_any_content_are_read_or_refused_in_one_line(key):
    assert InputSpec.from_json(WANTS.as_json(), "a.onnx") == WANTS
    texts = ["", "[" * 100_000, "[]", "1", "null"] if key is None else [
        json.dumps({**json.loads(WANTS.as_json()), key: value})
        for value in (-1, 0, 10**400, float("inf"), float("nan"), "x", {}, [[]], [float("inf")] * 3, [10**400] * 3)
    ]  # fmt: skip
    found: list[InputSpec] = []
    for text in texts:
        end = outcome_of(lambda text=text: found.append(InputSpec.from_json(text, "a.onnx")))
        assert end in (DONE, LINE)
    assert [one for one in found if key not in ("classes", "category_ids")] == []  # numbers are words too
    assert all(type(word) is str for one in found for word in one.classes)
    assert all(type(number) is int for one in found for number in one.category_ids)


class Bad:
    """Unpickled, it would make a file."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self):
        return Path.touch, (self.made,)


class Tiny(torch.nn.Module):
    """One box for each weight, moved with the image."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([[1.0, 2.0, 9.0, 8.0], [3.0, 1.0, 7.0, 9.0]]))
        self.register_buffer("more", torch.ones(4), persistent=False)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        boxes = self.weight + self.more * image.mean() / 255
        return boxes, boxes[:, 0] / 10, torch.zeros(2, dtype=torch.int64)


IMAGE = np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def traced():
    return torch.export.export(Tiny(), (torch.zeros(3, 32, 32),))


@pytest.fixture
def pt2(traced, tmp_path):
    exporting._WRITERS["pt2"](traced, SMALL, tmp_path / "detector.pt2")
    return tmp_path / "detector.pt2"


def with_records(file, change):
    """The same archive, its records through ``change(name, content)``: of other content, with fitting checksums."""
    with zipfile.ZipFile(file) as archive:
        records = {name: change(name, archive.read(name)) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in records.items():
            archive.writestr(name, content)
    return file


def read(file):
    """How loading and running it ended, and its detections."""
    found: list[tuple[np.ndarray, ...]] = []
    end = outcome_of(lambda: found.append(load_exported(file).predict(IMAGE)))
    assert end == (DONE if found else LINE)
    return found


@pytest.mark.parametrize("kind", [pytest.param("onnx", marks=pytest.mark.slow), "pt2"])
def test_a_flipped_bit_is_refused_in_one_line_or_changes_nothing(kind, traced, tmp_path):
    file, chance, refused, flips = tmp_path / f"detector.{kind}", random.Random(0), 0, 24
    exporting._WRITERS[kind](traced, SMALL, file)
    whole, (expected,) = file.read_bytes(), read(file)
    moved = (Tiny().weight + float(SMALL.prepare(IMAGE)[0].mean()) / 255).detach().numpy()
    np.testing.assert_allclose(expected[0], moved, rtol=1e-6)
    for number in range(flips):
        content = bytearray(whole)
        content[int((number + chance.random()) / flips * len(content))] ^= 1 << chance.randrange(8)
        file.write_bytes(content)
        found = read(file)
        refused += not found
        for arrays in found:  # of an archive's dates and padding
            assert all(np.array_equal(one, other) for one, other in zip(arrays, expected, strict=True))
    assert refused == flips or (kind == "pt2" and refused > flips // 2)
    file.write_bytes(whole[: len(whole) // 2])
    assert not read(file)


@pytest.mark.parametrize("forced", [{}, {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}])
def test_pickled_code_in_a_pt2_is_not_run(forced, pt2, tmp_path, monkeypatch):
    for name, value in forced.items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    assert read(with_records(pt2, lambda _, content: content))
    stream = io.BytesIO()
    torch.save(({"image": Bad(tmp_path / "made")},), stream)
    touched = []

    def change(name, content):
        touched.extend([name] * name.endswith(".pt"))
        return stream.getvalue() if name.endswith(".pt") else content

    assert not read(with_records(pt2, change))
    assert touched
    assert not (tmp_path / "made").exists()
    assert dict(os.environ) == before


def test_archives_of_libraries_or_of_something_else_are_refused_without_a_log(pt2, tmp_path, capfd):
    with zipfile.ZipFile(pt2, "a") as archive:
        archive.writestr("detector/data/constants/opaque_obj_0", pickle.dumps(Bad(tmp_path / "made")))
    with pytest.raises(InputError, match=r"found the record '.*opaque_obj_0'"):
        load_exported(pt2)
    with zipfile.ZipFile(pt2, "w") as archive:
        archive.writestr("letter.txt", "text")
    with pytest.raises(InputError, match=r"found the record 'letter\.txt'"):
        load_exported(pt2)
    assert not (tmp_path / "made").exists()
    assert capfd.readouterr().err == ""


def with_program(file, change):
    """The same archive, its program (JSON as Python reads it) through ``change``."""

    def changed(name, content):
        if not name.endswith(("models/model.json", "serialized_exported_program.json")):  # the second before torch 2.8
            return content
        program = json.loads(content)
        change(program)
        return json.dumps(program).encode()

    return with_records(file, changed)


def size_of_a_tensor(program):
    (meta, *_) = program["graph_module"]["graph"]["tensor_values"].values()
    return meta["sizes"]


def as_expression(text):
    def change(program):
        size_of_a_tensor(program)[0] = {"as_expr": {"expr_str": text, "hint": {"as_int": 2}}}

    return change


def named_argument(name):
    """The image's name everywhere, from which torch writes the source of a function."""

    def change(program):
        text = json.dumps(program).replace('"image"', json.dumps(name))
        program.clear()
        program.update(json.loads(text))

    return change


def guarded(text):
    return lambda program: program.update(guards_code=[text])


def first_target(target):
    def change(program):
        node = program["graph_module"]["graph"]["nodes"][0]
        node["target"] = target
        node["inputs"] = [{"name": "", "kind": 1, "arg": {"as_string": "echo"}}]

    return change


def pytree_of(kind, context):
    spec = [1, {"type": kind, "context": json.dumps(context), "children_spec": []}]
    return lambda program: program["graph_module"]["module_call_graph"][0]["signature"].update(
        out_spec=json.dumps(spec)
    )


CODE = "__import__('pathlib').Path('made').touch()"
CRAFTED = {
    "an expression": as_expression(CODE),
    "a text in an expression": as_expression(f"Mul(2, {CODE!r})"),
    "an attribute": as_expression("Symbol('s0').__class__"),
    "a power without end": as_expression("9**9**9**9"),
    "a power as a function": as_expression("Pow(Integer(9), Pow(Integer(9), Integer(9)))"),
    "a long number": as_expression("9" * 5000),
    "a deep expression": as_expression("(" * 5000 + "1" + ")" * 5000),
    "a precision without end": as_expression("Float('8.0', precision=999999999999)"),
    "a second argument of a float": as_expression("Float('8.0', 999999999999)"),
    "a comparison of all with all": as_expression(f"Max({', '.join(f's{number}' for number in range(200))})"),
    "the same, nested": as_expression("Max(s0, " * 40 + "1" + ")" * 40),
    "a guard": guarded(CODE),
    "a guard of two lines": guarded(f"1 == 1)\n  {CODE}\n  (1"),
    "a guard with a comment": guarded("1 == 1 #"),
    "an argument's name": named_argument(f"image={CODE}"),
    "an operator of a module": first_target("torch.utils.collect_env.os.system"),
    "an operator that writes": first_target("torch.ops.aten.save.default"),
    "a library to load": first_target("torch.ops.load_library"),
    "a module to import": pytree_of("collections.defaultdict", {"default_factory_module": "antigravity"}),
    "a range": lambda program: program.update(range_constraints={CODE: {"min_val": 1, "max_val": 2}}),
}  # fmt: skip


@pytest.mark.parametrize("kind", CRAFTED)
def test_a_pt2_with_code_in_its_json_is_refused_before_torch_reads_it(kind, pt2, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.export, "load", lambda *_, **__: pytest.fail("torch was given it"))
    file = with_program(pt2, CRAFTED[kind])
    with pytest.raises(InputError, match=r"expected a \.pt2 that `export` wrote, found a text .* that torch would"):
        load_exported(file)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("change", ["operator", "outputs"])
def test_a_program_that_is_no_detector_fails_in_one_line(change, pt2):
    def changed(program):
        graph = program["graph_module"]["graph"]
        if change == "operator":  # IndexError: a dimension that is not there
            node = graph["nodes"][0]
            node["target"] = "torch.ops.aten.select.int"
            image = {"as_tensor": {"name": "image"}}
            node["inputs"] = [
                {"name": name, "kind": 1, "arg": arg}
                for name, arg in (("self", image), ("dim", {"as_int": 9}), ("index", {"as_int": 0}))
            ]
        else:  # two are no three
            graph["outputs"].pop()

    assert not read(with_program(pt2, changed))


def test_an_archive_is_read_by_one_reader_only(pt2, tmp_path):
    with zipfile.ZipFile(pt2) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    (program,) = (name for name in records if name.endswith(("model.json", "program.json")))
    for name, message in (
        ("detector/data/constants/OPAQUE_OBJ_0", "the record"),  # torch finds names in any case
        (program.upper(), "twice"),
        ("detector/models/other.json", "the record"),
        ("detector/aotinductor/model.so", "the record"),
    ):
        with zipfile.ZipFile(pt2, "w") as archive:
            for record, content in {**records, name: b"{}"}.items():
                archive.writestr(record, content)
        with pytest.raises(InputError, match=message):
            load_exported(pt2)


def test_a_pt2_without_checksums_is_refused(pt2):
    content = bytearray(pt2.read_bytes())
    with zipfile.ZipFile(pt2) as archive:
        for record in archive.infolist():
            if record.CRC:
                content = content.replace(record.CRC.to_bytes(4, "little"), bytes(4))
    pt2.write_bytes(content)
    with zipfile.ZipFile(pt2) as archive:
        assert not any(record.CRC for record in archive.infolist())
    with pytest.raises(InputError, match="CRC"):
        load_exported(pt2)


@pytest.mark.parametrize(
    "text",
    ["Mul(Integer(16), Symbol('s18', positive=True, integer=True))", "s0", "4*s0", "(s0 + 31)//32", "s0**2",
     "CeilToInt(FloatTrueDiv(Add(ToFloat(Symbol('s18', integer=True)), Float('-8.0', precision=53)), Float('16.0', "
     "precision=53)))", "Pow(Symbol('s0'), Integer(2))", "GreaterThan(Symbol('u0', integer=True), Integer(2))",
     "(1 + (((-1) + L['image'].size()[2]) // 16)) == (2 + 2*(((-1) + L['image'].size()[2]) // 32))", "s0 % 2 != 1",
     "torch.sym_min(1000, 9*(1 + L['image'].size()[1])) <= 9", "not (s0 == 1 or s1 < -2)"],
)  # fmt: skip
def test_what_torch_writes_of_sizes_is_in_the_grammar(text):
    assert pt2_archive._is_expression(text)


def test_an_exported_file_names_no_file_of_this_machine(pt2):
    with zipfile.ZipFile(pt2) as archive:
        text = b"".join(archive.read(name) for name in archive.namelist() if name.endswith(".json"))
    assert str(Path(__file__).parent).encode() not in text
    assert b"stack_trace" not in text
