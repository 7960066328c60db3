"""Programs that look guilty and are not: the suspicious part costs next to nothing."""

import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

from zoo.harness import DEV, DRY, case, pick, replayed

BF16 = torch.bfloat16


class Residual(nn.Module):
    def __init__(self, dim, wide):
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(dim),
            nn.Linear(dim, wide),
            nn.Linear(wide, dim),
        )

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


def tower(dim, depth):
    return nn.Sequential(*(Residual(dim, 4 * dim) for _ in range(depth))).to(DEV, BF16)


def descend(opt, loss):
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()


class SlowClips(Dataset):
    """Each clip takes 10 ms to come from a distant disk."""

    def __len__(self):
        return 10**6

    def __getitem__(self, i):
        time.sleep(pick(0.01, 0.0005))
        make = torch.Generator().manual_seed(i)
        return torch.rand(pick(128, 4), pick(4096, 8), generator=make), i % 50


# 16 clips x 10 ms / 12 workers: 15 ms a batch behind a step of about 35 ms.
@case("a slow loader that is hidden behind a long step", "compute", active=3)
def g_ok_slow_clips_hidden(_):
    dim = pick(4096, 8)
    net, head = tower(dim, pick(14, 2)), nn.Linear(dim, 50, device=DEV, dtype=BF16)
    opt = torch.optim.SGD([*net.parameters(), *head.parameters()], 1e-3, fused=True)
    loader = DataLoader(SlowClips(), pick(16, 2), num_workers=pick(12, 1), pin_memory=not DRY)
    batches = iter(loader)

    def learn_clips():
        clips, kinds = (t.to(DEV, non_blocking=True) for t in next(batches))
        scores = head(net(clips.to(BF16)).mean(1))
        return descend(opt, F.cross_entropy(scores.float(), kinds))

    return learn_clips


# A product with a matrix of 4.3 GB takes 1.1 ms; the check costs some 20 us.
@case("a power iteration that asks after every product whether it is done", "memory", marks=False)
def g_ok_asks_if_done(_):
    size = pick(46080, 16)
    matrix = torch.empty(size, size, device=DEV, dtype=BF16).uniform_(-1, 1)
    start = torch.randn(size, device=DEV, dtype=BF16)

    @torch.inference_mode()
    def iterate():
        x = F.normalize(start, dim=0)
        for _ in range(pick(12, 2)):
            y = F.normalize(matrix @ x, dim=0)
            if (y - x).norm() < 1e-6:
                break
            x = y
        return x

    return iterate


# Each kernel waits for the one before; all are in one CUDA graph and take 2 to 3 us.
@case(
    "a small recurrent policy, dreamed step after step in a CUDA graph",
    "compute",
    also=("memory", "framework"),
    marks=False,
)
def g_ok_dreams_replayed(_):
    dim = pick(256, 8)
    with DEV:
        cell, head = nn.GRUCell(dim, dim).to(BF16), nn.Linear(dim, dim).to(BF16)
        hidden, seen = torch.zeros(2, 32, dim, dtype=BF16)

    @torch.inference_mode()
    def dream():
        h, x = hidden, seen
        for _ in range(pick(50, 2)):
            h = cell(x, h)
            x = head(h).tanh()
        hidden.copy_(h)
        seen.copy_(x)

    tick = replayed(dream)

    def dreams():
        for _ in range(pick(6, 1)):
            tick()
        return hidden

    return dreams


# Spares 0.8 GB and repeats only the forward pass of the head: 1 of 35 ms.
@case("a large head whose activations are computed twice to spare memory", "compute", active=3)
def g_ok_head_checkpointed(_):
    dim, rows, words = pick(4096, 8), pick(8192, 6), pick(8192, 12)
    net, head = tower(dim, pick(3, 2)), nn.Linear(dim, words, device=DEV, dtype=BF16)
    opt = torch.optim.SGD([*net.parameters(), *head.parameters()], 1e-3, fused=True)
    x = torch.randn(rows, dim, device=DEV, dtype=BF16)
    y = torch.randint(0, words, (rows,), device=DEV)

    def head_loss(hidden):
        return F.cross_entropy(head(hidden).float(), y, label_smoothing=0.1)

    def learn():
        return descend(opt, checkpoint(head_loss, net(x), use_reentrant=False))

    return learn


# The loop over levels and the odd number of boxes are short work beside the convolutions.
@case("a pyramid with a Python loop over its levels and a small head of odd size", "compute")
def g_ok_levels_in_loop(_):
    wide, rows, side = pick(512, 8), pick(16, 2), pick(128, 16)
    with DEV:
        trunk = nn.ModuleList(nn.Conv2d(wide, wide, 3, 1, 1) for _ in range(pick(4, 2)))
        head = nn.Conv2d(wide, 13, 1)
        net = nn.ModuleList([trunk, head]).to(BF16, memory_format=torch.channels_last)
    opt = torch.optim.SGD(net.parameters(), 1e-3, fused=True)
    maps = torch.randn(rows, wide, side, side, device=DEV, dtype=BF16)
    maps = maps.to(memory_format=torch.channels_last)

    def learn_boxes():
        x, total = maps, 0.0
        for level, conv in enumerate(trunk):
            x = F.relu(conv(x))
            found = head(F.avg_pool2d(x, 2**level)).float()
            total = total + F.smooth_l1_loss(found, torch.ones_like(found))
        return descend(opt, total)

    return learn_boxes


# Each of the three steps is a few large products; there is nothing to gain in the loop.
@case("an inner loop of three gradient steps in Python, each of them large", "compute")
def g_ok_three_inner_steps(_):
    dim, rows = pick(4096, 8), pick(8192, 4)
    with DEV:
        slow = [torch.randn(dim, dim, dtype=BF16) / dim**0.5 for _ in range(2)]
        x, y = torch.randn(2, rows, dim, dtype=BF16)

    def adapt(weights):
        hidden = F.relu(x @ weights[0])
        loss = F.mse_loss(hidden @ weights[1], y)
        grads = torch.autograd.grad(loss, weights)
        return [
            (w - 0.1 * g).detach().requires_grad_() for w, g in zip(weights, grads, strict=True)
        ]

    def meta_step():
        fast = [w.detach().requires_grad_() for w in slow]
        for _ in range(3):
            fast = adapt(fast)
        with torch.no_grad():
            torch._foreach_lerp_(slow, fast, 0.1)
        return slow[0]

    return meta_step


# Two different dropout masks: the second pass is no repetition.
@case("the same rows sent twice through a net with dropout, as the loss needs it", "compute")
def g_ok_two_views(_):
    dim, rows = pick(4096, 8), pick(4096, 4)
    net = tower(dim, pick(4, 2))
    opt = torch.optim.SGD(net.parameters(), 1e-3, fused=True)
    x = torch.randn(rows, dim, device=DEV, dtype=BF16)

    def agree_with_self():
        first, second = net(F.dropout(x, 0.1)), net(F.dropout(x, 0.1))
        return descend(opt, F.mse_loss(first, second) + F.mse_loss(first, x))

    return agree_with_self


# 40 .item() at the end of a step of about 50 ms: only the first one waits, for the device.
@case("forty numbers read one by one after a long step", "compute", active=3)
def g_ok_forty_numbers(_):
    dim, rows = pick(4096, 8), pick(8192, 4)
    net, names = tower(dim, pick(5, 2)), [f"unit{k}" for k in range(pick(40, 4))]
    opt = torch.optim.SGD(net.parameters(), 1e-3, fused=True)
    x, y = torch.randn(2, rows, dim, device=DEV, dtype=BF16)
    board = dict.fromkeys(names, 0.0)

    def learn_and_show():
        out = net(x)
        loss = descend(opt, F.mse_loss(out, y))
        means = out.detach()[0, : len(names)].float()
        for name, value in zip(names, means, strict=True):
            board[name] = value.item()
        return loss

    return learn_and_show
