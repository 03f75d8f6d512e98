"""groups.csv beside the images: which film, patient or site each is of."""

import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.images.groups import image_groups


def files(folder, *names):
    return [str(folder / name) for name in names]


def test_images_are_named_by_path_or_by_name_and_a_heading_is_no_image(tmp_path):
    (tmp_path / "test").mkdir()
    rows = "image,group\ntest/a/1.jpg,x\n2.jpg,y\n\ntest/b/1.jpg, z\ntest/b/2.jpg,y\n"
    (tmp_path / "groups.csv").write_text(rows, encoding="utf-8")
    asked = files(tmp_path / "test", "b/1.jpg", "a/1.jpg", "b/2.jpg", "a/2.jpg")
    assert image_groups(asked).tolist() == [2, 0, 1, 1]
    (tmp_path / "test" / "groups.csv").write_text("b/1.jpg;x\na/1.jpg;x\n2.jpg;y\na/2.jpg;z\n", encoding="utf-8")
    assert image_groups(asked).tolist() == [0, 0, 1, 2]  # the nearer file


def test_without_a_file_there_are_no_groups(tmp_path):
    assert image_groups(files(tmp_path, "a.jpg", "b.jpg")) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.jpg,x\nb.jpg,y\n", "expected every test image in .*, found none of 1, first 'c.jpg'"),
        ("a.jpg,x\nb.jpg,y\nc.jpg,x\n", "expected 3 groups or more, found 2"),
        ("a.jpg,x\nb.jpg,y\na.jpg,z\n", r"an image and its one group in .*groups\.csv:3"),
        ("a.jpg\n", r"an image and its one group in .*groups\.csv:1"),
        ("a.jpg,x\nb.jpg,y\nc.jpg,x\n", r"found 2.*groups\.csv"),
    ],
)
def test_a_file_that_does_not_say_every_group_is_refused(tmp_path, text, message):
    (tmp_path / "groups.csv").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        image_groups(files(tmp_path, "a.jpg", "b.jpg", "c.jpg"))


def test_a_name_of_several_images_is_refused(tmp_path):
    (tmp_path / "groups.csv").write_text("1.jpg,x\n2.jpg,y\n3.jpg,z\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"each image once in .*groups\.csv, found '1.jpg' to be several"):
        image_groups(files(tmp_path, "a/1.jpg", "b/1.jpg", "2.jpg", "3.jpg"))
    assert image_groups([]) is None
