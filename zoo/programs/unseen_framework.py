"""Time lost on the host: waiting, launching, bookkeeping; one mistake each."""

import gc
import math
from collections import Counter
from contextlib import nullcontext
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Independent, Normal
from torch.utils.flop_counter import FlopCounterMode

from zoo.harness import DEV, DRY, case, pick, replayed
from zoo.programs.unseen_data import BF16, SmallEncoder, adam


def tower(*widths):
    layers = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.SiLU()]
    return nn.Sequential(*layers[:-1])


# ---------------------------------------------------------------- waiting for the device


@case(
    "distributions that check their arguments: a read-back for each of them",
    "framework",
    also=("compute",),
    codes=("FW503", "FW521"),
    functions=("skill_loss", "improve_policy"),
)
def d_policy_checked(fixed):
    torch.set_float32_matmul_precision("high")
    width = pick(1024, 8)
    skills = nn.ModuleList(tower(64, width, width, 2 * 12) for _ in range(pick(6, 2))).to(DEV)
    opt = adam(skills)
    seen = torch.randn(pick(16384, 4), 64, device=DEV)
    done = torch.randn(len(seen), 12, device=DEV)
    worth = torch.randn(len(seen), device=DEV)
    check = False if fixed else None  # PLANT

    def skill_loss(skill):
        mean, spread = skill(seen).chunk(2, 1)
        policy = Independent(
            Normal(mean, F.softplus(spread) + 0.01, validate_args=check), 1, validate_args=check
        )
        return -(policy.log_prob(done) * worth).mean() - 0.01 * policy.entropy().mean()

    def improve_policy():
        opt.zero_grad()
        sum(skill_loss(skill) for skill in skills).backward()
        opt.step()

    return improve_policy


def box_loss(guess, target, label):
    positive = label > 0
    return F.smooth_l1_loss(guess[positive], target[positive])  # PLANT


def box_loss_weighted(guess, target, label):
    positive = (label > 0).float()
    each = F.smooth_l1_loss(guess, target, reduction="none").mean(-1)
    return (each * positive).sum() / positive.sum()


@case(
    "positive anchors picked with a boolean mask on every pyramid level",
    "framework",
    also=("compute",),
    codes=("FW504",),
    functions=("box_loss", "learn_boxes"),
    plant_in="box_loss",
)
def d_anchors_masked(fixed):
    width, side = pick(160, 8), pick(192, 32)
    down = nn.ModuleList(
        nn.Conv2d(width if k else 8, width, 3, 2, 1) for k in range(5)
    ).to(DEV, BF16)  # fmt: skip
    heads = nn.ModuleList(nn.Conv2d(width, 4 * 9, 3, padding=1) for _ in range(5)).to(DEV, BF16)
    opt = adam(nn.ModuleList([down, heads]))
    rows = pick(16, 2)
    images = torch.randn(rows, 8, side, side, device=DEV, dtype=BF16)
    cells = [(-(-side // 2 ** (k + 1))) ** 2 * 9 for k in range(5)]
    targets = [torch.randn(rows, n, 4, device=DEV) for n in cells]
    labels = [(torch.rand(rows, n, device=DEV) < 0.2).long() for n in cells]
    loss_of = box_loss_weighted if fixed else box_loss

    def learn_boxes():
        opt.zero_grad()
        x, total = images, 0
        for k in range(5):
            x = F.silu(down[k](x))
            guess = heads[k](x).permute(0, 2, 3, 1).reshape(rows, -1, 4).float()
            total = total + loss_of(guess, targets[k], labels[k])
        total.backward()
        opt.step()

    return learn_boxes


@case(
    "an event waited for after each ensemble member, for a progress bar",
    "framework",
    also=("compute",),
    codes=("FW505",),
    functions=("progress", "fit_members"),
)
def d_members_waited_for(fixed):
    torch.set_float32_matmul_precision("high")
    width = pick(512, 8)
    members = [tower(32, width, width, width, 1).to(DEV) for _ in range(pick(8, 2))]
    opts = [adam(m) for m in members]
    rows = pick(16384, 4)
    x, y = torch.randn(rows, 32, device=DEV), torch.randn(rows, 1, device=DEV)
    shown = []

    def progress(k):
        shown[:] = [k]
        if not (fixed or DRY):
            done = torch.cuda.Event()
            done.record()
            done.synchronize()  # PLANT

    def fit_members():
        for k, (member, opt) in enumerate(zip(members, opts, strict=True)):
            opt.zero_grad()
            F.mse_loss(member(x), y).backward()
            progress(k)
            opt.step()

    return fit_members


def clip_by_hand(params, limit):
    total = math.sqrt(sum(p.grad.norm().item() ** 2 for p in params))  # PLANT
    if total > limit:
        for p in params:
            p.grad.mul_(limit / total)


@case(
    "gradient norm summed in Python, one read-back for each parameter",
    "framework",
    also=("compute",),
    codes=("FW526", "FW503"),
    functions=("clip_by_hand", "adapt_encoder"),
    plant_in="clip_by_hand",
    active=3,
)
def d_clip_by_hand(fixed):
    words = pick(4096, 32)
    with DEV:
        net = SmallEncoder(words, pick(512, 8), pick(8, 2)).to(BF16)
    params = list(net.parameters())
    opt = adam(net)
    ids = torch.randint(0, words, (pick(32, 2), pick(256, 8)), device=DEV)

    def adapt_encoder():
        opt.zero_grad()
        F.cross_entropy(net(ids).flatten(0, 1), ids.flatten()).backward()
        if fixed:
            nn.utils.clip_grad_norm_(params, 1.0)
        else:
            clip_by_hand(params, 1.0)
        opt.step()

    return adapt_encoder


# ---------------------------------------------------------------- launching


@case(
    "a physics-informed net of small layers with second derivatives, launched kernel by kernel",
    "framework",
    codes=("FW501", "FW502", "FW513"),
    functions=("solve", "residual", "forward"),
    active=3,
)
def d_burgers_eager(fixed):
    torch.set_float32_matmul_precision("high")
    net = tower(2, *[pick(64, 8)] * pick(5, 2), 1).to(DEV)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
    points = torch.rand(pick(4096, 8), 2, device=DEV, requires_grad=True)

    def residual():
        u = net(points)
        (first,) = torch.autograd.grad(u.sum(), points, create_graph=True)
        (second,) = torch.autograd.grad(first[:, 0].sum(), points, create_graph=True)
        return first[:, 1] + u[:, 0] * first[:, 0] - 0.003 * second[:, 0]

    def solve():
        opt.zero_grad()
        points.grad = None
        residual().square().mean().backward()
        opt.step()

    return replayed(solve) if fixed else solve  # PLANT


def pool_chains(h, lengths):
    pooled = []
    for k, n in enumerate(lengths):
        pooled.append(h[k, :n].mean(0))  # PLANT
    return torch.stack(pooled)


def pool_chains_masked(h, lengths):
    lengths = torch.tensor(lengths, device=DEV)
    inside = torch.arange(h.shape[1], device=DEV) < lengths[:, None]
    return torch.bmm(inside[:, None].to(h.dtype), h)[:, 0] / lengths[:, None].to(h.dtype)


@case(
    "proteins averaged chain by chain over their true lengths",
    "framework",
    codes=("FW516", "FW501", "FW502"),
    functions=("pool_chains", "fold_family"),
    plant_in="pool_chains",
    active=3,
)
def d_chains_pooled_in_loop(fixed):
    net = SmallEncoder(32, pick(320, 8), pick(4, 1)).to(DEV, BF16)
    opt = adam(net)
    rng = np.random.default_rng(0)
    room = pick(200, 8)
    lengths = [int(n) for n in rng.integers(room // 4, room, pick(96, 3))]
    ids = torch.randint(0, 32, (len(lengths), room), device=DEV)
    family = torch.randint(0, 32, (len(lengths),), device=DEV)
    pool = pool_chains_masked if fixed else pool_chains

    def fold_family():
        opt.zero_grad()
        h = net.words(ids)
        for layer in net.layers:
            h = layer(h)
        F.cross_entropy(net.head(pool(h, lengths)).float(), family).backward()
        opt.step()

    return fold_family


@case(
    "RMSprop told to go through the tensors of a mixer one by one",
    "framework",
    also=("compute",),
    codes=("FW507",),
    functions=("fit_mixer",),
    active=3,
)
def d_rmsprop_one_by_one(fixed):
    torch.set_float32_matmul_precision("high")
    dim = pick(384, 8)
    net = nn.Sequential(
        *[nn.Sequential(nn.LayerNorm(dim), tower(dim, dim, dim)) for _ in range(pick(30, 2))]
    ).to(DEV)
    opt = torch.optim.RMSprop(net.parameters(), lr=1e-4, momentum=0.9, foreach=fixed)  # PLANT
    x = torch.randn(pick(16384, 4), dim, device=DEV)

    def fit_mixer():
        opt.zero_grad()
        net(x).square().mean().backward()
        opt.step()

    return fit_mixer


@case(
    "autocast without its cache casts the weights at every time step",
    "framework",
    also=("compute", "memory"),
    codes=("FW525", "CP221"),
    functions=("unroll", "follow_orbit"),
)
def d_autocast_uncached(fixed):
    width = pick(1024, 8)
    read, keep, turn = (nn.Linear(width, width).to(DEV) for _ in range(3))
    opt = adam(nn.ModuleList([read, keep, turn]))
    x = torch.randn(pick(24, 3), pick(256, 2), width, device=DEV)

    def unroll():
        h = torch.zeros_like(x[0])
        for now in x:
            gate = torch.sigmoid(keep(h))
            h = gate * h + (1 - gate) * torch.tanh(read(now) + turn(h))
        return h

    def follow_orbit():
        opt.zero_grad()
        with torch.autocast(DEV.type, BF16, cache_enabled=fixed):  # PLANT
            end = unroll()
        end.float().square().mean().backward()
        opt.step()

    return follow_orbit


# ---------------------------------------------------------------- bookkeeping


def count_in_python(tokens):
    seen = Counter()
    for a, b, c in zip(tokens, tokens[1:], tokens[2:], strict=False):
        seen[a, b, c] += 1  # PLANT
    return len(seen)


def count_packed(tokens):
    t = np.asarray(tokens)
    return len(np.unique((t[:-2] << 40) + (t[1:-1] << 20) + t[2:]))


@case(
    "trigrams of the batch counted in Python for a repetition score",
    "framework",
    also=("data_loading",),
    codes=("FW517", "FW528"),
    functions=("count_in_python", "train_translator"),
    plant_in="count_in_python",
)
def d_trigrams_in_python(fixed):
    words = pick(2048, 32)
    net = SmallEncoder(words, pick(256, 8), pick(4, 1)).to(DEV, BF16)
    opt = adam(net)
    text = np.random.default_rng(0).integers(0, words, (pick(64, 2), pick(128, 8)))
    tokens = [int(t) for t in text.ravel()][: pick(6000, 16)]
    ids = torch.from_numpy(text).to(DEV)
    count, scores = count_packed if fixed else count_in_python, []

    def train_translator():
        opt.zero_grad()
        F.cross_entropy(net(ids).flatten(0, 1), ids.flatten()).backward()
        opt.step()
        scores[:] = [count(tokens)]

    return train_translator


@case(
    "the garbage collector called after every batch",
    "framework",
    codes=("FW518", "FW517"),
    functions=("tidy_up", "fit_prices"),
    active=3,
)
def d_collect_each_batch(fixed):
    torch.set_float32_matmul_precision("high")
    width = pick(2048, 8)
    net = tower(64, width, width, width, 1).to(DEV)
    opt = adam(net)
    x, y = torch.randn(pick(8192, 4), 64, device=DEV), torch.randn(pick(8192, 4), 1, device=DEV)

    def tidy_up():
        if not fixed:
            gc.collect()  # PLANT

    def fit_prices():
        opt.zero_grad()
        F.mse_loss(net(x), y).backward()
        opt.step()
        tidy_up()

    return fit_prices


# Its single-tensor optimizer is a second, smaller mistake of this program.
@case(
    "a FLOP counter left around the step",
    "framework",
    codes=("FW531", "FW521"),
    functions=("train_counted",),
    active=2,
)
def d_flops_counted(fixed):
    words = pick(2048, 32)
    net = SmallEncoder(words, pick(512, 8), pick(3, 1)).to(DEV, BF16)
    opt = torch.optim.Adagrad(net.parameters(), lr=1e-3, foreach=False)
    ids = torch.randint(0, words, (pick(16, 2), pick(256, 8)), device=DEV)

    def train_counted():
        opt.zero_grad()
        with nullcontext() if fixed else FlopCounterMode(display=False):  # PLANT
            F.cross_entropy(net(ids).flatten(0, 1), ids.flatten()).backward()
        opt.step()

    return train_counted
