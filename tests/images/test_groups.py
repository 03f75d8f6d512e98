"""groups.csv beside the images: which film, patient or site each is of."""

import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.images.groups import image_groups, read_groups


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
        ("a.jpg,x\nb.jpg,y\n", "expected every image in .*, found 1 of 3 absent, first 'c.jpg'"),
        ("a.jpg,x\nb.jpg,y\nc.jpg,x\n", "expected 3 groups or more, found 2"),
        ("a.jpg,x\nb.jpg,y\na.jpg,z\n", r"one group of 'a.jpg' in .*groups\.csv, found x and, in line 3, z"),
        ("a.jpg\n", r"two columns in .*groups\.csv, an image and its group, found \['a.jpg'\] in line 1"),
        ("a.jpg,x,1\nb.jpg,y,2\nc.jpg,z,3\n", r"two columns in .*groups\.csv.* found \['a.jpg', 'x', '1'\] in line 1"),
        ("a.jpg,x\nb.jpg\n", r"as many cells in every line of .*groups\.csv .* found 1 in line 2"),
        ("folder,2\n", r"folder,1 to folder,0 in .*groups\.csv.* found folder,2"),
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


def test_one_row_says_that_folders_are_groups(tmp_path):
    asked = files(tmp_path / "images", "site/film_03/1.jpg", "site/film_01/1.jpg", "b/film_03/2.jpg", "b/film_7/1.jpg")
    (tmp_path / "groups.csv").write_text("folder,1\n", encoding="utf-8")
    assert image_groups(asked).tolist() == [1, 0, 1, 2]
    (tmp_path / "groups.csv").write_text("folder;2\n", encoding="utf-8")
    with pytest.raises(InputError, match="3 groups or more, found 2"):
        image_groups(asked)
    rows = "folder,1\n" + "".join(f"{name},x{n}\n" for n, name in enumerate(asked))  # one row of several is an image
    (tmp_path / "groups.csv").write_text(rows.replace(f"{tmp_path}/", ""), encoding="utf-8")
    assert image_groups(asked).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("form", ["{0},{1}\n", "{0}\t{1}\n", "{0} ; {1}\r\n\r\n", "{0}.0,{1}\n", '"{0}","{1}"\n,\n'])
def test_groups_are_read_as_other_tools_write_them(tmp_path, form):
    rows = [form.format(n, group) for n, group in enumerate("abca")]
    (tmp_path / "g.csv").write_bytes(("\ufeff" + form.replace(".0", "").format("id", "film") + "".join(rows)).encode())
    assert read_groups(tmp_path / "g.csv", [(str(n),) for n in range(4)]).tolist() == [0, 1, 2, 0]


def test_a_row_that_is_the_id_of_one_image_and_the_file_of_another_is_refused(tmp_path):
    names = [(str(n), f"{n + 1}.jpg", str(n + 1)) for n in range(6)]
    (tmp_path / "g.csv").write_text("".join(f"{n},{n // 2}\n" for n in range(7)), encoding="utf-8")
    with pytest.raises(InputError, match=r"one group of each image in .*, found one that is '1' in 0 and '2' in 1"):
        read_groups(tmp_path / "g.csv", names)
    (tmp_path / "g.csv").write_text("".join(f"{n}.jpg,{n // 2}\n" for n in range(7)), encoding="utf-8")
    assert read_groups(tmp_path / "g.csv", names).tolist() == [0, 1, 1, 2, 2, 3]
