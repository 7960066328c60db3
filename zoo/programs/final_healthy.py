"""Healthy controls that show a known sign, yet it costs (almost) nothing."""

import random

import torch
import torch.nn.functional as F
from torch import nn

from zoo.harness import DEV, case, pick
from zoo.programs.final_data import BF16


def broad(dim, depth):
    with DEV:
        layers = [m for _ in range(depth) for m in (nn.Linear(dim, dim), nn.Hardswish())]
        return nn.Sequential(*layers).to(BF16)


def plain_sgd(net, **kw):
    return torch.optim.SGD(net.parameters(), lr=1e-4, **(kw or {"fused": True}))


class FewWords(nn.Module):
    """Attention written out, over 16 tokens only."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = self.attend(q, k, v)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.relu(self.up(x)))

    def attend(self, q, k, v):
        return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


class ManyWords(FewWords):
    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)


@case("healthy: attention by hand over 16 tokens of very wide features", "compute", active=3)
def e_ok_short_attention(fixed):
    dim = pick(6144, 16)
    with DEV:
        net = FewWords(dim, pick(48, 2)).to(BF16)
    opt = plain_sgd(net)
    x = torch.randn(pick(512, 2), pick(16, 4), dim, device=DEV, dtype=BF16)

    def train_few_words():
        opt.zero_grad()
        net(x).float().square().mean().backward()
        opt.step()

    return train_few_words


@case("healthy: a plan of moves searched in Python while the GPU works", "compute", active=3)
def e_ok_python_hidden(fixed):
    net = broad(pick(8192, 8), 3)
    opt = plain_sgd(net)
    x = torch.randn(pick(12288, 4), pick(8192, 8), device=DEV, dtype=BF16)
    chance = random.Random(6)
    best = [0]

    def search_moves():
        value = 0
        for _ in range(pick(6000, 5)):
            value = max(value, chance.getrandbits(20) ^ best[0])
        best[0] = value

    def train_and_plan():
        opt.zero_grad()
        net(x).square().mean().backward()
        opt.step()
        search_moves()

    return train_and_plan


@case("healthy: SGD tensor by tensor, where the tensors are few and huge", "compute", active=3)
def e_ok_sgd_few_tensors(fixed):
    net = broad(pick(8192, 8), 4)
    opt = plain_sgd(net, foreach=False)
    x = torch.randn(pick(16384, 4), pick(8192, 8), device=DEV, dtype=BF16)

    def train_huge():
        opt.zero_grad()
        net(x).square().mean().backward()
        opt.step()

    return train_huge


@case("healthy: requests of one long document each fill the GPU", "compute", marks=False, active=3)
def e_ok_one_long_request(fixed):
    dim = pick(2048, 16)
    with DEV:
        net = nn.Sequential(*[ManyWords(dim, pick(16, 2)) for _ in range(pick(4, 1))]).to(BF16)
    document = torch.randn(1, pick(16384, 8), dim, device=DEV, dtype=BF16)

    @torch.inference_mode()
    def read_document():
        return net(document).mean(1).cpu()

    return read_document


@case("healthy: the hard examples picked with a mask once per heavy step", "compute", active=3)
def e_ok_hard_examples(fixed):
    dim = pick(8192, 8)
    net = nn.Sequential(broad(dim, 3), nn.Linear(dim, 16, device=DEV, dtype=BF16))
    opt = plain_sgd(net)
    x = torch.randn(pick(16384, 4), dim, device=DEV, dtype=BF16)

    def train_on_hard():
        opt.zero_grad()
        each = net(x).float().square().mean(1)
        each[each >= each.detach().mean()].mean().backward()
        opt.step()

    return train_on_hard


@case("healthy: an fp32 head for 37 odd classes on a wide bf16 body", "compute", active=3)
def e_ok_fp32_head(fixed):
    dim = pick(8192, 8)
    body, head = broad(dim, 3), nn.Linear(dim, 37, device=DEV)
    opt = plain_sgd(nn.ModuleList([body, head]))
    x = torch.randn(pick(16384, 4), dim, device=DEV, dtype=BF16)
    kind = torch.randint(0, 37, (len(x),), device=DEV)

    def train_sorter():
        opt.zero_grad()
        pooled = body(x).view(-1, 4, dim).mean(1).float()
        F.cross_entropy(head(pooled), kind[: len(pooled)]).backward()
        opt.step()

    return train_sorter
