"""Images to predict on: which are found, under which names, and what becomes pixels."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.prediction.input_images import (
    InputImage,
    as_pixels,
    find_images,
    refuse_unreadable,
    unreadable,
)


def image(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (6, 4), (10, 20, 30)).save(file)
    return file


def test_folders_give_their_images_in_natural_order_named_by_their_place(tmp_path: Path):
    for name in ("f10.png", "f2.PNG", "sub/f1.jpg", ".hidden/a.png", ".a.png", "sub/.b.png"):
        image(tmp_path / "set" / name)
    (tmp_path / "set/notes.txt").write_text("x")
    (tmp_path / "set/folder.png").mkdir()
    single = image(tmp_path / "z.png")
    found = find_images([single, tmp_path / "set", str(single)])
    assert [one.name for one in found] == ["z.png", "f2.PNG", "f10.png", "sub/f1.jpg"]
    assert found[3].path == tmp_path / "set/sub/f1.jpg"


def test_nothing_to_predict_on_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="found none; name at least one"):
        find_images([])
    with pytest.raises(InputError, match="found none; check the path"):
        find_images([tmp_path])
    (tmp_path / "notes.txt").write_text("x")
    assert unreadable(find_images([tmp_path / "notes.txt"]))  # a file that was named is tried
    image(tmp_path / "a/x.png")
    image(tmp_path / "b/x.png")
    with pytest.raises(InputError, match=r"different names, found .*a.x\.png and .*b.x\.png"):
        find_images([tmp_path / "a", tmp_path / "b"])


def test_files_that_cannot_be_read_are_named_three_at_most(tmp_path: Path):
    whole = InputImage(image(tmp_path / "a.png"), "a.png")
    broken = []
    for number in range(5):
        file = tmp_path / f"broken{number}.png"
        file.write_bytes(b"no picture")
        broken.append(InputImage(file, file.name))
    odd = InputImage(image(tmp_path / "b.png"), "\udcff.png")
    wrong = unreadable([whole, *broken, odd])
    assert list(wrong) == [*broken, odd]
    assert wrong[odd].startswith("expected a file name in UTF-8")
    refuse_unreadable({})
    for count, more in ((1, ""), (3, ""), (4, " and 1 more"), (5, " and 2 more")):
        with pytest.raises(InputError) as refused:
            refuse_unreadable({one: wrong[one] for one in broken[:count]})
        text = str(refused.value)
        assert text.startswith(f"expected images, found {count} that cannot be read: ")
        assert [f"broken{k}.png" in text for k in range(5)] == [k < min(count, 3) for k in range(5)]
        assert text.partition("; remove them")[0].endswith(more) if more else " more; remove" not in text


def test_pixels_are_the_same_of_a_file_an_image_an_array_and_a_tensor(tmp_path: Path):
    file = image(tmp_path / "a.png")
    wanted = np.broadcast_to(np.array([10, 20, 30], np.uint8), (4, 6, 3))
    opened = Image.open(file)
    for given in (file, str(file), opened, np.asarray(opened), torch.from_numpy(wanted.transpose(2, 0, 1).copy())):
        assert np.array_equal(as_pixels(given), wanted)
    assert np.array_equal(as_pixels(np.full((4, 6), 7, np.uint8)), np.full((4, 6, 3), 7))
    assert as_pixels(np.zeros((3, 5, 3), np.uint8)).shape == (3, 5, 3)  # three rows: no tensor's order


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (np.zeros((4, 6, 3), np.float32), "uint8 .* found float32"),
        (np.zeros((4, 6, 4), np.uint8), r"shape \[4, 6, 4\]"),
        (np.zeros((4,), np.uint8), r"shape \[4\]"),
        (np.zeros((1, 4, 6, 3), np.uint8), r"shape \[1, 4, 6, 3\]"),
        (np.zeros((0, 6, 3), np.uint8), r"shape \[0, 6, 3\]"),
    ],
)
def test_what_is_no_image_is_refused(given: np.ndarray, said: str):
    with pytest.raises(InputError, match=said):
        as_pixels(given)
