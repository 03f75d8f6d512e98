import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from momentum_transfer.core import records as results
from momentum_transfer.core.errors import InputError
from momentum_transfer.transfer.run import Request, run
from momentum_transfer.transfer.torchvision_engine.backbone import dilate
from momentum_transfer.transfer.torchvision_engine.data import AnnotatedImage, Mapper
from momentum_transfer.transfer.torchvision_engine.engine import TorchvisionEngine
from momentum_transfer.transfer.torchvision_engine.segmentors import ASPP, DeepLabHead
from momentum_transfer.transfer.torchvision_engine.semantic_run import SemanticMapper, _Joined, unsupported
from momentum_transfer.transfer.torchvision_engine.semantic_run import build as build_segmentor
from tests.transfer.torchvision_engine.tiny import SEGMENTORS, tiny_config, tiny_samples, train_tiny

SHORT = ["SOLVER.MAX_ITER", "4", "SOLVER.WARMUP_ITERS", "1", "SOLVER.BASE_LR", "0.05", "TEST.VISUALS", "0"]


def write_labels(folder, images=4, size=64):
    """A red rectangle of class 1 and a blue one of class 2; the name that ``get_semantic_dataset`` takes."""
    random = np.random.default_rng(0)
    for part in ("images", "labels"):
        (folder / part).mkdir(parents=True)
    for number in range(images):
        labels = np.zeros((size, size), dtype=np.uint8)
        labels[8:40, 4:28], labels[20:56, 36:60] = 1, 2
        picture = random.integers(0, 40, (size, size, 3), dtype=np.uint8)
        picture[labels == 1, 0], picture[labels == 2, 2] = 220, 220
        Image.fromarray(picture).save(folder / f"images/{number}.png")
        Image.fromarray(labels).save(folder / f"labels/{number}.png")
    return f"{folder / 'images'}:{folder / 'labels'}:3"


def labels_config(name, folder, *overrides):
    known = f"{folder / 'data/images'}:{folder / 'data/labels'}:3"
    data = repr((known if (folder / "data").exists() else write_labels(folder / "data"),))
    return tiny_config(name, "DATASETS.TRAIN", data, "DATASETS.TEST", data, "OUTPUT_DIR", str(folder / "out"),
                       "ENGINE", "torchvision", "SOLVER.STEPS", "()", *SHORT, *overrides)  # fmt: skip


@pytest.mark.parametrize(("name", "stride"), [("stride8", 8), ("stride16", 16)])
def test_features_have_the_output_stride_and_logits_the_images_size(name, stride):
    model = build_segmentor(tiny_config(name)).eval()
    x = torch.rand(1, 3, 64, 96)
    with torch.no_grad():
        features = model.backbone(x)["res5"]
        assert features.shape[-2:] == (64 // stride, 96 // stride)
        assert model.sem_seg_head(features).shape == (1, 3, 64, 96)


def test_a_dilated_stage_sees_what_the_strided_one_sees():
    # on every second pixel the dilated convolution computes what the strided network's next layer computes
    torch.manual_seed(0)
    strided = torch.nn.Sequential(torch.nn.Conv2d(2, 2, 3, stride=2, padding=1), torch.nn.Conv2d(2, 2, 3, padding=1))
    dilated = torch.nn.Sequential(torch.nn.Conv2d(2, 2, 3, padding=1), torch.nn.Conv2d(2, 2, 3, padding=1))
    dilated.load_state_dict(strided.state_dict())
    dilate(torch.nn.Sequential(dilated[1]), [2])
    x = torch.rand(1, 2, 16, 16)
    torch.testing.assert_close(dilated(x)[:, :, 2:-2:2, 2:-2:2], strided(x)[:, :, 1:-1, 1:-1])


def test_a_pooling_window_of_the_features_size_is_global_pooling():
    torch.manual_seed(0)
    windowed, whole = (ASPP(8, 4, [1, 2, 3], norm="", pool=pool, dropout=0.0).eval() for pool in ((4, 6), None))
    whole.load_state_dict(windowed.state_dict())
    x = torch.rand(2, 8, 4, 6)
    torch.testing.assert_close(windowed(x), whole(x))
    with pytest.raises(InputError, match=r"multiples of INPUT.CROP.SIZE"):
        windowed(torch.rand(2, 8, 5, 6))


def test_the_loss_leaves_ignored_pixels_out_and_hard_mining_takes_the_worst_fifth():
    torch.manual_seed(0)
    logits, labels = torch.randn(1, 3, 10, 10), torch.randint(0, 3, (1, 10, 10))
    labels[0, :2] = 255
    by_pixel = []
    for y in range(10):
        for x in range(10):
            label = labels[0, y, x].item()
            exps = [math.exp(v) for v in logits[0, :, y, x]]
            by_pixel.append(0.0 if label == 255 else -math.log(exps[label] / sum(exps)))
    aspp = ASPP(8, 4, [1, 2, 3], norm="", pool=None, dropout=0.0)
    settings = {"stride": 8, "ignore": 255, "weight": 2.0}
    plain = DeepLabHead(aspp, 4, 3, hard_pixels=False, **settings).loss(logits, labels)
    hard = DeepLabHead(aspp, 4, 3, hard_pixels=True, **settings).loss(logits, labels)
    assert plain.item() == pytest.approx(2 * sum(by_pixel) / 80, rel=1e-5)
    assert hard.item() == pytest.approx(2 * sum(sorted(by_pixel)[-20:]) / 20, rel=1e-5)


def test_hard_mining_takes_the_worst_fifth_of_all_images_together():
    torch.manual_seed(0)
    labels = torch.randint(0, 3, (2, 10, 10))
    logits = torch.randn(2, 3, 10, 10) * torch.tensor([0.1, 4.0])[:, None, None, None]  # the second one is harder
    head = DeepLabHead(
        ASPP(8, 4, [1, 2, 3], norm="", pool=None, dropout=0.0), 4, 3, stride=8, ignore=255, hard_pixels=True, weight=1.0
    )
    by_pixel = -logits.log_softmax(dim=1).gather(1, labels[:, None])
    worst = sorted(by_pixel.flatten().tolist())[-40:]
    assert head.loss(logits, labels).item() == pytest.approx(sum(worst) / 40, rel=1e-5)


def test_images_of_different_sizes_are_padded_with_ignored_pixels():
    model = build_segmentor(tiny_config("stride8"))
    samples = tiny_samples([(64, 64), (48, 56)])
    for sample in samples:
        sample.labels = torch.ones(sample.image.shape[1:], dtype=torch.int64)
    labels = model._labels(samples, (64, 64))
    assert (labels[0] == 1).all()
    assert (labels[1, :48, :56] == 1).all()
    assert (labels[1] == 255).sum() == 64 * 64 - 48 * 56


@pytest.fixture
def picture(tmp_path):
    """An image whose red channel tells the label of each pixel."""
    labels = np.random.default_rng(0).integers(0, 10, (40, 50)).astype(np.uint8)
    pixels = np.stack((labels * 20, labels, labels), axis=2).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "0.png")
    return AnnotatedImage(tmp_path / "0.png", 0, 40, 50, ()), labels


def test_image_and_labels_are_cropped_and_flipped_alike(picture):
    mapper = SemanticMapper(Mapper([40], 999, bgr=False, mask_format=None, flip=True), (24, 32))
    seen = set()
    for seed in range(12):
        sample = mapper.train(*picture, np.random.default_rng(seed))
        assert sample.image.shape == (3, 24, 32)
        assert torch.equal(sample.image[0].long(), sample.labels * 20)
        seen.add(tuple(sample.labels[0].tolist()))
    assert len(seen) > 6


def test_a_crop_is_drawn_again_while_one_class_fills_it(picture):
    image, labels = picture
    labels = labels.copy()
    labels[:, :40] = 0  # most crops hold class 0 alone
    plain = Mapper([40], 999, bgr=False, mask_format=None, flip=False)
    limited, free = SemanticMapper(plain, (10, 10), 0.9), SemanticMapper(plain, (10, 10))
    count = [
        sum(len(mapper.train(image, labels, np.random.default_rng(s)).labels.unique()) > 1 for s in range(40))
        for mapper in (limited, free)
    ]
    assert count[0] > 1.5 * count[1]


@pytest.mark.parametrize("name", SEGMENTORS)
def test_deeplab_overfits_four_images(name, tmp_path):
    settings = ["SOLVER.MAX_ITER", "40", "SOLVER.IMS_PER_BATCH", "4", "MODEL.SEM_SEG_HEAD.LOSS_TYPE", "cross_entropy"]
    precise = ["TEST.PRECISE_BN.ENABLED", "True", "TEST.PRECISE_BN.NUM_ITER", "4"]
    cfg = labels_config(name, tmp_path, *settings, *precise)
    run(cfg, Request("none"))
    records, problems = results.read(tmp_path / "out/results.jsonl")
    assert problems == []
    value = next(r["value"] for r in records if r["task"] == "semantic" and r["metric"] == "mIoU")
    assert value >= 60


def test_the_same_seed_gives_the_same_network(tmp_path):
    cfg = labels_config("stride16", tmp_path, "INPUT.RANDOM_FLIP", "horizontal", "SOLVER.CHECKPOINT_PERIOD", "2")
    engine = TorchvisionEngine()
    whole = torch.load(train_tiny(engine, cfg, 1, tmp_path / "a").weights, weights_only=True)["model"]
    again = torch.load(train_tiny(engine, cfg, 1, tmp_path / "b").weights, weights_only=True)["model"]
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_a_class_count_that_differs_from_the_datas_is_refused(tmp_path):
    cfg = labels_config("stride8", tmp_path, "MODEL.SEM_SEG_HEAD.NUM_CLASSES", "5")
    with pytest.raises(InputError, match=r"NUM_CLASSES is 5, but .* has 3 classes"):
        run(cfg, Request("none"))


def test_a_label_that_stands_for_no_class_is_named(tmp_path):
    cfg = labels_config("stride8", tmp_path)
    Image.fromarray(np.full((64, 64), 7, dtype=np.uint8)).save(tmp_path / "data/labels/2.png")
    with pytest.raises(InputError, match=r"expected labels 0..2 or 255 in .*2\.png, found \[7\]"):
        run(cfg, Request("none"))


def test_labels_of_another_size_than_their_image_are_named(tmp_path):
    cfg = labels_config("stride8", tmp_path)
    Image.fromarray(np.zeros((32, 64), dtype=np.uint8)).save(tmp_path / "data/labels/2.png")
    with pytest.raises(InputError, match=r"expected labels of 64×64 pixels as .*2\.png has, found 64×32"):
        run(cfg, Request("none"))


def test_an_unreadable_image_is_named(tmp_path):
    cfg = labels_config("stride8", tmp_path)
    (tmp_path / "data/images/1.png").write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"cannot read the image .*1\.png"):
        run(cfg, Request("none"))


def test_a_set_without_a_labelled_pixel_is_refused(tmp_path):
    cfg = labels_config("stride8", tmp_path)
    for file in (tmp_path / "data/labels").iterdir():
        Image.fromarray(np.full((64, 64), 255, dtype=np.uint8)).save(file)
    with pytest.raises(InputError, match=r"every pixel of .* is labelled to be ignored"):
        run(cfg, Request("none"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("INPUT.CROP.SIZE [96,96]", r"CROP.SIZE \[96, 96\] does not fit into .*0\.png resized to \[64, 64\]"),
        ("INPUT.CROP.SIZE [48,48]", r"0\.png resized to \[64, 64\] is no multiple of INPUT.CROP.SIZE \[48, 48\]"),
    ],
)
def test_crops_that_do_not_fit_the_images_are_refused_before_training(settings, message, tmp_path):
    crop = ["INPUT.CROP.ENABLED", "True", "INPUT.CROP.TYPE", "absolute", *settings.split()]
    with pytest.raises(InputError, match=message):
        run(labels_config("stride8", tmp_path, *crop), Request("none"))


def test_classes_examples_and_predictions_are_drawn(tmp_path):
    run(labels_config("stride16", tmp_path, "TEST.VISUALS", "2"), Request("none"))
    names = {path.name.split("labels_3_")[-1] for path in (tmp_path / "out/data").iterdir()}
    assert names == {"classes.csv", "classes.png", "example_1.png", "example_2.png"}
    table = next((tmp_path / "out/data").glob("*.csv")).read_text().splitlines()
    assert table == ["class,images,pixels", f"0,4,{4 * (64 * 64 - 32 * 24 - 36 * 24)}", "1,4,3072", "2,4,3456"]
    drawn = sorted((tmp_path / "out/visuals").glob("*.png"))
    assert [path.name for path in drawn] == ["0.png", "2.png"]
    row = np.asarray(Image.open(drawn[0]))
    assert row.shape == (20 + 256, 3 * 256 + 8, 3)
    image, truth = row[20:, :256].astype(int), row[20:, 260:516].astype(int)
    assert np.array_equal(image[:30], truth[:30])  # background stays as it is
    assert np.abs(image[60:150, 30:100] - truth[60:150, 30:100]).min(axis=(0, 1)).max() > 20


def test_settings_that_do_not_fit_together_are_refused():
    assert unsupported(tiny_config("stride8")) is None
    assert "dilated backbone's 8" in unsupported(tiny_config("stride8", "MODEL.SEM_SEG_HEAD.COMMON_STRIDE", "16"))
    crop = ["INPUT.CROP.ENABLED", "True", "INPUT.CROP.TYPE", "absolute", "INPUT.CROP.SIZE", "[60, 64]"]
    assert "multiple of 8" in unsupported(tiny_config("stride8", *crop))


def test_upsampling_is_bilinear_from_cell_centres():
    x = torch.tensor([[[[0.0, 8.0]]]])
    up = F.interpolate(x, scale_factor=8, mode="bilinear", align_corners=False)[0, 0, 0]
    assert up[:4].tolist() == [0.0] * 4
    assert up[4].item() == pytest.approx(0.5)


@pytest.mark.parametrize(("limit", "share"), [(0.9, 1.0), (1.0, 0.7)])
def test_a_crop_has_two_classes_or_more_none_above_its_share(limit, share, picture):
    image, labels = picture
    labels = np.zeros_like(labels)
    labels[::5, 1:25:5] = 1  # a few pixels of another class on the left, half of them on the right
    labels[::2, 25:] = 1
    labels[:, 49] = 255  # ignored pixels do not count
    mapper = SemanticMapper(Mapper([40], 999, bgr=False, mask_format=None, flip=False), (10, 10), limit)
    shares = []
    for seed in range(30):
        found = mapper.train(image, labels, np.random.default_rng(seed)).labels
        counts = torch.bincount(found[found != 255].flatten(), minlength=2)
        shares.append((counts.max() / counts.sum()).item())
    assert np.mean([one < 0.9 for one in shares]) <= share
    assert np.mean([one < 0.9 for one in shares]) > share - 0.4
    if limit < 1:
        assert max(shares) < limit


def test_an_index_runs_through_all_training_sets():
    class Named:
        def __init__(self, name, count):
            self.name, self.count = name, count

        def __len__(self):
            return self.count

        def __getitem__(self, place):
            return self.name, place

    joined = _Joined([Named("a", 2), Named("b", 3), Named("c", 1)])
    found = [joined[(9, index)] for index in range(len(joined))]
    assert found == [("a", (9, 0)), ("a", (9, 1)), ("b", (9, 0)), ("b", (9, 1)), ("b", (9, 2)), ("c", (9, 0))]
    with pytest.raises(IndexError):
        joined[(9, 6)]
