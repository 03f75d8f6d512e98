"""The plain ViT of ViTDet: attention, windows and positions against loops over single tokens."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from momentum_transfer.backbones.vitdet import VitShape
from momentum_transfer.transfer.torchvision_engine.vit import Attention, Block, ViT, distances

SHAPE = VitShape(width=8, depth=3, heads=2, hidden=12, patch=16, grid=4, qkv_bias=True, eps=1e-6, prefix=0)


def naive_attention(attention: Attention, x: Tensor) -> Tensor:
    """One image [H, W, C], one query and one head at a time, with relative positions of a table of its size."""
    height, width, channels = x.shape
    per_head = channels // attention.heads
    q, k, v = attention.qkv(x).split(channels, dim=-1)
    found = torch.zeros_like(x)
    for head in range(attention.heads):
        part = slice(head * per_head, (head + 1) * per_head)
        for y in range(height):
            for u in range(width):
                logits = torch.zeros(height, width)
                for row in range(height):
                    for column in range(width):
                        logits[row, column] = q[y, u, part] @ k[row, column, part] / per_head**0.5
                        if attention.relative:
                            logits[row, column] += q[y, u, part] @ attention.rel_pos_h[y - row + height - 1]
                            logits[row, column] += q[y, u, part] @ attention.rel_pos_w[u - column + width - 1]
                weights = logits.flatten().softmax(0).view(height, width, 1)
                found[y, u, part] = (weights * v[:, :, part]).sum((0, 1))
    return attention.proj(found)


@pytest.mark.parametrize("side", [0, 3])
@torch.no_grad()
def test_attention_is_that_of_single_queries(side: int):
    torch.manual_seed(0)
    attention = Attention(8, 2, qkv_bias=True, side=side)
    if side:
        nn.init.normal_(attention.rel_pos_h)
        nn.init.normal_(attention.rel_pos_w)
    x = torch.randn(2, 3, 3, 8)
    torch.testing.assert_close(attention(x), torch.stack([naive_attention(attention, one) for one in x]))
    wide = torch.randn(1, 2, 5, 8)
    if not side:
        torch.testing.assert_close(attention(wide)[0], naive_attention(attention, wide[0]))
    assert attention(wide).shape == wide.shape


def test_relative_positions_are_those_of_the_side_and_stretch_to_others():
    assert len(Attention(8, 2, qkv_bias=False, side=3).rel_pos_h) == 5  # distances −2 … 2
    assert not Attention(8, 2, qkv_bias=False).relative
    assert Attention(8, 2, qkv_bias=False, side=1).relative
    table = torch.arange(10.0).view(5, 2) ** 2
    for side in (3, 5):
        places = (np.arange(2 * side - 1) + 0.5) * 5 / (2 * side - 1) - 0.5  # of cells' centres
        stretched = np.stack([np.interp(places, np.arange(5), table[:, c].numpy()) for c in range(2)], axis=1)
        found = distances(table, side)
        for query in range(side):
            for key in range(side):
                assert found[query, key].tolist() == pytest.approx(stretched[query - key + side - 1].tolist(), rel=1e-5)


@pytest.mark.parametrize(("height", "width", "window"), [(4, 6, 2), (5, 4, 3), (3, 3, 3), (2, 3, 4), (3, 4, 0)])
@torch.no_grad()
def test_a_block_attends_in_windows_of_a_padded_map(height: int, width: int, window: int):
    torch.manual_seed(0)
    block = Block(SHAPE, window, 0.0, side=0)
    x = torch.randn(2, height, width, 8)
    inside = F.layer_norm(x, (8,), block.norm1.weight, block.norm1.bias, 1e-6)
    attended = torch.zeros_like(x) if window else block.attn(inside)
    step = window or 99
    for top in range(0, height, step):
        for left in range(0, width, step):
            if window:
                cut = torch.zeros(2, window, window, 8)
                part = inside[:, top : top + window, left : left + window]
                cut[:, : part.shape[1], : part.shape[2]] = part
                found = block.attn(cut)[:, : part.shape[1], : part.shape[2]]
                attended[:, top : top + window, left : left + window] = found
    middle = x + attended
    hidden = F.gelu(block.mlp.fc1(F.layer_norm(middle, (8,), block.norm2.weight, block.norm2.bias, 1e-6)))
    torch.testing.assert_close(block(x), middle + block.mlp.fc2(hidden))


def test_relative_positions_of_a_windowed_block_are_those_of_the_window():
    assert len(Block(SHAPE, 3, 0.0, side=4).attn.rel_pos_h) == 5
    assert len(Block(SHAPE, 0, 0.0, side=4).attn.rel_pos_h) == 7
    assert not Block(SHAPE, 3, 0.0, side=0).attn.relative


def test_drop_path_rises_to_its_last_block_and_some_blocks_see_the_whole_map():
    vit = ViT(SHAPE, window=2, global_at=(1,), drop_path=0.2, side=4)
    assert [block.window for block in vit.blocks] == [2, 0, 2]
    assert [getattr(block.drop_path, "drop_prob", 0.0) for block in vit.blocks] == pytest.approx([0, 0.1, 0.2])
    assert all(isinstance(block.drop_path, nn.Identity) for block in ViT(SHAPE).blocks)
    assert [block.window for block in ViT(SHAPE).blocks] == [0, 0, 0]
    assert not any(block.attn.relative for block in ViT(SHAPE).blocks)


def test_weights_begin_small_and_biases_at_zero():
    torch.manual_seed(0)
    vit = ViT(SHAPE._replace(width=64, hidden=256, grid=16))
    for name, parameter in vit.named_parameters():
        if name.startswith(("blocks", "pos_embed")) and "norm" not in name:
            spread = 0.0 if name.endswith("bias") else 0.02
            assert parameter.std().item() == pytest.approx(spread, rel=0.1), name
            assert parameter.mean().item() == pytest.approx(0.0, abs=0.002)
    assert ViT(SHAPE._replace(qkv_bias=False)).blocks[0].attn.qkv.bias is None


@pytest.mark.parametrize(("height", "width"), [(64, 64), (64, 96), (96, 64), (32, 32)])
@torch.no_grad()
def test_the_map_has_stride_16_and_positions_of_its_grid(height: int, width: int):
    torch.manual_seed(0)
    vit = ViT(SHAPE).eval()
    x = torch.randn(2, 3, height, width)
    tokens = F.conv2d(x, vit.patch_embed.proj.weight, vit.patch_embed.proj.bias, stride=16)
    grid = vit.pos_embed[0].T.reshape(1, 8, 4, 4)
    size = (height // 16, width // 16)
    positions = grid if size == (4, 4) else F.interpolate(grid, size, mode="bicubic", align_corners=False)
    wanted = (tokens + positions).permute(0, 2, 3, 1)
    for block in vit.blocks:
        wanted = block(wanted)
    (found,) = vit(x).values()
    torch.testing.assert_close(found, wanted.permute(0, 3, 1, 2))
    assert found.shape == (2, 8, *size)
    assert (vit.strides, vit.channels) == ({"last_feat": 16}, {"last_feat": 8})
