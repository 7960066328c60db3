"""Training that moves more bytes than it has to."""

import contextlib

import torch
import torch.nn.functional as F
from torch import nn

from zoo.harness import DEV, DRY, case, compiled, pick
from zoo.programs.ninth_parts import BF16, Block, descend


def snake(x, pitch):
    """A periodic activation."""
    return x + (x * pitch).sin().square() / (pitch + 1e-4)  # PLANT


class Wave(nn.Module):
    """A layer of a vocoder."""

    def __init__(self, wide, activation):
        super().__init__()
        self.conv = nn.Conv1d(wide, wide, 3, padding=1)
        self.pitch = nn.Parameter(torch.ones(1, wide, 1))
        self.activation = activation

    def forward(self, x):
        return x + self.conv(self.activation(x, self.pitch))


class Vocoder(nn.Module):
    """Sound from the frames of a spectrogram."""

    def __init__(self, bands, wide, depth, hop, activation):
        super().__init__()
        self.enter = nn.ConvTranspose1d(bands, wide, hop, hop)
        self.waves = nn.Sequential(*(Wave(wide, activation) for _ in range(depth)))
        self.leave = nn.Conv1d(wide, 1, 7, padding=3)

    def forward(self, frames):
        return self.leave(self.waves(self.enter(frames))).squeeze(1)


# cause: an activation written as a chain of elementwise kernels, each a pass over the memory
@case(
    "a vocoder with a periodic activation in five kernels forward and ten backward",
    "memory",
    also=("compute",),
    codes=("CP212", "CP219"),
    functions=("snake", "forward", "learn_sound"),
    plant_in="snake",
)
def i_vocoder_snake_eager(fixed):
    # 8 activations of 100 MB: some 25 passes each, 0.8 ms, against 6; a convolution takes 1 ms.
    bands, wide, rows, frames, hop = pick(80, 4), pick(192, 4), pick(16, 2), pick(64, 3), 256
    activation = compiled(snake) if fixed else snake
    with DEV:
        net = Vocoder(bands, wide, pick(8, 2), pick(hop, 4), activation).to(BF16)
    opt = torch.optim.AdamW(net.parameters(), 1e-4, fused=True)
    heard = torch.randn(rows, bands, frames, device=DEV, dtype=BF16)
    sound = torch.randn(rows, frames * pick(hop, 4), device=DEV)

    def learn_sound():
        return descend(opt, F.l1_loss(net(heard).float(), sound))

    return learn_sound


class Stage(nn.Module):
    """A convolution, and a norm over the channels of each pixel."""

    def __init__(self, wide, kept):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(wide, wide, 3, padding=1), nn.LayerNorm(wide)
        self.kept = kept

    def settle(self, y):
        return y if self.kept else y.contiguous()  # PLANT

    def forward(self, x):
        y = self.settle(self.conv(x))
        y = self.norm(y.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return x + F.gelu(self.settle(y))


# cause: .contiguous() undoes channels-last, so the layout of each map is changed again and again
@case(
    "a network that takes rain out of pictures, and changes their layout twice in each stage",
    "memory",
    also=("compute",),
    codes=("CP208", "CP222"),
    functions=("settle", "forward", "clear_rain"),
    plant_in="Stage.settle",
)
def i_rain_layout_undone(fixed):
    # 150 MB a map: four or five copies and mixed layouts, 1.2 ms a stage; the rest takes 2 ms.
    wide, rows, side = pick(64, 4), pick(32, 2), pick(192, 8)
    with DEV:
        stages = (Stage(wide, fixed) for _ in range(pick(6, 2)))
        ends = nn.Conv2d(3, wide, 3, padding=1), nn.Conv2d(wide, 3, 3, padding=1)
        net = nn.Sequential(ends[0], *stages, ends[1])
    net = net.to(BF16, memory_format=torch.channels_last)
    opt = torch.optim.AdamW(net.parameters(), 1e-4, fused=True)
    rainy, clear = torch.rand(2, rows, 3, side, side, device=DEV)
    rainy = rainy.to(BF16).contiguous(memory_format=torch.channels_last)

    def clear_rain():
        return descend(opt, F.l1_loss(net(rainy).float() + rainy, clear))

    return clear_rain


class Chat(nn.Module):
    """The next token of a text."""

    def __init__(self, words, dim, depth, heads):
        super().__init__()
        self.word = nn.Embedding(words, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.head = nn.Linear(dim, words, bias=False)

    def forward(self, ids):
        x = self.word(ids)
        for block in self.blocks:
            x = block(x, causal=True)
        return self.head(x)


class Smoothed:
    """Cross entropy with smoothed targets."""

    def __init__(self, smoothing, fused):
        self.smoothing, self.fused = smoothing, fused

    def __call__(self, scores, truth):
        if self.fused:
            return F.cross_entropy(scores, truth, label_smoothing=self.smoothing)
        words = scores.shape[-1]
        target = F.one_hot(truth, words).float()  # PLANT
        target = target * (1 - self.smoothing) + self.smoothing / words
        return -(target * scores.log_softmax(-1)).sum(-1).mean()


# cause: a loss over a written-out one-hot matrix of all tokens by all words
@case(
    "a language model with smoothed targets, written out for each token and each word",
    "memory",
    also=("compute", "framework"),
    codes=("CP220", "CP212", "CP219"),
    functions=("__call__", "chat"),
    plant_in="Smoothed.__call__",
)
def i_chat_one_hot_targets(fixed):
    # 8192 tokens by 32000 words: 14 passes of 1 to 2 GB more, 5 ms; the rest takes some 8 ms.
    words, rows, length = pick(32000, 12), pick(16, 2), pick(512, 5)
    with DEV:
        net = Chat(words, pick(512, 8), pick(4, 1), pick(8, 2)).to(BF16)
    opt = torch.optim.AdamW(net.parameters(), 1e-4, fused=True)
    smoothed = Smoothed(0.1, fixed)
    ids = torch.randint(0, words, (rows, length + 1), device=DEV)

    def chat():
        scores = net(ids[:, :-1]).flatten(0, 1).float()
        return descend(opt, smoothed(scores, ids[:, 1:].flatten()))

    return chat


class Scan(nn.Module):
    """The state of the tissue in each cube of a scan."""

    def __init__(self, voxels, dim, depth, heads, states):
        super().__init__()
        self.stem, self.head = nn.Linear(voxels, dim), nn.Linear(dim, states)
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(depth)))

    def forward(self, cubes):
        return self.head(self.blocks(self.stem(cubes)))


def on_host():
    """Keeps what the backward pass needs in the memory of the host."""
    return torch.autograd.graph.save_on_cpu(pin_memory=not DRY)


# cause: activations are moved to the host and fetched again, though the GPU has room for them
@case(
    "tissue in scans, with the activations kept on the host as for a GPU of 8 GB",
    "memory",
    also=("framework", "data_loading"),
    codes=("MM319",),
    functions=("find_tissue", "descend"),
)
def i_scans_kept_on_host(fixed):
    # Some 0.7 GB of activations and weights there and back: 15 to 20 ms each way; else 6 ms.
    voxels, dim, rows, cubes = pick(512, 6), pick(768, 8), pick(8, 2), pick(512, 5)
    with DEV:
        net = Scan(voxels, dim, pick(6, 1), pick(12, 2), 5).to(BF16)
    opt = torch.optim.AdamW(net.parameters(), 1e-4, fused=True)
    scans = torch.randn(rows, cubes, voxels, device=DEV, dtype=BF16)
    tissue = torch.randint(0, 5, (rows * cubes,), device=DEV)

    def find_tissue():
        with contextlib.nullcontext() if fixed else on_host():  # PLANT
            scores = net(scans).flatten(0, 1).float()
        return descend(opt, F.cross_entropy(scores, tissue))

    return find_tissue


class Shopper(nn.Module):
    """What a customer wants, from what was looked at before."""

    def __init__(self, goods, dim, wide, sparse):
        super().__init__()
        self.goods = nn.Embedding(goods, dim, sparse=sparse)  # PLANT
        self.wish = nn.Sequential(nn.Linear(dim, wide), nn.ReLU(), nn.Linear(wide, dim))

    def forward(self, history, shown):
        wish = self.wish(self.goods(history).mean(1))
        return wish @ self.goods(shown).T


# cause: the gradient of a huge table is dense: it is filled, added and applied for all its rows
@case(
    "recommendations from a table of millions of goods, all of which get a gradient",
    "memory",
    also=("compute",),
    codes=("MM317",),
    functions=("__init__", "forward", "descend_both", "recommend"),
    plant_in="Shopper.__init__",
)
def i_goods_dense_gradient(fixed):
    # 12 million rows of 64: 3 GB filled twice, added, and applied: 25 GB, 6 ms; sparse 2 ms.
    goods, rows, seen, dim = pick(12_000_000, 30), pick(4096, 3), pick(32, 2), pick(64, 4)
    torch.set_float32_matmul_precision("high")
    with DEV:
        net = Shopper(goods, dim, pick(1024, 8), fixed)
    table = torch.optim.SGD(net.goods.parameters(), 0.1, foreach=False)
    rest = torch.optim.Adam(net.wish.parameters(), 1e-3, fused=True)
    history = torch.randint(0, goods, (rows, seen), device=DEV)
    shown = torch.randint(0, goods, (pick(4096, 3),), device=DEV)
    bought = torch.randint(0, len(shown), (rows,), device=DEV)

    def descend_both(loss):
        table.zero_grad(set_to_none=True)
        rest.zero_grad(set_to_none=True)
        loss.backward()
        table.step()
        rest.step()
        return loss.detach()

    def recommend():
        return descend_both(F.cross_entropy(net(history, shown), bought))

    return recommend
