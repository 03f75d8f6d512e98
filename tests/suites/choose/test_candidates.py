"""Weights that cannot be read do not end a choice between the others."""

from pathlib import Path

import pytest
import torch

from momentum_transfer.backbones.convert import write
from momentum_transfer.backbones.resnet import Architecture, build_resnet
from momentum_transfer.core.errors import InputError
from momentum_transfer.suites.choose.candidates import read_candidates


def weights(folder: Path, *names: str) -> list[str]:
    architecture = Architecture("resnet10", 4)
    for name in names:
        torch.manual_seed(len(name))
        write(folder / f"{name}.safetensors", build_resnet(architecture).state_dict(), architecture, {})
    return [str(folder / f"{name}.safetensors") for name in names]


def test_a_candidate_that_cannot_be_read_is_left_out_with_its_reason(tmp_path: Path, caplog):
    first, second = weights(tmp_path, "one", "three")
    broken = tmp_path / "broken.pth"
    broken.write_bytes(b"no checkpoint")
    candidates, _, left_out = read_candidates([first, str(broken), second])
    assert [one.name for one in candidates] == ["one", "three"]
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == left_out
    assert len(left_out) == 1
    assert left_out[0].startswith(f"{broken} is left out, because it cannot be used: ")


def test_one_candidate_of_several_is_nothing_to_choose_from(tmp_path: Path):
    (first,) = weights(tmp_path, "one")
    with pytest.raises(InputError, match=r"at least two weights to choose from, found 1; .*absent\.pth is left out"):
        read_candidates([first, str(tmp_path / "absent.pth")])
    assert [one.name for one in read_candidates([first])[0]] == ["one"]


def test_a_network_that_a_check_refuses_is_left_out_before_anything_runs(tmp_path: Path):
    def check(source) -> None:
        if source.name == "three":
            raise InputError("features of three hold NaN\nor infinite values")

    found, size, left_out = read_candidates(weights(tmp_path, "one", "three", "fours"), check=check)
    assert ([one.name for one in found], size) == (["one", "fours"], 224)
    assert len(left_out) == 1
    assert left_out[0].endswith("three.safetensors is left out, because it cannot be used: features of three hold NaN "
                                "or infinite values")  # fmt: skip
    assert len({one.baseline for one in found}) == 1
