"""Weights that cannot be read do not end a choice between the others."""

from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch
from safetensors.torch import load_file

from momentum_transfer.backbones.convert import write
from momentum_transfer.backbones.resnet import Architecture, build_resnet
from momentum_transfer.core.errors import InputError
from momentum_transfer.suites.choose.candidates import open_classes, read_candidates


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


def images(folder: Path, *counts: int, same: bool = False) -> Path:
    """A class folder for each of ``counts``, with that number of images of 16 px."""
    random = np.random.default_rng(0)
    for label, count in enumerate(counts):
        for number in range(count):
            (folder / f"c{label}").mkdir(parents=True, exist_ok=True)
            values = np.zeros((16, 16, 3)) if same else random.integers(0, 256, (16, 16, 3))
            PIL.Image.fromarray(values.astype(np.uint8)).save(folder / f"c{label}" / f"{number}.png")
    return folder


@pytest.mark.parametrize(
    ("scale", "reason"), [(1e30, "features of three hold NaN or infinite values"),
                          (1e-30, "expected features that differ between images, found the same for all")],
)  # fmt: skip
def test_a_network_whose_features_say_nothing_is_left_out_before_anything_runs(scale, reason, tmp_path: Path):
    files = weights(tmp_path, "one", "three", "fours")
    state = load_file(files[1])
    changed = {name: value * scale if value.dim() == 4 else value for name, value in state.items()}
    write(Path(files[1]), changed, Architecture("resnet10", 4), {})
    opened = open_classes(images(tmp_path / "images", 6, 6), None, 0.5, title="", seed=0, out=tmp_path)
    found, size, left_out = read_candidates(files, some=opened.some)
    assert ([one.name for one in found], size) == (["one", "fours"], 224)
    assert len(left_out) == 1
    assert f"three.safetensors is left out, because it cannot be used: {reason}" in left_out[0]
    assert len({one.baseline for one in found}) == 1


@pytest.mark.parametrize(
    ("counts", "same", "message"),
    [((1, 1, 1, 1), False, "two a class or more, found 3 images of 4 classes, 0 of the rarest; give more"),
     ((2, 2, 2), False, "two a class or more, found 3 images of 3 classes, 1 of the rarest"),
     ((6, 6), True, "images that differ, found the same 8 times")],
)  # fmt: skip
def test_images_that_say_nothing_are_refused_in_one_line(counts, same, message, tmp_path: Path):
    folder = images(tmp_path / "images", *counts, same=same)
    with pytest.raises(InputError, match=message) as error:
        open_classes(folder, None, 0.7, title="", seed=0, out=tmp_path)
    assert "\n" not in str(error.value)
