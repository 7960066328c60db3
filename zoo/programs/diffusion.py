"""Diffusion: a small U-Net, its attention and its samplers."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from zoo.harness import DEV, DRY, case, compiled, pick, pinned

BF16 = torch.bfloat16


class ResBlock(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, cin), nn.Conv2d(cin, cout, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(4, cout), nn.Conv2d(cout, cout, 3, padding=1)
        self.skip = nn.Conv2d(cin, cout, 1)

    def forward(self, x):
        h = self.conv1(F.silu(self.norm1(x)))
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class UNet(nn.Module):
    def __init__(self, chans, width):
        super().__init__()
        self.stem = nn.Conv2d(chans, width, 3, padding=1)
        self.down = ResBlock(width, 2 * width)
        self.mid = ResBlock(2 * width, 2 * width)
        self.up = ResBlock(3 * width, width)
        self.out = nn.Conv2d(width, chans, 3, padding=1)

    def forward(self, x):
        a = self.stem(x)
        b = self.mid(self.down(F.avg_pool2d(a, 2)))
        return self.out(self.up(torch.cat([a, F.interpolate(b, scale_factor=2.0)], 1)))


class ImageAttention(nn.Module):
    def __init__(self, dim, heads, fused):
        super().__init__()
        self.heads, self.fused = heads, fused
        self.q, self.k, self.v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.out = nn.Linear(dim, dim)

    def split(self, t):
        b, s, d = t.shape
        return t.view(b, s, self.heads, d // self.heads).transpose(1, 2)

    def attention_probs(self, q, k):
        b, h, s, d = q.shape
        q, k = q.reshape(b * h, s, d), k.reshape(b * h, -1, d)
        empty = torch.empty(b * h, s, k.shape[1], device=q.device, dtype=q.dtype)
        scores = torch.baddbmm(empty, q, k.transpose(1, 2), beta=0, alpha=d**-0.5)  # PLANT
        return scores.softmax(-1)

    def forward(self, x, context):
        q, k, v = self.split(self.q(x)), self.split(self.k(context)), self.split(self.v(context))
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            y = torch.bmm(self.attention_probs(q, k), v.flatten(0, 1)).view(q.shape)
        return x + self.out(y.transpose(1, 2).flatten(2))


@case(
    "image self-attention through baddbmm and softmax",
    "compute",
    also=("memory",),
    codes=("CP206",),
    functions=("attention_probs", "forward"),
    plant_in="ImageAttention.attention_probs",
)
def cp_attention_baddbmm(fixed):
    dim = pick(640, 32)
    blocks = nn.ModuleList(ImageAttention(dim, 8, fixed) for _ in range(pick(4, 1))).to(DEV, BF16)
    x = torch.randn(pick(4, 1), pick(4096, 16), dim, device=DEV, dtype=BF16)

    @torch.no_grad()
    def denoise():
        h = x
        for block in blocks:
            h = block(h, h)
        return h

    return denoise


def solver_update(x, eps, prev, sigma, alpha):
    x0 = (x - sigma * eps) / alpha
    x0 = x0.clamp(-4.0, 4.0)
    d1 = (x0 - prev) / 0.37
    d0 = x0 + 0.5 * d1
    drift = torch.tanh(d0 * 0.9) * alpha  # PLANT
    return (sigma * 0.8) * x + drift - 0.01 * eps * eps, x0


@case(
    "sampler update as a chain of element-wise kernels",
    "memory",
    also=("compute",),
    codes=("CP212", "MM311"),
    functions=("solver_update",),
    plant_in="solver_update",
    light=True,
)
def ew_solver_update(fixed):
    update = compiled(solver_update) if fixed else solver_update
    shape = (pick(64, 2), 16, pick(192, 8), pick(192, 8))
    x, eps, prev = (torch.randn(shape, device=DEV) for _ in range(3))

    @torch.no_grad()
    def sample_step():
        return update(x, eps, prev, 0.6, 0.8)

    return sample_step


@case(
    "latents normalised on the host between two networks",
    "memory",
    also=("framework", "data_loading"),
    codes=("MM309", "FW503"),
    functions=("rescale_on_host",),
    plant_in="rescale_on_host",
    light=True,
)
def mm_host_rescale(fixed):
    first, second = (UNet(4, pick(32, 4)).to(DEV) for _ in range(2))
    x = torch.randn(pick(48, 2), 4, pick(160, 8), pick(160, 8), device=DEV)

    @torch.no_grad()
    def refine():
        h = first(x)
        h = h / h.abs().amax() if fixed else rescale_on_host(h)
        return second(h)

    return refine


def rescale_on_host(h):
    host = h.cpu().numpy()  # PLANT
    host = host / max(host.max(), -host.min())
    return torch.from_numpy(host.astype(np.float32)).to(DEV)


@case(
    "pinned image batches copied on the compute stream",
    "data_loading",
    also=("memory", "compute"),
    codes=("DL107",),
    functions=("fetch", "train_images"),
)
def h2d_same_stream(fixed):
    width = pick(16, 4)
    net = nn.Sequential(
        nn.Conv2d(3, width, 4, 4),
        ResBlock(width, width),
        ResBlock(width, width),
        nn.Conv2d(width, 3, 1),
    ).to(DEV)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    shape = (pick(96, 2), 3, pick(384, 8), pick(384, 8))
    batches = [pinned(torch.randn(shape)) for _ in range(3)]
    side = None if DRY or not fixed else torch.cuda.Stream()
    state = {"turn": 0}

    def fetch():
        state["turn"] += 1
        if side is None:
            return batches[state["turn"] % 3].to(DEV, non_blocking=True)  # PLANT
        with torch.cuda.stream(side):
            return batches[state["turn"] % 3].to(DEV, non_blocking=True)

    def train_images():
        x = state.pop("next", None)
        x = fetch() if x is None else x
        if side is not None:
            torch.cuda.current_stream().wait_stream(side)
            x.record_stream(torch.cuda.current_stream())
            state["next"] = fetch()
        opt.zero_grad()
        with torch.autocast(DEV.type, BF16):
            loss = (net(x) - F.avg_pool2d(x, 4)).square().mean()
        loss.backward()
        opt.step()

    return train_images


@case(
    "empty_cache() after every batch",
    "memory",
    also=("framework",),
    codes=("MM303", "MM302"),
    functions=("train_denoiser",),
)
def mm_empty_cache(fixed):
    net = UNet(4, pick(32, 4)).to(DEV)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    x = torch.randn(pick(16, 2), 4, pick(128, 8), pick(128, 8), device=DEV)

    def train_denoiser():
        opt.zero_grad()
        (net(x + torch.randn_like(x)) - x).square().mean().backward()
        opt.step()
        if not fixed and not DRY:
            torch.cuda.empty_cache()  # PLANT

    return train_denoiser
