"""Linear segmentation probe: its loss by hand, features once and for all, and equal results with and without them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from momentum_transfer.transfer.torchvision_engine import semantic_run
from momentum_transfer.transfer.torchvision_engine.capabilities import unsupported
from momentum_transfer.transfer.torchvision_engine.engine import TorchvisionEngine, build
from momentum_transfer.transfer.torchvision_engine.segmentors import LinearHead, LinearSegmentor
from tests.transfer.torchvision_engine.test_capabilities import LINEAR
from tests.transfer.torchvision_engine.test_semantic import labels_config
from tests.transfer.torchvision_engine.tiny import predict_tiny, tiny_samples, train_tiny

SHORT = ["SOLVER.MAX_ITER", "3", "SOLVER.STEPS", "()", "SOLVER.CHECKPOINT_PERIOD", "9", "SOLVER.OPTIMIZER", "AdamW"]


def test_the_head_is_batch_norm_and_a_convolution_of_one_pixel():
    torch.manual_seed(0)
    head = LinearHead(6, 3, "BN", 255, 1.0).train()
    maps = torch.randn(2, 6, 4, 5)
    found = torch.stack(head(list(maps)))
    normed = F.batch_norm(maps, None, None, training=True)
    wanted = F.conv2d(normed, head.predictor.weight[:, :, None, None], head.predictor.bias)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_the_loss_is_the_mean_over_counted_pixels_of_images_of_any_size():
    torch.manual_seed(0)
    head = LinearHead(6, 3, "", 255, 2.0)
    logits = [torch.randn(3, 4, 5), torch.randn(3, 2, 7)]
    labels = [torch.randint(0, 3, (4, 5)), torch.randint(0, 3, (2, 7))]
    labels[0][1] = 255
    pairs = [(s[:, y, x], int(w[y, x])) for s, w in zip(logits, labels, strict=True) for y in range(w.shape[0])
             for x in range(w.shape[1]) if w[y, x] != 255]  # fmt: skip
    wanted = 2.0 * sum(-torch.log_softmax(s, 0)[k] for s, k in pairs) / len(pairs)
    torch.testing.assert_close(head.loss(logits, labels), wanted, rtol=1e-5, atol=1e-6)


def test_an_images_features_do_not_depend_on_its_batch(tmp_path):
    cfg = labels_config("stride16", tmp_path, *LINEAR)
    network = build(cfg).eval()
    assert isinstance(network, LinearSegmentor)
    samples = tiny_samples(((64, 64), (48, 70)))
    with torch.no_grad():
        together, alone = network(samples), [network([sample])[0] for sample in samples]
    assert all(torch.equal(a, b) for a, b in zip(together, alone, strict=True))
    assert network.features(samples[1].image).shape[-2:] == (2, 3)


def test_only_the_head_learns_and_cached_features_give_the_same_bits(tmp_path, monkeypatch):
    computed = []
    original = LinearSegmentor.features
    monkeypatch.setattr(LinearSegmentor, "features", lambda self, image: computed.append(1) or original(self, image))
    engine, runs = TorchvisionEngine(), {}
    for name, gigabytes in (("cached", "1"), ("again", "1"), ("not", "0")):
        computed.clear()
        cfg = labels_config("stride16", tmp_path, *LINEAR, *SHORT, "MODEL.SEM_SEG_HEAD.CACHE_GB", gigabytes)
        finetuned = train_tiny(engine, cfg, 0, tmp_path / name)
        runs[name] = torch.load(finetuned.weights, weights_only=True)["model"], len(computed)
    states, counts = zip(*runs.values(), strict=True)
    assert counts[0] == 5  # four images, one of them also to know the size
    assert counts[1] == 1
    assert counts[2] == 1 + 3 * 2
    for other in states[1:]:
        assert all(torch.equal(value, other[key]) for key, value in states[0].items())
    cfg = labels_config("stride16", tmp_path, *LINEAR, *SHORT)
    fresh = predict_tiny(engine, cfg, tmp_path / "cached/model_final.pth", tmp_path / "predictions")[0]
    assert len(list(fresh.results.iterdir())) == 4


def test_features_are_another_entry_where_backbone_or_size_differ(tmp_path):
    from momentum_transfer.transfer.tasks import open_task

    cfg = labels_config("stride16", tmp_path, *LINEAR)
    data, network = open_task(cfg).train[0], build(cfg)
    key = semantic_run._key_of(cfg, network, data)
    assert key == semantic_run._key_of(cfg, network, data)
    larger = labels_config("stride16", tmp_path, *LINEAR, "INPUT.MIN_SIZE_TRAIN", "[96]")
    dilated = labels_config("stride16", tmp_path, *LINEAR, "MODEL.RESNETS.RES5_DILATION", "4")
    keys = {key, semantic_run._key_of(dilated, network, data)}
    next(network.backbone.parameters()).data.add_(1.0)
    assert len({*keys, semantic_run._key_of(cfg, network, data), semantic_run._key_of(larger, network, data)}) == 4


def test_every_image_is_some_process_own_whenever_it_looks(tmp_path, monkeypatch):
    from momentum_transfer.transfer.tasks import open_task

    cfg = labels_config("stride16", tmp_path, *LINEAR)
    data, network = open_task(cfg).train[0], build(cfg)
    mapper = semantic_run.SemanticMapper(semantic_run.mapper_of(cfg, train=True), None, 1.0)
    monkeypatch.setattr(semantic_run, "world_size", lambda: 2)
    for process in (1, 0):  # the second finds what the first has left
        monkeypatch.setattr(semantic_run, "rank", lambda process=process: process)
        found = semantic_run._cached_features(cfg, network, data, mapper)
    assert len(list(found.folder.glob("*.safetensors"))) == 4


def test_features_are_the_same_under_autocast(tmp_path):
    network, image = build(labels_config("stride16", tmp_path, *LINEAR)), torch.rand(3, 64, 64)
    with torch.autocast("cpu", torch.bfloat16):
        found = network.features(image)
    assert torch.equal(found, network.features(image))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ("MODEL.BACKBONE.FROZEN False", "probes a frozen backbone"),
        ("MODEL.SEM_SEG_HEAD.LOSS_TYPE hard_pixel_mining", "not cross_entropy"),
        ("MODEL.SEM_SEG_HEAD.IN_FEATURES ['p3']", "not some of last"),
        ("MODEL.SEM_SEG_HEAD.BLOCKS 2", "needs a plain ViT"),
    ],
)
def test_what_a_probe_cannot_be_made_of_is_said(settings, reason, tmp_path):
    assert reason in unsupported(labels_config("stride16", tmp_path, *LINEAR, *settings.split()))


@pytest.mark.parametrize(("gigabytes", "kept"), [(1.0, True), (0.999, False)])
def test_features_that_need_more_than_the_limit_are_not_kept(gigabytes, kept, tmp_path, monkeypatch, capsys):
    """Four bytes a number, as many images as the set has."""
    from momentum_transfer.transfer.tasks import open_task

    cfg = labels_config("stride16", tmp_path, *LINEAR)
    data, network = open_task(cfg).train[0], build(cfg)
    numbers = network.eval().features(torch.zeros(3, 64, 64, dtype=torch.uint8)).numel()
    cfg = labels_config(
        "stride16", tmp_path, *LINEAR, "MODEL.SEM_SEG_HEAD.CACHE_GB", str(gigabytes * numbers * 4 * 4 / 1e9)
    )
    mapper = semantic_run.SemanticMapper(semantic_run.mapper_of(cfg, train=True), None)
    found = semantic_run._cached_features(cfg, network.train(), data, mapper)
    assert network.training
    assert ("need about" in capsys.readouterr().out) != kept
    if kept:
        assert found is not None
        assert len(found) == 4
        sample = found[(0, 2)]
        assert (sample.height, sample.width, sample.image_id) == (64, 64, 2)
        assert torch.equal(sample.labels, torch.from_numpy(data.labels(2)).long())
    else:
        assert found is None
