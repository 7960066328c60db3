"""Programs that move more bytes than they must, or strain the allocator; one mistake each."""

import weakref

import torch
import torch.nn.functional as F
from torch import nn

from zoo.harness import DEV, DRY, case, pick
from zoo.programs.fresh_parts import BF16, adamw, trunk


class NormByHand(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        y = x.float()
        y = y - y.mean(-1, keepdim=True)
        spread = torch.sqrt(y.square().mean(-1, keepdim=True) + 1e-5)  # PLANT
        return (y / spread * self.weight + self.bias).to(x.dtype)


class Sky(nn.Module):
    """A residual layer over the cells of a map, normed before and after."""

    def __init__(self, dim, norm):
        super().__init__()
        self.before, self.after = norm(dim), norm(dim)
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x):
        return x + self.after(self.down(F.silu(self.up(self.before(x)))))


@case(
    "clouds foreseen with layer norms written out in single precision",
    "memory",
    codes=("CP219", "CP212"),
    functions=("forward", "foresee_clouds"),
    plant_in="NormByHand.forward",
)
def f_clouds_norm_by_hand(fixed):
    dim, cells = pick(1024, 8), pick(128 * 256, 16)
    with DEV:
        norm = nn.LayerNorm if fixed else NormByHand
        net = nn.Sequential(*(Sky(dim, norm) for _ in range(pick(4, 1)))).to(BF16)
    opt = adamw(net)
    now = torch.randn(cells, dim, device=DEV, dtype=BF16)
    then = torch.randn_like(now)

    def foresee_clouds():
        loss = F.mse_loss(net(now), then)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return foresee_clouds


class Pool(nn.Module):
    """A layer that mixes neighbours by their mean and channels by two matrix products."""

    def __init__(self, wide, keep_last):
        super().__init__()
        self.keep_last, self.norm = keep_last, nn.LayerNorm(wide)
        self.up, self.down = nn.Linear(wide, 2 * wide), nn.Linear(2 * wide, wide)

    def channels_first(self, x):
        x = x.permute(0, 3, 1, 2)
        return x if self.keep_last else x.contiguous()  # PLANT

    def forward(self, x):
        y = F.avg_pool2d(x, 3, 1, 1) - x
        x = x + y
        y = self.norm(x.permute(0, 2, 3, 1).contiguous())
        return x + self.channels_first(self.down(F.relu(self.up(y))))


@case(
    "maps of roofs turned from channels first to channels last and back in every layer",
    "memory",
    also=("compute",),
    codes=("CP222", "MM309", "CP208"),
    functions=("channels_first", "forward", "learn_roofs"),
    plant_in="Pool.channels_first",
)
def f_roofs_turned_each_layer(fixed):
    wide, side, rows = pick(192, 8), pick(64, 8), pick(48, 2)
    with DEV:
        net = nn.Sequential(*(Pool(wide, fixed) for _ in range(pick(6, 1)))).to(BF16)
        head = nn.Linear(wide, 2).to(BF16)
    opt = adamw(nn.ModuleList([net, head]))
    layout = torch.channels_last if fixed else torch.contiguous_format
    maps = torch.randn(rows, wide, side, side, device=DEV, dtype=BF16).to(memory_format=layout)
    roofs = torch.randint(0, 2, (rows,), device=DEV)

    def learn_roofs():
        loss = F.cross_entropy(head(net(maps).mean((2, 3))).float(), roofs)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return learn_roofs


def spread_gathered(x, graph):
    cited, citing, weights = graph
    news = x[cited] * weights[:, None]  # PLANT
    return torch.zeros_like(x).index_add_(0, citing, news)


def spread_sparse(x, graph):
    return graph @ x


def citations(papers, links, fixed):
    """Random links with the weights of a mean, as lists or as a sparse matrix."""
    citing = torch.randint(0, papers, (links,), device=DEV).sort().values
    cited = torch.randint(0, papers, (links,), device=DEV)
    counts = torch.bincount(citing, minlength=papers)
    weights = 1.0 / counts[citing]
    if not fixed:
        return cited, citing, weights
    starts = F.pad(counts.cumsum(0), (1, 0)).int()
    return torch.sparse_csr_tensor(starts, cited.int(), weights, (papers, papers))


@case(
    "labels of papers spread over citations that are gathered one row a link",
    "memory",
    codes=("CP216",),
    functions=("spread_gathered", "spread_labels"),
    plant_in="spread_gathered",
    marks=False,
)
def f_papers_gathered(fixed):
    papers, dim = pick(200_000, 30), pick(128, 8)
    graph = citations(papers, pick(2_400_000, 90), fixed)
    with DEV:
        layers = [nn.Linear(dim, pick(2048, 16)), nn.ReLU(), nn.Linear(pick(2048, 16), dim)]
        net = nn.Sequential(*layers).to(BF16).eval()
    abstracts = torch.randn(papers, dim, device=DEV, dtype=BF16)
    spread = spread_sparse if fixed else spread_gathered

    @torch.inference_mode()
    def spread_labels():
        first = net(abstracts).float()
        x = first
        for _ in range(4):
            x = torch.lerp(first, spread(x, graph), 0.9)
        return x.argmax(-1)

    return spread_labels


@case(
    "sketches learnt with the cache of the allocator emptied after every step",
    "framework",
    also=("memory",),
    codes=("MM303", "MM302"),
    functions=("learn_sketches",),
)
def f_sketches_cache_emptied(fixed):
    dim, rows, length = pick(1024, 8), pick(24, 2), pick(768, 4)
    with DEV:
        net = nn.Sequential(trunk(dim, pick(8, 2), pick(4, 1)), nn.Linear(dim, 3)).to(BF16)
    opt = adamw(net)
    strokes = torch.randn(rows, length, dim, device=DEV, dtype=BF16)
    moves = torch.randn(rows, length, 3, device=DEV, dtype=BF16)

    def learn_sketches():
        loss = F.mse_loss(net(strokes), moves)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if not fixed:
            torch.cuda.empty_cache()  # PLANT
        return loss.detach()

    return learn_sketches


def allow(gigabytes):
    """The memory that this process may take of the card."""
    if not DRY:
        total = torch.cuda.get_device_properties(DEV).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, gigabytes * 1e9 / total), DEV)


def need(parts):
    if DRY and parts < 2:
        raise torch.OutOfMemoryError("a dry run has no card that could be full")


@case(
    "a batch that does not fit tried as a whole in every step before it is halved",
    "memory",
    also=("framework", "compute"),
    codes=("MM303", "MM313", "MM302"),
    functions=("learn_letters", "accumulate"),
    active=3,
)
def f_letters_memory_retried(fixed):
    dim, rows, length = pick(1024, 8), pick(32, 4), pick(1024, 4)
    with DEV:
        net = nn.Sequential(trunk(dim, pick(8, 2), pick(6, 2), causal=True), nn.Linear(dim, 256))
    net = net.to(BF16)
    opt = adamw(net)
    letters = torch.randn(rows, length, dim, device=DEV, dtype=BF16)
    following = torch.randint(0, 256, (rows, length), device=DEV)
    allow(5.0)
    fits = 1

    def accumulate(parts):
        need(parts)
        opt.zero_grad()
        total = torch.zeros((), device=DEV)
        for x, y in zip(letters.chunk(parts), following.chunk(parts), strict=True):
            loss = F.cross_entropy(net(x).flatten(0, 1).float(), y.flatten()) / parts
            loss.backward()
            total += loss.detach()
        return total

    def learn_letters():
        nonlocal fits
        parts = fits if fixed else 1  # PLANT
        while True:
            try:
                loss = accumulate(parts)
                break
            except torch.OutOfMemoryError:
                parts *= 2
        fits = parts
        opt.step()
        return loss

    weakref.finalize(learn_letters, allow, 1000.0)
    return learn_letters
