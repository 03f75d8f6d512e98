"""Segmentation networks: what is upsampled to what, padded, cut and counted, against single steps by hand."""

import pytest
import torch
import torch.nn.functional as F

from momentum_transfer.transfer.torchvision_engine.segmentors import (
    ASPP,
    DeepLabHead,
    LinearHead,
    LinearSegmentor,
)
from momentum_transfer.transfer.torchvision_engine.semantic_run import build
from tests.transfer.torchvision_engine.test_capabilities import LINEAR
from tests.transfer.torchvision_engine.tiny import tiny_config, tiny_samples


@torch.no_grad()
def test_aspp_joins_one_plain_three_dilated_and_a_pooled_branch():
    torch.manual_seed(0)
    aspp, x = ASPP(6, 4, [1, 2, 3], norm="BN", pool=None, dropout=0.0).eval(), torch.randn(2, 6, 5, 7)
    branches = [conv(x) for conv in aspp.convs[:4]]
    assert [conv.dilation for conv in aspp.convs[:4]] == [(1, 1), (1, 1), (2, 2), (3, 3)]
    assert [conv.kernel_size for conv in aspp.convs[:4]] == [(1, 1), (3, 3), (3, 3), (3, 3)]
    assert all(branch.shape == (2, 4, 5, 7) and (branch >= 0).all() for branch in branches)
    pooled = aspp.convs[4][1](x.mean((2, 3), keepdim=True)).expand(-1, -1, 5, 7)
    torch.testing.assert_close(aspp(x), aspp.project(torch.cat([*branches, pooled], 1)))
    assert aspp.convs[4][1].norm is None
    dropping = ASPP(6, 4, [1, 2, 3], norm="", pool=None, dropout=0.5)
    assert (dropping.train()(x) == 0).float().mean() > (dropping.eval()(x) == 0).float().mean()


@torch.no_grad()
def test_windows_of_pooling_move_by_one_cell():
    torch.manual_seed(0)
    aspp, x = ASPP(2, 3, [1, 1, 1], norm="", pool=(2, 3), dropout=0.0).eval(), torch.randn(1, 2, 4, 6)
    found = aspp.convs[4][0](x)
    assert found.shape == (1, 2, 3, 4)
    torch.testing.assert_close(found[0, :, 1, 2], x[0, :, 1:3, 2:5].mean((1, 2)))


@torch.no_grad()
def test_scores_are_upsampled_by_the_stride():
    torch.manual_seed(0)
    aspp = ASPP(6, 4, [1, 2, 3], norm="", pool=None, dropout=0.0)
    head = DeepLabHead(aspp, 4, 3, stride=8, ignore=255, hard_pixels=False, weight=1.0).eval()
    assert head.predictor.weight.std().item() == pytest.approx(0.001, rel=0.6)
    x = torch.randn(1, 6, 2, 3)
    wanted = F.interpolate(head.predictor(aspp(x)), size=(16, 24), mode="bilinear", align_corners=False)
    torch.testing.assert_close(head(x), wanted)


@torch.no_grad()
def test_deeplab_cuts_the_padding_off_and_gives_the_original_size():
    model = build(tiny_config("stride8")).eval()
    samples = tiny_samples([(64, 64), (48, 56)])
    samples[1].height, samples[1].width = 24, 28  # it was resized by two
    found = model(samples)
    assert [tuple(one.shape) for one in found] == [(64, 64), (24, 28)]
    x, _ = model.batch([sample.image for sample in samples])
    logits = model.sem_seg_head(model.backbone(x)["res5"])[1:, :, :48, :56]
    wanted = F.interpolate(logits, (24, 28), mode="bilinear", align_corners=False)[0].argmax(0)
    assert torch.equal(found[1], wanted)
    assert found[1].dtype == torch.int64


@torch.no_grad()
def test_a_linear_head_takes_maps_of_any_sizes():
    torch.manual_seed(0)
    head = LinearHead(4, 3, "", 255, 1.0)
    maps = [torch.randn(4, 2, 3), torch.randn(4, 5, 1)]
    for found, one in zip(head(maps), maps, strict=True):
        torch.testing.assert_close(found, torch.einsum("kc,chw->khw", head.predictor.weight, one)
                                   + head.predictor.bias[:, None, None])  # fmt: skip
    assert head.predictor.weight.std().item() == pytest.approx(0.01, rel=0.6)
    labels = [torch.full((2, 3), 255), torch.full((5, 1), 255)]
    assert head.loss(head(maps), labels).item() == 0.0  # nothing counts


def linear(*overrides: str) -> LinearSegmentor:
    torch.manual_seed(0)
    found = build(tiny_config("stride16", *LINEAR, *overrides))
    assert isinstance(found, LinearSegmentor)
    return found


@torch.no_grad()
def test_maps_of_several_levels_are_joined_at_the_size_of_the_first():
    network = linear("MODEL.SEM_SEG_HEAD.IN_FEATURES", "['res4','res3','last']", "MODEL.RESNETS.OUT_FEATURES",
                     "['res3','res4','res5']").eval()  # fmt: skip
    image = tiny_samples([(64, 96)])[0].image
    maps = network.backbone(network.batch([image])[0])
    size = maps["res4"].shape[-2:]
    parts = [maps["res4"], F.interpolate(maps["res3"], size, mode="bilinear")]
    parts.append(
        maps["res5"] if maps["res5"].shape[-2:] == size else F.interpolate(maps["res5"], size, mode="bilinear")
    )
    torch.testing.assert_close(network.features(image), torch.cat(parts, 1)[0])


@torch.no_grad()
def test_a_probe_upsamples_to_the_padded_image_cuts_it_and_then_resizes():
    network = linear().eval()
    (sample,) = tiny_samples([(48, 70)])
    sample.height, sample.width = 24, 35
    step = network.backbone.size_divisibility
    whole = -(-48 // step) * step, -(-70 // step) * step
    assert network._padded(sample) == (whole, (48, 70))
    (scores,) = network.sem_seg_head([network.features(sample.image)])
    inside = F.interpolate(scores[None], whole, mode="bilinear")[:, :, :48, :70]
    wanted = F.interpolate(inside, (24, 35), mode="bilinear")[0].argmax(0)
    assert torch.equal(network([sample])[0], wanted)
    network.backbone.square = 96
    assert network._padded(sample) == ((96, 96), (48, 70))


def test_known_features_stand_for_the_image_with_the_size_of_its_labels():
    network = linear().eval()
    (sample,) = tiny_samples([(48, 70)])
    sample.labels = torch.randint(0, 3, (48, 70))
    network.train()
    before = network([sample])["loss_sem_seg"]
    sample.features, sample.image = network.features(sample.image), torch.empty(3, 0, 0, dtype=torch.uint8)
    network.backbone.bottom_up = None  # is not asked
    torch.testing.assert_close(network([sample])["loss_sem_seg"], before)
    assert before.requires_grad
