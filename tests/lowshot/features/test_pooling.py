"""FEATURES.POOL and FEATURES.LAYER on networks of timm: what timm's own forward gives, refusals in one line."""

import pytest
import timm
import torch

from momentum_transfer.backbones.build import build_backbone, parse_architecture
from momentum_transfer.backbones.resnet import Architecture
from momentum_transfer.core.errors import InputError
from momentum_transfer.lowshot.features.extract import StageFeatures
from momentum_transfer.lowshot.library import extract_features

REGISTERS = "timm:vit_small_patch14_reg4_dinov2?img_size=56&depth=3&embed_dim=48&num_heads=3"


def features(text: str, pool: str, layer: str = "pooled") -> tuple[StageFeatures, torch.Tensor]:
    torch.manual_seed(0)
    network = StageFeatures(build_backbone(parse_architecture(text)), layer, pool)
    return network, torch.randn(3, 3, network.backbone.input.size, network.backbone.input.size)


@torch.no_grad()
def test_tokens_are_pooled_as_dino_does_with_timms_bits():
    network, images = features(REGISTERS, "pooled")
    tokens = network.backbone.network.forward_features(images)
    cls, patches = tokens[:, 0], tokens[:, 5:]
    middle = network.backbone.network.forward_intermediates(images, indices=2, norm=True, return_prefix_tokens=True)[1]
    wanted = {"pooled": cls, "cls": cls, "patch_mean": patches.mean(1), "last-1-blocks": cls,
              "cls+patch_mean": torch.cat([cls, patches.mean(1)], 1),
              "last-2-blocks": torch.cat([middle[0][1][:, 0], cls], 1)}  # fmt: skip
    for pool, values in wanted.items():
        found = StageFeatures(network.backbone, pool=pool)(images)
        assert found.shape == values.shape, pool
        if "patch" in pool:  # the mean runs over a map in another order
            torch.testing.assert_close(found, values)
        else:
            assert torch.equal(found, values), pool


def test_without_a_cls_token_the_last_blocks_are_means_of_patches():
    network, images = features(
        "timm:vit_base_patch16_siglip_224?img_size=32&depth=2&embed_dim=48&num_heads=3", "last-2-blocks"
    )
    tokens = network.backbone.network.forward_features(images)
    torch.testing.assert_close(network(images)[:, 48:], tokens.mean(1))


@pytest.mark.parametrize("text", ["timm:test_vit?img_size=64", "timm:test_convnext?img_size=64", "timm:test_resnet"])
def test_extracted_features_have_the_bits_of_timms_own_forward(text: str):
    network, images = features(text, "pooled")
    published = network.backbone.network
    with torch.no_grad():
        wanted = published.forward_head(published.forward_features(images), pre_logits=True).numpy()
    for one in (network, network.backbone, published.eval()):
        assert (extract_features(one, images) == wanted).all()
    whole = timm.create_model(network.backbone.architecture.name, **({"img_size": 64} if "vit" in text else {}))
    whole.load_state_dict(published.state_dict(), strict=False)
    whole.reset_classifier(0)
    assert (extract_features(whole, images) == wanted).all()


@torch.no_grad()
def test_a_stage_is_averaged_over_positions():
    network, images = features("timm:test_convnext?img_size=64", "pooled", "res4")
    assert torch.equal(network(images), network.backbone.stages(images)["res4"].mean((2, 3)))


@pytest.mark.parametrize(("text", "pool", "layer", "message"), [
    ("timm:test_convnext", "cls", "pooled", "POOL pooled for timm:test_convnext, which has no tokens, found cls"),
    ("resnet10", "patch_mean", "pooled", "POOL pooled for resnet10, which has no tokens"),
    ("timm:mixer_s32_224", "cls+patch_mean", "pooled", "without cls for timm:mixer_s32_224, which has no CLS token"),
    (REGISTERS, "last-4-blocks", "pooled", "at most last-3-blocks"),
    (REGISTERS, "pooled", "res4", r"a map that timm:.* has \(none\), found res4"),
    ("timm:levit_128s", "pooled", "res2", r"has \(res4, res5\), found res2"),
    ("timm:test_convnext", "cls", "res4", "LAYER or FEATURES.POOL, found both"),
    ("timm:test_convnext", "max", "pooled", "expected FEATURES.POOL of pooled, cls, patch_mean"),
])  # fmt: skip
def test_features_that_a_network_does_not_have_are_refused(text: str, pool: str, layer: str, message: str):
    with torch.device("meta"):
        backbone = build_backbone(Architecture("resnet10") if text == "resnet10" else parse_architecture(text))
    with pytest.raises(InputError, match=message):
        StageFeatures(backbone, layer, pool)
