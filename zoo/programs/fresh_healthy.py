"""Programs that look guilty and are not."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler

from zoo.harness import DEV, DRY, case, pick, replayed
from zoo.programs.fresh_parts import BF16, ENDLESS, adamw, to_device, trunk


class Rows(Dataset):
    """A table in memory that is asked for whole batches."""

    def __init__(self, rows, columns):
        self.table, self.goal = torch.randn(rows, columns), torch.randint(0, 2, (rows,))

    def __len__(self):
        return ENDLESS

    def __getitem__(self, wanted):
        start = wanted[0] % len(self.table)
        return self.table[start : start + len(wanted)], self.goal[start : start + len(wanted)]


def perceptron(wide_in, dim, depth, wide_out):
    layers = [nn.Linear(wide_in, dim), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Linear(dim, dim), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(dim, wide_out)).to(BF16)


@case("a loader without workers that only cuts a table in memory", "compute")
def f_ok_table_without_workers(_):
    rows, columns = pick(8192, 4), pick(64, 4)
    with DEV:
        net = perceptron(columns, pick(4096, 8), pick(5, 1), 2)
    opt = adamw(net)
    data = Rows(4 * rows, columns)
    cuts = BatchSampler(SequentialSampler(data), rows, drop_last=True)
    source = iter(DataLoader(data, batch_size=None, sampler=cuts, pin_memory=not DRY))

    def learn_table():
        x, y = to_device(*next(source))
        loss = F.cross_entropy(net(x.to(BF16)).float(), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return learn_table


@case("the loss read on the host in every long step", "compute", active=3)
def f_ok_loss_read(_):
    dim, rows, length = pick(4096, 8), pick(4, 2), pick(2048, 8)
    with DEV:
        net = trunk(dim, pick(32, 2), pick(2, 1), causal=True).to(BF16)
    opt = adamw(net)
    x = torch.randn(rows, length, dim, device=DEV, dtype=BF16)
    y = torch.randn_like(x)
    mean = 0.0

    def learn_and_tell():
        nonlocal mean
        loss = F.mse_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        mean = 0.99 * mean + 0.01 * loss.item()
        return mean

    return learn_and_tell


@case("the loss of a large vocabulary in a Python loop over parts, to spare memory", "compute")
def f_ok_loss_in_parts(_):
    dim, words, rows, part = pick(4096, 8), pick(65536, 32), pick(8192, 8), pick(4096, 4)
    with DEV:
        body, head = perceptron(dim, dim, 2, dim), nn.Linear(dim, words, bias=False).to(BF16)
    opt = torch.optim.SGD([*body.parameters(), *head.parameters()], 1e-3, fused=True)
    x = torch.randn(rows, dim, device=DEV, dtype=BF16)
    y = torch.randint(0, words, (rows,), device=DEV)

    def learn_words():
        opt.zero_grad()
        hidden = body(x)
        leaf = hidden.detach().requires_grad_()
        total = torch.zeros((), device=DEV)
        for some, truth in zip(leaf.split(part), y.split(part), strict=True):
            loss = F.cross_entropy(head(some), truth, reduction="sum") / rows
            loss.backward()
            total += loss.detach()
        hidden.backward(leaf.grad)
        opt.step()
        return total

    return learn_words


@case("long lists of purchases looked up in large tables", "memory", marks=False)
def f_ok_purchases_looked_up(_):
    rows, length, dim, goods = pick(65536, 4), pick(64, 3), pick(128, 8), pick(4_000_000, 50)
    with DEV:
        tables = nn.ModuleList(
            nn.EmbeddingBag(goods, dim, mode="sum", dtype=BF16) for _ in range(4)
        )
        head = nn.Linear(4 * dim, 1).to(BF16)
    bought = torch.randint(0, goods, (4, rows, length), device=DEV)

    @torch.inference_mode()
    def rank_goods():
        sums = [table(b) for table, b in zip(tables, bought, strict=True)]
        return head(torch.cat(sums, 1))

    return rank_goods


@case("small pageable labels and a sum in double precision beside large products", "compute")
def f_ok_small_pageable_double(_):
    dim, rows = pick(4096, 8), pick(16384, 4)
    with DEV:
        net = perceptron(dim, dim, 4, 16)
    opt = adamw(net)
    x = torch.randn(rows, dim, device=DEV, dtype=BF16)
    labels = torch.randint(0, 16, (rows,))
    exact = torch.zeros((), device=DEV, dtype=torch.float64)

    def learn_labels():
        loss = F.cross_entropy(net(x).float(), labels.to(DEV), reduction="none")
        exact.add_(loss.detach().double().sum())
        opt.zero_grad()
        loss.mean().backward()
        opt.step()
        return exact

    return learn_labels


@case("one reader served at a time by a large model replayed as a graph", "memory", marks=False)
def f_ok_one_reader(_):
    dim, depth = pick(4096, 8), pick(12, 2)
    with DEV:
        layers = []
        for _ in range(depth):
            layers.append(
                nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim))
            )
        net = nn.ModuleList(layers).to(BF16).eval()
    state = torch.randn(1, dim, device=DEV, dtype=BF16)

    @torch.inference_mode()
    def advance():
        x = state
        for layer in net:
            x = x + layer(x)
        state.copy_(F.normalize(x, dim=-1))

    tick = replayed(advance)

    def read_on():
        for _ in range(pick(4, 1)):
            tick()

    return read_on
