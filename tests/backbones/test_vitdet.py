"""Plain ViTs for Detectron2's own: what is written, what it computes, and what is refused with its reason."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn

from momentum_transfer.backbones.build import build_backbone, parse_architecture
from momentum_transfer.backbones.convert import write
from momentum_transfer.backbones.timm_layouts import Converted
from momentum_transfer.backbones.vitdet import describe, for_detectron2, resize_positions, to_vitdet
from momentum_transfer.core.errors import InputError

pytest.importorskip("timm")

_SMALL = "depth=2&embed_dim=48&num_heads=2"
#: Without prefix tokens and with LayerScale.
BARE = f"timm:vit_tiny_patch16_224?img_size=64&class_token=False&global_pool='avg'&init_values=0.3&{_SMALL}"
REGISTERS = f"timm:vit_small_patch14_reg4_dinov2?img_size=56&{_SMALL}"


def random_network(text):
    torch.manual_seed(0)
    network = build_backbone(parse_architecture(text)).eval()
    for parameter in network.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.1)
    return network


def test_layer_scale_folds_into_the_layer_before_it():
    network = random_network(BARE)
    state = network.state_dict()
    folded = to_vitdet(state, describe(network))
    x = torch.randn(5, 48)
    plain = nn.functional.linear(x, state["blocks.1.attn.proj.weight"], state["blocks.1.attn.proj.bias"])
    own = nn.functional.linear(x, folded["blocks.1.attn.proj.weight"], folded["blocks.1.attn.proj.bias"])
    torch.testing.assert_close(own, state["blocks.1.ls1.gamma"] * plain, rtol=1e-5, atol=1e-6)
    assert not [name for name in folded if ".ls" in name or name.startswith(("norm.", "cls", "reg"))]


def test_a_pkl_holds_detectron2s_names_and_registers_go_only_where_that_is_declared(tmp_path):
    network = random_network(REGISTERS)
    with pytest.raises(InputError, match=r"found 5 in timm:.* which take part in attention; .*--without-prefix"):
        write(tmp_path / "w.pkl", network.state_dict(), network.architecture)
    assert not (tmp_path / "w.pkl").exists()
    write(tmp_path / "w.pkl", network.state_dict(), network.architecture, without_prefix=True)
    tree = pickle.loads((tmp_path / "w.pkl").read_bytes())
    inside = {name.removeprefix("backbone.net.") for name in tree["model"]}
    assert {name.split(".")[0] for name in inside} == {"patch_embed", "pos_embed", "blocks"}
    assert tree["model"]["backbone.net.pos_embed"].shape == (1, 16, 48)
    assert tree["model"]["backbone.net.patch_embed.proj.weight"].shape == (48, 3, 16, 16)
    assert "no prefix tokens" in tree["metadata"]["function"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"timm:vit_small_patch16_dinov3?{_SMALL}", r"rotary position embeddings \(RoPE\)"),
        ("timm:convnext_atto", "no plain ViT"),
        (f"timm:vit_giant_patch14_dinov2?{_SMALL}", "another MLP than two layers"),
        (f"timm:vit_base_patch16_clip_quickgelu_224?{_SMALL}", "a norm before the blocks"),
        (f"timm:vit_small_patch16_18x2_224?{_SMALL}", "blocks of other parts|another MLP|no plain"),
    ],
)
def test_what_detectron2s_vit_does_not_compute_is_refused_with_the_reason(text, reason):
    architecture = parse_architecture(text)
    with torch.device("meta"):
        network = build_backbone(architecture)
    with pytest.raises(InputError, match=f"found .*({reason}).* in timm:.*safetensors"):
        for_detectron2(network.state_dict(), architecture, without_prefix=True)


@pytest.mark.detectron2
def test_detectron2_reads_the_pkl_and_computes_timms_function(tmp_path):
    pytest.importorskip("detectron2")
    from detectron2.checkpoint import DetectionCheckpointer
    from detectron2.modeling.backbone.vit import SimpleFeaturePyramid, ViT

    network = random_network(BARE)
    write(tmp_path / "w.pkl", network.state_dict(), network.architecture)
    vit = ViT(img_size=64, embed_dim=48, depth=2, num_heads=2, pretrain_img_size=64, pretrain_use_cls_token=False,
              norm_layer=lambda width: nn.LayerNorm(width, eps=1e-6))  # fmt: skip
    model = nn.Module()
    model.backbone = SimpleFeaturePyramid(vit, "last_feat", 8, [1.0])
    DetectionCheckpointer(model).load(str(tmp_path / "w.pkl"))
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        mine = network.network.forward_intermediates(x, indices=1, norm=False, intermediates_only=True)[0]
        torch.testing.assert_close(vit.eval()(x)["last_feat"], mine, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("tokens", "width"), [(10, 48), (26, 48), (2, 48), (9, 48), (10, 47), (1, 48)])
def test_only_a_square_grid_of_the_networks_width_is_resampled(tokens, width):
    """To 4 x 4 patches and a class token; what is no such grid keeps its bits, for the report of keys to refuse."""
    architecture = parse_architecture(f"timm:vit_tiny_patch16_224?img_size=64&{_SMALL}")
    positions = torch.randn(1, tokens, width)
    converted = Converted(tensors={"pos_embed": positions})
    resize_positions(converted, architecture)
    found = converted.tensors["pos_embed"]
    if tokens not in (10, 26, 2) or width != 48:
        assert found is positions
        assert not converted.notes
        return
    side = int((tokens - 1) ** 0.5)
    grid = positions[:, 1:].reshape(1, side, side, 48).permute(0, 3, 1, 2)
    grid = nn.functional.interpolate(grid, (4, 4), mode="bicubic", antialias=True)
    torch.testing.assert_close(found, torch.cat([positions[:, :1], grid.flatten(2).transpose(1, 2)], dim=1))
    assert converted.notes == [f"position embeddings resampled from {side} x {side} to 4 x 4 patches, as asked"]


def test_positions_of_the_right_shape_keep_their_bits():
    positions = torch.randn(1, 17, 48)
    converted = Converted(tensors={"pos_embed": positions})
    resize_positions(converted, parse_architecture(f"timm:vit_tiny_patch16_224?img_size=64&{_SMALL}"))
    assert converted.tensors["pos_embed"] is positions
    assert not converted.notes
