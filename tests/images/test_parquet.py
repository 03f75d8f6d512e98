"""Images of Hugging Face's tables are packed in their order, with labels and class names; bad tables are one line."""

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pyarrow
import pyarrow.parquet
import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.images.datasets import build_dataset, packed_folders
from momentum_transfer.images.parquet import tables
from momentum_transfer.images.tar_shards import ShardImages

CLASSES = ["cat/tiger", "ant", "bee.x"]


def pixels(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (9, 12, 3), dtype=np.uint8)


def file_bytes(number: int, kind: str = "PNG") -> bytes:
    stream = io.BytesIO()
    PIL.Image.fromarray(pixels(number)).save(stream, kind)
    return stream.getvalue()


def table(numbers: range, names: list[str] | None = CLASSES, **columns: Any) -> pyarrow.Table:
    """As ``datasets`` writes it: an image is a struct, the features stand in the description."""
    images = [{"bytes": file_bytes(k), "path": f"{k}.PNG" if k % 2 else None} for k in numbers]
    made = pyarrow.table({"image": images, "label": [k % 3 for k in numbers], **columns})
    features: dict[str, Any] = {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
    return made.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})} if names else {})


def write(made: pyarrow.Table, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(made, path, row_group_size=2)
    else:
        with pyarrow.OSFile(str(path), "wb") as sink, pyarrow.ipc.new_stream(sink, made.schema) as writer:
            writer.write_table(made, max_chunksize=2)
    return path


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_packed_tables_hold_the_rows_images_labels_and_class_names(ending: str, tmp_path: Path):
    write(table(range(5)), tmp_path / "set" / "data" / f"train-00000-of-00002.{ending}")
    write(table(range(5, 9)), tmp_path / "set" / "data" / f"train-00001-of-00002.{ending}")
    write(table(range(20, 23)), tmp_path / "set" / "validation" / f"data-00000.{ending}")
    packed_folders(tmp_path / "set", tmp_path / "out")
    for split, numbers in (("train", range(9)), ("val", range(20, 23))):
        data = build_dataset("imagefolder", tmp_path / "out", split)
        assert data.classes == ["cat_tiger", "ant", "bee.x"]
        assert data.labels.tolist() == [k % 3 for k in numbers]
        for row, number in enumerate(numbers):
            np.testing.assert_array_equal(np.asarray(data[row][0]), pixels(number))


def test_tables_without_a_description_go_by_the_columns_names_and_formats_by_the_bytes(tmp_path: Path):
    made = pyarrow.table({"image": [{"bytes": file_bytes(k, "JPEG"), "path": None} for k in range(3)], "id": [1, 2, 3]})
    write(made, tmp_path / "set" / "all.parquet")
    packed_folders(tmp_path / "set", tmp_path / "out")
    data = build_dataset("imagefolder", tmp_path / "out")
    assert data.classes == ["unlabelled"]
    assert isinstance(data, ShardImages)
    assert [os.fsdecode(path) for path in data.paths] == [f"{k:08d}.jpg" for k in range(3)]


def test_splits_are_words_of_the_paths(tmp_path: Path):
    for name in ("data/train-0.parquet", "data/test-0.parquet", "dev/data-0.arrow", "trainer.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = {
        split: [path.relative_to(tmp_path).as_posix() for path in paths] for split, paths in tables(tmp_path).items()
    }
    assert found == {
        "train": ["data/train-0.parquet", "trainer.parquet"],
        "test": ["data/test-0.parquet"],
        "val": ["dev/data-0.arrow"],
    }


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (b"PAR1 cut", "expected a table of images in .*train.parquet, found"),
        (pyarrow.table({"picture": [b"x"]}), "expected one column of images .*found 'picture'"),
        (pyarrow.table({"image": ["a.png"]}), "expected one column of images .*found 'image'"),
        (pyarrow.table({"image": [{"bytes": None, "path": "a.png"}]}), "expected images within .* found row 0 without"),
        (table(range(2)).replace_schema_metadata({"huggingface": "[]"}), "expected a table of images"),
    ],
)
def test_bad_tables_are_refused_in_one_line_and_leave_no_archive(made: Any, message: str, tmp_path: Path):
    path = tmp_path / "set" / "train.parquet"
    path.parent.mkdir()
    if isinstance(made, bytes):
        path.write_bytes(made)
    else:
        write(made, path)
    with pytest.raises(InputError, match=message) as error:
        packed_folders(tmp_path / "set", tmp_path / "out")
    assert "\n" not in str(error.value)
    assert list((tmp_path / "out").glob("*")) == []


def test_a_folder_of_tables_that_was_not_packed_says_how(tmp_path: Path):
    write(table(range(2)), tmp_path / "set" / "train" / "data-0.arrow")
    with pytest.raises(InputError, match=r"found tables; momentum-transfer data pack .*set --shards OUT"):
        build_dataset("imagefolder", tmp_path / "set")


def test_a_damaged_file_among_sound_ones_leaves_nothing_of_any_split(tmp_path: Path):
    for name in ("test-0", "train-0", "train-1"):
        write(table(range(3)), tmp_path / "set" / f"{name}.parquet")
    sound = (tmp_path / "set" / "train-1.parquet").read_bytes()
    (tmp_path / "set" / "train-1.parquet").write_bytes(sound[: len(sound) // 2])
    with pytest.raises(InputError, match=r"expected a table of images in .*train-1"):
        packed_folders(tmp_path / "set", tmp_path / "out", shard_bytes=1)
    assert list((tmp_path / "out").iterdir()) == []
    (tmp_path / "set" / "train-1.parquet").write_bytes(sound)
    packed_folders(tmp_path / "set", tmp_path / "out")
    assert [len(build_dataset("imagefolder", tmp_path / "out", split)) for split in ("train", "test")] == [6, 3]


def test_a_class_of_many_images_is_no_place_of_tables_but_pictures_beside_tables_are(tmp_path: Path):
    for k in range(120):
        for folder in ("train/cat", "train/dog"):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / f"{k}.JPEG").touch()
    assert tables(tmp_path) == {}
    (tmp_path / "logo.png").touch()
    (tmp_path / "train" / "data-0.arrow").touch()
    assert tables(tmp_path) == {"train": [tmp_path / "train" / "data-0.arrow"]}


def test_an_image_column_is_known_by_its_fields_not_by_the_text_of_its_type(tmp_path: Path):
    odd = pyarrow.table({"image": [{"kilobytes": 1, "path": "bytes: binary"}]})
    write(odd, tmp_path / "set" / "train.parquet")
    with pytest.raises(InputError, match="expected one column of images"):
        packed_folders(tmp_path / "set", tmp_path / "out")
