"""Attacks on checkpoints, weights, features and arrays: flipped bits in every region, impossible states, nesting."""

import contextlib
import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from momentum_transfer.backbones import convert
from momentum_transfer.backbones.convert import backbone_state
from momentum_transfer.backbones.read import load_backbone
from momentum_transfer.backbones.resnet import Architecture, build_resnet
from momentum_transfer.core.command import Stopped
from momentum_transfer.core.settings import load_config
from momentum_transfer.lowshot.features.feature_set import read_npz
from momentum_transfer.pretrain.config import get_cfg
from momentum_transfer.pretrain.train import train
from momentum_transfer.transfer.initial_weights import read_detector
from tests.attacks.annotations import changed
from tests.attacks.outcome import DONE, NASTY, STEERING, outcome_of
from tests.pretrain.conftest import TINY

FORMATS = (".pkl", ".pth", ".safetensors")
#: A place in a file (a share of its length) and which bit of the byte is flipped.
FLIPS = st.tuples(st.floats(0, 0.9999), st.integers(0, 7))
DIGEST = "content_sha256"


def flipped(content: bytes, where: float, bit: int) -> bytes:
    """The bytes with one bit turned."""
    place = int(where * len(content))
    return content[:place] + bytes([content[place] ^ (1 << bit)]) + content[place + 1 :]


class Weights:
    """The backbone of a network in each format that is written."""

    def __init__(self, folder: Path) -> None:
        self.folder, architecture = folder, Architecture("resnet10", 4, "imagenet")
        self.state = backbone_state(build_resnet(architecture))
        self.files = {suffix: folder / f"whole{suffix}" for suffix in FORMATS}
        for file in self.files.values():
            convert.write(file, self.state, architecture, {"network": "teacher", "source": "x"})
        self.content = {suffix: file.read_bytes() for suffix, file in self.files.items()}
        np.savez_compressed(folder / "whole.npz", features=np.random.default_rng(0).random((9, 7)), labels=np.arange(9))
        self.content[".npz"] = (folder / "whole.npz").read_bytes()
        self.features = read_npz(folder / "whole.npz").features

    def flip(self, suffix: str, place: tuple[float, int]) -> str:
        """Read after a flipped bit: refused, or the same in every bit."""
        file = self.folder / f"flipped{suffix}"
        file.write_bytes(flipped(self.content[suffix], *place))
        found: list[Any] = []
        reader: Callable[[Any], Any] = read_npz if suffix == ".npz" else load_backbone
        end = outcome_of(lambda: found.append(reader(file)))
        if end != DONE:
            return end
        if suffix == ".npz":
            same = np.array_equal(found[0].features, self.features)
        else:
            same = found[0].state.keys() == self.state.keys() and all(
                torch.equal(value, self.state[name]) for name, value in found[0].state.items()
            )
        return DONE if same else "silently wrong: other weights"

    def nested(self, tree: Any) -> str:
        """Any tree that torch saves, as weights and as a detector."""
        file = self.folder / "nested.pth"
        torch.save(tree, file)
        ends = [outcome_of(lambda: load_backbone(file)), outcome_of(lambda: read_detector(file))]
        return next((end for end in ends if end.startswith(("traceback", "slow", "memory", "exit"))), ends[0])


LEAVES = st.sampled_from(
    [None, 1, -1, 2.5, "x", "", b"x", True, torch.zeros(3), torch.zeros(0), torch.tensor(1), torch.zeros(4, 3, 7, 7),
     torch.full((2, 2), float("nan")), torch.zeros(2, dtype=torch.complex64), torch.zeros(1).expand(10**9),
     torch.zeros(2, dtype=torch.bool), torch.ones(1, dtype=torch.float16), torch.zeros(3).as_strided((3,), (0,))]
)  # fmt: skip
NAMES = st.sampled_from(
    ["model", "state_dict", "metadata", "format", "conv1.weight", "module.conv1.weight", "a.b", "", ".", "teacher.x", 1,
     None, 2.5, ("a",), True, "x" * 300, "\ud800", "optimizer", "student.backbone.conv1.weight", "stem.conv1.weight",
     *STEERING, "blocks.0[attn].qkv", "blocks.0.attn[]"]
)  # fmt: skip
TREES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3))


class Resumption:
    """A pretraining that was stopped after two of four steps, to be resumed after an attack on its checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        words = {**TINY, "OUTPUT_DIR": folder / "run"}
        self.cfg = load_config(get_cfg(), None, [str(word) for pair in words.items() for word in pair])
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Stopped):
            train(self.cfg, stop_after=2)
        shutil.copytree(folder / "run", folder / "stopped")
        (self.file,) = (folder / "stopped/checkpoints").glob("step_*")
        with contextlib.redirect_stdout(io.StringIO()):
            self.whole = load_backbone(train(self.cfg, resuming=True)).state
        self.state = torch.load(self.file, weights_only=True)
        self.state.pop(DIGEST, None)

    def _resumed(self) -> str:
        end = outcome_of(lambda: train(self.cfg, resuming=True))
        if end != DONE:
            return end
        found = load_backbone(self.folder / "run/backbone.safetensors").state
        same = all(torch.equal(value, self.whole[name]) for name, value in found.items())
        return DONE if same else "silently wrong: other weights"

    def _fresh(self) -> Path:
        shutil.rmtree(self.folder / "run")
        shutil.copytree(self.folder / "stopped", self.folder / "run")
        return self.folder / "run/checkpoints" / self.file.name

    def flip(self, place: tuple[float, int]) -> str:
        """A flipped bit in the checkpoint."""
        self._fresh().write_bytes(flipped(self.file.read_bytes(), *place))
        return self._resumed()

    def state_of(self, changes: list[tuple[float, Any]]) -> str:
        """Other values, outside of the tensors; without a digest, as earlier versions wrote."""
        file, shown = self._fresh(), {**self.state, "model": {}, "optimizer": {**self.state["optimizer"], "state": {}}}
        state = changed(shown, changes)
        if isinstance(state.get("model"), dict):
            state["model"] = self.state["model"]
        if isinstance(state.get("optimizer"), dict) and isinstance(state["optimizer"].get("state"), dict):
            state["optimizer"]["state"] = self.state["optimizer"]["state"]
        torch.save(state, file)
        return self._resumed()

    def pointer(self, content: bytes | None) -> str:
        """Another text in ``last``, or none."""
        pointer = self._fresh().parent / "last"
        pointer.unlink()
        if content is not None:
            pointer.write_bytes(content)
        return self._resumed()


STATES = st.lists(st.tuples(st.floats(0, 0.999), NASTY | st.sampled_from(["DELETE", 10**9, 3, torch.zeros(2)])),
                  min_size=1, max_size=1)  # fmt: skip
POINTERS = st.one_of(
    st.none(), st.binary(max_size=8),
    st.sampled_from([b"step_0000002.pt", b"../x", b"/etc/passwd", b"\xff", b"a\0b", b"x" * 400, b".", b".."]),
)  # fmt: skip
