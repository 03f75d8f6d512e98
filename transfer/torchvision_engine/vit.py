"""ViTDet's backbone (Li et al., arXiv 2203.16527): a plain ViT on maps, with windows and relative positions as asked.

Computed as Detectron2's own ViT does, tensor by tensor and under its names.
"""

from collections import OrderedDict
from collections.abc import Collection

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from momentum_transfer.backbones.vitdet import VitShape
from momentum_transfer.transfer.torchvision_engine.backbone import LAST

#: Of the one map.
STRIDE = 16


class Attention(nn.Module):
    """Multi-head attention over a map, with decomposed relative positions (MViTv2, arXiv 2112.01526, eq. 4) if asked.

    Args:
        side: tokens along a side that the relative positions are for; 0 for none. Other sides are interpolated.
    """

    def __init__(self, width: int, heads: int, qkv_bias: bool, side: int = 0) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.qkv = nn.Linear(width, 3 * width, bias=qkv_bias)
        self.proj = nn.Linear(width, width)
        self.relative = side > 0
        if self.relative:
            self.rel_pos_h = nn.Parameter(torch.zeros(2 * side - 1, width // heads))
            self.rel_pos_w = nn.Parameter(torch.zeros(2 * side - 1, width // heads))

    def forward(self, x: Tensor) -> Tensor:
        """[N, H, W, C] → the same shape."""
        n, height, width, _ = x.shape
        qkv = self.qkv(x).reshape(n, height * width, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.reshape(3, n * self.heads, height * width, -1).unbind(0)
        weights = (q * self.scale) @ k.transpose(-2, -1)
        if self.relative:
            weights = self._with_positions(weights, q, height, width)
        found = (weights.softmax(dim=-1) @ v).view(n, self.heads, height, width, -1)
        return self.proj(found.permute(0, 2, 3, 1, 4).reshape(n, height, width, -1))

    def _with_positions(self, weights: Tensor, q: Tensor, height: int, width: int) -> Tensor:
        by_row, by_column = distances(self.rel_pos_h, height), distances(self.rel_pos_w, width)
        cells = q.reshape(len(q), height, width, -1)
        rows = torch.einsum("bhwc,hkc->bhwk", cells, by_row)
        columns = torch.einsum("bhwc,wkc->bhwk", cells, by_column)
        split = weights.view(len(q), height, width, height, width)
        return (split + rows[..., :, None] + columns[..., None, :]).view_as(weights)


def distances(table: Tensor, side: int) -> Tensor:
    """Embeddings [side, side, C] of the distance between each query and key, from a table [2·L − 1, C]."""
    if len(table) != 2 * side - 1:
        stretched = F.interpolate(table.reshape(1, len(table), -1).permute(0, 2, 1), size=2 * side - 1, mode="linear")
        table = stretched.reshape(-1, 2 * side - 1).permute(1, 0)
    places = torch.arange(side)
    return table[places[:, None] - places[None, :] + side - 1]


class MLP(nn.Module):
    """Two linear layers with GELU between."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class Block(nn.Module):
    """Norm, attention in windows of ``window``² tokens (0: over the whole map), norm, MLP; with drop path."""

    def __init__(self, shape: VitShape, window: int, drop_path: float, side: int) -> None:
        super().__init__()
        from timm.layers import DropPath

        self.window = window
        self.norm1, self.norm2 = (nn.LayerNorm(shape.width, eps=shape.eps) for _ in range(2))
        self.attn = Attention(shape.width, shape.heads, shape.qkv_bias, side and (window or side))
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()
        self.mlp = MLP(shape.width, shape.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[N, H, W, C] → the same shape."""
        inside = self.norm1(x)
        attended = self._in_windows(inside) if self.window else self.attn(inside)
        x = x + self.drop_path(attended)
        return x + self.drop_path(self.mlp(self.norm2(x)))

    def _in_windows(self, x: Tensor) -> Tensor:
        """Attention within windows; the map is padded with zeros to whole ones, which are attended to as well."""
        n, height, width, channels = x.shape
        side = self.window
        x = F.pad(x, (0, 0, 0, -width % side, 0, -height % side))
        rows, columns = x.shape[1] // side, x.shape[2] // side
        cut = x.view(n, rows, side, columns, side, channels).permute(0, 1, 3, 2, 4, 5)
        found = self.attn(cut.reshape(-1, side, side, channels))
        joined = found.view(n, rows, columns, side, side, channels).permute(0, 1, 3, 2, 4, 5)
        return joined.reshape(n, rows * side, columns * side, channels)[:, :height, :width]


class ViT(nn.Module):
    """A plain ViT as one map of stride 16, without prefix tokens and final norm.

    Args:
        window: tokens along a side of the blocks that are not in ``global_at``; 0 for none.
        drop_path: of the last block, rising linearly from 0.
        side: tokens along a side that global relative positions are for; 0 for no relative positions.
    """

    plain = True

    def __init__(
        self, shape: VitShape, *, window: int = 0, global_at: Collection[int] = (), drop_path: float = 0.0,
        side: int = 0
    ) -> None:  # fmt: skip
        super().__init__()
        self.patch_embed = nn.Sequential(OrderedDict(proj=nn.Conv2d(3, shape.width, STRIDE, stride=STRIDE)))
        self.pos_embed = nn.Parameter(torch.zeros(1, shape.grid**2, shape.width))
        rates = torch.linspace(0, drop_path, shape.depth, device="cpu").tolist()
        windows = [0 if index in global_at else window for index in range(shape.depth)]
        self.blocks = nn.ModuleList(Block(shape, w, rate, side) for w, rate in zip(windows, rates, strict=True))
        self.grid = shape.grid
        self.strides, self.channels = {LAST: STRIDE}, {LAST: shape.width}
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Normalised images [N, 3, H, W], sides multiples of 16 → "last_feat" [N, C, H/16, W/16]."""
        x = self.patch_embed(x).permute(0, 2, 3, 1)
        x = x + self._positions(x.shape[1], x.shape[2])
        for block in self.blocks:
            x = block(x)
        return {LAST: x.permute(0, 3, 1, 2)}

    def _positions(self, height: int, width: int) -> Tensor:
        """Position embeddings [1, H, W, C], resized to the map's grid as Detectron2 does (bicubic, no antialiasing)."""
        if (height, width) == (self.grid, self.grid):
            return self.pos_embed.reshape(1, height, width, -1)
        grid = self.pos_embed.reshape(1, self.grid, self.grid, -1).permute(0, 3, 1, 2)
        resized = F.interpolate(grid, size=(height, width), mode="bicubic", align_corners=False)
        return resized.permute(0, 2, 3, 1)
