"""Bytes moved or kept for nothing; one mistake each."""

import torch
import torch.nn.functional as F
from torch import nn

from zoo.harness import DEV, DRY, case, pick
from zoo.programs.unseen_data import BF16, adam, land_cover_net


class HandNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        spread = (x - mean).pow(2).mean(-1, keepdim=True)  # PLANT
        return (x - mean) / torch.sqrt(spread + 1e-5) * self.gain + self.shift


class Residual(nn.Module):
    def __init__(self, dim, by_hand):
        super().__init__()
        self.norm = HandNorm(dim) if by_hand else nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x):
        return x + self.down(F.relu(self.up(self.norm(x))))


@case(
    "layer norm written out by hand in a click model",
    "memory",
    also=("compute",),
    codes=("CP219", "CP212", "MM311"),
    functions=("forward", "fit_clicks"),
    plant_in="HandNorm.forward",
)
def d_norm_by_hand(fixed):
    dim = pick(2048, 16)
    with DEV:
        net = nn.Sequential(*[Residual(dim, not fixed) for _ in range(pick(3, 1))]).to(BF16)
    opt = adam(net)
    x = torch.randn(pick(16384, 4), dim, device=DEV, dtype=BF16)

    def fit_clicks():
        opt.zero_grad()
        net(x).square().mean().backward()
        opt.step()

    return fit_clicks


def shuffle_on_host(x, order):
    rows = x.cpu()  # PLANT
    return rows[:, order.cpu()].to(DEV)


@case(
    "channels shuffled on the host between two halves of a network",
    "memory",
    also=("framework", "data_loading"),
    codes=("MM309", "FW503"),
    functions=("shuffle_on_host", "rate_molecules"),
    plant_in="shuffle_on_host",
)
def d_shuffle_on_host(fixed):
    torch.set_float32_matmul_precision("high")
    dim, code = pick(4096, 16), pick(512, 8)
    with DEV:
        before = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, code))
        after = nn.Sequential(nn.Linear(code, dim), nn.GELU(), nn.Linear(dim, dim))
    x = torch.randn(pick(8192, 4), dim, device=DEV)
    order = torch.randperm(code, device=DEV)

    @torch.inference_mode()
    def rate_molecules():
        h = before(x)
        h = h[:, order] if fixed else shuffle_on_host(h, order)
        return after(h).sum(1)

    return rate_molecules


class Imagination(nn.Module):
    """A world model that imagines states and keeps all of them."""

    def __init__(self, dim, steps, grow):
        super().__init__()
        self.move = nn.Linear(dim, dim)
        self.steps, self.grow = steps, grow

    def forward(self, state):
        if not self.grow:
            path = state.new_empty(len(state), self.steps, state.shape[1])
            for k in range(self.steps):
                state = torch.tanh(self.move(state))
                path[:, k] = state
            return path
        path = state.new_empty(len(state), 0, state.shape[1])
        for _ in range(self.steps):
            state = torch.tanh(self.move(state))
            path = torch.cat([path, state[:, None]], 1)  # PLANT
        return path


@case(
    "an imagined path grown with cat at every step",
    "memory",
    codes=("MM316", "MM309", "IN605"),
    functions=("forward", "imagine"),
    plant_in="Imagination.forward",
)
def d_path_grown(fixed):
    torch.set_float32_matmul_precision("high")
    net = Imagination(pick(512, 8), pick(40, 4), not fixed).to(DEV)
    value = nn.Linear(pick(512, 8), 1).to(DEV)
    start = torch.randn(pick(4096, 4), pick(512, 8), device=DEV)

    @torch.no_grad()
    def imagine():
        return value(net(start)).mean(1)

    return imagine


class MemoryGuard:
    """Meant against fragmentation: frees the cache whenever a batch is done."""

    def __init__(self, every):
        self.every, self.count = every, 0

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.count += 1
        if self.count % self.every == 0:
            torch.cuda.empty_cache()  # PLANT


@case(
    "a context manager that empties the allocator's cache after every batch",
    "memory",
    also=("framework", "compute"),
    codes=("MM303", "MM302"),
    functions=("__exit__", "segment"),
    plant_in="MemoryGuard.__exit__",
)
def d_guard_empties_cache(fixed):
    net = land_cover_net(4, pick(96, 8)).to(DEV, BF16, memory_format=torch.channels_last)
    opt = adam(net)
    guard = MemoryGuard(10**9 if fixed else 1)
    side = pick(192, 16)
    x = torch.randn(pick(48, 2), 4, side, side, device=DEV, dtype=BF16)
    x = x.to(memory_format=torch.channels_last)

    def segment():
        with guard:
            opt.zero_grad()
            net(x).float().square().mean().backward()
            opt.step()

    return segment


@case(
    "validation losses kept with their graph for the plot",
    "memory",
    also=("compute", "framework"),
    codes=("MM305", "MM308"),
    functions=("check", "fit_and_check"),
    active=6,
)
def d_plot_keeps_graph(fixed):
    torch.set_float32_matmul_precision("high")
    dim = pick(1024, 8)
    net = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(dim, dim), nn.GELU())]).to(DEV)
    opt = adam(net)
    x, held_out = (torch.randn(n, dim, device=DEV) for n in (pick(8192, 4), pick(256, 2)))
    plot = []

    def check():
        loss = net(held_out).square().mean()
        plot.append(loss.detach() if fixed else loss)  # PLANT

    def fit_and_check():
        opt.zero_grad()
        net(x).square().mean().backward()
        opt.step()
        check()

    return fit_and_check


@case(
    "a feature cache fills the device: training goes on with a few GB left",
    "memory",
    also=("compute",),
    codes=("MM301", "MM306"),
    functions=("train_on_cache",),
)
def d_cache_fills_device(fixed):
    room = 0 if DRY else torch.cuda.mem_get_info()[1]
    share = 0.1 if fixed else 0.94  # PLANT
    cache = torch.ones(int(room * share), dtype=torch.uint8, device=DEV)
    dim = pick(2048, 8)
    net = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(dim, dim), nn.ReLU())])
    net = net.to(DEV, BF16)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3, fused=True)
    rows = pick(32768, 2)

    def train_on_cache():
        part = cache[: rows * dim] if not DRY else torch.zeros(rows * dim, device=DEV)
        opt.zero_grad()
        net(part.view(rows, dim).to(BF16)).float().square().mean().backward()
        opt.step()

    return train_on_cache


class AxialLayer(nn.Module):
    """Attention over the chosen axis of a (batch, station, time, feature) field."""

    def __init__(self, dim, heads, copy):
        super().__init__()
        self.norm, self.qkv, self.out = (
            nn.LayerNorm(dim),
            nn.Linear(dim, 3 * dim),
            nn.Linear(dim, dim),
        )
        self.heads, self.copy = heads, copy

    def split(self, t):
        t = t.unflatten(-1, (self.heads, -1)).transpose(-2, -3)
        return t.contiguous() if self.copy else t  # PLANT

    def forward(self, x):
        q, k, v = (self.split(t) for t in self.qkv(self.norm(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1))
        return x + self.out(y.unflatten(0, x.shape[:2]).transpose(-2, -3).flatten(-2))


@case(
    "queries, keys and values copied to a contiguous layout before attention",
    "memory",
    also=("compute",),
    codes=("CP222", "MM309"),
    functions=("split", "forward", "nowcast"),
    plant_in="AxialLayer.split",
)
def d_heads_copied(fixed):
    dim = pick(512, 16)
    net = nn.Sequential(*[AxialLayer(dim, pick(8, 2), not fixed) for _ in range(pick(4, 1))])
    net = net.to(DEV, BF16).eval()
    field = torch.randn(pick(16, 1), pick(64, 2), pick(128, 4), dim, device=DEV, dtype=BF16)

    @torch.inference_mode()
    def nowcast():
        return net(field).mean(2)

    return nowcast
