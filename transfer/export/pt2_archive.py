"""The archive of an exported .pt2, checked before torch reads it, so that an untrusted file cannot run code.

`torch.export.load` evaluates sizes as Python (through SymPy's ``sympify``), compiles guards and the names of arguments
into a function, and finds operators by attribute access from ``torch``. So every text of its JSON must fit a grammar,
and torch gets a new archive of the checked records, not the file.
"""

import ast
import io
import json
import operator
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torchvision  # noqa: F401, registers its operators

from momentum_transfer.core.digests import verify_records
from momentum_transfer.core.errors import InputError, one_line, shown

KEY = "momentum-transfer"  # the extra record with the input specification

#: Records of torch's archives (from 2.8 on; before, `serialized_*`), below the archive's own name.
_RECORD = re.compile(
    r"models/model\.json|data/sample_inputs/model\.pt|archive_format|archive_version|byteorder|version"
    r"|data/(weights|constants)/(model_(weights|constants)_config\.json|model\.pt|(weight|tensor)_\d+)"
    r"|serialized_(exported_program\.json|(state_dict|constants|example_inputs)\.pt)"
    rf"|\.data/(version|serialization_id)|(extra|extra_files)/{KEY}"
)

_NAME = re.compile(r"[\w.]*", re.ASCII)
_RULES = {
    "as_string": re.compile(r"[ -~]{0,500}"),  # an operator's argument, or what an assertion says: never evaluated
    "type": re.compile(r"\w*|builtins\.(tuple|list|dict)", re.ASCII),  # of a device, of an argument
    "context": re.compile(r"null|\[\]"),  # of tuples, and of a dict without keys
    "torch_version": re.compile(r"[\w.+]+", re.ASCII),
}
_OPERATOR = re.compile(r"torch\.ops\.(aten|torchvision)\.\w+\.\w+", re.ASCII)
_FILES = ("torch.ops.aten.from_file.", "torch.ops.aten.save.")  # operators that open a file by name
_PLAIN = {"_operator.add", "_operator.sub", "_operator.mul", "_operator.truediv", "_operator.floordiv", "_operator.mod",
          "_operator.neg", "_operator.eq", "_operator.ne", "_operator.ge", "_operator.gt", "_operator.le",
          "_operator.lt", "_operator.and_", "_operator.or_", "_operator.getitem", "math.ceil", "math.floor",
          "math.trunc", "torch.sym_float", "torch.sym_int", "torch.sym_ite", "torch.sym_max", "torch.sym_min",
          "torch.sym_not", "torch.sym_sum"}  # fmt: skip

#: SymPy's and torch's functions of sizes.
_FUNCTIONS = {"Symbol", "Integer", "Float", "Add", "Mul", "Min", "Max", "Mod", "PythonMod", "ModularIndexing",
              "FloorDiv", "CleanDiv", "CeilDiv", "CeilToInt", "FloorToInt", "TruncToInt", "RoundToInt", "ToFloat",
              "IntTrueDiv", "FloatTrueDiv", "Identity", "Where", "Equality", "Unequality", "GreaterThan", "LessThan",
              "StrictGreaterThan", "StrictLessThan", "Eq", "Ne", "Ge", "Gt", "Le", "Lt", "And", "Or", "Not", "max",
              "min"}  # fmt: skip
_CHARACTERS = re.compile(r"[\w '()\[\].,+*/%<>=!&|~-]{1,65536}", re.ASCII)  # no comment, no second line
_WORD = re.compile(r"[A-Za-z_]\w{0,40}|-?\d{1,18}(\.\d{1,18})?(e[+-]?\d{1,3})?", re.ASCII)
_SYMBOL = re.compile(r"[a-z]+\d+")
_NUMBER = 1 << 63
_MOST_COMPARED = 32  # arguments of Max and Min, which SymPy compares one by one: 200 take minutes


def read_archive(path: Path) -> io.BytesIO:
    """The .pt2 for torch to read; InputError if it is damaged, or has records or texts that `export` does not write."""
    if not zipfile.is_zipfile(path):
        raise InputError(f"cannot read {path} as a torch.export program: it is no whole zip archive; export it again")
    verify_records(path)
    checked = io.BytesIO()
    try:
        with zipfile.ZipFile(path) as archive, zipfile.ZipFile(checked, "w") as fresh:
            if sum(record.file_size for record in archive.infolist()) > path.stat().st_size:
                raise _refused(path, "the records", "larger than the file")
            for record in archive.infolist():
                name = record.filename  # newer archives have a folder around all records
                name = name if _RECORD.fullmatch(name) else name.partition("/")[2]
                if not _RECORD.fullmatch(name) or record.compress_type != zipfile.ZIP_STORED:
                    raise _refused(path, "the record", record.filename)
                content = archive.read(record)
                if name.endswith(".json"):
                    _check_json(content, path)
                fresh.writestr(record.filename, content)
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError) as error:  # a CRC of zero is wrong here
        raise InputError(f"cannot read {path} as a torch.export program: {one_line(error)}; export it again") from error
    checked.seek(0)
    return checked


def _refused(path: Path, what: str, found: str) -> InputError:
    return InputError(f"expected a .pt2 that `export` wrote, found {what} {shown(found)} in {path}; export it again")


def _check_json(content: bytes, path: Path) -> None:
    try:
        texts = set(_texts(json.loads(content), ""))
    except (ValueError, RecursionError) as error:
        raise InputError(f"cannot read {path} as a torch.export program: {one_line(error)}; export it again") from error
    for key, text in texts:
        if not _allowed(key, text):
            raise _refused(path, f"a text of {key or 'the program'} that torch would evaluate:", text)


def _texts(node: Any, key: str) -> Iterator[tuple[str, str]]:
    """(key, text) of every text in a JSON tree; a list's entries have its key, keys themselves none."""
    if isinstance(node, dict):
        for name, value in node.items():
            yield "", name
            yield from _texts(value, name)
    elif isinstance(node, list):
        for value in node:
            yield from _texts(value, key)
    elif isinstance(node, str) and key in ("in_spec", "out_spec"):
        yield from _texts(json.loads(node), "type")
    elif isinstance(node, str):
        yield key.removesuffix("s") if key == "as_strings" else key, node


def _allowed(key: str, text: str) -> bool:
    if key in ("expr_str", "guards_code"):
        return _is_expression(text)
    if key in ("target", "as_operator"):
        return text in _PLAIN or _is_operator(text)
    if key in _RULES:
        return bool(_RULES[key].fullmatch(text))
    return bool(_NAME.fullmatch(text)) or (key == "" and _is_expression(text))  # ranges are kept by expression


def _is_operator(text: str) -> bool:
    if not _OPERATOR.fullmatch(text) or text.startswith(_FILES):
        return False
    try:
        return isinstance(operator.attrgetter(text.removeprefix("torch."))(torch), torch._ops.OpOverload)
    except (AttributeError, RuntimeError):
        return False


def _is_expression(text: str) -> bool:
    """Whether it is arithmetic of sizes: numbers, symbols, an argument's sizes, and functions of the list."""
    if not _CHARACTERS.fullmatch(text):
        return False
    try:
        node = ast.parse(text.strip(), mode="eval").body
        calls = [part for part in ast.walk(node) if isinstance(part, ast.Call) and isinstance(part.func, ast.Name)]
        compared = sum(len(call.args) for call in calls if ast.unparse(call.func) in ("Max", "Min"))
        return compared <= _MOST_COMPARED and _is_arithmetic(node)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _is_arithmetic(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=bool()):
            return True
        case ast.Constant(value=int() | float() as number):
            return abs(number) < _NUMBER
        case ast.Constant(value=str() as text):  # SymPy evaluates texts that are arguments
            return bool(_WORD.fullmatch(text))
        case ast.Name():
            return bool(_SYMBOL.fullmatch(node.id))
        case ast.BinOp(op=ast.Pow()):
            return _is_power(node.left, node.right)
        case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div() | ast.FloorDiv() | ast.Mod() | ast.BitAnd() |
                       ast.BitOr()):  # fmt: skip
            return _is_arithmetic(node.left) and _is_arithmetic(node.right)
        case ast.UnaryOp():
            return _is_arithmetic(node.operand)
        case ast.BoolOp():
            return all(map(_is_arithmetic, node.values))
        case ast.Compare():
            ordered = all(not isinstance(op, (ast.In, ast.NotIn, ast.Is, ast.IsNot)) for op in node.ops)
            return ordered and _is_arithmetic(node.left) and all(map(_is_arithmetic, node.comparators))
        case ast.Call(func=ast.Name(id="Pow"), args=[left, right], keywords=[]):
            return _is_power(left, right)
        case ast.Call():
            named = (word.value for word in node.keywords)  # assumptions of a symbol, a float's precision of 53 bits
            plain = all(isinstance(value, ast.Constant) and value.value in (True, False, 53) for value in named)
            return _is_function(node) and plain and all(map(_is_arithmetic, node.args))
        case ast.Subscript(value=ast.Call(func=ast.Attribute()), slice=ast.Constant(value=int())):
            return _is_arithmetic(node.value)
    return False


def _is_power(base: ast.expr, exponent: ast.expr) -> bool:
    """Only of a symbol, to a small whole number: 9**9**9 does not end."""
    symbol = isinstance(base, ast.Name) or (isinstance(base, ast.Call) and ast.unparse(base.func) == "Symbol")
    small = re.fullmatch(r"-?\d|Integer\(-?\d\)", ast.unparse(exponent))
    return symbol and _is_arithmetic(base) and bool(small)


def _is_function(call: ast.Call) -> bool:
    match call.func:
        case ast.Name(id="Float"):
            return len(call.args) == 1  # a second is its precision
        case ast.Name(id=name):
            return name in _FUNCTIONS
        case ast.Attribute(value=ast.Name(id="torch" | "math" as module), attr=name):
            return f"{module}.{name}" in _PLAIN
        case ast.Attribute(
            value=ast.Subscript(value=ast.Name(id="L"), slice=ast.Constant(value=str(argument))),
            attr="size" | "stride" | "storage_offset",
        ):
            return argument.isidentifier() and not call.args
    return False
