import numpy as np
import PIL.Image
import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.images.labelled_images import CLASSES, VocImages


@pytest.fixture
def devkit(tmp_path):
    """Three images: a cat, a difficult cat with a dog, nothing but a person."""
    (tmp_path / "JPEGImages").mkdir()
    (tmp_path / "ImageSets" / "Main").mkdir(parents=True)
    flags = {"cat": (1, 0, -1), "dog": (-1, 1, -1), "person": (-1, -1, 1)}
    for name in CLASSES:
        lines = [f"00000{i} {flag:2d}\n" for i, flag in enumerate(flags.get(name, (-1, -1, -1)))]
        (tmp_path / "ImageSets" / "Main" / f"{name}_test.txt").write_text("".join(lines))
    for i in range(3):
        PIL.Image.new("L", (8, 6), 40 * i).save(tmp_path / "JPEGImages" / f"00000{i}.jpg")
    return tmp_path


def test_labels_are_multi_hot_and_difficult_counts_as_absent(devkit):
    data = VocImages(devkit, "test")
    shown = [[CLASSES[k] for k in np.flatnonzero(row)] for row in data.labels]
    assert shown == [["cat"], ["dog"], ["person"]]
    assert data.labels.shape == (3, 20)
    image, _ = data[2]
    assert (image.mode, image.size) == ("RGB", (8, 6))
    assert len(data) == 3


def test_damaged_folders_are_refused(devkit):
    with pytest.raises(InputError, match="a VOC 2007 split of train, val, trainval, test, found 'all'"):
        VocImages(devkit, "all")
    with pytest.raises(InputError, match=r"image list .*aeroplane_trainval\.txt"):
        VocImages(devkit, "trainval")
    (devkit / "JPEGImages" / "000001.jpg").unlink()
    with pytest.raises(InputError, match="1 images of VOC 2007 test are missing"):
        VocImages(devkit, "test")
    listing = devkit / "ImageSets" / "Main" / "dog_test.txt"
    listing.write_text("000000 1\n")
    with pytest.raises(InputError, match="name different images"):
        VocImages(devkit, "test")
    listing.write_text("000000 yes\n")
    with pytest.raises(InputError, match=r"expected an image and 1, 0 or -1 in .*:1"):
        VocImages(devkit, "test")
