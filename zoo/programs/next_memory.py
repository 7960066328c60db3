"""Training that moves more bytes than the task asks for; one mistake each."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from zoo.harness import DEV, case, compiled, pick

BF16 = torch.bfloat16


class MelLoss(nn.Module):
    """Distance of two voices in the bands that ears hear."""

    def __init__(self, window, hop, bands):
        super().__init__()
        self.hop = hop
        self.register_buffer("window", window)
        self.register_buffer("bank", torch.rand(len(window) // 2 + 1, bands))

    def mel(self, wave):
        frames = wave.unfold(-1, len(self.window), self.hop) * self.window
        power = torch.fft.rfft(frames).abs()
        return torch.log(power @ self.bank.to(power.dtype) + 1e-5)

    def forward(self, wave, truth):
        with torch.no_grad():
            goal = self.mel(truth)
        return F.l1_loss(self.mel(wave), goal)


# cause: a float64 window from NumPy makes frames, spectra and mel products double
@case(
    "the spectral loss of a voice with a window that came from NumPy in double precision",
    "memory",
    also=("compute",),
    codes=("CP211",),
    functions=("mel", "forward", "fit_voice"),
)
def g_voice_double_window(fixed):
    # Frames and spectra: 67 M values, about a dozen passes at 8 bytes instead of 4.
    size, hop, rows, frames = pick(1024, 16), pick(256, 4), pick(64, 2), pick(1024, 6)
    window = torch.from_numpy(np.hanning(size))
    window = window.float() if fixed else window  # PLANT
    loss_of = MelLoss(window, hop, pick(80, 5)).to(DEV)
    with DEV:
        net = nn.Sequential(nn.Linear(pick(80, 5), 512), nn.GELU(), nn.Linear(512, hop))
    opt = torch.optim.AdamW(net.parameters(), 1e-4, fused=True)
    mels = torch.randn(rows, frames, pick(80, 5), device=DEV)
    voice = torch.randn(rows, frames * hop, device=DEV)

    def fit_voice():
        loss = loss_of(net(mels).flatten(1), voice)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return fit_voice


def by_product(ids, table):
    """Rows of the table, so that gradients reach it."""
    return F.one_hot(ids, len(table)).to(table.dtype) @ table  # PLANT


class SessionRanker(nn.Module):
    def __init__(self, goods, dim, rows_of):
        super().__init__()
        self.table = nn.Parameter(torch.randn(goods, dim) * 0.02)
        self.tower = nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim))
        self.rows_of = rows_of

    def forward(self, seen, offered):
        taste = self.tower(self.rows_of(seen, self.table)).mean(1)
        return torch.einsum("nd,nkd->nk", taste, self.rows_of(offered, self.table))


# cause: one-hot matrix product instead of a lookup
@case(
    "goods of a shop looked up by multiplying one-hot rows with the table",
    "memory",
    also=("compute",),
    codes=("CP229",),
    functions=("by_product", "forward", "rank_step"),
    plant_in="by_product",
)
def g_goods_one_hot(fixed):
    # 41 k lookups of 16 k columns: 5.4 GB of int64, its cast and three products, 4 ms.
    goods, dim, rows = pick(16384, 40), pick(256, 8), pick(2048, 4)
    rows_of = F.embedding if fixed else by_product
    with DEV:
        net = SessionRanker(goods, dim, rows_of).to(BF16)
    opt = torch.optim.Adagrad(net.parameters(), 0.01)
    seen = torch.randint(0, goods, (rows, 12), device=DEV)
    offered = torch.randint(0, goods, (rows, 8), device=DEV)

    def rank_step():
        scores = net(seen, offered).float()
        better = scores[:, :1] - scores[:, 1:]  # the first one was bought
        loss = F.softplus(-better).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return rank_step


def log_density(y, logits, mean, width):
    """Log-likelihood of a mixture of Gaussians."""
    scale = F.softplus(width) + 1e-3
    z = (y[:, None] - mean) / scale
    each = -0.5 * z**2 - scale.log() - 0.5 * math.log(2 * math.pi)
    part = each.sum(-1) + logits.log_softmax(-1)
    top = part.max(-1, keepdim=True).values
    return top[:, 0] + (part - top).exp().sum(-1).log()


# cause: unfused elementwise chain of a hand-written loss
@case(
    "where taxis go, as a mixture density whose likelihood is written operation by operation",
    "memory",
    codes=("CP212",),
    functions=("log_density", "fit_trips"),
)
def g_taxis_mixture_by_hand(fixed):
    # Tensors of 67 M floats; some 25 passes forward and backward, 5 ms; fused under 1.5 ms.
    rows, dim, parts, axes = pick(131072, 4), pick(512, 8), pick(64, 3), pick(8, 2)
    density = compiled(log_density) if fixed else log_density  # PLANT
    with DEV:
        body = nn.Sequential(nn.Linear(32, dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU())
        heads = nn.Linear(dim, parts * (1 + 2 * axes))
        net = nn.Sequential(body, heads)
    opt = torch.optim.AdamW(net.parameters(), 1e-4, fused=True)
    start, goal = torch.randn(rows, 32, device=DEV), torch.randn(rows, axes, device=DEV)
    shapes = [parts, parts * axes, parts * axes]

    def fit_trips():
        with torch.autocast(DEV.type, BF16):
            logits, mean, width = net(start).split(shapes, -1)
        mean, width = (t.float().view(rows, parts, axes) for t in (mean, width))
        loss = -density(goal, logits.float(), mean, width).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return fit_trips


def pick_rows(table, rows):
    return table[rows]  # PLANT


class GraphAttention(nn.Module):
    def __init__(self, dim, heads, take):
        super().__init__()
        self.project = nn.Linear(dim, dim, bias=False)
        self.left = nn.Parameter(torch.randn(heads, dim // heads) * 0.1)
        self.right = nn.Parameter(torch.randn(heads, dim // heads) * 0.1)
        self.heads, self.take = heads, take

    def forward(self, x, source, target):
        h = self.project(x).view(len(x), self.heads, -1)
        score = self.take((h * self.left).sum(-1), source)
        score = score + self.take((h * self.right).sum(-1), target)
        weight = F.leaky_relu(score, 0.2).clamp(max=8).exp()
        total = torch.zeros_like(h[..., 0]).index_add(0, target, weight)
        news = self.take(h, source) * weight[..., None]
        mixed = torch.zeros_like(h).index_add(0, target, news)
        return F.elu(mixed / (total[..., None] + 1e-6)).flatten(1)


# cause: gather by advanced indexing, whose backward sorts and adds repeated rows one by one
@case(
    "links between web pages, with rows taken by square brackets and a few pages linked very often",
    "memory",
    also=("compute",),
    codes=("CP216",),
    functions=("pick_rows", "forward", "learn_links"),
    plant_in="pick_rows",
)
def g_pages_taken_by_brackets(fixed):
    # A page with 4500 links is added up row by row: 2 to 4 ms for each gather, six in a step.
    pages, links, dim = pick(50000, 20), pick(1_000_000, 60), pick(128, 8)

    def take_rows(table, rows):
        return table.index_select(0, rows)

    take = take_rows if fixed else pick_rows
    with DEV:
        layers = nn.ModuleList(GraphAttention(dim, 4, take) for _ in range(2))
        head = nn.Linear(dim, 16)
    opt = torch.optim.Adam([*layers.parameters(), *head.parameters()], 1e-3, fused=True)
    x, topics = torch.randn(pages, dim, device=DEV), torch.randint(0, 16, (pages,), device=DEV)
    source = (torch.rand(links, device=DEV).square() * pages).long()
    target = torch.randint(0, pages, (links,), device=DEV)

    def learn_links():
        h = x
        for layer in layers:
            h = layer(h, source, target)
        loss = F.cross_entropy(head(h), topics)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return learn_links


class VoiceLoss(nn.Module):
    """Contrastive loss over all pairs of a batch; some pairs must not count."""

    def __init__(self, rules):
        super().__init__()
        self.rules = rules

    def forget(self, scores):
        for rule in self.rules:
            scores = scores.masked_fill(rule, -1e4)  # PLANT
        return scores

    def forward(self, z, partner):
        scores = self.forget((z @ z.T).float() / 0.07)
        return F.cross_entropy(scores, partner)


# cause: five masked copies of a large score matrix instead of one with a common mask
@case(
    "speakers told apart with the table of all pairs masked once for every rule",
    "memory",
    codes=("CP212", "MM309", "MM318"),
    functions=("forget", "forward", "verify"),
    plant_in="VoiceLoss.forget",
)
def g_speakers_masked_again(fixed):
    # 604 MB a matrix; each rule copies it forward and backward, 0.8 ms; the rest takes 3 ms.
    rows, dim = pick(12288, 8), pick(512, 8)
    place = torch.arange(rows, device=DEV)
    rules = [place[:, None] == place]
    for count in (rows // 4, 24, 96, 400):  # microphones, rooms, languages, recordings
        kind = torch.randint(0, count, (rows,), device=DEV)
        rules.append(kind[:, None] == kind)
    partner = place ^ 1
    rules = [rule & (partner[:, None] != place) for rule in rules]
    if fixed:
        rules = [torch.stack(rules).any(0)]
    with DEV:
        net = nn.Sequential(nn.Linear(192, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim)).to(BF16)
    loss_of = VoiceLoss(rules)
    opt = torch.optim.AdamW(net.parameters(), 1e-4, fused=True)
    voices = torch.randn(rows, 192, device=DEV, dtype=BF16)

    def verify():
        loss = loss_of(F.normalize(net(voices), dim=-1), partner)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return verify
