"""Attacks on what libraries read: images (Pillow), exported programs (torch evaluates their JSON)."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import PIL.EpsImagePlugin
import PIL.Image
import torch
from hypothesis import strategies as st

from momentum_transfer.images.reading import FORMATS, read_rgb, stored_values, upright_size
from momentum_transfer.transfer.export import write as exporting
from momentum_transfer.transfer.export.exported import InputSpec, load_exported
from tests.attacks.outcome import DONE, LINE, STEERING, outcome_of

#: What Pillow can read and must not: readers that start programs, or that nobody fuzzes.
UNLISTED = ("EPS", "PDF", "ICO", "PCX", "TGA", "SGI", "JPEG2000", "DDS")
#: Format, place of the change in the file, the bytes put there, how much is cut off, and the ending of the name.
IMAGES = st.tuples(
    st.sampled_from([*dict.fromkeys(FORMATS.values()), *UNLISTED]), st.floats(0, 0.999),
    st.binary(max_size=4) | st.sampled_from([b"\xff" * 8, bytes(8), b"%!PS-Adobe-3.0 EPSF-3.0\n"]),
    st.sampled_from([0, 0, 0.1, 0.9]), st.sampled_from(list(FORMATS)),
)  # fmt: skip


class Images:
    """A small image of every format, changed in a place and read by every reader."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        pixels = np.random.default_rng(0).integers(0, 255, (24, 32, 3), dtype=np.uint8)
        self.content = {}
        for kind in (*FORMATS.values(), *UNLISTED):
            stream = io.BytesIO()
            PIL.Image.fromarray(pixels).save(stream, kind)
            self.content[kind] = stream.getvalue()

    def changed(self, case: tuple[str, float, bytes, float, str]) -> str:
        """One line or an image of any content; Ghostscript is not started, and an unlisted format never read."""
        kind, place, new, cut, suffix = case
        content = bytearray(self.content[kind])
        begin = int(place * len(content))
        content[begin : begin + len(new)] = new
        path = self.folder / f"image{suffix}"
        path.write_bytes(content[: int(len(content) * (1 - cut))])
        with mock.patch.object(PIL.EpsImagePlugin, "Ghostscript") as started:
            ends = [
                outcome_of(lambda reader=reader: reader(path)) for reader in (read_rgb, upright_size, stored_values)
            ]
        if started.called:
            return "silently wrong: Ghostscript was started"
        if kind in UNLISTED and DONE in ends:
            return f"silently wrong: {kind} was read"
        return next((end for end in ends if end not in (DONE, LINE)), ends[0])


def _code(made: Path) -> tuple[str, ...]:
    """Python that makes a file, as expressions and as parts of a function's source."""
    touch = f"__import__('pathlib').Path({str(made)!r}).touch()"
    return (touch, f"x={touch}", f"1 == 1) or {touch} or (1", f"L['image'].size()[{touch}]", f"Mul(2, {touch!r})",
            f"s0\n  {touch}", f"[{touch} for s0 in (1,)][0]", f"(lambda: {touch})()", f"max(1, {touch})",
            f'a", {touch}) #', "9**9**9**9", "torch.os.system", "torch.ops.load_library", "torch.hub.load",
            "_operator.methodcaller", "os.system", "collections.defaultdict", *STEERING)  # fmt: skip


class Programs:
    """An exported program whose JSON has another text in a place, loaded and run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.made = folder, folder / "made"
        network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 32))
        sizes = {1: torch.export.Dim("h", min=40, max=64), 2: torch.export.Dim("w", min=40, max=64)}

        class Boxes(torch.nn.Module):
            def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
                boxes = network(image[None]).flatten(2)[0].T
                return boxes, boxes[:, 0], torch.zeros_like(boxes[:, 0], dtype=torch.int64)

        module = Boxes()
        module.network = network
        traced = torch.export.export(module, (torch.zeros(3, 40, 48),), dynamic_shapes={"image": sizes})
        wants = InputSpec(("a",), (1,), 40, 64, 1, (1.0, 2.0, 3.0))
        exporting._WRITERS["pt2"](traced, wants, folder / "whole.pt2")
        with zipfile.ZipFile(folder / "whole.pt2") as archive:
            self.records = {name: archive.read(name) for name in archive.namelist()}

    def changed(self, case: tuple[float, float, bool]) -> str:
        """Refused in one line, or run without what the text asks for."""
        place, which, in_keys = case
        codes = _code(self.made)
        text = codes[int(which * len(codes))]
        jsons = [name for name in self.records if name.endswith(".json")]
        program = next(name for name in jsons if name.endswith(("model.json", "program.json")))
        name = jsons[int(place * 997) % len(jsons)] if in_keys else program
        tree = json.loads(self.records[name])
        texts = [(parent, key) for parent, key in _texts(tree) if in_keys == (key is None)]
        parent, key = texts[int(place * len(texts))]
        if key is None:
            parent[text] = parent.pop(next(iter(parent)))
        else:
            parent[key] = text
        self.made.unlink(missing_ok=True)
        path = self.folder / "changed.pt2"
        with zipfile.ZipFile(path, "w") as archive:
            for record, content in self.records.items():
                archive.writestr(record, json.dumps(tree) if record == name else content)
        image = np.zeros((40, 48, 3), np.uint8)
        end = outcome_of(lambda: load_exported(path).predict(image))
        return "silently wrong: code was run" if self.made.exists() else end


def _texts(node: Any) -> list[tuple[Any, Any]]:
    """(parent, key) of every text of a tree, and (mapping, None) of every mapping that has a key."""
    pairs = list(node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ())
    found: list[tuple[Any, Any]] = [(node, None)] if isinstance(node, dict) and node else []
    for key, value in pairs:
        found += [(node, key)] if isinstance(value, str) else _texts(value)
    return found


PROGRAMS = st.tuples(st.floats(0, 0.999), st.floats(0, 0.999), st.booleans())
