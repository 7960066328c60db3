"""Training that computes more, or less cleverly, than it must; one mistake each."""

import itertools

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from zoo.harness import DEV, case, pick
from zoo.programs.fresh_parts import BF16, Block, adamw, conv, mixed, trunk


@case(
    "a protein model trained in full single precision",
    "compute",
    codes=("CP201",),
    functions=("learn_folds",),
)
def f_proteins_fp32(fixed):
    dim, rows, length = pick(1024, 8), pick(8, 2), pick(512, 6)
    with DEV:
        acids = nn.Embedding(32, dim)
        net = nn.ModuleList([acids, trunk(dim, pick(16, 2), pick(4, 1)), nn.Linear(dim, 32)])
    opt = adamw(net)
    chains = torch.randint(0, 32, (rows, length), device=DEV)
    hidden = torch.rand(rows, length, device=DEV) < 0.15

    def learn_folds():
        with mixed(enabled=fixed):  # PLANT
            guess = net[2](net[1](acids(chains.masked_fill(hidden, 0))))
        loss = F.cross_entropy(guess.float().mT, chains)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return learn_folds


class Residual(nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.a, self.b = conv(wide, wide), conv(wide, wide)

    def forward(self, x):
        return x + self.b(self.a(x))


@case(
    "a convolutional net in half precision with channels before pixels",
    "compute",
    also=("memory",),
    codes=("CP208", "CP222"),
    functions=("sort_cells",),
)
def f_cells_channels_first(fixed):
    layout = torch.channels_last if fixed else torch.contiguous_format  # PLANT
    wide, rows, side = pick(64, 4), pick(64, 2), pick(256, 16)
    with DEV:
        layers = [conv(3, wide, 2)]
        for k in range(3):
            layers += [Residual(wide << k), Residual(wide << k), conv(wide << k, wide << k + 1, 2)]
        net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * wide, 6))
    net = net.to(BF16).to(memory_format=layout)
    opt = adamw(net)
    cells = torch.randn(rows, 3, side, side, device=DEV, dtype=BF16).to(memory_format=layout)
    kinds = torch.randint(0, 6, (rows,), device=DEV)

    def sort_cells():
        loss = F.cross_entropy(net(cells), kinds)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return sort_cells


def widen(net, genes, width):
    """The same net with zeros beside the weights of the first and the last layer."""
    first, last = net[0], net[-1]
    extra = width - genes
    first.weight = nn.Parameter(F.pad(first.weight.detach(), (0, extra)))
    last.weight = nn.Parameter(F.pad(last.weight.detach(), (0, 0, 0, extra)))
    last.bias = nn.Parameter(F.pad(last.bias.detach(), (0, extra)))


@case(
    "an odd number of genes as the width of the largest matrix products",
    "compute",
    codes=("CP202",),
    functions=("learn_genes",),
)
def f_genes_odd_width(fixed):
    genes, dim, rows = pick(4001, 13), pick(2048, 8), pick(16384, 4)
    width = -(-genes // 64) * 64 if fixed else genes  # PLANT
    with DEV:
        sizes = [genes, dim, dim // 8, dim, genes]
        layers = []
        for wide_in, wide_out in itertools.pairwise(sizes):
            layers += [nn.Linear(wide_in, wide_out), nn.ReLU()]
        net = nn.Sequential(*layers[:-1]).to(BF16)
    counts = torch.rand(rows, genes, device=DEV, dtype=BF16)
    widen(net, genes, width)
    inputs = F.pad(counts, (0, width - genes))
    opt = adamw(net)

    def learn_genes():
        loss = F.mse_loss(net(inputs)[:, :genes], counts)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return learn_genes


def attend_by_hand(q, k, v, later):
    scores = q @ k.mT * q.shape[-1] ** -0.5  # PLANT
    return scores.masked_fill(later, -torch.inf).softmax(-1) @ v


class Reader(Block):
    """A causal layer with its attention written out."""

    def __init__(self, dim, heads, length):
        super().__init__(dim, heads, causal=True)
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        self.register_buffer("later", later)

    def attend(self, q, k, v):
        return attend_by_hand(q, k, v, self.later)


@case(
    "reviews read with attention whose scores are all written to memory",
    "memory",
    also=("compute",),
    codes=("CP206",),
    functions=("attend_by_hand", "learn_stars"),
    plant_in="attend_by_hand",
)
def f_reviews_scores_by_hand(fixed):
    dim, heads, rows, length = pick(768, 8), pick(12, 2), pick(8, 2), pick(1024, 8)
    with DEV:
        layers = [
            Block(dim, heads, causal=True) if fixed else Reader(dim, heads, length)
            for _ in range(pick(4, 2))
        ]
        words, head = nn.Embedding(pick(30000, 40), dim), nn.Linear(dim, 5)
        net = nn.ModuleList([words, nn.Sequential(*layers), head]).to(BF16)
    opt = adamw(net)
    texts = torch.randint(0, words.num_embeddings, (rows, length), device=DEV)
    stars = torch.randint(0, 5, (rows,), device=DEV)

    def learn_stars():
        loss = F.cross_entropy(head(net[1](words(texts))[:, -1]).float(), stars)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return learn_stars


@case(
    "a new head on a backbone that is not trained but differentiated all the same",
    "compute",
    codes=("CP228",),
    functions=("learn_birds",),
)
def f_birds_frozen_backbone(fixed):
    dim, rows = pick(768, 8), pick(48, 2)
    with DEV:
        patches = nn.Conv2d(3, dim, 16, 16)
        backbone = nn.Sequential(patches, nn.Flatten(2)).to(BF16)
        body, head = trunk(dim, pick(12, 2), pick(8, 2)).to(BF16), nn.Linear(dim, 200)
    opt = adamw(head)
    birds = torch.randn(rows, 3, pick(224, 32), pick(224, 32), device=DEV, dtype=BF16)
    kinds = torch.randint(0, 200, (rows,), device=DEV)

    def learn_birds():
        with torch.set_grad_enabled(not fixed):  # PLANT
            features = body(backbone(birds).mT).mean(1).float()
        loss = F.cross_entropy(head(features), kinds)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return learn_birds


class Mix(nn.Module):
    """A residual layer of a forecaster."""

    def __init__(self, dim):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


@case(
    "tides forecast in double precision because the table of levels came from NumPy",
    "compute",
    also=("memory",),
    codes=("CP211",),
    functions=("learn_tides", "forward"),
)
def f_tides_double(fixed):
    torch.set_float32_matmul_precision("high")
    dim, hours, rows = pick(1024, 8), pick(512, 12), pick(12288, 4)
    table = np.random.default_rng(0).standard_normal((rows, hours + 24))
    levels = torch.from_numpy(table)
    levels = (levels.float() if fixed else levels).to(DEV)  # PLANT
    with DEV:
        layers = [nn.Linear(hours, dim), *(Mix(dim) for _ in range(pick(3, 1)))]
        net = nn.Sequential(*layers, nn.LayerNorm(dim), nn.Linear(dim, 24)).to(levels.dtype)
    opt = adamw(net)
    past, future = levels[:, :hours].contiguous(), levels[:, hours:].contiguous()

    def learn_tides():
        loss = F.l1_loss(net(past), future)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return learn_tides
