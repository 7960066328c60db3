"""Layers that several programs of this set share."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from zoo.harness import DEV, DRY

BF16 = torch.bfloat16
ENDLESS = 10_000_000  # samples of a data set that no run comes to the end of


class Block(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, dim, heads, causal=False):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def split(self, x):
        """Queries, keys and values, each by head."""
        rows, length, dim = x.shape
        qkv = self.qkv(self.norm1(x)).view(rows, length, 3, self.heads, dim // self.heads)
        return qkv.permute(2, 0, 3, 1, 4).unbind(0)

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)

    def finish(self, x, seen):
        x = x + self.proj(seen.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))

    def forward(self, x):
        return self.finish(x, self.attend(*self.split(x)))


def trunk(dim, heads, depth, causal=False):
    return nn.Sequential(*(Block(dim, heads, causal) for _ in range(depth)))


def conv(wide_in, wide_out, stride=1):
    return nn.Sequential(
        nn.Conv2d(wide_in, wide_out, 3, stride, 1, bias=False),
        nn.BatchNorm2d(wide_out),
        nn.ReLU(inplace=True),
    )


class SmallUNet(nn.Module):
    def __init__(self, channels, classes, wide):
        super().__init__()
        self.down1 = nn.Sequential(conv(channels, wide), conv(wide, wide))
        self.down2 = nn.Sequential(conv(wide, 2 * wide, 2), conv(2 * wide, 2 * wide))
        self.mid = nn.Sequential(conv(2 * wide, 4 * wide, 2), conv(4 * wide, 2 * wide))
        self.up2 = conv(4 * wide, wide)
        self.up1 = conv(2 * wide, wide)
        self.out = nn.Conv2d(wide, classes, 1)

    def forward(self, x):
        fine = self.down1(x)
        coarse = self.down2(fine)
        deep = F.interpolate(self.mid(coarse), scale_factor=2)
        up = F.interpolate(self.up2(torch.cat([deep, coarse], 1)), scale_factor=2)
        return self.out(self.up1(torch.cat([up, fine], 1)))


def mixed(enabled=True):
    return torch.autocast(DEV.type, BF16, enabled=enabled)


def adamw(net, **kw):
    return torch.optim.AdamW(net.parameters(), lr=1e-4, **({"fused": True} | kw))


def batches(data: Dataset, rows, workers, collate=None):
    """An endless stream of batches in page-locked memory."""
    loader = DataLoader(data, rows, num_workers=workers, collate_fn=collate, pin_memory=not DRY)
    return iter(loader)


def to_device(*tensors):
    return [t.to(DEV, non_blocking=True) for t in tensors]
