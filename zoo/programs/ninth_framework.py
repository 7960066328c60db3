"""Training whose host is slower than its GPU, or makes the GPU wait."""

import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from zoo.harness import DEV, case, compiled, pick
from zoo.programs.ninth_parts import BF16, Block, descend


class Melodies(nn.Module):
    """The next note of a melody."""

    def __init__(self, notes, dim, depth, heads):
        super().__init__()
        self.note = nn.Embedding(notes, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.head = nn.Linear(dim, notes)

    def forward(self, ids):
        x = self.note(ids)
        for block in self.blocks:
            x = block(x, causal=True)
        return self.head(x)


class Composer:
    """Trains a model of melodies and keeps an eye on the gradients."""

    def __init__(self, net, together):
        self.net, self.together = net, together
        self.opt = torch.optim.AdamW(net.parameters(), 1e-4, fused=True)
        self.names = [name for name, _ in net.named_parameters()]
        self.watched = {}

    def watch(self):
        grads = [p.grad for p in self.net.parameters()]
        if self.together:
            return {"all": torch.stack(torch._foreach_norm(grads))}
        return {n: g.norm().item() for n, g in zip(self.names, grads, strict=True)}  # PLANT

    def compose(self, ids):
        scores = self.net(ids[:, :-1]).flatten(0, 1)
        self.opt.zero_grad(set_to_none=True)
        F.cross_entropy(scores.float(), ids[:, 1:].flatten()).backward()
        self.watched = self.watch()
        self.opt.step()


# cause: .item() for the gradient norm of every parameter in each step, one synchronisation each
@case(
    "a model of melodies that logs the size of each of its gradients",
    "framework",
    codes=("FW503",),
    functions=("watch", "compose"),
    plant_in="Composer.watch",
)
def i_melodies_gradient_norms(fixed):
    # 150 norms of 30 us: 5 ms in which the GPU idles; without them the step takes some 6 ms.
    notes, rows, length = pick(1024, 7), pick(16, 2), pick(512, 5)
    with DEV:
        net = Melodies(notes, pick(512, 8), pick(12, 1), pick(8, 2)).to(BF16)
    composer = Composer(net, fixed)
    ids = torch.randint(0, notes, (rows, length + 1), device=DEV)
    return lambda: composer.compose(ids)


class Lion(torch.optim.Optimizer):
    """Lion (evolved sign momentum)."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), decay=0.1, grouped=False):
        super().__init__(params, {"lr": lr, "betas": betas, "decay": decay})
        self.grouped = grouped

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            grads = [p.grad for p in params]
            for p in params:
                if "momentum" not in self.state[p]:
                    self.state[p]["momentum"] = torch.zeros_like(p)
            momenta = [self.state[p]["momentum"] for p in params]
            move = self.move_all if self.grouped else self.move_each
            move(params, grads, momenta, group["lr"], *group["betas"], group["decay"])

    def move_each(self, params, grads, momenta, lr, beta1, beta2, decay):
        for p, grad, momentum in zip(params, grads, momenta, strict=True):
            p.mul_(1 - lr * decay)
            update = (momentum * beta1 + grad * (1 - beta1)).sign()  # PLANT
            p.add_(update, alpha=-lr)
            momentum.mul_(beta2).add_(grad, alpha=1 - beta2)

    def move_all(self, params, grads, momenta, lr, beta1, beta2, decay):
        torch._foreach_mul_(params, 1 - lr * decay)
        update = torch._foreach_mul(momenta, beta1)
        torch._foreach_add_(update, torch._foreach_mul(grads, 1 - beta1))
        torch._foreach_sign_(update)
        torch._foreach_add_(params, update, alpha=-lr)
        torch._foreach_mul_(momenta, beta2)
        torch._foreach_add_(momenta, grads, alpha=1 - beta2)


class Tagger(nn.Module):
    """Which sounds are heard in a spectrogram."""

    def __init__(self, bands, dim, depth, heads, sounds):
        super().__init__()
        self.stem, self.head = nn.Linear(bands, dim), nn.Linear(dim, sounds)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))

    def forward(self, frames):
        x = self.stem(frames)
        for block in self.blocks:
            x = block(x)
        return self.head(x.amax(1))


# cause: an optimizer that loops over the parameters, with eight small kernels for each
@case(
    "a tagger of sounds with an optimizer copied from the paper, which goes from tensor to tensor",
    "framework",
    also=("memory",),
    codes=("FW507", "CP227"),
    functions=("move_each", "step", "descend", "tag_sounds"),
    plant_in="Lion.move_each",
)
def i_sounds_lion_loop(fixed):
    # 200 tensors by 8 kernels of 5 us: 8 ms; in groups 0.5 ms. The rest takes 8 ms.
    bands, rows, length = pick(64, 4), pick(16, 2), pick(256, 5)
    with DEV:
        net = Tagger(bands, pick(384, 8), pick(16, 1), pick(6, 2), pick(500, 5)).to(BF16)
    opt = Lion(net.parameters(), grouped=fixed)
    frames = torch.randn(rows, length, bands, device=DEV, dtype=BF16)
    heard = torch.randint(0, 2, (rows, pick(500, 5)), device=DEV).float()

    def tag_sounds():
        scores = net(frames).float()
        return descend(opt, F.binary_cross_entropy_with_logits(scores, heard))

    return tag_sounds


def make_current(checked):
    """The movement of a tracer in a current; `checked` looks for instabilities on the way."""

    def carry(tracer, east, north):
        for _ in range(4):
            if checked and torch.isnan(tracer).any():  # PLANT
                raise FloatingPointError("the time step is too long")
            across = 0.5 * (tracer.roll(-1, 1) - tracer.roll(1, 1))
            along = 0.5 * (tracer.roll(-1, 0) - tracer.roll(1, 0))
            spread = tracer.roll(-1, 1) + tracer.roll(1, 1) + tracer.roll(-1, 0)
            spread = spread + tracer.roll(1, 0) - 4 * tracer
            decay = 1e-3 * tracer / (1 + tracer.abs())
            tracer = tracer + 0.05 * (0.2 * spread - east * across - north * along) - decay
        return tracer

    return carry


# cause: a data-dependent branch in the loop of a compiled function: all of it is left to eager
@case(
    "a tracer in an ocean current by a compiled function that stops for what is not a number",
    "framework",
    also=("memory", "compute"),
    codes=("FW510", "FW534"),
    functions=("carry", "simulate"),
    plant_in="make_current",
)
def i_tracer_branch_in_loop(fixed):
    # 8 substeps of 26 kernels over 64 MB, 40 us each: 8 ms and 8 waits; compiled about 1.5 ms.
    side = pick(4096, 12)
    carry = compiled(make_current(not fixed))
    tracer, east, north = (torch.rand(side, side, device=DEV) for _ in range(3))
    broken = torch.zeros((), dtype=torch.bool, device=DEV)

    @torch.no_grad()
    def simulate():
        nonlocal tracer
        for _ in range(2):
            tracer = carry(tracer, east, north)
        broken.logical_or_(torch.isnan(tracer).any())  # read now and then
        return tracer

    return simulate


class Roads(nn.Module):
    """The speed on each road of a city, by messages between crossings."""

    def __init__(self, inputs, dim, depth):
        super().__init__()
        self.enter, self.leave = nn.Linear(inputs, dim), nn.Linear(dim, 1)
        self.sends = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))
        self.hears = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))

    def forward(self, x, source, target):
        x = self.enter(x)
        for send, hear in zip(self.sends, self.hears, strict=True):
            sent = F.relu(send(x)).index_select(0, source)
            x = F.relu(hear(x) + torch.zeros_like(x).index_add(0, target, sent))
        return self.leave(x).squeeze(1)


# cause: deterministic algorithms left on: sums over neighbours are sorted instead of atomic
@case(
    "the traffic of a city with deterministic algorithms, switched on to look for a bug",
    "compute",
    also=("framework", "memory"),
    codes=("deterministic algorithms are switched on",),
    functions=("forward", "predict_traffic"),
)
def i_traffic_deterministic(fixed):
    # 8 sums over 800000 edges: 0.3 ms each with atomic additions, 1 ms or more by sorting.
    nodes, edges, inputs, dim = pick(60000, 9), pick(800000, 20), pick(24, 3), pick(128, 4)
    torch.set_float32_matmul_precision("high")
    with DEV:
        net = Roads(inputs, dim, pick(4, 2))
    opt = torch.optim.AdamW(net.parameters(), 1e-3, fused=True)
    source, target = torch.randint(0, nodes, (2, edges), device=DEV)
    seen = torch.randn(nodes, inputs, device=DEV)
    speed = torch.rand(nodes, device=DEV)

    def predict_traffic():
        torch.use_deterministic_algorithms(not fixed, warn_only=True)  # PLANT
        loss = descend(opt, F.mse_loss(net(seen, source, target), speed))
        torch.use_deterministic_algorithms(False)
        return loss

    return predict_traffic


class Sales(nn.Module):
    """The sales of the next weeks from those of the last years."""

    def __init__(self, past, ahead, dim, depth):
        super().__init__()
        self.enter, self.leave = nn.Linear(past, dim), nn.Linear(dim, ahead)
        self.inner = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))

    def forward(self, x):
        x = self.enter(x)
        for layer in self.inner:
            x = x + F.gelu(layer(x))
        return self.leave(x)


class Shop:
    """Trains a forecast and keeps its last state on disk."""

    def __init__(self, net, every):
        self.net, self.every, self.count = net, every, 0
        self.opt = torch.optim.AdamW(net.parameters(), 1e-4, fused=True)
        self.folder = tempfile.TemporaryDirectory()

    def keep(self):
        torch.save(self.net.state_dict(), Path(self.folder.name) / "last.pt")

    def forecast(self, past, wanted):
        loss = descend(self.opt, F.smooth_l1_loss(self.net(past), wanted))
        self.count += 1
        if self.count % self.every == 0:  # PLANT
            self.keep()
        return loss


# cause: a checkpoint is written in every step
@case(
    "a sales forecast that writes its state to disk after every batch",
    "framework",
    codes=("FW529",),
    functions=("forecast", "keep"),
    plant_in="Shop.forecast",
)
def i_sales_saved_every_step(fixed):
    # 9 million weights, 36 MB: 20 to 50 ms to copy and write; the step itself takes 4 ms.
    past, ahead, dim, rows = pick(208, 6), pick(12, 2), pick(1024, 8), pick(16384, 4)
    torch.set_float32_matmul_precision("high")
    with DEV:
        net = Sales(past, ahead, dim, pick(8, 1))
    shop = Shop(net, 1000 if fixed else 1)
    seen = torch.rand(rows, past, device=DEV)
    wanted = torch.rand(rows, ahead, device=DEV)
    return lambda: shop.forecast(seen, wanted)


class LandCover(nn.Module):
    """The kind of land of every pixel."""

    def __init__(self, bands, wide, depth, kinds):
        super().__init__()
        layers = [nn.Conv2d(bands, wide, 3, 2, 1), nn.ReLU()]
        for _ in range(depth):
            layers += [nn.Conv2d(wide, wide, 3, padding=1, bias=False), nn.BatchNorm2d(wide)]
            layers += [nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Conv2d(wide, kinds, 1)

    def forward(self, x):
        return F.interpolate(self.head(self.body(x)), scale_factor=2.0, mode="nearest")


class Confusion:
    """Counts which kind was taken for which."""

    def __init__(self, kinds, on_device):
        self.kinds, self.on_device = kinds, on_device
        self.total = torch.zeros(kinds * kinds, dtype=torch.int64, device=DEV)
        self.table = np.zeros(kinds * kinds, np.int64)

    def add(self, scores, truth):
        guess = scores.argmax(1)
        if self.on_device:
            cells = (truth * self.kinds + guess).flatten()
            self.total.scatter_add_(0, cells, torch.ones_like(cells))
            return
        guess, truth = guess.cpu().numpy(), truth.cpu().numpy()  # PLANT
        cells = (truth * self.kinds + guess).ravel()
        self.table += np.bincount(cells, minlength=self.kinds**2)


# cause: a metric is counted on the host: every map is copied to the CPU and tallied by numpy
@case(
    "a map of land cover whose confusion matrix is counted by numpy in each step",
    "framework",
    also=("memory", "data_loading"),
    codes=("FW517", "IN619", "FW528", "DL104"),
    functions=("add", "map_land"),
    plant_in="Confusion.add",
)
def i_land_confusion_on_host(fixed):
    # Two copies of 17 MB and a count of 2 million pixels: 20 ms or more; the net takes 12 ms.
    rows, side, kinds, bands = pick(8, 2), pick(512, 16), pick(12, 3), pick(6, 2)
    net = LandCover(bands, pick(192, 8), pick(6, 1), kinds)
    net = net.to(DEV, BF16, memory_format=torch.channels_last)
    opt = torch.optim.AdamW(net.parameters(), 1e-4, fused=True)
    tiles = torch.randn(rows, bands, side, side, device=DEV, dtype=BF16)
    tiles = tiles.contiguous(memory_format=torch.channels_last)
    truth = torch.randint(0, kinds, (rows, side, side), device=DEV)
    confusion = Confusion(kinds, fixed)

    def map_land():
        scores = net(tiles).float()
        loss = descend(opt, F.cross_entropy(scores, truth))
        confusion.add(scores.detach(), truth)
        return loss

    return map_land


class Tutor:
    """Fine-tunes the last layers of a model; gradients are summed over parts of the batch."""

    def __init__(self, net, part):
        self.net, self.part = net, part
        for p in net.parameters():
            p.requires_grad_(False)
        self.learned = [p.requires_grad_() for b in net.blocks for p in b.down.parameters()]
        self.opt = torch.optim.AdamW(self.learned, 1e-4, fused=True)

    def tutor(self, ids):
        self.opt.zero_grad(set_to_none=True)
        parts = ids.split(self.part)
        for part in parts:  # PLANT
            scores = self.net(part[:, :-1]).flatten(0, 1).float()
            (F.cross_entropy(scores, part[:, 1:].flatten()) / len(parts)).backward()
        self.opt.step()


# cause: gradient accumulation over parts of two rows, though the whole batch fits easily
@case(
    "a model tuned on short dialogues in parts of two, as on the small GPU it was written for",
    "framework",
    also=("compute",),
    codes=("FW501", "FW502"),
    functions=("tutor",),
    plant_in="Tutor.tutor",
)
def i_dialogues_tiny_parts(fixed):
    # 12 parts of some 500 kernels: 36 ms or more bound by the host; in one part 5 ms.
    words, rows, length = pick(8192, 9), pick(24, 4), pick(128, 5)
    with DEV:
        net = Melodies(words, pick(768, 8), pick(10, 1), pick(12, 2)).to(BF16)
    tutor = Tutor(net, rows if fixed else 2)
    ids = torch.randint(0, words, (rows, length + 1), device=DEV)
    return lambda: tutor.tutor(ids)
